"""One partition's log: append, read, flush, truncate, retire. The files in its folder are changed
here, by the modules of `state` and by `cleaner`, on the loop or as jobs (`storage.disk_jobs`).

The state is in `state.log_state`, appends are in `appending`; this class adds the other operations.
Neighbours: segments are in `storage`, opening in `recovery`, checks of batches in `validator`,
rules for producers in `producer`; high watermark and waiting are in `replication`.

No method awaits; methods that block for long (open, flush, truncate) say so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from threading import Event
from typing import Final, Self

from kbroker.log.appending import AppendableLog
from kbroker.log.recovery.recovery import load
from kbroker.log.results import ReadInfo
from kbroker.log.state import retention, truncation
from kbroker.log.state.closing import close_logs, release, rename_folder
from kbroker.log.state.cut import Cut
from kbroker.log.state.flush import LogFlush
from kbroker.log.state.flushing import begin_flush, flush_now
from kbroker.log.state.rolling import roll_now
from kbroker.log.storage import names
from kbroker.log.storage.checkpoint import Checkpoint, read_topic_id_after_stop, write_topic_id
from kbroker.log.storage.damaged import DamagedLogError
from kbroker.log.storage.files import make_directory
from kbroker.log.storage.index import CorruptIndexError
from kbroker.log.storage.index_entries import AbortedTransaction
from kbroker.log.storage.open_files import OpenFiles, default_open_file_limit
from kbroker.log.storage.segment import Segment
from kbroker.log.time_search import (
    Search,
    TimestampOffset,
    find_now,
    search_max_timestamp,
    search_time,
)
from kbroker.model import TopicPartition, Uuid
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.views.log_config import LogConfig

logger = logging.getLogger(__name__)

DEFAULT_PRODUCER_ID_EXPIRATION_MS: Final = 86_400_000
NO_LIMIT: Final = (1 << 63) - 1


class PartitionLog(AppendableLog):
    """See the module. Create it with `open`; LogState describes the fields."""

    __slots__ = ()

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
    ) -> Self:
        """Open the folder, created if missing. Without a clean shutdown the log is recovered from
        recovery_point on.

        Blocks. topic_id: written to partition.metadata if that file is missing; the log's
        `topic_id` is that of the file. Raises LogDirectoryError, CheckpointError (a file of the
        folder is corrupt), DamagedLogError; RecoveryStopped once another thread has set `stop`.
        open_files: that of the node; None: the log has a limit of its own. random: for
        segment.jitter.ms; None: segments roll without jitter.
        """
        is_made = make_directory(directory)
        found_topic_id = read_topic_id_after_stop(directory, clean_shutdown=clean_shutdown)
        log = cls(
            directory,
            topic_partition,
            config,
            open_files=open_files or OpenFiles(default_open_file_limit()),
            random=random,
            producer_id_expiration_ms=producer_id_expiration_ms,
            clean_shutdown=clean_shutdown,
        )
        log.topic_id = found_topic_id
        if is_made or not clean_shutdown:
            # the previous process may not have synced the folder and small files
            is_unsynced = found_topic_id is not None and not clean_shutdown
            log.changes.changed(topic_id=is_unsynced, folder=True)
        if found_topic_id is None and topic_id is not None:
            log.set_topic_id(topic_id)
        try:
            load(
                log,
                recovery_point=recovery_point,
                log_start_offset=log_start_offset,
                clean_shutdown=clean_shutdown,
                is_new=is_made,
                now_ms=now_ms,
                stop=stop,
            )
        except KafkaError as error:
            raise DamagedLogError(error.message) from error
        if clean_shutdown:
            log.on_disk_end_offset = log.log_end_offset
        log.segments.active.roll_jitter_ms = log.segments.roll_jitter_ms(config)
        return log

    def share(self, open_files: OpenFiles, random: Random) -> None:
        """Use the resources that all logs of the node share from now on. No file of this log may be
        open.
        """
        self.segments.share(open_files, random)
        active = self.segments.active
        active.roll_jitter_ms = self.segments.roll_jitter_ms(self.config)
        active.forget_limits()

    def update_config(self, config: LogConfig) -> None:
        """Apply a changed topic configuration; the active segment follows it from the next
        roll on.
        """
        self.config = config
        self.segments.active.forget_limits()
        for segment in self.segments:
            segment.index_interval_bytes = config.index_interval_bytes

    def set_topic_id(self, topic_id: Uuid) -> None:
        """Write partition.metadata."""
        write_topic_id(self.directory, topic_id)
        self.topic_id = topic_id
        self.changes.changed(topic_id=True)

    def on_high_watermark(self, high_watermark: int) -> int | None:
        """Called when the high watermark moved: completed transactions below it become stable,
        segments become deletable. Returns the first unstable offset.
        """
        self.high_watermark = high_watermark
        producers = self.producers
        if not (producers.ongoing or producers.unreplicated):
            return None
        producers.on_high_watermark(high_watermark)
        return self.first_unstable_offset

    # -- rolling ----------------------------------------------------------------------------------

    def roll(self, now_ms: int, base_offset: int | None = None) -> Segment:
        """Close the active segment and create one at base_offset (not below the log end offset).
        Returns the new segment. Blocks.
        """
        return roll_now(self, now_ms, base_offset or 0)

    # -- reading ----------------------------------------------------------------------------------

    def read(
        self,
        fetch_offset: int,
        *,
        max_bytes: int,
        upper_offset: int = NO_LIMIT,
        min_one_batch: bool = True,
    ) -> ReadInfo:
        """Whole batches from the one that contains fetch_offset, all of them below upper_offset.

        max_bytes: exceeded only by the first batch, and only with min_one_batch. The batches are of
        one segment. Raises KafkaError(OFFSET_OUT_OF_RANGE; CORRUPT_MESSAGE for a damaged file),
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
                # a reader at the log end: the next append begins here
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
        """The aborted transactions that a reader of [fetch_offset, upper_offset) must
        filter out. Raises KafkaError(UNKNOWN_SERVER_ERROR), as Kafka does, if their index cannot be
        understood: without them the reader would take their records for committed.
        """
        try:
            return self.segments.aborted_transactions(fetch_offset, upper_offset)
        except CorruptIndexError as error:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error

    def search_time(self, timestamp_ms: int) -> Search:
        """Search for the first record of timestamp_ms or later."""
        return search_time(self.segments, timestamp_ms, lambda: self.log_start_offset)

    def search_max_timestamp(self) -> Search:
        """Search for the first record with the largest timestamp; None if no record has one."""
        return search_max_timestamp(self.segments)

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """As `search_time`, run to its end in this thread: reads and decompresses batches."""
        return find_now(self.search_time(timestamp_ms))

    def earliest(self) -> TimestampOffset:
        """The log start offset, with the leader epoch of the records there (-1 unknown)."""
        return TimestampOffset(-1, self.log_start_offset, self._epoch_at(self.log_start_offset))

    def segment_times(self) -> list[tuple[int, int]]:
        """(first offset, when its file was last written, in ms) of each segment."""
        return self.segments.modified_times(self.log_start_offset)

    def _epoch_at(self, offset: int) -> int:
        epoch = self.leader_epochs.epoch_for_offset(offset)
        return -1 if epoch is None else epoch

    # -- flushing ---------------------------------------------------------------------------------

    def begin_flush(self, up_to: int | None = None) -> LogFlush:
        """What has to be synced so that records below up_to (default: the log end offset) survive a
        crash of the machine. Syncs nothing: see `flushing`.
        """
        return begin_flush(self, self.log_end_offset if up_to is None else up_to)

    @property
    def is_flush_due(self) -> bool:
        """Whether a closed segment is not flushed, or flush.messages records are not."""
        recovery_point = self.recovery_point
        return (
            recovery_point < self.segments.active.base_offset
            or self.log_end_offset - recovery_point >= self.config.flush_messages
        )

    def flush(self, up_to: int | None = None) -> None:
        """Sync all records below up_to (default: the log end offset). Blocks. Raises
        LogDirectoryError, and KafkaError if the log is closed.
        """
        flush_now(self, self.log_end_offset if up_to is None else up_to)

    # -- truncating and retiring ------------------------------------------------------------------

    def truncate_to(self, offset: int, *, now_ms: int = 0) -> bool:
        """Truncate the log to offset; a batch that contains it is removed as a whole. Returns
        whether any records were removed. Blocks.
        """
        return truncation.truncate_to(self, offset, now_ms=now_ms)

    def truncate_fully(self, offset: int, *, now_ms: int = 0) -> None:
        """Delete all records; the empty log starts at offset. Blocks."""
        truncation.truncate_fully(self, offset, now_ms=now_ms)

    def begin_cut(
        self,
        offset: int,
        *,
        is_full: bool,
        now_ms: int,
        checkpoints: Callable[[], Iterable[Checkpoint]] = tuple,
        then: Callable[[], None],
        on_damage: Callable[[KafkaError], None] = lambda error: None,
    ) -> Cut | None:
        """`truncate_to`, or with is_full `truncate_fully`, prepared for a worker. The log's queue
        must be empty. checkpoints, then, on_damage: see `Cut`. Returns None, and calls none of
        them, if there is nothing to remove. Raises LogDirectoryError, or
        KafkaError(KAFKA_STORAGE_ERROR) for a damaged log, if the log failed before.
        """
        if self.failure is not None:
            raise self.failure
        if not is_full and offset >= self.log_end_offset:
            self.leader_epochs.truncate_from_end(offset)
            return None
        cut = Cut(
            self,
            offset,
            is_full=is_full,
            now_ms=now_ms,
            checkpoints=checkpoints,
            then=then,
            on_damage=on_damage,
        )
        self.jobs.add(cut)
        return cut

    def delete_records_before(self, offset: int) -> bool:
        """Move the log's start up to offset (DeleteRecords). Returns whether it moved.

        Raises KafkaError(OFFSET_OUT_OF_RANGE) beyond the high watermark.
        """
        return retention.delete_records_before(self, offset)

    def delete_old_segments(self, now_ms: int, *, defer: bool = False) -> int:
        """Remove segments that are due by retention. Returns how many. See `retention`."""
        return retention.delete_old_segments(self, now_ms, defer=defer)

    # -- closing -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush and close cleanly; see `closing`. Blocks. Raises LogDirectoryError."""
        if not self.closed and self.failure is None:
            close_logs([self])
        self.release()

    def release(self) -> None:
        """Close all file descriptors; reads in progress keep theirs."""
        release(self)

    def mark_for_deletion(self, unique: str) -> Path:
        """Rename the folder to `<topic>-<partition>.<unique>-delete` (unique: 32 hex digits).
        Returns the new path.
        """
        suffix = names.DELETE_SUFFIX
        return rename_folder(
            self, names.marked_directory_name(self.topic_partition, unique, suffix)
        )

    def mark_as_stray(self, unique: str) -> Path:
        """Rename the folder to `...-stray`: the partition is not in the metadata. The files are
        kept for the operator. Returns the new path.
        """
        suffix = names.STRAY_SUFFIX
        return rename_folder(
            self, names.marked_directory_name(self.topic_partition, unique, suffix)
        )
