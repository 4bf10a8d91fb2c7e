"""What one Produce and one Fetch request cost inside the broker: decode, handle, encode; no socket.

    python -m benchmarks.hot_path [--seconds 1]

Cases: Produce v12 of an idempotent producer; Fetch v12 without a session; a poll of an idle session
of 100 partitions, and the same 100 partitions asked without a session; a follower's Fetch of two
partitions with 16 KB each, at the leader, with and without a wait, and at the follower
(`follower_cycle`). Prints microseconds of CPU, best of several rounds (the others had company), and
what the interpreter does: bytecode instructions, and calls of Python and of C functions. Over a
socket: `wire_cost`.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from types import FrameType, SimpleNamespace
from typing import Any

from benchmarks.follower_cycle import FollowerCycle, Step
from kbroker.log.manager import LogManager
from kbroker.log.partition_log import PartitionLog
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.publisher import HostPartition
from kbroker.model import TopicPartition
from kbroker.node.resources import NodeResources
from kbroker.ports import TimerHandle
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.framing import encode_request_frame
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.replication.manager import ReplicaManager
from kbroker.server.dispatch import Dispatcher
from kbroker.server.handlers.records import fetch, produce
from kbroker.server.session import Session
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.log_config import LogConfig

TOPIC = "events"
TOPIC_ID = bytes(15) + b"\x07"
BATCH_BYTES = 16 * 1024
PRODUCE_VERSION = 12
ROLL_BYTES = 256 * 1024 * 1024
"""Rolled early, between rounds: a full segment would be rolled off the loop, and there is none."""
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
        self.now_ms = timers.now_ms()
        self.logs = LogManager(
            config,
            now_ms=timers.now_ms,
            random=Random(1),
            threads=lambda _, count: ThreadPoolExecutor(count),
        )
        self.logs.lock()
        self.logs.load()
        self.replicas = ReplicaManager(
            1,
            self.logs,
            timers,
            config,
            offloads=NodeResources(config).offload,
            random=Random(1),
        )
        log_config = LogConfig.from_configs(config, {})
        self.replicas.apply(
            HostPartition(TopicPartition(TOPIC, i), TOPIC_ID, 1, 0, 0, (1,), (1,), log_config)
            for i in range(partitions)
        )
        services: Any = SimpleNamespace(
            node_id=1,
            replicas=self.replicas,
            image=MetadataImage(),
            timers=timers,
            config=config,
            api_versions=(),
        )
        self.dispatcher = Dispatcher([*produce.HANDLERS, *fetch.HANDLERS], services)
        self.connection = Session("bench", "PLAINTEXT", "127.0.0.1")
        self.answer: Message | None = None

    def request(self, frame: bytearray) -> None:
        pending = self.dispatcher.dispatch(self.connection, memoryview(frame), self.now_ms)
        if pending is None or pending.message is None:
            raise SystemExit("a request was not answered at once")
        self.answer = pending.message
        self.dispatcher.render(pending)

    def check(self) -> None:
        """Whether the last request was answered without an error; not in what is measured."""
        answer = self.answer
        codes: set[int] = set()
        if isinstance(answer, ProduceResponse):
            codes = {data.error_code for data in answer.responses[0].partition_responses}
        elif isinstance(answer, FetchResponse):
            codes = {answer.error_code}
            codes |= {data.error_code for topic in answer.responses for data in topic.partitions}
        if codes != {0} or self.dispatcher.surprises:
            raise SystemExit(f"a request was answered with errors {codes}")

    def log(self, key: TopicPartition) -> PartitionLog:
        log = self.logs.get(key)
        if log is None:
            raise SystemExit(f"{key} has no log")
        return log

    def close(self) -> None:
        self.replicas.close()
        self.logs.close()


def frame_of(version: int, message: Message) -> bytearray:
    parts = encode_request_frame(message, version, 1, "bench")
    return bytearray(b"".join(bytes(part) for part in parts)[4:])  # type: ignore[arg-type]


class Produced:
    """The frames of an idempotent producer, one after the other; each is what the broker has not
    written into yet. After ROUND frames the producer is forgotten and they come again.
    """

    ROUND = 64

    def __init__(
        self,
        bench: Bench,
        partitions: int,
        records: int,
        record_bytes: int,
        compression: Compression = Compression.NONE,
    ) -> None:
        self._bench = bench
        now_ms = time.time_ns() // 1_000_000
        value = bytes(Random(1).choices(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=record_bytes))
        self._pristine = []
        for number in range(self.ROUND):
            batch = build_batch(
                [(now_ms, None, value, []) for _ in range(records)],
                compression=compression,
                producer_id=7,
                producer_epoch=0,
                base_sequence=number * records,
            )
            data = [
                ProduceRequest.PartitionProduceData(index=i, records=bytes(batch))
                for i in range(partitions)
            ]
            topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=data)
            request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
            self._pristine.append(frame_of(PRODUCE_VERSION, request))
        self._ready: list[bytearray] = []

    def refill(self) -> None:
        """Once per ROUND requests, outside of what is measured."""
        for partition in self._bench.replicas.partitions():
            log = self._bench.log(partition.topic_partition)
            log.producers.clear()
            if log.segments.active.size > ROLL_BYTES:
                log.roll(self._bench.now_ms)
        self._ready = [bytearray(frame) for frame in reversed(self._pristine)]

    def __call__(self) -> None:
        if not self._ready:
            self.refill()
        self._bench.request(self._ready.pop())


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


def idle_session(bench: Bench) -> Callable[[], None]:
    """A poll of a session over 100 partitions that have nothing new."""
    topic = FetchRequest.FetchTopic(
        topic=TOPIC, partitions=[FetchRequest.FetchPartition(partition=i) for i in range(100)]
    )
    opened = bench.replicas.fetch(
        FetchRequest(session_epoch=0, topics=[topic]), api_version=12, now_ms=0
    )
    if not isinstance(opened, FetchResponse):
        raise SystemExit("the session was not opened at once")
    session = bench.replicas.sessions.get(opened.session_id)
    frame = fetch_frame(0, session=(opened.session_id, 1), named=False)

    def poll() -> None:
        if session is not None:
            session.epoch = 1
        bench.request(frame)

    return poll


def measure(work: Callable[[], None], seconds: float) -> float:
    """Microseconds of CPU for one call, best round. What `work` makes ready is not counted."""
    refill = getattr(work, "refill", None)
    work()
    best = float("inf")
    for _ in range(ROUNDS):
        count, spent = 0, 0.0
        while spent < seconds / ROUNDS:
            if refill is not None:
                refill()
            started = time.process_time()
            for _ in range(Produced.ROUND):
                work()
            spent += time.process_time() - started
            count += Produced.ROUND
        best = min(best, spent / count)
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


def instructions(work: Callable[[], None]) -> int:
    """Bytecode instructions of one run."""
    counted = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal counted
        if event == "opcode":
            counted += 1
        else:
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return counted


def report(bench: Bench, name: str, work: Callable[[], None], seconds: float) -> None:
    micros = measure(work, seconds)
    bench.check()
    work()  # the first of a round is a producer's first: not what is counted
    python_calls, c_calls = calls(work)
    print(
        f"{name:<44} {micros:9.1f} us  {instructions(work):6d} instructions "
        f"{python_calls:5d} Python calls {c_calls:5d} C calls",
        flush=True,
    )


class _CycleSide:
    """One side of a follower's cycle. A call is a whole cycle: steps, of which some are counted."""

    def __init__(
        self, cycle: FollowerCycle, steps: Sequence[Step], counted: Sequence[Step]
    ) -> None:
        self._cycle = cycle
        self._steps = steps
        self._counted = counted

    def __call__(self, count: Callable[[Callable[[], None]], None]) -> None:
        """count: calls the step that it is given, and counts."""
        for step in self._steps:
            work = partial(step, self._cycle)
            if step in self._counted:
                count(work)
            else:
                work()


def report_cycle(name: str, side: _CycleSide) -> None:
    """As `report`, of the counted steps of a cycle."""
    spent = 0.0
    python_calls = c_calls = opcodes = 0

    def time_it(work: Callable[[], None]) -> None:
        nonlocal spent
        started = time.process_time()
        work()
        spent += time.process_time() - started

    def count_calls(work: Callable[[], None]) -> None:
        nonlocal python_calls, c_calls
        found = calls(work)
        python_calls, c_calls = python_calls + found[0], c_calls + found[1]

    def count_instructions(work: Callable[[], None]) -> None:
        nonlocal opcodes
        opcodes += instructions(work)

    best = float("inf")
    for _ in range(ROUNDS):
        spent = 0.0
        for _ in range(Produced.ROUND):
            side(time_it)
        best = min(best, spent / Produced.ROUND)
    side(count_calls)
    side(count_instructions)
    print(
        f"{name:<44} {best * 1e6:9.1f} us  {opcodes:6d} instructions "
        f"{python_calls:5d} Python calls {c_calls:5d} C calls",
        flush=True,
    )


def follower_rows(folder: Path) -> None:
    """A follower's Fetch of two partitions."""
    at_once: list[Step] = [
        FollowerCycle.produce, FollowerCycle.lead, FollowerCycle.arrive, FollowerCycle.follow
    ]  # fmt: skip
    waits: list[Step] = [
        FollowerCycle.begin_wait, FollowerCycle.produce, FollowerCycle.end_wait,
        FollowerCycle.arrive, FollowerCycle.follow,
    ]  # fmt: skip
    cycle = FollowerCycle(folder, 2)
    leads, ends = [FollowerCycle.lead], [FollowerCycle.begin_wait, FollowerCycle.end_wait]
    report_cycle("Follower Fetch, leader's side", _CycleSide(cycle, at_once, leads))
    report_cycle("Follower Fetch, leader's side, waiting", _CycleSide(cycle, waits, ends))
    report_cycle(
        "Follower Fetch, follower's side", _CycleSide(cycle, at_once, [FollowerCycle.follow])
    )
    cycle.check()
    cycle.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="per case")
    seconds = parser.parse_args().seconds
    print(f"Python {platform.python_version()}, {platform.machine()}, {platform.node()}")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder) / "six", 6)
        report(bench, "Produce, 6 x 16 KB", Produced(bench, 6, 16, 1000), seconds)
        report(bench, "Produce, 1 x 16 KB", Produced(bench, 1, 16, 1000), seconds)
        report(bench, "Produce, 1 record of 100 B", Produced(bench, 1, 1, 100), seconds)
        lz4 = Produced(bench, 6, 16, 1000, Compression.LZ4)
        report(bench, "Produce, 6 of lz4", lz4, seconds)
        report(bench, "Produce, 1 of lz4", Produced(bench, 1, 16, 1000, Compression.LZ4), seconds)
        sessionless = fetch_frame(6, session=(0, -1))
        report(bench, "Fetch, 6 x 16 KB", lambda: bench.request(sessionless), seconds)
        bench.close()

        bench = Bench(Path(folder) / "hundred", 100)
        report(bench, "Fetch, idle session of 100 partitions", idle_session(bench), seconds)
        whole = fetch_frame(100, session=(0, -1))
        report(
            bench,
            "Fetch, 100 idle partitions without session",
            lambda: bench.request(whole),
            seconds,
        )
        bench.close()

        follower_rows(Path(folder) / "pair")


if __name__ == "__main__":
    main()
