"""What one Produce and one Fetch request cost inside the broker: decode, handle, encode; no socket.

    python -m benchmarks.hot_path [--seconds 1]

Cases: Produce v9 with 6 partitions of 16 KB; Fetch v12 of the same without a session; a poll of an
idle session of 100 partitions, and the same 100 partitions asked without a session. Prints
microseconds of wall clock, best of several rounds (the others had company), and, for an idea of
what the interpreter does, Python-level calls per request counted by `sys.setprofile`.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from kbroker.log.manager import LogManager
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.publisher import HostPartition
from kbroker.model import TimerHandle, TopicPartition
from kbroker.protocol.framing import encode_request_frame
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.records import build_batch
from kbroker.protocol.schema import Message
from kbroker.replication.manager import ReplicaManager
from kbroker.server.dispatch import ConnectionInfo, Dispatcher
from kbroker.server.handlers import fetch, produce
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.log_config import LogConfig

TOPIC = "events"
TOPIC_ID = bytes(15) + b"\x07"
BATCH_BYTES = 16 * 1024
ROUNDS = 5


class _NoTimer:
    def cancel(self) -> None:
        """It never fires."""


class _Clock:
    """Timers that never fire: every request measured is answered at once."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> TimerHandle:
        return _NoTimer()


class Bench:
    """A dispatcher over real logs in a temporary folder."""

    def __init__(self, folder: Path, partitions: int) -> None:
        config = BrokerConfig.from_properties({"log.dirs": str(folder), "node.id": "1"})
        timers = _Clock()
        self.logs = LogManager(config, now_ms=timers.now_ms)
        self.logs.lock()
        self.logs.load()
        self.replicas = ReplicaManager(1, self.logs, timers, config, random=Random(1))
        log_config = LogConfig.from_configs(config, {})
        self.replicas.apply(
            HostPartition(TopicPartition(TOPIC, i), TOPIC_ID, 1, 0, 0, (1,), (1,), log_config)
            for i in range(partitions)
        )
        services: Any = SimpleNamespace(
            node_id=1, replicas=self.replicas, image=MetadataImage(), api_versions=()
        )
        self.dispatcher = Dispatcher([*produce.HANDLERS, *fetch.HANDLERS], services)
        self.connection = ConnectionInfo("bench", "PLAINTEXT", "127.0.0.1")

    def request(self, frame: bytearray) -> None:
        pending = self.dispatcher.dispatch(self.connection, memoryview(frame), 0)
        if pending is None or pending.message is None:
            raise SystemExit("a request was not answered at once")
        self.dispatcher.render(pending)

    def close(self) -> None:
        self.replicas.close()
        self.logs.close()


def frame_of(version: int, message: Message) -> bytearray:
    parts = encode_request_frame(message, version, 1, "bench")
    return bytearray(b"".join(bytes(part) for part in parts)[4:])  # type: ignore[arg-type]


def produce_frame(partitions: int) -> bytearray:
    value = bytes(1000)
    count = BATCH_BYTES // 1024
    now_ms = time.time_ns() // 1_000_000
    batch = build_batch([(now_ms, b"key", value, []) for _ in range(count)])
    data = [
        ProduceRequest.PartitionProduceData(index=i, records=bytes(batch))
        for i in range(partitions)
    ]
    topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=data)
    return frame_of(9, ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]))


def fetch_frame(partitions: int, *, session: tuple[int, int], named: bool = True) -> bytearray:
    wanted = [
        FetchRequest.FetchPartition(partition=i, fetch_offset=0, partition_max_bytes=BATCH_BYTES)
        for i in range(partitions if named else 0)
    ]
    topics = [FetchRequest.FetchTopic(topic=TOPIC, partitions=wanted)] if wanted else []
    request = FetchRequest(
        min_bytes=1, session_id=session[0], session_epoch=session[1], topics=topics
    )
    return frame_of(12, request)


def measure(work: Callable[[], None], seconds: float) -> float:
    """Microseconds for one call, best round."""
    work()
    best = float("inf")
    for _ in range(ROUNDS):
        count = 0
        started = time.perf_counter()
        ends = started + seconds / ROUNDS
        while time.perf_counter() < ends:
            for _ in range(10):
                work()
            count += 10
        best = min(best, (time.perf_counter() - started) / count)
    return best * 1e6


def calls(work: Callable[[], None]) -> tuple[int, int]:
    """(calls of Python functions, calls of C functions) in one run."""
    counted = {"call": 0, "c_call": 0}

    def count(frame: object, event: str, argument: object) -> None:
        if event in counted:
            counted[event] += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counted["call"], counted["c_call"]


def report(name: str, work: Callable[[], None], seconds: float) -> None:
    micros = measure(work, seconds)
    python_calls, c_calls = calls(work)
    print(f"{name:<48} {micros:9.1f} us  {python_calls:6d} Python calls {c_calls:6d} C calls")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="per case")
    seconds = parser.parse_args().seconds
    print(f"Python {platform.python_version()}, {platform.machine()}, {platform.node()}")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder) / "six", 6)
        frame = produce_frame(6)
        pristine = bytes(frame)

        def produced() -> None:
            frame[:] = pristine  # the broker wrote offsets into it
            bench.request(frame)

        report("Produce, 6 x 16 KB", produced, seconds)
        sessionless = fetch_frame(6, session=(0, -1))
        report("Fetch, 6 x 16 KB", lambda: bench.request(sessionless), seconds)
        bench.close()

        bench = Bench(Path(folder) / "hundred", 100)
        opened = bench.replicas.fetch(
            FetchRequest(
                session_epoch=0,
                topics=[
                    FetchRequest.FetchTopic(
                        topic=TOPIC,
                        partitions=[FetchRequest.FetchPartition(partition=i) for i in range(100)],
                    )
                ],
            ),
            api_version=12,
            now_ms=0,
        )
        if not isinstance(opened, FetchResponse):
            raise SystemExit("the session was not opened at once")
        session = bench.replicas.sessions.get(opened.session_id)
        idle = fetch_frame(0, session=(opened.session_id, 1), named=False)

        def idle_poll() -> None:
            if session is not None:
                session.epoch = 1
            bench.request(idle)

        report("Fetch, idle session of 100 partitions", idle_poll, seconds)
        whole = fetch_frame(100, session=(0, -1))
        report("Fetch, 100 idle partitions without session", lambda: bench.request(whole), seconds)
        bench.close()


if __name__ == "__main__":
    main()
