"""What happens to topics and brokers while `archive` runs on Spark: what is no loss ends nothing,
and no loss is silent.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from kbroker.testing.process import BrokerProcess
from spark_jobs.archive import ArchiveOptions, archive
from spark_jobs.archive.job import Summary
from spark_jobs.archive.opening import LEASE
from spark_jobs.errors import JobError, StartRefused
from spark_jobs.java import java_problem
from spark_jobs.progress import BatchProgress, Reporter
from tests.clients.adapters import ConfluentAdapter, Sent, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long_spark,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

BASE_MS = 1_700_000_000_000
BATCH_S = 60.0
PAUSE = "10 seconds"
"""Between batches: what a test does behind a batch is done before the next one."""

NewTopic = Callable[[int], str]


class Running:
    """`archive` in a thread. rows: of its batches so far."""

    def __init__(self) -> None:
        self.rows = 0
        self.stop = threading.Event()
        self.future: Future[Summary] = Future()

    def record(self, _name: str, batch: BatchProgress, _files: int) -> None:
        self.rows += batch.rows

    def wait_for(self, rows: int) -> None:
        """Until so many were archived. Raises what ended the job before."""

        def is_there() -> bool:
            if self.future.done():
                self.future.result()
            return self.rows >= rows

        wait_until(is_there, BATCH_S, f"{rows} rows")

    def end(self) -> Summary:
        self.stop.set()
        return self.future.result(BATCH_S)


@contextmanager
def running(
    spark: SparkSession, bootstrap: str, topic: str, output: Path, trigger: str = "1 second"
) -> Iterator[Running]:
    options = ArchiveOptions(
        output=str(output), bootstrap_servers=bootstrap, subscribe=topic, trigger=trigger
    )
    job = Running()
    reporter = Reporter("none", record=job.record)
    with ThreadPoolExecutor(1) as pool:
        job.future = pool.submit(archive, spark, options, reporter=reporter, stop=job.stop)
        try:
            yield job
        finally:
            job.stop.set()


def fill(bootstrap: str, topic: str, numbers: range, partitions: int = 1) -> None:
    records = [Sent(None, b"%d" % n, (), BASE_MS + n, n % partitions) for n in numbers]
    ConfluentAdapter(bootstrap).produce(topic, records, codec="none", idempotent=True)


def archived(output: Path) -> list[int]:
    return sorted(int(value) for value in pq.read_table(output)["value"].to_pylist())


def admin_of(bootstrap: str) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": bootstrap})


def delete_to(bootstrap: str, topic: str, offset: int) -> None:
    from confluent_kafka import TopicPartition

    admin = admin_of(bootstrap)
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result(20)


def test_a_topic_that_grows(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    from confluent_kafka.admin import NewPartitions

    topic, output = new_topic(1), tmp_path / "out"
    fill(bootstrap, topic, range(10))
    with running(spark, bootstrap, topic, output) as job:
        job.wait_for(10)
        admin = admin_of(bootstrap)
        admin.create_partitions([NewPartitions(topic, 4)])[topic].result(20)
        fill(bootstrap, topic, range(10, 50), 4)
        job.wait_for(50)
        assert job.end().archived == 50
    assert archived(output) == list(range(50))


def test_records_that_are_deleted_before_they_are_read(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, output = new_topic(1), tmp_path / "out"
    fill(bootstrap, topic, range(10))
    with running(spark, bootstrap, topic, output, PAUSE) as job:
        job.wait_for(10)
        fill(bootstrap, topic, range(10, 30))
        delete_to(bootstrap, topic, 15)
        with pytest.raises(JobError) as raised:
            job.wait_for(20)
    assert str(raised.value) == (
        f"archive stopped: {topic}-0 has no offset 10 any more: records were deleted before they "
        "were read. The next start says how many, and which options go on behind them"
    )
    assert archived(output) == list(range(10))
    options = ArchiveOptions(str(output), bootstrap, topic)
    with pytest.raises(StartRefused, match="5 offsets were deleted unread"):
        archive(spark, options)
    archive(spark, replace(options, resume_from="output"))
    assert archived(output) == [*range(10), *range(15, 30)]


def test_an_output_that_vanishes(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """As when its disk is unmounted: an empty folder is left, to which a writer could go on."""
    topic, output, elsewhere = new_topic(1), tmp_path / "out", tmp_path / "elsewhere"
    fill(bootstrap, topic, range(10))
    with running(spark, bootstrap, topic, output, PAUSE) as job:
        job.wait_for(10)
        output.rename(elsewhere)
        output.mkdir()
        fill(bootstrap, topic, range(10, 30))
        with pytest.raises(JobError, match=f"{output}.* vanished") as raised:
            job.wait_for(20)
    assert "\n" not in str(raised.value)
    assert not [path for path in output.rglob("*.parquet") if path.is_file()]
    shutil.rmtree(output)
    elsewhere.rename(output)
    (output / LEASE).unlink()  # another process would take it over, as its holder is gone
    assert archive(spark, ArchiveOptions(str(output), bootstrap, topic)).archived == 30
    assert archived(output) == list(range(30))


def test_records_that_are_deleted_once_they_are_read(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, output = new_topic(1), tmp_path / "out"
    fill(bootstrap, topic, range(10))
    with running(spark, bootstrap, topic, output) as job:
        job.wait_for(10)
        delete_to(bootstrap, topic, 10)
        fill(bootstrap, topic, range(10, 30))
        job.wait_for(30)
    assert archived(output) == list(range(30))


def test_a_topic_that_is_created_again_and_is_longer(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Spark would go on at offset 10 of the new topic, and lose ten records."""
    from confluent_kafka.admin import NewTopic as Topic

    topic, output = new_topic(1), tmp_path / "out"
    fill(bootstrap, topic, range(10))
    with running(spark, bootstrap, topic, output, PAUSE) as job:
        job.wait_for(10)
        admin = admin_of(bootstrap)
        admin.delete_topics([topic])[topic].result(20)
        admin.create_topics([Topic(topic, 1, 1)])[topic].result(20)
        fill(bootstrap, topic, range(100, 130))
        with pytest.raises(JobError, match=r"created again|recreated|another id") as raised:
            job.wait_for(11)
    assert "\n" not in str(raised.value)
    assert archived(output) == list(range(10))


@pytest.mark.parametrize(
    "restarts",
    [3, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
)
def test_a_broker_that_is_restarted(
    spark: SparkSession,
    mortal: BrokerProcess,
    new_mortal_topic: NewTopic,
    tmp_path: Path,
    restarts: int,
) -> None:
    """Its only broker is gone for a moment, stopped or killed: no false alarm."""
    topic, output = new_mortal_topic(3), tmp_path / "out"
    fill(mortal.bootstrap_servers, topic, range(30), 3)
    with running(spark, mortal.bootstrap_servers, topic, output) as job:
        for number in range(restarts):
            job.wait_for(30 * (number + 1))
            (mortal.kill if number % 2 else mortal.stop)()
            mortal.start()
            fill(mortal.bootstrap_servers, topic, range(30 * (number + 1), 30 * (number + 2)), 3)
        job.wait_for(30 * (restarts + 1))
        job.end()
    assert archived(output) == list(range(30 * (restarts + 1)))
