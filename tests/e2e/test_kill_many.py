"""200 times kill -9 under a mixed load of three client libraries: nothing acknowledged is lost,
idempotent producers' records stand once and in order, every file is sound.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kbroker.log.tools.findings import Problem
from kbroker.log.tools.verify import verify_folder
from kbroker.testing.process import BrokerProcess
from tests.clients.adapters import ConfluentAdapter, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.clients,
    pytest.mark.timeout(1500),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # in kafka-python
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

KILLS = 200
VERIFY_EVERY = 20
TOPIC = "load"
PARTITIONS = 3
GROUP = "committer"
MAX_UNACKNOWLEDGED = 300
PAUSE_S = 0.004
FILLER = b"lorem ipsum dolor " * 25


@dataclass(frozen=True)
class Kind:
    """A writer: which library, which codec, idempotent or not."""

    library: str
    codec: str
    idempotent: bool

    @property
    def name(self) -> str:
        return f"{self.library}-{self.codec}-{'once' if self.idempotent else 'plain'}"


KINDS = (
    Kind("confluent", "none", True),
    Kind("confluent", "lz4", True),
    Kind("confluent", "zstd", False),
    Kind("python", "gzip", True),
    Kind("python", "snappy", False),
    Kind("aio", "zstd", True),
    Kind("aio", "none", False),
)


class Writer:
    """Counts upwards in its own thread; notes where each number was acknowledged."""

    def __init__(self, kind: Kind, bootstrap: str) -> None:
        self.kind = kind
        self.bootstrap = bootstrap
        self.sent = 0
        self.done = 0
        self.acknowledged: dict[tuple[int, int], int] = {}
        self.failures: list[str] = []
        self.stopping = threading.Event()
        run: Callable[[], None] = {
            "confluent": self._confluent,
            "python": self._python,
            "aio": lambda: asyncio.run(self._aio()),
        }[kind.library]
        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        self.stopping.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), f"{self.kind.name} does not end"

    def _next(self) -> tuple[int, bytes, int] | None:
        """(partition, value, number) of the next record, None while too many are unanswered."""
        if self.sent - self.done >= MAX_UNACKNOWLEDGED:
            return None
        number = self.sent
        self.sent += 1
        value = b"%s %d %s" % (self.kind.name.encode(), number, FILLER[: number % 400])
        return number % PARTITIONS, value, number

    def _answered(self, number: int, partition: int, offset: int) -> None:
        self.done += 1
        self.acknowledged[partition, offset] = number

    def _failed(self, error: object) -> None:
        self.done += 1
        self.failures.append(repr(error))

    def _confluent(self) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": self.kind.idempotent,
                "acks": "all",
                "compression.type": self.kind.codec,
                "linger.ms": 5,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.max.ms": 200,
            }
        )

        def on_delivery(number: int) -> Callable[[Any, Any], None]:
            def callback(error: Any, message: Any) -> None:
                if error is None:
                    self._answered(number, message.partition(), message.offset())
                else:
                    self._failed(error)

            return callback

        while not self.stopping.is_set():
            record = self._next()
            if record is not None:
                partition, value, number = record
                producer.produce(TOPIC, value, partition=partition, on_delivery=on_delivery(number))
            producer.poll(PAUSE_S)
        if producer.flush(100):
            self.failures.append("not flushed")

    def _python(self) -> None:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            compression_type=None if self.kind.codec == "none" else self.kind.codec,
            enable_idempotence=self.kind.idempotent,
            acks="all",
            linger_ms=5,
            retries=1_000_000,
            delivery_timeout_ms=120_000,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=200,
            max_block_ms=120_000,
        )

        def on_success(number: int) -> Callable[[Any], None]:
            return lambda outcome: self._answered(number, outcome.partition, outcome.offset)

        while not self.stopping.is_set():
            record = self._next()
            if record is not None:
                partition, value, number = record
                future = producer.send(TOPIC, value, partition=partition)
                future.add_callback(on_success(number)).add_errback(self._failed)
            time.sleep(PAUSE_S)
        producer.flush(timeout=100)
        producer.close(timeout=10)

    async def _aio(self) -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            compression_type=None if self.kind.codec == "none" else self.kind.codec,
            enable_idempotence=self.kind.idempotent,
            acks="all",
            linger_ms=5,
            request_timeout_ms=120_000,
            retry_backoff_ms=50,
        )
        await producer.start()

        def on_done(number: int) -> Callable[[asyncio.Future[Any]], None]:
            def callback(future: asyncio.Future[Any]) -> None:
                error = future.exception()
                if error is None:
                    self._answered(number, future.result().partition, future.result().offset)
                else:
                    self._failed(error)

            return callback

        while not self.stopping.is_set():
            record = self._next()
            if record is not None:
                partition, value, number = record
                future = await producer.send(TOPIC, value, partition=partition)
                future.add_done_callback(on_done(number))
            await asyncio.sleep(PAUSE_S)
        await producer.stop()


class Committer:
    """A group member that commits as it reads; knows what was tried and what was acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import Consumer

        self.tried = dict.fromkeys(range(PARTITIONS), 0)
        self.committed = dict.fromkeys(range(PARTITIONS), 0)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 30_000,
                "reconnect.backoff.max.ms": 200,
            }
        )
        self._consumer.subscribe([TOPIC])
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        while not self._stopping.is_set():
            messages = [m for m in self._consumer.consume(300, 0.1) if m.error() is None]
            ends = {message.partition(): message.offset() + 1 for message in messages}
            if not ends:
                continue
            for partition, offset in ends.items():
                self.tried[partition] = max(self.tried[partition], offset)
            try:
                done = self._consumer.commit(
                    offsets=[TopicPartition(TOPIC, p, o) for p, o in ends.items()],
                    asynchronous=False,
                )
            except KafkaException:
                continue  # the broker was away: whether it is stored is not known
            for item in done or ():
                if item.error is None:
                    self.committed[item.partition] = item.offset

    def finish(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        self._consumer.close()


class Topics:
    """Makes and deletes topics; knows which must be there, which must not."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka.admin import AdminClient

        self.admin = AdminClient({"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 200})
        self.made: set[str] = set()
        self.deleted: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            number += 1
            name = f"short-lived-{number}"
            if self._try(self._make(name)):
                self.made.add(name)
            if number % 2 and self.made:
                doomed = min(self.made, key=lambda topic: int(topic.rpartition("-")[2]))
                self.made.discard(doomed)
                if self._try(self.admin.delete_topics([doomed], request_timeout=2)[doomed]):
                    self.deleted.add(doomed)
            self._stopping.wait(0.2)

    def _make(self, name: str) -> Any:
        from confluent_kafka.admin import NewTopic

        return self.admin.create_topics([NewTopic(name, 2, 1)], request_timeout=2)[name]

    def _try(self, outcome: Any) -> bool:
        from confluent_kafka import KafkaException

        try:
            outcome.result(10)
        except KafkaException:
            return False  # the broker was away: whether it was done is not known
        return True

    def finish(self) -> None:
        self._stopping.set()
        self._thread.join(30)
        names = set(self.admin.list_topics(timeout=20).topics)
        assert self.made <= names
        assert not self.deleted & names
        assert len(self.deleted) > 10


def check_partition(bootstrap: str, partition: int, writers: list[Writer]) -> int:
    """Every acknowledged record stands at its offset; those of idempotent writers stand once and
    in order. Returns how many records there are.
    """
    wanted = {
        offset: (writer.kind.name, number)
        for writer in writers
        for (written_to, offset), number in writer.acknowledged.items()
        if written_to == partition
    }
    end = max(wanted) + 1
    received = ConfluentAdapter(bootstrap).read(TOPIC, partition, end)
    assert [record.offset for record in received[:end]] == list(range(end))
    found: dict[int, tuple[str, int]] = {}
    for record in received:
        name, number, filler = (record.value or b"").split(b" ", 2)
        assert filler == FILLER[: int(number) % 400]
        found[record.offset] = (name.decode(), int(number))
    missing = {offset: what for offset, what in wanted.items() if found.get(offset) != what}
    assert missing == {}
    for writer in writers:
        if writer.kind.idempotent:
            numbers = [number for name, number in found.values() if name == writer.kind.name]
            assert numbers == sorted(set(numbers)), writer.kind.name
    return len(received)


def check_files(data: Path) -> None:
    """Recover where no client comes, stop in order, and check every file."""
    with BrokerProcess(data, log=data.with_name("apart.log")) as apart:
        assert apart.stop() == 0
    assert [str(item) for item in verify_folder(data) if isinstance(item, Problem)] == []


@pytest.fixture
def quiet_clients() -> Iterator[None]:
    """Without their thousands of lines of a broker that is away. pytest would keep each with its
    exception, and with the exception the socket that kafka-python leaves open when it is refused.
    """
    loggers = [logging.getLogger(name) for name in ("kafka", "aiokafka", "asyncio")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    overrides = {
        "log.segment.bytes": "1048576",
        "log.index.interval.bytes": "1024",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "4",
        "log.flush.interval.messages": "2000",
    }
    with BrokerProcess(tmp_path / "data", overrides=overrides) as process:
        yield process


@pytest.mark.usefixtures("quiet_clients")
def test_nothing_acknowledged_is_lost_in_two_hundred_kills(broker: BrokerProcess) -> None:
    bootstrap = broker.bootstrap_servers
    ConfluentAdapter(bootstrap).create_topic(TOPIC, PARTITIONS)
    writers = [Writer(kind, bootstrap) for kind in KINDS]
    committer, topics = Committer(bootstrap), Topics(bootstrap)
    moment = random.Random(200)
    for kill in range(1, KILLS + 1):
        before = [len(writer.acknowledged) for writer in writers]
        wait_until(
            lambda before=before: all(
                len(writer.acknowledged) > count + 20
                for writer, count in zip(writers, before, strict=True)
            ),
            60,
            f"records acknowledged after kill {kill}; broker log: {broker.log}",
        )
        time.sleep(moment.uniform(0.0, 0.3))
        broker.kill()
        if kill % VERIFY_EVERY == 0:
            check_files(broker.data)
        gc.collect()  # closes the sockets that kafka-python left open, before there are too many
        broker.start()
    for writer in writers:
        writer.finish()
    committer.finish()
    topics.finish()
    gc.collect()  # while the warnings of those sockets are let pass
    broker.kill()
    check_files(broker.data)
    broker.start()
    total = sum(check_partition(bootstrap, p, writers) for p in range(PARTITIONS))
    acknowledged = sum(len(writer.acknowledged) for writer in writers)
    assert [failure for writer in writers for failure in writer.failures] == []
    assert total >= acknowledged == sum(writer.sent for writer in writers)
    stored = stored_commits(bootstrap)
    for partition in range(PARTITIONS):
        assert committer.committed[partition] <= stored[partition] <= committer.tried[partition]
    assert min(stored.values()) > 0


def stored_commits(bootstrap: str) -> dict[int, int]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    try:
        found = consumer.committed(
            [TopicPartition(TOPIC, p) for p in range(PARTITIONS)], timeout=30
        )
        return {item.partition: max(item.offset, 0) for item in found}
    finally:
        consumer.close()
