"""Clients that ask for much at once, and a ledger of what they were told: the load of
`test_answers`.

Everything random comes from the seed; what the kernel and the threads make of it does not.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from kbroker.protocol.apis import ApiKey, response_class
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.framing import decode_response_header
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, DeleteTopicsRequest
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.messages.coordinators.transactions import InitProducerIdRequest
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.produce import ProduceRequest
from tests.e2e.wire import frame_of

PATIENCE_S: Final = 60.0
"""An answer that takes longer never comes."""

IN_FLIGHT: Final = 5
MAX_REQUEST_BYTES: Final = 1_000_000
PARTITIONS: Final = 3
TOPICS: Final[dict[str, dict[str, str]]] = {
    "plain": {"segment.bytes": "3000000"},
    "packed": {"compression.type": "zstd", "segment.bytes": "3000000"},
    "dated": {"message.timestamp.before.max.ms": "86400000"},
    "flushed": {"flush.messages": "7"},
}
"""The second and third have batches checked in a worker, the last has them synced."""

VERSIONS: Final = {
    ApiKey.PRODUCE: 9,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 7,
    ApiKey.METADATA: 12,
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.DELETE_TOPICS: 5,
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.API_VERSIONS: 3,
}

Place = tuple[str, int]
"""A topic and a partition."""


class Unanswered(AssertionError):
    """A request that was not answered, or not in its turn."""


class Client:
    """A connection that sends several requests before it reads. name: in messages of failures."""

    def __init__(self, name: str, port: int, receive_bytes: int = 0) -> None:
        self.name = name
        self._port = port
        self._receive_bytes = receive_bytes
        self._asked: deque[tuple[int, Message]] = deque()

    async def open(self) -> None:
        raw = socket.socket()
        if self._receive_bytes:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_bytes)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", self._port))
        self._reader, self._writer = await asyncio.open_connection(sock=raw, limit=1 << 16)
        self._asked.clear()

    @property
    def waiting(self) -> int:
        """Requests without an answer."""
        return len(self._asked)

    def send(self, request: Message, *, answered: bool = True) -> None:
        frame = frame_of(request, VERSIONS[ApiKey(request.API_KEY)], self.name)
        if answered:
            self._asked.append((struct.unpack_from(">i", frame, 8)[0], request))
        self._writer.write(frame)

    def send_raw(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self) -> tuple[Any, Any]:
        """The next request without an answer, and its answer. Raises Unanswered; ConnectionError if
        the broker ends the connection.
        """
        correlation_id, request = self._asked[0]
        kind = type(request).__name__
        try:
            async with asyncio.timeout(PATIENCE_S):
                (size,) = struct.unpack(">i", await self._reader.readexactly(4))
                frame = await self._reader.readexactly(size)
        except TimeoutError:
            raise Unanswered(f"{self.name}: {kind}, {self.waiting} wait") from None
        except asyncio.IncompleteReadError as error:
            raise ConnectionError(f"{self.name}: {kind}, {self.waiting} wait") from error
        version = VERSIONS[ApiKey(request.API_KEY)]
        told, position = decode_response_header(frame, request.API_KEY, version)
        if told != correlation_id:
            raise Unanswered(f"{self.name}: {kind} {correlation_id}, but {told} was answered")
        message, end = decode(response_class(request.API_KEY), frame, version, position)
        assert end == len(frame)
        self._asked.popleft()
        return request, message

    async def call(self, request: Message) -> Any:
        self.send(request)
        return (await self.answer())[1]

    def abort(self) -> None:
        """Close with a reset, whatever is under way."""
        self._writer.transport.abort()


@dataclass
class Ledger:
    """What must be in the logs: by place, the first sequence of each acknowledged batch of a
    producer and its offset. ended: connections that the broker ended.
    """

    acknowledged: dict[tuple[Place, int, int], int] = field(default_factory=dict)
    ended: int = 0

    def note(self, batch: tuple[Place, int, int], offset: int) -> None:
        """It was acknowledged, perhaps again, and then with the same offset."""
        assert self.acknowledged.setdefault(batch, offset) == offset, batch


class World:
    """What the actors share."""

    def __init__(self, port: int, seed: int, requests: int) -> None:
        self.port = port
        self.seed = seed
        self.requests = requests
        self.ledger = Ledger()
        self.now_ms = int(time.time() * 1000)
        self.over = asyncio.Event()

    def random(self, name: str) -> Random:
        return Random(f"{self.seed} {name}")

    @asynccontextmanager
    async def client(self, name: str, receive_bytes: int = 0) -> AsyncIterator[Client]:
        client = Client(name, self.port, receive_bytes)
        await client.open()
        try:
            yield client
        finally:
            client.abort()

    async def settle(self) -> None:
        """Make the topics."""
        async with self.client("maker") as client:
            for name, configs in TOPICS.items():
                await client.call(new_topic(name, configs))


def new_topic(name: str, configs: dict[str, str] | None = None) -> CreateTopicsRequest:
    kind = CreateTopicsRequest.CreatableTopicConfig
    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=PARTITIONS,
        replication_factor=1,
        configs=[kind(name=key, value=value) for key, value in (configs or {}).items()],
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=30_000)


def produce(acks: int, batches: dict[Place, bytes | bytearray]) -> ProduceRequest:
    topics: dict[str, list[ProduceRequest.PartitionProduceData]] = {}
    for (topic, index), batch in batches.items():
        part = ProduceRequest.PartitionProduceData(index=index, records=batch)
        topics.setdefault(topic, []).append(part)
    return ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[
            ProduceRequest.TopicProduceData(name=name, partition_data=parts)
            for name, parts in topics.items()
        ],
    )


def some_bytes(random: Random) -> bytes:
    """A value: mostly small, now and then as large as one may be; half of it does not pack."""
    size = random.choices(
        (random.randrange(100), 16_000, random.randrange(200_000), 990_000), (12, 10, 4, 1)
    )[0]
    return random.randbytes(size // 2) + bytes(size // 2)


Sent = tuple[int, dict[Place, tuple[int, bytes]]]
"""acks, and by place the first sequence of a batch and the batch."""


class IdempotentProducer:
    """Up to five requests under way, each with a batch for some of its partitions."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.world = world
        self.random = world.random(name)
        self.client = Client(name, world.port)
        places = [(topic, n) for topic in TOPICS for n in range(PARTITIONS)]
        self.sequences = dict.fromkeys(self.random.sample(places, 6), 0)
        self.under_way: deque[Sent] = deque()
        self.producer_id = -1

    async def open(self) -> None:
        await self.client.open()
        if self.producer_id < 0:
            granted = await self.client.call(InitProducerIdRequest(transactional_id=None))
            self.producer_id = granted.producer_id

    def send(self) -> None:
        """One more request."""
        random = self.random
        sent: dict[Place, tuple[int, bytes]] = {}
        for place in random.sample(list(self.sequences), random.choice((1, 1, 2, 6))):
            count = random.choice((1, 1, 3))
            value = some_bytes(random)
            batch = build_batch(
                [(self.world.now_ms, b"k", value[n::count], []) for n in range(count)],
                compression=random.choice((Compression.NONE, Compression.ZSTD, Compression.LZ4)),
                producer_id=self.producer_id,
                producer_epoch=0,
                base_sequence=self.sequences[place],
            )
            if sum(len(one) for _, one in sent.values()) + len(batch) > MAX_REQUEST_BYTES:
                break
            sent[place] = (self.sequences[place], bytes(batch))
            self.sequences[place] += count
        self.begin((random.choice((-1, -1, 1)), sent))

    def begin(self, request: Sent) -> None:
        acks, sent = request
        self.under_way.append(request)
        self.client.send(produce(acks, {place: batch for place, (_, batch) in sent.items()}))

    async def take(self) -> None:
        """The next answer. Raises ConnectionError."""
        _, response = await self.client.answer()
        _, sent = self.under_way.popleft()
        told = {
            (topic.name, part.index): part
            for topic in response.responses
            for part in topic.partition_responses
        }
        assert told.keys() == sent.keys(), self.name
        for place, (sequence, _) in sent.items():
            part = told[place]
            error = ErrorCode(part.error_code)
            assert error is ErrorCode.NONE, f"{self.name}: {place} {sequence} {error.name}"
            self.world.ledger.note((place, self.producer_id, sequence), part.base_offset)

    async def begin_anew(self) -> None:
        """On a new connection send what has no answer, as Java's client does: each batch of a
        partition once the one before is in.
        """
        again = deque(
            (acks, {place: batch}) for acks, sent in self.under_way for place, batch in sent.items()
        )
        while again:
            self.client.abort()
            self.under_way.clear()
            await self.client.open()
            try:
                while again:
                    self.begin(again[0])
                    await self.take()
                    again.popleft()
            except ConnectionError:
                self.world.ledger.ended += 1

    async def take_some(self, enough: Callable[[], bool]) -> None:
        while self.under_way and not enough():
            try:
                await self.take()
            except ConnectionError:
                self.world.ledger.ended += 1
                await self.begin_anew()


async def idempotent_producer(world: World, name: str) -> None:
    """Now and then it loses its connection with all that is under way."""
    producer = IdempotentProducer(world, name)
    random = producer.random
    await producer.open()
    for _ in range(world.requests):
        if producer.under_way and random.random() < 0.04:
            if random.random() < 0.5:
                await asyncio.sleep(random.random() / 20)
            await producer.begin_anew()
        left = random.choice((0, 2, IN_FLIGHT - 1, IN_FLIGHT - 1))
        await producer.take_some(lambda left=left: len(producer.under_way) <= left)  # type: ignore[misc]  # bound now
        producer.send()
    await producer.take_some(lambda: False)
    producer.client.abort()


async def silent_producer(world: World, name: str) -> None:
    """acks=0, with a request in between that is answered after all before it are handled. The
    broker may end the connection for lack of memory; no batch of it has to be in the log.
    """
    random = world.random(name)
    async with world.client(name) as client:
        for number in range(world.requests):
            batch = build_batch([(world.now_ms, None, some_bytes(random), [])])
            place = (random.choice(("plain", "packed")), random.randrange(PARTITIONS))
            client.send(produce(0, {place: batch}), answered=False)
            if number % 7 == 0:
                client.send(
                    ApiVersionsRequest(client_software_name="x", client_software_version="1")
                )
            least = 3 if number < world.requests - 1 else 0
            try:
                while client.waiting > least:
                    await client.answer()
            except ConnectionError:
                world.ledger.ended += 1
                client.abort()
                await client.open()


def fetch(places: list[Place], random: Random) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=random.choice((0, 50, 300)),
        min_bytes=random.choice((0, 1, 1 << 20, 1 << 30)),
        max_bytes=random.choice((1, 1 << 16, 1 << 22)),
        topics=[
            FetchRequest.FetchTopic(
                topic=topic,
                partitions=[
                    FetchRequest.FetchPartition(
                        partition=index, fetch_offset=0, partition_max_bytes=1 << 19
                    )
                ],
            )
            for topic, index in places
        ],
    )


async def fetcher(world: World, name: str) -> None:
    """Several fetches under way, some of which wait, and answers that are taken slowly."""
    random = world.random(name)
    everything = [(topic, n) for topic in TOPICS for n in range(PARTITIONS)]
    async with world.client(name, receive_bytes=random.choice((0, 4096))) as client:
        while not world.over.is_set():
            for _ in range(random.randrange(1, 4)):
                client.send(fetch(random.sample(everything, random.randrange(1, 8)), random))
            if random.random() < 0.3:
                await asyncio.sleep(random.random() / 5)
            while client.waiting:
                await client.answer()
            if random.random() < 0.1:
                client.send(fetch(everything, random))
                client.abort()
                await client.open()


async def asker(world: World, name: str) -> None:
    """Small requests with larger answers, a hundred at once and more."""
    random = world.random(name)
    async with world.client(name, receive_bytes=4096) as client:
        while not world.over.is_set():
            for _ in range(random.choice((1, 5, 150))):
                if random.random() < 0.5:
                    client.send(MetadataRequest(topics=None))
                else:
                    client.send(end_offsets(list(TOPICS)))
            await asyncio.sleep(random.random() / 10)
            while client.waiting:
                await client.answer()


def end_offsets(names: list[str]) -> ListOffsetsRequest:
    part = ListOffsetsRequest.ListOffsetsPartition
    return ListOffsetsRequest(
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name=name,
                partitions=[part(partition_index=n, timestamp=-1) for n in range(PARTITIONS)],
            )
            for name in names
        ]
    )


async def half_sender(world: World, name: str) -> None:
    """Promises a request, sends a part of it and leaves, or is shown the door."""
    random = world.random(name)
    while not world.over.is_set():
        async with world.client(name) as client:
            size = random.choice((20_000, 300_000, 1_000_000))
            client.send_raw(struct.pack(">ihh", size, 0, 9))
            client.send_raw(bytes(random.randrange(size)))
            await asyncio.sleep(random.random() / 3)


async def churner(world: World, name: str) -> None:
    """Topics that come and go while they are written to; any error will do, but an answer."""
    random = world.random(name)
    number = 0
    async with world.client(name) as client, world.client(f"{name}'s") as other:
        while not world.over.is_set():
            number += 1
            topic = f"{name}-{number}"
            client.send(new_topic(topic, random.choice(list(TOPICS.values()))))
            for _ in range(random.randrange(1, 12)):
                compression = random.choice((Compression.NONE, Compression.LZ4))
                value = random.randbytes(random.choice((10, 10_000, 100_000)))
                batch = build_batch([(world.now_ms, b"k", value, [])], compression=compression)
                acks = random.choice((1, -1))
                other.send(produce(acks, {(topic, random.randrange(PARTITIONS)): batch}))
                other.send(fetch([(topic, 0), ("plain", 1)], random))
            if random.random() < 0.5:
                await client.answer()
            client.send(DeleteTopicsRequest(topic_names=[topic], timeout_ms=30_000))
            try:
                while other.waiting:
                    await other.answer()
            except (ConnectionError, asyncio.IncompleteReadError):
                world.ledger.ended += 1
                other.abort()
                await other.open()
            while client.waiting:
                await client.answer()


async def run(world: World, *, producers: int) -> None:
    """All actors until the producers are done. Raises what the first of them raises."""
    await world.settle()
    workers: list[Callable[[World, str], Awaitable[None]]] = [idempotent_producer] * producers
    workers.append(silent_producer)
    others = [fetcher, fetcher, asker, half_sender, half_sender, churner]

    async def work() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for number, kind in enumerate(workers):
                    group.create_task(kind(world, f"{kind.__name__} {number}"))
        finally:
            world.over.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(work())
        for number, kind in enumerate(others):
            group.create_task(kind(world, f"{kind.__name__}-{number}".replace("_", "-")))
