"""The generation of a classic group: its members, their leader and protocol, and the group's state.

A generation is the result of one rebalance. The record of a group in the log is its last stable
generation, or the empty group; members that are still joining are in no record. `rebalance` has the
transitions between generations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Protocol

from kbroker.coordinator.group.classic.member import Member
from kbroker.coordinator.group.classic.members import Members
from kbroker.coordinator.group.classic.memory import Digest, MemberMemory, PendingMembers, digest_of
from kbroker.coordinator.group.classic.state import TRANSITIONS, GroupState
from kbroker.coordinator.group.membership.embedded_protocol import PROTOCOL_TYPE
from kbroker.coordinator.group.membership.join import join_error
from kbroker.coordinator.runtime.deadlines import Deadline, Deadlines
from kbroker.coordinator.runtime.result import Reply
from kbroker.model import InvariantError
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.groups import (
    JoinGroupResponse,
    SyncGroupResponse,
)
from kbroker.protocol.messages.stored.group_records import (
    GroupMetadataValue,
)


class GroupSettings(Protocol):
    """The part of the broker's configuration that a classic group reads."""

    @property
    def group_initial_rebalance_delay_ms(self) -> int: ...
    @property
    def group_max_size(self) -> int: ...


class Generation:
    """The members and their current generation. `members` is in the order in which they joined;
    `static_members` has the member id by instance id.
    """

    __slots__ = (
        "_awaiting_join_count",
        "_deadlines",
        "_members",
        "_memory",
        "_pending_members",
        "_random",
        "_settings",
        "_wall_ms",
        "generation_id",
        "group_id",
        "leader_id",
        "members",
        "new_member_added",
        "pending_joins",
        "pending_syncs",
        "previous_state",
        "protocol_name",
        "protocol_type",
        "state",
        "state_since_ms",
        "static_members",
    )

    def __init__(
        self,
        group_id: str,
        *,
        settings: GroupSettings,
        deadlines: Deadlines,
        random: Random,
        wall_ms: Callable[[], int],
        pending_members: PendingMembers,
        memory: MemberMemory,
    ) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.EMPTY
        self.state_since_ms = wall_ms()
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self._members = Members()
        self.members = self._members.members
        self.static_members = self._members.static_members
        self.pending_joins: dict[Digest, Deadline] = {}
        """Deadlines of member ids that were assigned by MEMBER_ID_REQUIRED and have not
        joined yet.
        """
        self.pending_syncs: set[str] = set()
        """Members of this generation that have not sent SyncGroup."""
        self.new_member_added = False
        self._pending_members = pending_members
        self._memory = memory
        self._settings = settings
        self._deadlines = deadlines
        self._random = random
        self._wall_ms = wall_ms
        self._awaiting_join_count = 0

    def empty_value(self) -> GroupMetadataValue:
        """The record of a group that was just created."""
        return GroupMetadataValue(
            protocol=None, leader=None, current_state_timestamp=self.state_since_ms
        )

    def to_value(self, assignments: Mapping[str, bytes]) -> GroupMetadataValue:
        """The record of this generation with these assignments, by member id."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation_id,
            protocol=self.protocol_name,
            leader=self.leader_id,
            current_state_timestamp=self.state_since_ms,
            members=[
                member.to_value(self.protocol_name, assignments.get(member.member_id, b""))
                for member in self.members.values()
            ],
        )

    def _end_assignments(self) -> None:
        """The assignments of the last stable generation become the former assignments."""
        if any(member.assignment for member in self.members.values()):
            for member in self.members.values():
                member.former_assignment, member.assignment = member.assignment, b""

    # -- queries -------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether the group has no members. A pending member (it got an id and has not joined with
        it yet) does not count, as in Kafka: its group may become a group of another type, which it
        then joins.
        """
        return self.state is GroupState.EMPTY

    def is_pending(self, member_id: str) -> bool:
        """Whether that id was assigned by MEMBER_ID_REQUIRED and has not joined yet."""
        return bool(self.pending_joins) and digest_of(member_id) in self.pending_joins

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether that member is in the group and currently owns its instance id."""
        return self._members.check(member_id, instance_id)

    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members."""
        return self._members.rebalance_timeout_ms()

    def subscribed_topics(self) -> frozenset[str] | None:
        """Topics that a member of this generation subscribes to; None if they are unknown."""
        if self.protocol_type != PROTOCOL_TYPE or self.protocol_name is None:
            return None
        return self._members.subscribed_topics(self.protocol_name)

    # -- members -------------------------------------------------------------------------------

    def _answer(self, member: Member, error: ErrorCode) -> list[Reply]:
        """Answer the requests that wait for this member with error."""
        replies: list[Reply] = []
        if member.join_waiter is not None:
            self._awaiting_join_count -= 1
            replies.append(Reply(member.join_waiter, join_error(member.member_id, error)))
            member.join_waiter = None
        if member.sync_waiter is not None:
            replies.append(Reply(member.sync_waiter, SyncGroupResponse(error_code=error)))
            member.sync_waiter = None
        return replies

    def _forget_pending(self, digest: Digest) -> None:
        deadline = self.pending_joins.pop(digest, None)
        if deadline is not None:
            self._deadlines.cancel(deadline)
            self._pending_members.remove(self.group_id, digest)

    def _renew_session(self, member: Member, now_ms: int) -> None:
        self._deadlines.set(member.session, now_ms + member.session_timeout_ms)

    def _new_member_id(self, prefix: str) -> str:
        digits = self._random.randbytes(16).hex()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        return "-".join((prefix, *parts))

    def _transition(self, state: GroupState, *, keep_time: bool = False) -> None:
        if state not in TRANSITIONS[self.state]:
            raise InvariantError(f"group {self.group_id}: {self.state.value} to {state.value}")
        self.previous_state, self.state = self.state, state
        if not keep_time:
            self.state_since_ms = self._wall_ms()

    # -- responses -----------------------------------------------------------------------------

    def _join_response(self, member: Member) -> JoinGroupResponse:
        response = JoinGroupResponse(
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader_id or "",
            member_id=member.member_id,
        )
        if member.member_id == self.leader_id:
            response.members = [
                JoinGroupResponse.JoinGroupResponseMember(
                    member_id=other.member_id,
                    group_instance_id=other.instance_id,
                    metadata=other.metadata(self.protocol_name),
                )
                for other in self.members.values()
            ]
        return response

    def _sync_response(self, member: Member) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )
