"""What transactions of many kinds left behind: Kafka's dump tool finds nothing wrong in it, and a
Kafka that starts on it has the same transactions, completed, ongoing and hanging.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from kbroker.log.tools.dump import dump_file
from kbroker.testing import EmbeddedBroker
from scripts.ports import free_port
from spark_jobs.java import java_problem
from tests.cli.conftest import Cli, cli
from tests.cli.test_transactions import HANGING_ID, hang
from tests.clients.adapters import wait_until
from tests.e2e.test_transaction_versions import set_level
from tests.reference.test_directories import DECODERS, complaints, kafka_dump
from tests.reference.test_log_dirs import kafka

__all__ = ["cli"]

pytestmark = [
    pytest.mark.reference,
    pytest.mark.timeout(400),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

TOPIC = "mixed"
PARTITIONS = 3
QUARTER_HOUR_MS = 900_000


def producer(bootstrap: str, transactional_id: str, timeout_ms: int = QUARTER_HOUR_MS) -> Any:
    from confluent_kafka import Producer

    made = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "log_level": 0,
        }
    )
    made.init_transactions(20)
    return made


def write(one: Any, count: int) -> None:
    one.begin_transaction()
    for number in range(count):
        one.produce(TOPIC, b"%d" % number * 20, partition=number % PARTITIONS)
    assert one.flush(20) == 0


def send_offsets(one: Any, bootstrap: str, offset: int) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers", "log_level": 0})
    try:
        one.send_offsets_to_transaction(
            [TopicPartition(TOPIC, 0, offset)], consumer.consumer_group_metadata(), 20
        )
    finally:
        consumer.close()


def mixed_load(broker: EmbeddedBroker) -> list[Any]:
    """Commits, aborts, offsets, a successor, a fenced producer, one that is open, one that hangs;
    half of it under transaction.version 0. Gives the producers that must live on.
    """
    bootstrap = broker.bootstrap_servers
    broker.create_topic(TOPIC, partitions=PARTITIONS, configs={"segment.bytes": "1048576"})
    kept = []
    for level in (0, 2):
        assert asyncio.run(set_level(bootstrap, "transaction.version", level)) == 0
        one = producer(bootstrap, f"worker-{level}")
        for number in range(30):
            write(one, 40)
            if number % 3 == 0:
                send_offsets(one, bootstrap, number + 1)
            if number % 4 == 3:
                one.abort_transaction(20)
            else:
                one.commit_transaction(20)
        write(one, 10)
        successor = producer(bootstrap, f"worker-{level}")
        write(successor, 5)
        successor.commit_transaction(20)
        ongoing = producer(bootstrap, f"ongoing-{level}")
        write(ongoing, 4)
        kept += [one, successor, ongoing]
    hang(broker, TOPIC)
    return kept


def names_of(cli: Cli, bootstrap: str) -> list[str]:
    return cli("transactions", "list", "-b", bootstrap).lines


def said(cli: Cli, bootstrap: str) -> tuple[list[Any], list[Any], list[Any]]:
    """What `kbroker transactions` says of a cluster, without what passes with time."""

    def rows(*arguments: str) -> list[Any]:
        result = cli("transactions", *arguments, "-b", bootstrap, "--json")
        assert result.code == 0, result.err
        found = [json.loads(line) for line in result.lines]
        for row in found:
            for passing in ("open_for_ms", "open_for_minutes"):
                row.pop(passing, None)
        return found

    listed = rows("list")
    names = [row["transactional_id"] for row in listed]
    return listed, rows("describe", *names), rows("find-hanging", "--topic", TOPIC)


def test_a_mixed_transactional_load(tmp_path: Path, cli: Cli) -> None:
    controller_port = free_port()
    original, copy = tmp_path / "original", tmp_path / "copy"
    overrides = {
        "log.dirs": f"{original / 'd1'},{original / 'd2'}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
    }
    with EmbeddedBroker(overrides, data=original) as broker:
        kept = mixed_load(broker)
        listed, described, hanging = before = said(cli, broker.bootstrap_servers)
    del kept
    assert {row["transactional_id"]: row["state"] for row in listed} == {
        "worker-0": "CompleteCommit",
        "worker-2": "CompleteCommit",
        "ongoing-0": "Ongoing",
        "ongoing-2": "Ongoing",
    }
    partitions = {row["transactional_id"]: row["partitions"] for row in described}
    assert partitions["ongoing-2"] == [f"{TOPIC}-{n}" for n in range(PARTITIONS)]
    assert [row["producer_id"] for row in hanging] == [HANGING_ID]
    for name in ("d1", "d2"):
        assert complaints(original / name) == []
    option, text = DECODERS["__transaction_state-*"]
    for path in sorted(original.glob("*/__transaction_state-*/*.log")):
        if path.stat().st_size:
            _, *lines = kafka_dump(option, "--files", str(path))
            assert list(dump_file(path, record_text=text)) == lines
    shutil.copytree(original, copy)
    with kafka(copy, controller_port) as bootstrap:
        # Its coordinators are silent, not absent, until they have been told of their partitions.
        wait_until(lambda: len(names_of(cli, bootstrap)) == len(listed), 60, "all are loaded")
        assert said(cli, bootstrap) == before
        start = str(hanging[0]["start_offset"])
        aborted = cli("transactions", "abort", TOPIC, "0", "--start-offset", start, "-b", bootstrap)
        assert aborted.code == 0, aborted.err
        assert said(cli, bootstrap)[2] == []
