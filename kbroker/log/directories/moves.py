"""Moves a log to another log directory of the node (AlterReplicaLogDirs).

The copy grows in a `-future` folder until it has all records, then it replaces the current log.
`replication.mover` copies the records. docs/adr/0009.
"""

from __future__ import annotations

from kbroker.log.directories.directory import LogDirectory
from kbroker.log.directories.log_directories import LogDirectories
from kbroker.log.partition_log import PartitionLog
from kbroker.log.state import retention
from kbroker.log.state.closing import rename_folder
from kbroker.log.state.producers import take_snapshot
from kbroker.log.state.rolling import settle_roll
from kbroker.log.storage import names
from kbroker.log.storage.files import LogDirectoryError, sync_directory
from kbroker.model import (
    InvariantError,
    TopicPartition,
    Uuid,
)
from kbroker.protocol.errors import ErrorCode, KafkaError


class LogMoves:
    """preferred: directories requested for partitions whose logs do not exist yet."""

    __slots__ = ("_directories", "preferred")

    def __init__(self, directories: LogDirectories) -> None:
        self._directories = directories
        self.preferred: dict[TopicPartition, LogDirectory] = {}

    def prefer(self, topic_partition: TopicPartition, path: str) -> None:
        """Remember the directory for a log that does not exist yet."""
        if topic_partition not in self._directories.logs:
            self.preferred[topic_partition] = self._directories.directory(path)

    def future(self, topic_partition: TopicPartition) -> PartitionLog | None:
        """The future log of the partition, None without a move."""
        directory = self._future_directory(topic_partition)
        return None if directory is None else directory.futures[topic_partition]

    def future_directory_id(self, topic_partition: TopicPartition) -> Uuid | None:
        """The directory of the future log, None without a move."""
        directory = self._future_directory(topic_partition)
        return None if directory is None else directory.directory_id

    def _future_directory(self, topic_partition: TopicPartition) -> LogDirectory | None:
        for directory in self._directories.all_directories:
            if topic_partition in directory.futures:
                return directory
        return None

    def future_partitions(self) -> list[TopicPartition]:
        """All partitions that have a future log."""
        return [key for directory in self._directories.all_directories for key in directory.futures]

    def create_future(self, topic_partition: TopicPartition, path: str) -> bool:
        """Begin moving a log to the directory with that path; cancels a move to another directory.

        Returns whether a move is in progress: not if the log is already in that directory. Raises
        KafkaError.
        """
        directory = self._directories.directory(path)
        current = self._directories.logs[topic_partition]
        moving_to = self._future_directory(topic_partition)
        if moving_to is directory:
            return True
        self.drop_future(topic_partition)
        if self._directories.hosting(topic_partition) is directory:
            return False
        name = names.marked_directory_name(
            topic_partition, self._directories.unique(), names.FUTURE_SUFFIX
        )
        try:
            log = self._directories.open_log(
                directory.path / name, topic_partition, current.topic_id, current.config
            )
            log.truncate_fully(current.log_start_offset, now_ms=self._directories.now_ms())
        except LogDirectoryError as error:
            self._directories.directory_failed(error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        log.on_rolled = self._directories.on_rolled
        directory.futures[topic_partition] = log
        return True

    def drop_future(self, topic_partition: TopicPartition) -> None:
        """Cancel a move; the future log is deleted."""
        directory = self._future_directory(topic_partition)
        if directory is not None:
            try:
                self._directories.schedule_delete(directory, directory.futures.pop(topic_partition))
            except LogDirectoryError as error:
                self._directories.fail(directory, error)

    def promote_future(self, topic_partition: TopicPartition) -> PartitionLog:
        """Replace the current log by the future one; the folder of the current log is renamed to
        `-delete`.

        Blocks for the sync of the current log's directory: after a power loss at any point there is
        one log, not two, and if that is the future log, the next start promotes it. Raises
        LogDirectoryError; a directory that failed is offline then.
        """
        directory = self._future_directory(topic_partition)
        if directory is None:
            raise InvariantError(f"{topic_partition} has no future log")
        future = directory.futures[topic_partition]
        current = self._directories.get(topic_partition)
        source = self._directories.hosting(topic_partition)
        if current is not None and source is not None:
            try:
                self._directories.schedule_delete(source, current)
                sync_directory(source.path)
            except LogDirectoryError as error:
                self._directories.fail(source, error)
                raise
            self._directories.remove(topic_partition)
        del directory.futures[topic_partition]
        try:
            log = _opened_under_its_name(future, now_ms=self._directories.now_ms())
            if current is not None:
                _take_over(log, current)
        except LogDirectoryError as error:
            self._directories.fail(directory, error)
            raise
        self._directories.add(directory, topic_partition, log)
        return log


def _opened_under_its_name(future: PartitionLog, *, now_ms: int) -> PartitionLog:
    """Rename the folder from `...-future` to the partition's own name and open it there.

    Returns the log that replaces the future one, which is closed. Syncs nothing; blocks briefly to
    load the folder. Raises LogDirectoryError.
    """
    settle_roll(future)
    recovery_point = future.recovery_point
    take_snapshot(future)
    future.leader_epochs.write()
    future.segments.active.close()
    log = PartitionLog.open(
        rename_folder(future, str(future.topic_partition)),
        future.topic_partition,
        future.config,
        recovery_point=recovery_point,
        log_start_offset=future.log_start_offset,
        clean_shutdown=True,
        now_ms=now_ms,
        topic_id=future.topic_id,
        producer_id_expiration_ms=future.producers.expiration_ms,
        open_files=future.segments.open_files,
        random=future.segments.random,
    )
    log.recovery_point = min(recovery_point, log.log_end_offset)
    log.changes.changed(folder=True)
    log.first_unflushed_ms = future.first_unflushed_ms
    log.on_rolled = future.on_rolled
    return log


def _take_over(log: PartitionLog, other: PartitionLog) -> None:
    """Give log the epochs, producers, log start offset and high watermark of other, which has the
    same records.
    """
    if log.log_end_offset != other.log_end_offset:
        raise InvariantError(f"{log} cannot take over {other}")
    log.leader_epochs.replace(other.leader_epochs.entries)
    log.cleaner_offset = other.cleaner_offset
    log.producers = other.producers
    log.last_snapshot_offset = -1
    retention.move_start(log, other.log_start_offset)
    if other.high_watermark is not None:
        log.on_high_watermark(other.high_watermark)
