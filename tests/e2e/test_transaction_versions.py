"""transaction.version goes down and up again while producers of Kafka's own, librdkafka's and
aiokafka's kind run: no effect is lost or doubled, whichever version a transaction began with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.client.cluster import Client
from kbroker.coordinator.transaction.records import TransactionRecord, decode_transaction_record
from kbroker.coordinator.transaction.state import TransactionState
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import UpdateFeaturesRequest, UpdateFeaturesResponse
from kbroker.testing.process import BrokerProcess
from spark_jobs.java import java_problem
from tests.clients.kafka_tools import KafkaTools
from tests.e2e.transaction_loops import OVERRIDES, Worker, run_under

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(300),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

LEVELS = ((1, True), (2, True), (0, False), (2, False))
"""Levels, and whether the broker is killed then: clients ask for features when they connect."""
COMPLETE = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", overrides=OVERRIDES) as process:
        yield process


def level_in(described: str, feature: str) -> int:
    for line in described.splitlines():
        if line.startswith(f"Feature: {feature} "):
            return int(line.split("FinalizedVersionLevel:")[1].split()[0])
    raise AssertionError(f"{feature} is not described")


async def set_level(bootstrap: str, feature: str, level: int) -> int:
    update = UpdateFeaturesRequest.FeatureUpdateKey(feature=feature, max_version_level=level)
    update.upgrade_type = 1 if level == 2 else 2
    async with Client(bootstrap) as client:
        request = UpdateFeaturesRequest(feature_updates=[update])
        return (await client.to_controller(request, UpdateFeaturesResponse)).error_code


def versions_in(data: Path, transactional_id: str) -> list[int]:
    """The transaction versions in which this id has ended transactions, one after the other."""
    found: list[int] = []
    for path in sorted(data.glob("__transaction_state-*/*.log")):
        log = path.read_bytes()
        for position, header in iter_batches(log):
            for record in iter_records(log[position : position + header.size_bytes], header):
                decoded = decode_transaction_record(record.key, record.value)
                if not isinstance(decoded, TransactionRecord):
                    continue
                ended = decoded.transaction
                if ended.transactional_id != transactional_id or ended.state not in COMPLETE:
                    continue
                if found[-1:] != [ended.client_version]:
                    found.append(ended.client_version)
    return found


def test_a_switch_under_running_producers(broker: BrokerProcess, tmp_path: Path) -> None:
    def switch(number: int, workers: list[Worker]) -> None:
        del workers
        level, with_kill = LEVELS[number - 1]
        error = asyncio.run(set_level(broker.bootstrap_servers, "transaction.version", level))
        assert error == ErrorCode.NONE
        if with_kill:
            broker.kill()
            broker.start()

    libraries = ["java", "confluent", "aiokafka"]
    run_under(switch, len(LEVELS), broker.bootstrap_servers, libraries, tmp_path)
    broker.stop()
    # Without a kill it notices if it happens to open a connection.
    assert versions_in(broker.data, "java")[:3] == [2, 0, 2]
    assert versions_in(broker.data, "confluent") == [0]  # they know version 1 at most
    assert versions_in(broker.data, "aiokafka") == [0]


def test_kafkas_tool_switches_and_the_level_outlives_a_kill(
    broker: BrokerProcess, kafka_tools: KafkaTools
) -> None:
    def tool(*arguments: str) -> str:
        to = ("--bootstrap-server", broker.bootstrap_servers)
        return kafka_tools.output("org.apache.kafka.tools.FeatureCommand", *to, *arguments)

    assert level_in(tool("describe"), "transaction.version") == 2
    printed = tool("downgrade", "--feature", "transaction.version=1")
    assert printed == "transaction.version was downgraded to 1.\n"
    broker.kill()
    broker.start()
    assert level_in(tool("describe"), "transaction.version") == 1
    assert tool("version-mapping").startswith("metadata.version=30 (4.3-IV0)")
