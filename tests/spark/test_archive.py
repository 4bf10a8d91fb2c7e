"""The archive job: rows are the records, each once, also when the job is killed in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_jobs.java import java_problem
from tests.clients.adapters import ConfluentAdapter, Sent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    # Spark is started twice in a test, and the first start in a fresh clone fetches its connector.
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

ROOT = Path(__file__).resolve().parents[2]
BASE_MS = 1_700_000_000_000


def sent(numbers: range, partitions: int) -> list[Sent]:
    return [
        Sent(
            None if n % 5 == 0 else b"key-%d" % n,
            None if n % 7 == 3 and n % 5 else b"value-%d" % n,
            (("n", b"%d" % n), ("empty", b"")) if n % 2 else (),
            BASE_MS + n,
            n % partitions,
        )
        for n in numbers
    ]


def archived(spark: SparkSession, folder: Path) -> list[tuple[object, ...]]:
    def plain(value: object) -> object:
        return bytes(value) if isinstance(value, bytearray) else value

    return sorted(
        (
            row.topic,
            row.partition,
            row.offset,
            round(row.timestamp.timestamp() * 1000),
            repr(
                (
                    plain(row.key),
                    plain(row.value),
                    [(h.key, plain(h.value)) for h in row.headers or ()],
                )
            ),
        )
        for row in spark.read.parquet(str(folder)).collect()
    )


def expected(topic: str, records: list[Sent], partitions: int) -> list[tuple[object, ...]]:
    return sorted(
        (
            topic,
            record.partition,
            number // partitions,
            record.timestamp_ms,
            repr((record.key, record.value, list(record.headers))),
        )
        for number, record in enumerate(records)
    )


@contextmanager
def job(
    *arguments: str, environment: dict[str, str] | None = None, folder: Path = ROOT
) -> Iterator[subprocess.Popen[str]]:
    """The job in a process group of its own, which is gone at the end: also Spark's JVM."""
    run = subprocess.Popen(
        [sys.executable, "-m", "spark_jobs", *arguments],
        cwd=folder,
        env={
            **os.environ,
            "SPARK_MASTER": "local[2]",
            "PYTHONPATH": str(ROOT),
            **(environment or {}),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield run
    finally:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.communicate()


def test_archive_is_exactly_the_topic_also_at_the_second_run(
    spark: SparkSession, bootstrap: str, new_topic: Callable[[int], str], tmp_path: Path
) -> None:
    topic, output = new_topic(3), tmp_path / "archive"
    records = sent(range(600), 3)
    client = ConfluentAdapter(bootstrap)
    client.produce(topic, records[:450], codec="zstd", idempotent=True)
    arguments = [
        "archive",
        "--bootstrap-servers",
        bootstrap,
        "--topics",
        topic,
        "--output",
        str(output),
        "--json",
    ]
    for more in (records[450:], []):
        with job(*arguments, folder=tmp_path) as run:
            printed, errors = run.communicate(timeout=180)
        assert (run.returncode, errors) == (0, "")
        assert {path.name for path in tmp_path.iterdir()} == {"archive", "archive.checkpoint"}
        done = 450 if more else 600
        assert json.loads(printed)["end_offsets"] == {topic: {str(p): done // 3 for p in range(3)}}
        assert archived(spark, output) == expected(topic, records[:done], 3)
        client.produce(topic, more, codec="lz4", idempotent=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_archive_killed_and_started_again_has_each_record_once(
    spark: SparkSession, bootstrap: str, new_topic: Callable[[int], str], tmp_path: Path
) -> None:
    topic, output = new_topic(2), tmp_path / "archive"
    records = sent(range(4000), 2)
    ConfluentAdapter(bootstrap).produce(topic, records, codec="gzip", idempotent=True)
    arguments = [
        "archive",
        "--bootstrap-servers",
        bootstrap,
        "--topics",
        topic,
        "--output",
        str(output),
    ]
    arguments += ["--max-offsets-per-trigger", "200"]
    commits = Path(f"{output}.checkpoint") / "commits"
    for batches_before_kill in (2, 5, 9):
        with job(*arguments) as run:
            while len(list(commits.glob("[0-9]*"))) < batches_before_kill:
                assert run.poll() is None, run.communicate()
                time.sleep(0.02)
            assert run.poll() is None, "it ended before it could be killed"
    with job(*arguments) as run:
        _, errors = run.communicate(timeout=300)
    assert run.returncode == 0, errors
    assert archived(spark, output) == expected(topic, records, 2)


def test_spark_submit_runs_the_same_job(
    spark: SparkSession, bootstrap: str, new_topic: Callable[[int], str], tmp_path: Path
) -> None:
    import pyspark

    from spark_jobs.session import connector_package

    topic, output = new_topic(1), tmp_path / "archive"
    records = sent(range(40), 1)
    ConfluentAdapter(bootstrap).produce(topic, records, codec="none", idempotent=False)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [
        str(submit),
        "--master",
        "local[1]",
        "--packages",
        connector_package(),
        "spark_jobs/__main__.py",
    ]
    command += [
        "archive",
        "--bootstrap-servers",
        bootstrap,
        "--topics",
        topic,
        "--output",
        str(output),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr
    assert "archived 40 records" in done.stdout
    assert not (ROOT / "artifacts").exists()
    assert archived(spark, output) == expected(topic, records, 1)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--every", "nonsense"), "archive cannot start: [INVALID_INTERVAL_FORMAT"),
        (("--starting-offsets", "nonsense"), "archive stopped: "),
    ],
)
def test_what_spark_refuses_is_one_line(
    bootstrap: str,
    new_topic: Callable[[int], str],
    tmp_path: Path,
    option: tuple[str, str],
    said: str,
) -> None:
    arguments = ["archive", "--bootstrap-servers", bootstrap, "--topics", new_topic(1)]
    with job(*arguments, "--output", "out", *option, folder=tmp_path) as run:
        printed, errors = run.communicate(timeout=100)
    assert (run.returncode, printed) == (1, "")
    (line,) = errors.splitlines()
    assert line.startswith("spark_jobs: ") and said in line and "nonsense" in line
    assert not (tmp_path / "artifacts").exists()


def test_what_the_user_can_mend_is_one_line(tmp_path: Path) -> None:
    arguments = ["archive", "--topics", "t", "--output", str(tmp_path)]
    with job(*arguments, "--kafka-option", "novalue") as run:
        printed, errors = run.communicate(timeout=60)
    assert (run.returncode, printed, errors) == (
        1,
        "",
        "spark_jobs: --kafka-option novalue: give it as NAME=VALUE\n",
    )
    with job(*arguments, environment={"JAVA_HOME": str(tmp_path)}) as run:
        printed, errors = run.communicate(timeout=60)
    assert run.returncode == 1
    assert errors.count("\n") == 1
    assert "Java 17 or 21" in errors and "apt-get install" in errors
