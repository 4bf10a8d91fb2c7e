"""What compaction costs: MB/s of log read, peak memory of the key map, and how long the loop thread
waits while a worker cleans.

    python -m benchmarks.compaction [directory]

One log of 64 MB in 16 KiB batches of 200-byte values: keys that repeat (one in ten is kept) and
keys that are all different (everything is kept), without codec and with lz4. "bare" is a read and a
write of the same bytes.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure, machine
from kbroker.log.append_request import AppendRequest
from kbroker.log.cleaner.offset_map import OffsetMap
from kbroker.log.cleaner.plan import dirty_range, group_segments
from kbroker.log.cleaner.round import CleaningRound
from kbroker.log.cleaner.steps import Source
from kbroker.log.cleaner.throttle import Throttle
from kbroker.log.partition_log import PartitionLog
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.compression import Compression
from kbroker.settings.views.log_config import LogConfig

NOW_MS = 1_700_000_000_000
REQUEST = AppendRequest(1, 0, NOW_MS)
TOTAL_BYTES = 64 << 20
MAP_BYTES = 64 << 20
VALUE_BYTES = 200
RECORDS_PER_BATCH = 72
CONFIG = LogConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=16 << 20)


def fill(directory: Path, name: str, *, distinct: bool, codec: Compression) -> PartitionLog:
    log = PartitionLog.open(directory / f"{name}-0", TopicPartition(name, 0), CONFIG, now_ms=NOW_MS)
    rng = random.Random(1)
    words = [rng.randbytes(10).hex().encode() for _ in range(50)]
    count = TOTAL_BYTES // (VALUE_BYTES + 20)
    number = 0
    while number < count:
        records = []
        for _ in range(RECORDS_PER_BATCH):
            key = number if distinct else rng.randrange(count // 10)
            value = b"".join(rng.choices(words, k=VALUE_BYTES // 20))
            records.append((NOW_MS + number, b"key-%012d" % key, value, ()))
            number += 1
        log.append(build_batch(records, compression=codec), 0, REQUEST)
    log.roll(NOW_MS)
    return log


def clean(log: PartitionLog) -> CleaningRound:
    """A whole round but for the swap."""
    segments = log.segments
    dirty = dirty_range(
        segments, CONFIG, cleaner_offset=None, log_start_offset=0,
        last_stable_offset=log.log_end_offset, now_ms=NOW_MS,
    )  # fmt: skip
    work = CleaningRound(
        str(log.directory), CONFIG, {}, now_ms=NOW_MS, first_dirty_offset=0,
        upper_offset=dirty.first_uncleanable_offset, map_bytes=1 << 40, buffer_bytes=262_144,
        throttle=Throttle(1e308),
    )  # fmt: skip
    sources = {
        segment.base_offset: Source(
            segment.log_file(), segment.base_offset,
            segments.end_offset(index, log.log_end_offset), segment.size,
        )
        for index, segment in enumerate(segments)
        if segment is not segments.active
    }  # fmt: skip
    for source in sources.values():
        work.index_segment(source)
    for group in group_segments(
        segments, CONFIG, end_offset=work.end_offset,
        first_uncleanable_offset=dirty.first_uncleanable_offset,
    ):  # fmt: skip
        work.begin_group(group[0].base_offset)
        for segment in group:
            work.clean_segment(sources[segment.base_offset])
        work.end_group(time.time_ns())
    return work


def bare(log: PartitionLog) -> tuple[float, float]:
    """(seconds, CPU seconds) of a read and a write of the same bytes."""
    started, cpu = time.perf_counter(), time.process_time()
    target = log.directory / "bare"
    with open(target, "wb") as file:
        for segment in log.segments:
            file.write(Path(segment.path).read_bytes())
    elapsed = time.perf_counter() - started, time.process_time() - cpu
    target.unlink()
    return elapsed


def speed(directory: Path) -> Iterator[Figure]:
    """By the clock, then by CPU seconds."""
    for distinct in (False, True):
        for codec in (Compression.NONE, Compression.LZ4):
            keys = "all keys differ" if distinct else "one in ten kept"
            what = f"compaction, {keys}, {codec.name.lower()}"
            log = fill(directory, codec.name.lower(), distinct=distinct, codec=codec)
            megabytes, records = log.size_bytes / 1e6, log.log_end_offset
            bare_seconds, bare_cpu = bare(log)
            started, cpu_started = time.perf_counter(), time.process_time()
            clean(log)
            seconds, cpu = time.perf_counter() - started, time.process_time() - cpu_started
            yield Figure(
                what,
                f"{megabytes / seconds:.1f} MB/s",
                f"bare read and write {megabytes / bare_seconds:,.0f} MB/s",
                bare_seconds / seconds,
            )
            yield Figure(
                f"the same, {cpu / records * 1e6:.1f} us a record",
                f"{megabytes / cpu:.1f} MB per CPU-second",
                f"{megabytes / bare_cpu:,.0f}",
                bare_cpu / cpu,
            )
            log.release()
            shutil.rmtree(log.directory)


def memory(directory: Path) -> Iterator[Figure]:
    """Peaks of the key map, and of a round that it is a part of."""
    tracemalloc.start()
    offsets = OffsetMap(MAP_BYTES)
    number = 1 << 31
    while not offsets.is_full:
        offsets.put(b"key-%012d" % number, number)
        number += 1
    _, peak = tracemalloc.get_traced_memory()
    yield Figure(
        f"peak memory, key map full with {len(offsets):,} keys",
        f"{peak / (1 << 20):.1f} MiB, {peak / len(offsets):.0f} bytes a key",
        f"log.cleaner.dedupe.buffer.size {MAP_BYTES >> 20} MiB (Kafka: 24 bytes a key at 0.9)",
        peak / MAP_BYTES,
    )
    del offsets
    log = fill(directory, "memory", distinct=False, codec=Compression.NONE)
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    work = clean(log)
    _, peak = tracemalloc.get_traced_memory()
    yield Figure(
        f"peak memory, a round over {log.size_bytes / 1e6:.0f} MB, {len(work.offsets):,} keys",
        f"{(peak - before) / (1 << 20):.1f} MiB",
        f"the log {log.size_bytes / (1 << 20):.0f} MiB",
        (peak - before) / log.size_bytes,
    )
    tracemalloc.stop()
    log.release()
    shutil.rmtree(log.directory)


async def waits(directory: Path) -> None:
    """How late a callback of 1 ms comes: alone, and while a worker cleans."""
    log = fill(directory, "waits", distinct=False, codec=Compression.NONE)
    for cleaning in (False, True):
        worker = threading.Thread(target=clean, args=(log,))
        if cleaning:
            worker.start()
        late = []
        for _ in range(500):
            started = time.perf_counter()
            await asyncio.sleep(0.001)
            late.append(time.perf_counter() - started - 0.001)
        late.sort()
        print(
            f"loop {'while cleaning' if cleaning else 'alone':14}: "
            f"median {late[250] * 1e3:.2f} ms late, 99th {late[495] * 1e3:.2f} ms"
        )
        if cleaning:
            worker.join()
    log.release()


def main() -> None:
    directory = Path(tempfile.mkdtemp(dir=sys.argv[1] if len(sys.argv) > 1 else None))
    print(machine())
    try:
        for figure in (*speed(directory), *memory(directory)):
            print(figure)
        asyncio.run(waits(directory))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
