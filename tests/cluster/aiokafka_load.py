"""The roles of `data_load` over aiokafka."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError

from tests.cluster.data_load import (
    ABORTS,
    CALL_TIMEOUT_S,
    DELIVERY_TIMEOUT_MS,
    EVENTS,
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
from tests.cluster.history_lines import Value, value_of

FAILURES: Final = (KafkaError, TimeoutError)
AGAIN_S: Final = 0.2


async def _started(client: Any) -> Any:
    """The client, connected. Raises what `start` raises."""
    try:
        await asyncio.wait_for(client.start(), CALL_TIMEOUT_S)
    except BaseException:
        await _stop(client)
        raise
    return client


async def _stop(client: Any) -> None:
    """Stop it; a stop may wait for a broker that is away."""
    await asyncio.wait({asyncio.ensure_future(client.stop())}, timeout=1)


async def _send(producer: Any, value: Value, sent: set[asyncio.Future[Any]]) -> None:
    """Send a record and say its outcome. sent: has it until then."""

    def done(future: asyncio.Future[Any]) -> None:
        sent.discard(future)
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or error is not None:
            say("failed", value, repr(error))
        else:
            say("stored", value, future.result().offset)

    future = await producer.send(value.topic, data_of(value), partition=value.partition)
    sent.add(future)
    future.add_done_callback(done)


async def produce(bootstrap: str, name: str, group: str, stopping: threading.Event) -> None:
    """An idempotent producer; a new one after an error."""
    del group
    values = Values(name)
    while not stopping.is_set():
        producer = None
        try:
            producer = await _started(
                AIOKafkaProducer(
                    bootstrap_servers=bootstrap,
                    enable_idempotence=True,
                    acks="all",
                    linger_ms=5,
                    request_timeout_ms=DELIVERY_TIMEOUT_MS,
                    retry_backoff_ms=50,
                )
            )
            values.begin_epoch()
            await _produce_until(producer, values, stopping)
            await asyncio.wait_for(producer.flush(), CALL_TIMEOUT_S)
        except FAILURES as error:
            say("anew", repr(error))
            await asyncio.sleep(AGAIN_S)
        finally:
            if producer is not None:
                await _stop(producer)


async def _produce_until(producer: Any, values: Values, stopping: threading.Event) -> None:
    sent: set[asyncio.Future[Any]] = set()
    number = 0
    while not stopping.is_set():
        if len(sent) < MAX_UNACKNOWLEDGED:
            value = values.next(EVENTS, number % PARTITIONS)
            say("send", value)
            await _send(producer, value, sent)
            number += 1
        await asyncio.sleep(PAUSE_S)


class Transactions:
    """A transactional producer. It looks at no committed offset: aiokafka takes an error of the
    whole group, as while its coordinator loads, for no offset (0.14).
    """

    def __init__(self, bootstrap: str, name: str, stopping: threading.Event) -> None:
        self._bootstrap = bootstrap
        self._name = name
        self._stopping = stopping
        self._values = Values(name)
        self._count = 0
        self._producer: Any = None

    async def run(self) -> None:
        """Until the event is set."""
        while not self._stopping.is_set():
            await asyncio.sleep(PAUSE_S)
            try:
                if self._producer is None:
                    self._producer = await self._new_producer()
                await self._transact()
            except FAILURES as error:
                say("anew", repr(error))
                await asyncio.sleep(AGAIN_S)

    async def _new_producer(self) -> Any:
        self._values.begin_epoch()
        return await _started(
            AIOKafkaProducer(
                bootstrap_servers=self._bootstrap,
                transactional_id=self._name,
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                retry_backoff_ms=50,
            )
        )

    async def _transact(self) -> None:
        self._count += 1
        transaction = f"{self._name}-{self._count}"
        ending = "abort" if random.random() < ABORTS else "commit"
        say("begin", transaction)
        try:
            await self._run_transaction(transaction, ending)
        except FAILURES as error:
            await self._give_up(transaction, error)
            return
        say(ending, transaction, now_ms())

    async def _run_transaction(self, transaction: str, ending: str) -> None:
        producer = self._producer
        sent: set[asyncio.Future[Any]] = set()
        await self._call(producer.begin_transaction())
        for partition in drawn_partitions():
            value = self._values.next(LEDGER, partition)
            say("send", value, transaction)
            await _send(producer, value, sent)
        await self._call(asyncio.gather(*sent))
        if self._count % 2:
            say("committing", self._name, LEDGER, 0, self._count, now_ms(), transaction)
            offsets = {TopicPartition(LEDGER, 0): self._count}
            await self._call(producer.send_offsets_to_transaction(offsets, self._name))
        end = producer.commit_transaction if ending == "commit" else producer.abort_transaction
        await self._call(end())

    async def _call(self, call: Awaitable[object]) -> None:
        await asyncio.wait_for(call, CALL_TIMEOUT_S)

    async def _give_up(self, transaction: str, why: BaseException) -> None:
        """Abort; where that is impossible, a new producer finds out what became of it."""
        say("broken", transaction, repr(why))
        producer = self._producer
        try:
            await self._call(producer.abort_transaction())
        except (*FAILURES, AssertionError) as error:  # the last one: it was fenced
            say("fresh", repr(error))
            self._producer = None
            await _stop(producer)
            return
        say("abort", transaction, now_ms())


async def transact(bootstrap: str, name: str, group: str, stopping: threading.Event) -> None:
    """A transactional producer."""
    del group
    await Transactions(bootstrap, name, stopping).run()


class _Sessions(ConsumerRebalanceListener):  # type: ignore[misc]  # an untyped base
    """Counts assignments."""

    def __init__(self) -> None:
        self.number = 0

    def on_partitions_revoked(self, revoked: object) -> None:
        """Nothing: what was read is committed or is read again."""

    def on_partitions_assigned(self, assigned: object) -> None:
        """The member begins anew at the committed offsets."""
        self.number += 1


async def consume(bootstrap: str, name: str, group: str, stopping: threading.Event) -> None:
    """A member of a group; a new one after an error of the start."""
    del name
    sessions = _Sessions()
    while not stopping.is_set():
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=SESSION_TIMEOUT_MS // 6,
            retry_backoff_ms=50,
        )
        consumer.subscribe([EVENTS], listener=sessions)
        try:
            await _started(consumer)
        except FAILURES as error:
            say("anew", repr(error))
            continue
        try:
            while not stopping.is_set():
                await _read_and_commit(consumer, group, sessions)
        finally:
            await _stop(consumer)


async def _read_and_commit(consumer: Any, group: str, sessions: _Sessions) -> None:
    try:
        fetched = await consumer.getmany(timeout_ms=200)
    except KafkaError as error:
        say("unread", repr(error))
        await asyncio.sleep(AGAIN_S)
        return
    ends: dict[TopicPartition, int] = {}
    for place, records in fetched.items():
        for record in records:
            where = place.topic, place.partition, record.offset
            say("read", sessions.number, *where, value_of(record.value))
            ends[place] = record.offset + 1
    if not ends:
        return
    began_ms = now_ms()
    for place, offset in ends.items():
        say("committing", group, place.topic, place.partition, offset, began_ms)
    try:
        await asyncio.wait_for(consumer.commit(ends), CALL_TIMEOUT_S)
    except FAILURES as error:
        say("uncommitted", repr(error))
        return
    ended_ms = now_ms()
    for place, offset in ends.items():
        say("committed", group, place.topic, place.partition, offset, ended_ms)


def _as_role(role: Callable[[str, str, str, threading.Event], Any]) -> Role:
    return lambda *arguments: asyncio.run(role(*arguments))


ROLES: Final[Mapping[str, Role]] = {
    "producer": _as_role(produce),
    "transactions": _as_role(transact),
    "member": _as_role(consume),
}
