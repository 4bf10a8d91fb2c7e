"""The interface of a group type to its shard. Classic, consumer, share and streams groups each are
a `GroupKind`; the shard maps each group id to one kind and delegates to it.

An id belongs to one group. A member of another type may replace a group without members; each kind
declares those types in `gives_way_to`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from enum import Enum
from typing import Final, NamedTuple, Protocol, TypeVar

from kbroker.coordinator.group.membership.join import Join
from kbroker.coordinator.group.offsets.expiry import Retention
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.runtime.result import CoordinatorResult, Result
from kbroker.model import TopicIdPartition, Uuid
from kbroker.protocol.codecs.schema import CoordinatorKey, CoordinatorValue, Message
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.groups import (
    HeartbeatRequest,
    LeaveGroupRequest,
    ListGroupsResponse,
    SyncGroupRequest,
)

NO_MEMBER_EPOCH: Final = -1
"""The generation or member epoch of a commit by a client without a group membership."""


class GroupType(Enum):
    """The group types, by their names in ListGroups."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


class GroupChange(NamedTuple):
    """A record created or deleted a group. is_created: False if it was deleted."""

    group_id: str
    is_created: bool


class OffsetCommitter(NamedTuple):
    """The member that commits offsets, from the request. epoch: its generation or member epoch.
    version: that of OffsetCommit. partitions: those of the commit; an iterable that can be iterated
    repeatedly.
    """

    member_id: str
    instance_id: str | None
    epoch: int
    version: int
    partitions: Collection[TopicIdPartition] = ()

    @property
    def names_no_member(self) -> bool:
        """Whether the commit has no member, like that of a simple consumer."""
        return self.member_id == "" and self.instance_id is None


D_co = TypeVar("D_co", covariant=True)


class GroupKind(Protocol[D_co]):
    """The groups of one type in one shard. D_co: the description of one group: the response's group
    without members, and an iterator of its members.
    """

    @property
    def group_type(self) -> GroupType: ...

    @property
    def replays(self) -> Collection[type[CoordinatorKey]]:
        """The keys of the records that are replayed into these groups."""
        ...

    @property
    def gives_way_to(self) -> Collection[GroupType]:
        """The types whose members may replace an idle group with their own."""
        ...

    def __contains__(self, group_id: object) -> bool: ...

    def __iter__(self) -> Iterator[str]: ...

    def __len__(self) -> int: ...

    # -- replay and lifecycle ----------------------------------------------------------------

    def replay(self, key: CoordinatorKey, value: CoordinatorValue | None) -> GroupChange | None:
        """Apply a record of the log. key: one of `replays`. Returns None if the record neither
        created nor deleted a group.
        """
        ...

    def on_loaded(self, now_ms: int) -> list[Result]:
        """Called after all records were replayed: start sessions and deadlines."""
        ...

    def unload(self, error: ErrorCode) -> list[Result]:
        """This broker no longer coordinates these groups: cancel all deadlines, and answer the
        waiting requests with error.
        """
        ...

    def changes(self, key: CoordinatorKey, value: CoordinatorValue | None) -> str | None:
        """The log line for a record that was just written and replayed; None for records that are
        of no interest to an operator.
        """
        ...

    def on_topics_deleted(self, topic_ids: Collection[Uuid]) -> list[CoordinatorRecord]:
        """The records, other than offset tombstones, that these groups write when topics are
        deleted.
        """
        ...

    # -- deleting a group --------------------------------------------------------------------

    def is_idle(self, group_id: str) -> bool:
        """Whether that group has no members."""
        ...

    def has_record(self, group_id: str) -> bool:
        """Whether the log has a record of the group itself, besides its offsets."""
        ...

    def end(self, group_id: str) -> list[CoordinatorRecord]:
        """The tombstones of an idle group."""
        ...

    # -- offsets -----------------------------------------------------------------------------

    @property
    def keeps_offsets(self) -> bool:
        """Whether the groups of this type have committed offsets."""
        ...

    def check_commit(self, group_id: str, committer: OffsetCommitter) -> ErrorCode:
        """Whether that client may commit offsets of the group."""
        ...

    def check_transactional_commit(self, group_id: str, committer: OffsetCommitter) -> ErrorCode:
        """Whether a producer may commit offsets for that member in a transaction. The producer may
        not know the member (KIP-98), or send the member id of its consumer (KIP-447).
        """
        ...

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Whether that member may read the group's offsets."""
        ...

    def subscribed_topics(self, group_id: str) -> frozenset[str] | None:
        """Topics whose offsets the members of that group need; None: possibly all. Raises
        KafkaError(NON_EMPTY_GROUP) if the group has members that are not consumers.
        """
        ...

    def retention(self, group_id: str) -> Retention | None:
        """Which offsets of that group may expire; None: none at the moment."""
        ...

    # -- describing groups -------------------------------------------------------------------

    def listed(self, states: Set[str]) -> Iterator[ListGroupsResponse.ListedGroup]:
        """The groups in one of these states, in lower case; all groups if there are none."""
        ...

    def describe(self, group_id: str) -> D_co:
        """One group of this kind. Its members are created one by one as the iterator is
        advanced.
        """
        ...

    def describe_missing(self, group_id: str, message: str, version: int) -> D_co:
        """The description of an id that is no group of this kind. version: that of the request."""
        ...


class ClassicProtocol(Protocol):
    """The responses to clients of the classic protocol, for a kind whose groups may have such
    members. Every group id below is one of that kind.
    """

    def join(self, group_id: str, join: Join, now_ms: int) -> CoordinatorResult[Message]: ...

    def sync(self, request: SyncGroupRequest, now_ms: int) -> CoordinatorResult[Message]: ...

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> ErrorCode: ...

    def leave(
        self,
        group_id: str,
        leaving: Sequence[LeaveGroupRequest.MemberIdentity],
        now_ms: int,
    ) -> CoordinatorResult[Message]: ...

    def leave_errors(
        self, group_id: str, leaving: Iterable[LeaveGroupRequest.MemberIdentity]
    ) -> list[ErrorCode]:
        """The error that `leave` would return for each identity separately; no member leaves."""
        ...
