"""What a group type is to a shard. Classic, consumer, share and streams groups each are a
`GroupKind`; the shard keeps the ids apart and delegates to the kind of an id.

An id belongs to one group. A group without members may give way to a member of another type, which
each kind declares in `gives_way_to`.
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
"""The generation or member epoch of a commit by a client that is in no group."""


class GroupType(Enum):
    """The group types, by their names in ListGroups."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


class GroupChange(NamedTuple):
    """A group was created or ended by a record. is_created: False if it ended."""

    group_id: str
    is_created: bool


class OffsetCommitter(NamedTuple):
    """The member that commits offsets, as it names itself. epoch: its generation or member epoch.
    version: of OffsetCommit. partitions: what it commits; an iterable that can be read again.
    """

    member_id: str
    instance_id: str | None
    epoch: int
    version: int
    partitions: Collection[TopicIdPartition] = ()

    @property
    def names_no_member(self) -> bool:
        """Whether the client commits without naming a member, as a simple consumer does."""
        return self.member_id == "" and self.instance_id is None


D_co = TypeVar("D_co", covariant=True)


class GroupKind(Protocol[D_co]):
    """The groups of one type in one shard. D_co: what describes one group: the response's group
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
        """The types whose members may take over the id of a group that is idle."""
        ...

    def __contains__(self, group_id: object) -> bool: ...

    def __iter__(self) -> Iterator[str]: ...

    def __len__(self) -> int: ...

    # -- replay and life in a shard ----------------------------------------------------------

    def replay(self, key: CoordinatorKey, value: CoordinatorValue | None) -> GroupChange | None:
        """Apply a record that is in the log. key: one of `replays`. None: the group exists, or does
        not exist, as before.
        """
        ...

    def on_loaded(self, now_ms: int) -> list[Result]:
        """All records were replayed: start sessions and deadlines."""
        ...

    def unload(self, error: ErrorCode) -> list[Result]:
        """This broker no longer coordinates these groups: cancel all deadlines, and answer the
        requests that wait with error.
        """
        ...

    def changes(self, key: CoordinatorKey, value: CoordinatorValue | None) -> str | None:
        """The log line for a record that was just written and replayed; None for records that an
        operator need not see.
        """
        ...

    def on_topics_deleted(self, topic_ids: Collection[Uuid]) -> list[CoordinatorRecord]:
        """The records that these groups write when topics are deleted, beside offset tombstones."""
        ...

    # -- the end of a group ------------------------------------------------------------------

    def is_idle(self, group_id: str) -> bool:
        """Whether that group has no members."""
        ...

    def has_record(self, group_id: str) -> bool:
        """Whether the log has a record of that group itself, besides its offsets."""
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
        know no group at all (KIP-98), or name the member it reads as (KIP-447).
        """
        ...

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Whether that member may read the group's offsets."""
        ...

    def subscribed_topics(self, group_id: str) -> frozenset[str] | None:
        """Topics whose offsets the members of that group need; None: perhaps all. Raises
        KafkaError(NON_EMPTY_GROUP) if the group is in use and does not read topics.
        """
        ...

    def retention(self, group_id: str) -> Retention | None:
        """Which offsets of that group may expire; None: none of them now."""
        ...

    # -- what tools read ---------------------------------------------------------------------

    def listed(self, states: Set[str]) -> Iterator[ListGroupsResponse.ListedGroup]:
        """Groups in one of these states, in lower case; empty: any."""
        ...

    def describe(self, group_id: str) -> D_co:
        """One group of this kind. Members are made one by one, as the iterator is advanced."""
        ...

    def describe_missing(self, group_id: str, message: str, version: int) -> D_co:
        """An id that is no group of this kind. version: of the request."""
        ...


class ClassicProtocol(Protocol):
    """The responses to clients of the classic protocol, of a kind whose groups may have such
    members. Every group id below is one of the kind's.
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
        """The error that `leave` would return for each identity on its own; no member leaves."""
        ...
