"""Files of an archive before and after `compact`: an hour of a topic, a batch every few seconds.
Without Spark: the files are written as `archive` writes them.

    python -m benchmarks.archive_files [PARTITIONS] [SECONDS_PER_BATCH] [RECORDS_PER_BATCH]
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from spark_jobs.archive.commits import (
    NO_BATCH,
    Commit,
    Staging,
    add_commit,
    next_commit,
    publish,
    staging_folder,
)
from spark_jobs.archive.files import SCHEMA, write_files
from spark_jobs.compact.job import compact
from spark_jobs.compact.options import CompactOptions
from spark_jobs.storage import Folder, absolute

BASE_MS = 1_700_006_400_000  # a day begins
LATER_MS = 4_000_000_000_000
LAYOUT = ("topic", "date")


def rows(partition: int, first: int, count: int, time_ms: int) -> pa.RecordBatch:
    records = [
        {
            "key": b"key-%d" % offset,
            "value": b"%0100d" % offset,
            "headers": None,
            "topic": "orders",
            "partition": partition,
            "offset": offset,
            "timestamp": time_ms,
            "timestampType": 0,
        }
        for offset in range(first, first + count)
    ]
    return pa.RecordBatch.from_pylist(records, schema=SCHEMA)


def fill(output: Folder, partitions: int, seconds: int, count: int) -> None:
    commit = Commit(1, "c", 1, NO_BATCH, LAYOUT, {})
    add_commit(output, commit)
    for batch_id in range(3600 // seconds):
        staging = Staging(output.uri, staging_folder(commit.number + 1), LAYOUT)
        first, time_ms = batch_id * count, BASE_MS + batch_id * seconds * 1000
        files = [
            file
            for partition in range(partitions)
            for file in write_files([rows(partition, first, count, time_ms)], staging)
        ]
        ends = {"orders": dict.fromkeys(range(partitions), first + count)}
        commit = next_commit(commit, batch_id, ends, files)
        add_commit(output, commit)
        publish(output, commit)


@dataclass(frozen=True, slots=True)
class Files:
    """What an archive has of them."""

    count: int
    size_bytes: int

    def __str__(self) -> str:
        return f"{self.count:,} files, {self.size_bytes / 1e6:.1f} MB"


def files_of(output: Folder) -> Files:
    """The visible ones."""
    files = [path for path in output.files() if path.endswith(".parquet")]
    root = Path(output.open()[1])
    return Files(len(files), sum((root / path).stat().st_size for path in files))


@dataclass(frozen=True, slots=True)
class Compacted:
    """Files of an hour before and after `compact`, and what that took."""

    before: Files
    after: Files
    elapsed_s: float
    cpu_s: float


def compacted(partitions: int = 12, seconds: int = 10, count: int = 100) -> Compacted:
    """Write an hour of batches, `count` records a partition each, and compact them."""
    with tempfile.TemporaryDirectory() as folder:
        output = Folder(absolute(folder))
        fill(output, partitions, seconds, count)
        before = files_of(output)
        begun, cpu = time.perf_counter(), time.process_time()
        compact(None, CompactOptions(folder), LATER_MS)
        elapsed_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu
        return Compacted(before, files_of(output), elapsed_s, cpu_s)


def main(partitions: int = 12, seconds: int = 10, count: int = 100) -> None:
    found = compacted(partitions, seconds, count)
    print(f"before: {found.before}")
    print(f"after: {found.after} ({found.elapsed_s:.1f} s, {found.cpu_s:.1f} CPU-s)")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
