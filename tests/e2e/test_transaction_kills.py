"""Read-process-write loops of three client libraries while the broker, and now and then a client,
is killed: a reader of committed records sees the effect of each input exactly once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.testing.process import BrokerProcess
from spark_jobs.java import java_problem
from tests.e2e.transaction_loops import OVERRIDES, Worker, run_under

LIBRDKAFKAS_OWN = "slow abort_transaction"
"""librdkafka 2.16: an abort that begins while a Produce request is unanswered, whose connection
breaks then, waits for its timeout; also where an Apache Kafka is behind the connection and lives
(docs/transactions.md).
"""

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]


def run_under_kills(
    broker: BrokerProcess, libraries: list[str], folder: Path, *, kills: int, client_kills: int
) -> list[Worker]:
    """client_kills: after how many kills of the broker a worker is killed too; 0 for never."""

    def kill(number: int, workers: list[Worker]) -> None:
        broker.kill()
        if client_kills and number % client_kills == 0:
            victim = workers[number // client_kills % len(workers)]
            victim.kill()
            victim.start()
        broker.start()

    return run_under(kill, kills, broker.bootstrap_servers, libraries, folder)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", overrides=OVERRIDES, start_timeout_s=120) as process:
        yield process


def test_each_effect_once_in_a_few_kills(broker: BrokerProcess, tmp_path: Path) -> None:
    run_under_kills(broker, ["confluent", "aiokafka"], tmp_path, kills=3, client_kills=0)


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.timeout(3600)
@pytest.mark.skipif(java_problem() is not None, reason=java_problem() or "")
def test_each_effect_once_in_a_hundred_kills(broker: BrokerProcess, tmp_path: Path) -> None:
    kills = int(os.environ.get("KBROKER_TEST_KILLS", "100"))
    workers = run_under_kills(
        broker, ["java", "confluent", "aiokafka"], tmp_path, kills=kills, client_kills=10
    )
    complaints = {worker.name: worker.complaints for worker in workers}
    complaints["confluent"] = [
        line for line in complaints["confluent"] if not line.startswith(LIBRDKAFKAS_OWN)
    ]
    assert complaints == {"java": [], "confluent": [], "aiokafka": []}
