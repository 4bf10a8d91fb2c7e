"""A blocking client for benchmarks of the broker's own cost: frames made ready beforehand, every
answer looked at. Shaped as Kafka's Java clients are: an idempotent producer with five requests
under way, a consumer with a session.
"""

from __future__ import annotations

import asyncio
import random
import socket
import string
import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from kbroker.client.cluster import Client as Cluster
from kbroker.client.cluster import check
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import (
    ATTRIBUTES_POSITION,
    BASE_SEQUENCE_POSITION,
    BASE_TIMESTAMP_POSITION,
    BATCH_OVERHEAD,
    CRC_POSITION,
    LENGTH_OVERHEAD,
    SCAN_FIELDS,
)
from kbroker.protocol.batches.checksum import crc32c
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.codecs.schema import Message, Request, Response
from kbroker.protocol.framing import decode_response_header, encode_request_frame
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.testing.process import BrokerProcess

PRODUCE_VERSION = 12
FETCH_VERSION = 12
IN_FLIGHT = 5
LETTERS = string.ascii_uppercase.encode()

_UINT32 = struct.Struct(">I")
_INT32 = struct.Struct(">i")
_TIMES = struct.Struct(">qq")

R = TypeVar("R", bound=Response)


@dataclass(frozen=True, slots=True)
class Case:
    """Requests of `batches` batches, one for each partition, of `records` records each. A
    compressed batch is hardly smaller: its values are random letters, as Kafka's
    ProducerPerformance makes them.
    """

    name: str
    batches: int
    records: int
    record_bytes: int
    compression: Compression = Compression.NONE


class ProduceRequests:
    """One frame, made ready for its next sending in place: number, times, sequences, CRCs."""

    def __init__(
        self, case: Case, topic: str, *, producer_id: int = 7, first_partition: int = 0
    ) -> None:
        """producer_id: of no real producer; the broker accepts an unknown producer."""
        self._count = case.records
        now_ms = time.time_ns() // 1_000_000
        letters = random.Random(1)
        batch = build_batch(
            [
                (now_ms, None, bytes(letters.choices(LETTERS, k=case.record_bytes)), [])
                for _ in range(case.records)
            ],
            compression=case.compression,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
        )
        request = ProduceRequest(
            acks=-1,
            timeout_ms=30_000,
            topic_data=[
                ProduceRequest.TopicProduceData(
                    name=topic,
                    partition_data=[
                        ProduceRequest.PartitionProduceData(
                            index=first_partition + i, records=bytes(batch)
                        )
                        for i in range(case.batches)
                    ],
                )
            ],
        )
        self.frame = frame_of(PRODUCE_VERSION, request)
        self._view = memoryview(self.frame)
        self._batches: list[int] = []
        position = self.frame.find(batch)
        while position >= 0:
            self._batches.append(position)
            position = self.frame.find(batch, position + len(batch))
        self._size = len(batch)
        self._sequence = 0
        self._number = 0

    def following(self) -> bytearray:
        """The frame of the next request."""
        self._number += 1
        now_ms = time.time_ns() // 1_000_000
        _INT32.pack_into(self.frame, 8, self._number)
        for start in self._batches:
            _TIMES.pack_into(self.frame, start + BASE_TIMESTAMP_POSITION, now_ms, now_ms)
            _INT32.pack_into(self.frame, start + BASE_SEQUENCE_POSITION, self._sequence)
            checksum = crc32c(self._view[start + ATTRIBUTES_POSITION : start + self._size])
            _UINT32.pack_into(self.frame, start + CRC_POSITION, checksum)
        self._sequence += self._count
        return self.frame


def frame_of(version: int, message: Message) -> bytearray:
    return bytearray(b"".join(bytes(p) for p in encode_request_frame(message, version, 1, "cost")))  # type: ignore[arg-type]  # no file ranges


class Client:
    """A blocking connection."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(1 << 16)

    def send(self, frame: bytes | bytearray) -> None:
        self._socket.sendall(frame)

    def receive(self) -> memoryview:
        """The next response without its length; valid until the next call."""
        size = _INT32.unpack(self._exactly(4))[0]
        return self._exactly(size)

    def ask(self, request: Request, response_type: type[R], version: int) -> R:
        """One request and its answer."""
        self.send(frame_of(version, request))
        frame = self.receive()
        _, position = decode_response_header(frame, request.API_KEY, version)
        return decode(response_type, frame, version, position)[0]

    def _exactly(self, count: int) -> memoryview:
        if count > len(self._buffer):
            self._buffer = bytearray(count)
        view = memoryview(self._buffer)[:count]
        got = 0
        while got < count:
            read = self._socket.recv_into(view[got:])
            if not read:
                raise SystemExit("the broker closed the connection")
            got += read
        return view

    def close(self) -> None:
        self._socket.close()


def produce(client: Client, requests: ProduceRequests, count: int) -> None:
    """Send count requests, at most five under way, and look at the answers."""
    under_way: deque[None] = deque()
    for _ in range(count):
        if len(under_way) == IN_FLIGHT:
            under_way.popleft()
            check_produced(client.receive())
        client.send(requests.following())
        under_way.append(None)
    while under_way:
        under_way.popleft()
        check_produced(client.receive())


def check_produced(frame: memoryview) -> None:
    _, position = decode_response_header(frame, ApiKey.PRODUCE, PRODUCE_VERSION)
    response, _ = decode(ProduceResponse, frame, PRODUCE_VERSION, position)
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code:
                raise SystemExit(f"produce failed with {answer.error_code}")


class Consumer:
    """A session over all partitions from the start of the log, as Kafka's consumer has it."""

    def __init__(self, client: Client, topic: str, partitions: int) -> None:
        self._client = client
        self._topic = topic
        self._offsets = dict.fromkeys(range(partitions), 0)
        self._session = (0, 0)
        self._named = list(self._offsets)

    def poll(self) -> int:
        """One request; how many bytes of records came."""
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=50 << 20,
            session_id=self._session[0],
            session_epoch=self._session[1],
            topics=[
                FetchRequest.FetchTopic(
                    topic=self._topic,
                    partitions=[
                        FetchRequest.FetchPartition(
                            partition=i,
                            fetch_offset=self._offsets[i],
                            partition_max_bytes=1 << 20,
                        )
                        for i in self._named
                    ],
                )
            ]
            if self._named
            else [],
        )
        self._client.send(frame_of(FETCH_VERSION, request))
        frame = self._client.receive()
        _, position = decode_response_header(frame, ApiKey.FETCH, FETCH_VERSION)
        response, _ = decode(FetchResponse, frame, FETCH_VERSION, position)
        if response.error_code:
            raise SystemExit(f"fetch failed with {response.error_code}")
        self._session = (response.session_id, self._session[1] + 1)
        self._named = []
        size = 0
        for topic in response.responses:
            for data in topic.partitions:
                records = data.records
                if data.error_code or not isinstance(records, memoryview):
                    raise SystemExit(f"fetch failed with {data.error_code}")
                size += len(records)
                if records:
                    self._offsets[data.partition_index] = next_offset(records)
                    self._named.append(data.partition_index)
        return size


def consume(
    client: Client, topic: str, partitions: int, *, limit: int | None = None
) -> tuple[int, int]:
    """Read a topic from its start until a poll finds nothing, or limit polls; how many polls that
    took, and how many bytes came.
    """
    consumer = Consumer(client, topic, partitions)
    polls = total = 0
    while limit is None or polls < limit:
        polls += 1
        size = consumer.poll()
        total += size
        if not size:
            break
    return polls, total


def next_offset(records: memoryview) -> int:
    """Behind the last whole batch."""
    position, following = 0, 0
    while position + BATCH_OVERHEAD <= len(records):
        base_offset, length, _, last_offset_delta, _ = SCAN_FIELDS.unpack_from(records, position)
        if position + LENGTH_OVERHEAD + length > len(records):
            break
        following = base_offset + last_offset_delta + 1
        position += LENGTH_OVERHEAD + length
    return following


def _within_one_operation(topics: Iterable[tuple[str, int]]) -> Iterator[list[tuple[str, int]]]:
    """As many topics as the controller writes records of in one operation: 10,000, as in Kafka."""
    some: list[tuple[str, int]] = []
    records = 0
    for name, partitions in topics:
        if some and records + partitions + 1 > 10_000:
            yield some
            some, records = [], 0
        some.append((name, partitions))
        records += partitions + 1
    if some:
        yield some


def create_topics(broker: BrokerProcess, topics: Iterable[tuple[str, int]]) -> None:
    """(name, partitions) each. Raises KafkaError where one cannot be made."""

    async def create() -> None:
        async with Cluster(broker.bootstrap_servers, timeout_s=600) as cluster:
            for some in _within_one_operation(topics):
                response = await cluster.to_controller(
                    CreateTopicsRequest(
                        topics=[
                            CreateTopicsRequest.CreatableTopic(
                                name=name, num_partitions=partitions, replication_factor=1
                            )
                            for name, partitions in some
                        ],
                        timeout_ms=600_000,
                    ),
                    CreateTopicsResponse,
                )
                for topic in response.topics:
                    check(topic.error_code, topic.error_message)

    asyncio.run(create())
