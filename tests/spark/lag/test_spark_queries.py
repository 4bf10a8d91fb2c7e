"""`GroupOffsets` on queries of Spark: what their listeners tell, over restarts of a query."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_jobs.lag.group_offsets import GroupOffsets
from spark_jobs.wire.client import BlockingClient, ClusterAddress
from spark_jobs.wire.groups import committed_offsets
from tests.clients.adapters import ConfluentAdapter, Sent, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]

NewTopic = Callable[[int], str]


def fill(bootstrap: str, topic: str, count: int) -> None:
    sent = [Sent(None, b"v", (), 1_700_000_000_000, n % 2) for n in range(count)]
    ConfluentAdapter(bootstrap).produce(topic, sent, codec="none", idempotent=True)


def source(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "10",
    }
    return spark.readStream.format("kafka").options(**options).load()


def start(frame: DataFrame, checkpoint: Path, *, ends: bool) -> StreamingQuery:
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    if ends:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime="0 seconds").start()


@pytest.fixture
def committed(bootstrap: str) -> Iterator[Callable[[str], object]]:
    client = BlockingClient(ClusterAddress(bootstrap))
    yield partial(committed_offsets, client)
    client.close()


def test_a_query_over_its_restarts(
    spark: SparkSession,
    bootstrap: str,
    new_topic: NewTopic,
    tmp_path: Path,
    committed: Callable[[str], object],
) -> None:
    topic = new_topic(2)
    group = f"query-of-{topic}"
    fill(bootstrap, topic, 40)
    offsets = GroupOffsets(group, bootstrap)
    query = start(source(spark, bootstrap, topic), tmp_path / "cp", ends=False)
    try:
        offsets.follow(spark, query)
        wait_until(lambda: committed(group) == {topic: {0: 20, 1: 20}}, 60, "the first batches")
        fill(bootstrap, topic, 6)  # while it runs: only the listener tells of them
        wait_until(lambda: committed(group) == {topic: {0: 23, 1: 23}}, 60, "a later batch")
    finally:
        query.stop()
    fill(bootstrap, topic, 24)
    again = start(source(spark, bootstrap, topic), tmp_path / "cp", ends=True)
    offsets.follow(spark, again)
    again.awaitTermination()
    assert offsets.close()
    assert committed(group) == {topic: {0: 35, 1: 35}}

    repeated = start(source(spark, bootstrap, topic), tmp_path / "new", ends=False)
    with GroupOffsets(group, bootstrap) as later:
        later.follow(spark, repeated)
        repeated.stop()
    assert committed(group) == {topic: {0: 35, 1: 35}}


def test_a_query_of_two_topics_and_a_cluster_that_is_down(
    spark: SparkSession,
    bootstrap: str,
    new_topic: NewTopic,
    tmp_path: Path,
    committed: Callable[[str], object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = new_topic(2), new_topic(2)
    fill(bootstrap, first, 20)
    fill(bootstrap, second, 4)
    frame = source(spark, bootstrap, first).union(source(spark, bootstrap, second))
    query = start(frame, tmp_path / "cp", ends=True)
    down = GroupOffsets("down", "localhost:1").follow(spark, query)
    with GroupOffsets(f"both-{first}", bootstrap) as offsets:
        offsets.follow(spark, query)
        query.awaitTermination()
    assert committed(f"both-{first}") == {first: {0: 10, 1: 10}, second: {0: 2, 1: 2}}
    assert not down.close()
    said = [record.message for record in caplog.records if record.name.startswith("spark_jobs")]
    assert [message[:46] for message in said] == ["group down: offsets cannot be committed (no br"]
