"""Drivers killed at any moment: the group never goes back, is never further than the checkpoint,
and has everything in the end.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_jobs.checkpoint import Offsets, read_query_log
from spark_jobs.java import java_problem
from spark_jobs.storage import Folder, absolute
from spark_jobs.wire.client import BlockingClient, ClusterAddress
from spark_jobs.wire.groups import committed_offsets
from tests.clients.adapters import ConfluentAdapter, Sent
from tests.spark.lag.followed_query import MODULE

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long_spark,
    pytest.mark.spark_kills,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(3600),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

PARTITIONS = 2
ROUND_RECORDS = 400


def fill(bootstrap: str, topic: str) -> None:
    sent = [Sent(None, b"v", (), 1_700_000_000_000, n % PARTITIONS) for n in range(ROUND_RECORDS)]
    ConfluentAdapter(bootstrap).produce(topic, sent, codec="none", idempotent=True)


def is_at_most(lower: Offsets, upper: Offsets) -> bool:
    return all(
        offset <= upper.get(topic, {}).get(partition, -1)
        for topic, offsets in lower.items()
        for partition, offset in offsets.items()
    )


def test_a_driver_killed_at_random_moments(
    bootstrap: str, new_topic: Callable[[int], str], tmp_path: Path
) -> None:
    topic = new_topic(PARTITIONS)
    group, checkpoint = f"followed-{topic}", tmp_path / "cp"
    client = BlockingClient(ClusterAddress(bootstrap))
    moments = random.Random(11)
    kills, killed = int(os.environ.get("KBROKER_TEST_KILLS", "20")), 0
    before: Offsets = {}
    for number in range(kills + 1):
        fill(bootstrap, topic)
        command = [sys.executable, "-m", MODULE, bootstrap, topic, str(checkpoint), group]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)
        try:
            process.communicate(timeout=600 if number == kills else moments.uniform(8, 20))
        except subprocess.TimeoutExpired:
            killed += 1
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        found = committed_offsets(client, group)
        assert is_at_most(before, found)
        assert is_at_most(found, read_query_log(Folder(absolute(str(checkpoint)))).position)
        before = found
    client.close()
    assert process.returncode == 0
    assert killed > kills // 2
    end = (kills + 1) * ROUND_RECORDS // PARTITIONS
    assert before == {topic: dict.fromkeys(range(PARTITIONS), end)}
