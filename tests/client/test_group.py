"""A member of a group: range assignment, joining, rebalance, commits, leaving."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.client import cluster
from kbroker.client.cluster import Client
from kbroker.client.group import (
    GroupConfig,
    GroupConsumer,
    assign_range,
    decode_versioned,
)
from kbroker.client.producer import Producer
from kbroker.model import TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.consumer_protocol import ConsumerProtocolSubscription
from kbroker.protocol.messages.coordinators.groups import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupResponse,
)
from kbroker.protocol.messages.coordinators.offsets import OffsetCommitResponse, OffsetFetchResponse

Run = Callable[[Callable[[Any], Any]], None]
CONFIG = GroupConfig(auto_offset_reset="earliest", heartbeat_interval_ms=5)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "FIRST_BACKOFF_S", 0.0)
    monkeypatch.setattr(cluster, "MAX_BACKOFF_S", 0.0)


@pytest.mark.parametrize(
    ("members", "partition_count", "expected"),
    [
        ("a", 3, {"a": [0, 1, 2]}),
        ("ab", 3, {"a": [0, 1], "b": [2]}),
        ("abc", 2, {"a": [0], "b": [1], "c": []}),
        ("ba", 4, {"a": [0, 1], "b": [2, 3]}),
        ("ab", 0, {"a": [], "b": []}),
    ],
)
def test_range_assignment(
    members: str, partition_count: int, expected: dict[str, list[int]]
) -> None:
    found = assign_range({member: ["t"] for member in members}, {"t": partition_count})
    assert {member: [tp.partition for tp in mine] for member, mine in found.items()} == expected


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.sets(st.sampled_from("xyz"))),
    st.dictionaries(st.sampled_from("xyz"), st.integers(0, 9)),
)
def test_every_partition_has_one_owner_who_wants_it(
    subscriptions: dict[str, set[str]], counts: dict[str, int]
) -> None:
    wanted = {member: sorted(topics) for member, topics in subscriptions.items()}
    found = assign_range(wanted, counts)
    given_out = [(tp, member) for member, mine in found.items() for tp in mine]
    subscribed = {topic for topics in wanted.values() for topic in topics}
    expected = {
        TopicPartition(topic, index)
        for topic, count in counts.items()
        if topic in subscribed
        for index in range(count)
    }
    assert sorted(tp for tp, _ in given_out) == sorted(expected)
    assert all(tp.topic in wanted[member] for tp, member in given_out)


def test_a_subscription_that_is_none() -> None:
    with pytest.raises(KafkaError) as caught:
        decode_versioned(ConsumerProtocolSubscription, b"\0\0\x7f\xff\xff\xff")
    assert caught.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


class Coordinator:
    """One group with one member, which is therefore its leader; kept in memory."""

    def __init__(self, broker: Any) -> None:
        self.generation = 0
        self.committed: dict[int, int] = {}
        self.subscription = b""
        broker.on_join_group = self.join
        broker.on_sync_group = self.sync
        broker.on_heartbeat = lambda request, version: HeartbeatResponse()
        broker.on_leave_group = lambda request, version: LeaveGroupResponse()
        broker.on_offset_commit = self.commit
        broker.on_offset_fetch = self.fetch

    def join(self, request: Any, version: int) -> JoinGroupResponse:
        if not request.member_id:
            return JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="me")
        self.generation += 1
        member = JoinGroupResponse.JoinGroupResponseMember(
            member_id="me", metadata=request.protocols[0].metadata
        )
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_name="range",
            leader="me",
            member_id="me",
            members=[member],
        )

    def sync(self, request: Any, version: int) -> SyncGroupResponse:
        (mine,) = request.assignments
        return SyncGroupResponse(assignment=bytes(mine.assignment))

    def commit(self, request: Any, version: int) -> OffsetCommitResponse:
        (topic,) = request.topics
        for partition in topic.partitions:
            self.committed[partition.partition_index] = partition.committed_offset
        partitions = [
            OffsetCommitResponse.OffsetCommitResponsePartition(partition_index=index)
            for index in self.committed
        ]
        answered = OffsetCommitResponse.OffsetCommitResponseTopic(
            name=topic.name, partitions=partitions
        )
        return OffsetCommitResponse(topics=[answered])

    def fetch(self, request: Any, version: int) -> OffsetFetchResponse:
        (group,) = request.groups
        (topic,) = group.topics
        partitions = [
            OffsetFetchResponse.OffsetFetchResponsePartitions(
                partition_index=index, committed_offset=self.committed.get(index, -1)
            )
            for index in topic.partition_indexes
        ]
        answered = OffsetFetchResponse.OffsetFetchResponseTopics(
            name=topic.name, partitions=partitions
        )
        groups = [OffsetFetchResponse.OffsetFetchResponseGroup(group_id="g", topics=[answered])]
        return OffsetFetchResponse(groups=groups)


async def fill(client: Client, count: int) -> None:
    async with Producer(client) as producer:
        for index in range(count):
            await producer.send("events", b"%d" % index, partition=index % 2)


def test_a_group_goes_on_where_it_stopped(run: Run) -> None:
    async def test(broker: Any) -> None:
        coordinator = Coordinator(broker)
        async with Client(broker.address) as client:
            await fill(client, 10)
            async with GroupConsumer(client, "g", ["events"], CONFIG) as member:
                assert len(await member.poll()) == 10
                assert [tp.partition for tp in member.assignment] == [0, 1]
            assert coordinator.committed == {0: 5, 1: 5}
            assert len(broker.asked(ApiKey.LEAVE_GROUP)) == 1
            await fill(client, 2)
            async with GroupConsumer(client, "g", ["events"], CONFIG) as member:
                assert len(await member.poll()) == 2

    run(test)


def test_a_rebalance_is_joined(run: Run) -> None:
    async def test(broker: Any) -> None:
        coordinator = Coordinator(broker)
        async with Client(broker.address) as client:
            await fill(client, 4)
            async with GroupConsumer(client, "g", ["events"], CONFIG) as member:
                assert len(await member.poll()) == 4
                broker.script(
                    ApiKey.HEARTBEAT,
                    HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS),
                )
                while member._stable:
                    await member.poll()
                assert await member.poll() == []  # nothing twice: it committed before it joined
                assert coordinator.generation == member.generation_id == 2

    run(test)


def test_a_member_that_joins_its_generation_again_reads_from_the_committed_offsets(
    run: Run,
) -> None:
    """A coordinator answers a member that joins a stable group, unchanged, with the generation that
    there is.
    """

    async def test(broker: Any) -> None:
        coordinator = Coordinator(broker)
        config = replace(CONFIG, auto_commit=False)
        async with Client(broker.address) as client:
            await fill(client, 4)
            async with GroupConsumer(client, "g", ["events"], config) as member:
                assert len(await member.poll()) == 4
                assert member.join_count == 1
                coordinator.generation -= 1  # the next join gets the same
                code = ErrorCode.REBALANCE_IN_PROGRESS
                broker.script(ApiKey.HEARTBEAT, HeartbeatResponse(error_code=code))
                while member._stable:
                    await member.poll()
                assert len(await member.poll()) == 4
                assert (member.generation_id, member.join_count) == (1, 2)

    run(test)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NOT_COORDINATOR])
def test_joining_is_repeated(run: Run, code: ErrorCode) -> None:
    async def test(broker: Any) -> None:
        coordinator = Coordinator(broker)
        broker.script(ApiKey.SYNC_GROUP, SyncGroupResponse(error_code=code))
        async with Client(broker.address) as client:
            async with GroupConsumer(client, "g", ["events"], CONFIG) as member:
                await member.poll()
                assert coordinator.generation == 2
            asked = len(broker.asked(ApiKey.FIND_COORDINATOR))
            assert asked == (2 if code is ErrorCode.NOT_COORDINATOR else 1)

    run(test)


def test_a_fenced_member_stops(run: Run) -> None:
    async def test(broker: Any) -> None:
        Coordinator(broker)
        fenced = HeartbeatResponse(error_code=ErrorCode.FENCED_INSTANCE_ID)
        async with (
            Client(broker.address) as client,
            GroupConsumer(client, "g", ["events"], CONFIG) as member,
        ):
            await member.poll()
            broker.script(ApiKey.HEARTBEAT, fenced)
            with pytest.raises(KafkaError) as caught:
                while True:
                    await member.poll()
            assert caught.value.code is ErrorCode.FENCED_INSTANCE_ID

    run(test)


def test_commits_by_hand(run: Run) -> None:
    async def test(broker: Any) -> None:
        coordinator = Coordinator(broker)
        config = GroupConfig(auto_offset_reset="earliest", auto_commit=False)
        async with Client(broker.address) as client:
            await fill(client, 4)
            async with GroupConsumer(client, "g", ["events"], config) as member:
                await member.poll()
                assert coordinator.committed == {}
                await member.commit({TopicPartition("events", 0): 1})
            assert coordinator.committed == {0: 1}

    run(test)
