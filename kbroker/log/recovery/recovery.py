"""From a partition's folder to its loaded state: temporary files, segments, torn tail, producers.

After a clean stop only the end of the last segment and the newest snapshot are read. After any
other stop each segment from the one with the recovery point on is read whole: batches are checked,
both indexes, the transaction index and the producer snapshots written anew, and the log is cut
before the first batch that is not sound. All of it blocks.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Final

from kbroker.log.leader_epochs import LeaderEpochCache
from kbroker.log.producer.producer_state import (
    CompletedTransaction,
    DuplicateBatch,
    ProducerStateManager,
)
from kbroker.log.producer.recent_batches import recall_batches
from kbroker.log.producer.snapshots import ProducerSnapshots
from kbroker.log.recovery import sanity
from kbroker.log.storage import names
from kbroker.log.storage.files import (
    LogDirectoryError,
    LogFile,
    OpenFiles,
    list_directory,
    read_file,
    rename,
    sync_directory,
    unlink,
)
from kbroker.log.storage.index import OFFSET_ENTRY_BYTES, AbortedTransaction, CorruptIndexError
from kbroker.log.storage.segment import Segment
from kbroker.log.storage.segments import Segments
from kbroker.log.validator import AppendOrigin
from kbroker.model import InvariantError, TopicPartition
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.legacy_records import check_any_crc, is_legacy, read_any_header
from kbroker.protocol.records import (
    BATCH_OVERHEAD,
    CONTROL_FLAG,
    LENGTH_OVERHEAD,
    MAGIC,
    BatchHeader,
    ControlType,
    control_type,
    iter_records,
    marker_coordinator_epoch,
)
from kbroker.settings.log_config import LogConfig

logger = logging.getLogger(__name__)

READ_CHUNK_BYTES: Final = 1024 * 1024

Marker = tuple[ControlType, int]
"""An end-of-transaction marker: abort or commit, coordinator epoch."""

NO_MARKER: Final = (None,)
"""`markers_of` one batch of data."""


class RecoveryStopped(Exception):
    """The start was told to stop. The files are as a crash at this moment would leave them."""


@dataclass(slots=True)
class LogState:
    """What a partition log is made of, while it is loaded and afterwards.

    stop: set when the start is to stop; None once the log is loaded.
    """

    topic_partition: TopicPartition
    config: LogConfig
    segments: Segments
    snapshots: ProducerSnapshots
    producers: ProducerStateManager
    epochs: LeaderEpochCache
    last_snapshot_offset: int = 0
    log_start_offset: int = 0
    log_end_offset: int = 0
    recovery_point: int = 0
    stop: Event | None = None

    def check_stop(self) -> None:
        """Raise RecoveryStopped if the start is to stop."""
        if self.stop is not None and self.stop.is_set():
            raise RecoveryStopped


def load(
    directory: str,
    topic_partition: TopicPartition,
    config: LogConfig,
    epochs: LeaderEpochCache,
    *,
    recovery_point: int,
    log_start_offset: int,
    clean_shutdown: bool,
    is_new: bool,
    now_ms: int,
    producer_id_expiration_ms: int,
    open_files: OpenFiles,
    stop: Event | None = None,
) -> LogState:
    """Open what is in directory. is_new: it was just made. Raises LogDirectoryError,
    CheckpointError, RecoveryStopped once `stop` is set.
    """
    found = _settle_temporary_files(directory)
    state = LogState(
        topic_partition,
        config,
        Segments(directory, open_files),
        ProducerSnapshots(
            epochs.path.parent, [offset for offset, kind in found if kind == names.SNAPSHOT]
        ),
        ProducerStateManager(topic_partition, expiration_ms=producer_id_expiration_ms),
        epochs,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        stop=stop,
    )
    unsound = _find_segments(state, directory, found, now_ms, clean_shutdown=clean_shutdown)
    recovered_from = recovery_point
    if clean_shutdown or not len(state.segments):
        recovered_from = -1
    elif not epochs.entries and recovery_point > state.segments.first.base_offset:
        _restore_epochs(state)
    said = epochs.entries
    for segment in unsound:
        if (
            recovered_from < 0
            or segment.base_offset < state.segments[_floor(state, recovered_from)].base_offset
        ):
            recover_segment(state, segment, now_ms=now_ms, may_cut=not clean_shutdown)
    if recovered_from >= 0:
        _recover_from(state, recovered_from, now_ms)
    if epochs.entries != said:
        epochs.write()
    _find_end(state, clean_shutdown=clean_shutdown, now_ms=now_ms)
    if not clean_shutdown and not is_new:
        # what a process cut or wrote before it died may not be on disk yet: it must not come back,
        # or go, from under what is appended now; also where it had removed all segments
        state.segments.active.log_file().sync()
        sync_directory(directory)
    epochs.truncate_from_end(state.log_end_offset)
    state.log_start_offset = max(log_start_offset, state.segments.first.base_offset)
    if not epochs.entries and state.log_start_offset < state.log_end_offset:
        # the file is lost, or it was ahead of the log's start: all records had been deleted when
        # it crashed
        _restore_epochs(state)
    epochs.truncate_from_start(state.log_start_offset)
    state.snapshots.delete_strays(state.segments.base_offsets)
    rebuild_producers(state, now_ms=now_ms, clean_shutdown=clean_shutdown)
    for segment in state.segments:
        segment.close_file()
    state.stop = None
    return state


def _floor(state: LogState, offset: int) -> int:
    return state.segments.floor_index(offset)


# -- files ----------------------------------------------------------------------------------------


def _settle_temporary_files(directory: str) -> dict[tuple[int, str], int]:
    """Delete or finish what a crash left half done. Returns (offset, kind) -> size of the files
    that count.

    `.deleted` and `.cleaned` go. `.swap` is a finished clean: it takes the place of the segments it
    covers, unless a `.cleaned` beside it says that its group was not complete.
    """
    found: dict[tuple[int, str], int] = {}
    swaps: dict[tuple[int, str], int] = {}
    cleaned: list[int] = []
    for name, size, is_directory in list_directory(directory):
        parsed = parse_name(name)
        if parsed is None:
            continue
        offset, kind, suffix = parsed
        if is_directory:
            cause = IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            raise LogDirectoryError(os.path.join(directory, name), "open", cause)
        if suffix == names.SWAP:
            swaps[offset, kind] = size
        elif suffix in (names.DELETED, names.CLEANED):
            if suffix == names.CLEANED:
                cleaned.append(offset)
            unlink(os.path.join(directory, name))
        elif not suffix:
            found[offset, kind] = size
    if swaps:
        _finish_swaps(directory, found, swaps, min(cleaned, default=None))
    return found


def parse_name(name: str) -> tuple[int, str, str] | None:
    """names.parse_offset_name for the kinds a partition's folder has."""
    parsed = names.parse_offset_name(name)
    kinds = (names.LOG, names.INDEX, names.TIME_INDEX, names.TRANSACTION_INDEX, names.SNAPSHOT)
    return parsed if parsed is not None and parsed[1] in kinds else None


def _finish_swaps(
    directory: str,
    found: dict[tuple[int, str], int],
    swaps: dict[tuple[int, str], int],
    min_cleaned: int | None,
) -> None:
    def path(offset: int, kind: str) -> str:
        return os.path.join(directory, names.offset_name(offset, kind))

    covered: list[tuple[int, int]] = []
    for (offset, kind), size in sorted(swaps.items()):
        if min_cleaned is not None and offset >= min_cleaned:
            unlink(path(offset, kind) + names.SWAP)
        elif kind == names.LOG:
            last = offset
            for header, _ in read_batches(path(offset, kind) + names.SWAP, 0, size):
                last = header.last_offset
            covered.append((offset, last))
    for first, last in covered:
        for offset, kind in [
            key for key in found if key[1] != names.SNAPSHOT and first <= key[0] <= last
        ]:
            unlink(path(offset, kind))
            del found[offset, kind]
    for (offset, kind), size in swaps.items():
        if min_cleaned is None or offset < min_cleaned:
            rename(path(offset, kind) + names.SWAP, path(offset, kind))
            found[offset, kind] = size


def _find_segments(
    state: LogState,
    directory: str,
    found: dict[tuple[int, str], int],
    now_ms: int,
    *,
    clean_shutdown: bool,
) -> list[Segment]:
    """List the segments; delete indexes without a log. Returns those that need new indexes.

    Raises KafkaError if a log is missing after a clean stop. (Kafka goes on without its records.)
    """
    unsound: list[Segment] = []
    bases = sorted(offset for offset, kind in found if kind == names.LOG)
    for offset, kind in found:
        if kind not in (names.LOG, names.SNAPSHOT) and (offset, names.LOG) not in found:
            missing = os.path.join(directory, names.offset_name(offset, names.LOG))
            index = names.offset_name(offset, kind)
            if clean_shutdown:
                raise KafkaError(
                    ErrorCode.CORRUPT_MESSAGE, f"{missing} is missing, its {index} is there"
                )
            following = next((base for base in bases if base > offset), None)
            logger.warning(
                "%s is missing, and the records from offset %d %s with it; its %s is deleted",
                missing,
                offset,
                "on" if following is None else f"to {following - 1}",
                index,
            )
            unlink(os.path.join(directory, index))
    for base_offset in bases:
        segment = Segment(
            directory,
            base_offset,
            size=found[base_offset, names.LOG],
            config=state.config,
            open_files=state.segments.open_files,
            created_ms=now_ms,
            has_transaction_index=(base_offset, names.TRANSACTION_INDEX) in found,
        )
        is_empty = clean_shutdown and not segment.size
        # an entry, not the zeros of an index at full size
        if is_empty and any(read_file(segment.offset_index.path, OFFSET_ENTRY_BYTES) or b""):
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, f"{segment.path}: it is empty, its index is not"
            )
        state.segments.add(segment)
        problem = _index_problem(state.segments, segment, found)
        if problem:
            logger.warning("%s: %s; its indexes are rebuilt", state.topic_partition, problem)
            unsound.append(segment)
    if clean_shutdown:
        _check_closed_segments(state, found, unsound)
    return unsound


def _check_closed_segments(
    state: LogState, found: dict[tuple[int, str], int], unsound: list[Segment]
) -> None:
    """Raises KafkaError for one that lost its end. Those with unsound indexes are read anyway."""
    for number, following in enumerate(state.segments.base_offsets[1:]):
        segment = state.segments[number]
        if segment in unsound:
            continue
        problem = sanity.lost_tail(
            segment,
            following,
            index_bytes=found.get((segment.base_offset, names.INDEX), 0),
            time_index_bytes=found.get((segment.base_offset, names.TIME_INDEX), 0),
            compacted=state.config.compact,
        )
        if problem:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{segment.path}: {problem}")


def _index_problem(
    segments: Segments, segment: Segment, found: dict[tuple[int, str], int]
) -> str | None:
    base_offset = segment.base_offset
    if (base_offset, names.INDEX) not in found:
        return f"{segment.offset_index.path} is missing"
    try:
        segment.offset_index.check(found[base_offset, names.INDEX])
        if (base_offset, names.TIME_INDEX) not in found:
            return f"{segment.time_index.path} is missing"
        segment.time_index.check(found[base_offset, names.TIME_INDEX])
        if segment.transaction_index.exists:
            segment.transaction_index.check(found[base_offset, names.TRANSACTION_INDEX])
            problem = sanity.wrong_transaction(segments, segment)
            if problem:
                return f"{segment.transaction_index.path}: {problem}"
    except CorruptIndexError as error:
        return str(error)
    return None


# -- reading batches ------------------------------------------------------------------------------


def read_batches(path: str, position: int, end: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Headers and bytes of the batches, or messages of old, in a file from position (where one
    begins) to end; unchecked.

    Stops without a word where the bytes are no whole batch.
    """
    file = LogFile(path)
    while position < end:
        data = memoryview(file.read_at(position, min(READ_CHUNK_BYTES, end - position)))
        at = 0
        while True:
            is_short = len(data) - at < BATCH_OVERHEAD
            if is_short and (position + len(data) < end or not is_legacy(data, at)):
                break
            try:
                header = read_any_header(data, at)
            except KafkaError:
                return
            size = header.batch_length + LENGTH_OVERHEAD
            if position + at + size > end:
                return
            if at + size > len(data):
                if at == 0:
                    data = memoryview(file.read_at(position, size))
                    if len(data) < size:
                        return
                else:
                    break
            yield header, data[at : at + size]
            at += size
        if at == 0:
            return
        position += at


def marker_of(header: BatchHeader, batch: bytes | bytearray | memoryview) -> Marker | None:
    """(abort or commit, coordinator epoch) of an end-of-transaction marker, else None."""
    if not header.is_control or header.producer_id < 0 or header.record_count <= 0:
        return None
    for record in iter_records(batch, header):
        kind = control_type(record)
        if kind in (ControlType.ABORT, ControlType.COMMIT):
            return kind, marker_coordinator_epoch(record)
        break
    return None


def markers_of(batches: memoryview, headers: Sequence[BatchHeader]) -> Sequence[Marker | None]:
    """`marker_of` for each of the batches that lie one after the other in `batches`."""
    if len(headers) == 1 and not headers[0].attributes & CONTROL_FLAG:
        return NO_MARKER
    markers: list[Marker | None] = []
    position = 0
    for header in headers:
        following = position + header.batch_length + LENGTH_OVERHEAD
        markers.append(marker_of(header, batches[position:following]))
        position = following
    return markers


def check_producers(
    producers: ProducerStateManager,
    headers: Sequence[BatchHeader],
    markers: Sequence[Marker | None],
    *,
    origin: AppendOrigin,
    transaction_version: int,
) -> DuplicateBatch | None:
    """`ProducerStateManager.check` for each batch, and whether each marker's coordinator may write
    it. Returns where they already are if one was sent before. Raises KafkaError.
    """
    for number, header in enumerate(headers):
        if header.producer_id >= 0:
            duplicate = producers.check(
                header, origin=origin, transaction_version=transaction_version
            )
            if duplicate is not None:
                return duplicate
            marker = markers[number]
            if marker is not None:
                producers.check_coordinator_epoch(header.producer_id, marker[1])
    return None


def replay_producer(
    producers: ProducerStateManager, header: BatchHeader, marker: Marker | None
) -> CompletedTransaction | None:
    """Take a batch of the log, and the marker that it may be, into the producers' state.

    Returns the transaction it ended, still to be completed.
    """
    if marker is None:
        producers.update(header)
        return None
    return producers.update_marker(header, *marker)


def end_transaction(
    producers: ProducerStateManager, segment: Segment, completed: CompletedTransaction
) -> None:
    """Note an aborted transaction in the index of the segment that has its marker, then complete
    it.
    """
    if completed.is_aborted:
        stable = producers.last_stable_offset(completed)
        segment.transaction_index.append(
            AbortedTransaction(
                completed.producer_id, completed.first_offset, completed.last_offset, stable
            )
        )
    producers.complete_transaction(completed)


# -- recovery -------------------------------------------------------------------------------------


def _recover_from(state: LogState, recovery_point: int, now_ms: int) -> None:
    """Recover the segments from the one with the recovery point on; those behind a cut go."""
    segments = state.segments
    first = segments.floor_index(recovery_point)
    state.epochs.begin_recovery(segments[first].base_offset)
    for segment in list(segments)[first:]:
        removed_bytes = recover_segment(state, segment, now_ms=now_ms, cut_following=True)
        if removed_bytes:
            logger.warning(
                "%s: %d bytes of segment %d are no sound batches: cut at offset %d",
                state.topic_partition,
                removed_bytes,
                segment.base_offset,
                segment.next_offset(),
            )
            break


def recover_segment(
    state: LogState,
    segment: Segment,
    *,
    now_ms: int,
    cut_following: bool = False,
    may_cut: bool = True,
) -> int:
    """Check every batch of a segment and rebuild what is beside it. Returns how many bytes were cut
    off.

    cut_following: if so, the segments behind it go too. They go first and the cut is synced: a
    crash in between must leave neither a gap nor what was cut. may_cut: else KafkaError is raised.
    """
    producers = ProducerStateManager(
        state.topic_partition, expiration_ms=state.producers.expiration_ms
    )
    scratch = _with_producers(state, producers, log_end_offset=segment.base_offset)
    rebuild_producers(scratch, now_ms=now_ms, clean_shutdown=False)
    segment.begin_recovery()
    position = _recover_batches(state, segment, producers)
    removed_bytes = segment.size - position
    if removed_bytes and not may_cut:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{segment.path}: no sound batch at position {position}, where offset "
            f"{producers.map_end_offset} is due",
        )
    if removed_bytes and not cut_following:
        logger.warning(
            "%s: the last %d bytes are no sound batches: the records from offset %d on are lost",
            segment.path,
            removed_bytes,
            producers.map_end_offset,
        )
    if removed_bytes and cut_following:
        doomed = state.segments.at_or_after(segment.base_offset + 1)
        remove_segments(state, doomed[::-1], now_ms=now_ms, sync=True)
    segment.end_recovery(position)
    if removed_bytes:
        segment.log_file().sync()
    take_snapshot(scratch)
    return removed_bytes


def _recover_batches(state: LogState, segment: Segment, producers: ProducerStateManager) -> int:
    """Account for every sound batch of a segment. Returns where the first one begins that is not.

    Ordinary batches go by in runs (`Segment.recover_run`), all others one by one.
    """
    file, end = LogFile(segment.path), segment.size
    position = 0
    wanted = READ_CHUNK_BYTES
    last_of_producers: dict[int, deque[tuple[int, ...]]] = {}
    while position < end:
        state.check_stop()
        data = memoryview(file.read_at(position, min(wanted, end - position)))
        wanted = READ_CHUNK_BYTES
        at = 0
        while True:
            at, producers.map_end_offset = segment.recover_run(
                data,
                at,
                position,
                producers.map_end_offset,
                state.epochs.latest_epoch,
                last_of_producers,
            )
            if at and len(data) - at < BATCH_OVERHEAD and position + len(data) < end:
                break  # the header of the next one may be cut off
            _replay_last(producers, last_of_producers)
            try:
                header = read_any_header(data, at)
            except KafkaError:
                return position + at
            size = header.batch_length + LENGTH_OVERHEAD
            if position + at + size > end:
                return position + at
            if at + size > len(data):
                wanted = max(size, READ_CHUNK_BYTES)
                break
            batch = data[at : at + size]
            if not _recover_batch(state, segment, producers, header, batch, position + at):
                return position + at
            at += size
        position += at
    return position


def _recover_batch(
    state: LogState,
    segment: Segment,
    producers: ProducerStateManager,
    header: BatchHeader,
    batch: memoryview,
    position: int,
) -> bool:
    """Check one batch and account for it. Returns whether it is sound."""
    # the base offset lies outside the CRC: one that goes back is as much damage as a wrong CRC
    if (
        header.base_offset < producers.map_end_offset
        or not segment.can_hold(header.last_offset)
        or not check_any_crc(batch, 0, header)
    ):
        return False
    try:
        marker = marker_of(header, batch)
    except KafkaError:
        return False
    segment.recovered_batch(header, position)
    state.epochs.recover(
        header.partition_leader_epoch, producers.map_end_offset, header.base_offset
    )
    completed = replay_producer(producers, header, marker)
    if completed is not None:
        end_transaction(producers, segment, completed)
    return True


def _replay_last(
    producers: ProducerStateManager, last_of_producers: dict[int, deque[tuple[int, ...]]]
) -> None:
    """Take in what a run left of each producer: no more than is remembered anyway."""
    if last_of_producers:
        end_offset = producers.map_end_offset
        for headers in last_of_producers.values():
            for header in headers:
                producers.update(BatchHeader(*header))
        producers.map_end_offset = end_offset
        last_of_producers.clear()


def _with_producers(
    state: LogState, producers: ProducerStateManager, *, log_end_offset: int
) -> LogState:
    return LogState(
        state.topic_partition,
        state.config,
        state.segments,
        state.snapshots,
        producers,
        state.epochs,
        log_start_offset=state.log_start_offset,
        log_end_offset=log_end_offset,
        stop=state.stop,
    )


def _restore_epochs(state: LogState) -> None:
    """The checkpoint is empty or gone though older data is there (a machine crashed): read the
    epochs from the batches.
    """
    for segment in state.segments:
        for header, _ in read_batches(segment.path, 0, segment.size):
            state.check_stop()
            epoch = header.partition_leader_epoch
            latest = -1 if state.epochs.latest_epoch is None else state.epochs.latest_epoch
            if epoch > latest:
                state.epochs.assign(epoch, header.base_offset)
    if state.epochs.entries:
        state.epochs.write()


def _find_end(state: LogState, *, clean_shutdown: bool, now_ms: int) -> None:
    """Set log end and recovery point; a log that ends before its start offset begins anew there."""
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
                "%s: the log ends at %d, before its start offset %d: all of it is deleted",
                state.topic_partition,
                state.log_end_offset,
                state.log_start_offset,
            )
            remove_segments(state, list(segments)[::-1], now_ms=now_ms)
            state.epochs.clear()
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


def remove_segments(
    state: LogState,
    doomed: list[Segment],
    *,
    now_ms: int,
    sync: bool = False,
    defer: bool = False,
) -> None:
    """Remove segments and the snapshots that go with them, delayed. sync: before what is in front
    of them is cut, else a crash of the machine may keep the cut and bring them back behind it.
    defer: their names are changed by who works off `renames`; else all that waits there is done.
    """
    due_ms = now_ms + state.config.file_delete_delay_ms
    for segment in doomed:
        snapshot = state.snapshots.forget(segment.base_offset)
        if snapshot is not None:
            state.segments.doom(snapshot, due_ms=due_ms)
    state.segments.remove(doomed, due_ms=due_ms)
    if not defer:
        state.segments.renames.settle()
    if sync and doomed:
        sync_directory(state.segments.directory)


def cut_segments(state: LogState, offset: int, *, now_ms: int) -> None:
    """Make offset the end of the last segment, which is the active one then: what contains it, and
    what is behind, goes. That is on disk afterwards, so that it can't come back behind what is
    appended next. Blocks.
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
        # compaction took what lay before offset: a new segment is to say where the log ends
        active.become_inactive()
        for path in active.file_paths():
            LogFile(path).sync()
        segments.create_active(offset, config=config, now_ms=now_ms)


# -- producers ------------------------------------------------------------------------------------


def take_snapshot(state: LogState) -> None:
    """Write the producers' state at its map_end_offset, if that is new."""
    offset = state.producers.map_end_offset
    if offset > state.last_snapshot_offset:
        state.snapshots.write(offset, state.producers.to_snapshot())
        state.last_snapshot_offset = offset


def rebuild_producers(state: LogState, *, now_ms: int, clean_shutdown: bool) -> None:
    """Bring the producers' state to log_end_offset: newest snapshot, then the batches after it.

    Also called after a truncation. Leaves a snapshot at the end offset and at the last two
    segments, so that the next start has less to read.
    """
    producers, segments, end = state.producers, state.segments, state.log_end_offset
    bases = segments.base_offsets
    wanted = {*bases[-2:], end}
    if clean_shutdown and state.snapshots.latest is None and _is_without_producers(state):
        # written by a broker that knew no snapshots: no scan of everything, as in Kafka
        for offset in sorted(wanted):
            producers.map_end_offset = offset
            take_snapshot(state)
        return
    state.snapshots.delete_outside(state.log_start_offset, end)
    _load_snapshot(state, now_ms)
    if not clean_shutdown:
        recall_batches(producers, segments)
    if end > producers.map_end_offset:
        last = segments.floor_index(end)
        for index in range(segments.floor_index(producers.map_end_offset), last + 1):
            segment = segments[index]
            start = max(segment.base_offset, producers.map_end_offset, state.log_start_offset)
            producers.map_end_offset = start
            if segment.base_offset in wanted:
                take_snapshot(state)
            end_position = segment.position_of(end) if index == last else segment.size
            for header, batch in read_batches(
                segment.path, segment.position_of(start), end_position
            ):
                state.check_stop()
                completed = replay_producer(producers, header, marker_of(header, batch))
                if completed is not None:
                    producers.complete_transaction(completed)
    producers.map_end_offset = end
    take_snapshot(state)


def _is_without_producers(state: LogState) -> bool:
    """Whether the last batch is of a format that knows no producers, or there is none."""
    segment = next((each for each in list(state.segments)[::-1] if each.size), None)
    if segment is None:
        return True
    start = segment.position_of(segment.next_offset() - 1)
    return all(
        header.magic < MAGIC for header, _ in read_batches(segment.path, start, segment.size)
    )


def _load_snapshot(state: LogState, now_ms: int) -> None:
    """Load the newest sound snapshot; unsound ones are deleted."""
    state.producers.clear(state.log_start_offset)
    state.last_snapshot_offset = state.log_start_offset
    while (offset := state.snapshots.latest) is not None:
        try:
            state.producers.load_snapshot(
                state.snapshots.read(offset), map_end_offset=offset, now_ms=now_ms
            )
        except KafkaError as error:
            if error.code is not ErrorCode.CORRUPT_MESSAGE:
                raise InvariantError(f"unexpected error {error.code!r} from a snapshot") from error
            logger.warning(
                "%s: snapshot %d: %s; it is deleted", state.topic_partition, offset, error.message
            )
            state.snapshots.delete(offset)
        else:
            state.last_snapshot_offset = offset
            return
