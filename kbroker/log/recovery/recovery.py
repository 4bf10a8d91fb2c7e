"""Loads a log from its folder: temporary files, segments, the torn tail, producer state.

After a clean shutdown only the end of the last segment and the newest producer snapshot are read.
After any other stop every segment from the one that contains the recovery point is read completely:
batches are checked, indexes and producer snapshots are rebuilt, and the log is truncated before the
first invalid batch. All functions block. The steps are in `leftovers`, `found_segments` and
`segment_recovery`.
"""

from __future__ import annotations

import logging
import os
from threading import Event

from kbroker.log.recovery.found_segments import find_segments
from kbroker.log.recovery.leftovers import settle_temporary_files
from kbroker.log.recovery.segment_recovery import recover_segment
from kbroker.log.state.log_state import LogState
from kbroker.log.state.producers import rebuild_producers
from kbroker.log.state.truncation import remove_segments
from kbroker.log.storage import names
from kbroker.log.storage.batch_reader import read_batches
from kbroker.log.storage.files import (
    sync_directory,
)
from kbroker.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)


def load(
    state: LogState,
    *,
    recovery_point: int,
    log_start_offset: int,
    clean_shutdown: bool,
    is_new: bool,
    now_ms: int,
    stop: Event | None = None,
) -> None:
    """Load the log in the state's folder. is_new: the folder was just created. Blocks.

    Raises LogDirectoryError, CheckpointError, KafkaError for a damaged log, RecoveryStopped once
    `stop` is set.
    """
    directory, epochs = os.fspath(state.directory), state.leader_epochs
    found = settle_temporary_files(directory)
    state.snapshots.offsets = sorted(offset for offset, kind in found if kind == names.SNAPSHOT)
    state.recovery_point = recovery_point
    state.log_start_offset = log_start_offset
    state.stop = stop
    unsound = find_segments(state, directory, found, now_ms, clean_shutdown=clean_shutdown)
    recovered_from = recovery_point
    said = epochs.entries
    if clean_shutdown or not len(state.segments):
        recovered_from = -1
    elif not epochs.entries and recovery_point > state.segments.first.base_offset:
        _restore_epochs(state)
    for segment in unsound:
        if (
            recovered_from < 0
            or segment.base_offset < state.segments[_floor(state, recovered_from)].base_offset
        ):
            recover_segment(state, segment, now_ms=now_ms, may_cut=not clean_shutdown)
    if recovered_from >= 0:
        _recover_from(state, recovered_from, now_ms)
    _find_end(state, clean_shutdown=clean_shutdown, now_ms=now_ms)
    if not clean_shutdown and not is_new:
        # what the previous process truncated or wrote may not be on disk: it must neither reappear
        # nor vanish below new records; also if it had removed all segments
        state.segments.active.log_file().sync()
        sync_directory(directory)
    epochs.truncate_from_end(state.log_end_offset)
    state.log_start_offset = max(log_start_offset, state.segments.first.base_offset)
    if not epochs.entries and state.log_start_offset < state.log_end_offset:
        # the checkpoint is lost, or newer than the log start: all records had been deleted when
        # the broker crashed
        _restore_epochs(state)
    epochs.truncate_from_start(state.log_start_offset)
    if epochs.entries != said:
        # Also after the two truncations, as Kafka's LogLoader does: if a full disk interrupted a
        # truncation that had removed the segments, the file has epochs beyond the log end offset.
        epochs.write()
    state.snapshots.delete_strays(state.segments.base_offsets)
    rebuild_producers(state, now_ms=now_ms, clean_shutdown=clean_shutdown)
    for segment in state.segments:
        segment.close_file()
    state.stop = None
    state.check()


def _floor(state: LogState, offset: int) -> int:
    return state.segments.floor_index(offset)


def _recover_from(state: LogState, recovery_point: int, now_ms: int) -> None:
    """Recover the segments from the one that contains the recovery point; segments after a
    truncation are removed.
    """
    segments = state.segments
    first = segments.floor_index(recovery_point)
    state.leader_epochs.begin_recovery(segments[first].base_offset)
    for segment in list(segments)[first:]:
        removed_bytes = recover_segment(state, segment, now_ms=now_ms, cut_following=True)
        if removed_bytes:
            logger.warning(
                "%s: %d bytes of invalid record batches in segment %d; truncating to offset %d",
                state.topic_partition,
                removed_bytes,
                segment.base_offset,
                segment.next_offset(),
            )
            break


def _restore_epochs(state: LogState) -> None:
    """The checkpoint is empty or missing though older data exists (the machine crashed): read the
    epochs from the batches.
    """
    for segment in state.segments:
        for header, _ in read_batches(segment.path, 0, segment.size):
            state.check_stop()
            epoch = header.partition_leader_epoch
            latest = (
                -1 if state.leader_epochs.latest_epoch is None else state.leader_epochs.latest_epoch
            )
            if epoch > latest:
                state.leader_epochs.assign(epoch, header.base_offset)


def _find_end(state: LogState, *, clean_shutdown: bool, now_ms: int) -> None:
    """Set log end offset and recovery point. A log that ends before its start offset is emptied and
    starts there.
    """
    segments = state.segments
    changed = not len(segments)
    if len(segments):
        state.log_end_offset = segments.active.next_offset()
        if clean_shutdown and state.log_end_offset < state.recovery_point:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{segments.active.path}: the log ends at offset {state.log_end_offset} and was "
                f"synced up to {state.recovery_point}, as {names.RECOVERY_POINTS} says",
            )
        if clean_shutdown and state.log_end_offset < state.log_start_offset:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{segments.active.path}: the log ends at offset {state.log_end_offset}, before "
                f"its start, {state.log_start_offset}, as {names.LOG_START_OFFSETS} says",
            )
        if state.log_end_offset < state.log_start_offset:
            logger.warning(
                "%s: log end offset %d is below log start offset %d; deleting all segments",
                state.topic_partition,
                state.log_end_offset,
                state.log_start_offset,
            )
            remove_segments(state, list(segments)[::-1], now_ms=now_ms)
            state.leader_epochs.clear()
            changed = True
    if changed:
        segments.create_active(state.log_start_offset, config=state.config, now_ms=now_ms)
        state.log_end_offset = state.log_start_offset
    else:
        active = segments.active
        active.offset_index.preallocate(state.config.segment_index_bytes)
        active.time_index.preallocate(state.config.segment_index_bytes)
    if clean_shutdown and not changed:
        state.recovery_point = state.log_end_offset
    else:
        state.recovery_point = min(state.recovery_point, state.log_end_offset)
