"""The offsets of deleted topics: how many of them a turn of the loop deletes, and which."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kbroker.coordinator.group.records import offset_commit_record
from kbroker.coordinator.group.service import GROUP_TOPIC
from kbroker.coordinator.runtime.records import encode_batch
from kbroker.model import TopicPartition
from kbroker.protocol.messages.stored.group_records import OffsetCommitValue
from kbroker.settings.views.log_config import LogConfig
from tests.coordinator.simulation import World

GROUPS, MOST_PER_TURN = 300, 1_000


def world_of_many_offsets(*, partition_count: int = 1) -> World:
    """Each group has 12 offsets of the topic that is deleted, one of them pending, and another."""
    world = World(partition_count=partition_count)
    value = OffsetCommitValue(offset=1, topic_id=world.topics.topics["events"].topic_id)
    for number in range(GROUPS):
        group_id = f"g{number}"
        shard = world.shard(world.coordinator.partition_for(group_id))
        for partition in range(11):
            shard.replay(offset_commit_record(group_id, "events", partition, value))
        pending = offset_commit_record(group_id, "events", 11, value)
        shard.replay_transactional(7, pending)
        other = OffsetCommitValue(offset=1, topic_id=world.topics.topics["other"].topic_id)
        shard.replay(offset_commit_record(group_id, "other", 0, other))
    return world


def offsets_left(world: World, topic: str) -> int:
    """How many offsets of a topic there are, committed or pending."""
    left = 0
    for host in world.coordinator.runtime.hosts():
        offsets = host.shard.offsets
        left += sum(name == topic for _, name, _, _ in offsets.walk())
        for group_id in offsets.pending.groups:
            left += sum(name == topic for name, _ in offsets.pending.in_group(group_id))
    return left


@pytest.mark.parametrize("partition_count", [1, 5])
def test_the_offsets_of_a_deleted_topic_are_deleted_in_turns(partition_count: int) -> None:
    world = world_of_many_offsets(partition_count=partition_count)
    left = [offsets_left(world, "events")]
    world.coordinator.on_topics_deleted([world.topics.remove("events")])
    left.append(offsets_left(world, "events"))
    while world.timers.run_next(world.timers.monotonic_ms()):
        left.append(offsets_left(world, "events"))
    assert (left[0], left[-1]) == (12 * GROUPS, 0)
    assert max(before - after for before, after in pairwise(left)) <= MOST_PER_TURN
    assert offsets_left(world, "other") == GROUPS


def test_a_topic_that_is_created_again_keeps_the_offsets_committed_meanwhile() -> None:
    world = world_of_many_offsets()
    world.coordinator.on_topics_deleted([world.topics.remove("events")])
    again = OffsetCommitValue(offset=2, topic_id=world.topics.add("events", 12).topic_id)
    for number in range(GROUPS):
        world.shard().replay(offset_commit_record(f"g{number}", "events", 5, again))
    world.timers.advance(0)
    assert offsets_left(world, "events") == GROUPS


def test_offsets_are_deleted_by_a_shard_that_is_loaded_again_meanwhile() -> None:
    world = World()
    value = OffsetCommitValue(offset=1, topic_id=world.topics.topics["events"].topic_id)
    topic_partition = TopicPartition(GROUP_TOPIC, 0)
    for number in range(3 * MOST_PER_TURN):
        record = offset_commit_record(f"g{number}", "events", 0, value)
        world.log.append(topic_partition, encode_batch([record], world.timers.now_ms()))
    world.resign()
    world.lead()
    assert offsets_left(world, "events") == 3 * MOST_PER_TURN
    world.coordinator.on_topics_deleted([world.topics.remove("events")])
    assert offsets_left(world, "events") > 0
    world.resign()
    world.lead()
    assert offsets_left(world, "events") == 0
    assert list(world.replayed().offsets.walk()) == []


def test_a_coordinator_that_is_closed_deletes_no_more_offsets() -> None:
    world = world_of_many_offsets()
    world.coordinator.on_topics_deleted([world.topics.remove("events")])
    batches = world.log_length()
    world.coordinator.close()
    world.timers.advance(10)
    assert world.log_length() == batches


def test_the_tombstones_of_long_group_ids_are_written_in_batches_that_are_small_enough() -> None:
    world = World()
    value = OffsetCommitValue(offset=1, topic_id=world.topics.topics["events"].topic_id)
    for number in range(60):
        record = offset_commit_record(f"{number:032000d}", "events", 0, value)
        world.shard().replay(record)
    world.coordinator.on_topics_deleted([world.topics.remove("events")])
    world.timers.advance(0)
    assert offsets_left(world, "events") == 0
    sizes = [len(batch) for batch in world.log.batches[TopicPartition(GROUP_TOPIC, 0)]]
    assert len(sizes) > 1
    assert max(sizes) < LogConfig().max_message_bytes
