"""The consumer groups (KIP-848) of one partition of `__consumer_offsets`: their map and their
sessions, as a `GroupKind`.

A member is removed if it sends no request for the session timeout, or does not revoke the requested
partitions within its rebalance timeout. Both timeouts start again when the log is loaded. Regular
expressions are resolved after a heartbeat (`regex_schedule`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import ClassVar, Final, Protocol, get_args

from kbroker.coordinator.group.consumer.context import (
    ConsumerContext,
    ConsumerSettings,
)
from kbroker.coordinator.group.consumer.description import (
    DescribedConsumerGroup,
    describe_consumer_group,
)
from kbroker.coordinator.group.consumer.expected_requests import ExpectedRequests
from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.coordinator.group.consumer.membership import (
    check_leave,
    heartbeat,
    leave_for_a_while,
    removal,
)
from kbroker.coordinator.group.consumer.records import (
    ConsumerGroupKey,
    MemberMetadata,
    group_tombstones,
)
from kbroker.coordinator.group.consumer.regex_schedule import RegexSchedule
from kbroker.coordinator.group.epoch_groups import OffsetGroups
from kbroker.coordinator.group.kind import GroupChange, GroupType, OffsetCommitter
from kbroker.coordinator.group.membership.epochs import STATIC_LEAVE_EPOCH
from kbroker.coordinator.group.membership.errors import group_not_found
from kbroker.coordinator.group.membership.overrides import GroupOverrides
from kbroker.coordinator.group.membership.sessions import MemberSessions
from kbroker.coordinator.runtime.deadlines import Deadlines
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.runtime.result import CoordinatorResult, Result, Results
from kbroker.coordinator.topics import ClusterTopics
from kbroker.model import random_uuid, uuid_to_string
from kbroker.protocol.codecs.schema import CoordinatorKey, CoordinatorValue
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.consumer_groups import (
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kbroker.protocol.messages.stored.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
)

SHOWN_REGEX: Final = 200
"""The maximum length of a client's regular expression in a log line."""

Replacements = Mapping[str, tuple[str, MemberMetadata]]
"""Members that replace others: by the new member id, (the former id, metadata)."""


class Downgrade(Protocol):
    """Converts a group to a classic group when these members leave and these replace others; None
    if the group is not converted.
    """

    def __call__(
        self,
        group: ConsumerGroup,
        leaving: Collection[str],
        replacements: Replacements,
        *,
        rebalance: bool,
    ) -> CoordinatorResult[None] | None: ...


class ConsumerGroups(OffsetGroups[ConsumerGroup]):
    """Groups by id, a GroupKind. topics: returns the cluster's current topics. wall_ms: the wall
    clock.
    """

    __slots__ = (
        "_deadlines",
        "_downgrade",
        "_overrides",
        "_random",
        "_regexes",
        "_sessions",
        "_settings",
        "_topics",
        "_wall_ms",
        "expected",
    )

    group_type: ClassVar[GroupType] = GroupType.CONSUMER
    replays: ClassVar[Collection[type[CoordinatorKey]]] = get_args(ConsumerGroupKey)
    gives_way_to: ClassVar[Collection[GroupType]] = (GroupType.CLASSIC,)
    keeps_offsets: ClassVar[bool] = True

    def __init__(
        self,
        settings: ConsumerSettings,
        *,
        topics: Callable[[], ClusterTopics],
        deadlines: Deadlines,
        random: Random,
        wall_ms: Callable[[], int],
        overrides: GroupOverrides,
        downgrade: Downgrade,
    ) -> None:
        super().__init__()
        self._settings = settings
        self._overrides = overrides
        self._downgrade = downgrade
        self._topics = topics
        self._deadlines = deadlines
        self._random = random
        self._wall_ms = wall_ms
        self._sessions = MemberSessions(
            deadlines, give_up=self._give_up, on_late=self._on_rebalance_over
        )
        self.expected = ExpectedRequests(deadlines, self._give_up)
        self._regexes = RegexSchedule(self.groups, deadlines, topics, wall_ms)

    # -- replay ------------------------------------------------------------------------------

    def replay(self, key: CoordinatorKey, value: CoordinatorValue | None) -> GroupChange | None:
        """Apply a record of the log."""
        if not isinstance(key, ConsumerGroupKey):
            return None
        group = self.groups.get(key.group_id)
        if isinstance(key, ConsumerGroupMetadataKey) and value is None:
            if group is not None:
                del self.groups[key.group_id]
                self._regexes.cancel(key.group_id)
                for member_id in group.members:
                    self._forget(key.group_id, member_id)
            return GroupChange(key.group_id, is_created=False)
        is_new = group is None
        if group is None:
            if value is None:
                return None
            group = self.groups[key.group_id] = ConsumerGroup(key.group_id)
        group.replay(key, value)
        if isinstance(key, ConsumerGroupMemberMetadataKey) and value is None:
            self._forget(key.group_id, key.member_id)
        elif isinstance(key, ConsumerGroupCurrentMemberAssignmentKey) and not group.is_unrevoked(
            key.member_id
        ):
            self._sessions.returned(key.group_id, key.member_id)
        return GroupChange(key.group_id, is_created=True) if is_new else None

    def on_loaded(self, now_ms: int) -> list[Result]:
        """Called after all records were replayed: start the sessions."""
        for group_id in self.groups:
            self.begin(group_id, now_ms)
        return []

    def begin(self, group_id: str, now_ms: int) -> None:
        """Start the sessions of a group's members."""
        group = self.groups[group_id]
        for member_id in group.members:
            self.renew(group_id, member_id, now_ms)
            self._watch_rebalance(group, member_id, now_ms)

    def unload(self, error: ErrorCode) -> list[Result]:
        """This broker no longer coordinates these groups: cancel all deadlines."""
        self.expected.clear()
        self._sessions.clear()
        self._regexes.clear()
        self.groups.clear()
        return []

    # -- requests ----------------------------------------------------------------------------

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client_id: str, client_host: str
    ) -> CoordinatorResult[ConsumerGroupHeartbeatResponse]:
        """ConsumerGroupHeartbeat, checked by `check_heartbeat`. Raises KafkaError."""
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_epoch != 0:
                raise group_not_found("consumer", request.group_id)
            group = ConsumerGroup(request.group_id)
        if request.member_epoch < 0:
            return self._leave(group, request)
        context = self.context_of(group.group_id, client_id, client_host)
        return self.settling(group.group_id, heartbeat(group, request, context), context.topics)

    def settling(
        self,
        group_id: str,
        result: CoordinatorResult[ConsumerGroupHeartbeatResponse],
        topics: ClusterTopics,
        on_written: Callable[[int], Results] | None = None,
    ) -> CoordinatorResult[ConsumerGroupHeartbeatResponse]:
        """The decision on a heartbeat of a member that stays, made with these topics: after its
        records are in the log, on_written and then `settled` are called.
        """
        member_id = result.answer.member_id or ""

        def settle(now_ms: int) -> Results:
            results = [] if on_written is None else on_written(now_ms)
            self.settled(group_id, member_id, topics, now_ms)
            return results

        return result.followed_by(settle)

    def _leave(
        self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest
    ) -> CoordinatorResult[ConsumerGroupHeartbeatResponse]:
        member_id = request.member_id
        check_leave(group, request)
        response = ConsumerGroupHeartbeatResponse(
            member_id=member_id, member_epoch=request.member_epoch
        )
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            return CoordinatorResult(leave_for_a_while(group, member_id), response)
        end = self.end_members(group, (member_id,))
        return CoordinatorResult(end.records, response, on_written=end.on_written)

    def context_of(self, group_id: str, client_id: str, client_host: str) -> ConsumerContext:
        """The context of a decision about that group: everything it needs besides the request."""
        settings = self._settings
        return ConsumerContext(
            settings=settings,
            heartbeat_interval_ms=self._own_or(
                settings.group_consumer_heartbeat_interval_ms,
                group_id,
                "consumer.heartbeat.interval.ms",
            ),
            assignment_interval_ms=self._own_or(
                settings.group_consumer_assignment_interval_ms,
                group_id,
                "consumer.assignment.interval.ms",
            ),
            topics=self._topics(),
            wall_ms=self._wall_ms(),
            client_id=client_id,
            client_host=client_host,
            new_member_id=lambda: uuid_to_string(random_uuid(self._random)),
        )

    def settled(self, group_id: str, member_id: str, topics: ClusterTopics, now_ms: int) -> None:
        """The decision on a heartbeat, made with these topics, is in the log."""
        group = self.groups.get(group_id)
        if group is None or member_id not in group.members:
            return
        group.seen_topics = topics.topics
        self.renew(group_id, member_id, now_ms)
        self._watch_rebalance(group, member_id, now_ms)
        self._regexes.start_if_due(group, topics, now_ms)

    def end_members(
        self, group: ConsumerGroup, member_ids: Collection[str]
    ) -> CoordinatorResult[None]:
        """Remove members. The group becomes a classic one if only classic members remain."""
        end = self._downgrade(group, member_ids, {}, rebalance=True)
        return end or CoordinatorResult(removal(group, member_ids, self._topics()), None)

    def _own_or(self, default: int, group_id: str, name: str) -> int:
        own = self._overrides.get_int(group_id, name)
        return default if own is None else own

    # -- sessions ----------------------------------------------------------------------------

    def renew(self, group_id: str, member_id: str, now_ms: int) -> None:
        """A request of a member arrived: renew its session."""
        classic = self.groups[group_id].members[member_id].classic_member_metadata
        timeout_ms = (
            classic.session_timeout_ms
            if classic is not None
            else self._own_or(
                self._settings.group_consumer_session_timeout_ms,
                group_id,
                "consumer.session.timeout.ms",
            )
        )
        self._sessions.renew(group_id, member_id, now_ms + timeout_ms)

    def _watch_rebalance(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        """Classic members have the deadlines of their JoinGroup and SyncGroup instead."""
        if group.is_unrevoked(member_id) and not group.is_classic(member_id):
            until_ms = now_ms + max(group.members[member_id].rebalance_timeout_ms, 0)
            current = group.current(member_id)
            self._sessions.expect_return(group.group_id, member_id, current, until_ms)
        else:
            self._sessions.returned(group.group_id, member_id)

    def _forget(self, group_id: str, member_id: str) -> None:
        self.expected.forget(group_id, member_id)
        self._sessions.forget(group_id, member_id)

    def _on_rebalance_over(self, group_id: str, member_id: str) -> list[Result]:
        group = self.groups.get(group_id)
        if group is None or not group.is_unrevoked(member_id):
            return []
        return self._give_up(group_id, member_id)

    def _give_up(self, group_id: str, member_id: str) -> list[Result]:
        group = self.groups.get(group_id)
        if group is None or member_id not in group.members:
            self._forget(group_id, member_id)
            return []

        def then(error: ErrorCode, now_ms: int) -> list[Result]:
            group = self.groups.get(group_id)
            if group is None or member_id not in group.members:
                self._forget(group_id, member_id)
            elif error is not ErrorCode.NONE:
                self._sessions.retry(group_id, member_id, now_ms)
            return []

        end = self.end_members(group, (member_id,))
        return [end._replace(on_completion=then)]

    # -- describing groups -------------------------------------------------------------------

    def changes(self, key: CoordinatorKey, value: CoordinatorValue | None) -> str | None:
        """The log line for group epochs, and for regular expressions that match no topic."""
        if isinstance(key, ConsumerGroupMetadataKey):
            epoch = value.epoch if isinstance(value, ConsumerGroupMetadataValue) else None
            return self._changes(key.group_id, epoch)
        if (
            isinstance(key, ConsumerGroupRegularExpressionKey)
            and isinstance(value, ConsumerGroupRegularExpressionValue)
            and not value.topics
        ):
            regex = key.regular_expression[:SHOWN_REGEX]
            return f"consumer group {key.group_id}: no topic matches {regex!r}"
        return None

    def end(self, group_id: str) -> list[CoordinatorRecord]:
        """The tombstones of a group without members."""
        return group_tombstones(group_id)

    def _check_member(
        self, group_id: str, committer: OffsetCommitter, version: int | None
    ) -> ErrorCode:
        return self.groups[group_id].check_commit(
            committer.member_id, committer.epoch, version, committer.partitions
        )

    def describe(self, group_id: str) -> DescribedConsumerGroup:
        """The group and its members."""
        topics = self._topics().topics_by_id
        return describe_consumer_group(self.groups[group_id], topics, self._settings)

    def describe_missing(self, group_id: str, message: str, version: int) -> DescribedConsumerGroup:
        """The description with an error."""
        refusal = ConsumerGroupDescribeResponse.DescribedGroup(
            group_id=group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=message
        )
        return refusal, iter(())
