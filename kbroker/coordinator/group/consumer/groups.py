"""The consumer groups (KIP-848) of one partition of `__consumer_offsets`: their map, their
sessions, and what tools are shown. Part of `group_shard`.

A member is given up when it was silent for the session timeout, or when it did not give back what
it was told to within its rebalance timeout. Both clocks start anew when the log is loaded. Regular
expressions are resolved after a heartbeat, in turns of their own (`regex_refresh`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum
from functools import partial
from random import Random
from typing import Final, Protocol

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
from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.coordinator.group.consumer.membership import (
    ConsumerSettings,
    Decision,
    Removal,
    Surroundings,
    advance,
    assignor_name,
    check_leave,
    heartbeat,
    leave_for_a_while,
    removal,
    resolved,
)
from kbroker.coordinator.group.consumer.records import ConsumerGroupKey, MemberMetadata
from kbroker.coordinator.group.consumer.regex_refresh import MIN_INTERVAL_MS, RegexRefresh
from kbroker.coordinator.group.membership.assignment import Assignment
from kbroker.coordinator.group.membership.epochs import STATIC_LEAVE_EPOCH
from kbroker.coordinator.group.membership.errors import group_not_found
from kbroker.coordinator.group.membership.join import UNKNOWN_MEMBER, Join
from kbroker.coordinator.group.membership.overrides import GroupOverrides
from kbroker.coordinator.group.membership.sessions import MemberSessions
from kbroker.coordinator.runtime.deadlines import Deadline, Deadlines
from kbroker.coordinator.runtime.effects import Append, Effect, Reply, Waiter
from kbroker.coordinator.topics import ClusterTopic, ClusterTopics
from kbroker.model import Uuid, random_uuid, uuid_to_string
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kbroker.protocol.messages.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
)
from kbroker.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kbroker.protocol.schema import CoordinatorValue

CONSUMER_TYPE: Final = "consumer"
CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1
"""The kinds of members in ConsumerGroupDescribe: the protocol they speak."""

_Described = ConsumerGroupDescribeResponse.DescribedGroup
_Places = ConsumerGroupDescribeResponse.TopicPartitions


class Promise(Enum):
    """What a classic member in a consumer group is to do next."""

    JOIN = "JoinGroup"
    SYNC = "SyncGroup"


Replacements = Mapping[str, tuple[str, MemberMetadata]]
"""Members that take the places of others: by the new member id, (the former id, metadata)."""


class Downgrade(Protocol):
    """How a group becomes a classic one when these members leave, and these come in the place of
    others; None if it stays what it is.
    """

    def __call__(
        self,
        group: ConsumerGroup,
        leaving: Collection[str],
        replacements: Replacements,
        *,
        rebalance: bool,
    ) -> Removal | None: ...


class ConsumerGroups:
    """Groups by id. topics: the cluster's, as of now. wall_ms: the wall clock."""

    __slots__ = (
        "_deadlines",
        "_downgrade",
        "_overrides",
        "_promises",
        "_random",
        "_refreshed_ms",
        "_refreshes",
        "_sessions",
        "_settings",
        "_topics",
        "_wall_ms",
        "groups",
    )

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
        self.groups: dict[str, ConsumerGroup] = {}
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
        self._promises: dict[tuple[str, str, Promise], Deadline] = {}
        self._refreshes: dict[str, tuple[RegexRefresh, Deadline]] = {}
        """By group: the refresh of its regular expressions that is under way."""
        self._refreshed_ms: dict[str, int] = {}
        """By group with regular expressions: when the last refresh started."""

    # -- replay ------------------------------------------------------------------------------

    def replay(self, key: ConsumerGroupKey, value: CoordinatorValue | None) -> None:
        """Apply a record that is in the log."""
        group = self.groups.get(key.group_id)
        if isinstance(key, ConsumerGroupMetadataKey) and value is None:
            if group is not None:
                del self.groups[key.group_id]
                self._end_refresh(key.group_id)
                self._refreshed_ms.pop(key.group_id, None)
                for member_id in group.members:
                    self._forget(key.group_id, member_id)
            return
        if group is None:
            if value is None:
                return
            group = self.groups[key.group_id] = ConsumerGroup(key.group_id)
        group.replay(key, value)
        if isinstance(key, ConsumerGroupMemberMetadataKey) and value is None:
            self._forget(key.group_id, key.member_id)
        elif isinstance(key, ConsumerGroupCurrentMemberAssignmentKey) and not group.is_unrevoked(
            key.member_id
        ):
            self._sessions.returned(key.group_id, key.member_id)

    def on_loaded(self, now_ms: int) -> None:
        """All records were replayed: sessions begin."""
        for group_id in self.groups:
            self.begin(group_id, now_ms)

    def begin(self, group_id: str, now_ms: int) -> None:
        """The sessions of a group's members begin."""
        group = self.groups[group_id]
        for member_id in group.members:
            self.renew(group_id, member_id, now_ms)
            self._watch_rebalance(group, member_id, now_ms)

    def unload(self) -> None:
        """This broker no longer coordinates these groups."""
        for deadline in self._promises.values():
            self._deadlines.cancel(deadline)
        self._promises.clear()
        self._sessions.clear()
        for group_id in list(self._refreshes):
            self._end_refresh(group_id)
        self._refreshed_ms.clear()
        self.groups = {}

    # -- requests ----------------------------------------------------------------------------

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client_id: str, client_host: str
    ) -> Decision:
        """ConsumerGroupHeartbeat, checked by `check_heartbeat`. Raises KafkaError."""
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_epoch != 0:
                raise group_not_found("consumer", request.group_id)
            group = ConsumerGroup(request.group_id)
        if request.member_epoch < 0:
            return self._leave(group, request)
        return heartbeat(group, request, self.surroundings(group.group_id, client_id, client_host))

    def _leave(self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest) -> Decision:
        member_id = request.member_id
        check_leave(group, request)
        response = ConsumerGroupHeartbeatResponse(
            member_id=member_id, member_epoch=request.member_epoch
        )
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            return Decision(leave_for_a_while(group, member_id), response)
        end = self._end_members(group, (member_id,))
        return Decision(end.records, response, written=end.written)

    def surroundings(self, group_id: str, client_id: str, client_host: str) -> Surroundings:
        """What a decision about that group needs besides the request."""
        settings = self._settings
        return Surroundings(
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
        """The decision on a heartbeat, made upon these topics, is in the log."""
        group = self.groups.get(group_id)
        if group is None or member_id not in group.members:
            return
        group.seen_topics = topics.topics
        self.renew(group_id, member_id, now_ms)
        self._watch_rebalance(group, member_id, now_ms)
        self._maybe_refresh(group, topics, now_ms)

    # -- regular expressions -----------------------------------------------------------------

    def _maybe_refresh(self, group: ConsumerGroup, topics: ClusterTopics, now_ms: int) -> None:
        """Start to resolve the group's regular expressions if one is not resolved yet, or if there
        are other topics. Not again within MIN_INTERVAL_MS, unless none is resolved.
        """
        group_id, regexes = group.group_id, group.subscriptions.regexes
        if not regexes or group_id in self._refreshes:
            return
        if len(regexes) == len(group.regexes) and group.matched_topics is topics.topics:
            return
        last_ms = self._refreshed_ms.get(group_id)
        if group.regexes and last_ms is not None and now_ms <= last_ms + MIN_INTERVAL_MS:
            return
        refresh = RegexRefresh(
            regexes, topics.topics, offset=topics.offset, wall_ms=self._wall_ms()
        )
        turn = Deadline(partial(self._on_refresh_turn, group_id))
        self._refreshes[group_id] = (refresh, turn)
        self._refreshed_ms[group_id] = now_ms
        self._deadlines.set(turn, now_ms)

    def _on_refresh_turn(self, group_id: str, now_ms: int) -> list[Effect]:
        refresh, turn = self._refreshes[group_id]
        if not refresh.advance():
            self._deadlines.set(turn, now_ms + 1)
            return []
        del self._refreshes[group_id]
        group = self.groups.get(group_id)
        if group is None:
            return []
        topics = self._topics()

        def written(now_ms: int) -> list[Effect]:
            group.seen_topics, group.matched_topics = topics.topics, refresh.topics
            return []

        records = resolved(group, refresh, topics)
        return [Append(records, written=written)] if records else written(now_ms)

    def _end_refresh(self, group_id: str) -> None:
        under_way = self._refreshes.pop(group_id, None)
        if under_way is not None:
            self._deadlines.cancel(under_way[1])

    # -- classic members ---------------------------------------------------------------------

    def classic_join(self, group: ConsumerGroup, join: Join, now_ms: int) -> list[Effect]:
        """JoinGroup to a consumer group with members."""
        around = self.surroundings(group.group_id, join.client_id, join.client_host)
        try:
            joining = check_join(group, join, around)
        except KafkaError as error:
            is_sent_back = error.code is ErrorCode.MEMBER_ID_REQUIRED
            member_id = error.message if is_sent_back else UNKNOWN_MEMBER
            refusal = JoinGroupResponse(error_code=error.code, member_id=member_id)
            return [Reply(join.waiter, refusal)]
        former, member_id = joining.replaced, joining.member_id
        may_be_last = former is not None and not group.is_classic(former)
        replacing: Replacements = (
            {member_id: (former or "", joining.metadata)} if may_be_last else {}
        )
        end = None
        if replacing and (self._downgrade(group, (), replacing, rebalance=False) is not None):
            step = advance(group, joining.update(), around, assign=False)
            is_settled = step.target_epoch == step.epoch and all(
                group.current(other).is_at(group.target_epoch)
                for other in group.members
                if other != former
            )
            end = self._downgrade(group, (), replacing, rebalance=not is_settled)
        else:
            step = advance(group, joining.update(), around)
        response = join_response(joining, step.after.member_epoch)

        def lost(error: ErrorCode) -> Reply:
            refusal = JoinGroupResponse(error_code=error, member_id=UNKNOWN_MEMBER)
            return Reply(join.waiter, refusal)

        def then(error: ErrorCode, now_ms: int) -> list[Effect]:
            return [lost(error) if error is not ErrorCode.NONE else Reply(join.waiter, response)]

        if end is not None:
            records = [*step.records, *end.records]
            return [Append(records, then, written=end.written, lost=lost)]

        def written(now_ms: int) -> list[Effect]:
            self.settled(group.group_id, member_id, around.topics, now_ms)
            self.kept(group.group_id, member_id, Promise.JOIN)
            self.expect(group.group_id, member_id, Promise.SYNC, now_ms, anew=True)
            return []

        return [Append(step.records, then, written=written, lost=lost)]

    def classic_sync(
        self, group: ConsumerGroup, request: SyncGroupRequest, waiter: Waiter, now_ms: int
    ) -> list[Effect]:
        """SyncGroup of a classic member."""
        group_id, member_id = group.group_id, request.member_id
        try:
            check_sync(group, request)
        except KafkaError as error:
            if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
                self.expect(group_id, member_id, Promise.JOIN, now_ms, anew=False)
            return [Reply(waiter, SyncGroupResponse(error_code=error.code))]
        response = SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=assignment_for(group, member_id, self._topics().topics_by_id),
        )

        def lost(error: ErrorCode) -> Reply:
            return Reply(waiter, SyncGroupResponse(error_code=error))

        def then(error: ErrorCode, now_ms: int) -> list[Effect]:
            if error is not ErrorCode.NONE:
                return [lost(error)]
            current = self.groups.get(group_id)
            if current is not None and member_id in current.members:
                self.kept(group_id, member_id, Promise.SYNC)
                self.renew(group_id, member_id, now_ms)
            return [Reply(waiter, response)]

        return [Append([], then, lost=lost)]

    def classic_heartbeat(
        self, group: ConsumerGroup, request: HeartbeatRequest, now_ms: int
    ) -> ErrorCode:
        """Heartbeat of a classic member."""
        try:
            is_to_join = check_classic_heartbeat(group, request)
        except KafkaError as error:
            return error.code
        self.renew(group.group_id, request.member_id, now_ms)
        if not is_to_join:
            return ErrorCode.NONE
        self.expect(group.group_id, request.member_id, Promise.JOIN, now_ms, anew=False)
        return ErrorCode.REBALANCE_IN_PROGRESS

    def classic_leave(
        self, group: ConsumerGroup, identities: Iterable[LeaveGroupRequest.MemberIdentity]
    ) -> tuple[list[ErrorCode], Removal]:
        """LeaveGroup, also of members that speak the consumer protocol: an error per identity, and
        the end of all that may leave.
        """
        errors, leaving = self._leaving(group, identities)
        return errors, self._end_members(group, leaving) if leaving else Removal([])

    def classic_leave_errors(
        self, group: ConsumerGroup, identities: Iterable[LeaveGroupRequest.MemberIdentity]
    ) -> list[ErrorCode]:
        """What `classic_leave` would answer each of them."""
        return self._leaving(group, identities)[0]

    @staticmethod
    def _leaving(
        group: ConsumerGroup, identities: Iterable[LeaveGroupRequest.MemberIdentity]
    ) -> tuple[list[ErrorCode], dict[str, None]]:
        """An error per identity, and the ids of the members that may leave."""
        errors: list[ErrorCode] = []
        leaving: dict[str, None] = {}
        for identity in identities:
            try:
                leaving[member_that_leaves(group, identity)] = None
            except KafkaError as error:
                errors.append(error.code)
            else:
                errors.append(ErrorCode.NONE)
        return errors, leaving

    def _end_members(self, group: ConsumerGroup, member_ids: Collection[str]) -> Removal:
        end = self._downgrade(group, member_ids, {}, rebalance=True)
        return end or Removal(removal(group, member_ids, self._topics()))

    def _own_or(self, default: int, group_id: str, name: str) -> int:
        own = self._overrides.get_int(group_id, name)
        return default if own is None else own

    # -- sessions ----------------------------------------------------------------------------

    def renew(self, group_id: str, member_id: str, now_ms: int) -> None:
        """A member was heard of: its session starts anew."""
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
        """Classic members have the timeouts of their JoinGroup and SyncGroup instead."""
        if group.is_unrevoked(member_id) and not group.is_classic(member_id):
            until_ms = now_ms + max(group.members[member_id].rebalance_timeout_ms, 0)
            current = group.current(member_id)
            self._sessions.expect_return(group.group_id, member_id, current, until_ms)
        else:
            self._sessions.returned(group.group_id, member_id)

    def expect(
        self, group_id: str, member_id: str, promise: Promise, now_ms: int, *, anew: bool
    ) -> None:
        """A classic member is to do that within its rebalance timeout, or is given up. anew: the
        time starts again if it was running already.
        """
        key = (group_id, member_id, promise)
        deadline = self._promises.get(key)
        if deadline is None:
            deadline = Deadline(partial(self._on_promise_over, group_id, member_id))
            self._promises[key] = deadline
        elif not anew:
            return
        timeout_ms = self.groups[group_id].members[member_id].rebalance_timeout_ms
        self._deadlines.set(deadline, now_ms + max(timeout_ms, 0))

    def kept(self, group_id: str, member_id: str, promise: Promise) -> None:
        """It has done what was expected."""
        deadline = self._promises.pop((group_id, member_id, promise), None)
        if deadline is not None:
            self._deadlines.cancel(deadline)

    def _forget(self, group_id: str, member_id: str) -> None:
        for promise in Promise:
            self.kept(group_id, member_id, promise)
        self._sessions.forget(group_id, member_id)

    def _on_promise_over(self, group_id: str, member_id: str, now_ms: int) -> list[Effect]:
        return self._give_up(group_id, member_id)

    def _on_rebalance_over(self, group_id: str, member_id: str) -> list[Effect]:
        group = self.groups.get(group_id)
        if group is None or not group.is_unrevoked(member_id):
            return []
        return self._give_up(group_id, member_id)

    def _give_up(self, group_id: str, member_id: str) -> list[Effect]:
        group = self.groups.get(group_id)
        if group is None or member_id not in group.members:
            self._forget(group_id, member_id)
            return []

        def then(error: ErrorCode, now_ms: int) -> list[Effect]:
            group = self.groups.get(group_id)
            if group is None or member_id not in group.members:
                self._forget(group_id, member_id)
            elif error is not ErrorCode.NONE:
                self._sessions.retry(group_id, member_id, now_ms)
            return []

        end = self._end_members(group, (member_id,))
        return [Append(end.records, then, written=end.written)]

    # -- what tools read ---------------------------------------------------------------------

    def listed(self, states: frozenset[str]) -> Iterator[ListGroupsResponse.ListedGroup]:
        """Groups in one of these states, in lower case; empty: any."""
        for group_id, group in self.groups.items():
            state = group.state()
            if not states or state.lower() in states:
                yield ListGroupsResponse.ListedGroup(
                    group_id=group_id,
                    protocol_type="consumer",
                    group_state=state,
                    group_type=CONSUMER_TYPE,
                )

    def describe(
        self, group: ConsumerGroup
    ) -> tuple[_Described, Iterator[ConsumerGroupDescribeResponse.Member]]:
        """One group, and its members, each of which is made when it is asked for."""
        topics = self._topics().topics_by_id
        described = _Described(
            group_id=group.group_id,
            group_state=group.state(),
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=assignor_name(group.members, self._settings),
        )
        members = (
            ConsumerGroupDescribeResponse.Member(
                member_id=member_id,
                instance_id=metadata.instance_id,
                rack_id=metadata.rack_id,
                member_epoch=group.current(member_id).member_epoch,
                client_id=metadata.client_id,
                client_host=metadata.client_host,
                subscribed_topic_names=metadata.subscribed_topic_names,
                subscribed_topic_regex=metadata.subscribed_topic_regex,
                assignment=_described(group.current(member_id).held(), topics),
                target_assignment=_described(group.targets.get(member_id, {}), topics),
                member_type=CLASSIC_MEMBER if group.is_classic(member_id) else CONSUMER_MEMBER,
            )
            for member_id, metadata in list(group.members.items())
        )
        return described, members


def _described(
    assignment: Assignment, topics: Mapping[Uuid, ClusterTopic]
) -> ConsumerGroupDescribeResponse.Assignment:
    return ConsumerGroupDescribeResponse.Assignment(
        topic_partitions=[
            _Places(topic_id=topic_id, topic_name=topic.name, partitions=sorted(partitions))
            for topic_id, partitions in assignment.items()
            if (topic := topics.get(topic_id)) is not None
        ]
    )
