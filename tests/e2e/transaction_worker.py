"""A read-process-write loop over one client library, in a process of its own.

    python -m tests.e2e.transaction_worker LIBRARY BOOTSTRAP NAME OUTPUT RUN

Reads `in-NAME`, writes each record to `by-key` (the partition by its key) and to partition OUTPUT
of `all`, and its offset with them, in transactions of which every fourth is aborted. Says on
standard output what becomes of each (`open`, `commit`, `abort` and the attempt's name), and `slow`
for a call that took long; ends when standard input does. `TransactionWorker.java` is the same for
Kafka's own clients.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

BATCH: Final = 5
ABORTS: Final = 0.25
PAUSE_S: Final = 0.02
"""Between transactions: many kills must not mean a log that takes long to load."""
SLOW_S: Final = 25.0
CALL_TIMEOUT_S: Final = 30.0
TRANSACTION_TIMEOUT_MS: Final = 60_000
SESSION_TIMEOUT_MS: Final = 6_000
KEY_PARTITIONS: Final = 3


def say(*words: object) -> None:
    print(*words, flush=True)


class Attempts:
    """Names of transactions: worker, run of its process, number."""

    def __init__(self, name: str, run: str) -> None:
        self._stem = f"{name}/{run}"
        self._count = 0

    def new(self) -> str:
        self._count += 1
        attempt = f"{self._stem}/{self._count}"
        say("open", attempt)
        return attempt


def outputs(name: str, output: int, key: str, value: str) -> list[tuple[str, int, str, str]]:
    """(topic, partition, key, value) of what one input becomes."""
    return [
        ("by-key", int(key) % KEY_PARTITIONS, f"{name}/{key}", value),
        ("all", output, name, value),
    ]


class ConfluentLoop:
    def __init__(self, bootstrap: str, name: str, output: int, run: str) -> None:
        from confluent_kafka import Consumer

        self._bootstrap, self._name, self._output = bootstrap, name, output
        self._attempts = Attempts(name, run)
        self._producer: Any = None
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": name,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                # A seek waits for the fetch that is under way.
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([f"in-{name}"])

    def run(self) -> None:
        from confluent_kafka import KafkaException

        while True:
            try:
                self._step()
            except KafkaException as error:
                say("anew", error)

    def _start(self) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": self._name,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "reconnect.backoff.max.ms": 200,
                "linger.ms": 0,
                "log_level": 0,
                # With "rebootstrap" (the default) it forgets a broker that is down, and with that
                # waits for ever in send_offsets_to_transaction: confluentinc/librdkafka#5511.
                "metadata.recovery.strategy": "none",
            }
        )
        self._call("init_transactions")
        self._rewind()

    def _rewind(self) -> None:
        """Back to what the group has committed."""
        for found in self._consumer.committed(self._consumer.assignment(), CALL_TIMEOUT_S):
            found.offset = max(found.offset, 0)
            self._consumer.seek(found)

    def _call(self, name: str, *arguments: object) -> None:
        """Call, and again while the library asks for that."""
        from confluent_kafka import KafkaException

        while True:
            start = time.monotonic()
            try:
                getattr(self._producer, name)(*arguments, CALL_TIMEOUT_S)
                return
            except KafkaException as error:
                # An abort that is called again after its timeout keeps the epoch and gives the next
                # records sequences that were used: the broker takes them for duplicates.
                if not error.args[0].retriable() or name == "abort_transaction":
                    raise
                say("again", name, error)
            finally:
                seconds = time.monotonic() - start
                if seconds > SLOW_S:
                    say("slow", name, round(seconds, 1))

    def _step(self) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        if self._producer is None:
            self._start()
        records = [m for m in self._consumer.consume(BATCH, 0.2) if m.error() is None]
        if not records:
            return
        time.sleep(PAUSE_S)
        attempt = self._attempts.new()
        commit = random.random() >= ABORTS
        last = records[-1]
        after = TopicPartition(last.topic(), last.partition(), last.offset() + 1)
        try:
            self._producer.begin_transaction()
            for record in records:
                value = f"{record.value().decode()} {attempt}"
                for topic, partition, key, text in outputs(
                    self._name, self._output, record.key().decode(), value
                ):
                    self._producer.produce(topic, text, key, partition)
            metadata = self._consumer.consumer_group_metadata()
            self._call("send_offsets_to_transaction", [after], metadata)
            self._call("commit_transaction" if commit else "abort_transaction")
        except KafkaException as error:
            self._give_up(attempt, error)
            return
        say("commit" if commit else "abort", attempt)
        if not commit:
            self._rewind()

    def _give_up(self, attempt: str, why: Exception) -> None:
        """Abort; where that is impossible, a new producer finds out what became of it."""
        from confluent_kafka import KafkaException

        say("failed", attempt, why)
        try:
            if why.args[0].retriable():  # an abort that took too long
                raise why
            self._call("abort_transaction")
        except KafkaException as error:
            say("fresh", error)
            self._producer.purge()
            self._producer = None
            return
        say("abort", attempt)
        self._rewind()


class AiokafkaLoop:
    def __init__(self, bootstrap: str, name: str, output: int, run: str) -> None:
        self._bootstrap, self._name, self._output = bootstrap, name, output
        self._attempts = Attempts(name, run)
        self._has_committed = run != "0"
        self._producer: Any = None
        self._consumer: Any = None

    def run(self) -> None:
        asyncio.run(self._loop())

    async def _loop(self) -> None:
        from aiokafka.errors import KafkaError

        while True:
            try:
                if self._consumer is None:
                    await self._start_consumer()
                await self._step()
            except (KafkaError, TimeoutError) as error:
                say("anew", repr(error))
                await asyncio.sleep(0.1)

    async def _start_consumer(self) -> None:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.errors import KafkaError

        consumer = AIOKafkaConsumer(
            f"in-{self._name}",
            bootstrap_servers=self._bootstrap,
            group_id=self._name,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_TIMEOUT_MS,
        )
        try:
            await consumer.start()
        except KafkaError:
            await consumer.stop()
            raise
        self._consumer = consumer

    async def _call(self, name: str, *arguments: object) -> None:
        start = time.monotonic()
        try:
            await asyncio.wait_for(getattr(self._producer, name)(*arguments), CALL_TIMEOUT_S)
        finally:
            seconds = time.monotonic() - start
            if seconds > SLOW_S:
                say("slow", name, round(seconds, 1))

    async def _start(self) -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            transactional_id=self._name,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        )
        try:
            await asyncio.wait_for(producer.start(), CALL_TIMEOUT_S)
        except BaseException:
            await asyncio.wait({asyncio.ensure_future(producer.stop())}, timeout=1)
            raise
        self._producer = producer
        await self._rewind()

    async def _rewind(self) -> None:
        for partition in self._consumer.assignment():
            self._consumer.seek(partition, await self._committed(partition))

    async def _committed(self, partition: Any) -> int:
        """What the group has committed. An error of the whole group, as while the coordinator
        loads, is nothing committed to aiokafka (0.14): it looks at those of partitions only, and
        from OffsetFetch v2 on there is none. So that is believed only when it is said for long.
        """
        deadline = time.monotonic() + CALL_TIMEOUT_S
        while True:
            offset = await asyncio.wait_for(self._consumer.committed(partition), CALL_TIMEOUT_S)
            if offset is not None:
                return int(offset)
            if not self._has_committed or time.monotonic() > deadline:
                say("rewind", partition, 0)
                return 0
            await asyncio.sleep(0.1)

    async def _step(self) -> None:
        from aiokafka.errors import KafkaError

        if self._producer is None:
            await self._start()
        fetched = await self._consumer.getmany(timeout_ms=200, max_records=BATCH)
        records = [record for found in fetched.values() for record in found]
        if not records:
            return
        await asyncio.sleep(PAUSE_S)
        attempt = self._attempts.new()
        commit = random.random() >= ABORTS
        try:
            await self._transact(records, attempt, commit)
        except (KafkaError, TimeoutError) as error:
            await self._give_up(attempt, error)
            return
        say("commit" if commit else "abort", attempt)
        self._has_committed |= commit
        if not commit:
            await self._rewind()

    async def _transact(self, records: list[Any], attempt: str, commit: bool) -> None:
        from aiokafka import TopicPartition

        await self._producer.begin_transaction()
        sent = []
        for record in records:
            value = f"{record.value.decode()} {attempt}"
            for topic, partition, key, text in outputs(
                self._name, self._output, record.key.decode(), value
            ):
                sent.append(
                    await self._producer.send(
                        topic, text.encode(), key.encode(), partition=partition
                    )
                )
        last = records[-1]
        after = {TopicPartition(last.topic, last.partition): last.offset + 1}
        await asyncio.wait_for(asyncio.gather(*sent), CALL_TIMEOUT_S)
        await self._call("send_offsets_to_transaction", after, self._name)
        await self._call("commit_transaction" if commit else "abort_transaction")

    async def _give_up(self, attempt: str, why: BaseException) -> None:
        from aiokafka.errors import KafkaError

        say("failed", attempt, repr(why))
        producer = self._producer
        try:
            await self._call("abort_transaction")
        except (KafkaError, TimeoutError, AssertionError) as error:  # the last one: it was fenced
            say("fresh", repr(error))
            self._producer = None
            await asyncio.wait({asyncio.ensure_future(producer.stop())}, timeout=1)
            return
        say("abort", attempt)
        await self._rewind()


LOOPS: dict[str, Callable[[str, str, int, str], Any]] = {
    "confluent": ConfluentLoop,
    "aiokafka": AiokafkaLoop,
}


def end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    library, bootstrap, name, output, run = sys.argv[1:]
    threading.Thread(target=end_with_input, daemon=True).start()
    LOOPS[library](bootstrap, name, int(output), run).run()
