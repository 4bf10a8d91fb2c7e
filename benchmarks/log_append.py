"""What one partition log costs: append MB/s against a bare pwrite of the same bytes, and us per
read lookup.

    python benchmarks/log_append.py [directory]

One thread, no network. "cold lookup": an offset nobody asked for before; "next": the reader goes on
where it stopped; "at end": nothing new. System calls are counted from outside: strace -c -f python
benchmarks/log_append.py
"""

from __future__ import annotations

import os
import platform
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from kbroker.log.partition_log import PartitionLog
from kbroker.model import TopicPartition
from kbroker.protocol.records import build_batch
from kbroker.settings.log_config import LogConfig

NOW_MS = 1_700_000_000_000
BATCH_KIB = (1, 16, 1024)
TOTAL_BYTES = {1: 24 << 20, 16: 192 << 20, 1024: 384 << 20}
LOOKUPS = 20_000
FIRST_OFFSET = bytes(8)


def batch_of(size_bytes: int) -> bytearray:
    value = random.Random(1).randbytes(1000 if size_bytes > 4096 else size_bytes - 90)
    count = max(1, size_bytes // (len(value) + 16))
    return build_batch([(NOW_MS, None, value, [])] * count)


def bare(path: Path, batch: bytearray, count: int) -> float:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    started = time.perf_counter()
    position = 0
    for _ in range(count):
        position += os.pwrite(fd, batch, position)
    elapsed = time.perf_counter() - started
    os.close(fd)
    path.unlink()
    return elapsed


def open_log(directory: Path, name: str) -> PartitionLog:
    return PartitionLog.open(
        directory / f"{name}-0", TopicPartition(name, 0), LogConfig(), now_ms=NOW_MS
    )


def produce(log: PartitionLog, batch: bytearray) -> None:
    batch[:8] = FIRST_OFFSET  # as a client sends it
    log.append_as_leader(memoryview(batch), leader_epoch=0, now_ms=NOW_MS)


def append(directory: Path, kib: int) -> None:
    batch = batch_of(kib << 10)
    count = TOTAL_BYTES[kib] // len(batch)
    bare_seconds = bare(directory / "bare", batch, count)
    log = open_log(directory, f"append{kib}")
    started = time.perf_counter()
    for _ in range(count):
        produce(log, batch)
    seconds = time.perf_counter() - started
    log.release()
    shutil.rmtree(log.directory)
    megabytes = count * len(batch) / 1e6
    print(
        f"append {kib:5d} KiB batches: {megabytes / seconds:7.0f} MB/s "
        f"({seconds / count * 1e6:7.1f} us each), bare pwrite {megabytes / bare_seconds:7.0f} MB/s "
        f"({bare_seconds / count * 1e6:7.1f} us each)"
    )


def lookups(directory: Path) -> None:
    log = open_log(directory, "read")
    batch = batch_of(1 << 10)
    for _ in range(50_000):
        produce(log, batch)
    end = log.log_end_offset
    offsets = [random.Random(2).randrange(end) for _ in range(LOOKUPS)]
    measure("cold lookup, 1 MiB", lambda i: log.read(offsets[i], max_bytes=1 << 20))
    offset = 0

    def sequential(_: int) -> None:
        nonlocal offset
        info = log.read(offset, max_bytes=16 << 10)
        offset = info.end_offset if info.end_offset < end else 0

    measure("next, 16 KiB", sequential)
    measure("at end", lambda _: log.read(end, max_bytes=1 << 20))

    def append_and_read(_: int) -> None:
        at = log.log_end_offset
        produce(log, batch)
        log.read(at, max_bytes=1 << 20)

    measure("append 1 KiB and read it", append_and_read)
    log.release()
    shutil.rmtree(log.directory)


def measure(name: str, call: object) -> None:
    assert callable(call)
    started = time.perf_counter()
    for number in range(LOOKUPS):
        call(number)
    print(f"read {name:26}: {(time.perf_counter() - started) / LOOKUPS * 1e6:6.2f} us")


def idle(directory: Path) -> None:
    count = 2000
    before, started = resident_kib(), time.perf_counter()
    logs = [open_log(directory, f"idle{number}") for number in range(count)]
    seconds = time.perf_counter() - started
    descriptors = len(os.listdir("/proc/self/fd"))
    print(
        f"{count} empty logs: {seconds / count * 1e6:.0f} us and "
        f"{(resident_kib() - before) / count:.1f} KiB each, {descriptors} descriptors open"
    )
    started = time.perf_counter()
    for log in logs:
        log.segments.active.close()
    print(f"closing them: {(time.perf_counter() - started) / count * 1e6:.0f} us each (no fsync)")


def resident_kib() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0


def main() -> None:
    directory = Path(tempfile.mkdtemp(dir=sys.argv[1] if len(sys.argv) > 1 else None))
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    try:
        for kib in BATCH_KIB:
            append(directory, kib)
        lookups(directory)
        idle(directory)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
