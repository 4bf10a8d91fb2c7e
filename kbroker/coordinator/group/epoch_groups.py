"""The common part of the group types with member epochs (KIP-848, KIP-932, KIP-1071) as a
`GroupKind`: the map of groups, and for those with committed offsets the checks of readers and
writers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Set
from typing import ClassVar, Generic, Protocol, TypeVar

from kbroker.coordinator.group.kind import NO_MEMBER_EPOCH, GroupType, OffsetCommitter
from kbroker.coordinator.group.offsets.expiry import Retention
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.model import Uuid
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.groups import ListGroupsResponse


class EpochGroup(Protocol):
    """One group."""

    @property
    def members(self) -> Mapping[str, object]: ...

    def state(self) -> str:
        """The state under the name clients see."""
        ...


class OffsetGroup(EpochGroup, Protocol):
    """One group with committed offsets."""

    def subscribed_names(self) -> set[str]: ...
    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode: ...


G = TypeVar("G", bound=EpochGroup)
Keeper = TypeVar("Keeper", bound=OffsetGroup)


class EpochGroups(ABC, Generic[G]):
    """Groups by id. A group exists from its first record to the tombstone of its group record."""

    __slots__ = ("groups",)

    group_type: ClassVar[GroupType]

    def __init__(self) -> None:
        self.groups: dict[str, G] = {}

    def __contains__(self, group_id: object) -> bool:
        return group_id in self.groups

    def __iter__(self) -> Iterator[str]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    def is_idle(self, group_id: str) -> bool:
        """Whether the group has no members."""
        return not self.groups[group_id].members

    def has_record(self, group_id: str) -> bool:
        """Always: these groups are made by records only."""
        return True

    def listed(self, states: Set[str]) -> Iterator[ListGroupsResponse.ListedGroup]:
        """Always True: only records create these groups."""
        for group_id, group in self.groups.items():
            state = group.state()
            if not states or not states.isdisjoint(self.filter_names(state)):
                yield ListGroupsResponse.ListedGroup(
                    group_id=group_id,
                    protocol_type=self.group_type.value,
                    group_state=state,
                    group_type=self.group_type.value,
                )

    def on_topics_deleted(self, topic_ids: Collection[Uuid]) -> list[CoordinatorRecord]:
        """None: the next heartbeat detects that the cluster's topics changed."""
        return []

    def filter_names(self, state: str) -> tuple[str, ...]:
        """The names of that state in the filter of a client."""
        return (state.lower(),)

    def _changes(self, group_id: str, epoch: int | None) -> str | None:
        """The log line for a group record with that epoch, None for its tombstone."""
        if epoch is None:
            return f"{self.group_type.value} group {group_id} deleted"
        group = self.groups.get(group_id)
        if group is None:
            return None  # a later record of the same batch deleted the group
        return (
            f"{self.group_type.value} group {group_id} epoch {epoch}: {len(group.members)} members"
        )


class OffsetGroups(EpochGroups[Keeper], Generic[Keeper]):
    """Groups by id, with committed offsets."""

    __slots__ = ()

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Whether that member may read the group's offsets."""
        return self.groups[group_id].check_fetch(member_id, member_epoch)

    def subscribed_topics(self, group_id: str) -> frozenset[str]:
        """The topics to which members subscribe."""
        return frozenset(self.groups[group_id].subscribed_names())

    def retention(self, group_id: str) -> Retention:
        """Offsets of topics to which no member subscribes expire."""
        return Retention(self.groups[group_id].subscribed_names())

    def check_transactional_commit(self, group_id: str, committer: OffsetCommitter) -> ErrorCode:
        """As `check_commit`, with the errors that producers know. A producer that names no member
        may commit.
        """
        if committer.names_no_member and committer.epoch == NO_MEMBER_EPOCH:
            return ErrorCode.NONE
        error = self._check_member(group_id, committer, None)
        return ErrorCode.ILLEGAL_GENERATION if error is ErrorCode.STALE_MEMBER_EPOCH else error

    def check_commit(self, group_id: str, committer: OffsetCommitter) -> ErrorCode:
        """Whether that member may commit."""
        return self._check_member(group_id, committer, committer.version)

    @abstractmethod
    def _check_member(
        self, group_id: str, committer: OffsetCommitter, version: int | None
    ) -> ErrorCode:
        """version: that of OffsetCommit, None in a transaction."""
