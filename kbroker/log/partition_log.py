"""One partition's log: append, read, flush, truncate, retire. The only door to the files in its
folder.

Segments are in `segments`, how a folder becomes a log again in `recovery`, what a batch must be in
`validator`, what producers may do in `producer_state`. High watermark and waiting are
replication's; it tells this log its high watermark.

An append is: validate (offsets are written into the batches in place), ask the producer's state,
write once, note the index entry that is due. `log_end_offset` moves last. No method awaits; what
blocks for long (open, flush, truncate) says so. All offsets are inclusive at the start and
exclusive at the end.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from threading import Event
from typing import Final

from kbroker.log.cleaner.retention import count_before_start, count_excess, count_expired
from kbroker.log.cleaner.swap import SegmentSwap
from kbroker.log.closing import close_logs
from kbroker.log.flushing import UNKNOWN_CHANGE, Flush, FolderChanges
from kbroker.log.next_batch import append_next_batch
from kbroker.log.producer.markers import Marker, markers_of
from kbroker.log.producer.producer_state import ProducerStateManager
from kbroker.log.producer.replay import check_producers, end_transaction, replay_producer
from kbroker.log.recovery.recovery import load
from kbroker.log.results import AppendInfo, DirectoryNames, ReadInfo, Syncable
from kbroker.log.state.leader_epochs import LeaderEpochCache
from kbroker.log.state.log_state import LogState
from kbroker.log.state.producers import rebuild_producers, take_snapshot
from kbroker.log.state.roll import Roll, RollDue
from kbroker.log.state.truncation import cut_segments, remove_segments
from kbroker.log.storage import names
from kbroker.log.storage.checkpoint import read_topic_id_after_stop, write_topic_id
from kbroker.log.storage.damaged import DamagedLogError
from kbroker.log.storage.files import (
    LogDirectoryError,
    LogFile,
    make_directory,
    rename,
    sync_directory,
)
from kbroker.log.storage.open_files import OpenFiles, default_open_file_limit
from kbroker.log.storage.segment import Segment
from kbroker.log.storage.segments import Segments
from kbroker.log.storage.transaction_index import AbortedTransaction
from kbroker.log.time_search import (
    Search,
    TimestampOffset,
    find_now,
    search_max_timestamp,
    search_time,
)
from kbroker.log.validator import (
    AppendOrigin,
    ValidatedBatches,
    validate_batches,
    validate_replicated,
)
from kbroker.model import InvariantError, TopicPartition, Uuid
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.log_config import LogConfig

__all__ = ["AppendInfo", "AppendOrigin", "PartitionLog", "ReadInfo", "Syncable", "TimestampOffset"]

logger = logging.getLogger(__name__)

DEFAULT_PRODUCER_ID_EXPIRATION_MS: Final = 86_400_000
NO_LIMIT: Final = (1 << 63) - 1


class PartitionLog:
    """See the module. Made by `open`.

    high_watermark: set by replication through `on_high_watermark`; while it is None nothing
    replicates this log and its end counts. on_rolled: called after a roll, so that the closed
    segment is flushed off the loop. failure: the fault after which nothing more is written here
    (the directory is offline). cleaner_offset: compacted up to there, None never.
    """

    __slots__ = (
        "_changes",
        "_flushes",
        "_opened_at",
        "_roll",
        "_state",
        "cleaner_offset",
        "closed",
        "config",
        "directory",
        "failure",
        "first_unflushed_ms",
        "high_watermark",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "on_rolled",
        "producers",
        "recovery_point",
        "segments",
        "topic_id",
        "topic_partition",
        "truncation_count",
    )

    topic_partition: TopicPartition
    directory: Path
    config: LogConfig
    topic_id: Uuid | None
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    leader_epochs: LeaderEpochCache
    producers: ProducerStateManager
    segments: Segments
    _state: LogState

    def __init__(self) -> None:
        self.failure: LogDirectoryError | None = None
        self.high_watermark: int | None = None
        self.on_rolled: Callable[[PartitionLog], None] | None = None
        self.cleaner_offset: int | None = None
        self.truncation_count = 0  # since it was opened; a round of cleaning ends when it rises
        self.closed = False
        self.log_end_offset = 0
        self.first_unflushed_ms: int | None = None
        self._changes = FolderChanges()
        self._roll: Roll | None = None  # under way: a worker makes the files
        self._opened_at = -1  # its end while all its files are on disk; -1: they are not
        self._flushes: tuple[Flush, ...] = ()  # under way

    @classmethod
    def open(
        cls,
        directory: Path,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        clean_shutdown: bool = False,
        now_ms: int,
        topic_id: Uuid | None = None,
        producer_id_expiration_ms: int = DEFAULT_PRODUCER_ID_EXPIRATION_MS,
        open_files: OpenFiles | None = None,
        random: Random | None = None,
        stop: Event | None = None,
    ) -> PartitionLog:
        """Open the folder, made if missing, and recover what is after recovery_point unless it was
        closed cleanly.

        Blocks. topic_id: written to partition.metadata if that is missing; what the file says is in
        `topic_id`. open_files: of the node; None: the log counts its descriptors by itself. random:
        for segment.jitter.ms; None: segments roll without jitter. Raises LogDirectoryError,
        CheckpointError (a file of the folder is corrupt), DamagedLogError; RecoveryStopped once
        another thread has set `stop`.
        """
        log = cls()
        log.directory = directory
        log.topic_partition = topic_partition
        log.config = config
        # what the process before this one had synced of names and small files is not known
        is_made = make_directory(directory)
        log.topic_id = read_topic_id_after_stop(directory, clean_shutdown=clean_shutdown)
        if is_made or not clean_shutdown:
            is_unsynced = log.topic_id is not None and not clean_shutdown
            log._changes.changed(topic_id=is_unsynced, folder=True)
        if log.topic_id is None and topic_id is not None:
            log.set_topic_id(topic_id)
        log.leader_epochs = LeaderEpochCache(directory, clean_shutdown=clean_shutdown)
        try:
            state = load(
                os.fspath(directory),
                topic_partition,
                config,
                log.leader_epochs,
                recovery_point=recovery_point,
                log_start_offset=log_start_offset,
                clean_shutdown=clean_shutdown,
                is_new=is_made,
                now_ms=now_ms,
                producer_id_expiration_ms=producer_id_expiration_ms,
                open_files=open_files or OpenFiles(default_open_file_limit()),
                random=random,
                stop=stop,
            )
        except KafkaError as error:
            raise DamagedLogError(error.message) from error
        log._state = state
        log.segments = state.segments
        log.producers = state.producers
        log.log_start_offset = state.log_start_offset
        log.log_end_offset = state.log_end_offset
        log.recovery_point = state.recovery_point
        log._opened_at = state.log_end_offset if clean_shutdown else -1
        log.segments.active.roll_jitter_ms = log.segments.roll_jitter_ms(config)
        return log

    def share(self, open_files: OpenFiles, random: Random) -> None:
        """Use what all logs of the node share from now on. No file of this log may be open."""
        self.segments.share(open_files, random)
        self.segments.active.roll_jitter_ms = self.segments.roll_jitter_ms(self.config)

    def __repr__(self) -> str:
        return (
            f"PartitionLog({self.topic_partition}, {self.log_start_offset}..{self.log_end_offset})"
        )

    @property
    def size_bytes(self) -> int:
        """Of all segments' logs."""
        return self.segments.size_bytes

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest transaction that is open or whose end is not replicated yet;
        None: all stable.
        """
        producers = self.producers
        if not (producers.ongoing or producers.unreplicated):
            return None
        first = producers.first_unstable_offset
        return first if first is None or first >= self.log_start_offset else self.log_start_offset

    def update_config(self, config: LogConfig) -> None:
        """Take a changed topic configuration; what it means for the active segment shows at the
        next roll.
        """
        self.config = config
        self._state.config = config
        for segment in self.segments:
            segment.index_interval_bytes = config.index_interval_bytes

    def set_topic_id(self, topic_id: Uuid) -> None:
        """Write partition.metadata."""
        write_topic_id(self.directory, topic_id)
        self.topic_id = topic_id
        self._changes.changed(topic_id=True)

    def on_high_watermark(self, high_watermark: int) -> int | None:
        """Replication's high watermark moved: ended transactions below it become stable, segments
        deletable. Returns the first unstable offset.
        """
        self.high_watermark = high_watermark
        producers = self.producers
        if not (producers.ongoing or producers.unreplicated):
            return None
        producers.on_high_watermark(high_watermark)
        return self.first_unstable_offset

    # -- appending --------------------------------------------------------------------------------

    def append_as_leader(
        self,
        batches: bytearray | memoryview | ValidatedBatches,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        produce_version: int | None = None,
        transaction_version: int = 0,
        defer_roll: bool = False,
    ) -> AppendInfo:
        """Give whole batches the next offsets and append them; they are written in place. Those
        that were checked before are not checked again.

        A batch its producer sent before is not written again: the answer has its old offsets.
        Raises KafkaError for what must not be appended, LogDirectoryError for a fault of the disk;
        with defer_roll RollDue, where they need a new segment, rather than make its files.
        """
        if self.failure is not None:
            raise self.failure
        config = self.config
        if origin is AppendOrigin.CLIENT and not isinstance(batches, ValidatedBatches):
            base_offset = append_next_batch(
                self, batches, produce_version, leader_epoch, now_ms, transactional=True
            )
            if base_offset >= 0:
                return AppendInfo(
                    base_offset, self.log_end_offset - 1, log_start_offset=self.log_start_offset
                )
        if isinstance(batches, ValidatedBatches):
            validated = batches
            validated.place(self.log_end_offset, leader_epoch)
        else:
            validated = validate_batches(
                batches,
                next_offset=self.log_end_offset,
                leader_epoch=leader_epoch,
                now_ms=now_ms,
                config=config,
                origin=origin,
                compacted=config.compact,
                produce_version=produce_version,
                validate_records=config.validate_records,
            )
        headers = validated.headers
        markers = markers_of(validated.batches, headers)
        duplicate = check_producers(
            self.producers, headers, markers, origin=origin, transaction_version=transaction_version
        )
        if duplicate is not None:
            return AppendInfo(
                duplicate.base_offset,
                duplicate.last_offset,
                log_start_offset=self.log_start_offset,
                log_append_time_ms=duplicate.timestamp,
                duplicate=True,
            )
        self._append(validated, markers, now_ms, defer_roll)
        return AppendInfo(
            validated.base_offset,
            validated.last_offset,
            log_start_offset=self.log_start_offset,
            log_append_time_ms=validated.log_append_time_ms,
        )

    def append_as_follower(
        self, batches: bytes | bytearray | memoryview, *, now_ms: int
    ) -> AppendInfo:
        """Append what a leader sent, offsets and epochs as they are; also the quorum's own batches.

        Raises KafkaError(CORRUPT_MESSAGE) for damaged bytes or offsets below the log's end,
        LogDirectoryError.
        """
        if self.failure is not None:
            raise self.failure
        validated = validate_replicated(batches, next_offset=self.log_end_offset)
        self._append(validated, markers_of(validated.batches, validated.headers), now_ms)
        return AppendInfo(
            validated.base_offset,
            validated.last_offset,
            log_start_offset=self.log_start_offset,
        )

    def _append(
        self,
        validated: ValidatedBatches,
        markers: Sequence[Marker | None],
        now_ms: int,
        defer_roll: bool = False,
    ) -> None:
        """Write, then account for it: nothing of the latter can refuse what is written."""
        batches, headers = validated.batches, validated.headers
        max_timestamp = validated.max_timestamp
        last_offset = validated.last_offset
        segment = self.segments.active
        size = len(batches)
        if size > self.config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{size} bytes are more than a segment of {self.topic_partition} holds "
                f"({self.config.segment_bytes})",
            )
        try:
            if segment.should_roll(size, last_offset, max_timestamp, self.config, now_ms):
                base_offset = headers[0].base_offset
                if defer_roll and segment.size:
                    raise RollDue(self.begin_roll(now_ms, base_offset), validated)
                segment = self.roll(now_ms, base_offset)
            epochs = self.leader_epochs
            for header in headers:
                epoch = header.partition_leader_epoch
                if epoch >= 0 and epoch != epochs.latest_epoch:
                    epochs.assign(epoch, header.base_offset)
            segment.append(batches, headers)
            for number, header in enumerate(headers):
                if header.producer_id >= 0:
                    completed = replay_producer(self.producers, header, markers[number])
                    if completed is not None:
                        end_transaction(self.producers, segment, completed)
        except LogDirectoryError as error:
            if not error.is_shortage:  # a file could not be opened, so nothing was written
                self.failure = error
            raise
        self.log_end_offset = self.producers.map_end_offset = last_offset + 1
        if self.first_unflushed_ms is None:
            self.first_unflushed_ms = now_ms

    def roll(self, now_ms: int, base_offset: int | None = None) -> Segment:
        """Close the active segment and begin one at base_offset (not before the log's end). Returns
        the new one. Blocks.
        """
        self._settle_roll()
        base_offset = max(self.log_end_offset, base_offset or 0)
        active = self.segments.active
        if active.base_offset != base_offset or active.size:
            self.begin_roll(now_ms, base_offset).settle()
        return self.segments.active

    def begin_roll(self, now_ms: int, base_offset: int) -> Roll:
        """The one that is under way, or a new one; what cannot wait for it does it itself."""
        if self._roll is None:
            self._roll = Roll(self._state, base_offset, now_ms=now_ms, then=self._rolled)
        return self._roll

    def _settle_roll(self) -> None:
        if self._roll is not None:
            self._roll.settle()

    def _rolled(self, new: Segment | LogDirectoryError) -> None:
        self._roll = None
        if isinstance(new, LogDirectoryError):
            self.failure = self.failure or new
            return
        self._changes.changed()
        # its indexes were closed only now: the recovery point passes it once they are synced
        self.recovery_point = min(self.recovery_point, new.base_offset - 1)
        self._limit_flushes(new.base_offset - 1)
        logger.info("%s: rolled to a new segment at %d", self.topic_partition, new.base_offset)
        if self.on_rolled is not None:
            self.on_rolled(self)

    # -- reading ----------------------------------------------------------------------------------

    def read(
        self,
        fetch_offset: int,
        *,
        max_bytes: int,
        upper_offset: int = NO_LIMIT,
        min_one_batch: bool = True,
    ) -> ReadInfo:
        """Whole batches from the one that contains fetch_offset on, none of them at or beyond
        upper_offset.

        max_bytes: not exceeded but by a first batch, and by that only with min_one_batch. Batches
        of one segment. Raises KafkaError(OFFSET_OUT_OF_RANGE; CORRUPT_MESSAGE for a damaged file),
        LogDirectoryError.
        """
        log_end_offset = self.log_end_offset
        if not self.log_start_offset <= fetch_offset <= log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {fetch_offset} of {self.topic_partition} is not within "
                f"{self.log_start_offset} and {log_end_offset}",
            )
        if upper_offset > log_end_offset:
            upper_offset = log_end_offset
        if fetch_offset >= upper_offset:
            if fetch_offset == log_end_offset:
                # this reader waits at the end: what comes next will begin here
                active = self.segments.active
                active.remember(log_end_offset, active.size)
            return ReadInfo(b"", fetch_offset)
        found, end_offset = self.segments.read(
            fetch_offset,
            max_bytes=max_bytes,
            upper_offset=upper_offset,
            log_end_offset=log_end_offset,
            min_one_batch=min_one_batch,
        )
        return ReadInfo(b"" if found is None else found, end_offset)

    def aborted_transactions(
        self, fetch_offset: int, upper_offset: int
    ) -> list[AbortedTransaction]:
        """What a reader of [fetch_offset, upper_offset) has to leave out."""
        return self.segments.aborted_transactions(fetch_offset, upper_offset)

    def search_time(self, timestamp_ms: int) -> Search:
        """Search for the first record of timestamp_ms or later."""
        return search_time(self.segments, timestamp_ms, lambda: self.log_start_offset)

    def search_max_timestamp(self) -> Search:
        """Search for the first record with the largest timestamp; None if no record has one."""
        return search_max_timestamp(self.segments)

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """As `search_time`, at once: reads and unpacks batches."""
        return find_now(self.search_time(timestamp_ms))

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """As `search_max_timestamp`, at once."""
        return find_now(self.search_max_timestamp())

    def earliest(self) -> TimestampOffset:
        """The log's start, with the leader epoch it was written in (-1 unknown)."""
        return TimestampOffset(-1, self.log_start_offset, self._epoch_at(self.log_start_offset))

    def segment_times(self) -> list[tuple[int, int]]:
        """(first offset, when its file was last written, in ms) of each segment."""
        return self.segments.modified_times(self.log_start_offset)

    def _epoch_at(self, offset: int) -> int:
        epoch = self.leader_epochs.epoch_for_offset(offset)
        return -1 if epoch is None else epoch

    # -- flushing ---------------------------------------------------------------------------------

    def begin_flush(self, up_to: int | None = None) -> Flush:
        """What has to be synced so that everything before up_to (default: the end) survives a crash
        of the machine.

        Writes what is pending, syncs nothing: call `sync` on each of `files`, in a thread if need
        be, then `finish`: recovery begins at up_to then, or where the log was cut or rolled
        meanwhile. Indexes of the active segment are not among them; after a crash they are rebuilt
        from its log.
        """
        if up_to is None:
            up_to = self.log_end_offset
        changes = self._changes
        files: list[Syncable] = []
        recovery_point = self.recovery_point
        if recovery_point < up_to:
            files += self.segments.files_to_sync(recovery_point, up_to, self._state.snapshots.find)
        epochs = self.leader_epochs.pending(up_to)
        if epochs:
            files += epochs
            changes.changed()
        if changes.topic_id:
            files.append(LogFile(os.fspath(self.directory / names.PARTITION_METADATA)))
        if self.segments.renames.is_pending:
            files.append(self.segments.renames)
            changes.changed()
        if changes.names:
            files.append(DirectoryNames(os.fspath(self.directory)))
        if changes.folder:
            files.append(DirectoryNames(os.fspath(self.directory.parent)))
        flush = Flush(
            files,
            self._end_flush,
            up_to=up_to,
            change=changes.last,
            epoch_change=self.leader_epochs.change if epochs else UNKNOWN_CHANGE,
        )
        self._flushes += (flush,)
        return flush

    def _end_flush(self, flush: Flush, is_synced: bool) -> None:
        self._flushes = tuple(each for each in self._flushes if each is not flush)
        if not is_synced:
            return
        self._changes.synced(flush.change)
        self.leader_epochs.synced(flush.epoch_change)
        if flush.up_to > self.recovery_point:
            self.recovery_point = min(flush.up_to, self.log_end_offset)
        if self.recovery_point == self.log_end_offset:
            self.first_unflushed_ms = None

    def _limit_flushes(self, offset: int) -> None:
        """Those under way do not sync what was cut and written again, or closed, meanwhile."""
        for flush in self._flushes:
            flush.up_to = min(flush.up_to, offset)

    @property
    def is_flush_due(self) -> bool:
        """A closed segment waits to be flushed, or as many records as flush.messages allows."""
        recovery_point = self.recovery_point
        return (
            recovery_point < self.segments.active.base_offset
            or self.log_end_offset - recovery_point >= self.config.flush_messages
        )

    def flush(self, up_to: int | None = None) -> None:
        """Sync everything before up_to (default: the end). Blocks. Raises LogDirectoryError."""
        if up_to is None:
            up_to = self.log_end_offset
        is_synced = up_to <= self.recovery_point and not self._changes.names
        if is_synced and not self.leader_epochs.needs_flush(up_to):
            return
        try:
            flush = self.begin_flush(up_to)
            flush.sync()
        except LogDirectoryError as error:
            # after a failed fsync nobody knows what is on disk: never try it again
            self.failure = error
            raise
        flush.finish()

    # -- cutting and retiring ---------------------------------------------------------------------

    def truncate_to(self, offset: int, *, now_ms: int = 0) -> bool:
        """Make offset the log's end; a batch that contains it goes whole. Returns whether anything
        was cut. Blocks.
        """
        if offset < 0:
            raise InvariantError(f"{self.topic_partition}: truncation to {offset}")
        self._settle_roll()
        if offset >= self.log_end_offset:
            self.leader_epochs.truncate_from_end(offset)
            return False
        if offset < self.segments.first.base_offset:
            self.truncate_fully(offset, now_ms=now_ms)
            return True
        logger.info("%s: truncated to offset %d", self.topic_partition, offset)
        try:
            cut_segments(self._state, offset, now_ms=now_ms)
            self.leader_epochs.truncate_from_end(offset)
            self._sync_epochs()
            begin = max(min(self.log_start_offset, offset), self.segments.first.base_offset)
            self._moved_end(offset, begin, now_ms)
        except LogDirectoryError as error:
            self.failure = error
            raise
        return True

    def truncate_fully(self, offset: int, *, now_ms: int = 0) -> None:
        """Delete everything and begin anew, empty, at offset. Blocks."""
        logger.info("%s: truncated fully, begins at offset %d", self.topic_partition, offset)
        try:
            self._settle_roll()
            remove_segments(self._state, list(self.segments)[::-1], now_ms=now_ms)
            self.segments.create_active(offset, config=self.config, now_ms=now_ms)
            self.leader_epochs.clear()
            self._sync_epochs()
            for snapshot in list(self._state.snapshots.offsets):
                self._state.snapshots.delete(snapshot)
            self._moved_end(offset, offset, now_ms)
        except LogDirectoryError as error:
            self.failure = error
            raise

    def _sync_epochs(self) -> None:
        """The leader epochs, and all names of the folder."""
        self.leader_epochs.write()
        LogFile(os.fspath(self.leader_epochs.path)).sync()
        self.leader_epochs.unsynced = False
        sync_directory(self.directory)

    def _moved_end(self, log_end_offset: int, log_start_offset: int, now_ms: int) -> None:
        state = self._state
        self.truncation_count += 1
        self._opened_at = -1
        self._limit_flushes(log_end_offset)
        self.log_end_offset = state.log_end_offset = log_end_offset
        self.log_start_offset = state.log_start_offset = log_start_offset
        self.recovery_point = min(self.recovery_point, log_end_offset)
        if self.cleaner_offset is not None:
            self.cleaner_offset = min(self.cleaner_offset, log_end_offset)
        if self.high_watermark is not None:
            self.high_watermark = min(self.high_watermark, log_end_offset)
        rebuild_producers(state, now_ms=now_ms, clean_shutdown=False)

    def delete_records_before(self, offset: int) -> bool:
        """Move the log's start up to offset (DeleteRecords). Files go with the next retention run.

        Raises KafkaError(OFFSET_OUT_OF_RANGE) beyond the high watermark.
        """
        if offset > self._upper_bound():
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot delete up to {offset} in {self.topic_partition}: "
                f"the high watermark is {self._upper_bound()}",
            )
        return self._move_start(offset)

    def _move_start(self, offset: int) -> bool:
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = self._state.log_start_offset = offset
        self.leader_epochs.truncate_from_start(offset)
        map_end_offset = self.producers.map_end_offset
        self.producers.on_log_start_offset(offset)
        self.producers.map_end_offset = max(map_end_offset, offset)
        return True

    def _upper_bound(self) -> int:
        return (
            self.log_end_offset
            if self.high_watermark is None
            else min(self.high_watermark, self.log_end_offset)
        )

    def delete_old_segments(self, now_ms: int, *, defer: bool = False) -> int:
        """Retire segments by retention.ms and retention.bytes (cleanup.policy delete) and those
        before the log's start. Returns how many. Files are renamed now, with `defer` by who works
        off `segments.renames`, and deleted by `delete_due_files`.
        """
        upper, end = self._upper_bound(), self.log_end_offset
        count = count_expired(self.segments, self.config, now_ms, upper_offset=upper, end=end)
        deleted = self._remove_oldest(count, now_ms, "retention.ms", defer)
        count = count_excess(self.segments, self.config, upper_offset=upper, end=end)
        deleted += self._remove_oldest(count, now_ms, "retention.bytes", defer)
        count = count_before_start(self.segments, self.log_start_offset)
        return deleted + self._remove_oldest(count, now_ms, "log start offset", defer)

    def _remove_oldest(self, count: int, now_ms: int, why: str, defer: bool) -> int:
        if count == 0:
            return 0
        try:
            if count == len(self.segments):
                self.roll(now_ms)
            doomed = list(self.segments)[:count]
            self._move_start(self.segments[count].base_offset)
            remove_segments(self._state, doomed, now_ms=now_ms, defer=defer)
        except LogDirectoryError as error:
            self.failure = error
            raise
        logger.info(
            "%s: %d segments deleted by %s, the log begins at %d",
            self.topic_partition,
            count,
            why,
            self.log_start_offset,
        )
        return count

    def prepare_swap(self, old: Sequence[Segment]) -> SegmentSwap:
        """For the cleaner: neighbouring segments that a rewritten one shall replace."""
        return SegmentSwap(self._state, old, self._names_changed)

    def _names_changed(self) -> None:
        self._changes.changed()  # the next flush syncs the folder

    def delete_due_files(self, now_ms: int) -> int:
        """Delete files that were renamed file.delete.delay.ms ago. Returns how many."""
        return self.segments.delete_due_files(now_ms)

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush and close cleanly; see `closing`. Blocks. Raises LogDirectoryError."""
        if not self.closed and self.failure is None:
            close_logs([self])
        self.release()

    def begin_last_flush(self) -> Flush:
        """Write what is pending for a clean stop. What has to be synced for it."""
        self._settle_roll()
        self.segments.renames.settle()
        self.leader_epochs.write_if_changed()  # as Kafka's, with an epoch that has no records
        take_snapshot(self._state)
        self.segments.active.close()
        flush = self.begin_flush()
        snapshots = self._state.snapshots.take_unsynced()
        if self.log_end_offset != self._opened_at or snapshots:
            # the next start takes them as they are
            paths = self.segments.active.file_paths() + snapshots
            flush.files += [LogFile(path) for path in paths]
            flush.files.append(DirectoryNames(os.fspath(self.directory)))
        return flush

    def release(self) -> None:
        """Let go of all descriptors; what is in flight keeps its own."""
        self.closed = True
        self.leader_epochs.end_writes()
        self.segments.renames.drop()
        if self._roll is not None:
            self._roll.drop()
        for segment in self.segments:
            if segment.file is not None:
                segment.open_files.forget(segment)
                segment.file = None

    def mark_for_deletion(self, unique: str) -> Path:
        """Rename the folder to `<topic>-<partition>.<unique>-delete` (unique: 32 hex digits).
        Returns the new path.
        """
        return self._rename(
            names.marked_directory_name(self.topic_partition, unique, names.DELETE_SUFFIX)
        )

    def mark_as_stray(self, unique: str) -> Path:
        """Rename the folder to `...-stray`: no metadata knows this partition; kept for the operator
        to look at.
        """
        return self._rename(
            names.marked_directory_name(self.topic_partition, unique, names.STRAY_SUFFIX)
        )

    def become_current(self, *, now_ms: int) -> PartitionLog:
        """Rename the folder from `...-future` to the partition's own name and open it there: the
        log to go on with. This one is closed. Syncs nothing; reads the folder anew, so it blocks
        shortly.
        """
        self._settle_roll()
        recovery_point = self.recovery_point
        take_snapshot(self._state)
        self.leader_epochs.write()
        self.segments.active.close()
        target = self._rename(str(self.topic_partition))
        log = PartitionLog.open(
            target,
            self.topic_partition,
            self.config,
            recovery_point=recovery_point,
            log_start_offset=self.log_start_offset,
            clean_shutdown=True,
            now_ms=now_ms,
            topic_id=self.topic_id,
            producer_id_expiration_ms=self.producers.expiration_ms,
            open_files=self.segments.open_files,
            random=self.segments.random,
        )
        log.recovery_point = min(recovery_point, log.log_end_offset)
        log._changes.changed(folder=True)
        log.first_unflushed_ms = self.first_unflushed_ms
        log.on_rolled = self.on_rolled
        return log

    def take_over(self, other: PartitionLog) -> None:
        """Be the other log from now on, which has the same records: its epochs, producers, start
        and high watermark.
        """
        if self.log_end_offset != other.log_end_offset:
            raise InvariantError(f"{self} cannot take over {other}")
        self.leader_epochs.replace(other.leader_epochs.entries)
        self.cleaner_offset = other.cleaner_offset
        self.producers = self._state.producers = other.producers
        self._state.last_snapshot_offset = -1
        self._move_start(other.log_start_offset)
        if other.high_watermark is not None:
            self.on_high_watermark(other.high_watermark)

    def _rename(self, name: str) -> Path:
        target = self.directory.with_name(name)
        self._settle_roll()  # a worker would find the folder gone
        self.segments.renames.settle()
        self.release()
        rename(self.directory, target)
        self.directory = target
        return target
