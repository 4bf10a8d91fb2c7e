"""The rebalance of a classic group, from one generation to the next. KIP-62, 134, 345, 394.

Empty -> PreparingRebalance -> CompletingRebalance -> Stable -> PreparingRebalance ... -> Empty

PreparingRebalance waits for the JoinGroups of all members. CompletingRebalance has a leader and a
protocol, and waits for the leader's SyncGroup. The group is Stable once the assignment is
committed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from kbroker.coordinator.group.classic.generation import Generation, GroupSettings
from kbroker.coordinator.group.classic.member import Member
from kbroker.coordinator.group.classic.memory import Digest, MemberMemory, PendingMembers
from kbroker.coordinator.group.classic.state import MAY_REBALANCE, GroupState
from kbroker.coordinator.group.records import group_metadata_record
from kbroker.coordinator.runtime.deadlines import Deadline, Deadlines
from kbroker.coordinator.runtime.result import CoordinatorResult, Reply, Result
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.groups import (
    SyncGroupResponse,
)


class Rebalance(Generation):
    """The transitions between generations, and the deadlines that force them. Every method takes
    the clock and returns results; deadlines are set in the heap of the shard.
    """

    __slots__ = ("_delay_ms", "_join_deadline", "_remaining_delay_ms", "_sync_deadline")

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
        super().__init__(
            group_id,
            settings=settings,
            deadlines=deadlines,
            random=random,
            wall_ms=wall_ms,
            pending_members=pending_members,
            memory=memory,
        )
        self._delay_ms = 0
        self._remaining_delay_ms = 0
        self._join_deadline = Deadline(self._on_join_deadline)
        self._sync_deadline = Deadline(self._on_sync_deadline)

    # -- waiting for members -------------------------------------------------------------------

    def _rebalance_or_complete_join(self, now_ms: int) -> list[Result]:
        if self.state in MAY_REBALANCE:
            return self._prepare_rebalance(now_ms)
        return self._maybe_complete_join(now_ms)

    def _prepare_rebalance(self, now_ms: int) -> list[Result]:
        results: list[Result] = []
        if self.state is GroupState.COMPLETING_REBALANCE:
            results = self._fail_syncs(ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
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
                return results
            return results + self._complete_join(now_ms)
        if self._all_joined():
            return results + self._complete_join(now_ms)
        self._deadlines.set(self._join_deadline, now_ms + self.rebalance_timeout_ms())
        return results

    def _maybe_complete_join(self, now_ms: int) -> list[Result]:
        if (
            self.state is GroupState.PREPARING_REBALANCE
            and self.previous_state is not GroupState.EMPTY
            and self._all_joined()
        ):
            return self._complete_join(now_ms)
        return []

    def _all_joined(self) -> bool:
        return self._awaiting_join_count == len(self.members) and not self.pending_joins

    def _complete_join(self, now_ms: int) -> list[Result]:
        """Remove the dynamic members that did not rejoin, then start the next generation."""
        self._deadlines.cancel(self._join_deadline)
        results: list[Result] = []
        for member in list(self.members.values()):
            if member.join_waiter is None and member.instance_id is None:
                results += self._remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if self.members and not self._elect_leader():
            # Only absent static members are left: wait until they rejoin or their sessions expire.
            self._deadlines.set(self._join_deadline, now_ms + self.rebalance_timeout_ms())
            return results
        self.generation_id += 1
        self.pending_syncs.clear()
        if not self.members:
            self.protocol_name = None
            self.leader_id = None
            self._transition(GroupState.EMPTY)
            return [
                *results,
                CoordinatorResult([group_metadata_record(self.group_id, self.to_value({}))], None),
            ]
        self.protocol_name = self._members.select_protocol(self.group_id)
        self._transition(GroupState.COMPLETING_REBALANCE)
        self._deadlines.set(self._sync_deadline, now_ms + self.rebalance_timeout_ms())
        for member in self.members.values():
            self.pending_syncs.add(member.member_id)
            member.is_new = False
            if member.join_waiter is not None:
                results.append(Reply(member.join_waiter, self._join_response(member)))
                member.join_waiter = None
            self._renew_session(member, now_ms)
        self._awaiting_join_count = 0
        return results

    def _elect_leader(self) -> bool:
        """Keep the leader if it rejoined, else elect the first member that did; False if there is
        none.
        """
        leader = self.members.get(self.leader_id or "")
        if leader is not None and leader.join_waiter is not None:
            return True
        for member in self.members.values():
            if member.join_waiter is not None:
                self.leader_id = member.member_id
                return True
        return False

    # -- the assignment ------------------------------------------------------------------------

    def _on_assignment_appended(
        self, generation_id: int, assignments: dict[str, bytes], error: ErrorCode, now_ms: int
    ) -> list[Result]:
        if self.state is not GroupState.COMPLETING_REBALANCE or generation_id != self.generation_id:
            return []  # another rebalance began while the record was written
        if error is not ErrorCode.NONE:
            results = self._fail_syncs(error, now_ms)
            return results + self._prepare_rebalance(now_ms)
        self._transition(GroupState.STABLE, keep_time=True)
        self._end_assignments()
        replies: list[Result] = []
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            if member.sync_waiter is not None:
                replies.append(Reply(member.sync_waiter, self._sync_response(member)))
                member.sync_waiter = None
                self._renew_session(member, now_ms)
        return replies

    def _fail_syncs(self, error: ErrorCode, now_ms: int) -> list[Result]:
        results: list[Result] = []
        self._end_assignments()
        for member in self.members.values():
            if member.sync_waiter is not None:
                results.append(Reply(member.sync_waiter, SyncGroupResponse(error_code=error)))
                member.sync_waiter = None
                self._renew_session(member, now_ms)
        return results

    # -- deadlines -----------------------------------------------------------------------------

    def _on_join_deadline(self, now_ms: int) -> list[Result]:
        if self.state is not GroupState.PREPARING_REBALANCE:
            return []
        is_initial = self.previous_state is GroupState.EMPTY
        if not (is_initial and self.new_member_added and self._remaining_delay_ms > 0):
            return self._complete_join(now_ms)
        # A member joined during the delay, so more may follow: extend it (KIP-134).
        self.new_member_added = False
        initial_ms = self._settings.group_initial_rebalance_delay_ms
        delay_ms = min(initial_ms, self._remaining_delay_ms)
        self._remaining_delay_ms = max(self._remaining_delay_ms - self._delay_ms, 0)
        self._delay_ms = delay_ms
        self._deadlines.set(self._join_deadline, now_ms + delay_ms)
        return []

    def _on_sync_deadline(self, now_ms: int) -> list[Result]:
        """Remove the members that joined but did not send SyncGroup in time."""
        if not self.pending_syncs:
            return []
        results: list[Result] = []
        for member_id in sorted(self.pending_syncs):
            results += self._remove(self.members[member_id], ErrorCode.UNKNOWN_MEMBER_ID)
        return results + self._prepare_rebalance(now_ms)

    def _on_session_deadline(self, member_id: str, now_ms: int) -> list[Result]:
        member = self.members.get(member_id)
        if member is None:
            return []
        if not member.is_new and (member.join_waiter is not None or member.sync_waiter is not None):
            return []  # its request is waiting; the response renews the session
        results = self._remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        return results + self._after_members_left(now_ms)

    def _on_pending_deadline(self, digest: Digest, now_ms: int) -> list[Result]:
        self._forget_pending(digest)
        return self._maybe_complete_join(now_ms)

    def _on_pending_evicted(self, digest: Digest, now_ms: int) -> None:
        """Remove the oldest pending member id, because there are too many."""
        self._forget_pending(digest)
        is_initial = self.previous_state is GroupState.EMPTY
        if self.state is GroupState.PREPARING_REBALANCE and not is_initial and self._all_joined():
            self._deadlines.set(self._join_deadline, now_ms)

    # -- members -------------------------------------------------------------------------------

    def _session_of(self, member_id: str) -> Deadline:
        return Deadline(partial(self._on_session_deadline, member_id))

    def _after_members_left(self, now_ms: int) -> list[Result]:
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            return self._prepare_rebalance(now_ms)
        return self._maybe_complete_join(now_ms)

    def _remove(self, member: Member, error: ErrorCode) -> list[Result]:
        """Remove a member; its waiting requests are answered with error."""
        results: list[Result] = [*self._answer(member, error)]
        self._deadlines.cancel(member.session)
        self._members.remove(member)
        self._memory.add(-member.size_bytes)
        self._forget_pending_sync(member.member_id)
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.members), None)
        return results

    def _forget_pending_sync(self, member_id: str) -> None:
        self.pending_syncs.discard(member_id)
        if not self.pending_syncs:
            self._deadlines.cancel(self._sync_deadline)
