"""Transactions with the clients that have them: librdkafka, aiokafka, kafka-python.

A commit is read, an abort is not; offsets go with the transaction; a former producer is fenced.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

Offsets = dict[tuple[str, int], int]


class Transactional(Protocol):
    """What the test asks of a client library. Each call ends when its answer is there."""

    def begin(self) -> None: ...
    def send(self, topic: str, partition: int, value: bytes) -> None: ...
    def send_offsets(self, group: str, offsets: Offsets) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Confluent:
    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        from confluent_kafka import Producer

        self._bootstrap = bootstrap
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(30)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._producer.produce(topic, value, partition=partition)
        self._producer.flush(30)

    def send_offsets(self, group: str, offsets: Offsets) -> None:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": group})
        try:
            self._producer.send_offsets_to_transaction(
                [TopicPartition(*key, offset) for key, offset in offsets.items()],
                consumer.consumer_group_metadata(),
                30,
            )
        finally:
            consumer.close()

    def commit(self) -> None:
        self._producer.commit_transaction(30)

    def abort(self) -> None:
        self._producer.abort_transaction(30)

    def close(self) -> None:
        self._producer.purge()


class KafkaPython:
    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        from kafka import KafkaProducer

        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=transactional_id
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._producer.send(topic, value, partition=partition).get(30)

    def send_offsets(self, group: str, offsets: Offsets) -> None:
        from kafka import TopicPartition
        from kafka.structs import OffsetAndMetadata

        self._producer.send_offsets_to_transaction(
            {
                TopicPartition(*key): OffsetAndMetadata(offset, "", -1)
                for key, offset in offsets.items()
            },
            group,
        )

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=1)


class Aiokafka:
    """On a loop of its own, which runs while a call does."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._loop = asyncio.new_event_loop()

        async def start() -> Any:
            from aiokafka import AIOKafkaProducer

            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap, transactional_id=transactional_id
            )
            await producer.start()
            return producer

        self._producer = self._run(start())

    def _run(self, coroutine: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(coroutine, 30))

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._run(self._producer.send_and_wait(topic, value, partition=partition))

    def send_offsets(self, group: str, offsets: Offsets) -> None:
        from aiokafka import TopicPartition

        asked = {TopicPartition(*key): offset for key, offset in offsets.items()}
        self._run(self._producer.send_offsets_to_transaction(asked, group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        self._run(self._producer.stop())
        self._loop.close()


LIBRARIES = {"confluent-kafka": Confluent, "kafka-python": KafkaPython, "aiokafka": Aiokafka}


@pytest.fixture(params=sorted(LIBRARIES))
def connect(
    request: pytest.FixtureRequest, bootstrap: str
) -> Iterator[Callable[[str], Transactional]]:
    made: list[Transactional] = []

    def connect(transactional_id: str) -> Transactional:
        made.append(LIBRARIES[request.param](bootstrap, transactional_id))
        return made[-1]

    yield connect
    for client in made:
        client.close()


def create_topic(bootstrap: str, topic: str, partitions: int = 2) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for outcome in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        outcome.result(20)


def read(bootstrap: str, topic: str, *, committed: bool = True) -> list[bytes]:
    """All records up to the end that this isolation level sees."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    try:
        partitions = consumer.list_topics(topic, 20).topics[topic].partitions
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in partitions])
        values: list[bytes] = []
        ended: set[int] = set()
        deadline = time.monotonic() + 30
        while len(ended) < len(partitions):
            assert time.monotonic() < deadline
            message = consumer.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                values.append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
        return values
    finally:
        consumer.close()


def offset_of(bootstrap: str, group: str, topic: str, partition: int = 0) -> int:
    """What the group has committed; waits for transactions that hold it."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(topic, partition)], timeout=20)
        return int(found.offset)
    finally:
        consumer.close()


def test_commits_are_read_and_aborts_are_not(
    bootstrap: str, connect: Callable[[str], Transactional], new_name: Callable[[str], str]
) -> None:
    topic = new_name("txn")
    create_topic(bootstrap, topic)
    producer = connect(new_name("tx"))
    for number in range(8):
        producer.begin()
        for partition in range(2):
            producer.send(topic, partition, b"%d" % number)
        if number % 3 == 2:
            producer.abort()
        else:
            producer.commit()
    expected = [b"0", b"1", b"3", b"4", b"6", b"7"]
    assert sorted(read(bootstrap, topic)) == sorted(expected * 2)
    assert len(read(bootstrap, topic, committed=False)) == 16


def test_an_open_transaction_is_not_read(
    bootstrap: str, connect: Callable[[str], Transactional], new_name: Callable[[str], str]
) -> None:
    topic = new_name("txn")
    create_topic(bootstrap, topic)
    producer = connect(new_name("tx"))
    producer.begin()
    producer.send(topic, 0, b"open")
    assert read(bootstrap, topic) == []
    assert read(bootstrap, topic, committed=False) == [b"open"]
    producer.commit()
    assert read(bootstrap, topic) == [b"open"]


def test_offsets_go_with_the_transaction(
    bootstrap: str, connect: Callable[[str], Transactional], new_name: Callable[[str], str]
) -> None:
    topic, group = new_name("txn"), new_name("group")
    create_topic(bootstrap, topic)
    producer = connect(new_name("tx"))
    for offset, commit in ((3, True), (5, False), (7, True), (9, False)):
        producer.begin()
        producer.send(topic, 0, b"x")
        producer.send_offsets(group, {(topic, 0): offset})
        if commit:
            producer.commit()
        else:
            producer.abort()
        assert offset_of(bootstrap, group, topic) == (offset if commit else offset - 2)


def test_the_former_producer_is_fenced(
    bootstrap: str, connect: Callable[[str], Transactional], new_name: Callable[[str], str]
) -> None:
    topic, transactional_id = new_name("txn"), new_name("tx")
    create_topic(bootstrap, topic)
    zombie = connect(transactional_id)
    zombie.begin()
    zombie.send(topic, 0, b"zombie")
    successor = connect(transactional_id)
    successor.begin()
    successor.send(topic, 0, b"successor")
    with pytest.raises(Exception, match=r"(?i)fenced|epoch"):
        zombie.commit()
    successor.commit()
    assert read(bootstrap, topic) == [b"successor"]
