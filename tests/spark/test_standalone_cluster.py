"""Jobs on a standalone cluster of Spark with two workers, which have the pack from the bundle
alone: an executor and a worker are killed, and every row is there once.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spark_jobs.bundle import write_bundle
from spark_jobs.java import java_problem
from spark_jobs.spark_conf import connector_package
from tests.clients.adapters import wait_until
from tests.spark.copying.records import content, fill, records_of
from tests.spark.kill_rounds import ROOT, JobProcess
from tests.spark.standalone_cluster import StandaloneCluster

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long_spark,
    pytest.mark.spark_kills,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

PARTITIONS = 4
RECORDS = 6_000
BATCH_ROWS = 400
EXECUTOR_TIMEOUT_S = 120.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    with StandaloneCluster(folder) as running:
        yield running


@pytest.fixture
def topic(bootstrap: str, new_topic: Callable[[int], str]) -> str:
    name = new_topic(PARTITIONS)
    fill(bootstrap, name, range(RECORDS), PARTITIONS)
    return name


def run_under_kills(
    cluster: StandaloneCluster, folder: Path, arguments: Sequence[str], seed: int
) -> None:
    """Run a job in whose batches first an executor and then a worker is killed. It must end by
    itself, without an error.
    """
    write_bundle(folder / "pack.zip")
    shutil.copy(ROOT / "spark_jobs" / "__main__.py", folder / "main.py")
    command = cluster.submit_command(
        [
            *("--packages", connector_package(), "--py-files", "pack.zip", "main.py", *arguments),
            *("--progress", "json", "--maxOffsetsPerTrigger", str(BATCH_ROWS)),
        ]
    )
    moments = random.Random(seed)
    started = JobProcess(command, folder=folder, environment=cluster.environment, submitted=True)
    with started as job:
        for kill in (cluster.kill_executor, cluster.kill_worker):
            assert job.next_batch() is not None, "".join(job.said)[-4000:]
            assert job.next_batch() is not None, "".join(job.said)[-4000:]
            wait_until(lambda: len(cluster.executors()) == 2, EXECUTOR_TIMEOUT_S, "two executors")
            kill(moments)
        batches = 0
        while job.next_batch() is not None:
            batches += 1
        assert job.exit_code() == 0, "".join(job.said)[-4000:]
        assert batches, "all was written before the worker was killed"


def test_archive(cluster: StandaloneCluster, bootstrap: str, topic: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    arguments = ["archive", "--bootstrap-servers", bootstrap, "--topics", topic]
    run_under_kills(cluster, tmp_path, [*arguments, "--output", str(output)], seed=1)
    found = sorted(
        (row["partition"], row["offset"], row["key"], row["value"])
        for row in pq.read_table(output).to_pylist()
    )
    assert found == [
        (partition, record.offset, record.key, record.value)
        for partition, records in enumerate(records_of(bootstrap, topic, PARTITIONS))
        for record in records
    ]
    assert len(found) == RECORDS


def test_mirror(cluster: StandaloneCluster, bootstrap: str, topic: str, tmp_path: Path) -> None:
    """Its tasks write to one transaction, from two machines."""
    arguments = ["mirror", "--bootstrap-servers", bootstrap, "--topics", topic]
    arguments += ["--prefix", "copy.", "--checkpoint", str(tmp_path / "checkpoint")]
    run_under_kills(cluster, tmp_path, [*arguments, "--queryName", topic], seed=2)
    sources, copies = (records_of(bootstrap, name, PARTITIONS) for name in (topic, f"copy.{topic}"))
    assert [content(one) for one in copies] == [content(one) for one in sources]
    assert sum(map(len, copies)) == RECORDS
