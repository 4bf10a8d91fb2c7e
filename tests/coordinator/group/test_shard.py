"""The shard delegates to the kind of a group: which records, ids and requests are whose."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.coordinator.group.kind import GroupType
from kbroker.coordinator.group.records import offset_commit_record
from kbroker.coordinator.group.service import GROUP_TOPIC
from kbroker.coordinator.group.shard import GroupShard
from kbroker.coordinator.group.share.records import (
    StatePartitions,
    share_group_record,
    state_partitions_record,
)
from kbroker.model import TopicPartition
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.stored.group_records import OffsetCommitValue
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from kbroker.settings.views.log_config import LogConfig
from tests.coordinator.group.consumers import Consumer
from tests.coordinator.group.members import ClientMember
from tests.coordinator.group.streams_members import StreamsThread
from tests.coordinator.simulation import World

DAY_MS = 86_400_000


def one_of_each(world: World) -> GroupShard:
    """A classic group "k", a consumer group "c" and a streams group "s"."""
    ClientMember(world, "k", group="k").poll()
    Consumer(world, "c", group_id="c").poll()
    world.topics.add("input", 2)
    StreamsThread(world, "s", group_id="s").poll()
    world.timers.advance(10)
    return world.shard()


def test_each_record_type_has_one_kind() -> None:
    shard = World().shard()
    keys = [key for kind in shard.kinds for key in kind.replays]
    assert len(keys) == len(set(keys))
    assert {kind.group_type for kind in shard.kinds} == set(GroupType)


def test_an_id_belongs_to_one_kind() -> None:
    shard = one_of_each(World())
    for group_id, group_type in (
        ("k", GroupType.CLASSIC),
        ("c", GroupType.CONSUMER),
        ("s", GroupType.STREAMS),
    ):
        kind = shard.kind_of(group_id)
        assert kind is not None
        assert kind.group_type is group_type
        assert [group_id in other for other in shard.kinds].count(True) == 1
        assert not kind.is_idle(group_id)
    assert shard.kind_of("unknown") is None


@pytest.mark.parametrize("group_id", ["k", "c", "s"])
def test_a_group_with_members_does_not_give_way(group_id: str) -> None:
    shard = one_of_each(World())
    for kind in shard.kinds:
        if group_id in kind:
            assert shard.take_over(kind, group_id, 0) == []
            continue
        with pytest.raises(KafkaError) as caught:
            shard.take_over(kind, group_id, 0)
        assert caught.value.code is ErrorCode.GROUP_ID_NOT_FOUND
        assert caught.value.message == f"Group {group_id} is not a {kind.group_type.value} group."


def test_offsets_without_a_group_belong_to_a_classic_one_that_gives_way_without_a_record() -> None:
    shard = World().shard()
    shard.replay(offset_commit_record("o", "events", 0, OffsetCommitValue(offset=1)))
    assert shard.kind_of("o") is shard.classic
    assert shard.take_over(shard.consumer, "o", 0) == []
    assert shard.take_over(shard.streams, "o", 0) == []
    for kind, epoch in ((shard.share, 0), (shard.consumer, 3)):
        with pytest.raises(KafkaError):
            shard.take_over(kind, "o", epoch)


def test_a_group_is_described_by_its_kind_only() -> None:
    shard = one_of_each(World())
    for kind in shard.kinds:
        for group_id in ("k", "c", "s", "unknown"):
            described: Any = shard.describe(kind, group_id, 6)
            group, members = described
            assert group.group_id == group_id
            if group_id in kind:
                assert group.error_code == ErrorCode.NONE
                assert len(list(members)) == 1
            else:
                assert group.error_code == ErrorCode.GROUP_ID_NOT_FOUND
                assert list(members) == []


def test_clients_of_the_classic_protocol_are_refused_by_kinds_without_such_members() -> None:
    world = World()
    one_of_each(world)
    member = ClientMember(world, "late", group="s")
    member.poll()
    assert member.errors[-1] is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def largest_batch(world: World) -> int:
    """In bytes."""
    return max(map(len, world.log.batches[TopicPartition(GROUP_TOPIC, 0)]))


def test_expired_offsets_of_long_group_ids_are_deleted_in_batches_that_are_small_enough() -> None:
    world = World()
    for number in range(60):
        value = OffsetCommitValue(offset=1, commit_timestamp=world.timers.now_ms())
        world.shard().replay(offset_commit_record(f"{number:032000d}", "events", 0, value))
    world.timers.wall_jump_ms += 8 * DAY_MS
    world.timers.advance(GroupCoordinatorConfig().offsets_retention_check_interval_ms + 10)
    assert list(world.shard().offsets.walk()) == []
    assert largest_batch(world) < LogConfig().max_message_bytes


def test_states_of_deleted_topics_are_removed_in_batches_that_are_small_enough() -> None:
    """Each group has one record, of the states of all its topics."""
    world = World()
    shard = world.shard()
    events, other = (world.topics.topics[name].topic_id for name in ("events", "other"))
    states = StatePartitions(initialized={events: frozenset({0}), other: frozenset(range(10_000))})
    for number in range(40):
        shard.replay(share_group_record(f"g{number}", 1, 0))
        shard.replay(state_partitions_record(f"g{number}", states))
    world.coordinator.on_topics_deleted([world.topics.remove("events")])
    world.timers.advance(0)
    left = [shard.share.groups[f"g{number}"].states.initialized for number in range(40)]
    assert all(topics.keys() == {other} for topics in left)
    assert largest_batch(world) < LogConfig().max_message_bytes
