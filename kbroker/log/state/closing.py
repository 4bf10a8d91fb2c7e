"""Closes logs: cleanly and many at once, or by releasing their files only.

Stopping many partitions takes as long as their syncs. A file system commits the writes of many logs
together, so several logs are written first and synced afterwards, by several threads, as Kafka
syncs with num.recovery.threads.per.data.dir.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import Executor
from itertools import islice
from pathlib import Path
from typing import Final

from kbroker.log.state.flush import DirectoryNames, LogFlush, Syncable
from kbroker.log.state.flushing import begin_flush
from kbroker.log.state.log_state import LogState
from kbroker.log.state.producers import take_snapshot
from kbroker.log.state.rolling import settle_jobs
from kbroker.log.storage.files import LogDirectoryError, LogFile, rename

BATCH_LOGS: Final = 50
"""The most logs that are synced together; each takes some ten file descriptors."""

OPEN_FILES_PER_LOG: Final = 16
"""Open files of the limit per log that is synced together with others: a process that may open few
files closes fewer logs at a time.
"""


def close_logs(
    logs: Iterable[LogState],
    pool: Executor | None = None,
    *,
    open_files: int = BATCH_LOGS * OPEN_FILES_PER_LOG,
) -> None:
    """Flush and close all logs cleanly: with a producer snapshot at the end, and index files
    trimmed. Blocks.

    pool: runs the syncs; the rest is done in this thread. open_files: how many segments of the node
    may keep their file open, which limits the logs that are closed at a time. A damaged log is
    released as it is. Raises LogDirectoryError, also if a log failed before, because that log was
    not synced.
    """
    left = iter(logs)
    batch_logs = min(BATCH_LOGS, max(1, open_files // OPEN_FILES_PER_LOG))
    parents: set[str] = set()
    while batch := list(islice(left, batch_logs)):
        begun = [(log, _begin(log)) for log in batch if log.failure is not None or not log.closed]
        closing = [(log, flush) for log, flush in begun if flush is not None]
        files = [file for log, flush in closing for file in _to_sync(log, flush.files, parents)]
        try:
            for _ in (
                map(_sync, files) if pool is None or len(closing) < 2 else pool.map(_sync, files)
            ):
                pass
        except LogDirectoryError as error:
            for log, _ in closing:
                # after a failed fsync the state of the disk is unknown: never retry it
                log.failure = error
            raise
        for log, flush in closing:
            flush.finish()
            release(log)


def _sync(file: Syncable) -> None:
    file.sync()


def _begin(log: LogState) -> LogFlush | None:
    """Write the pending data of a log. None for a damaged log, which a pending truncation may find
    out only now.
    """
    try:
        if log.failure is None:
            settle_jobs(log)
        if log.failure is None:
            return begin_last_flush(log)
    except LogDirectoryError as error:
        log.failure = error
        raise
    if isinstance(log.failure, LogDirectoryError):
        raise log.failure
    release(log)
    return None


def _to_sync(log: LogState, files: Iterable[Syncable], parents: set[str]) -> list[Syncable]:
    """Each file once, directories last; the folders in `parents` are already synced."""
    parent = os.fspath(log.directory.parent)
    found: dict[tuple[type, str], Syncable] = {}
    for file in files:
        if not (isinstance(file, DirectoryNames) and file.path == parent):
            found[type(file), file.path] = file
        elif parent not in parents:
            parents.add(parent)
            found[type(file), parent] = file
    return sorted(found.values(), key=lambda file: isinstance(file, DirectoryNames))


def begin_last_flush(state: LogState) -> LogFlush:
    """Write everything that a clean shutdown leaves on disk; the log has no jobs left. Returns what
    has to be synced for it. Blocks. Raises LogDirectoryError.
    """
    state.leader_epochs.write_if_changed()  # like Kafka, including an epoch without records
    take_snapshot(state)
    state.segments.active.close()
    flush = begin_flush(state, state.log_end_offset)
    snapshots = state.snapshots.take_unsynced()
    if state.log_end_offset != state.on_disk_end_offset or snapshots:
        # the next start trusts these files
        paths = state.segments.active.file_paths() + snapshots
        flush.files += [LogFile(path) for path in paths]
        flush.files.append(DirectoryNames(os.fspath(state.directory)))
    return flush


def release(state: LogState) -> None:
    """Close all file descriptors; reads in progress keep theirs. Nothing is written any more."""
    state.closed = True
    state.jobs.drop()
    for segment in state.segments:
        if segment.file is not None:
            segment.open_files.forget(segment)
            segment.file = None


def rename_folder(state: LogState, name: str) -> Path:
    """Close the log and rename its folder. Returns the new path. Blocks. Raises
    LogDirectoryError.
    """
    target = state.directory.with_name(name)
    settle_jobs(state)  # a worker would not find the folder
    release(state)
    rename(state.directory, target)
    state.directory = target
    return target
