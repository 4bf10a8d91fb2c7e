"""Closing logs cleanly, many at once: each is brought to its end on disk, then all is synced.

Syncing is what a stop of many partitions waits for. A file system commits what many logs wrote in
one go, so a batch of them is written first and synced afterwards, by several threads, as Kafka
syncs with num.recovery.threads.per.data.dir. Neighbours: `partition_log` has the parts,
`manager` says when.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Final

from kbroker.log.flushing import Flush
from kbroker.log.results import DirectoryNames, Syncable
from kbroker.log.storage.files import LogDirectoryError

if TYPE_CHECKING:
    from kbroker.log.partition_log import PartitionLog

BATCH_LOGS: Final = 50
"""Logs that are synced together, at most; some ten descriptors each."""

OPEN_FILES_PER_LOG: Final = 16
"""Of the files that logs may keep open, for each log that is synced together with others: a process
that may open few files closes fewer logs at once.
"""


def close_logs(
    logs: Iterable[PartitionLog],
    *,
    threads: int = 1,
    open_files: int = BATCH_LOGS * OPEN_FILES_PER_LOG,
) -> None:
    """Flush and close all cleanly: a snapshot at the end, index files cut to size. Blocks.

    threads: that sync; all else is done here. open_files: how many segments of the node may keep
    their file open, which bounds the logs that are closed at once. Raises LogDirectoryError, and
    also if a log failed before: it was not synced.
    """
    left = iter(logs)
    batch_logs = min(BATCH_LOGS, max(1, open_files // OPEN_FILES_PER_LOG))
    parents: set[str] = set()
    with ThreadPoolExecutor(threads, thread_name_prefix="kbroker-closing") as pool:
        while batch := list(islice(left, batch_logs)):
            closing = [
                (log, _begin(log)) for log in batch if log.failure is not None or not log.closed
            ]
            files = [file for log, flush in closing for file in _to_sync(log, flush.files, parents)]
            try:
                for _ in map(_sync, files) if len(closing) < 2 else pool.map(_sync, files):
                    pass
            except LogDirectoryError as error:
                for log, _ in closing:
                    # after a failed fsync nobody knows what is on disk: never try it again
                    log.failure = error
                raise
            for log, flush in closing:
                flush.finish()
                log.release()


def _sync(file: Syncable) -> None:
    file.sync()


def _begin(log: PartitionLog) -> Flush:
    """Write what is pending of a log."""
    if log.failure is not None:
        raise log.failure
    try:
        return log.begin_last_flush()
    except LogDirectoryError as error:
        log.failure = error
        raise


def _to_sync(log: PartitionLog, files: Iterable[Syncable], parents: set[str]) -> list[Syncable]:
    """Each file once, names last; those of a folder in `parents` are done."""
    parent = os.fspath(log.directory.parent)
    found: dict[tuple[type, str], Syncable] = {}
    for file in files:
        if not (isinstance(file, DirectoryNames) and file.path == parent):
            found[type(file), file.path] = file
        elif parent not in parents:
            parents.add(parent)
            found[type(file), parent] = file
    return sorted(found.values(), key=lambda file: isinstance(file, DirectoryNames))
