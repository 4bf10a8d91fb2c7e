"""The complete state of one partition's log.

`PartitionLog` is this class with the operations that other rooms call. Recovery fills the state in;
the functions of this room (`truncation`, `retention`, `flushing`, `rolling`, `closing`) and the
cleaner read and change it, on the loop thread. `check` states the invariants between the fields.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Event
from typing import Final, Self

from kbroker.log.producer.producer_state import ProducerStateManager
from kbroker.log.producer.snapshots import ProducerSnapshots
from kbroker.log.state.flush import FolderChanges, LogFlush
from kbroker.log.state.leader_epochs import LeaderEpochCache
from kbroker.log.state.roll import Roll
from kbroker.log.storage.disk_jobs import DiskJobs
from kbroker.log.storage.files import LogDirectoryError
from kbroker.log.storage.open_files import OpenFiles
from kbroker.log.storage.segments import Segments
from kbroker.model import InvariantError, TopicPartition, Uuid
from kbroker.protocol.errors import KafkaError
from kbroker.settings.views.log_config import LogConfig

NOT_ON_DISK: Final = -1

WORKER_OPEN_FILES: Final = 4
"""How many segments a worker keeps open at a time."""


class RecoveryStopped(Exception):
    """The start was told to stop. The files are in a state that a crash could also have left."""


class LogState:
    """log_start_offset is inclusive, log_end_offset exclusive. recovery_point: everything before it
    is on disk. high_watermark: set by replication; None while no replication is attached, in which
    case log_end_offset is used. cleaner_offset: the log is compacted up to this offset; None if it
    never was.

    failure: the fault after which nothing more is written to the log. A LogDirectoryError takes its
    directory offline, KafkaError(KAFKA_STORAGE_ERROR) is damage that concerns this log alone.
    closed: the log has released its files. frozen: a worker truncates the log (`cut`), and the loop
    neither reads nor writes its files meanwhile; never set for a log that this broker leads.
    truncation_count: since the log was opened; a cleaning round ends when it rises.
    first_unflushed_ms: when the oldest unflushed record was appended.

    changes: file names and small files of the folder that are not synced. flushes: those in
    progress. jobs: file changes that have not been run or not been settled. roll_under_way: the
    roll among them. on_disk_end_offset: log_end_offset while no file has changed since a clean
    shutdown, NOT_ON_DISK otherwise. last_snapshot_offset: that of the newest producer snapshot that
    was written or loaded. on_rolled: called after a roll, so that the closed segment is flushed off
    the loop. stop: set when the start is to stop; None once the log is loaded.
    """

    __slots__ = (
        "changes",
        "cleaner_offset",
        "closed",
        "config",
        "directory",
        "failure",
        "first_unflushed_ms",
        "flushes",
        "frozen",
        "high_watermark",
        "jobs",
        "last_snapshot_offset",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "on_disk_end_offset",
        "on_rolled",
        "producers",
        "recovery_point",
        "roll_under_way",
        "segments",
        "snapshots",
        "stop",
        "topic_id",
        "topic_partition",
        "truncation_count",
    )

    on_rolled: Callable[[Self], None] | None

    def __init__(
        self,
        directory: Path,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        open_files: OpenFiles,
        random: Random | None,
        producer_id_expiration_ms: int,
        clean_shutdown: bool = True,
    ) -> None:
        """The state of a folder whose segments are not loaded yet (`recovery`). Reads the leader
        epochs. Raises CheckpointError, LogDirectoryError.
        """
        self.directory = directory
        self.topic_partition = topic_partition
        self.config = config
        self.topic_id: Uuid | None = None
        self.jobs = DiskJobs(os.fspath(directory))
        self.leader_epochs = LeaderEpochCache(
            directory, clean_shutdown=clean_shutdown, jobs=self.jobs
        )
        self.segments = Segments(os.fspath(directory), open_files, random, jobs=self.jobs)
        self.snapshots = ProducerSnapshots(directory)
        self.producers = ProducerStateManager(
            topic_partition, expiration_ms=producer_id_expiration_ms
        )
        self.last_snapshot_offset = 0
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.recovery_point = 0
        self.high_watermark: int | None = None
        self.cleaner_offset: int | None = None
        self.truncation_count = 0
        self.first_unflushed_ms: int | None = None
        self.failure: LogDirectoryError | KafkaError | None = None
        self.closed = False
        self.frozen = False
        self.changes = FolderChanges()
        self.flushes: tuple[LogFlush, ...] = ()
        self.roll_under_way: Roll | None = None
        self.on_disk_end_offset = NOT_ON_DISK
        self.on_rolled = None
        self.stop: Event | None = None

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}({self.topic_partition}, {self.log_start_offset}..{self.log_end_offset})"

    @property
    def size_bytes(self) -> int:
        """Total size of all segments' log files."""
        return self.segments.size_bytes

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest transaction that is open or whose marker is not replicated
        yet; None if there is none.
        """
        producers = self.producers
        if not (producers.ongoing or producers.unreplicated):
            return None
        first = producers.first_unstable_offset
        return first if first is None or first >= self.log_start_offset else self.log_start_offset

    @property
    def deletable_offset(self) -> int:
        """Records below this offset may be deleted: the high watermark, limited to the log's
        offsets.
        """
        if self.high_watermark is None:
            return self.log_end_offset
        return min(self.high_watermark, self.log_end_offset)

    def thaw(self) -> None:
        """Complete in this thread what a worker is doing to a frozen log. Blocks. Raises
        LogDirectoryError; a log that is damaged has a `failure` afterwards.
        """
        if self.frozen:
            self.jobs.settle()

    def copy_for_worker(self) -> LogState:
        """A state of the same files, for a worker to change. Only the worker uses the segments
        until `take_over_worker`.
        """
        copy = object.__new__(LogState)
        for name in LogState.__slots__:
            setattr(copy, name, getattr(self, name))
        copy.frozen = False
        copy.jobs = DiskJobs(os.fspath(self.directory))
        copy.leader_epochs = self.leader_epochs.copy(copy.jobs)
        copy.segments = self.segments.lend(copy.jobs, OpenFiles(WORKER_OPEN_FILES))
        copy.snapshots = ProducerSnapshots(self.directory, self.snapshots.offsets)
        copy.producers = ProducerStateManager(
            self.topic_partition, expiration_ms=self.producers.expiration_ms
        )
        copy.changes = FolderChanges()
        copy.flushes = ()
        copy.on_rolled = None
        return copy

    def take_over_worker(self, copy: LogState) -> None:
        """Take over the copy that a worker has changed."""
        segments = copy.segments
        segments.take_back(self.segments, self.jobs)
        self.segments = segments
        self.leader_epochs = copy.leader_epochs
        self.leader_epochs.attach(self.jobs)
        self.snapshots = copy.snapshots
        self.producers = copy.producers
        self.last_snapshot_offset = copy.last_snapshot_offset
        self.log_start_offset = copy.log_start_offset
        self.log_end_offset = end = copy.log_end_offset
        self.recovery_point = min(self.recovery_point, end)
        self.cleaner_offset = copy.cleaner_offset
        if self.high_watermark is not None:
            self.high_watermark = min(self.high_watermark, end)
        for segment in segments:
            segment.index_interval_bytes = self.config.index_interval_bytes
        segments.active.roll_jitter_ms = segments.roll_jitter_ms(self.config)
        segments.active.forget_limits()
        self.frozen = False

    def check_stop(self) -> None:
        """Raise RecoveryStopped if the start is to stop."""
        if self.stop is not None and self.stop.is_set():
            raise RecoveryStopped

    def check(self) -> None:
        """Raise InvariantError unless the fields are consistent. For a loaded log, between two
        operations.
        """
        segments = self.segments
        rules = (
            (
                segments.first.base_offset <= self.log_start_offset,
                "the start is before its segment",
            ),
            (self.log_start_offset <= self.log_end_offset, "the start is behind the end"),
            (segments.active.base_offset <= self.log_end_offset, "the end is before its segment"),
            (self.recovery_point <= self.log_end_offset, "the recovery point is behind the end"),
            ((self.cleaner_offset or 0) <= self.log_end_offset, "more is compacted than there is"),
            (
                self.producers.map_end_offset == self.log_end_offset,
                "the producers' state does not end with the log",
            ),
            (
                self.last_snapshot_offset <= self.log_end_offset,
                "a producer snapshot is behind the end",
            ),
        )
        for holds, what in rules:
            if not holds:
                raise InvariantError(f"{self}: {what}")
