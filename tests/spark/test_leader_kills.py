"""Streaming queries while leaders are killed: none fails, none takes a change of leaders for lost
data, and every record that was acknowledged is in each output, once where that was promised.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime, timedelta
from itertools import zip_longest
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow.parquet as pq
import pytest

from spark_jobs.archive import ArchiveOptions, archive
from spark_jobs.archive.job import Summary
from spark_jobs.checkpoint import Offsets
from spark_jobs.exactly_once.sink import kafka_sink
from spark_jobs.java import java_problem
from spark_jobs.progress import listen, parse_progress
from tests.spark.exactly_once.committed import read_committed
from tests.spark.leader_kills import LeaderKills, NumberedProducer, ReplicatedCluster, value_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

SEED = 18
PARTITIONS = 3
SOURCE, ONCE, AT_LEAST_ONCE = "source", "once", "at-least-once"
ARCHIVE = "archive"
QUERIES = (ARCHIVE, ONCE, AT_LEAST_ONCE)
DRAWN = frozenset({SOURCE, ONCE, AT_LEAST_ONCE, "__transaction_state", "__spark_batches"})
TRIGGER = "1 second"
FIRST_BATCH_S = 120.0
DRAIN_S = 180.0
POLL_S = 0.2


class Batches:
    """What Spark's listener tells of one query, perhaps some seconds late."""

    def __init__(self) -> None:
        self.count = 0
        self.end: Offsets = {}
        self.longest_pause_s = 0.0
        """Between the ends of two batches."""
        self._ended_at: datetime | None = None

    def batch(self, entry: Mapping[str, Any]) -> None:
        progress = parse_progress(entry)
        began_at = datetime.fromisoformat(entry["timestamp"])
        ended_at = began_at + timedelta(milliseconds=progress.duration_ms)
        if self._ended_at is not None:
            pause_s = (ended_at - self._ended_at).total_seconds()
            self.longest_pause_s = max(self.longest_pause_s, pause_s)
        self._ended_at = ended_at
        self.count += 1
        self.end = progress.end

    def idle(self) -> None:
        """A pause without records is a pause too."""

    def ended(self) -> None:
        """The test sees by itself why a query ended."""


class Queries:
    """Two queries that write to Kafka, and the job `archive` in a thread of its own, from the start
    to the end of the block. batches: by the name of the query.
    """

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._folder = folder
        self._stopping = threading.Event()
        self._archive: Future[Summary] | None = None
        self._queries: list[StreamingQuery] = []
        self._stack = ExitStack()
        self.batches = {name: Batches() for name in QUERIES}
        self.output = folder / ARCHIVE

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for name, batches in self.batches.items():
                listener = listen(self._spark, batches, query_name=name)
                stack.callback(self._spark.streams.removeListener, listener)
            pool = stack.enter_context(ThreadPoolExecutor(1))
            stack.callback(self.stop)
            options = ArchiveOptions(
                output=str(self.output),
                bootstrap_servers=self._bootstrap,
                subscribe=SOURCE,
                trigger=TRIGGER,
                query_name=ARCHIVE,
            )
            self._archive = pool.submit(archive, self._spark, options, stop=self._stopping)
            sink = kafka_sink(self._bootstrap, topic=ONCE, query_name=ONCE, arrangement="keep")
            stack.callback(sink.close)
            self._queries.append(self._writer(ONCE).foreachBatch(sink).start())
            kafka = self._writer(AT_LEAST_ONCE).format("kafka").option("topic", AT_LEAST_ONCE)
            self._queries.append(kafka.option("kafka.bootstrap.servers", self._bootstrap).start())
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _writer(self, name: str) -> DataStreamWriter:
        """Of a query that reads from the beginning, and otherwise as Spark does by default."""
        options = {
            "kafka.bootstrap.servers": self._bootstrap,
            "subscribe": SOURCE,
            "startingOffsets": "earliest",
        }
        frame = self._spark.readStream.format("kafka").options(**options).load()
        writer = frame.select("value", "partition").writeStream.queryName(name)
        checkpoint = str(self._folder / f"{name}.checkpoint")
        return writer.option("checkpointLocation", checkpoint).trigger(processingTime=TRIGGER)

    def check(self) -> None:
        """Raises what has ended a query."""
        assert self._archive is not None
        if self._archive.done():
            raise AssertionError(f"archive has ended: {self._archive.result()}")
        for query in self._queries:
            failure = query.exception()
            if failure is not None:
                raise failure
            assert query.isActive, query.name

    def await_all(self, has: Callable[[Batches], bool], timeout_s: float, what: str) -> None:
        """Wait until every query has it. Raises what has ended one, and AssertionError."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            self.check()
            others = {name: each.end for name, each in self.batches.items() if not has(each)}
            if not others:
                return
            assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what}: {others}"
            time.sleep(POLL_S)

    def stop(self) -> None:
        """End each query behind its batch."""
        self._stopping.set()
        for query in self._queries:
            query.stop()
        if self._archive is not None:
            self._archive.result(DRAIN_S)


def first_difference(found: Sequence[object], expected: Sequence[object]) -> str | None:
    """None if they are equal. A line, where pytest would compare a hundred thousand of them."""
    if found == expected:
        return None
    pairs = enumerate(zip_longest(found, expected))
    index, pair = next((index, pair) for index, pair in pairs if pair[0] != pair[1])
    return f"{len(found)} for {len(expected)}; at {index}: {pair[0]!r} for {pair[1]!r}"


Row = tuple[int, int, bytes]
"""Partition, offset, value."""


def expected_rows(producer: NumberedProducer) -> list[Row]:
    """Everything that was sent. Nothing but the records is in the source, so a number is the
    offset, which the acknowledgements must have said too.
    """
    assert producer.failures == []
    assert len(producer.offsets) == sum(producer.counts)
    moved = [key for key, offset in producer.offsets.items() if offset not in (key[1], None)]
    assert moved == []
    return [
        (partition, number, value_of(partition, number))
        for partition, count in enumerate(producer.counts)
        for number in range(count)
    ]


def check_archive(spark: SparkSession, output: Path, expected: list[Row]) -> None:
    columns = ["partition", "offset", "value"]
    table = pq.read_table(output, columns=columns)
    by_pyarrow = sorted(zip(*(table.column(name).to_pylist() for name in columns), strict=True))
    assert first_difference(by_pyarrow, expected) is None
    frame = spark.read.parquet(str(output)).select(*columns)
    by_spark = sorted((row.partition, row.offset, bytes(row.value)) for row in frame.collect())
    assert first_difference(by_spark, expected) is None


def check_targets(bootstrap: str, expected: list[Row]) -> None:
    once, copies = (read_committed(bootstrap, topic, PARTITIONS) for topic in (ONCE, AT_LEAST_ONCE))
    for partition in range(PARTITIONS):
        wanted = [value for index, _, value in expected if index == partition]
        assert first_difference([row.value for row in once[partition]], wanted) is None
        first_copies = list(dict.fromkeys(row.value for row in copies[partition]))
        assert first_difference(first_copies, wanted) is None


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(
            3, marks=[pytest.mark.long_spark, pytest.mark.spark_kills, pytest.mark.timeout(600)]
        ),
        pytest.param(50, marks=[pytest.mark.slow, pytest.mark.serial, pytest.mark.timeout(3600)]),
    ],
)
def test_no_query_ends_and_no_record_is_lost_or_twice(
    spark: SparkSession, tmp_path: Path, kills: int
) -> None:
    with ReplicatedCluster(tmp_path / "nodes") as cluster:
        for topic in (SOURCE, ONCE, AT_LEAST_ONCE):
            cluster.create_topic(topic, PARTITIONS)
        began_s = time.monotonic()
        with (
            NumberedProducer(cluster.bootstrap, SOURCE, PARTITIONS) as producer,
            Queries(spark, cluster.bootstrap, tmp_path) as queries,
        ):
            queries.await_all(lambda batches: batches.count > 0, FIRST_BATCH_S, "a batch")

            def check() -> None:
                queries.check()
                assert producer.failures == []

            rounds = LeaderKills(cluster, DRAWN, check, SEED)
            rounds.run(kills)
            producer.stop()
            expected = expected_rows(producer)
            ends = {SOURCE: dict(enumerate(producer.counts))}
            queries.await_all(lambda batches: batches.end == ends, DRAIN_S, f"the ends {ends}")
            queries.stop()
        print(
            f"seed {SEED}: {kills} kills {dict(rounds.killed)} in {time.monotonic() - began_s:.0f} "
            f"s, slowest round {rounds.slowest_s:.1f} s; {len(expected)} records acknowledged"
        )
        for name, batches in queries.batches.items():
            print(f"{name}: {batches.count} batches, longest pause {batches.longest_pause_s:.1f} s")
        check_archive(spark, queries.output, expected)
        check_targets(cluster.bootstrap, expected)
