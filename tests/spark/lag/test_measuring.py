"""How far queries are behind."""

from __future__ import annotations

import pytest

from kbroker.model import TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.errors import ErrorCode
from spark_jobs.cluster import TopicFacts
from spark_jobs.lag.measuring import measure, unread, waiting_since_ms
from spark_jobs.lag.queries import Position
from spark_jobs.lag.report import PartitionLag
from tests.spark.lag.group_cluster import GroupCluster

NOW_MS = 1_700_000_100_000
T0 = TopicPartition("t", 0)


def append(cluster: GroupCluster, topic: str, partition: int, *ages_s: int) -> None:
    """A batch of records that are so old."""
    records = [(NOW_MS - age * 1000, None, b"v", ()) for age in ages_s]
    batch = build_batch(records, compression=Compression.GZIP)
    code, _ = cluster.log(topic, partition).append(bytes(batch), 1_000_000)
    assert code is ErrorCode.NONE


@pytest.fixture
def cluster() -> GroupCluster:
    made = GroupCluster(t=2, u=1)
    append(made, "t", 0, 50, 40, 30)
    append(made, "t", 0, 20, 10)
    append(made, "t", 1, 5)
    return made


def query(**topics: dict[int, int]) -> Position:
    return Position("checkpoint", "/cp", topics, "id", 3)


def test_partitions_that_are_read_and_that_are_not() -> None:
    facts = TopicFacts("", {0: 2, 1: 2, 2: 2}, {0: 9, 1: 9, 2: 9})
    found = [
        (each.next_offset, each.offset, each.end) for each in unread("t", {0: 5, 1: 12}, facts)
    ]
    assert found == [(5, 5, 9), (12, 12, 12), (None, 2, 9)]


def test_lag_and_the_age_of_the_first_record_that_waits(cluster: GroupCluster) -> None:
    (found,) = measure(cluster.client(), [query(t={0: 1}, u={0: 0})], NOW_MS)
    assert found.partitions == (
        PartitionLag("t", 0, 1, 5, 4, 40.0),
        PartitionLag("t", 1, None, 1, 1, 5.0),
        PartitionLag("u", 0, 0, 0, 0, 0.0),
    )
    assert (found.lag, found.seconds_behind, found.notes) == (5, 40.0, ())
    assert (found.kind, found.name, found.query_id, found.batch_id) == (
        "checkpoint",
        "/cp",
        "id",
        3,
    )


def test_a_query_and_its_group_are_looked_at_once(cluster: GroupCluster) -> None:
    group = Position("group", "g", {"t": {0: 1, 1: 1}})
    found = measure(cluster.client(), [query(t={0: 1, 1: 1}), group], NOW_MS)
    assert [(each.lag, each.seconds_behind) for each in found] == [(4, 40.0), (4, 40.0)]
    assert cluster.requests.count(ApiKey.FETCH) == 1


@pytest.mark.parametrize(("offset", "age_s"), [(0, 50), (2, 30), (3, 20), (4, 10), (5, None)])
def test_the_first_record_at_an_offset(
    cluster: GroupCluster, offset: int, age_s: int | None
) -> None:
    since_ms = waiting_since_ms(cluster.client(), T0, offset)
    assert since_ms == (None if age_s is None else NOW_MS - age_s * 1000)


def test_a_record_that_cannot_be_read(cluster: GroupCluster) -> None:
    cluster.fail(ApiKey.FETCH, ErrorCode.OFFSET_OUT_OF_RANGE)
    assert waiting_since_ms(cluster.client(), T0, 0) is None


def test_a_clock_that_is_behind(cluster: GroupCluster) -> None:
    (found,) = measure(cluster.client(), [query(t={0: 4, 1: 1})], NOW_MS - 60_000)
    assert found.seconds_behind == 0.0


def test_what_is_wrong_with_the_topics_is_noted(cluster: GroupCluster) -> None:
    cluster.set_starts("t", 2, 0)
    positions = [
        query(t={0: 1, 1: 1}),
        query(gone={0: 5}),
        query(u={0: 7}),
        Position("group", "g", {}),
        Position("checkpoint", "/new", {}, batch_id=-1),
        Position("checkpoint", "/files", {}, batch_id=41),
        Position("checkpoint", "/cp", {"u": {0: 0}}, known={"u": TopicFacts("ff", {}, {})}),
    ]
    found = measure(cluster.client(), positions, NOW_MS)
    assert [each.notes for each in found[:6]] == [
        ("topic t was truncated: 1 offset was deleted unread",),
        ("topic gone does not exist any more",),
        (
            "partition 0 of topic u ends at offset 0, before 7, the next offset to read: the topic "
            "was created again or lost its end",
        ),
        ("the group has committed no offsets",),
        ("no batch is committed yet",),
        ("its newest batch has no offsets of Kafka: its sources are others, or read no topic yet",),
    ]
    assert [each.lag for each in found] == [4, None, 0, None, None, None, 0]
    assert (found[0].lag, found[0].seconds_behind) == (4, 30.0)
    assert (found[2].lag, found[2].partitions[0].offset) == (0, 7)
