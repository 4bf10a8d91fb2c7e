"""The roles of `data_load` over librdkafka."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from tests.cluster.data_load import (
    ABORTS,
    CALL_TIMEOUT_S,
    DELIVERY_TIMEOUT_MS,
    EVENTS,
    FETCH_EVERY,
    LEDGER,
    MAX_UNACKNOWLEDGED,
    PARTITIONS,
    PAUSE_S,
    SESSION_TIMEOUT_MS,
    TRANSACTION_TIMEOUT_MS,
    Role,
    Values,
    data_of,
    drawn_partitions,
    now_ms,
    say,
)
from tests.cluster.history_lines import value_of

READ_BATCH: Final = 100
FLUSH_S: Final = 2.0
"""Before an abort, so that most have nothing to purge."""
STUCK_S: Final = CALL_TIMEOUT_S + 5
COMMON: Final = {
    "reconnect.backoff.max.ms": 200,
    "socket.timeout.ms": 10_000,
    "log_level": 0,
    # With "rebootstrap" (the default) it forgets a broker that is down, and with that waits for
    # ever in send_offsets_to_transaction: confluentinc/librdkafka#5511.
    "metadata.recovery.strategy": "none",
}


def _delivered(error: Any, message: Any) -> None:
    value = value_of(message.value())
    if error is None:
        offset = message.offset()
        say("stored", value, -1 if offset is None else offset)
    else:
        say("failed", value, error)


def produce(bootstrap: str, name: str, group: str, stopping: threading.Event) -> None:
    """An idempotent producer; a new one after a fatal error."""
    del group
    values = Values(name)
    while not stopping.is_set():
        values.begin_epoch()
        producer = Producer(
            {
                **COMMON,
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "request.timeout.ms": 5_000,
                "message.timeout.ms": DELIVERY_TIMEOUT_MS,
                "retry.backoff.max.ms": 200,
            }
        )
        try:
            _produce_until(producer, values, stopping)
        except KafkaException as error:
            say("anew", error)
        producer.flush(CALL_TIMEOUT_S)


def _produce_until(producer: Producer, values: Values, stopping: threading.Event) -> None:
    number = 0
    while not stopping.is_set():
        if len(producer) < MAX_UNACKNOWLEDGED:
            value = values.next(EVENTS, number % PARTITIONS)
            say("send", value)
            producer.produce(
                EVENTS, data_of(value), partition=value.partition, on_delivery=_delivered
            )
            number += 1
        producer.poll(PAUSE_S)


class StuckCall(Exception):
    """A call of the library that does not return, though it was given a timeout."""


def _call_within(seconds: float, call: Callable[..., object], *arguments: object) -> None:
    """Call in a thread. Raises what the call raises, and StuckCall if it takes longer: librdkafka
    2.16 was seen to wait in send_offsets_to_transaction for more than three times its timeout.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call(*arguments)
        except BaseException as error:  # noqa: BLE001  # raised by the thread that waits
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise StuckCall(f"{getattr(call, '__name__', call)} does not return")
    for error in errors:
        raise error


class Transactions:
    """A transactional producer, and a consumer that looks at the offsets it has committed."""

    def __init__(self, bootstrap: str, name: str, stopping: threading.Event) -> None:
        self._bootstrap = bootstrap
        self._name = name
        self._stopping = stopping
        self._values = Values(name)
        self._count = 0
        self._has_purged = False
        self._producer: Producer | None = None
        self._consumer = Consumer({**COMMON, "bootstrap.servers": bootstrap, "group.id": name})

    def run(self) -> None:
        """Until the event is set."""
        while not self._stopping.wait(PAUSE_S):
            try:
                if self._producer is None:
                    self._producer = self._new_producer()
                self._transact(self._producer)
                if self._count % FETCH_EVERY == 0:
                    say_committed(self._consumer, self._name, [TopicPartition(LEDGER, 0)])
            except (KafkaException, StuckCall) as error:
                say("anew", error)

    def _new_producer(self) -> Producer:
        self._values.begin_epoch()
        producer = Producer(
            {
                **COMMON,
                "bootstrap.servers": self._bootstrap,
                "transactional.id": self._name,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 0,
            }
        )
        self._call(producer, "init_transactions")
        return producer

    def _call(self, producer: Producer, name: str, *arguments: object) -> None:
        """Call, and again while the library asks for that. Raises StuckCall."""
        while True:
            try:
                _call_within(STUCK_S, getattr(producer, name), *arguments, CALL_TIMEOUT_S)
                return
            except KafkaException as error:
                # An abort that is called again after its timeout keeps the epoch and gives the next
                # records sequences that were used: the broker takes them for duplicates.
                is_final = not error.args[0].retriable() or name == "abort_transaction"
                if is_final or self._stopping.is_set():
                    raise
                say("again", name, error)

    def _transact(self, producer: Producer) -> None:
        self._count += 1
        transaction = f"{self._name}-{self._count}"
        ending = "abort" if random.random() < ABORTS else "commit"
        say("begin", transaction)
        try:
            producer.begin_transaction()
            for partition in drawn_partitions():
                value = self._values.next(LEDGER, partition)
                say("send", value, transaction)
                producer.produce(
                    LEDGER, data_of(value), partition=partition, on_delivery=self._delivered
                )
            if self._count % 2:
                self._send_offset(producer, transaction)
            if ending == "abort":
                producer.flush(FLUSH_S)
            self._call(producer, f"{ending}_transaction")
        except StuckCall as error:
            say("stuck", transaction, error)
            self._producer = None  # a new one fences it
            return
        except KafkaException as error:
            self._give_up(producer, transaction, error)
            return
        say(ending, transaction, now_ms())
        self._forget_if_purged(producer)

    def _delivered(self, error: Any, message: Any) -> None:
        self._has_purged |= error is not None and error.code() == KafkaError._PURGE_QUEUE
        _delivered(error, message)

    def _forget_if_purged(self, producer: Producer) -> None:
        """A record that waits for its next try is purged by an abort, though the broker may have
        it, and the next record gets its sequence in the same epoch (librdkafka 2.16): it would be
        acknowledged as a duplicate, and lost. A new producer has a new epoch.
        """
        if self._has_purged:
            say("fresh", "records were purged")
            self._has_purged = False
            producer.purge()
            self._producer = None

    def _send_offset(self, producer: Producer, transaction: str) -> None:
        offset = self._count
        say("committing", self._name, LEDGER, 0, offset, now_ms(), transaction)
        metadata = self._consumer.consumer_group_metadata()
        offsets = [TopicPartition(LEDGER, 0, offset)]
        self._call(producer, "send_offsets_to_transaction", offsets, metadata)

    def _give_up(self, producer: Producer, transaction: str, why: KafkaException) -> None:
        """Abort; where that is impossible, a new producer finds out what became of it."""
        say("broken", transaction, why)
        try:
            if why.args[0].retriable():  # an end that took too long
                raise why
            self._call(producer, "abort_transaction")
        except (KafkaException, StuckCall) as error:
            say("fresh", error)
            producer.purge()
            self._producer = None
            return
        say("abort", transaction, now_ms())
        self._forget_if_purged(producer)


def transact(bootstrap: str, name: str, group: str, stopping: threading.Event) -> None:
    """A transactional producer."""
    del group
    Transactions(bootstrap, name, stopping).run()


def say_committed(consumer: Consumer, group: str, partitions: Sequence[Any]) -> None:
    """Fetch committed offsets; they wait for transactions that are about to be committed."""
    began_ms = now_ms()
    try:
        found = consumer.committed(list(partitions), CALL_TIMEOUT_S)
    except KafkaException as error:
        say("unfetched", error)
        return
    ended_ms = now_ms()
    for each in found:
        if each.error is None:
            offset = max(each.offset, -1)
            say("fetched", group, each.topic, each.partition, offset, began_ms, ended_ms)


class Member:
    """A member of a group that commits what it has read."""

    def __init__(self, bootstrap: str, group: str, stopping: threading.Event) -> None:
        self._group = group
        self._stopping = stopping
        self._session = 0
        self._consumer = Consumer(
            {
                **COMMON,
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": SESSION_TIMEOUT_MS // 6,
            }
        )
        self._consumer.subscribe([EVENTS], on_assign=self._assigned)

    def _assigned(self, consumer: Consumer, partitions: Sequence[Any]) -> None:
        self._session += 1
        say_committed(consumer, self._group, partitions)

    def run(self) -> None:
        """Until the event is set."""
        while not self._stopping.is_set():
            found = self._consumer.consume(READ_BATCH, 0.2)
            messages = [message for message in found if message.error() is None]
            for message in messages:
                _say_read(self._session, message)
            if messages:
                self._commit({message.partition(): message.offset() + 1 for message in messages})
        self._consumer.close()

    def _commit(self, ends: Mapping[int, int]) -> None:
        began_ms = now_ms()
        for partition, offset in ends.items():
            say("committing", self._group, EVENTS, partition, offset, began_ms)
        offsets = [TopicPartition(EVENTS, *end) for end in ends.items()]
        try:
            done = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            say("uncommitted", error)
            return
        ended_ms = now_ms()
        for each in done or ():
            if each.error is None:
                say("committed", self._group, EVENTS, each.partition, each.offset, ended_ms)


def _say_read(session: int, message: Any) -> None:
    where = message.topic(), message.partition(), message.offset()
    say("read", session, *where, value_of(message.value()))


def consume(bootstrap: str, name: str, group: str, stopping: threading.Event) -> None:
    """A member of a group."""
    del name
    Member(bootstrap, group, stopping).run()


def _read(bootstrap: str, name: str, isolation_level: str, stopping: threading.Event) -> None:
    consumer = Consumer(
        {
            **COMMON,
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "isolation.level": isolation_level,
            "enable.auto.commit": False,
        }
    )
    consumer.assign(
        [
            TopicPartition(topic, partition, OFFSET_BEGINNING)
            for topic in (EVENTS, LEDGER)
            for partition in range(PARTITIONS)
        ]
    )
    while not stopping.is_set():
        for message in consumer.consume(READ_BATCH, 0.2):
            if message.error() is None:
                _say_read(0, message)
            else:
                say("unread", message.error())
        time.sleep(PAUSE_S)
    consumer.close()


def read(bootstrap: str, name: str, group: str, stopping: threading.Event) -> None:
    """A reader of everything."""
    del group
    _read(bootstrap, name, "read_uncommitted", stopping)


def read_committed(bootstrap: str, name: str, group: str, stopping: threading.Event) -> None:
    """A reader of committed records."""
    del group
    _read(bootstrap, name, "read_committed", stopping)


ROLES: Final[Mapping[str, Role]] = {
    "producer": produce,
    "transactions": transact,
    "member": consume,
    "reader": read,
    "committed-reader": read_committed,
}
