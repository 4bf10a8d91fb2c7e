"""One of log.dirs: its lock, what lies in it, and what became of its disk."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from kbroker.log import names
from kbroker.log.checkpoint import CheckpointError, read_offsets
from kbroker.log.files import DirectoryLock, LogDirectoryError, remove_tree, unlink
from kbroker.log.partition_log import PartitionLog
from kbroker.model import ZERO_UUID, StartupError, TopicPartition, Uuid

logger = logging.getLogger(__name__)

NO_BROKER_EPOCH = -1


class LogUsage(NamedTuple):
    """One log in a directory, as DescribeLogDirs shows it. lag: -1 unknown."""

    topic_partition: TopicPartition
    size_bytes: int
    lag: int
    is_future: bool


class LogDirectory:
    """was_clean: its last broker closed it properly; broker_epoch: that broker's.

    directory_id: of meta.properties, zero until the broker says it. is_cordoned: gets no new
    partitions (cordoned.log.dirs). futures: logs that shall take the place of one in another
    directory (AlterReplicaLogDirs).
    """

    __slots__ = (
        "broker_epoch",
        "directory_id",
        "doomed",
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
        self.was_clean = False
        self.broker_epoch = NO_BROKER_EPOCH
        self.directory_id: Uuid = ZERO_UUID
        self.is_cordoned = is_cordoned
        self.failure: LogDirectoryError | None = None
        self.doomed: list[tuple[int, Path]] = []
        """(when, folder) of `-delete` folders."""

    def file(self, name: str) -> Path:
        return self.path / name

    def all_logs(self) -> Iterator[tuple[TopicPartition, PartitionLog]]:
        """Current and future ones. A partition is in a directory at most once."""
        yield from self.logs.items()
        yield from self.futures.items()

    def recovery_points(self) -> dict[TopicPartition, int]:
        """How far each log is flushed: recovery-point-offset-checkpoint.

        Less than the end of an active segment that has records, whose indexes are not synced: a
        roll there would make it the begin of the next segment, and a crash leave them as they are.
        """
        return {
            key: log.recovery_point
            if log.closed or log.recovery_point <= log.segments.active.base_offset
            else min(log.recovery_point, log.log_end_offset - 1)
            for key, log in self.all_logs()
        }

    def start_offsets(self) -> dict[TopicPartition, int]:
        """Of each log that begins behind its first segment's base: log-start-offset-checkpoint."""
        return {
            key: log.log_start_offset
            for key, log in self.all_logs()
            if log.log_start_offset > log.segments.first.base_offset
        }

    def read_high_watermarks(self) -> dict[TopicPartition, int]:
        """Those of the last checkpoint. Raises StartupError for a corrupt file."""
        try:
            return read_offsets(self.file(names.HIGH_WATERMARKS))
        except CheckpointError as error:
            raise StartupError(
                f"{error}; remove the file to start from each log's start"
            ) from error

    def read_or_forget(self, name: str) -> dict[TopicPartition, int]:
        """A checkpoint that costs only time if it is lost: everything is recovered from offset 0
        then, as in Kafka.
        """
        try:
            return read_offsets(self.file(name))
        except CheckpointError as error:
            logger.warning("%s; started without it", error)
            return {}

    def take_due(self, now_ms: int) -> list[str]:
        """Paths to delete now: `.deleted` files and `-delete` folders whose delay is over."""
        due: list[str] = []
        for _, log in self.all_logs():
            if log.segments.doomed_files:
                due += log.segments.take_due_files(now_ms)
        if self.doomed:
            due += [os.fspath(folder) for due_ms, folder in self.doomed if due_ms <= now_ms]
            self.doomed = [item for item in self.doomed if item[0] > now_ms]
        return due


def remove_all(paths: Iterable[str]) -> None:
    """Delete files and folders; what is gone already is no error. Blocks. Raises
    LogDirectoryError.
    """
    for path in paths:
        if os.path.isdir(path):
            remove_tree(path)
        else:
            unlink(path)
