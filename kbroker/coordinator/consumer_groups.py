"""The consumer groups (KIP-848) of one partition of `__consumer_offsets`: their map, their
sessions, and what tools are shown. Part of `group_shard`.

A member is given up when it was silent for the session timeout, or when it did not give back what
it was told to within its rebalance timeout. Both clocks start anew when the log is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from random import Random
from typing import Final

from kbroker.coordinator.assignors import Assignment
from kbroker.coordinator.consumer_group import ConsumerGroup, Topic
from kbroker.coordinator.consumer_membership import (
    ClusterTopics,
    ConsumerSettings,
    Decision,
    GroupOverrides,
    Surroundings,
    assignor_name,
    heartbeat,
    leave,
    removal,
)
from kbroker.coordinator.consumer_records import ConsumerGroupKey
from kbroker.coordinator.deadlines import Deadline, Deadlines
from kbroker.coordinator.effects import Append, Effect
from kbroker.coordinator.reconciliation import CurrentAssignment
from kbroker.model import Uuid, random_uuid, uuid_to_string
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
)
from kbroker.protocol.messages.group_records import ConsumerGroupMetadataKey
from kbroker.protocol.messages.groups import ListGroupsResponse
from kbroker.protocol.schema import CoordinatorValue

CONSUMER_TYPE: Final = "consumer"
CONSUMER_MEMBER: Final = 1
"""The kind of a member that speaks the consumer protocol, in ConsumerGroupDescribe."""
RETRY_MS: Final = 1_000
"""When the end of a member could not be written, it is tried again after this."""

_Described = ConsumerGroupDescribeResponse.DescribedGroup
_Places = ConsumerGroupDescribeResponse.TopicPartitions


class ConsumerGroups:
    """Groups by id. topics: the cluster's, as of now. wall_ms: the wall clock."""

    __slots__ = (
        "_deadlines",
        "_overrides",
        "_random",
        "_rebalances",
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
    ) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        self._settings = settings
        self._overrides = overrides
        self._topics = topics
        self._deadlines = deadlines
        self._random = random
        self._wall_ms = wall_ms
        self._sessions: dict[tuple[str, str], Deadline] = {}
        self._rebalances: dict[tuple[str, str], tuple[int, Deadline]] = {}
        """Of members that have something to give back: the epoch they are to leave, until when."""

    # -- replay ------------------------------------------------------------------------------

    def replay(self, key: ConsumerGroupKey, value: CoordinatorValue | None) -> None:
        """Apply a record that is in the log."""
        group = self.groups.get(key.group_id)
        if isinstance(key, ConsumerGroupMetadataKey) and value is None:
            if group is not None:
                del self.groups[key.group_id]
                for member_id in group.members:
                    self._forget(key.group_id, member_id)
            return
        if group is None:
            if value is None:
                return
            group = self.groups[key.group_id] = ConsumerGroup(key.group_id)
        group.replay(key, value)

    def on_loaded(self, now_ms: int) -> None:
        """All records were replayed: sessions begin."""
        for group_id, group in self.groups.items():
            for member_id in group.members:
                self._renew(group_id, member_id, now_ms)
                self._watch_rebalance(group, member_id, now_ms)

    def unload(self) -> None:
        """This broker no longer coordinates these groups."""
        for deadline in self._sessions.values():
            self._deadlines.cancel(deadline)
        for _, deadline in self._rebalances.values():
            self._deadlines.cancel(deadline)
        self._sessions.clear()
        self._rebalances.clear()
        self.groups = {}

    # -- requests ----------------------------------------------------------------------------

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client_id: str, client_host: str
    ) -> Decision:
        """ConsumerGroupHeartbeat, checked by `check_heartbeat`. Raises KafkaError."""
        settings, group_id = self._settings, request.group_id
        around = Surroundings(
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
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_epoch != 0:
                message = f"There is no consumer group {request.group_id}."
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)
            group = ConsumerGroup(request.group_id)
        if request.member_epoch < 0:
            return leave(group, request, around)
        return heartbeat(group, request, around)

    def settled(self, group_id: str, member_id: str, topics: ClusterTopics, now_ms: int) -> None:
        """The decision on a heartbeat, made upon these topics, is in the log."""
        group = self.groups.get(group_id)
        if group is None or member_id not in group.members:
            return
        group.seen_topics = topics.topics
        self._renew(group_id, member_id, now_ms)
        self._watch_rebalance(group, member_id, now_ms)

    def _own_or(self, default: int, group_id: str, name: str) -> int:
        own = self._overrides.get_int(group_id, name)
        return default if own is None else own

    # -- sessions ----------------------------------------------------------------------------

    def _renew(self, group_id: str, member_id: str, now_ms: int) -> None:
        session = self._sessions.get((group_id, member_id))
        if session is None:
            session = Deadline(partial(self._on_session_over, group_id, member_id))
            self._sessions[(group_id, member_id)] = session
        timeout_ms = self._own_or(
            self._settings.group_consumer_session_timeout_ms,
            group_id,
            "consumer.session.timeout.ms",
        )
        self._deadlines.set(session, now_ms + timeout_ms)

    def _watch_rebalance(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        key = (group.group_id, member_id)
        watched = self._rebalances.get(key)
        epoch = group.current(member_id).member_epoch
        if group.is_unrevoked(member_id):
            if watched is not None and watched[0] == epoch:
                return
            deadline = watched[1] if watched else Deadline(partial(self._on_rebalance_over, *key))
            self._rebalances[key] = (epoch, deadline)
            timeout_ms = group.members[member_id].rebalance_timeout_ms
            self._deadlines.set(deadline, now_ms + max(timeout_ms, 0))
        elif watched is not None:
            self._deadlines.cancel(watched[1])
            del self._rebalances[key]

    def _forget(self, group_id: str, member_id: str) -> None:
        session = self._sessions.pop((group_id, member_id), None)
        if session is not None:
            self._deadlines.cancel(session)
        watched = self._rebalances.pop((group_id, member_id), None)
        if watched is not None:
            self._deadlines.cancel(watched[1])

    def _on_session_over(self, group_id: str, member_id: str, now_ms: int) -> list[Effect]:
        return self._give_up(group_id, member_id)

    def _on_rebalance_over(self, group_id: str, member_id: str, now_ms: int) -> list[Effect]:
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
                self._deadlines.set(self._sessions[(group_id, member_id)], now_ms + RETRY_MS)
            return []

        return [Append(removal(group, member_id, self._topics()), then)]

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

    def describe(self, group: ConsumerGroup) -> _Described:
        """Everything about one group."""
        topics = self._topics().topics_by_id
        return _Described(
            group_id=group.group_id,
            group_state=group.state(),
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=assignor_name(group.members, self._settings),
            members=[
                ConsumerGroupDescribeResponse.Member(
                    member_id=member_id,
                    instance_id=metadata.instance_id,
                    rack_id=metadata.rack_id,
                    member_epoch=group.current(member_id).member_epoch,
                    client_id=metadata.client_id,
                    client_host=metadata.client_host,
                    subscribed_topic_names=metadata.subscribed_topic_names,
                    subscribed_topic_regex=metadata.subscribed_topic_regex,
                    assignment=_described(_held(group.current(member_id)), topics),
                    target_assignment=_described(group.targets.get(member_id, {}), topics),
                    member_type=CONSUMER_MEMBER,
                )
                for member_id, metadata in group.members.items()
            ],
        )


def _held(current: CurrentAssignment) -> Assignment:
    """All that a member has, also what it is about to give back."""
    held: dict[Uuid, frozenset[int]] = {}
    for owned in (current.assigned, current.revoking):
        for topic_id, partitions in owned.items():
            held[topic_id] = held.get(topic_id, frozenset()) | frozenset(partitions)
    return held


def _described(
    assignment: Assignment, topics: Mapping[Uuid, Topic]
) -> ConsumerGroupDescribeResponse.Assignment:
    return ConsumerGroupDescribeResponse.Assignment(
        topic_partitions=[
            _Places(topic_id=topic_id, topic_name=topic.name, partitions=sorted(partitions))
            for topic_id, partitions in assignment.items()
            if (topic := topics.get(topic_id)) is not None
        ]
    )
