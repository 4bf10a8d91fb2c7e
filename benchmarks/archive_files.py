"""Files of an archive before and after `compact`: an hour of a topic, a batch every few seconds.
Without Spark: the files are written as `archive` writes them.

    python -m benchmarks.archive_files [PARTITIONS] [SECONDS_PER_BATCH] [RECORDS_PER_BATCH]
"""

from __future__ import annotations

import sys
import tempfile
import time
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


def measured(output: Folder) -> str:
    files = [path for path in output.files() if path.endswith(".parquet")]
    root = Path(output.open()[1])
    size_bytes = sum((root / path).stat().st_size for path in files)
    return f"{len(files):,} files, {size_bytes / 1e6:.1f} MB"


def main(partitions: int = 12, seconds: int = 10, count: int = 100) -> None:
    with tempfile.TemporaryDirectory() as folder:
        output = Folder(absolute(folder))
        fill(output, partitions, seconds, count)
        print(f"before: {measured(output)}")
        begun, cpu = time.perf_counter(), time.process_time()
        compact(None, CompactOptions(folder), LATER_MS)
        taken = f"{time.perf_counter() - begun:.1f} s, {time.process_time() - cpu:.1f} CPU-s"
        print(f"after: {measured(output)} ({taken})")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
