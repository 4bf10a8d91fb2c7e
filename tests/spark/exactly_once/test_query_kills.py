"""Whole queries whose Python workers and drivers are killed: each row once, in order."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_jobs.java import java_problem
from tests.clients.adapters import ConfluentAdapter, Sent
from tests.spark.exactly_once.committed import read_committed
from tests.spark.exactly_once.query_worker import MODULE, ROW_BYTES

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long_spark,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(3600),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

PARTITIONS = 3
ROWS = 900
ROUND_ROWS = 300
NewTopic = Callable[[int], str]


def values(partition: int, numbers: range = range(ROWS)) -> list[bytes]:
    wanted = [number for number in numbers if number % PARTITIONS == partition]
    return [b"%06d" % number * (ROW_BYTES // 6) for number in wanted]


def fill(bootstrap: str, topic: str, numbers: range) -> None:
    rows = [
        Sent(None, value, (), 1_700_000_000_000, partition)
        for partition in range(PARTITIONS)
        for value in values(partition, numbers)
    ]
    ConfluentAdapter(bootstrap).produce(topic, rows, codec="lz4", idempotent=True)


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", MODULE, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def check(bootstrap: str, target: str, count: int) -> None:
    found = [[row.value for row in rows] for rows in read_committed(bootstrap, target, PARTITIONS)]
    assert found == [values(partition, range(count)) for partition in range(PARTITIONS)]


@pytest.mark.spark_kills
def test_a_python_worker_killed_while_its_task_writes(
    bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Spark runs the task again; that attempt is refused, and the batch begins again."""
    source, target = new_topic(PARTITIONS), new_topic(PARTITIONS)
    fill(bootstrap, source, range(ROWS))
    flag = tmp_path / "killed"
    process = start(bootstrap, source, target, str(tmp_path / "cp"), str(flag))
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert flag.exists()
    assert json.loads(out) == {"0": 2, "1": 1, "2": 1}
    check(bootstrap, target, ROWS)


@pytest.mark.spark_kills
def test_a_driver_killed_at_random_moments(
    bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """The driver's process, its JVM and its Python workers at once."""
    source, target = new_topic(PARTITIONS), new_topic(PARTITIONS)
    random_moments = random.Random(7)
    kills = int(os.environ.get("KBROKER_TEST_KILLS", "20"))
    killed, run_s = 0, 0.0
    for number in range(kills + 2):
        fill(bootstrap, source, range(number * ROUND_ROWS, (number + 1) * ROUND_ROWS))
        began_at = time.perf_counter()
        process = start(bootstrap, source, target, str(tmp_path / "cp"))
        is_killed = 0 < number <= kills
        wait_s = random_moments.uniform(0.3, 1) * run_s if is_killed else 600.0
        try:
            process.communicate(timeout=wait_s)
        except subprocess.TimeoutExpired:
            killed += 1
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        if number == 0:  # how long does a run take here?
            run_s = time.perf_counter() - began_at
    assert process.returncode == 0
    assert killed > kills // 2
    check(bootstrap, target, (kills + 2) * ROUND_ROWS)
