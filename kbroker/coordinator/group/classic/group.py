"""One classic group: who is in it, and how its members agree on a generation. KIP-62, 134, 345,
389, 394, 559, 814.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable -> PreparingRebalance ... -> Empty

A rebalance gathers JoinGroups (PreparingRebalance), names a leader and a protocol, waits for the
leader's SyncGroup (CompletingRebalance), and is Stable once the assignment is committed. What is in
the log is the last generation that came so far, or that the group became empty; members in the
middle of joining are not. Offsets are in `offsets`, the map of groups in `group_shard`, which also
answers for groups that do not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random
from typing import Final, Protocol

from kbroker.coordinator.group.classic.member import Member
from kbroker.coordinator.group.classic.members import Members
from kbroker.coordinator.group.classic.memory import Digest, MemberMemory, PendingMembers, digest_of
from kbroker.coordinator.group.classic.state import MAY_REBALANCE, TRANSITIONS, GroupState
from kbroker.coordinator.group.membership.embedded_protocol import PROTOCOL_TYPE
from kbroker.coordinator.group.membership.join import UNKNOWN_MEMBER, Join
from kbroker.coordinator.group.records import group_metadata_record
from kbroker.coordinator.runtime.deadlines import Deadline, Deadlines
from kbroker.coordinator.runtime.effects import Append, Effect, Reply, Waiter
from kbroker.model import InvariantError
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.group_records import (
    ConsumerGroupMemberMetadataValue,
    GroupMetadataValue,
)
from kbroker.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60_000
"""How long a JoinGroup of a new member may wait: it has no id yet, so it cannot send heartbeats. As
in Kafka.
"""
REQUIRES_MEMBER_ID_VERSION: Final = 4
"""From this JoinGroup on a new dynamic member is sent back once with its id (KIP-394)."""
SKIP_ASSIGNMENT_VERSION: Final = 9
"""From this JoinGroup on a returning static leader is told it need not assign (KIP-814)."""


class GroupSettings(Protocol):
    """What of the broker's configuration a classic group reads."""

    @property
    def group_initial_rebalance_delay_ms(self) -> int: ...
    @property
    def group_max_size(self) -> int: ...


def join_error(member_id: str, error: ErrorCode) -> JoinGroupResponse:
    """A refused JoinGroup."""
    return JoinGroupResponse(error_code=error, member_id=member_id)


class ClassicGroup:
    """One group. Its methods take the clock and give back effects; deadlines are set in the shard's
    heap.
    """

    __slots__ = (
        "_awaiting_join_count",
        "_deadlines",
        "_delay_ms",
        "_join_deadline",
        "_members",
        "_memory",
        "_pending_members",
        "_random",
        "_remaining_delay_ms",
        "_settings",
        "_sync_deadline",
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
        """Of ids given out by MEMBER_ID_REQUIRED that have not come back."""
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
        self._delay_ms = 0
        self._remaining_delay_ms = 0
        self._join_deadline = Deadline(self._on_join_deadline)
        self._sync_deadline = Deadline(self._on_sync_deadline)

    # -- the group's record ------------------------------------------------------------------

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

    def restore(self, value: GroupMetadataValue, now_ms: int) -> None:
        """Become what the record says; sessions start anew. Only for a group that was just
        created.
        """
        self.generation_id = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol_name = value.protocol
        self.leader_id = value.leader
        if value.current_state_timestamp >= 0:
            self.state_since_ms = value.current_state_timestamp
        for metadata in value.members:
            member = Member(
                member_id=metadata.member_id,
                instance_id=metadata.group_instance_id,
                client_id=metadata.client_id,
                client_host=metadata.client_host,
                session_timeout_ms=metadata.session_timeout,
                rebalance_timeout_ms=(
                    metadata.rebalance_timeout
                    if metadata.rebalance_timeout >= 0
                    else metadata.session_timeout
                ),
                protocols=[(value.protocol or "", bytes(metadata.subscription))],
                session=self._session_of(metadata.member_id),
                assignment=bytes(metadata.assignment),
            )
            self._members.add(member)
            self._memory.add(member.size_bytes)
            self._renew_session(member, now_ms)
        if self.members:
            self.state = GroupState.STABLE
            self.previous_state = GroupState.COMPLETING_REBALANCE

    def adopt(
        self, members: Mapping[str, ConsumerGroupMemberMetadataValue], generation_id: int
    ) -> None:
        """Become the stable group of these members of a consumer group, all of which speak the
        classic protocol, in place of it. Only for a group that was just created; its life starts
        with `begin`.
        """
        self.generation_id = generation_id
        self.protocol_type = PROTOCOL_TYPE
        for member_id, metadata in members.items():
            classic = metadata.classic_member_metadata
            if classic is None:
                raise InvariantError(f"group {self.group_id}: {member_id} is no classic member")
            member = Member(
                member_id=member_id,
                instance_id=metadata.instance_id,
                client_id=metadata.client_id,
                client_host=metadata.client_host,
                session_timeout_ms=classic.session_timeout_ms,
                rebalance_timeout_ms=metadata.rebalance_timeout_ms,
                protocols=[
                    (protocol.name, bytes(protocol.metadata))
                    for protocol in classic.supported_protocols
                ],
                session=self._session_of(member_id),
            )
            self._members.add(member)
        self.leader_id = next(iter(self.members))
        self.protocol_name = self._members.select_protocol(self.group_id)
        self.state = GroupState.STABLE
        self.previous_state = GroupState.COMPLETING_REBALANCE

    def begin(self, now_ms: int, *, rebalance: bool) -> list[Effect]:
        """Start the sessions of adopted members, and perhaps a rebalance."""
        for member in self.members.values():
            self._memory.add(member.size_bytes)
            self._renew_session(member, now_ms)
        return self._prepare_rebalance(now_ms) if rebalance else []

    def on_loaded(self, now_ms: int) -> list[Effect]:
        """After all records were replayed: a group larger than now allowed rebalances at once, and
        one whose record has no leader (see `migration.downgrade`).
        """
        is_too_large = len(self.members) > self._settings.group_max_size
        if self.state is GroupState.STABLE and (self.leader_id is None or is_too_large):
            return self._prepare_rebalance(now_ms)
        return []

    # -- requests ----------------------------------------------------------------------------

    def join(self, join: Join, now_ms: int) -> list[Effect]:
        """JoinGroup. The reply is among the effects of this call or of a later one."""
        if not self._has_room_for(join.member_id):
            effects: list[Effect] = []
            if join.member_id in self.members:
                effects = self._remove(self.members[join.member_id], ErrorCode.UNKNOWN_MEMBER_ID)
            self._forget_pending(digest_of(join.member_id))
            error = ErrorCode.GROUP_MAX_SIZE_REACHED
            effects.append(Reply(join.waiter, join_error(UNKNOWN_MEMBER, error)))
            return effects + self._maybe_complete_join(now_ms)
        if not self._members.supports(join, self.protocol_type):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            return [Reply(join.waiter, join_error(join.member_id, error))]
        member, size_bytes = self.members.get(join.member_id), join.size_bytes
        if size_bytes > self._memory.member_limit_bytes:
            error = ErrorCode.GROUP_MAX_SIZE_REACHED  # no record could hold what it says
            return [Reply(join.waiter, join_error(join.member_id, error))]
        if not self._memory.has_room(size_bytes - (member.size_bytes if member else 0)):
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE  # which makes the client try again later
            return [Reply(join.waiter, join_error(join.member_id, error))]
        if join.member_id == UNKNOWN_MEMBER:
            return self._join_without_id(join, now_ms)
        return self._join_with_id(join, now_ms)

    @property
    def is_idle(self) -> bool:
        """Whether it has no members and none is about to join."""
        return self.state is GroupState.EMPTY and not self.pending_joins

    def is_pending(self, member_id: str) -> bool:
        """Whether that id was given out by MEMBER_ID_REQUIRED and has not come back."""
        return bool(self.pending_joins) and digest_of(member_id) in self.pending_joins

    def sync(self, request: SyncGroupRequest, waiter: Waiter, now_ms: int) -> list[Effect]:
        """SyncGroup: the leader's carries the assignment, everybody's asks for their own."""
        error = self._check_sync(request)
        if error is not ErrorCode.NONE:
            return [Reply(waiter, SyncGroupResponse(error_code=error))]
        member = self.members[request.member_id]
        self._forget_pending_sync(member.member_id)
        if self.state is GroupState.STABLE:
            self._renew_session(member, now_ms)
            return [Reply(waiter, self._sync_response(member))]
        effects: list[Effect] = []
        if member.sync_waiter is not None:
            again = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
            effects.append(Reply(member.sync_waiter, again))
        member.sync_waiter = waiter
        if member.member_id == self.leader_id:
            given = {entry.member_id: bytes(entry.assignment) for entry in request.assignments}
            assignments = {member_id: given.get(member_id, b"") for member_id in self.members}
            record = group_metadata_record(self.group_id, self.to_value(assignments))
            then = partial(self._on_assignment_appended, self.generation_id, assignments)
            effects.append(Append([record], then))
        return effects

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        """Heartbeat: puts the member's session off and tells it whether to rejoin."""
        error = self.check_member(request.member_id, request.group_instance_id)
        if error is not ErrorCode.NONE:
            return error
        if request.generation_id != self.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        self._renew_session(self.members[request.member_id], now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(
        self, identities: Iterable[LeaveGroupRequest.MemberIdentity], now_ms: int
    ) -> tuple[list[ErrorCode], list[Effect]]:
        """LeaveGroup: an error per identity, in order. A static member may be named by its instance
        id alone.
        """
        errors: list[ErrorCode] = []
        effects: list[Effect] = []
        left = False
        for identity in identities:
            member_id, error = self._member_that_leaves(identity)
            if error is ErrorCode.NONE:
                left = True
                if member_id in self.members:
                    effects += self._remove(self.members[member_id], ErrorCode.UNKNOWN_MEMBER_ID)
                else:
                    self._forget_pending(digest_of(member_id))
            errors.append(error)
        if left:
            effects += self._after_members_left(now_ms)
        return errors, effects

    def leave_errors(
        self, identities: Iterable[LeaveGroupRequest.MemberIdentity]
    ) -> list[ErrorCode]:
        """What `leave` would answer each of them alone."""
        return [self._member_that_leaves(identity)[1] for identity in identities]

    def _member_that_leaves(
        self, identity: LeaveGroupRequest.MemberIdentity
    ) -> tuple[str, ErrorCode]:
        """The id of the member, or pending member, that a LeaveGroup names."""
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if member_id == UNKNOWN_MEMBER:
            member_id = self.static_members.get(instance_id or "", UNKNOWN_MEMBER)
        if instance_id is None and self.is_pending(member_id):
            return member_id, ErrorCode.NONE
        return member_id, self.check_member(member_id, instance_id)

    def touch(self, member_id: str, now_ms: int) -> None:
        """A commit counts as a heartbeat, except while an assignment is awaited."""
        member = self.members.get(member_id)
        if member is not None and self.state is not GroupState.COMPLETING_REBALANCE:
            self._renew_session(member, now_ms)

    def check_commit(
        self, member_id: str, instance_id: str | None, generation_id: int
    ) -> ErrorCode:
        """Whether this member of this generation may commit offsets; -1 and no member id: a simple
        consumer or a tool.
        """
        if self.state is GroupState.EMPTY and generation_id < 0:
            return ErrorCode.NONE
        if generation_id < 0 and member_id == UNKNOWN_MEMBER and instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = self.check_member(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
        if generation_id != self.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        if self.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether that member is in the group, and is the one its instance id now belongs to."""
        return self._members.check(member_id, instance_id)

    def dismiss(self, error: ErrorCode) -> list[Effect]:
        """Answer everybody who waits with error, and change nothing else."""
        effects: list[Effect] = []
        for member in self.members.values():
            effects += self._answer(member, error)
        return effects

    def unload(self, error: ErrorCode) -> list[Effect]:
        """Answer everybody who waits with error, and let no deadline fire any more."""
        effects: list[Effect] = []
        for member in list(self.members.values()):
            effects += self._remove(member, error)
        for digest in list(self.pending_joins):
            self._forget_pending(digest)
        self._deadlines.cancel(self._join_deadline)
        self._deadlines.cancel(self._sync_deadline)
        self.state = GroupState.DEAD
        return effects

    def abandon_creation(self, waiter: Waiter, error: ErrorCode, now_ms: int) -> list[Effect]:
        """The record of this new group was refused: answer the join that created it."""
        for member in self.members.values():
            if member.join_waiter is waiter:
                return [*self._remove(member, error), *self._after_members_left(now_ms)]
        return []

    # -- what others read --------------------------------------------------------------------

    def rebalance_timeout_ms(self) -> int:
        """The longest of the members'."""
        return self._members.rebalance_timeout_ms()

    def subscribed_topics(self) -> frozenset[str] | None:
        """Topics that a member of this generation subscribes to; None if that is not known."""
        if self.protocol_type != PROTOCOL_TYPE or self.protocol_name is None:
            return None
        return self._members.subscribed_topics(self.protocol_name)

    # -- joining -----------------------------------------------------------------------------

    def _has_room_for(self, member_id: str) -> bool:
        limit = self._settings.group_max_size
        if self.state is GroupState.PREPARING_REBALANCE:
            member = self.members.get(member_id)
            if member is not None and member.join_waiter is not None:
                return True
            return self._awaiting_join_count < limit
        if self.state is GroupState.EMPTY:
            return True
        return member_id in self.members or len(self.members) < limit

    def _join_without_id(self, join: Join, now_ms: int) -> list[Effect]:
        if join.instance_id is not None:
            old_id = self.static_members.get(join.instance_id)
            member_id = self._new_member_id(join.instance_id)
            if old_id is not None:
                return self._replace_static(self.members[old_id], member_id, join, now_ms)
            return self._add_member(join, member_id, now_ms)
        member_id = self._new_member_id(join.client_id)
        if join.version < REQUIRES_MEMBER_ID_VERSION:
            return self._add_member(join, member_id, now_ms)
        digest = digest_of(member_id)
        deadline = Deadline(partial(self._on_pending_deadline, digest))
        self.pending_joins[digest] = deadline
        self._deadlines.set(deadline, now_ms + join.session_timeout_ms)
        forget = partial(self._on_pending_evicted, digest)
        self._pending_members.add(self.group_id, digest, forget, now_ms)
        return [Reply(join.waiter, join_error(member_id, ErrorCode.MEMBER_ID_REQUIRED))]

    def _join_with_id(self, join: Join, now_ms: int) -> list[Effect]:
        if join.instance_id is None and self.is_pending(join.member_id):
            return self._add_member(join, join.member_id, now_ms)
        error = self.check_member(join.member_id, join.instance_id)
        if error is not ErrorCode.NONE:
            return [Reply(join.waiter, join_error(join.member_id, error))]
        member = self.members[join.member_id]
        is_leader = member.member_id == self.leader_id
        unchanged = member.protocols == join.protocols
        if self.state is GroupState.COMPLETING_REBALANCE and unchanged:
            return self._answer_join_again(member, join, now_ms)
        if self.state is GroupState.STABLE and unchanged and not is_leader:
            return self._answer_join_again(member, join, now_ms)
        effects = self._update_member(member, join)
        return effects + self._rebalance_or_complete_join(now_ms)

    def _answer_join_again(self, member: Member, join: Join, now_ms: int) -> list[Effect]:
        """The answer to the first JoinGroup was perhaps lost: this generation still stands."""
        self._renew_session(member, now_ms)
        return [Reply(join.waiter, self._join_response(member))]

    def _add_member(self, join: Join, member_id: str, now_ms: int) -> list[Effect]:
        self._forget_pending(digest_of(member_id))
        if self.state is GroupState.PREPARING_REBALANCE and self.previous_state is GroupState.EMPTY:
            self.new_member_added = True
        if not self.members:
            self.protocol_type = join.protocol_type
        member = Member(
            member_id=member_id,
            instance_id=join.instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            session_timeout_ms=join.session_timeout_ms,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            protocols=join.protocols,
            session=self._session_of(member_id),
        )
        member.is_new = True
        member.join_waiter = join.waiter
        self._awaiting_join_count += 1
        self._members.add(member)
        self._memory.add(member.size_bytes)
        if self.leader_id is None:
            self.leader_id = member_id
        self._deadlines.set(member.session, now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        return self._rebalance_or_complete_join(now_ms)

    def _update_member(self, member: Member, join: Join) -> list[Effect]:
        """Take the member's new word, and let this JoinGroup wait in place of an older one."""
        former_bytes = member.size_bytes
        self._members.set_protocols(member, join.protocols)
        self._memory.add(member.size_bytes - former_bytes)
        member.session_timeout_ms = join.session_timeout_ms
        member.rebalance_timeout_ms = join.rebalance_timeout_ms
        older, member.join_waiter = member.join_waiter, join.waiter
        if older is None:
            self._awaiting_join_count += 1
            return []
        error = ErrorCode.REBALANCE_IN_PROGRESS
        return [Reply(older, join_error(member.member_id, error))]

    def _replace_static(self, old: Member, member_id: str, join: Join, now_ms: int) -> list[Effect]:
        """A static member came back without its id: it takes the place of its former self
        (KIP-345).
        """
        member = Member(
            member_id=member_id,
            instance_id=old.instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            session_timeout_ms=join.session_timeout_ms,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            protocols=join.protocols,
            session=self._session_of(member_id),
            assignment=old.assignment,
        )
        member.join_waiter = join.waiter
        if (
            self.state is GroupState.STABLE
            and self._members.protocol_if_replaced(self.group_id, old, member) == self.protocol_name
        ):
            # The generation goes on, so its record is to name the new id: if it is refused,
            # nobody has changed places.
            record = group_metadata_record(self.group_id, self._value_if_replaced(old, member))
            then = partial(self._on_static_member_appended, member, join, self.leader_id)
            return [Append([record], then, written=partial(self._take_place, old, member))]
        effects = self._take_place(old, member, now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            return effects + self._maybe_complete_join(now_ms)
        return effects + self._prepare_rebalance(now_ms)

    def _value_if_replaced(self, old: Member, member: Member) -> GroupMetadataValue:
        value = self.to_value({one.member_id: one.assignment for one in self.members.values()})
        value.members = [
            member.to_value(self.protocol_name, member.assignment)
            if entry.member_id == old.member_id
            else entry
            for entry in value.members
        ]
        if value.leader == old.member_id:
            value.leader = member.member_id
        return value

    def _take_place(self, old: Member, member: Member, now_ms: int) -> list[Effect]:
        effects = self._answer(old, ErrorCode.FENCED_INSTANCE_ID)
        self._deadlines.cancel(old.session)
        self._members.replace(old, member)
        self._memory.add(member.size_bytes - old.size_bytes)
        self._forget_pending_sync(old.member_id)
        if self.leader_id == old.member_id:
            self.leader_id = member.member_id
        self._awaiting_join_count += 1
        self._renew_session(member, now_ms)
        return effects

    def _on_static_member_appended(
        self, member: Member, join: Join, former_leader: str | None, error: ErrorCode, now_ms: int
    ) -> list[Effect]:
        if member.join_waiter is not join.waiter:
            return []  # it was answered meanwhile
        has_place = self.members.get(member.member_id) is member
        if has_place and self.state is not GroupState.STABLE and error is ErrorCode.NONE:
            return []  # a rebalance began meanwhile; its end is the answer
        member.join_waiter = None
        self._awaiting_join_count -= has_place
        if error is not ErrorCode.NONE:
            return [Reply(join.waiter, join_error(UNKNOWN_MEMBER, error))]
        self._renew_session(member, now_ms)
        response = self._join_response(member)
        if join.version >= SKIP_ASSIGNMENT_VERSION:
            response.skip_assignment = member.member_id == self.leader_id
        else:
            # Told the former leader's id, the client takes itself for a follower.
            response.leader = former_leader or ""
            response.members = []
        return [Reply(join.waiter, response)]

    def _answer(self, member: Member, error: ErrorCode) -> list[Effect]:
        """Whatever it waits for is answered with error."""
        effects: list[Effect] = []
        if member.join_waiter is not None:
            self._awaiting_join_count -= 1
            effects.append(Reply(member.join_waiter, join_error(member.member_id, error)))
            member.join_waiter = None
        if member.sync_waiter is not None:
            effects.append(Reply(member.sync_waiter, SyncGroupResponse(error_code=error)))
            member.sync_waiter = None
        return effects

    # -- the rebalance -----------------------------------------------------------------------

    def _rebalance_or_complete_join(self, now_ms: int) -> list[Effect]:
        if self.state in MAY_REBALANCE:
            return self._prepare_rebalance(now_ms)
        return self._maybe_complete_join(now_ms)

    def _prepare_rebalance(self, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        if self.state is GroupState.COMPLETING_REBALANCE:
            effects = self._fail_syncs(ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        self._deadlines.cancel(self._sync_deadline)
        self.pending_syncs.clear()
        is_initial = self.state is GroupState.EMPTY
        self._transition(GroupState.PREPARING_REBALANCE)
        if is_initial:
            self.new_member_added = False
            self._delay_ms = self._settings.group_initial_rebalance_delay_ms
            self._remaining_delay_ms = max(self.rebalance_timeout_ms() - self._delay_ms, 0)
            if self._delay_ms > 0:
                self._deadlines.set(self._join_deadline, now_ms + self._delay_ms)
                return effects
            return effects + self._complete_join(now_ms)
        if self._all_joined():
            return effects + self._complete_join(now_ms)
        self._deadlines.set(self._join_deadline, now_ms + self.rebalance_timeout_ms())
        return effects

    def _maybe_complete_join(self, now_ms: int) -> list[Effect]:
        if (
            self.state is GroupState.PREPARING_REBALANCE
            and self.previous_state is not GroupState.EMPTY
            and self._all_joined()
        ):
            return self._complete_join(now_ms)
        return []

    def _all_joined(self) -> bool:
        return self._awaiting_join_count == len(self.members) and not self.pending_joins

    def _complete_join(self, now_ms: int) -> list[Effect]:
        """End the gathering: drop who did not rejoin, then start the next generation with the
        rest.
        """
        self._deadlines.cancel(self._join_deadline)
        effects: list[Effect] = []
        for member in list(self.members.values()):
            if member.join_waiter is None and member.instance_id is None:
                effects += self._remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if self.members and not self._elect_leader():
            # Only absent static members are left: wait until they return or their sessions end.
            self._deadlines.set(self._join_deadline, now_ms + self.rebalance_timeout_ms())
            return effects
        self.generation_id += 1
        self.pending_syncs.clear()
        if not self.members:
            self.protocol_name = None
            self.leader_id = None
            self._transition(GroupState.EMPTY)
            return [*effects, Append([group_metadata_record(self.group_id, self.to_value({}))])]
        self.protocol_name = self._members.select_protocol(self.group_id)
        self._transition(GroupState.COMPLETING_REBALANCE)
        self._deadlines.set(self._sync_deadline, now_ms + self.rebalance_timeout_ms())
        for member in self.members.values():
            self.pending_syncs.add(member.member_id)
            member.is_new = False
            if member.join_waiter is not None:
                effects.append(Reply(member.join_waiter, self._join_response(member)))
                member.join_waiter = None
            self._renew_session(member, now_ms)
        self._awaiting_join_count = 0
        return effects

    def _elect_leader(self) -> bool:
        """Keep the leader if it rejoined, else take the first who did. False if nobody did."""
        leader = self.members.get(self.leader_id or "")
        if leader is not None and leader.join_waiter is not None:
            return True
        for member in self.members.values():
            if member.join_waiter is not None:
                self.leader_id = member.member_id
                return True
        return False

    def _on_assignment_appended(
        self, generation_id: int, assignments: dict[str, bytes], error: ErrorCode, now_ms: int
    ) -> list[Effect]:
        if self.state is not GroupState.COMPLETING_REBALANCE or generation_id != self.generation_id:
            return []  # another rebalance began while the record was written
        if error is not ErrorCode.NONE:
            effects = self._fail_syncs(error, now_ms)
            return effects + self._prepare_rebalance(now_ms)
        self._transition(GroupState.STABLE, keep_time=True)
        self._end_assignments()
        replies: list[Effect] = []
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            if member.sync_waiter is not None:
                replies.append(Reply(member.sync_waiter, self._sync_response(member)))
                member.sync_waiter = None
                self._renew_session(member, now_ms)
        return replies

    def _end_assignments(self) -> None:
        """Those of the last generation that came so far become the former ones."""
        if any(member.assignment for member in self.members.values()):
            for member in self.members.values():
                member.former_assignment, member.assignment = member.assignment, b""

    def _fail_syncs(self, error: ErrorCode, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        self._end_assignments()
        for member in self.members.values():
            if member.sync_waiter is not None:
                effects.append(Reply(member.sync_waiter, SyncGroupResponse(error_code=error)))
                member.sync_waiter = None
                self._renew_session(member, now_ms)
        return effects

    def _check_sync(self, request: SyncGroupRequest) -> ErrorCode:
        error = self.check_member(request.member_id, request.group_instance_id)
        if error is not ErrorCode.NONE:
            return error
        if request.generation_id != self.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        if request.protocol_type not in (None, self.protocol_type) or (
            request.protocol_name not in (None, self.protocol_name)
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    # -- deadlines ---------------------------------------------------------------------------

    def _on_join_deadline(self, now_ms: int) -> list[Effect]:
        if self.state is not GroupState.PREPARING_REBALANCE:
            return []
        is_initial = self.previous_state is GroupState.EMPTY
        if not (is_initial and self.new_member_added and self._remaining_delay_ms > 0):
            return self._complete_join(now_ms)
        # Somebody came during the delay: perhaps more are coming.
        self.new_member_added = False
        initial_ms = self._settings.group_initial_rebalance_delay_ms
        delay_ms = min(initial_ms, self._remaining_delay_ms)
        self._remaining_delay_ms = max(self._remaining_delay_ms - self._delay_ms, 0)
        self._delay_ms = delay_ms
        self._deadlines.set(self._join_deadline, now_ms + delay_ms)
        return []

    def _on_sync_deadline(self, now_ms: int) -> list[Effect]:
        """Members that joined but never asked for their assignment are gone."""
        if not self.pending_syncs:
            return []
        effects: list[Effect] = []
        for member_id in sorted(self.pending_syncs):
            effects += self._remove(self.members[member_id], ErrorCode.UNKNOWN_MEMBER_ID)
        return effects + self._prepare_rebalance(now_ms)

    def _on_session_deadline(self, member_id: str, now_ms: int) -> list[Effect]:
        member = self.members.get(member_id)
        if member is None:
            return []
        if not member.is_new and (member.join_waiter is not None or member.sync_waiter is not None):
            return []  # it waits for us; its session is renewed with the answer
        effects = self._remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        return effects + self._after_members_left(now_ms)

    def _on_pending_deadline(self, digest: Digest, now_ms: int) -> list[Effect]:
        self._forget_pending(digest)
        return self._maybe_complete_join(now_ms)

    def _on_pending_evicted(self, digest: Digest, now_ms: int) -> None:
        """Too many ids are pending, and this is the oldest."""
        self._forget_pending(digest)
        is_initial = self.previous_state is GroupState.EMPTY
        if self.state is GroupState.PREPARING_REBALANCE and not is_initial and self._all_joined():
            self._deadlines.set(self._join_deadline, now_ms)

    # -- members -----------------------------------------------------------------------------

    def _after_members_left(self, now_ms: int) -> list[Effect]:
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            return self._prepare_rebalance(now_ms)
        return self._maybe_complete_join(now_ms)

    def _remove(self, member: Member, error: ErrorCode) -> list[Effect]:
        """Take a member out; whatever it still waits for is answered with error."""
        effects = self._answer(member, error)
        self._deadlines.cancel(member.session)
        self._members.remove(member)
        self._memory.add(-member.size_bytes)
        self._forget_pending_sync(member.member_id)
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.members), None)
        return effects

    def _forget_pending(self, digest: Digest) -> None:
        deadline = self.pending_joins.pop(digest, None)
        if deadline is not None:
            self._deadlines.cancel(deadline)
            self._pending_members.remove(self.group_id, digest)

    def _forget_pending_sync(self, member_id: str) -> None:
        self.pending_syncs.discard(member_id)
        if not self.pending_syncs:
            self._deadlines.cancel(self._sync_deadline)

    def _session_of(self, member_id: str) -> Deadline:
        return Deadline(partial(self._on_session_deadline, member_id))

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

    # -- responses ---------------------------------------------------------------------------

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
