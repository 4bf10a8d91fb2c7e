"""One directory of log.dirs: its lock, its logs, and whether its disk has failed."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage import names
from kbroker.log.storage.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointFile,
    read_offsets,
    write_offsets,
)
from kbroker.log.storage.damaged import DamagedLog
from kbroker.log.storage.directory_lock import DirectoryLock
from kbroker.log.storage.files import (
    LogDirectoryError,
    exists,
    is_directory,
    read_file,
    remove_tree,
    rename,
    sync_directory,
    unlink,
)
from kbroker.model import NO_BROKER_EPOCH, ZERO_UUID, TopicPartition, Uuid

logger = logging.getLogger(__name__)


class LogUsage(NamedTuple):
    """One log in a directory, as DescribeLogDirs shows it. lag: -1 unknown."""

    topic_partition: TopicPartition
    size_bytes: int
    lag: int
    is_future: bool


class LogDirectory:
    """was_clean: the last broker shut down cleanly; broker_epoch: the epoch of that broker.

    directory_id: from meta.properties, zero until the broker sets it. is_cordoned: gets no new
    partitions (cordoned.log.dirs). futures: logs that will replace one in another directory
    (AlterReplicaLogDirs). damaged: logs whose folders are in this directory and cannot be opened,
    or were found damaged while they were served.
    """

    __slots__ = (
        "_checkpoints",
        "broker_epoch",
        "damaged",
        "deleted_folders",
        "directory_id",
        "failure",
        "futures",
        "is_cordoned",
        "lock",
        "logs",
        "path",
        "was_clean",
    )

    def __init__(self, path: Path, *, is_cordoned: bool = False) -> None:
        self.path = path
        self.lock = DirectoryLock(path)
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.futures: dict[TopicPartition, PartitionLog] = {}
        self.damaged: dict[TopicPartition, DamagedLog] = {}
        self.was_clean = False
        self.broker_epoch = NO_BROKER_EPOCH
        self.directory_id: Uuid = ZERO_UUID
        self.is_cordoned = is_cordoned
        self.failure: LogDirectoryError | None = None
        self._checkpoints: dict[str, CheckpointFile] = {}
        self.deleted_folders: list[tuple[int, Path]] = []
        """(due time in ms, folder) of `-delete` folders."""

    def file(self, name: str) -> Path:
        return self.path / name

    def checkpoint(self, name: str, offsets: Mapping[TopicPartition, int]) -> Checkpoint:
        """The current content for the checkpoint of that name."""
        file = self._checkpoints.get(name)
        if file is None:
            file = self._checkpoints[name] = CheckpointFile(self.file(name))
        return file.prepare(offsets)

    def all_logs(self) -> Iterator[tuple[TopicPartition, PartitionLog]]:
        """Current and future logs. A partition is in a directory at most once."""
        yield from self.logs.items()
        yield from self.futures.items()

    @property
    def must_recover(self) -> bool:
        """Whether the next start recovers a log of this directory, even after a clean stop."""
        return not all(log.was_clean for log in self.damaged.values())

    def recovery_points(self) -> dict[TopicPartition, int]:
        """How far each log is flushed: recovery-point-offset-checkpoint.

        Lower than the end of an active segment that has records, because its indexes are not
        synced: a roll at the recovery point would make it the base of the next segment, and after a
        crash those indexes would not be rebuilt.
        """
        return {
            key: log.recovery_point
            if log.closed or log.recovery_point <= log.segments.active.base_offset
            else min(log.recovery_point, log.log_end_offset - 1)
            for key, log in self.all_logs()
        }

    def start_offsets(self) -> dict[TopicPartition, int]:
        """The start of each log that does not start at the base offset of its first segment:
        log-start-offset-checkpoint. While renames of retired segments are pending, segments before
        the first one are still on disk. While a worker cuts a log below its first segment, the
        start is lower: after a crash without any segment the log starts there, not at 0.
        """
        starts = {
            key: log.log_start_offset
            for key, log in self.all_logs()
            if log.log_start_offset != log.segments.first.base_offset or log.jobs.is_pending
        }
        for key, damaged in self.damaged.items():
            if damaged.log_start_offset:
                starts.setdefault(key, damaged.log_start_offset)
        return starts

    def write_damaged(self) -> None:
        """Record which logs were closed cleanly and cannot be opened. Blocks. Raises
        LogDirectoryError.
        """
        path = self.file(names.DAMAGED_LOGS)
        points = {key: log.recovery_point for key, log in self.damaged.items() if log.was_clean}
        if points:
            write_offsets(path, points)
        elif exists(path):
            unlink(path)
            sync_directory(self.path)

    def schedule_delete_damaged(self, key: TopicPartition, *, unique: str, due_ms: int) -> bool:
        """Rename the folder of a damaged log to `-delete`. Returns whether there is one. Blocks.
        Raises LogDirectoryError.
        """
        damaged = self.damaged.pop(key, None)
        if damaged is None:
            return False
        name = names.marked_directory_name(key, unique, names.DELETE_SUFFIX)
        folder = damaged.folder.with_name(name)
        rename(damaged.folder, folder)
        self.deleted_folders.append((due_ms, folder))
        self.write_damaged()
        return True

    def read_or_forget(self, name: str) -> dict[TopicPartition, int] | None:
        """Read a checkpoint whose loss costs only time: all logs are then recovered from offset 0,
        and high watermarks are determined again, as in Kafka. None if it is missing, empty or
        corrupt.
        """
        path = self.file(name)
        try:
            return read_offsets(path) if read_file(path) else None
        except CheckpointError as error:
            logger.warning("%s; starting without this checkpoint", error)
            return None

    def take_due(self, now_ms: int) -> list[str]:
        """Paths to delete now: `.deleted` files and `-delete` folders whose delay is over."""
        due: list[str] = []
        for _, log in self.all_logs():
            if log.segments.deleted_files:
                due += log.segments.take_due_files(now_ms)
        if self.deleted_folders:
            due += [
                os.fspath(folder) for due_ms, folder in self.deleted_folders if due_ms <= now_ms
            ]
            self.deleted_folders = [item for item in self.deleted_folders if item[0] > now_ms]
        return due


def remove_all(paths: Iterable[str]) -> None:
    """Delete files and folders; missing ones are ignored. Blocks.

    The paths may belong to several logs and disks, so all are tried. Raises the first
    LogDirectoryError afterwards.
    """
    failure: LogDirectoryError | None = None
    for path in paths:
        try:
            if is_directory(path):
                remove_tree(path)
            else:
                unlink(path)
        except LogDirectoryError as error:
            failure = failure or error
    if failure is not None:
        raise failure
