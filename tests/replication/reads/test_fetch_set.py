"""The partitions that a Fetch request reads: added, changed, dropped, closed."""

from __future__ import annotations

import pytest

from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.replication.reads.fetch_set import (
    PARTITION_BYTES,
    STEP_ITEMS,
    FetchPartition,
    FetchSet,
    name_bytes,
)


def asked(topic: str, *partitions: tuple[int, int]) -> FetchRequest.FetchTopic:
    """partitions: (index, fetch offset)."""
    return FetchRequest.FetchTopic(
        topic=topic,
        partitions=[
            FetchRequest.FetchPartition(partition=index, fetch_offset=offset)
            for index, offset in partitions
        ],
    )


def dropped(topic: str, *indexes: int) -> FetchRequest.ForgottenTopic:
    return FetchRequest.ForgottenTopic(topic=topic, partitions=list(indexes))


@pytest.fixture
def fetch_set() -> FetchSet:
    return FetchSet()


def read_to_the_end(fetch_set: FetchSet) -> None:
    for partition in fetch_set:
        partition.dirty = False
    fetch_set.dirty.clear()


def named(partition: FetchPartition) -> tuple[object, int]:
    return partition.topic, partition.index


def test_the_last_mention_of_a_partition_counts(fetch_set: FetchSet) -> None:
    fetch_set.update([asked("a", (0, 5), (1, 0)), asked("a", (0, 7))], by_id=False)
    assert fetch_set.size == 2
    assert {named(each): each.fetch_offset for each in fetch_set} == {("a", 0): 7, ("a", 1): 0}


def test_a_changed_partition_is_read_again(fetch_set: FetchSet) -> None:
    fetch_set.update([asked("a", (0, 5), (1, 0))], by_id=False)
    read_to_the_end(fetch_set)
    fetch_set.update([asked("a", (1, 3))], by_id=False)
    assert [named(each) for each in fetch_set.dirty] == [("a", 1)]


def test_another_isolation_level_makes_every_partition_dirty(fetch_set: FetchSet) -> None:
    fetch_set.update([asked("a", (0, 5), (1, 0))], by_id=False)
    read_to_the_end(fetch_set)
    fetch_set.set_isolation(read_committed=False)
    assert not fetch_set.dirty
    fetch_set.set_isolation(read_committed=True)
    assert list(fetch_set.dirty) == list(fetch_set)


def test_dropped_partitions_give_their_memory_back(fetch_set: FetchSet) -> None:
    fetch_set.update([asked("a", (0, 5), (1, 0)), asked("b", (0, 0))], by_id=False)
    assert fetch_set.held_bytes == 3 * PARTITION_BYTES + name_bytes("a") + name_bytes("b")
    fetch_set.forget([dropped("a", 0, 1, 2), dropped("unknown", 0)], by_id=False)
    assert [named(each) for each in fetch_set] == [("b", 0)]
    assert fetch_set.held_bytes == PARTITION_BYTES + name_bytes("b")
    assert [named(each) for each in fetch_set.dirty] == [("b", 0)]


def test_a_large_set_is_closed_in_steps(fetch_set: FetchSet) -> None:
    fetch_set.update([asked("a", *((n, 0) for n in range(3 * STEP_ITEMS)))], by_id=False)
    steps = sum(1 for _ in fetch_set.close_in_steps())
    assert steps == 3
    assert fetch_set.closed
    assert not fetch_set.partitions
    assert not fetch_set.dirty
