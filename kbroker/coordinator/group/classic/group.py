"""One classic group: the responses to its members. KIP-62, 134, 345, 389, 394, 559, 814.

Offsets are in `offsets`. `groups` has the map of groups and answers for groups that do not exist.
Requests change live members at once, as in Kafka, and not by replay (docs/adr/0005).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from kbroker.coordinator.group.classic.member import Member
from kbroker.coordinator.group.classic.memory import digest_of
from kbroker.coordinator.group.classic.rebalance import Rebalance
from kbroker.coordinator.group.classic.state import GroupState
from kbroker.coordinator.group.membership.embedded_protocol import PROTOCOL_TYPE
from kbroker.coordinator.group.membership.join import UNKNOWN_MEMBER, Join, join_error
from kbroker.coordinator.group.records import group_metadata_record
from kbroker.coordinator.runtime.deadlines import Deadline
from kbroker.coordinator.runtime.result import CoordinatorResult, DeferredResponse, Reply, Result
from kbroker.model import InvariantError
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.groups import (
    HeartbeatRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kbroker.protocol.messages.stored.group_records import (
    ConsumerGroupMemberMetadataValue,
    GroupMetadataValue,
)

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60_000
"""How long a JoinGroup of a new member may wait: the member has no id yet, so it cannot send
heartbeats. As in Kafka.
"""
REQUIRES_MEMBER_ID_VERSION: Final = 4
"""From this JoinGroup version on a new dynamic member first gets its id and joins again
(KIP-394).
"""
SKIP_ASSIGNMENT_VERSION: Final = 9
"""From this JoinGroup version on a returning static leader is told to skip the assignment
(KIP-814).
"""


class ClassicGroup(Rebalance):
    """One group: requests of its members, and its lifecycle in a shard. Every method takes the
    clock and returns results.
    """

    __slots__ = ()

    # -- lifecycle -----------------------------------------------------------------------------

    def restore(self, value: GroupMetadataValue, now_ms: int) -> None:
        """Take over the members of the record and start their sessions. Only for a group that was
        just created.
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
        """Become the stable group of these members of a consumer group, all of which use the
        classic protocol. Only for a group that was just created; `begin` starts the sessions.
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

    def begin(self, now_ms: int, *, rebalance: bool) -> list[Result]:
        """Start the sessions of adopted members, and a rebalance if requested."""
        for member in self.members.values():
            self._memory.add(member.size_bytes)
            self._renew_session(member, now_ms)
        return self._prepare_rebalance(now_ms) if rebalance else []

    def on_loaded(self, now_ms: int) -> list[Result]:
        """Called after all records were replayed: starts a rebalance if the group is larger than
        now allowed, or if its record has no leader (see `migration.downgrade`).
        """
        is_too_large = len(self.members) > self._settings.group_max_size
        if self.state is GroupState.STABLE and (self.leader_id is None or is_too_large):
            return self._prepare_rebalance(now_ms)
        return []

    def unload(self, error: ErrorCode) -> list[Result]:
        """Answer every waiting member with error, and cancel all deadlines."""
        results: list[Result] = []
        for member in list(self.members.values()):
            results += self._remove(member, error)
        for digest in list(self.pending_joins):
            self._forget_pending(digest)
        self._deadlines.cancel(self._join_deadline)
        self._deadlines.cancel(self._sync_deadline)
        self.state = GroupState.DEAD
        return results

    def abandon_creation(
        self, waiter: DeferredResponse, error: ErrorCode, now_ms: int
    ) -> list[Result]:
        """The record of this new group was rejected: answer the JoinGroup that created it."""
        for member in self.members.values():
            if member.join_waiter is waiter:
                return [*self._remove(member, error), *self._after_members_left(now_ms)]
        return []

    def dismiss(self, error: ErrorCode) -> list[Reply]:
        """Answer every waiting member with error, without any other change."""
        replies: list[Reply] = []
        for member in self.members.values():
            replies += self._answer(member, error)
        return replies

    # -- requests ------------------------------------------------------------------------------

    def join(self, join: Join, now_ms: int) -> list[Result]:
        """JoinGroup. The reply is among the results of this call or of a later one."""
        if not self._has_room_for(join.member_id):
            results: list[Result] = []
            if join.member_id in self.members:
                results = self._remove(self.members[join.member_id], ErrorCode.UNKNOWN_MEMBER_ID)
            self._forget_pending(digest_of(join.member_id))
            error = ErrorCode.GROUP_MAX_SIZE_REACHED
            results.append(Reply(join.waiter, join_error(UNKNOWN_MEMBER, error)))
            return results + self._maybe_complete_join(now_ms)
        if not self._members.supports(join, self.protocol_type):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            return [Reply(join.waiter, join_error(join.member_id, error))]
        member, size_bytes = self.members.get(join.member_id), join.size_bytes
        if size_bytes > self._memory.member_limit_bytes:
            error = ErrorCode.GROUP_MAX_SIZE_REACHED  # its data would not fit into a record
            return [Reply(join.waiter, join_error(join.member_id, error))]
        if not self._memory.has_room(size_bytes - (member.size_bytes if member else 0)):
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE  # the client retries later
            return [Reply(join.waiter, join_error(join.member_id, error))]
        if join.member_id == UNKNOWN_MEMBER:
            return self._join_without_id(join, now_ms)
        return self._join_with_id(join, now_ms)

    def sync(
        self, request: SyncGroupRequest, waiter: DeferredResponse, now_ms: int
    ) -> list[Result]:
        """SyncGroup: a member requests its assignment; the leader sends those of all members."""
        error = self._check_sync(request)
        if error is not ErrorCode.NONE:
            return [Reply(waiter, SyncGroupResponse(error_code=error))]
        member = self.members[request.member_id]
        self._forget_pending_sync(member.member_id)
        if self.state is GroupState.STABLE:
            self._renew_session(member, now_ms)
            return [Reply(waiter, self._sync_response(member))]
        results: list[Result] = []
        if member.sync_waiter is not None:
            again = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
            results.append(Reply(member.sync_waiter, again))
        member.sync_waiter = waiter
        if member.member_id == self.leader_id:
            given = {entry.member_id: bytes(entry.assignment) for entry in request.assignments}
            assignments = {member_id: given.get(member_id, b"") for member_id in self.members}
            record = group_metadata_record(self.group_id, self.to_value(assignments))
            then = partial(self._on_assignment_appended, self.generation_id, assignments)
            results.append(CoordinatorResult([record], None, on_completion=then))
        return results

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        """Heartbeat: renews the session timeout; the error tells the member whether to rejoin."""
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
    ) -> tuple[list[ErrorCode], list[Result]]:
        """LeaveGroup: an error per identity, in order. A static member may be identified by its
        instance id alone.
        """
        errors: list[ErrorCode] = []
        results: list[Result] = []
        left = False
        for identity in identities:
            member_id, error = self._member_that_leaves(identity)
            if error is ErrorCode.NONE:
                left = True
                if member_id in self.members:
                    results += self._remove(self.members[member_id], ErrorCode.UNKNOWN_MEMBER_ID)
                else:
                    self._forget_pending(digest_of(member_id))
            errors.append(error)
        if left:
            results += self._after_members_left(now_ms)
        return errors, results

    def leave_errors(
        self, identities: Iterable[LeaveGroupRequest.MemberIdentity]
    ) -> list[ErrorCode]:
        """The error that `leave` would return for each identity separately."""
        return [self._member_that_leaves(identity)[1] for identity in identities]

    def _member_that_leaves(
        self, identity: LeaveGroupRequest.MemberIdentity
    ) -> tuple[str, ErrorCode]:
        """The id of the member, or pending member, of a LeaveGroup."""
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if member_id == UNKNOWN_MEMBER:
            member_id = self.static_members.get(instance_id or "", UNKNOWN_MEMBER)
        if instance_id is None and self.is_pending(member_id):
            return member_id, ErrorCode.NONE
        return member_id, self.check_member(member_id, instance_id)

    def touch(self, member_id: str, now_ms: int) -> None:
        """Renew the session at a commit, as a heartbeat does, except while an assignment is
        awaited.
        """
        member = self.members.get(member_id)
        if member is not None and self.state is not GroupState.COMPLETING_REBALANCE:
            self._renew_session(member, now_ms)

    def check_commit(
        self, member_id: str, instance_id: str | None, generation_id: int
    ) -> ErrorCode:
        """Whether this member of this generation may commit offsets. Generation -1 without a member
        id is a simple consumer or a tool.
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

    # -- joining -------------------------------------------------------------------------------

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

    def _join_without_id(self, join: Join, now_ms: int) -> list[Result]:
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

    def _join_with_id(self, join: Join, now_ms: int) -> list[Result]:
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
        results = self._update_member(member, join)
        return results + self._rebalance_or_complete_join(now_ms)

    def _answer_join_again(self, member: Member, join: Join, now_ms: int) -> list[Result]:
        """Answer a repeated JoinGroup, whose first response may be lost, with the current
        generation.
        """
        self._renew_session(member, now_ms)
        return [Reply(join.waiter, self._join_response(member))]

    def _add_member(self, join: Join, member_id: str, now_ms: int) -> list[Result]:
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

    def _update_member(self, member: Member, join: Join) -> list[Result]:
        """Store the member's new data; this JoinGroup waits in place of an earlier one."""
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

    # -- static members ------------------------------------------------------------------------

    def _replace_static(self, old: Member, member_id: str, join: Join, now_ms: int) -> list[Result]:
        """A static member rejoined without its member id: it gets a new id and replaces its former
        entry (KIP-345).
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
            # The generation continues, so its record must have the new id. If the append is
            # rejected, the former entry stays.
            record = group_metadata_record(self.group_id, self._value_if_replaced(old, member))
            then = partial(self._on_static_member_appended, member, join, self.leader_id)
            return [
                CoordinatorResult(
                    [record],
                    None,
                    on_written=partial(self._take_place, old, member),
                    on_completion=then,
                )
            ]
        results = self._take_place(old, member, now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            return results + self._maybe_complete_join(now_ms)
        return results + self._prepare_rebalance(now_ms)

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

    def _take_place(self, old: Member, member: Member, now_ms: int) -> list[Result]:
        results: list[Result] = [*self._answer(old, ErrorCode.FENCED_INSTANCE_ID)]
        self._deadlines.cancel(old.session)
        self._members.replace(old, member)
        self._memory.add(member.size_bytes - old.size_bytes)
        self._forget_pending_sync(old.member_id)
        if self.leader_id == old.member_id:
            self.leader_id = member.member_id
        self._awaiting_join_count += 1
        self._renew_session(member, now_ms)
        return results

    def _on_static_member_appended(
        self, member: Member, join: Join, former_leader: str | None, error: ErrorCode, now_ms: int
    ) -> list[Result]:
        if member.join_waiter is not join.waiter:
            return []  # it was answered meanwhile
        has_place = self.members.get(member.member_id) is member
        if has_place and self.state is not GroupState.STABLE and error is ErrorCode.NONE:
            return []  # a rebalance began meanwhile; the member is answered at its end
        member.join_waiter = None
        self._awaiting_join_count -= has_place
        if error is not ErrorCode.NONE:
            return [Reply(join.waiter, join_error(UNKNOWN_MEMBER, error))]
        self._renew_session(member, now_ms)
        response = self._join_response(member)
        if join.version >= SKIP_ASSIGNMENT_VERSION:
            response.skip_assignment = member.member_id == self.leader_id
        else:
            # Given the former leader's id, the client assumes it is a follower.
            response.leader = former_leader or ""
            response.members = []
        return [Reply(join.waiter, response)]
