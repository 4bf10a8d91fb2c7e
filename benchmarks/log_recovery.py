"""What a start costs: recovery seconds per GB after an unclean stop, and a clean start with 2,000
partitions of 5 segments.

    python -m benchmarks.log_recovery [directory] [--megabytes 512] [--partitions 2000]

Recovery reads and checks every batch behind the recovery point; its bare limit is reading the same
files and computing their CRC-32C, in one thread. A clean start has to find out what there is; its
bare limit is listing the folders with each file's size. Files are in the page cache. Medians of
RUNS; ratios count CPU seconds, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.figures import Figure, machine
from kbroker.log.append_request import AppendRequest
from kbroker.log.manager import LogManager
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.checksum import crc32c
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.log_config import LogConfig

NOW_MS = 1_700_000_000_000
REQUEST = AppendRequest(1, 0, NOW_MS)
RUNS = 3
RECOVERED_LOGS = 8
BATCH_KIB = (1, 16, 1024)
SEGMENTS = 5
FIRST_OFFSET = bytes(8)
TOPIC_ID = bytes(15) + b"\x07"


def batch_of(size_bytes: int) -> bytearray:
    """Of 1,000-byte records, or one record if the batch is small."""
    value = random.Random(1).randbytes(1000 if size_bytes > 4096 else size_bytes - 90)
    return build_batch([(NOW_MS, None, value, [])] * max(1, size_bytes // (len(value) + 16)))


def manager(folder: Path, threads: int = 2) -> LogManager:
    """With its lock."""
    properties = {
        "log.dirs": str(folder),
        "node.id": "1",
        "num.recovery.threads.per.data.dir": str(threads),
    }
    made = LogManager(
        BrokerConfig.from_properties(properties),
        now_ms=lambda: NOW_MS,
        random=random.Random(1),
        threads=lambda _, count: ThreadPoolExecutor(count),
    )
    made.lock()
    return made


def produce(made: LogManager, key: TopicPartition, batch: bytearray, count: int) -> None:
    log = made.get_or_create(key, TOPIC_ID, LogConfig(segment_bytes=64 << 20))
    for _ in range(count):
        batch[:8] = FIRST_OFFSET
        log.append(memoryview(batch), 0, REQUEST)


def read_and_sum(folder: Path) -> None:
    """The bare limit of recovery."""
    for path in folder.glob("*/*.log"):
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(1 << 20):
                crc32c(chunk)


def recovery(folder: Path, kib: int, megabytes: int) -> Figure:
    """Nothing was flushed: all of it is behind the recovery point."""
    batch = batch_of(kib << 10)
    count = (megabytes << 20) // RECOVERED_LOGS // len(batch)
    made = manager(folder)
    made.load()
    for index in range(RECOVERED_LOGS):
        produce(made, TopicPartition("unclean", index), batch, count)
    made.close(clean=False)
    (folder / "recovery-point-offset-checkpoint").unlink()
    gigabytes = count * RECOVERED_LOGS * len(batch) / 1e9
    figures: dict[int, list[float]] = {1: [], 2: []}
    cpu: list[float] = []
    limits = []
    for _ in range(RUNS):
        for threads, runs in figures.items():
            made = manager(folder, threads)
            started, cpu_started = time.perf_counter(), time.process_time()
            made.load()
            runs.append((time.perf_counter() - started) / gigabytes)
            if threads == 1:
                cpu.append((time.process_time() - cpu_started) / gigabytes)
            made.close(clean=False)
            (folder / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
        started = time.process_time()
        read_and_sum(folder)
        limits.append((time.process_time() - started) / gigabytes)
    limit = statistics.median(limits)
    one, two = (statistics.median(runs) for runs in figures.values())
    each = statistics.median(cpu)
    return Figure(
        f"recovery, {kib:,} KiB batches ({one:.2f} s per GB with a thread, {two:.2f} with two)",
        f"{each:.2f} CPU-seconds per GB",
        f"bare read and CRC-32C {limit:.2f}",
        each / limit,
    )


def start(folder: Path, partitions: int) -> Iterator[Figure]:
    """Clean, then after a stop without the marker."""
    batch = batch_of(1 << 10)
    made = manager(folder)
    made.load()
    for index in range(partitions):
        key = TopicPartition(f"topic-{index // 20}", index % 20)
        for _ in range(SEGMENTS):
            produce(made, key, batch, 1)
            made.logs[key].roll(NOW_MS)
    made.close()
    clean: list[tuple[float, float]] = []
    unclean: list[tuple[float, float]] = []
    limits = []
    for _ in range(RUNS):
        started = time.process_time()
        for entry in list(os.scandir(folder)):
            if entry.is_dir():
                for file in os.scandir(entry.path):
                    file.stat()
        limits.append(time.process_time() - started)
        clean.append(load_seconds(folder))
        (folder / ".kafka_cleanshutdown").unlink()
        unclean.append(load_seconds(folder))
    limit = statistics.median(limits)
    for how, runs in (("clean", clean), ("without the marker of a clean stop", unclean)):
        seconds, cpu = (statistics.median(run[i] for run in runs) for i in range(2))
        yield Figure(
            f"start, {partitions:,} partitions x {SEGMENTS} segments, {how} ({seconds:.2f} s)",
            f"{cpu:.2f} CPU-seconds",
            f"bare listing with sizes {limit:.2f}",
            cpu / limit,
        )


def load_seconds(folder: Path) -> tuple[float, float]:
    """(seconds, CPU seconds) of one start."""
    made = manager(folder)
    started, cpu = time.perf_counter(), time.process_time()
    made.load()
    seconds = time.perf_counter() - started, time.process_time() - cpu
    made.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?")
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--partitions", type=int, default=2000)
    arguments = parser.parse_args()
    base = Path(tempfile.mkdtemp(dir=arguments.directory))
    print(machine())
    try:
        for kib in BATCH_KIB:
            megabytes = arguments.megabytes if kib > 1 else arguments.megabytes // 4
            print(recovery(base / f"recovery-{kib}", kib, megabytes))
            shutil.rmtree(base / f"recovery-{kib}")
        for figure in start(base / "start", arguments.partitions):
            print(figure)
    finally:
        shutil.rmtree(base)


if __name__ == "__main__":
    main()
