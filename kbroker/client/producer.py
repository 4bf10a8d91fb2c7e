"""A producer: records gathered into batches per partition, sent in order, retried until a deadline.

One batch of a partition is in flight at a time, so order holds without idempotence too; partitions
are sent in parallel. With idempotence a retried batch keeps its sequence and is written once
(KIP-98). With a transactional id all records up to `commit` are one transaction, which leaving the
producer without it aborts; its requests are in transaction.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NamedTuple, Self

from kbroker.client.cluster import Client, check
from kbroker.client.cluster_view import TopicView
from kbroker.client.transaction import LAST_PRODUCE_VERSION, Transaction
from kbroker.model import StartupError, TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.records import Header
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.transactions import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse

ACKS_ALL: Final = -1
RECORD_OVERHEAD_BYTES: Final = 32
"""Estimate, rounded up, of a record's size besides key, value and headers."""


class RecordMetadata(NamedTuple):
    """The place of a produced record. offset: -1 with acks=0; timestamp: as the broker
    stored it.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """acks: -1 all, 1 leader, 0 no response. linger_ms: how long a batch may wait for more
    records. transactional_id: None for no transactions; it makes the producer idempotent.
    """

    acks: int = ACKS_ALL
    compression: Compression = Compression.NONE
    compression_level: int | None = None
    linger_ms: float = 5.0
    batch_bytes: int = 256 * 1024
    buffer_bytes: int = 32 * 1024 * 1024
    delivery_timeout_s: float = 120.0
    request_timeout_ms: int = 30_000
    idempotent: bool = False
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000


def murmur2(data: bytes) -> int:
    """MurmurHash2 with Java's seed, unsigned: the hash of the Java client's default partitioner."""
    length = len(data)
    h = 0x9747B28C ^ length
    whole = length & ~3
    for position in range(0, whole, 4):
        k = int.from_bytes(data[position : position + 4], "little") * 0x5BD1E995 & 0xFFFFFFFF
        k = (k ^ k >> 24) * 0x5BD1E995 & 0xFFFFFFFF
        h = (h * 0x5BD1E995 & 0xFFFFFFFF) ^ k
    if length > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * 0x5BD1E995 & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0x5BD1E995 & 0xFFFFFFFF
    return h ^ h >> 15


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition that the Java client's default partitioner chooses for a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class _Entry(NamedTuple):
    record: tuple[int, bytes | None, bytes | None, Sequence[Header]]
    size_bytes: int
    future: asyncio.Future[RecordMetadata]


class _Queue:
    """The records that wait for one partition, and its next sequence number."""

    __slots__ = ("entries", "filled", "next_sequence", "size_bytes", "topic_partition")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.entries: deque[_Entry] = deque()
        self.size_bytes = 0
        self.filled = asyncio.Event()
        self.next_sequence = 0

    def take(self, batch_bytes: int) -> list[_Entry]:
        """The oldest entries that fit into a batch; at least one."""
        taken: list[_Entry] = []
        size_bytes = 0
        while self.entries:
            size_bytes += self.entries[0].size_bytes
            if taken and size_bytes > batch_bytes:
                break
            taken.append(self.entries.popleft())
            self.size_bytes -= taken[-1].size_bytes
        if not self.entries:
            self.filled.clear()
        return taken


class Producer:
    """An async context manager: leaving it without an exception waits for all records sent, and
    leaving it while a transaction is open aborts that.
    """

    def __init__(self, client: Client, config: ProducerConfig | None = None) -> None:
        self.client = client
        self.config = config or ProducerConfig()
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self._queues: dict[TopicPartition, _Queue] = {}
        self._sticky: dict[str, int] = {}
        self._buffered_bytes = 0
        self._room = asyncio.Event()
        self._under_way: set[asyncio.Future[RecordMetadata]] = set()
        self._tasks = asyncio.TaskGroup()
        self._workers: list[asyncio.Task[None]] = []
        self._flushing = 0
        self._transaction: Transaction | None = None

    async def __aenter__(self) -> Self:
        """Raises KafkaError, and ValueError for a transactional id with acks other than all."""
        config = self.config
        if config.transactional_id is not None:
            if config.acks != ACKS_ALL:
                raise ValueError("transactions need acks=all")
            self._transaction = Transaction(
                self.client, config.transactional_id, config.transaction_timeout_ms
            )
            self.producer_id, self.producer_epoch = await self._transaction.begin()
        elif config.idempotent:
            await self.client.retry(self._init_producer_id)
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if exc_type is None:
                await self.flush()
        finally:
            for worker in self._workers:
                worker.cancel()
            for future in list(self._under_way):
                future.cancel()
            await self._tasks.__aexit__(None, None, None)  # so exc goes on as it is
            if self._transaction is not None:
                # the coordinator aborts it at its timeout, if this fails
                with contextlib.suppress(KafkaError, StartupError):
                    await self._transaction.end(committed=False)

    async def commit(self) -> None:
        """Commit the transaction once all records sent so far were written. Nothing without a
        transactional id. Raises KafkaError: then it is not known whether it was committed.
        """
        await self.flush()
        if self._transaction is not None:
            await self._transaction.end(committed=True)

    async def _init_producer_id(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        response = await self.client.any(request, InitProducerIdResponse, max_version=5)
        check(response.error_code, "InitProducerId")
        self.producer_id = response.producer_id
        self.producer_epoch = response.producer_epoch

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        headers: Sequence[Header] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Queue a record; the future resolves with its place, or raises KafkaError.

        Waits while the buffer (buffer_bytes) is full, and gives way to other tasks whenever a batch
        is full. partition: None chooses by key, and without a
        key the partition whose batch is being filled. Raises KafkaError if the topic or partition
        does not exist.
        """
        view = self.client.topics.get(topic)
        if view is None:
            view = await self.client.retry(lambda: self._topic(topic))
        if partition is None:
            partition = self._choose(view, key)
        elif partition not in view.partitions:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{topic} has no partition {partition}, its last is {max(view.partitions)}",
            )
        size_bytes = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
        size_bytes += sum(len(name) + len(content or b"") + 8 for name, content in headers)
        while self._buffered_bytes and self._buffered_bytes + size_bytes > self.config.buffer_bytes:
            self._room.clear()
            await self._room.wait()
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        queue = self._queue(TopicPartition(topic, partition))
        queue.entries.append(_Entry((timestamp_ms, key, value, headers), size_bytes, future))
        batches = queue.size_bytes // self.config.batch_bytes
        queue.size_bytes += size_bytes
        self._buffered_bytes += size_bytes
        queue.filled.set()
        if queue.size_bytes // self.config.batch_bytes != batches:
            # a caller that never waits for anything else gives way to the sender, and to Ctrl-C
            await asyncio.sleep(0)
        return future

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        headers: Sequence[Header] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """As `send`, and wait for the result."""
        future = await self.send(
            topic, value, key, headers=headers, timestamp_ms=timestamp_ms, partition=partition
        )
        return await future

    async def flush(self) -> None:
        """Wait until all records sent so far have succeeded or failed. Errors are in their
        futures.
        """
        self._flushing += 1
        try:
            if self._under_way:
                await asyncio.wait(list(self._under_way))
        finally:
            self._flushing -= 1

    async def _topic(self, topic: str) -> TopicView:
        return await self.client.topic(topic, allow_auto_creation=True)

    def _choose(self, view: TopicView, key: bytes | None) -> int:
        if key is not None:
            return partition_for_key(key, len(view.partitions))
        count = len(view.partitions)
        partition = self._sticky.setdefault(view.name, 0) % count
        queue = self._queues.get(TopicPartition(view.name, partition))
        full = queue is not None and queue.size_bytes >= self.config.batch_bytes
        if full or view.partitions[partition].leader_id < 0:
            partition = self._sticky[view.name] = (partition + 1) % count
        return partition

    def _queue(self, topic_partition: TopicPartition) -> _Queue:
        queue = self._queues.get(topic_partition)
        if queue is None:
            queue = self._queues[topic_partition] = _Queue(topic_partition)
            worker = self._tasks.create_task(self._work(queue), name=f"produce {topic_partition}")
            self._workers.append(worker)
        return queue

    async def _work(self, queue: _Queue) -> None:
        """Send the batches of one partition, one after the other."""
        while True:
            await queue.filled.wait()
            lingers = queue.size_bytes < self.config.batch_bytes and not self._flushing
            if lingers and self.config.linger_ms > 0:
                await asyncio.sleep(self.config.linger_ms / 1000)
            entries = queue.take(self.config.batch_bytes)
            if queue.topic_partition.topic in self._sticky:
                self._sticky[queue.topic_partition.topic] = queue.topic_partition.partition + 1
            try:
                await self._deliver(queue, entries)
            except (KafkaError, ValueError) as error:
                for entry in entries:
                    if not entry.future.done():
                        entry.future.set_exception(error)
            finally:
                self._buffered_bytes -= sum(entry.size_bytes for entry in entries)
                self._room.set()

    async def _deliver(self, queue: _Queue, entries: list[_Entry]) -> None:
        config = self.config
        idempotent = self.producer_id != NO_PRODUCER_ID
        batch = build_batch(
            [entry.record for entry in entries],
            compression=config.compression,
            compression_level=config.compression_level,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=queue.next_sequence if idempotent else NO_SEQUENCE,
            is_transactional=self._transaction is not None,
        )
        if self._transaction is not None:
            await self._transaction.add(queue.topic_partition)
        answer = await self.client.retry(
            lambda: self._produce(queue.topic_partition, batch),
            timeout_s=config.delivery_timeout_s,
        )
        queue.next_sequence = (queue.next_sequence + len(entries)) & 0x7FFFFFFF
        topic, partition = queue.topic_partition
        for index, entry in enumerate(entries):
            if entry.future.done():
                continue
            offset = timestamp = -1
            if answer is not None:
                offset, timestamp = answer.base_offset + index, answer.log_append_time_ms
            if timestamp < 0:
                timestamp = entry.record[0]
            entry.future.set_result(RecordMetadata(topic, partition, offset, timestamp))

    async def _produce(
        self, topic_partition: TopicPartition, batch: bytearray
    ) -> ProduceResponse.PartitionProduceResponse | None:
        """Send the batch once. Returns None with acks=0. Raises KafkaError."""
        topic, partition = topic_partition
        leader_id = await self.client.leader(topic_partition)
        request = ProduceRequest(
            acks=self.config.acks,
            timeout_ms=self.config.request_timeout_ms,
            transactional_id=self.config.transactional_id,
            topic_data=[
                ProduceRequest.TopicProduceData(
                    name=topic,
                    topic_id=self.client.topics[topic].topic_id,
                    partition_data=[
                        ProduceRequest.PartitionProduceData(
                            index=partition, records=memoryview(batch)
                        )
                    ],
                )
            ],
        )
        if self.config.acks == 0:
            connection = await self.client.node(leader_id)
            version = connection.version_of(ApiKey.PRODUCE)
            await connection.send_without_response(request, version)
            return None
        response = await self.client.to_node(
            leader_id,
            request,
            ProduceResponse,
            max_version=None if self._transaction is None else LAST_PRODUCE_VERSION,
        )
        answers = [answer for part in response.responses for answer in part.partition_responses]
        if len(answers) != 1:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"{topic_partition}: {len(answers)} answers for it"
            )
        (answer,) = answers
        if answer.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            return answer
        check(answer.error_code, f"{topic_partition}: {answer.error_message or 'not written'}")
        return answer
