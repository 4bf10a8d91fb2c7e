"""Whether `kbroker.memory.limit.bytes` holds: the broker's resident memory under clients that want
more than there is.

    python -m benchmarks.memory_attack [--connections 1000] [--limit-mb 64] [--kind NAME ...]

A broker of its own for each kind of attack, all connections at once:

    produce    each sends three requests of 1 MB; all must be acknowledged
    packed     the same, a fifth of them, to a topic that packs every batch anew (zstd), so that
               copies wait for a worker
    halves     each sends half of a request and stops; a producer beside them must get through
    metadata   each asks 5 times for all topics (120 KB) and reads nothing for a while, then all
    fetch      each asks for 50 MB five times and reads nothing for a while; 50 read an answer then
    sessions   each opens a fetch session of 10,000 partitions; who gets none is answered all the
               same
    waiting    each has a fetch of 10,000 partitions wait for 30 s; a producer beside them must get
               through
    compacted  a twentieth of them pipelines 20 batches of 800 KB to a compacted topic: small
               records that a worker looks through, in every other batch without keys, so that all
               are refused
    cleaning   a tenth of them sends to a compacted topic, five times: a batch that unpacks to 64
               MB, one that unpacks to 4 MB and 5,000 new keys; the topic is cleaned meanwhile

Prints memory before, the peak (VmHWM), and the peak beyond the limit and what was there before,
which must stay under what a connection's own small buffers explain; how often connections waited
for memory.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import resource
import shutil
import struct
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.framing import decode_response_header
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.testing.process import BrokerProcess
from scripts.ports import free_port
from tests.e2e.wire import frame_of

MEGABYTE = 1 << 20
CONNECTION_BYTES = 24 * 1024
"""What a connection may cost beside the limit: its small buffer, its objects."""

BASE_BYTES = 32 * MEGABYTE
"""What a broker at work has beyond one at rest: modules, code of messages, free lists, a batch in
the worker's hands.
"""

SLOW_SECONDS = 3.0
TOPICS = 400
PARTITIONS = 10_000
KEYS = 5_000
CLEANING_SECONDS = 300


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 16))

    async def send(self, frame: bytes) -> None:
        self.writer.write(frame)
        await self.writer.drain()

    async def produced(self) -> int:
        """Read the answer to a Produce request of one partition; its error."""
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        frame = await self.reader.readexactly(size)
        _, position = decode_response_header(frame, ProduceRequest.API_KEY, 9)
        response, _ = decode(ProduceResponse, frame, 9, position)
        return response.responses[0].partition_responses[0].error_code

    async def acknowledged(self) -> bool:
        """Whether the answer to a Produce request of one partition has no error."""
        return not await self.produced()

    async def session(self) -> int:
        """Read the answer to a Fetch request; its session."""
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        frame = await self.reader.readexactly(size)
        _, position = decode_response_header(frame, FetchRequest.API_KEY, 12)
        _, error, session_id = struct.unpack_from(">ihi", frame, position)
        if error:
            raise ConnectionError(f"Fetch was answered with error {error}")
        return int(session_id)

    async def receive(self) -> int:
        """Read an answer away; its size."""
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        left = size
        while left:
            piece = await self.reader.read(min(left, 1 << 16))
            if not piece:
                raise ConnectionError("the broker closed a connection in the middle of an answer")
            left -= len(piece)
        return int(size)

    def close(self) -> None:
        self.writer.transport.abort()


def produce_frame(topic: str, size: int = MEGABYTE - 4096) -> bytes:
    value = bytes(range(256)) * 64
    return batch_frame(topic, [(b"key", value)] * (size // len(value)))


def batch_frame(
    topic: str, pairs: Sequence[tuple[bytes | None, bytes]], codec: Compression = Compression.NONE
) -> bytes:
    """A Produce request with a batch of these keys and values."""
    now_ms = time.time_ns() // 1_000_000
    batch = build_batch([(now_ms, key, value, []) for key, value in pairs], compression=codec)
    data = ProduceRequest.PartitionProduceData(index=0, records=batch)
    topic_data = ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
    return frame_of(ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[topic_data]), 9)


async def create(port: int, names: list[str], configs: dict[str, str] | None = None) -> None:
    topics = [
        CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=1,
            replication_factor=1,
            configs=[
                CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
                for key, value in (configs or {}).items()
            ],
        )
        for name in names
    ]
    client = await Client.connect(port)
    await client.send(frame_of(CreateTopicsRequest(topics=topics, timeout_ms=60_000), 5))
    await client.receive()
    client.close()


async def connect_all(port: int, count: int) -> list[Client]:
    clients: list[Client] = []
    while len(clients) < count:
        wanted = min(100, count - len(clients))
        clients += await asyncio.gather(*(Client.connect(port) for _ in range(wanted)))
    return clients


async def flood(port: int, count: int, topic: str, times: int = 3) -> int:
    """Each client sends so many requests; how many were acknowledged without an error."""
    frame = produce_frame(topic)

    async def one(client: Client) -> int:
        sending = asyncio.ensure_future(client.send(frame * times))
        done = sum([await client.acknowledged() for _ in range(times)])
        await sending
        return done

    clients = await connect_all(port, count)
    answered = sum(await asyncio.gather(*map(one, clients)))
    for client in clients:
        client.close()
    return answered


async def produce(port: int, count: int) -> str:
    await create(port, ["plain"])
    return f"{await flood(port, count, 'plain')} requests of 1 MB acknowledged"


async def packed(port: int, count: int) -> str:
    await create(port, ["packed"], {"compression.type": "zstd"})
    count = max(1, count // 5)
    return f"{await flood(port, count, 'packed')} requests of 1 MB acknowledged"


async def halves(port: int, count: int) -> str:
    await create(port, ["plain"])
    frame = produce_frame("plain")
    clients = await connect_all(port, count)

    async def half(client: Client) -> None:
        try:
            await client.send(frame[: len(frame) // 2])
        except ConnectionError:
            return  # it was in the way

    sending = [asyncio.ensure_future(half(client)) for client in clients]
    await asyncio.sleep(SLOW_SECONDS)
    started = time.monotonic()
    honest = await Client.connect(port)
    await honest.send(frame)
    await honest.receive()
    waited = time.monotonic() - started
    for task in sending:
        task.cancel()
    for client in [*clients, honest]:
        client.close()
    return f"a producer beside them waited {waited:.1f} s"


async def metadata(port: int, count: int) -> str:
    for first in range(0, TOPICS, 20):
        await create(port, [f"{i:05d}-" + "x" * 240 for i in range(first, first + 20)])
    return await slow_readers(port, count, frame_of(MetadataRequest(topics=None), 9), 5)


async def fetch(port: int, count: int) -> str:
    await create(port, ["plain"])
    writer = await Client.connect(port)
    for _ in range(60):
        await writer.send(produce_frame("plain"))
        await writer.receive()
    writer.close()
    wanted = FetchRequest.FetchPartition(partition=0, partition_max_bytes=50_000_000)
    topic = FetchRequest.FetchTopic(topic="plain", partitions=[wanted])
    request = FetchRequest(max_wait_ms=0, max_bytes=50_000_000, topics=[topic])
    return await slow_readers(port, count, frame_of(request, 11), 5, read=50)


async def slow_readers(port: int, count: int, frame: bytes, times: int, read: int = 0) -> str:
    """Each client sends the request so many times, reads nothing for a while, and then all
    responses. read: how many of the clients read at all, 0 for all of them.
    """
    clients = await connect_all(port, count)
    for client in clients:
        client.writer.transport.pause_reading()
        client.writer.write(frame * times)
    await asyncio.sleep(SLOW_SECONDS)

    async def one(client: Client) -> int:
        client.writer.transport.resume_reading()
        return sum([await client.receive() for _ in range(times if not read else 1)])

    readers = clients[: read or count]
    size = sum(await asyncio.gather(*map(one, readers)))
    for client in clients:
        client.close()
    return f"{len(readers)} slow readers got {size / 1e6:,.0f} MB"


def wide_fetch(*, session: bool, max_wait_ms: int = 0) -> bytes:
    """Of very many partitions, of which one is there."""
    wanted = [FetchRequest.FetchPartition(partition=index) for index in range(PARTITIONS)]
    topic = FetchRequest.FetchTopic(topic="plain", partitions=wanted)
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1 << 30,
        max_bytes=1 << 30,
        session_epoch=0 if session else -1,
        topics=[topic],
    )
    return frame_of(request, 12)


async def sessions(port: int, count: int) -> str:
    await create(port, ["plain"])
    frame = wide_fetch(session=True)
    clients = await connect_all(port, count)

    async def one(client: Client) -> int:
        await client.send(frame)
        return await client.session()

    opened = await asyncio.gather(*map(one, clients))
    for client in clients:
        client.close()
    return f"{len(opened)} answered, {sum(map(bool, opened))} with a session"


async def waiting(port: int, count: int) -> str:
    await create(port, ["plain"])
    frame = wide_fetch(session=False, max_wait_ms=30_000)
    clients = await connect_all(port, count)
    started = time.monotonic()
    asking = [asyncio.ensure_future(client.send(frame)) for client in clients]
    answers = [asyncio.ensure_future(client.session()) for client in clients]
    await asyncio.sleep(SLOW_SECONDS)
    honest = await Client.connect(port)
    asked = time.monotonic()
    await honest.send(produce_frame("plain"))
    is_through = await honest.acknowledged()
    waited = time.monotonic() - asked
    await asyncio.gather(*asking, *answers)
    for client in [*clients, honest]:
        client.close()
    return (
        f"all {len(answers)} answered within {time.monotonic() - started:.0f} s; a producer beside"
        f" them waited {waited:.1f} s{'' if is_through else ' AND FAILED'}"
    )


async def compacted(port: int, count: int) -> str:
    await create(port, ["keyed"], {"cleanup.policy": "compact"})
    frames = [batch_frame("keyed", [(key, b"")] * 90_000) for key in (b"", None)] * 10
    clients = await connect_all(port, max(1, count // 20))
    errors: Counter[int] = Counter()

    async def one(client: Client) -> None:
        sending = asyncio.ensure_future(client.send(b"".join(frames)))
        errors.update([await client.produced() for _ in frames])
        await sending

    await asyncio.gather(*map(one, clients))
    for client in clients:
        client.close()
    refused = errors.pop(int(ErrorCode.INVALID_RECORD), 0)
    return f"{errors.pop(0, 0)} batches acknowledged, {refused} refused, others {dict(errors)}"


async def cleaning(port: int, count: int) -> str:
    configs = {
        "cleanup.policy": "compact",
        "segment.bytes": str(MEGABYTE),
        "min.cleanable.dirty.ratio": "0.01",
    }
    await create(port, ["table"], configs)
    large = [
        batch_frame("table", [(b"key", bytes(range(256)) * (size // 256))], codec)
        for size in (64 * MEGABYTE, 4 * MEGABYTE)
        for codec in (Compression.GZIP, Compression.ZSTD)
    ]
    errors: Counter[int] = Counter()

    async def one(number: int, client: Client) -> None:
        for turn in range(5):
            base = (number * 5 + turn) * KEYS
            keys = [(b"%016d" % key, b"value") for key in range(base, base + KEYS)]
            frames = [large[turn % 2], large[2 + turn % 2], batch_frame("table", keys)]
            await client.send(b"".join(frames))
            errors.update([await client.produced() for _ in frames])

    clients = await connect_all(port, max(1, count // 10))
    await asyncio.gather(*(one(number, client) for number, client in enumerate(clients)))
    for client in clients:
        client.close()
    return (
        f"{errors.pop(0, 0)} batches acknowledged,"
        f" {errors.pop(int(ErrorCode.MESSAGE_TOO_LARGE), 0)} refused for what they unpack to,"
        f" other errors {dict(errors)}"
    )


KINDS: dict[str, Callable[[int, int], Awaitable[str]]] = {
    "produce": produce,
    "packed": packed,
    "halves": halves,
    "metadata": metadata,
    "fetch": fetch,
    "sessions": sessions,
    "waiting": waiting,
    "compacted": compacted,
    "cleaning": cleaning,
}


def peak_bytes(pid: int) -> int:
    """The largest resident set the process ever had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no VmHWM of process {pid}")


def rounds_of_cleaning(broker: BrokerProcess, wanted: int) -> int:
    """How many there were, once there are so many or time is up."""
    deadline = time.monotonic() + CLEANING_SECONDS
    while True:
        count = broker.log.read_text().count(": compacted up to")
        if count >= wanted or time.monotonic() > deadline:
            return count
        time.sleep(1)


def waits(port: int) -> int:
    """How often a connection had to wait for memory."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("kbroker_memory_waits_total "):
                return int(float(line.split()[1]))
    raise RuntimeError("no kbroker_memory_waits_total")


def attack(kind: str, connections: int, limit_mb: int, folder: Path) -> bool:
    """Run one; whether memory stayed within what was promised."""
    limit = limit_mb * MEGABYTE
    metrics_port = free_port()
    overrides = {
        "kbroker.memory.limit.bytes": str(limit),
        "kbroker.metrics.listener": f"127.0.0.1:{metrics_port}",
        "log.cleaner.backoff.ms": "1000",
        "num.partitions": "1",
    }
    with BrokerProcess(folder, overrides=overrides) as broker:
        time.sleep(0.5)
        before = broker.resident_bytes()
        started = time.monotonic()
        outcome = asyncio.run(asyncio.wait_for(KINDS[kind](broker.port, connections), 900))
        seconds = time.monotonic() - started
        if kind == "cleaning":
            outcome += f", {rounds_of_cleaning(broker, 3)} rounds of cleaning"
        peak = peak_bytes(broker.pid)
        beyond = peak - before - limit
        allowed = BASE_BYTES + connections * CONNECTION_BYTES
        if kind == "metadata":
            allowed += TOPICS * 16 * 1024  # the topics themselves
        print(
            f"{kind:<9} {before / 1e6:6.0f} MB before, peak {peak / 1e6:6.0f} MB;"
            f" beyond before + limit {beyond / 1e6:+6.0f} MB (allowed {allowed / 1e6:.0f});"
            f" {waits(metrics_port)} waits, {broker.cpu_seconds():.1f} CPU-s, {seconds:.1f} s;"
            f" {outcome}",
            flush=True,
        )
        return beyond <= allowed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--limit-mb", type=int, default=64)
    parser.add_argument("--kind", nargs="+", choices=sorted(KINDS), default=list(KINDS))
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(
        f"{platform.machine()}, Python {platform.python_version()}; {arguments.connections}"
        f" connections, kbroker.memory.limit.bytes {arguments.limit_mb} MiB"
    )
    base = Path(tempfile.mkdtemp(prefix="kbroker-memory-"))
    try:
        kept = [
            attack(kind, arguments.connections, arguments.limit_mb, base / kind)
            for kind in arguments.kind
        ]
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
