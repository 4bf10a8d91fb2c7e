"""The changes of share partitions' states that are in progress on this broker (KIP-932).

The log says which states are to be changed, but not whether a broker is changing them now. Nothing
here outlives the leadership of the groups' partition.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from kbroker.model import Uuid
from kbroker.ports import Deferred

T = TypeVar("T")


class StateChange:
    """One reset or deletion of states, from its first record to its last."""

    __slots__ = ("group_id", "topic_ids")

    def __init__(self, group_id: str, topic_ids: Collection[Uuid]) -> None:
        self.group_id = group_id
        self.topic_ids = frozenset(topic_ids)

    def concerns(self, topic_id: Uuid) -> bool:
        """Whether states of that topic may change."""
        return topic_id in self.topic_ids


class StateChanges:
    """The changes in progress of one shard's groups."""

    __slots__ = ("_changes",)

    def __init__(self) -> None:
        self._changes: dict[str, list[StateChange]] = {}

    def of(self, group_id: str) -> Sequence[StateChange]:
        """The changes of a group's states in progress."""
        return self._changes.get(group_id, ())

    def begin(self, group_id: str, topic_ids: Collection[Uuid]) -> StateChange:
        """A change of the states of these topics begins. The caller passes it to `end_with`."""
        change = StateChange(group_id, topic_ids)
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
