"""The changes of share partitions' states that are in progress on this broker (KIP-932).

The log says which states are to be changed, but not whether a broker is changing them now. Nothing
here outlives the leadership of the groups' partition.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from kbroker.model import Uuid
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError

T = TypeVar("T")


class StateChange:
    """An initialization or deletion of states, from its first record to its last. for_members: an
    initialization that a heartbeat requested; others are requested by administrators.
    """

    __slots__ = ("_topic_ids", "for_members", "group_id")

    def __init__(
        self, group_id: str, topic_ids: Collection[Uuid] | None, *, for_members: bool
    ) -> None:
        self.group_id = group_id
        self.for_members = for_members
        self._topic_ids = None if topic_ids is None else frozenset(topic_ids)

    def concerns(self, topic_id: Uuid) -> bool:
        """Whether it is a change of that topic's states."""
        return self._topic_ids is None or topic_id in self._topic_ids


class StateChanges:
    """The changes in progress of one shard's groups."""

    __slots__ = ("_changes",)

    def __init__(self) -> None:
        self._changes: dict[str, list[StateChange]] = {}

    def of(self, group_id: str) -> Sequence[StateChange]:
        """The changes of a group's states."""
        return self._changes.get(group_id, ())

    def require_none(self, group_id: str, topic_ids: Collection[Uuid] | None = None) -> None:
        """Check that no states of these topics are being changed; None: of any topic. Raises
        KafkaError(COORDINATOR_NOT_AVAILABLE), with which clients repeat their request.
        """
        changes = self.of(group_id)
        if topic_ids is not None:
            changes = [change for change in changes if any(map(change.concerns, topic_ids))]
        if changes:
            message = f"Share partition states of group {group_id} are being changed."
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)

    def begin(
        self, group_id: str, topic_ids: Collection[Uuid] | None, *, for_members: bool = False
    ) -> StateChange:
        """A change of the states of these topics begins; None: of all topics. The caller passes it
        to `end_with`.
        """
        change = StateChange(group_id, topic_ids, for_members=for_members)
        self._changes.setdefault(group_id, []).append(change)
        return change

    def end_with(self, change: StateChange, outcome: Deferred[T]) -> None:
        """End the change when outcome is resolved or fails, before later callbacks of outcome."""

        def end(_: object) -> None:
            changes = self._changes[change.group_id]
            changes.remove(change)
            if not changes:
                del self._changes[change.group_id]

        outcome.on_done(end, end)
