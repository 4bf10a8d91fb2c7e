"""`kbroker transactions` against a broker, beside what Kafka's tool says of the same."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kbroker.log.validator import AppendOrigin
from kbroker.model import TopicPartition
from kbroker.node.node import Broker
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.testing import EmbeddedBroker
from spark_jobs.java import java_problem
from tests.clients.kafka_tools import KafkaTools

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

Kbroker = Callable[..., Any]
HANGING_ID = 77_000


@pytest.fixture
def producers(kafka_broker: EmbeddedBroker, kafka_topic: str) -> Iterator[dict[str, Any]]:
    """`done` has committed, `undone` aborted, `open` has written and done neither."""
    from confluent_kafka import Producer

    made = {}
    for name in ("done", "undone", "open"):
        transactional_id = f"{name}-{kafka_topic}"
        producer = Producer(
            {
                "bootstrap.servers": kafka_broker.bootstrap_servers,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 600_000,  # Kafka's tools take their time
                "log_level": 0,
            }
        )
        producer.init_transactions(10)
        producer.begin_transaction()
        producer.produce(kafka_topic, b"x", partition=0)
        assert producer.flush(10) == 0
        made[transactional_id] = producer
    made[f"done-{kafka_topic}"].commit_transaction(10)
    made[f"undone-{kafka_topic}"].abort_transaction(10)
    yield made
    made[f"open-{kafka_topic}"].abort_transaction(10)


def hang(broker: EmbeddedBroker, topic: str) -> int:
    """A transaction of an hour ago that no coordinator knows of; its start offset."""
    batch = build_batch(
        [(int(time.time() * 1000) - 3_600_000, b"k", b"v", ())],
        producer_id=HANGING_ID,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )

    def append(running: Broker) -> int:
        outcome = running.services.replicas.append(
            TopicPartition(topic, 0),
            batch,
            acks=1,
            timeout_ms=1_000,
            origin=AppendOrigin.CLIENT,
        )
        assert outcome.error == 0  # type: ignore[union-attr]  # acks=1 is answered at once
        return outcome.base_offset  # type: ignore[union-attr]  # it was appended

    return broker.call(append)


def table_of(output: str) -> list[dict[str, str]]:
    names, *rows = [line.split() for line in output.splitlines() if line.strip()]
    return [dict(zip(names, row, strict=False)) for row in rows]


def rows_of(result: Any) -> list[dict[str, Any]]:
    assert result.code == 0, result.err
    return [json.loads(line) for line in result.lines]


def test_list(kbroker: Kbroker, producers: dict[str, Any], kafka_topic: str) -> None:
    pattern = f".*-{kafka_topic}"
    listed = rows_of(kbroker("transactions", "list", "--pattern", pattern, "--json"))
    assert [(row["transactional_id"].partition("-")[0], row["state"]) for row in listed] == [
        ("done", "CompleteCommit"),
        ("open", "Ongoing"),
        ("undone", "CompleteAbort"),
    ]
    ongoing = kbroker("transactions", "list", "--pattern", pattern, "--state", "Ongoing")
    assert [line.split("\t")[0] for line in ongoing.lines] == [f"open-{kafka_topic}"]
    longer = ("--longer-than", "3600000", "--state", "Ongoing")
    assert kbroker("transactions", "list", *longer).lines == []


def test_describe(kbroker: Kbroker, producers: dict[str, Any], kafka_topic: str) -> None:
    names = [f"open-{kafka_topic}", f"done-{kafka_topic}"]
    ongoing, done = rows_of(kbroker("transactions", "describe", *names, "--json"))
    assert (ongoing["state"], ongoing["partitions"]) == ("Ongoing", [f"{kafka_topic}-0"])
    assert 0 <= ongoing["open_for_ms"] < 60_000
    assert (done["state"], done["partitions"]) == ("CompleteCommit", [])


def test_mistakes_are_one_line(kbroker: Kbroker) -> None:
    for arguments, code, words in [
        (("describe", "nobody"), 1, "TRANSACTIONAL_ID_NOT_FOUND"),
        (("list", "--state", "Nonsense"), 2, "Nonsense: no state of a transaction"),
        (("list", "--pattern", "("), 1, "INVALID_REGULAR_EXPRESSION"),
        (("find-hanging", "--partition", "0"), 2, "--partition needs --topic"),
        (("abort", "t", "0"), 2, "give --start-offset, or all of"),
        (("abort", "t", "0", "--producer-id", "1"), 2, "give --start-offset, or all of"),
    ]:
        result = kbroker("transactions", *arguments)
        assert (result.code, result.err.count("\n")) == (code, 1), result.err
        assert words in result.err


def test_a_pattern_that_would_take_for_ever(
    kbroker: Kbroker, producers: dict[str, Any], kafka_topic: str
) -> None:
    start = time.monotonic()
    assert kbroker("transactions", "list", "--pattern", "(([^z]+)+)+z").lines == []
    assert time.monotonic() - start < 10


def test_find_and_abort(
    kbroker: Kbroker, kafka_broker: EmbeddedBroker, producers: dict[str, Any], kafka_topic: str
) -> None:
    place = ("--topic", kafka_topic, "--partition", "0")
    assert kbroker("transactions", "find-hanging", *place).lines == []
    start = hang(kafka_broker, kafka_topic)
    (found,) = rows_of(kbroker("transactions", "find-hanging", *place, "--json"))
    assert (found["producer_id"], found["start_offset"]) == (HANGING_ID, start)
    assert found["open_for_minutes"] == 60
    everywhere = rows_of(kbroker("transactions", "find-hanging", "--json"))
    assert found in everywhere
    wrong = kbroker("transactions", "abort", kafka_topic, "0", "--start-offset", str(start + 1))
    assert "no transaction that begins at" in wrong.err
    aborted = kbroker("transactions", "abort", kafka_topic, "0", "--start-offset", str(start))
    assert (aborted.code, aborted.err) == (
        0,
        f"aborted the transaction of producer {HANGING_ID} in {kafka_topic}-0\n",
    )
    assert kbroker("transactions", "find-hanging", *place).lines == []


@pytest.mark.timeout(600)  # the first test that needs Kafka's jars fetches them
@pytest.mark.skipif(java_problem() is not None, reason=java_problem() or "")
def test_kafkas_tool_says_the_same(
    kbroker: Kbroker,
    kafka_tools: KafkaTools,
    kafka_broker: EmbeddedBroker,
    producers: dict[str, Any],
    kafka_topic: str,
) -> None:
    def tool(*arguments: str) -> str:
        to = ("--bootstrap-server", kafka_broker.bootstrap_servers)
        return kafka_tools.output("org.apache.kafka.tools.TransactionsCommand", *to, *arguments)

    listed = table_of(tool("list"))
    theirs = {
        (r["TransactionalId"], int(r["Coordinator"]), int(r["ProducerId"]), r["TransactionState"])
        for r in listed
    }
    ours = rows_of(kbroker("transactions", "list", "--json"))
    assert theirs == {tuple(row.values()) for row in ours}
    name = f"open-{kafka_topic}"
    (described,) = table_of(tool("describe", "--transactional-id", name))
    (row,) = rows_of(kbroker("transactions", "describe", name, "--json"))
    assert int(described["ProducerId"]) == row["producer_id"]
    assert int(described["ProducerEpoch"]) == row["producer_epoch"]
    assert described["TransactionState"] == row["state"]
    assert int(described["TransactionTimeoutMs"]) == row["timeout_ms"]
    assert int(described["CurrentTransactionStartTimeMs"]) == row["start_ms"]
    assert described["TopicPartitions"].split(",") == row["partitions"]
    start = hang(kafka_broker, kafka_topic)
    place = ("--topic", kafka_topic, "--partition", "0")
    (hanging,) = table_of(tool("find-hanging", *place))
    (row,) = rows_of(kbroker("transactions", "find-hanging", *place, "--json"))
    assert hanging["Topic"] == row["topic"]
    assert int(hanging["ProducerId"]) == row["producer_id"]
    assert int(hanging["ProducerEpoch"]) == row["producer_epoch"]
    assert int(hanging["CoordinatorEpoch"]) == row["coordinator_epoch"]
    assert int(hanging["StartOffset"]) == row["start_offset"] == start
    assert int(hanging["LastTimestamp"]) == row["last_timestamp"]
    tool("abort", *place, "--start-offset", str(start))
    assert kbroker("transactions", "find-hanging", *place).lines == []
