"""Whole runs of the copying jobs whose driver, JVM and Python workers are killed at random moments:
each record once, in its partition and in order.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_jobs.archive import ArchiveOptions, archive
from spark_jobs.java import java_problem
from tests.spark.copying.records import check_map, content, fill, offset_map, records_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long_spark,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(3600),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

ROOT = Path(__file__).resolve().parents[3]
PARTITIONS = 3
ROUND_ROWS = 3000
KILLS = int(os.environ.get("KBROKER_TEST_KILLS", "20"))
NewTopic = Callable[[int], str]


def run(arguments: Sequence[str], timeout_s: float) -> bool:
    """Whether the job came to its end before the time, at which it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "spark_jobs", *arguments, "--maxOffsetsPerTrigger", "500"],
        cwd=ROOT,
        env={**os.environ, "SPARK_MASTER": "local[2]", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return False
    assert process.returncode == 0, errors
    return True


def run_rounds(arguments: Sequence[str], grow: Callable[[range], None]) -> int:
    """Kill the job in each round but the last; gives the number of records."""
    moments = random.Random(11)
    killed = 0
    for number in range(KILLS + 1):
        grow(range(number * ROUND_ROWS, (number + 1) * ROUND_ROWS))
        killed += not run(arguments, 600 if number == KILLS else moments.uniform(8, 25))
    assert killed > KILLS // 2
    return (KILLS + 1) * ROUND_ROWS


def check(bootstrap: str, topic: str, copy: str, count: int) -> None:
    sources, copies = (records_of(bootstrap, name, PARTITIONS) for name in (topic, copy))
    assert sum(map(len, copies)) == count
    assert [content(one) for one in copies] == [content(one) for one in sources]


def test_replay(bootstrap: str, new_topic: NewTopic) -> None:
    topic, copy = new_topic(PARTITIONS), new_topic(PARTITIONS)
    arguments = ["replay", "--bootstrap-servers", bootstrap, "--topic", topic, "--to", copy]
    arguments += ["--offsets", "map"]
    count = run_rounds(arguments, lambda numbers: fill(bootstrap, topic, numbers, PARTITIONS))
    check(bootstrap, topic, copy, count)
    sources, copies = (records_of(bootstrap, name, PARTITIONS) for name in (topic, copy))
    check_map(offset_map(bootstrap, f"replay-{copy}"), copy, sources, copies)


def test_restore_with_offsets_kept(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, copy = new_topic(PARTITIONS), new_topic(PARTITIONS)
    out = str(tmp_path / "out")
    archiving = ArchiveOptions(output=out, bootstrap_servers=bootstrap, subscribe=topic)

    def grow(numbers: range) -> None:
        fill(bootstrap, topic, numbers, PARTITIONS)
        archive(spark, archiving)

    arguments = ["restore", "--bootstrap-servers", bootstrap, "--archive", out, "--to", copy]
    count = run_rounds([*arguments, "--offsets", "keep"], grow)
    check(bootstrap, topic, copy, count)
    assert records_of(bootstrap, copy, PARTITIONS) == records_of(bootstrap, topic, PARTITIONS)


def test_mirror(bootstrap: str, new_topic: NewTopic, tmp_path: Path) -> None:
    topic = new_topic(PARTITIONS)
    arguments = ["mirror", "--bootstrap-servers", bootstrap, "--topics", topic]
    arguments += ["--prefix", "copy.", "--checkpoint", str(tmp_path), "--queryName", topic]
    count = run_rounds(arguments, lambda numbers: fill(bootstrap, topic, numbers, PARTITIONS))
    check(bootstrap, topic, f"copy.{topic}", count)


def test_dlq(bootstrap: str, new_topic: NewTopic, tmp_path: Path) -> None:
    """Every record is in one of two topics; empty values are no JSON, and dead."""
    topic, good = new_topic(PARTITIONS), new_topic(PARTITIONS)
    arguments = ["dlq", "--bootstrap-servers", bootstrap, "--topic", topic, "--to", good]
    arguments += ["--decode", "json", "--checkpoint", str(tmp_path)]
    count = run_rounds(arguments, lambda numbers: fill(bootstrap, topic, numbers, PARTITIONS))
    targets = [records_of(bootstrap, name, PARTITIONS) for name in (good, f"{topic}.dlq")]
    found = sorted(
        record.timestamp for target in targets for records in target for record in records
    )
    sources = records_of(bootstrap, topic, PARTITIONS)
    assert len(found) == count
    assert found == sorted(record.timestamp for records in sources for record in records)
