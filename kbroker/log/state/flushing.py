"""Flushing a log: what has to be synced for a recovery point, and the update of that point
afterwards.

Neighbours: `flush` has the value that is passed to worker threads, `closing` flushes for a clean
stop.
"""

from __future__ import annotations

import os
from functools import partial

from kbroker.log.state.flush import UNKNOWN_CHANGE, DirectoryNames, LogFlush, Syncable
from kbroker.log.state.log_state import LogState
from kbroker.log.storage import names
from kbroker.log.storage.files import LogDirectoryError, LogFile
from kbroker.protocol.errors import ErrorCode, KafkaError


def begin_flush(state: LogState, up_to: int) -> LogFlush:
    """Begin a flush, after which all records below up_to survive a crash of the machine.

    Writes pending index entries and syncs nothing: call `sync` on each of `files`, in any thread,
    then `finish`. The recovery point is then up_to, or the offset at which the log was truncated or
    rolled meanwhile. The indexes of the active segment are not included; after a crash they are
    rebuilt from its log file.
    """
    changes = state.changes
    files: list[Syncable] = []
    recovery_point = state.recovery_point
    if recovery_point < up_to:
        files += state.segments.files_to_sync(recovery_point, up_to, state.snapshots.find)
    epochs = state.leader_epochs.pending(up_to)
    if epochs:
        files += epochs
        changes.changed()
    if changes.topic_id:
        files.append(LogFile(os.fspath(state.directory / names.PARTITION_METADATA)))
    if state.jobs.is_pending:
        files.append(state.jobs)
        changes.changed()
    if changes.names:
        files.append(DirectoryNames(os.fspath(state.directory)))
    if changes.folder:
        files.append(DirectoryNames(os.fspath(state.directory.parent)))
    flush = LogFlush(
        files,
        partial(_end_flush, state),
        up_to=up_to,
        change=changes.last,
        epoch_change=state.leader_epochs.change if epochs else UNKNOWN_CHANGE,
    )
    state.flushes += (flush,)
    return flush


def _end_flush(state: LogState, flush: LogFlush, is_synced: bool) -> None:
    state.flushes = tuple(each for each in state.flushes if each is not flush)
    if not is_synced:
        return
    state.changes.synced(flush.change)
    state.leader_epochs.synced(flush.epoch_change)
    if flush.up_to > state.recovery_point:
        state.recovery_point = min(flush.up_to, state.log_end_offset)
    if state.recovery_point == state.log_end_offset:
        state.first_unflushed_ms = None


def limit_flushes(state: LogState, offset: int) -> None:
    """Flushes in progress do not cover records at or after offset: they are truncated and written
    again, or their segment is closed.
    """
    for flush in state.flushes:
        flush.up_to = min(flush.up_to, offset)


def flush_now(state: LogState, up_to: int) -> None:
    """Sync all records below up_to. Blocks. Raises LogDirectoryError, and
    KafkaError(KAFKA_STORAGE_ERROR) for a log that is closed or failed before.
    """
    state.thaw()
    is_synced = up_to <= state.recovery_point and not state.changes.names
    if is_synced and not state.leader_epochs.needs_flush(up_to):
        return
    if state.closed or state.failure is not None:
        # a closed log may have been renamed, which is no fault of the disk
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{state.topic_partition} is closed")
    flush: LogFlush | None = None
    try:
        flush = begin_flush(state, up_to)
        flush.sync()
    except LogDirectoryError as error:
        if not error.is_shortage:
            # after a failed fsync the state of the disk is unknown: never retry it
            state.failure = error
        if flush is not None:
            flush.finish(is_synced=False)
        raise
    flush.finish()
