"""How long the broker's loop makes all clients wait under a mixed load, and what it was busy with.

    python -m benchmarks.stalls [--seconds 60] [--load NAME ...] [--worst 8]

Goal: no stall of 20 ms or more. The loads, all at once: producers with batches of 16 KB and 1 MB, a
consumer whose fetches bring 100 MB, a keyed topic that is compacted all the time, a topic whose
segments are retired, groups whose members come and go; with `--load` also topics that are made and
deleted. Before that the broker is started on a directory that was not closed cleanly, so that it
recovers logs.

The broker runs in a process of its own with its own probe (`node/loop/stall_probe`), and a thread
that looks at the loop's stack as soon as a look of the probe is overdue. Of each stall it is told
how long the loop's thread computed, and how long it was ready but had no CPU (Linux), which is the
machine's doing; the rest it waited: for a system call, or for the interpreter's lock.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from benchmarks.halts import HaltWatch, Span, overlap_s
from kbroker.node import run
from kbroker.node.loop.garbage import CollectorPolicy
from kbroker.node.node import Broker
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, DeleteTopicsRequest
from kbroker.protocol.messages.coordinators.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.settings.broker import BrokerConfig
from kbroker.testing.process import BrokerProcess
from tests.e2e.wire import call, frame_of, receive_exactly

PROBE_S = 0.005
"""Between two looks of the probe; a broker by itself takes twice as much."""

GOAL_S = 0.020
LOOK_S = 0.002
"""How often the watching thread looks."""

OVERDUE_S = 0.006
SAMPLES = 40
"""Stacks that are kept of one stall."""

CLIENT_NICENESS = 10
"""Clients stand for other machines: the broker need not wait for a CPU because of them."""

BIG_FETCH = 104_857_600
PROPERTIES = {
    "fetch.max.bytes": str(BIG_FETCH),
    "log.cleaner.backoff.ms": "100",
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "num.partitions": "1",
}


# -- the broker's process -------------------------------------------------------------------------


class Watch:
    """Every look of the probe, and what the loop did when one was overdue."""

    def __init__(self, broker: Broker) -> None:
        self.looks: list[tuple[float, float, float]] = []
        """When, how late, and how much of that ready without a CPU."""
        self.stalls: list[tuple[float, float, float, float, str]] = []
        self.pauses: list[float] = []
        self.start: list[tuple[float, float, float]] = []
        self._probe = broker.stalls
        self._probe.busy_seconds = PROBE_S
        self._thread_id = threading.get_ident()
        self._seen: list[str] = []
        self._stopped = threading.Event()
        self._gc_began = 0.0
        own = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self._schedstat = own.open("rb")
        self._last = self._times()
        self._probe.on_stall = self._looked
        gc.callbacks.append(self._collected)
        threading.Thread(target=self._watch, daemon=True).start()

    def _looked(self, late: float) -> None:
        now, times = time.monotonic(), self._times()
        cpu, ready = (new - old for new, old in zip(times, self._last, strict=True))
        self._last = times
        self.looks.append((now, late, ready))
        if late >= GOAL_S:
            self.stalls.append((now, late, cpu, ready, "\n          ".join(told(self._seen))))
        self._seen = []

    def _times(self) -> tuple[float, float]:
        """Seconds on a CPU, and ready without one, of the loop's thread."""
        self._schedstat.seek(0)
        cpu, ready, _ = self._schedstat.read().split()
        return int(cpu) / 1e9, int(ready) / 1e9

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_began = time.monotonic()
        else:
            self.pauses.append(time.monotonic() - self._gc_began)

    def _watch(self) -> None:
        while not self._stopped.wait(LOOK_S):
            overdue = time.monotonic() - self._probe.due > OVERDUE_S
            if overdue and len(self._seen) < SAMPLES:
                self._seen.append(self._stacks())

    def _stacks(self) -> str:
        frames = sys._current_frames()
        del frames[threading.get_ident()]  # no reference cycle that keeps all other frames' locals
        lines = [" < ".join(stack_of(frames[self._thread_id])[:14])]
        for thread in threading.enumerate():
            frame = frames.get(thread.ident or 0)
            if frame is None or thread.ident == self._thread_id:
                continue
            stack = stack_of(frame)
            if not stack[0].startswith(("threading", "thread.py")):
                lines.append(f"{thread.name}: {' < '.join(stack[:3])}")
        return " | ".join(lines)

    def report(self) -> dict[str, Any]:
        self._stopped.set()
        return {
            "looks": self.looks, "stalls": self.stalls, "start": self.start, "pauses": self.pauses
        }  # fmt: skip


def told(samples: list[str]) -> list[str]:
    """Each stack once, with how often it was seen in a row."""
    lines = []
    for stack, same in groupby(samples or ["(not seen)"]):
        lines.append(f"{len(list(same))} x {stack}")
    return lines


def stack_of(frame: FrameType | None) -> list[str]:
    """Innermost first."""
    stack = []
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith("<frozen"):
            stack.append(f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return stack


async def serve(config: BrokerConfig) -> dict[str, Any]:
    """A broker until SIGTERM; what was seen."""
    broker = Broker(config)
    watch = Watch(broker)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    await broker.start()
    CollectorPolicy().begin()
    await asyncio.sleep(0.3)  # the look that saw the end of the start is over
    watch.start, watch.looks = watch.looks, []
    watch.stalls.clear()
    watch.pauses.clear()
    print(f"listening on PLAINTEXT://127.0.0.1:{broker.bound_listeners[0].port}", flush=True)
    await stopping.wait()
    report = watch.report()
    await broker.stop()
    return report


def broker_main(arguments: list[str]) -> None:
    data, result = arguments
    properties = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": data, **PROPERTIES}
    run.raise_file_limit()
    sys.setswitchinterval(run.SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=run.loop_factory()) as runner:
        report = runner.run(serve(BrokerConfig.from_properties(properties)))
    Path(result).write_text(json.dumps(report))


# -- the loads ------------------------------------------------------------------------------------


class Load:
    """Threads that each repeat a step on a connection of their own until told to stop."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=120)

    def repeat(self, name: str, step: Callable[[socket.socket], object], pause_s: float) -> None:
        def body() -> None:
            with self.connect() as connection:
                while not self._stopped.wait(pause_s):
                    try:
                        step(connection)
                    except (OSError, AssertionError) as error:
                        self.errors.append(f"{name}: {error!r}")
                        return
                    self.counts[name] += 1

        self._threads.append(threading.Thread(target=body, daemon=True))
        self._threads[-1].start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(120)


def create(connection: socket.socket, name: str, partitions: int = 1, **configs: object) -> None:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=str(value))
            for key, value in configs.items()
        ],
    )
    call(connection, CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5)


def produce_frame(topic: str, records: list[Any], partition: int = 0) -> bytes:
    data = ProduceRequest.PartitionProduceData(index=partition, records=build_batch(records))
    topic_data = ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
    return frame_of(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic_data]), 9)


def send(connection: socket.socket, frame: bytes) -> None:
    connection.sendall(frame)
    (size,) = struct.unpack(">i", receive_exactly(connection, 4))
    receive_exactly(connection, size)


def producing(load: Load) -> None:
    now_ms = time.time_ns() // 1_000_000
    small = [produce_frame("plain", [(now_ms, None, bytes(1000), [])] * 16, i) for i in range(6)]
    large = produce_frame("large", [(now_ms, None, bytes(10_000), [])] * 100)
    for frame in small:
        load.repeat("produce 16 KB", lambda connection, frame=frame: send(connection, frame), 0.002)  # type: ignore[misc]  # bound now
    load.repeat("produce 1 MB", lambda connection: send(connection, large), 0.02)


def consuming(load: Load) -> None:
    wanted = FetchRequest.FetchPartition(partition=0, partition_max_bytes=BIG_FETCH)
    topic = FetchRequest.FetchTopic(topic="history", partitions=[wanted])
    frame = frame_of(FetchRequest(max_wait_ms=0, max_bytes=BIG_FETCH, topics=[topic]), 11)
    scratch = bytearray(1 << 20)

    def fetch(connection: socket.socket) -> None:
        connection.sendall(frame)
        (left,) = struct.unpack(">i", receive_exactly(connection, 4))
        assert left > 90_000_000, f"an answer of {left} bytes"
        while left:
            left -= connection.recv_into(scratch, min(left, len(scratch)))

    load.repeat("fetch 100 MB", fetch, 0.05)


def compacting(load: Load) -> None:
    random = Random(1)
    now_ms = time.time_ns() // 1_000_000

    def batch() -> bytes:
        return produce_frame(
            "table",
            [(now_ms, b"key-%06d" % random.randrange(50_000), bytes(100), []) for _ in range(500)],
        )

    frames = [batch() for _ in range(40)]
    load.repeat("keyed", lambda connection: send(connection, random.choice(frames)), 0.01)


def churning(load: Load) -> None:
    def member(connection: socket.socket) -> None:
        group = f"churn-{random.randrange(20)}"
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"\0" * 10)
        join = JoinGroupRequest(
            group_id=group, session_timeout_ms=10_000, rebalance_timeout_ms=5_000,
            protocol_type="consumer", protocols=[protocol],
        )  # fmt: skip
        joined = call(connection, join, 3)
        own: Any = joined
        assignments = [
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=each.member_id, assignment=b"x")
            for each in own.members
        ]
        identity = {"group_id": group, "generation_id": own.generation_id}
        call(
            connection,
            SyncGroupRequest(**identity, member_id=own.member_id, assignments=assignments),
            3,
        )
        call(connection, HeartbeatRequest(**identity, member_id=own.member_id), 3)
        call(connection, LeaveGroupRequest(group_id=group, member_id=own.member_id), 2)

    random = Random(2)
    for _ in range(4):
        load.repeat("group member", member, 0.01)


def creating(load: Load) -> None:
    numbers = iter(range(1 << 30))

    def topic(connection: socket.socket) -> None:
        name = f"short-lived-{next(numbers)}"
        create(connection, name, 5)
        call(connection, DeleteTopicsRequest(topic_names=[name], timeout_ms=30_000), 5)

    load.repeat("topic of 5 partitions", topic, 0.2)


LOADS: dict[str, Callable[[Load], None]] = {
    "produce": producing,
    "fetch": consuming,
    "compaction": compacting,
    "groups": churning,
    "topics": creating,
}


def prepare(folder: Path) -> None:
    """A directory with topics and history, left as a crash leaves it."""
    with BrokerProcess(folder, overrides={"num.partitions": "1"}) as broker:
        with socket.create_connection(("127.0.0.1", broker.port), timeout=60) as connection:
            create(connection, "plain", 6, segment_bytes=8 << 20, retention_bytes=32 << 20)
            create(connection, "large", 1, segment_bytes=32 << 20, retention_bytes=128 << 20)
            create(connection, "history", 1)
            create(
                connection, "table", 1, segment_bytes=2 << 20, cleanup_policy="compact",
                min_cleanable_dirty_ratio="0.01",
            )  # fmt: skip
            now_ms = time.time_ns() // 1_000_000
            history = produce_frame("history", [(now_ms, None, bytes(1000), [])] * 16)
            for _ in range(20_000):
                send(connection, history)
        broker.kill()


# -- the report -----------------------------------------------------------------------------------


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def line(name: str, looks: list[float]) -> str:
    p50, p99, p999 = (percentile(looks, share) * 1000 for share in (0.5, 0.99, 0.999))
    worst = max(looks, default=0.0) * 1000
    over = sum(look >= GOAL_S for look in looks)
    return (
        f"{name:<10} {len(looks):6d} looks, p50 {p50:5.2f} ms, p99 {p99:5.2f}, p99.9 {p999:5.2f},"
        f" max {worst:6.1f} ms; {over} of 20 ms or more"
    )


def measure(folder: Path, seconds: float, loads: list[str], worst: int) -> bool:
    result = folder.with_name("report.json")
    command = [sys.executable, "-m", "benchmarks.stalls", "--broker", str(folder), str(result)]
    halt_watch = HaltWatch()
    halt_watch.start()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    os.nice(CLIENT_NICENESS)
    try:
        if process.stdout is None:
            raise RuntimeError("no standard output")
        load = Load(int(process.stdout.readline().rpartition(":")[2]))
        for name in loads:
            LOADS[name](load)
        time.sleep(seconds)
        load.stop()
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        process.kill()
        process.wait()
    halts = halt_watch.stop()
    report = json.loads(result.read_text())
    looks = report["looks"]
    late = [look[1] for look in looks]
    print(line("start", [look[1] for look in report["start"]]))
    print(line("load", late))
    print(line("- no CPU", [max(0.0, look[1] - look[2]) for look in looks]))
    if halts is None:
        print("whether the machine stood still could not be watched")
        both, either = [], []
    else:
        both, either = halts
        for name, spans in (("- halts", both), ("- any halt", either)):
            print(line(name, [beyond_halts(look, spans) for look in looks]))
            stood = [end - begin for begin, end in spans]
            print(
                f"{'':10} for {len(stood)} times {'all CPUs' if spans is both else 'a CPU'} stood"
                f" still, {max(stood, default=0) * 1000:.1f} ms at most, {sum(stood):.2f} s in all"
            )
    pauses = report["pauses"]
    print(f"garbage collection: {len(pauses)} runs, longest {max(pauses, default=0) * 1000:.1f} ms")
    print("done:", ", ".join(f"{count} x {name}" for name, count in load.counts.items()))
    for error in load.errors:
        print("error:", error)
    stalls = sorted(report["stalls"], key=lambda stall: -beyond_halts(stall, either))
    for now, lateness, cpu, ready, stack in stalls[:worst]:
        still = [overlap_s(now - lateness, now, spans) * 1000 for spans in (either, both)]
        print(
            f"{lateness * 1000:6.1f} ms ({cpu * 1000:.1f} computing, {ready * 1000:.1f} without a"
            f" CPU; {still[0]:.1f} a CPU stood still, {still[1]:.1f} all)  {stack}"
        )
    return max(beyond_halts(look, both) for look in looks) < GOAL_S and not load.errors


def beyond_halts(look: list[Any], halts: list[Span]) -> float:
    """How late a look was but for the time in which the machine stood still."""
    now, late = look[:2]
    return max(0.0, late - overlap_s(now - late, now, halts))


def main() -> int:
    if sys.argv[1:2] == ["--broker"]:
        broker_main(sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--load", nargs="+", choices=sorted(LOADS),
        default=["produce", "fetch", "compaction", "groups"],
    )  # fmt: skip
    parser.add_argument("--worst", type=int, default=8, help="stalls to be told of")
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    base = Path(tempfile.mkdtemp(prefix="kbroker-stalls-"))
    try:
        prepare(base / "data")
        kept = measure(base / "data", arguments.seconds, arguments.load, arguments.worst)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
