"""The responses to classic members of consumer groups, during an online migration of their group
(KIP-848). The rules are in `classic_members`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kbroker.coordinator.group.consumer.classic_members import (
    assignment_for,
    check_join,
    check_sync,
    join_response,
    member_that_leaves,
)
from kbroker.coordinator.group.consumer.classic_members import (
    check_heartbeat as check_classic_heartbeat,
)
from kbroker.coordinator.group.consumer.expected_requests import ExpectedRequest
from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.coordinator.group.consumer.groups import ConsumerGroups, Downgrade, Replacements
from kbroker.coordinator.group.consumer.membership import (
    advance,
)
from kbroker.coordinator.group.consumer.migration_policy import MigrationPolicy
from kbroker.coordinator.group.membership.join import UNKNOWN_MEMBER, Join
from kbroker.coordinator.group.membership.leave import leave_response
from kbroker.coordinator.runtime.result import CoordinatorResult, Result
from kbroker.coordinator.topics import ClusterTopics
from kbroker.ports import Deferred
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.groups import (
    HeartbeatRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)


class ClassicClients:
    """JoinGroup, SyncGroup, Heartbeat and LeaveGroup to consumer groups: a ClassicProtocol. policy,
    topics: return the current values.
    """

    __slots__ = ("_consumer", "_downgrade", "_policy", "_topics")

    def __init__(
        self,
        consumer: ConsumerGroups,
        downgrade: Downgrade,
        policy: Callable[[], MigrationPolicy],
        topics: Callable[[], ClusterTopics],
    ) -> None:
        self._consumer = consumer
        self._downgrade = downgrade
        self._policy = policy
        self._topics = topics

    def join(self, group_id: str, join: Join, now_ms: int) -> CoordinatorResult[Message]:
        """JoinGroup to a consumer group with members."""
        if self._policy() is MigrationPolicy.DISABLED:
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            refusal = JoinGroupResponse(error_code=error, member_id=UNKNOWN_MEMBER)
            return _refused(refusal)
        group = self._consumer.groups[group_id]
        context = self._consumer.context_of(group.group_id, join.client_id, join.client_host)
        try:
            joining = check_join(group, join, context)
        except KafkaError as error:
            is_sent_back = error.code is ErrorCode.MEMBER_ID_REQUIRED
            member_id = error.message if is_sent_back else UNKNOWN_MEMBER
            refusal = JoinGroupResponse(error_code=error.code, member_id=member_id)
            return _refused(refusal)
        former, member_id = joining.replaced, joining.member_id
        may_be_last = former is not None and not group.is_classic(former)
        replacing: Replacements = (
            {member_id: (former or "", joining.metadata)} if may_be_last else {}
        )
        end = None
        if replacing and (self._downgrade(group, (), replacing, rebalance=False) is not None):
            step = advance(group, joining.update(), context, assign=False)
            is_settled = step.target_epoch == step.epoch and all(
                group.current(other).is_at(group.target_epoch)
                for other in group.members
                if other != former
            )
            end = self._downgrade(group, (), replacing, rebalance=not is_settled)
        else:
            step = advance(group, joining.update(), context)
        response = join_response(joining, step.after.member_epoch)

        if end is not None:
            records = [*step.records, *end.records]
            return CoordinatorResult(records, response, on_written=end.on_written)

        def on_written(now_ms: int) -> list[Result]:
            self._consumer.settled(group.group_id, member_id, context.topics, now_ms)
            self._consumer.expected.received(group.group_id, member_id, ExpectedRequest.JOIN)
            self._expect(group, member_id, ExpectedRequest.SYNC, now_ms, anew=True)
            return []

        return CoordinatorResult(step.records, response, on_written=on_written)

    def sync(self, request: SyncGroupRequest, now_ms: int) -> CoordinatorResult[Message]:
        """SyncGroup of a classic member."""
        group = self._consumer.groups[request.group_id]
        group_id, member_id = group.group_id, request.member_id
        try:
            check_sync(group, request)
        except KafkaError as error:
            if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
                self._expect(group, member_id, ExpectedRequest.JOIN, now_ms, anew=False)
            return _refused(SyncGroupResponse(error_code=error.code))
        response = SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=assignment_for(group, member_id, self._topics().topics_by_id),
        )

        def on_completion(error: ErrorCode, now_ms: int) -> list[Result]:
            current = self._consumer.groups.get(group_id)
            if error is ErrorCode.NONE and current is not None and member_id in current.members:
                self._consumer.expected.received(group_id, member_id, ExpectedRequest.SYNC)
                self._consumer.renew(group_id, member_id, now_ms)
            return []

        return CoordinatorResult((), response, on_completion=on_completion)

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        """Heartbeat of a classic member."""
        group = self._consumer.groups[request.group_id]
        try:
            is_to_join = check_classic_heartbeat(group, request)
        except KafkaError as error:
            return error.code
        self._consumer.renew(group.group_id, request.member_id, now_ms)
        if not is_to_join:
            return ErrorCode.NONE
        self._expect(group, request.member_id, ExpectedRequest.JOIN, now_ms, anew=False)
        return ErrorCode.REBALANCE_IN_PROGRESS

    def leave(
        self,
        group_id: str,
        leaving: Sequence[LeaveGroupRequest.MemberIdentity],
        now_ms: int,
    ) -> CoordinatorResult[Message]:
        """LeaveGroup, also of members that use the consumer protocol: one result per identity; the
        members without an error are removed in one batch.
        """
        group = self._consumer.groups[group_id]
        errors, member_ids = _members_that_leave(group, leaving)
        response = leave_response(leaving, errors)
        if not member_ids:
            return _refused(response)
        end = self._consumer.end_members(group, member_ids)
        return CoordinatorResult(end.records, response, on_written=end.on_written)

    def leave_errors(
        self, group_id: str, leaving: Iterable[LeaveGroupRequest.MemberIdentity]
    ) -> list[ErrorCode]:
        """The error that `leave` would return for each identity separately."""
        return _members_that_leave(self._consumer.groups[group_id], leaving)[0]

    def _expect(
        self,
        group: ConsumerGroup,
        member_id: str,
        request: ExpectedRequest,
        now_ms: int,
        *,
        anew: bool,
    ) -> None:
        timeout_ms = max(group.members[member_id].rebalance_timeout_ms, 0)
        self._consumer.expected.expect(
            group.group_id, member_id, request, now_ms + timeout_ms, anew=anew
        )


def _refused(response: Message) -> CoordinatorResult[Message]:
    """A response that does not wait for the commit of earlier records, since it does not depend on
    them.
    """
    return CoordinatorResult((), Deferred.of(response))


def _members_that_leave(
    group: ConsumerGroup, leaving: Iterable[LeaveGroupRequest.MemberIdentity]
) -> tuple[list[ErrorCode], dict[str, None]]:
    """An error per identity, and the ids of the members that may leave."""
    errors: list[ErrorCode] = []
    member_ids: dict[str, None] = {}
    for identity in leaving:
        try:
            member_ids[member_that_leaves(group, identity)] = None
        except KafkaError as error:
            errors.append(error.code)
        else:
            errors.append(ErrorCode.NONE)
    return errors, member_ids
