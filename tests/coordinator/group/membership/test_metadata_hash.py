"""A group's hash of its topics beside Kafka 4.3.1's: what its `Utils` computes, and what stands in
logs that it wrote.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kbroker.coordinator.group.membership.metadata_hash import NO_TOPICS, metadata_hash
from kbroker.coordinator.group.records import decode_record
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.topics import PartitionRacks
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.messages.stored.share_group_records import (
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataValue,
)
from tests.coordinator.simulation import FakeTopic

DATA = Path(__file__).parents[3] / "data"
A = ("a", -5, 77, 0, ())
BIG = ("big", 9, 9, 500, ("eu-1",))
EVENTS = ("events", 1, 2, 1, ())
ORDERS = ("orders-\u00e9\u4e2d\U0001f600", 123456789, -987654321, 12, ("rack-b", "rack-a"))
"""(name, both halves of the id, partitions, racks of each of them)."""
Described = tuple[str, int, int, int, tuple[str, ...]]


class Topics:
    def __init__(self, *described: Described) -> None:
        self.topics: dict[str, FakeTopic] = {}
        self.racks: dict[str, PartitionRacks] = {}
        for name, high, low, count, racks in described:
            topic_id = struct.pack(">qq", high, low)
            self.topics[name] = FakeTopic(name, topic_id, dict.fromkeys(range(count)))
            self.racks[name] = (racks,) * count if racks else ()

    def partition_racks(self, name: str) -> PartitionRacks:
        return self.racks[name]


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ([EVENTS], -1525824294112783968),
        ([A, EVENTS], -3041466500065533020),
        ([EVENTS, ORDERS, A], -5316270047550245643),
        ([BIG, A, EVENTS, ORDERS], 8488799974429290055),
    ],
)
def test_as_kafkas_utils_computes_it(described: list[Described], expected: int) -> None:
    topics = Topics(*described)
    assert metadata_hash([*topics.topics, "no such topic"], topics) == expected


def test_no_topics() -> None:
    assert metadata_hash(["no such topic"], Topics(EVENTS)) == NO_TOPICS
    assert metadata_hash([], Topics(EVENTS)) == NO_TOPICS


def stored(path: Path) -> list[CoordinatorRecord]:
    data = path.read_bytes()
    decoded = [
        decode_record(record.key, record.value)
        for position, header in iter_batches(data)
        if not header.is_control
        for record in iter_records(data[position:], header)
    ]
    return [record for record in decoded if record is not None]


@pytest.mark.parametrize(
    "name", ["coordinator/consumer_offsets.log", "reference/share-offsets.log"]
)
def test_as_it_stands_in_kafkas_log(name: str) -> None:
    """Share groups say in the log which partitions of which topic they have, so it can be computed
    again.
    """
    values = [record.value for record in stored(DATA / name)]
    written = {v.metadata_hash for v in values if isinstance(v, ShareGroupMetadataValue)}
    states = [v for v in values if isinstance(v, ShareGroupStatePartitionMetadataValue)]
    (topic,) = next(state.initialized_topics for state in states if state.initialized_topics)
    high, low = struct.unpack(">qq", topic.topic_id)
    topics = Topics((topic.topic_name, high, low, len(topic.partitions), ()))
    assert written == {metadata_hash([topic.topic_name], topics), NO_TOPICS}
