"""The same requests to Apache Kafka and to kbroker leave the same files: names, segments, indexes,
epochs and producers, byte for byte. Rolls by size, age and full index; idempotent producers;
retention by size and time; preallocation; compaction; a second life after a clean stop. And of
transactions everything but the clock's part.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kbroker.log.producer.producer_state import read_snapshot
from kbroker.log.storage.names import LEADER_EPOCHS
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.configs import IncrementalAlterConfigsRequest
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest
from kbroker.protocol.messages.coordinators.groups import FindCoordinatorRequest
from kbroker.protocol.messages.coordinators.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    InitProducerIdRequest,
)
from kbroker.protocol.messages.list_offsets import ListOffsetsResponse
from kbroker.protocol.messages.produce import ProduceResponse
from kbroker.testing.process import BrokerProcess
from scripts.apache_kafka import ApacheKafka
from spark_jobs.java import java_problem
from tests.clients.adapters import wait_until
from tests.e2e.wire import call
from tests.log.recovery.test_recovery import producers_of
from tests.reference.log_steps import create, list_offsets, produce

pytestmark = [
    pytest.mark.reference,
    pytest.mark.timeout(400),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

OVERRIDES = {
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "500",
    "log.segment.delete.delay.ms": "0",
    "log.cleaner.backoff.ms": "200",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
SMALL = {"internal_segment_bytes": "4096", "index_interval_bytes": "200"}
TOPICS: Mapping[str, Mapping[str, str]] = {
    "sized": {"internal_segment_bytes": "4096", "index_interval_bytes": "512"},
    "aged": {"segment_ms": "10000", "index_interval_bytes": "0"},
    "full": {"segment_index_bytes": "64", "index_interval_bytes": "0"},
    "sparse": {"index_interval_bytes": "4096"},
    "producers": {"internal_segment_bytes": "6000", "index_interval_bytes": "100"},
    "kept": {"internal_segment_bytes": "4096", "retention_bytes": "15000"},
    "expired": {"internal_segment_bytes": "4096", "retention_ms": "1000"},
    "preallocated": {"internal_segment_bytes": "8192", "preallocate": "true"},
    "table": {
        "flush_messages": "1",  # we clean what is flushed: all of it at once, as Kafka does
        "internal_segment_bytes": "4096",
        "index_interval_bytes": "256",
        "min_cleanable_dirty_ratio": "0.01",
    },
}
TRANSACTIONS = "transactions"
BUSY = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
COMPARED = {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
Batches = Iterator[bytearray]
Ask = Callable[[Message, int], Message]


def now_ms() -> int:
    return int(time.time() * 1000)


def batches_of(topic: str, start_ms: int) -> Batches:
    """What is sent to a topic, the same to either broker."""
    rng = random.Random(topic)
    for number in range(120):
        count = rng.randrange(1, 6)
        spread_ms = 3_000 if topic == "aged" else 7
        records = [
            (
                start_ms + number * spread_ms + rng.randrange(-20, 20),
                b"key %d" % rng.randrange(20),
                rng.randbytes(rng.randrange(10, 400)),
                [(b"header", b"x")] if rng.random() < 0.2 else [],
            )
            for _ in range(count)
        ]
        codec = Compression.NONE if topic == "table" else list(Compression)[number % 5]
        yield build_batch(records, compression=codec)


def idempotent_batches(start_ms: int) -> Batches:
    """Of five producers, one of which goes on in a new epoch."""
    rng = random.Random(7)
    sequences: dict[tuple[int, int], int] = {}
    for number in range(120):
        producer = (1000 + number % 5, 1 if number % 5 == 0 and number > 60 else 0)
        count = rng.randrange(1, 4)
        values = [(start_ms + number, b"k", rng.randbytes(rng.randrange(200)), ())] * count
        first = sequences.get(producer, 0)
        sequences[producer] = first + count
        yield build_batch(
            values, producer_id=producer[0], producer_epoch=producer[1], base_sequence=first
        )


class Transactions:
    """Two producers whose transactions overlap, every third aborted, with plain records between."""

    def __init__(self, ask: Ask, start_ms: int) -> None:
        self._ask = ask
        self._start_ms = start_ms
        self._rng = random.Random(3)
        self._offset = 0
        self._sequences = {"a": 0, "b": 0}
        self._ids = {name: self._producer_id(name) for name in self._sequences}

    def run(self) -> None:
        for number in range(40):
            first, second = ("a", "b") if number % 4 < 2 else ("b", "a")
            for name in (first, second, first):
                self._send(name)
            self._end(first, commit=number % 3 > 0)
            wait_until(self._plain, 30, "a plain batch")
            self._offset += 1
            self._send(second)
            self._end(second, commit=number % 5 > 0)

    def _until(self, message: Message, version: int, what: str) -> Any:
        """Ask again while the coordinator is busy with the last transaction, or loads."""
        answers: list[Any] = []

        def is_answered() -> bool:
            answer: Any = self._ask(message, version)
            if isinstance(answer, AddPartitionsToTxnResponse):
                (topic,) = answer.results_by_topic_v3_and_below
                code = topic.results_by_partition[0].partition_error_code
            else:
                code = answer.error_code
            assert code in (0, *BUSY), (what, code)
            answers.append(answer)
            return code == 0

        wait_until(is_answered, 30, what)
        return answers[-1]

    def _producer_id(self, name: str) -> int:
        self._until(FindCoordinatorRequest(key=name, key_type=1), 3, "a coordinator")
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        return int(self._until(request, 4, "a producer id").producer_id)

    def _send(self, name: str) -> None:
        """A batch, in the transaction that it may begin."""
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=TRANSACTIONS, partitions=[0])
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=self._ids[name],
            v3_and_below_topics=[topic],
        )
        self._until(add, 3, "a partition in a transaction")
        count = self._rng.randrange(1, 4)
        value = self._rng.randbytes(self._rng.randrange(200))
        batch = build_batch(
            [(self._start_ms, b"k", value, ())] * count,
            producer_id=self._ids[name],
            producer_epoch=0,
            base_sequence=self._sequences[name],
            is_transactional=True,
        )
        self._sequences[name] += count
        self._offset += count
        request = produce(TRANSACTIONS, batch)
        request.transactional_id = name
        answer: Any = self._ask(request, 9)
        assert answer.responses[0].partition_responses[0].error_code == 0

    def _plain(self) -> bool:
        batch = build_batch([(self._start_ms, b"k", b"plain", ())])
        return accepted(self._ask, TRANSACTIONS, batch)

    def _end(self, name: str, *, commit: bool) -> None:
        request = EndTxnRequest(
            transactional_id=name, producer_id=self._ids[name], committed=commit
        )
        self._until(request, 3, "the end of a transaction")
        self._offset += 1
        wait_until(lambda: end_of(self._ask) == self._offset, 30, "its marker")


def end_of(ask: Ask) -> int:
    answer = ask(list_offsets(TRANSACTIONS, -1), 7)
    assert isinstance(answer, ListOffsetsResponse)
    return answer.topics[0].partitions[0].offset


def compact(topic: str) -> IncrementalAlterConfigsRequest:
    config = IncrementalAlterConfigsRequest.AlterableConfig(
        name="cleanup.policy", config_operation=0, value="compact"
    )
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=2, resource_name=topic, configs=[config]
    )
    return IncrementalAlterConfigsRequest(resources=[resource])


def converse(port: int, data: Path, start_ms: int) -> None:
    """The whole load, and the wait for what the broker does by itself."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:

        def ask(message: Message, version: int) -> Message:
            return call(connection, message, version)

        configs = {TRANSACTIONS: SMALL, **TOPICS}
        topics = [create(name, **values) for name, values in configs.items()]
        made = ask(CreateTopicsRequest(topics=topics, timeout_ms=20_000), 7)
        assert {topic.error_code for topic in made.topics} == {0}  # type: ignore[attr-defined]  # the response
        for topic in TOPICS:
            sent = idempotent_batches if topic == "producers" else None
            batches = sent(start_ms) if sent else batches_of(topic, start_ms)
            for batch in batches:
                wait_until(lambda t=topic, b=batch: accepted(ask, t, b), 30, f"a batch to {topic}")
        Transactions(ask, start_ms).run()
        ask(compact("table"), 1)
        wait_until(lambda: earliest(ask, "kept") > 0 and settled(data), 60, "retention, cleaning")


def go_on(port: int, start_ms: int) -> None:
    """The life after a clean stop: a leader of a later epoch."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        for topic in ("sized", "sparse", "producers"):
            for batch in batches_of(topic, start_ms + 1_000_000):
                wait_until(
                    lambda t=topic, b=batch: accepted(partial(call, connection), t, b),
                    60,
                    f"a batch to {topic}",
                )


def accepted(ask: Ask, topic: str, batch: bytearray) -> bool:
    answer = ask(produce(topic, bytearray(batch)), 9)
    assert isinstance(answer, ProduceResponse)
    code = answer.responses[0].partition_responses[0].error_code
    assert code in (0, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), code
    return code == 0


def earliest(ask: Ask, topic: str) -> int:
    answer = ask(list_offsets(topic, -2), 7)
    assert isinstance(answer, ListOffsetsResponse)
    return answer.topics[0].partitions[0].offset


def settled(data: Path) -> bool:
    """The table is compacted, and as much of `kept` and `expired` is gone as may go."""
    checkpoint = data / "cleaner-offset-checkpoint"
    cleaned = checkpoint.exists() and "table 0 " in checkpoint.read_text()
    return (
        cleaned and log_bytes(data / "kept-0") < 15_000 + 4096 and not log_bytes(data / "expired-0")
    )


def log_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


def left(data: Path) -> dict[str, object]:
    """The files of all topics; producers in an order of their own."""
    return {
        f"{topic}/{path.name}": producers_of(content) if path.suffix == ".snapshot" else content
        for topic in TOPICS
        for path in sorted((data / f"{topic}-0").iterdir())
        if path.suffix in COMPARED or path.name == LEADER_EPOCHS
        if (content := path.read_bytes()) is not None
    }


def outline(data: Path) -> dict[str, object]:
    """What transactions left, without times and CRCs: a marker has the broker's clock."""
    found: dict[str, object] = {}
    for path in sorted((data / f"{TRANSACTIONS}-0").iterdir()):
        content = path.read_bytes()
        if path.suffix in (".index", ".txnindex") or path.name == LEADER_EPOCHS:
            found[path.name] = content
        elif path.suffix == ".log":
            found[path.name] = [
                (
                    position, header.base_offset, header.last_offset, header.attributes,
                    header.producer_id, header.producer_epoch, header.base_sequence,
                    [(record.key, record.value) for record in iter_records(content[position:])],
                )
                for position, header in iter_batches(content)
            ]  # fmt: skip
        elif path.suffix == ".snapshot":
            found[path.name] = sorted(
                (
                    state.producer_id, state.producer_epoch, state.coordinator_epoch,
                    state.transaction_first_offset or -1,
                    [(batch.last_sequence, batch.last_offset) for batch in state.batches],
                )
                for state in read_snapshot(content)
            )  # fmt: skip
    return found


def test_the_same_requests_leave_the_same_files(tmp_path: Path) -> None:
    start_ms = now_ms() - 3_600_000
    folders = {"kafka": tmp_path / "kafka", "kbroker": tmp_path / "kbroker"}
    with ApacheKafka(folders["kafka"], overrides=OVERRIDES) as kafka:
        wait_until(lambda: is_awake(kafka.port), 60, "Kafka is unfenced")
        converse(kafka.port, folders["kafka"], start_ms)
        kafka.stop()
        kafka.start()
        go_on(kafka.port, start_ms)
    with BrokerProcess(folders["kbroker"], overrides=OVERRIDES) as kbroker:
        converse(kbroker.port, folders["kbroker"], start_ms)
        kbroker.stop()
        kbroker.start()
        go_on(kbroker.port, start_ms)
    theirs, ours = left(folders["kafka"]), left(folders["kbroker"])
    assert outline(kbroker.data) == outline(kafka.data)
    assert len(list((kbroker.data / f"{TRANSACTIONS}-0").glob("*.txnindex"))) > 3
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []
    assert (kbroker.data / "sized-0" / LEADER_EPOCHS).read_text().startswith("0\n2\n0 0\n")
    assert log_bytes(kbroker.data / "table-0") < sum(map(len, batches_of("table", start_ms))) / 3
    for topic, least in {"sized": 8, "aged": 20, "full": 10, "producers": 3, "kept": 3}.items():
        assert len([n for n in ours if n.startswith(f"{topic}/") and n.endswith(".log")]) > least


def is_awake(port: int) -> bool:
    from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse

    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        answer = call(connection, MetadataRequest(topics=[]), 9)
    assert isinstance(answer, MetadataResponse)
    return bool(answer.brokers)
