"""What one partition log costs: append MB/s, also per CPU-second, against a bare pwrite of the same
bytes, look-ups by offset and by time.

    python -m benchmarks.log_append [directory]

One thread, no network. Appends and bare writes take turns; each figure is the median of RUNS. Times
"each" and ratios count CPU seconds, which other work on the machine disturbs less.
"cold lookup": an offset that was not read before; "next": the reader continues where it stopped;
"at end": nothing new. System calls are counted from outside: strace -c -f python -m
benchmarks.log_append
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure, machine
from kbroker.log.append_request import AppendRequest
from kbroker.log.partition_log import PartitionLog
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import read_batch_header
from kbroker.protocol.batches.records import iter_records
from kbroker.settings.views.log_config import LogConfig

NOW_MS = 1_700_000_000_000
REQUEST = AppendRequest(1, 0, NOW_MS)
BATCH_KIB = (1, 16, 1024)
TOTAL_BYTES = {1: 24 << 20, 16: 192 << 20, 1024: 384 << 20}
LOOKUPS = 20_000
RUNS = 5
SEGMENTS = 1_000
BATCHES_PER_SEGMENT = 50
RECORDS_PER_BATCH = 10
TIME_LOOKUPS = 2_000
FIRST_OFFSET = bytes(8)


def batch_of(size_bytes: int) -> bytearray:
    value = random.Random(1).randbytes(1000 if size_bytes > 4096 else size_bytes - 90)
    count = max(1, size_bytes // (len(value) + 16))
    return build_batch([(NOW_MS, None, value, [])] * count)


def bare(path: Path, batch: bytearray, count: int) -> tuple[float, float]:
    """(seconds, CPU seconds) of nothing but the writes."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    started, cpu = time.perf_counter(), time.process_time()
    position = 0
    for _ in range(count):
        position += os.pwrite(fd, batch, position)
    elapsed = time.perf_counter() - started, time.process_time() - cpu
    os.close(fd)
    path.unlink()
    return elapsed


def open_log(directory: Path, name: str) -> PartitionLog:
    return PartitionLog.open(
        directory / f"{name}-0", TopicPartition(name, 0), LogConfig(), now_ms=NOW_MS
    )


def produce(log: PartitionLog, batch: bytearray) -> None:
    batch[:8] = FIRST_OFFSET  # as a client sends it
    log.append(memoryview(batch), 0, REQUEST)


def append_run(directory: Path, batch: bytearray, count: int) -> tuple[float, float]:
    log = open_log(directory, "append")
    started, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        produce(log, batch)
    elapsed = time.perf_counter() - started, time.process_time() - cpu
    log.release()
    shutil.rmtree(log.directory)
    return elapsed


def append(directory: Path, kib: int) -> Iterator[Figure]:
    """By the clock, then by CPU seconds."""
    batch = batch_of(kib << 10)
    count = TOTAL_BYTES[kib] // len(batch)
    runs = [
        (append_run(directory, batch, count), bare(directory / "bare", batch, count))
        for _ in range(RUNS)
    ]
    seconds = statistics.median(run[0][0] for run in runs)
    cpu_seconds = statistics.median(run[0][1] for run in runs)
    bare_seconds = statistics.median(run[1][0] for run in runs)
    bare_cpu_seconds = statistics.median(run[1][1] for run in runs)
    megabytes = count * len(batch) / 1e6
    yield Figure(
        f"append, {kib:,} KiB batches",
        f"{megabytes / seconds:,.0f} MB/s",
        f"bare pwrite {megabytes / bare_seconds:,.0f} MB/s",
        statistics.median(run[1][0] / run[0][0] for run in runs),
    )
    yield Figure(
        f"the same, {cpu_seconds / count * 1e6:.1f} us each",
        f"{megabytes / cpu_seconds:,.0f} MB per CPU-second",
        f"{megabytes / bare_cpu_seconds:,.0f} ({bare_cpu_seconds / count * 1e6:.1f} us)",
        statistics.median(run[1][1] / run[0][1] for run in runs),
    )


def time_lookups(directory: Path) -> Figure:
    """ListOffsets by time over SEGMENTS segments; the bare limit is reading the batch found."""
    log = open_log(directory, "times")
    record_ms = 0
    for number in range(SEGMENTS * BATCHES_PER_SEGMENT):
        records = [(NOW_MS + record_ms + i, None, bytes(100), []) for i in range(RECORDS_PER_BATCH)]
        record_ms += RECORDS_PER_BATCH
        log.append(build_batch(records), 0, REQUEST)
        if number % BATCHES_PER_SEGMENT == BATCHES_PER_SEGMENT - 1:
            log.roll(NOW_MS)
    chooser = random.Random(3)
    wanted = [NOW_MS + chooser.randrange(record_ms) for _ in range(TIME_LOOKUPS)]
    for timestamp in wanted[:100]:
        found = log.offset_for_timestamp(timestamp)
        assert found is not None and found.offset == timestamp - NOW_MS, (found, timestamp)
    figures = []
    for _ in range(RUNS):
        started = time.process_time()
        for timestamp in wanted:
            log.offset_for_timestamp(timestamp)
        looked_up = time.process_time()
        for timestamp in wanted:
            read = log.read(timestamp - NOW_MS, max_bytes=1).records
            data = read.read()  # type: ignore[union-attr]  # a FileSlice
            for _ in iter_records(data, read_batch_header(data)):
                break
        figures.append((looked_up - started, time.process_time() - looked_up))
    each = statistics.median(run[0] for run in figures) / TIME_LOOKUPS
    limit = statistics.median(run[1] for run in figures) / TIME_LOOKUPS
    segments = len(log.segments)
    log.release()
    shutil.rmtree(log.directory)
    return Figure(
        f"look-up by time in {segments:,} segments",
        f"{each * 1e6:.0f} us of CPU",
        f"reading that batch by its offset {limit * 1e6:.0f} us",
        each / limit,
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
    started = time.process_time()
    for number in range(LOOKUPS):
        call(number)
    print(f"read {name:26}: {(time.process_time() - started) / LOOKUPS * 1e6:6.2f} us")


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
    print(machine())
    try:
        for kib in BATCH_KIB:
            for figure in append(directory, kib):
                print(figure)
        lookups(directory)
        print(time_lookups(directory))
        idle(directory)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
