"""The group coordinator under load, beside Apache Kafka 4.3.1 on request.

    python benchmarks/groups.py [--kafka] [--groups 1000] [--commits 1000000] [--seconds 5]

Heartbeats: GROUPS consumer groups (KIP-848) of 5 members, each heartbeats in turn as fast as it is
answered. Commits: one partition each, by 1 and by 100 connections, one request in flight on each.
Load: one partition of __consumer_offsets with so many commits, 100 partitions a request, from the
start of the broker to the first OffsetFetch. Memory per member: what they cost the broker. CPU: of
the broker, which tells more than the clock where others use the machine too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kbroker.protocol.apis import response_class  # noqa: E402
from kbroker.protocol.codecs.codec import decode  # noqa: E402
from kbroker.protocol.codecs.schema import Message  # noqa: E402
from kbroker.protocol.framing import decode_response_header  # noqa: E402
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest  # noqa: E402
from kbroker.protocol.messages.coordinators.consumer_groups import (  # noqa: E402
    ConsumerGroupHeartbeatRequest,
)
from kbroker.protocol.messages.coordinators.groups import FindCoordinatorRequest  # noqa: E402
from kbroker.protocol.messages.coordinators.offsets import (  # noqa: E402
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from kbroker.testing.process import BrokerProcess  # noqa: E402
from scripts.apache_kafka import ApacheKafka  # noqa: E402
from tests.e2e.wire import call, frame_of  # noqa: E402

MEMBERS_PER_GROUP = 5
PARTITIONS = 100
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.load.buffer.size": "5242880",
    "log.retention.ms": "-1",
}
Server = BrokerProcess | ApacheKafka


class Link:
    """One connection, one request in flight."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Link:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, frame: bytes) -> bytes:
        self._writer.write(frame)
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        return await self._reader.readexactly(size)

    async def ask(self, message: Message, version: int) -> Any:
        frame = await self.send(frame_of(message, version))
        _, position = decode_response_header(frame, message.API_KEY, version)
        answer, _ = decode(response_class(message.API_KEY), frame, version, position)
        return answer

    def close(self) -> None:
        self._writer.close()


def ready(port: int) -> bytes:
    """Wait for the coordinator, make the topic; gives its id."""
    deadline = time.monotonic() + 60
    topics = [
        CreateTopicsRequest.CreatableTopic(name=name, num_partitions=count, replication_factor=1)
        for name, count in (("t", PARTITIONS), ("read", 10))
    ]
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
                made = CreateTopicsRequest(topics=topics, timeout_ms=20_000)
                created: Any = call(connection, made, 7)
                call(connection, FindCoordinatorRequest(key="g"), 0)
                fetched: Any = call(connection, fetch("ready"), 8)
                if fetched.groups[0].error_code == 0 and created.topics[0].error_code in (0, 36):
                    return bytes(created.topics[0].topic_id)
        except OSError:
            pass
        time.sleep(0.1)
    raise TimeoutError("no coordinator within 60 s")


def fetch(group: str) -> OffsetFetchRequest:
    topic = OffsetFetchRequest.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    one = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=[topic])
    return OffsetFetchRequest(groups=[one])


def commit(group: str, partitions: range, offset: int) -> OffsetCommitRequest:
    partition = OffsetCommitRequest.OffsetCommitRequestPartition
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(
        name="t",
        partitions=[partition(partition_index=n, committed_offset=offset) for n in partitions],
    )
    return OffsetCommitRequest(group_id=group, topics=[topic])


async def heartbeats(server: Server, groups: int, seconds: float) -> dict[str, float]:
    """Join all, then heartbeat in turn over 8 connections."""
    links = [await Link.open(server.port) for _ in range(8)]
    before = server.resident_bytes()
    started = time.monotonic()
    frames: list[list[bytes]] = [[] for _ in links]

    async def join(number: int, link: Link) -> None:
        for group in range(number, groups, len(links)):
            for member in range(MEMBERS_PER_GROUP):
                name = f"{group:011d}{member:011d}"
                request = ConsumerGroupHeartbeatRequest(
                    group_id=f"g{group}",
                    member_id=name,
                    rebalance_timeout_ms=300_000,
                    subscribed_topic_names=["read"],
                    topic_partitions=[],
                )
                answer = await link.ask(request, 1)
                assert answer.error_code == 0, answer
                beat = ConsumerGroupHeartbeatRequest(
                    group_id=f"g{group}", member_id=name, member_epoch=answer.member_epoch
                )
                frames[number].append(frame_of(beat, 1))

    await asyncio.gather(*(join(number, link) for number, link in enumerate(links)))
    joined_s = time.monotonic() - started
    grown = server.resident_bytes() - before
    cpu_s = server.cpu_seconds()
    count, end = 0, time.monotonic() + seconds

    async def beat(number: int, link: Link) -> None:
        nonlocal count
        index = 0
        while time.monotonic() < end:
            await link.send(frames[number][index % len(frames[number])])
            index += 1
            count += 1

    await asyncio.gather(*(beat(number, link) for number, link in enumerate(links)))
    for link in links:
        link.close()
    members = groups * MEMBERS_PER_GROUP
    return {
        "joins/s": members / joined_s,
        "heartbeats/s": count / seconds,
        "CPU/heartbeat (us)": (server.cpu_seconds() - cpu_s) / count * 1e6,
        "memory/member (KiB)": grown / members / 1024,
    }


async def commits(port: int, connections: int, seconds: float) -> float:
    """OffsetCommits a second of one partition each."""
    links = [await Link.open(port) for _ in range(connections)]
    frames = [frame_of(commit(f"c{n}", range(1), n), 8) for n in range(connections)]
    count, end = 0, time.monotonic() + seconds

    async def work(link: Link, frame: bytes) -> None:
        nonlocal count
        while time.monotonic() < end:
            await link.send(frame)
            count += 1

    await asyncio.gather(*map(work, links, frames))
    for link in links:
        link.close()
    return count / seconds


def write_commits(port: int, count: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        for number in range(count // PARTITIONS):
            call(connection, commit(f"l{number % 100}", range(PARTITIONS), number), 8)


def load_time(server: Server) -> float:
    """From the start of the broker to the first offset."""
    started = time.monotonic()
    server.start()
    while True:
        try:
            with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
                while True:
                    answer: Any = call(connection, fetch("l0"), 8)
                    (group,) = answer.groups
                    if group.error_code == 0:
                        assert group.topics[0].partitions[0].committed_offset >= 0
                        return time.monotonic() - started
                    time.sleep(0.01)
        except OSError:
            time.sleep(0.01)


def measure(make: Callable[[Path], Server], arguments: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        server = make(Path(folder) / "data")
        server.start()
        try:
            ready(server.port)
            found = asyncio.run(heartbeats(server, arguments.groups, arguments.seconds))
            for connections in (1, 100):
                cpu_s = server.cpu_seconds()
                rate = asyncio.run(commits(server.port, connections, arguments.seconds))
                cpu_s = server.cpu_seconds() - cpu_s
                found[f"commits/s, {connections} connections"] = rate
                found[f"CPU/commit, {connections} (us)"] = cpu_s / (rate * arguments.seconds) * 1e6
            write_commits(server.port, arguments.commits)
            server.stop()
            found["start and load (s)"] = load_time(server)
            found["CPU of start and load (s)"] = server.cpu_seconds()
        finally:
            if server.running:
                server.kill()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka as well")
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--commits", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    kinds: dict[str, Callable[[Path], Server]] = {
        "kbroker": lambda data: BrokerProcess(data, overrides=SETTINGS)
    }
    if arguments.kafka:
        kinds["Apache Kafka"] = lambda data: ApacheKafka(data, overrides=SETTINGS, heap="1g")
    print(f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}")
    found = {name: measure(make, arguments) for name, make in kinds.items()}
    print(f"{'':28}" + "".join(f"{name:>16}" for name in found))
    for row in next(iter(found.values())):
        print(f"{row:28}" + "".join(f"{values[row]:16,.1f}" for values in found.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
