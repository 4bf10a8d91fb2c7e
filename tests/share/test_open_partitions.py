"""The indexes of open share partitions, and what a group can read of one of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from kbroker.model import TopicPartition
from kbroker.protocol.share_partition_state import SharePlace
from kbroker.replication.partition import Partition
from kbroker.share.acquisition import AcquireLimits
from kbroker.share.open_partitions import OpenSharePartition, OpenSharePartitions
from kbroker.share.partition import SharePartition

TOPIC_ID = bytes(15) + b"t"
MAX_LOCKS = 10


def opened(group_id: str = "g", index: int = 0) -> OpenSharePartition:
    replica = SimpleNamespace(
        topic_partition=TopicPartition("t", index),
        leader_epoch=0,
        high_watermark=8,
        last_stable_offset=5,
        log=SimpleNamespace(log_start_offset=0),
    )
    key = SharePlace(group_id, (TOPIC_ID, index))
    return OpenSharePartition(key, cast(Partition, replica), SharePartition(0), state_epoch=0)


def acquire(found: OpenSharePartition, last: int) -> None:
    limits = AcquireLimits(
        max_records=100,
        batch_size=100,
        is_strict=False,
        max_locks=MAX_LOCKS,
        delivery_limit=5,
        lock_ms=1_000,
    )
    assert found.core.acquire("m", [(0, last)], limits, 0)


def test_share_partitions_are_found_by_group_and_by_partition() -> None:
    table = OpenSharePartitions()
    entries = {(group, index): opened(group, index) for group in ("g", "h") for index in range(3)}
    for found in entries.values():
        table.add(found)
    assert table.values() == list(entries.values())
    assert table.of_group("h") == [entries["h", index] for index in range(3)]
    assert table.of_partition(TopicPartition("t", 1)) == [entries["g", 1], entries["h", 1]]
    assert table.get(entries["g", 2].key) is entries["g", 2]
    table.remove(entries["g", 1])
    assert table.get(entries["g", 1].key) is None
    assert table.of_partition(TopicPartition("t", 1)) == [entries["h", 1]]
    assert table.of_group("g") == [entries["g", 0], entries["g", 2]]
    for found in entries.values():
        table.remove(found)
    assert not table.values()
    assert not table._by_group and not table._by_partition, "no empty entry is left"


def test_an_entry_is_not_removed_by_its_predecessor() -> None:
    table = OpenSharePartitions()
    former, present = opened(), opened()
    table.add(former)
    table.remove(former)
    table.add(present)
    table.remove(former)
    assert table.values() == table.of_group("g") == [present]


@pytest.mark.parametrize(("reads_committed", "end"), [(False, 8), (True, 5)])
def test_a_group_reads_to_the_high_watermark_or_the_last_stable_offset(
    reads_committed: bool, end: int
) -> None:
    found = opened()
    found.reads_committed = reads_committed
    assert found.upper_offset == end
    assert found.readable_offset(MAX_LOCKS) == 0
    acquire(found, end - 2)
    assert found.readable_offset(MAX_LOCKS) == end - 1
    assert found.readable_offset(end - 1) is None, "the maximum number of records is in flight"
    acquire(found, end - 1)
    assert found.readable_offset(MAX_LOCKS) is None


def test_records_that_the_log_does_not_have_any_more_are_not_in_flight() -> None:
    found = opened()
    acquire(found, 3)
    assert found.readable_offset(4) is None
    cast(SimpleNamespace, found.replica.log).log_start_offset = 2
    assert found.readable_offset(4) == 4
