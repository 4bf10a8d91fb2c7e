"""What `spark.py` measures, one function for each load: reads of a topic, an archive beside a query
written by hand, `kafka_sink` beside Spark's own sink.

A function runs one round, and gives the figures of that round.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self

from benchmarks import kafka_perf
from benchmarks.side_by_side import PAUSE_S, Figures, Measured, create_topic, delete_topic
from benchmarks.steady import CPU_FIGURE, STEADY_FIGURE
from spark_jobs.archive import ArchiveOptions, archive
from spark_jobs.exactly_once.sink import kafka_sink
from tests.spark.processes import is_below, process_parents

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

RATE: Final = "rows_per_s"
PER_BATCH: Final = "s_per_batch"
SMALL_BATCHES: Final = 20
SMALL_ROWS: Final = 10
LARGE_BATCHES: Final = 3
CODEC: Final = "lz4"
"""Of both sinks."""
LOOK_S: Final = 0.2
_numbers = count()

Format = Literal["kafka", "kbroker"]
Sink = Literal["kafka_sink", "kafka_sink keep", "Spark's sink"]


@dataclass(frozen=True, slots=True)
class Filled:
    """A topic with records in it, of random letters. codec: of the producer's batches."""

    record_bytes: int
    partitions: int
    codec: str
    records: int

    @property
    def title(self) -> str:
        """For the table."""
        size = f"{self.record_bytes // 1000} KB" if self.record_bytes >= 1000 else "100 B"
        partitions = f"{self.partitions} partition{'s' if self.partitions > 1 else ''}"
        return f"{size}, {partitions}" + ("" if self.codec == "none" else f", {self.codec}")

    @property
    def name(self) -> str:
        """Of the topic."""
        return f"load-{self.record_bytes}-{self.partitions}-{self.codec}-{self.records}"

    def fill(self, bootstrap: str) -> None:
        """Create the topic on a broker and produce its records."""
        asyncio.run(create_topic(bootstrap, self.name, self.partitions))
        kafka_perf.produce(
            bootstrap,
            self.name,
            records=self.records,
            record_bytes=self.record_bytes,
            properties=(f"compression.type={self.codec}",),
        )


def topic_frame(spark: SparkSession, bootstrap: str, topic: str, source: Format) -> DataFrame:
    """All records that the topic has now."""
    reader = spark.read.format(source).option("kafka.bootstrap.servers", bootstrap)
    return reader.options(subscribe=topic, startingOffsets="earliest").load()


def topic_stream(spark: SparkSession, bootstrap: str, topic: str, batch_rows: int) -> DataFrame:
    """The topic as `archive` reads it."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("kafka.isolation.level", "read_committed")
    reader = reader.options(subscribe=topic, startingOffsets="earliest", includeHeaders="true")
    return reader.option("maxOffsetsPerTrigger", str(batch_rows)).load()


def read(spark: SparkSession, server: Measured, topic: Filled, source: Format = "kafka") -> Figures:
    """A batch query that reads the topic and drops the rows; the broker's CPU."""
    frame = topic_frame(spark, server.bootstrap_servers, topic.name, source)
    time.sleep(PAUSE_S)
    before = server.cpu_seconds()
    began_at = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    elapsed = time.perf_counter() - began_at
    time.sleep(PAUSE_S)
    return _figures(topic, elapsed, server.cpu_seconds() - before)


def archived(
    spark: SparkSession, server: Measured, topic: Filled, folder: Path, *, by_hand: bool
) -> Figures:
    """The topic to Parquet in one run of several batches, by `archive` or by the query that one
    writes oneself: the same columns, layout, codec and batches. Spark's CPU.
    """
    bootstrap, output = server.bootstrap_servers, folder / f"archive-{next(_numbers)}"
    batch_rows = topic.records // LARGE_BATCHES + 1
    if by_hand:
        from pyspark.sql import functions

        frame = topic_stream(spark, bootstrap, topic.name, batch_rows)
        writer = frame.withColumn("date", functions.to_date("timestamp")).writeStream
        writer = writer.format("parquet").partitionBy("topic", "date").option("compression", "zstd")
        run = partial(_run_to_end, writer.option("path", str(output)), output)
    else:
        options = ArchiveOptions(
            output=str(output),
            bootstrap_servers=bootstrap,
            subscribe=topic.name,
            source_options={"maxOffsetsPerTrigger": str(batch_rows)},
        )
        run = partial(archive, spark, options)
    try:
        return _measured_in_spark(spark, topic, run)
    finally:
        for path in (output, output.with_name(output.name + ".checkpoint")):
            shutil.rmtree(path, ignore_errors=True)


def written(
    spark: SparkSession, server: Measured, topic: Filled, folder: Path, *, sink: Sink
) -> Figures:
    """The topic to another topic, in one run of several batches. Spark's CPU."""
    with _target(server.bootstrap_servers, topic.partitions) as target:
        frame = _rows(spark, server, topic, topic.records // LARGE_BATCHES + 1, sink)
        writer, close = _into(frame, server.bootstrap_servers, target, sink)
        checkpoint = folder / target
        try:
            return _measured_in_spark(spark, topic, partial(_run_to_end, writer, checkpoint))
        finally:
            close()
            shutil.rmtree(checkpoint.with_name(target + ".checkpoint"), ignore_errors=True)


def small_batches(
    spark: SparkSession, server: Measured, topic: Filled, folder: Path, *, sink: Sink
) -> Figures:
    """Seconds that writing a batch of a few rows takes, the median of a query's batches."""
    bootstrap, seconds = server.bootstrap_servers, list[float]()
    with _target(bootstrap, topic.partitions) as target:
        exactly_once = _kafka_sink(bootstrap, target, sink)

        def write(frame: DataFrame, batch_id: int) -> None:
            began_at = time.perf_counter()
            if sink == "Spark's sink":
                frame.write.format("kafka").options(**_sink_options(bootstrap, target)).save()
            else:
                exactly_once(frame, batch_id)
            seconds.append(time.perf_counter() - began_at)

        writer = _rows(spark, server, topic, SMALL_ROWS, sink).writeStream.foreachBatch(write)
        try:
            _run_to_end(writer, folder / target)
        finally:
            exactly_once.close()
            shutil.rmtree(folder / f"{target}.checkpoint", ignore_errors=True)
    return {PER_BATCH: statistics.median(seconds)}


def _rows(
    spark: SparkSession, server: Measured, topic: Filled, batch_rows: int, sink: Sink
) -> DataFrame:
    frame = topic_stream(spark, server.bootstrap_servers, topic.name, batch_rows)
    return frame.select("key", "value", *(["partition"] if sink == "kafka_sink keep" else []))


def _kafka_sink(bootstrap: str, target: str, sink: Sink) -> Callable[[DataFrame, int], None]:
    return kafka_sink(
        bootstrap,
        topic=target,
        query_name=target,
        compression=CODEC,
        arrangement="keep" if sink == "kafka_sink keep" else "shuffle",
    )


def _sink_options(bootstrap: str, target: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.compression.type": CODEC,
        "topic": target,
    }


def _into(
    frame: DataFrame, bootstrap: str, target: str, sink: Sink
) -> tuple[DataStreamWriter, Callable[[], None]]:
    if sink == "Spark's sink":
        writer = frame.writeStream.format("kafka").options(**_sink_options(bootstrap, target))
        return writer, lambda: None
    exactly_once = _kafka_sink(bootstrap, target, sink)
    return frame.writeStream.foreachBatch(exactly_once), exactly_once.close


def _run_to_end(writer: DataStreamWriter, path: Path) -> None:
    """Run a query on what its topic has now; its checkpoint is beside `path`."""
    checkpoint = str(path.with_name(path.name + ".checkpoint"))
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


@contextmanager
def _target(bootstrap: str, partitions: int) -> Iterator[str]:
    """A topic to write to, deleted afterwards."""
    name = f"target-{os.getpid()}-{next(_numbers)}"
    asyncio.run(create_topic(bootstrap, name, partitions))
    yield name
    asyncio.run(delete_topic(bootstrap, name))


def _measured_in_spark(spark: SparkSession, topic: Filled, run: Callable[[], object]) -> Figures:
    time.sleep(PAUSE_S)
    with SparkCpu(jvm_pid(spark)) as cpu:
        began_at = time.perf_counter()
        run()
        elapsed = time.perf_counter() - began_at
    return _figures(topic, elapsed, cpu.seconds)


def _figures(topic: Filled, elapsed: float, cpu_s: float) -> Figures:
    gigabytes = topic.records * topic.record_bytes / 1e9
    return {RATE: topic.records / elapsed, STEADY_FIGURE: cpu_s / gigabytes, CPU_FIGURE: cpu_s}


def jvm_pid(spark: SparkSession) -> int:
    """Process id of the session's JVM, which this process has started."""
    return int(spark.sparkContext._gateway.proc.pid)


class SparkCpu:
    """CPU time of the driver, its JVM and all Python workers in a block. seconds: behind it.

    Looked at several times a second: of a worker that the JVM kills nothing is left to ask
    afterwards, since not all of them have a parent that waits for them. What looking costs, which
    grows with the time that a run takes and with the machine's processes, is left out.
    """

    def __init__(self, jvm: int) -> None:
        self.seconds = 0.0
        self._jvm = jvm
        self._first: dict[tuple[int, int], int] = {}
        self._last: dict[tuple[int, int], int] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._driver_s = 0.0
        self._looking_s = 0.0

    def __enter__(self) -> Self:
        self._driver_s = time.process_time()
        self._look()
        self._first = dict(self._last)
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._is_over.set()
        self._thread.join()
        driver_s = time.process_time() - self._driver_s
        self._look()
        ticks = sum(value - self._first.get(key, 0) for key, value in self._last.items())
        self.seconds = driver_s - self._looking_s + ticks / os.sysconf("SC_CLK_TCK")

    def _watch(self) -> None:
        while not self._is_over.wait(LOOK_S):
            self._look()
        self._looking_s = time.thread_time()

    def _look(self) -> None:
        parents = process_parents()
        for pid in [self._jvm, *(pid for pid in parents if is_below(pid, self._jvm, parents))]:
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            self._last[pid, int(fields[19])] = int(fields[11]) + int(fields[12])
