"""Truncating a log to an offset, and removing whole segments for truncation or retention."""

from __future__ import annotations

import logging
import os

from kbroker.log.state.flushing import limit_flushes
from kbroker.log.state.log_state import NOT_ON_DISK, LogState
from kbroker.log.state.producers import rebuild_producers
from kbroker.log.state.rolling import settle_roll
from kbroker.log.storage.faults import make_lasting
from kbroker.log.storage.files import (
    LogDirectoryError,
    LogFile,
    sync_directory,
)
from kbroker.log.storage.segment import Segment
from kbroker.model import InvariantError

logger = logging.getLogger(__name__)


def remove_segments(
    state: LogState,
    removed: list[Segment],
    *,
    now_ms: int,
    sync: bool = False,
    defer: bool = False,
) -> None:
    """Remove segments and their producer snapshots; the files are deleted after
    file.delete.delay.ms. sync: also sync the folder, for a caller that then truncates the preceding
    segment: a crash of the machine could keep that truncation and restore these segments after it.
    defer: leave the renames to the thread that runs `jobs`; otherwise all pending jobs are run in
    this thread.
    """
    due_ms = now_ms + state.config.file_delete_delay_ms
    for segment in removed:
        snapshot = state.snapshots.forget(segment.base_offset)
        if snapshot is not None:
            state.segments.schedule_delete(snapshot, due_ms=due_ms)
    state.segments.remove(removed, due_ms=due_ms)
    if removed:
        # a clean stop syncs the folder: some of a segment's files under their old names are damage
        state.changes.changed()
    if not defer:
        state.jobs.settle()
    if sync and removed:
        sync_directory(state.segments.directory)


def cut_segments(state: LogState, offset: int, *, now_ms: int) -> None:
    """Make offset the end of the last segment, which becomes the active one. The batch that
    contains offset and all later records are removed, and the removal is synced: after a crash of
    the machine they cannot reappear behind later appends. Blocks.
    """
    segments, config = state.segments, state.config
    remove_segments(state, segments.at_or_after(offset + 1)[::-1], now_ms=now_ms, sync=True)
    active = segments.active
    if offset > active.base_offset and not active.position_of(offset):
        remove_segments(state, [active], now_ms=now_ms, sync=True)
        segments.create_active(offset, config=config, now_ms=now_ms)
        return
    active.truncate_to(offset, index_bytes=config.segment_index_bytes, now_ms=now_ms)
    active.log_file().sync()
    if active.next_offset() < offset:
        # compaction removed the records before offset: a new segment keeps the log's end
        active.become_inactive()
        for path in active.file_paths():
            LogFile(path).sync()
        segments.create_active(offset, config=config, now_ms=now_ms)


def truncate_to(state: LogState, offset: int, *, now_ms: int) -> bool:
    """Truncate the log to offset; a batch that contains it is removed as a whole. Returns whether
    any records were removed. Blocks. Raises LogDirectoryError.
    """
    if offset < 0:
        raise InvariantError(f"{state.topic_partition}: truncation to {offset}")
    settle_roll(state)
    if offset >= state.log_end_offset:
        state.leader_epochs.truncate_from_end(offset)
        return False
    if offset < state.segments.first.base_offset:
        truncate_fully(state, offset, now_ms=now_ms)
        return True
    logger.info("%s: truncated to offset %d", state.topic_partition, offset)
    try:
        cut_segments(state, offset, now_ms=now_ms)
        state.leader_epochs.truncate_from_end(offset)
        _sync_epochs(state)
        begin = max(min(state.log_start_offset, offset), state.segments.first.base_offset)
        _move_end(state, offset, begin, now_ms)
    except LogDirectoryError as error:
        make_lasting(error)
        state.failure = error
        raise
    return True


def truncate_fully(state: LogState, offset: int, *, now_ms: int) -> None:
    """Delete all records; the empty log starts at offset. Blocks. Raises LogDirectoryError."""
    logger.info("%s: truncated fully; log start offset is %d", state.topic_partition, offset)
    settle_roll(state)
    try:
        remove_segments(state, list(state.segments)[::-1], now_ms=now_ms)
        state.segments.create_active(offset, config=state.config, now_ms=now_ms)
        state.leader_epochs.clear()
        _sync_epochs(state)
        for snapshot in list(state.snapshots.offsets):
            state.snapshots.delete(snapshot)
        _move_end(state, offset, offset, now_ms)
    except LogDirectoryError as error:
        make_lasting(error)
        state.failure = error
        raise


def _sync_epochs(state: LogState) -> None:
    """Write and sync the leader epochs, and sync the folder."""
    state.leader_epochs.write()
    LogFile(os.fspath(state.leader_epochs.path)).sync()
    state.leader_epochs.unsynced = False
    sync_directory(state.directory)


def _move_end(state: LogState, log_end_offset: int, log_start_offset: int, now_ms: int) -> None:
    state.truncation_count += 1
    state.on_disk_end_offset = NOT_ON_DISK
    limit_flushes(state, log_end_offset)
    state.log_end_offset = log_end_offset
    state.log_start_offset = log_start_offset
    state.recovery_point = min(state.recovery_point, log_end_offset)
    if state.cleaner_offset is not None:
        state.cleaner_offset = min(state.cleaner_offset, log_end_offset)
    if state.high_watermark is not None:
        state.high_watermark = min(state.high_watermark, log_end_offset)
    rebuild_producers(state, now_ms=now_ms, clean_shutdown=False)
