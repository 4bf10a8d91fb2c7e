"""The same few verbs over each Python client, so that one suite asks the same of all of them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Sent:
    """A record to produce."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None
    partition: int = 0


@dataclass(frozen=True)
class Received:
    """A record as a consumer gave it."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = field(default=())


class GroupRebalances(Exception):
    """Nothing was committed: the member is to poll, and to commit what it owns then."""


class Member(Protocol):
    """A consumer in a group."""

    def poll(self, timeout_s: float) -> list[Received]: ...

    def assignment(self) -> set[int]: ...

    def commit(self) -> None:
        """Raises GroupRebalances."""
        ...

    def close(self) -> None: ...


class Adapter(Protocol):
    """A client library."""

    name: str

    def create_topic(self, topic: str, partitions: int) -> None: ...

    def produce(
        self, topic: str, records: Sequence[Sent], *, codec: str, idempotent: bool
    ) -> list[tuple[int, int]]: ...

    def read(self, topic: str, partition: int, count: int) -> list[Received]: ...

    def first_at(self, topic: str, partition: int, timestamp_ms: int) -> Received | None: ...

    def join(self, group: str, topic: str) -> Member: ...


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Call condition until it holds; it is expected to drive the clients it looks at."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.01)


class PolledMember:
    """A member with a thread of its own that polls it, as an application has; commits and closes at
    the end.
    """

    def __init__(self, member: Member) -> None:
        self.seen: list[Received] = []
        self.owned: set[int] = set()
        self._member = member
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._stopping.is_set():
            self.seen += self._member.poll(0.2)
            self.owned = self._member.assignment()
        self._commit()
        self._member.close()

    def _commit(self) -> None:
        """What it owns, also where another member left just now."""
        while self.owned:
            try:
                return self._member.commit()
            except GroupRebalances:
                self.seen += self._member.poll(0.2)
                self.owned = self._member.assignment()

    def stop(self) -> None:
        """Leave the group in order."""
        self._stopping.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "a member did not close within 30 s"


class ConfluentAdapter:
    """confluent-kafka, that is librdkafka."""

    name = "confluent-kafka"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def create_topic(self, topic: str, partitions: int) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for outcome in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
            outcome.result(20)

    def produce(
        self, topic: str, records: Sequence[Sent], *, codec: str, idempotent: bool
    ) -> list[tuple[int, int]]:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "linger.ms": 20,
            }
        )
        delivered: dict[int, tuple[int, int]] = {}

        def on_delivery(index: int) -> Callable[[Any, Any], None]:
            def callback(error: Any, message: Any) -> None:
                assert error is None, error
                delivered[index] = (message.partition(), message.offset())

            return callback

        for index, record in enumerate(records):
            extra = {} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}
            producer.produce(
                topic,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                partition=record.partition,
                on_delivery=on_delivery(index),
                **extra,
            )
        assert producer.flush(30) == 0
        return [delivered[index] for index in range(len(records))]

    def _consumer(self, **settings: object) -> Any:
        from confluent_kafka import Consumer

        base = {
            "bootstrap.servers": self.bootstrap,
            "group.id": "unused",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        return Consumer({**base, **settings})

    @staticmethod
    def _received(message: Any) -> Received:
        assert message.error() is None, message.error()
        return Received(
            message.partition(),
            message.offset(),
            message.timestamp()[1],
            message.key(),
            message.value(),
            tuple(message.headers() or ()),
        )

    def read(self, topic: str, partition: int, count: int) -> list[Received]:
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition

        consumer = self._consumer()
        try:
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
            records: list[Received] = []
            deadline = time.monotonic() + 20
            while len(records) < count and time.monotonic() < deadline:
                records += [
                    self._received(message)
                    for message in consumer.consume(count - len(records), 1.0)
                ]
            return records
        finally:
            consumer.close()

    def first_at(self, topic: str, partition: int, timestamp_ms: int) -> Received | None:
        from confluent_kafka import TopicPartition

        consumer = self._consumer()
        try:
            (found,) = consumer.offsets_for_times(
                [TopicPartition(topic, partition, timestamp_ms)], timeout=20
            )
            if found.offset < 0:
                return None
            consumer.assign([found])
            message = consumer.poll(10)
            return None if message is None else self._received(message)
        finally:
            consumer.close()

    def join(self, group: str, topic: str) -> Member:
        from confluent_kafka import KafkaError, KafkaException

        consumer = self._consumer(
            **{"group.id": group, "session.timeout.ms": 10000, "heartbeat.interval.ms": 300}
        )
        consumer.subscribe([topic])
        received = self._received

        class ConfluentMember:
            def poll(self, timeout_s: float) -> list[Received]:
                return [received(message) for message in consumer.consume(500, timeout_s)]

            def assignment(self) -> set[int]:
                return {item.partition for item in consumer.assignment()}

            def commit(self) -> None:
                try:
                    consumer.commit(asynchronous=False)
                except KafkaException as error:
                    code = error.args[0].code()
                    if code in (KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION):
                        raise GroupRebalances from error
                    # librdkafka counts a commit with nothing new since the last one as an error.
                    if code != KafkaError._NO_OFFSET:
                        raise

            def close(self) -> None:
                consumer.close()

        return ConfluentMember()


class KafkaPythonAdapter:
    """kafka-python."""

    name = "kafka-python"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def create_topic(self, topic: str, partitions: int) -> None:
        from kafka import KafkaAdminClient
        from kafka.admin import NewTopic

        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            admin.create_topics([NewTopic(topic, num_partitions=partitions, replication_factor=1)])
        finally:
            admin.close()

    def produce(
        self, topic: str, records: Sequence[Sent], *, codec: str, idempotent: bool
    ) -> list[tuple[int, int]]:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            acks="all",
            linger_ms=20,
        )
        try:
            pending = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            outcomes = [future.get(timeout=30) for future in pending]
        finally:
            producer.close()
        return [(outcome.partition, outcome.offset) for outcome in outcomes]

    def _consumer(self, **settings: object) -> Any:
        from kafka import KafkaConsumer

        return KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            **settings,
        )

    @staticmethod
    def _received(record: Any) -> Received:
        headers = tuple((name, value) for name, value in record.headers)
        return Received(
            record.partition, record.offset, record.timestamp, record.key, record.value, headers
        )

    def read(self, topic: str, partition: int, count: int) -> list[Received]:
        from kafka import TopicPartition

        consumer = self._consumer()
        try:
            consumer.assign([TopicPartition(topic, partition)])
            consumer.seek_to_beginning()
            records: list[Received] = []
            deadline = time.monotonic() + 20
            while len(records) < count and time.monotonic() < deadline:
                for batch in consumer.poll(timeout_ms=1000).values():
                    records += [self._received(record) for record in batch]
            return records
        finally:
            consumer.close()

    def first_at(self, topic: str, partition: int, timestamp_ms: int) -> Received | None:
        from kafka import TopicPartition

        consumer = self._consumer()
        try:
            here = TopicPartition(topic, partition)
            consumer.assign([here])
            found = consumer.offsets_for_times({here: timestamp_ms})[here]
            if found is None:
                return None
            consumer.seek(here, found.offset)
            for batch in consumer.poll(timeout_ms=10000).values():
                return self._received(batch[0])
            return None
        finally:
            consumer.close()

    def join(self, group: str, topic: str) -> Member:
        from kafka.errors import CommitFailedError, RebalanceInProgressError

        consumer = self._consumer(
            group_id=group, session_timeout_ms=10000, heartbeat_interval_ms=300
        )
        # A leader joins again when its subscription's metadata changed since it assigned. Version
        # 3.0.12 forgets that second join for ever if a poll's time is over before the answer to its
        # SyncGroup: in join_group_async, need_rejoin() is false by then. The first metadata after
        # subscribe() is such a change (from none), so wait for it here: topics() asks the broker.
        consumer.subscribe([topic])
        consumer.topics()
        received = self._received

        class KafkaPythonMember:
            def poll(self, timeout_s: float) -> list[Received]:
                batches = consumer.poll(timeout_ms=int(timeout_s * 1000))
                return [received(record) for batch in batches.values() for record in batch]

            def assignment(self) -> set[int]:
                return {item.partition for item in consumer.assignment()}

            def commit(self) -> None:
                try:
                    consumer.commit()
                except (CommitFailedError, RebalanceInProgressError) as error:
                    raise GroupRebalances from error

            def close(self) -> None:
                consumer.close()

        return KafkaPythonMember()


class AiokafkaAdapter:
    """aiokafka; its loop runs in a thread of the adapter."""

    name = "aiokafka"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any], timeout_s: float = 60) -> Any:
        future: concurrent.futures.Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(timeout_s)

    def create_topic(self, topic: str, partitions: int) -> None:
        from aiokafka.admin import AIOKafkaAdminClient, NewTopic

        async def create() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
            await admin.start()
            try:
                answer = await admin.create_topics([NewTopic(topic, partitions, 1)])
                assert all(error[1] == 0 for error in answer.topic_errors), answer
            finally:
                await admin.close()

        self._run(create())

    def produce(
        self, topic: str, records: Sequence[Sent], *, codec: str, idempotent: bool
    ) -> list[tuple[int, int]]:
        from aiokafka import AIOKafkaProducer

        async def produce() -> list[tuple[int, int]]:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                acks="all",
                linger_ms=20,
            )
            await producer.start()
            try:
                pending = [
                    await producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        headers=list(record.headers),
                        partition=record.partition,
                        timestamp_ms=record.timestamp_ms,
                    )
                    for record in records
                ]
                return [((outcome := await future).partition, outcome.offset) for future in pending]
            finally:
                await producer.stop()

        result: list[tuple[int, int]] = self._run(produce())
        return result

    async def _consumer(self, *topics: str, **settings: Any) -> Any:
        from aiokafka import AIOKafkaConsumer

        consumer = AIOKafkaConsumer(
            *topics,
            bootstrap_servers=self.bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            **settings,
        )
        await consumer.start()
        return consumer

    @staticmethod
    def _received(record: Any) -> Received:
        headers = tuple((name, value) for name, value in record.headers)
        return Received(
            record.partition, record.offset, record.timestamp, record.key, record.value, headers
        )

    def read(self, topic: str, partition: int, count: int) -> list[Received]:
        from aiokafka import TopicPartition

        async def read() -> list[Received]:
            consumer = await self._consumer()
            try:
                consumer.assign([TopicPartition(topic, partition)])
                await consumer.seek_to_beginning()
                records: list[Received] = []
                deadline = time.monotonic() + 20
                while len(records) < count and time.monotonic() < deadline:
                    for batch in (await consumer.getmany(timeout_ms=1000)).values():
                        records += [self._received(record) for record in batch]
                return records
            finally:
                await consumer.stop()

        result: list[Received] = self._run(read())
        return result

    def first_at(self, topic: str, partition: int, timestamp_ms: int) -> Received | None:
        from aiokafka import TopicPartition

        async def first() -> Received | None:
            consumer = await self._consumer()
            try:
                here = TopicPartition(topic, partition)
                consumer.assign([here])
                found = (await consumer.offsets_for_times({here: timestamp_ms}))[here]
                if found is None:
                    return None
                consumer.seek(here, found.offset)
                return self._received(await consumer.getone())
            finally:
                await consumer.stop()

        result: Received | None = self._run(first())
        return result

    def join(self, group: str, topic: str) -> Member:
        from aiokafka.errors import CommitFailedError

        consumer = self._run(
            self._consumer(
                topic, group_id=group, session_timeout_ms=10000, heartbeat_interval_ms=300
            )
        )
        run, received = self._run, self._received

        class AiokafkaMember:
            def poll(self, timeout_s: float) -> list[Received]:
                batches = run(consumer.getmany(timeout_ms=int(timeout_s * 1000)))
                return [received(record) for batch in batches.values() for record in batch]

            def assignment(self) -> set[int]:
                return {item.partition for item in consumer.assignment()}

            def commit(self) -> None:
                try:
                    run(consumer.commit())
                except CommitFailedError as error:
                    raise GroupRebalances from error

            def close(self) -> None:
                run(consumer.stop())

        return AiokafkaMember()


ADAPTERS: dict[str, Callable[[str], Adapter]] = {
    "confluent-kafka": ConfluentAdapter,
    "kafka-python": KafkaPythonAdapter,
    "aiokafka": AiokafkaAdapter,
}
