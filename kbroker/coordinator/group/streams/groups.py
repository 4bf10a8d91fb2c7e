"""The streams groups (KIP-1071) of one partition of `__consumer_offsets`: their map, their
sessions, the delay of their first assignment. `description` has the description for tools.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import ClassVar, Final, get_args

from kbroker.coordinator.group.epoch_groups import OffsetGroups
from kbroker.coordinator.group.kind import GroupChange, GroupType, OffsetCommitter
from kbroker.coordinator.group.membership.errors import group_not_found
from kbroker.coordinator.group.membership.overrides import GroupOverrides
from kbroker.coordinator.group.membership.sessions import MemberSessions
from kbroker.coordinator.group.streams.context import (
    StreamsContext,
    StreamsGroupSettings,
    StreamsSettings,
)
from kbroker.coordinator.group.streams.description import DescribedStreamsGroup, described_streams
from kbroker.coordinator.group.streams.group import StreamsGroup
from kbroker.coordinator.group.streams.membership import (
    StreamsHeartbeat,
    delayed_assignment,
    streams_heartbeat,
    streams_leave,
    streams_removal,
)
from kbroker.coordinator.group.streams.records import StreamsGroupKey, streams_group_tombstones
from kbroker.coordinator.runtime.deadlines import Deadline, Deadlines
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.runtime.result import CoordinatorResult, Result
from kbroker.coordinator.topics import ClusterTopics
from kbroker.protocol.codecs.schema import CoordinatorKey, CoordinatorValue
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.streams_groups import (
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
)
from kbroker.protocol.messages.stored.streams_group_records import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
)

_FILTER_ALIASES: Final[Mapping[str, str]] = {"NotReady": "not_ready"}
"""States with another name in Kafka's filter than in its responses."""


class StreamsGroups(OffsetGroups[StreamsGroup]):
    """Groups by id, a GroupKind. topics: returns the cluster's current topics. wall_ms: the wall
    clock.
    """

    __slots__ = (
        "_broker",
        "_deadlines",
        "_delays",
        "_overrides",
        "_sessions",
        "_topics",
        "_wall_ms",
    )

    group_type: ClassVar[GroupType] = GroupType.STREAMS
    replays: ClassVar[Collection[type[CoordinatorKey]]] = get_args(StreamsGroupKey)
    gives_way_to: ClassVar[Collection[GroupType]] = (GroupType.CLASSIC,)
    keeps_offsets: ClassVar[bool] = True

    def __init__(
        self,
        settings: StreamsSettings,
        *,
        topics: Callable[[], ClusterTopics],
        deadlines: Deadlines,
        wall_ms: Callable[[], int],
        overrides: GroupOverrides,
    ) -> None:
        super().__init__()
        self._broker = settings
        self._overrides = overrides
        self._topics = topics
        self._deadlines = deadlines
        self._wall_ms = wall_ms
        self._sessions = MemberSessions(deadlines, give_up=self._give_up, on_late=self._give_up)
        self._delays: dict[str, Deadline] = {}
        """Deadlines of groups whose first assignment is delayed."""

    # -- replay ------------------------------------------------------------------------------

    def replay(self, key: CoordinatorKey, value: CoordinatorValue | None) -> GroupChange | None:
        """Apply a record of the log."""
        if not isinstance(key, StreamsGroupKey):
            return None
        group = self.groups.get(key.group_id)
        if isinstance(key, StreamsGroupMetadataKey) and value is None:
            if group is not None:
                del self.groups[key.group_id]
                self._end_delay(key.group_id)
                for member_id in group.members:
                    self._sessions.forget(key.group_id, member_id)
            return GroupChange(key.group_id, is_created=False)
        is_new = group is None
        if group is None:
            if value is None:
                return None
            group = self.groups[key.group_id] = StreamsGroup(key.group_id)
        group.replay(key, value)
        if isinstance(key, StreamsGroupMemberMetadataKey) and value is None:
            self._sessions.forget(key.group_id, key.member_id)
        elif isinstance(key, StreamsGroupCurrentMemberAssignmentKey) and not group.is_unrevoked(
            key.member_id
        ):
            self._sessions.returned(key.group_id, key.member_id)
        return GroupChange(key.group_id, is_created=True) if is_new else None

    def on_loaded(self, now_ms: int) -> list[Result]:
        """Called after all records were replayed: start the sessions."""
        for group in self.groups.values():
            for member_id in group.members:
                self._watch(group, member_id, now_ms)
        return []

    def unload(self, error: ErrorCode) -> list[Result]:
        """This broker no longer coordinates these groups: cancel all deadlines."""
        self._sessions.clear()
        for group_id in list(self._delays):
            self._end_delay(group_id)
        self.groups.clear()
        return []

    # -- requests ----------------------------------------------------------------------------

    def heartbeat(
        self, request: StreamsGroupHeartbeatRequest, client_id: str, client_host: str
    ) -> CoordinatorResult[StreamsHeartbeat]:
        """StreamsGroupHeartbeat, checked by `check_streams_heartbeat`. Raises KafkaError."""
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_epoch != 0:
                raise group_not_found("streams", request.group_id)
            group = StreamsGroup(request.group_id)
        topics = self._topics()
        if request.member_epoch < 0:
            return self._settling(group.group_id, streams_leave(group, request), topics)
        settings = self._settings_of(request.group_id)
        context = StreamsContext.of(
            settings,
            topics,
            self._wall_ms(),
            client_id=client_id,
            client_host=client_host,
            is_delayed=self._is_delayed(group, settings),
        )
        return self._settling(group.group_id, streams_heartbeat(group, request, context), topics)

    def _settling(
        self, group_id: str, result: CoordinatorResult[StreamsHeartbeat], topics: ClusterTopics
    ) -> CoordinatorResult[StreamsHeartbeat]:
        """A decision made with these topics: `_settled` is called when it is in the log."""
        heartbeat = result.answer

        def settle(now_ms: int) -> list[Result]:
            self._settled(group_id, heartbeat, topics, now_ms)
            return []

        return result.followed_by(settle)

    def _settled(
        self, group_id: str, decision: StreamsHeartbeat, topics: ClusterTopics, now_ms: int
    ) -> None:
        """The decision on a heartbeat, made with these topics, is in the log."""
        group, member_id = self.groups.get(group_id), decision.member_id
        if group is None:
            return
        if decision.ends_application and group.shutdown_by is None and group.members:
            group.shutdown_by = decision.response.member_id
        if member_id is None or member_id not in group.members:
            return
        group.seen_topics = topics.topics
        group.configured = decision.configured
        group.endpoint_epoch += decision.has_moved
        self._watch(group, member_id, now_ms)
        delay_ms = self._settings_of(group_id).initial_rebalance_delay_ms
        if decision.begins_delay and delay_ms > 0 and group_id not in self._delays:
            delay = Deadline(partial(self._on_delay_over, group_id))
            self._delays[group_id] = delay
            self._deadlines.set(delay, now_ms + delay_ms)

    def _is_delayed(self, group: StreamsGroup, settings: StreamsGroupSettings) -> bool:
        if group.group_id in self._delays:
            return True
        return not group.members and settings.initial_rebalance_delay_ms > 0

    def _settings_of(self, group_id: str) -> StreamsGroupSettings:
        return StreamsGroupSettings.of(group_id, self._broker, self._overrides)

    # -- deadlines ---------------------------------------------------------------------------

    def _watch(self, group: StreamsGroup, member_id: str, now_ms: int) -> None:
        group_id = group.group_id
        timeout_ms = self._settings_of(group_id).session_timeout_ms
        self._sessions.renew(group_id, member_id, now_ms + timeout_ms)
        if group.is_unrevoked(member_id):
            until_ms = now_ms + max(group.members[member_id].rebalance_timeout_ms, 0)
            self._sessions.expect_return(group_id, member_id, group.current(member_id), until_ms)
        else:
            self._sessions.returned(group_id, member_id)

    def _give_up(self, group_id: str, member_id: str) -> list[Result]:
        group = self.groups.get(group_id)
        if group is None or member_id not in group.members:
            self._sessions.forget(group_id, member_id)
            return []

        def then(error: ErrorCode, now_ms: int) -> list[Result]:
            # A write that timed out has removed the member all the same.
            group = self.groups.get(group_id)
            if group is None or member_id not in group.members:
                self._sessions.forget(group_id, member_id)
            elif error is not ErrorCode.NONE:
                self._sessions.retry(group_id, member_id, now_ms)
            return []

        records = streams_removal(group, member_id)
        return [CoordinatorResult(records, None, on_completion=then)]

    def _on_delay_over(self, group_id: str, now_ms: int) -> list[Result]:
        self._delays.pop(group_id, None)
        group = self.groups.get(group_id)
        if group is None:
            return []
        topics, wall_ms = self._topics(), self._wall_ms()
        records = delayed_assignment(group, self._settings_of(group_id), topics, wall_ms)
        return [CoordinatorResult(records, None)] if records else []

    def _end_delay(self, group_id: str) -> None:
        delay = self._delays.pop(group_id, None)
        if delay is not None:
            self._deadlines.cancel(delay)

    # -- describing groups -------------------------------------------------------------------

    def changes(self, key: CoordinatorKey, value: CoordinatorValue | None) -> str | None:
        """The log line for group epochs."""
        if not isinstance(key, StreamsGroupMetadataKey):
            return None
        epoch = value.epoch if isinstance(value, StreamsGroupMetadataValue) else None
        return self._changes(key.group_id, epoch)

    def end(self, group_id: str) -> list[CoordinatorRecord]:
        """The tombstones of a group without members."""
        return streams_group_tombstones(group_id)

    def _check_member(
        self, group_id: str, committer: OffsetCommitter, version: int | None
    ) -> ErrorCode:
        topics = self._topics().topics_by_id
        named = [
            (topics[topic_id].name, partition)
            for topic_id, partition in committer.partitions
            if topic_id in topics
        ]
        group = self.groups[group_id]
        return group.check_commit(committer.member_id, committer.epoch, version, named)

    def filter_names(self, state: str) -> tuple[str, ...]:
        """The names of a state: Kafka's filter has another name for one of them."""
        alias = _FILTER_ALIASES.get(state)
        return (state.lower(),) if alias is None else (state.lower(), alias)

    def describe(self, group_id: str) -> DescribedStreamsGroup:
        """The group and its members."""
        return described_streams(self.groups[group_id])

    def describe_missing(self, group_id: str, message: str, version: int) -> DescribedStreamsGroup:
        """The description with an error."""
        refusal = StreamsGroupDescribeResponse.DescribedGroup(
            group_id=group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=message
        )
        return refusal, iter(())
