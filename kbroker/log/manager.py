"""All logs of a node except the metadata log: opening, creating, deleting and truncating them,
periodic work, and the clean stop.

`directories.log_directories` has the set of logs and directories. `__cluster_metadata-0` belongs to
the quorum, which opens that log itself. Methods that block for long say so. Loops in `replication`
call the periodic ones: checkpoints, retention, flushing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from random import Random

from kbroker.log.directories.checkpoints import OffsetCheckpoints
from kbroker.log.directories.directory import LogDirectory, remove_all
from kbroker.log.directories.loading import (
    TopicConfigs,
)
from kbroker.log.directories.log_directories import LogDirectories
from kbroker.log.directories.moves import LogMoves
from kbroker.log.directories.opening import AssignedDirectory, IsKnown, LogOpening
from kbroker.log.partition_log import PartitionLog
from kbroker.log.state.closing import close_logs
from kbroker.log.state.cut import Cut
from kbroker.log.storage import names
from kbroker.log.storage.checkpoint import (
    Checkpoint,
    CheckpointError,
    write_clean_shutdown,
    write_offsets,
)
from kbroker.log.storage.faults import FaultReports
from kbroker.log.storage.files import (
    LogDirectoryError,
)
from kbroker.log.storage.open_files import OpenFiles
from kbroker.model import (
    NO_BROKER_EPOCH,
    InvariantError,
    TopicPartition,
    Uuid,
    is_reserved_uuid,
    uuid_to_string,
)
from kbroker.ports import ThreadPools
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.log_config import LogConfig

logger = logging.getLogger(__name__)


class LogManager(LogDirectories):
    """moves: logs that are being moved to another directory. checkpoints: offset checkpoints.
    faults: unexpected errors of periodic work.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        now_ms: Callable[[], int],
        random: Random,
        threads: ThreadPools,
        open_files: OpenFiles | None = None,
    ) -> None:
        super().__init__(
            config, now_ms=now_ms, random=random, threads=threads, open_files=open_files
        )
        self.default_log_config = LogConfig.from_configs(config, {})
        self.faults = FaultReports()
        self.moves = LogMoves(self)
        self.checkpoints = OffsetCheckpoints(self)
        self._opening = LogOpening(self, self.moves, self.checkpoints)

    def load(
        self,
        topic_config: TopicConfigs | None = None,
        is_known: IsKnown | None = None,
        assigned: AssignedDirectory | None = None,
    ) -> None:
        """Open every log in every directory; see `LogOpening.load`. topic_config: settings of a
        topic, the broker's defaults without it.
        """
        self._opening.load(topic_config or (lambda _: self.default_log_config), is_known, assigned)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply the settings that may change while the node runs. Topic settings are applied to
        each log separately.
        """
        self.config = config
        self.default_log_config = LogConfig.from_configs(config, {})
        self.expiration_ms = config.get_int("producer.id.expiration.ms")
        for log in list(self._logs.values()):
            log.producers.expiration_ms = self.expiration_ms
        self.cordon(config)

    def stop_loading(self) -> None:
        """End a `load` that runs in another thread, which raises RecoveryStopped soon. The
        directory locks may be released only after `load` has returned: until then it writes.
        """
        self._opening.stop()

    # -- creating and deleting --------------------------------------------------------------------

    def get_or_create(
        self,
        topic_partition: TopicPartition,
        topic_id: Uuid | None,
        config: LogConfig,
        *,
        directory_id: Uuid | None = None,
        is_new: bool = True,
    ) -> PartitionLog:
        """The log of this partition, created if there is none: in the directory with that id if the
        metadata names one, else in the directory that AlterReplicaLogDirs requested, else in the
        directory with the fewest logs.

        is_new: the partition was created just now. An older partition that is in no online
        directory may be in an offline one, and is not created again. Raises
        KafkaError(INCONSISTENT_TOPIC_ID) if the folder belongs to another topic of that name,
        KafkaError(KAFKA_STORAGE_ERROR) if its directory is offline, or all are.
        """
        log = self._logs.get(topic_partition)
        if log is None:
            return self._create(topic_partition, topic_id, config, directory_id, is_new)
        if log.topic_id is None and topic_id is not None:
            log.set_topic_id(topic_id)
        if topic_id is not None and log.topic_id != topic_id:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{log.directory} belongs to another topic of the name {topic_partition.topic}",
            )
        log.update_config(config)
        return log

    def is_moving(self, topic_partition: TopicPartition) -> bool:
        """Whether the log is being moved to another directory."""
        return self.moves.future(topic_partition) is not None

    def _create(
        self,
        topic_partition: TopicPartition,
        topic_id: Uuid | None,
        config: LogConfig,
        directory_id: Uuid | None,
        is_new: bool,
    ) -> PartitionLog:
        directory = self._directory_for(topic_partition, directory_id, is_new)
        try:
            folder = directory.path / str(topic_partition)
            log = self.open_log(folder, topic_partition, topic_id, config)
        except LogDirectoryError as error:
            self.directory_failed(error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        except CheckpointError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self.add(directory, topic_partition, log)
        return log

    def _directory_for(
        self, topic_partition: TopicPartition, directory_id: Uuid | None, is_new: bool
    ) -> LogDirectory:
        """The log directory for a new log. Raises KafkaError(KAFKA_STORAGE_ERROR)."""
        online = self.online()
        named = directory_id is not None and not is_reserved_uuid(directory_id)
        if topic_partition in self.offline_partitions or not online:
            candidates: list[LogDirectory] = []
        elif preferred := self.moves.preferred.get(topic_partition):
            candidates = [preferred] if preferred.failure is None else []
        elif named:
            candidates = [each for each in online if each.directory_id == directory_id]
        elif not is_new and len(online) < len(self.all_directories):
            candidates = []
        else:
            candidates = [each for each in online if not each.is_cordoned] or online
        if not candidates:
            which = f" {uuid_to_string(directory_id)}" if named and directory_id else ""
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{topic_partition} is damaged"
                if self.is_damaged(topic_partition)
                else f"the log directory{which} of {topic_partition} is offline",
            )
        return min(candidates, key=lambda each: len(each.logs) + len(each.futures))

    def delete(self, topic_partition: TopicPartition) -> bool:
        """Rename the partition's folder to `-delete`; it is deleted after file.delete.delay.ms.
        Returns whether the log existed.
        """
        self.moves.drop_future(topic_partition)
        self.moves.preferred.pop(topic_partition, None)
        removed = self.remove(topic_partition)
        self.offline_partitions.discard(topic_partition)
        self.faults.forget(topic_partition)
        if removed is None:
            return any(self._delete_damaged(each, topic_partition) for each in self.online())
        directory, log = removed
        try:
            self.schedule_delete(directory, log)
        except LogDirectoryError as error:
            self.fail(directory, error)
        return True

    def _delete_damaged(self, directory: LogDirectory, key: TopicPartition) -> bool:
        due_ms = self.now_ms() + self.default_log_config.file_delete_delay_ms
        try:
            return directory.schedule_delete_damaged(key, unique=self.unique(), due_ms=due_ms)
        except LogDirectoryError as error:
            self.fail(directory, error)
            return True

    def truncate(self, log: PartitionLog, offset: int) -> bool:
        """Truncate a future log to offset (exclusive). Returns whether any records were removed.
        Blocks; a hosted log is truncated by `begin_cut`.

        If flushed records are removed, the recovery point on disk is lowered: otherwise, after a
        crash of the machine, new batches below the old recovery point would not be checked. The log
        start offset is lowered likewise, or the next start would treat new records as deleted.
        Raises LogDirectoryError.
        """
        recovery_point, log_start_offset = log.recovery_point, log.log_start_offset
        is_cut = log.truncate_to(offset, now_ms=self.now_ms())
        if is_cut and recovery_point >= log.log_end_offset:
            self.checkpoints.write_recovery_points()
        if log.log_start_offset < log_start_offset:
            self.checkpoints.write_start_offsets()
        return is_cut

    def begin_cut(
        self,
        topic_partition: TopicPartition,
        offset: int,
        *,
        is_full: bool,
        then: Callable[[], None],
    ) -> Cut | None:
        """`PartitionLog.begin_cut` for a hosted log: a worker first writes the checkpoints of the
        recovery point and the log start offset, if they are lowered. then: called once the log is
        truncated. A log that is found damaged is taken offline. None if there is nothing to remove.
        Raises LogDirectoryError.
        """
        log, directory = self._logs.get(topic_partition), self.hosting(topic_partition)
        if log is None or directory is None:
            raise InvariantError(f"{topic_partition} has no log")
        recovery_point, log_start_offset = log.recovery_point, log.log_start_offset
        cleaner_offset = log.cleaner_offset

        def checkpoints() -> Iterator[Checkpoint]:
            if log.recovery_point < recovery_point:
                yield directory.checkpoint(names.RECOVERY_POINTS, directory.recovery_points())
            if log.log_start_offset < log_start_offset:
                yield directory.checkpoint(names.LOG_START_OFFSETS, directory.start_offsets())

        def cut_done() -> None:
            if cleaner_offset != log.cleaner_offset and self.on_cleaned_cut is not None:
                self.on_cleaned_cut(log)
            then()

        return log.begin_cut(
            offset,
            is_full=is_full,
            now_ms=self.now_ms(),
            checkpoints=checkpoints,
            then=cut_done,
            on_damage=partial(self.take_damaged_offline, log),
        )

    # -- periodic work ----------------------------------------------------------------------------

    def retire(self, now_ms: int, *, defer: bool = False) -> Iterator[tuple[PartitionLog, int]]:
        """Expire producers and retire old segments; yields each log and how many of its segments
        were retired.
        """
        for key, log in list(self._logs.items()):
            if self._logs.get(key) is not log or log.frozen:
                continue  # deleted meanwhile, or a worker is truncating it
            retired = 0
            try:
                log.producers.expire(now_ms)
                if log.config.delete or log.log_start_offset > log.segments.first.base_offset:
                    retired = log.delete_old_segments(now_ms, defer=defer)
            except LogDirectoryError as error:
                self.directory_failed(error)
            except InvariantError:
                raise
            except Exception as error:  # noqa: BLE001 - one log's fault; continue with the others
                self.faults.report(key, "retention", error)
            yield log, retired

    def take_due_files(self, now_ms: int) -> list[str]:
        """Files and folders whose deletion delay has passed: the caller deletes them with
        `remove_all`, off the loop.
        """
        return [path for directory in self.online() for path in directory.take_due(now_ms)]

    def delete_due_files(self, now_ms: int) -> int:
        """Delete the due files and folders in this thread. Blocks. Returns how many were
        deleted.
        """
        due = self.take_due_files(now_ms)
        try:
            remove_all(due)
        except LogDirectoryError as error:
            self.directory_failed(error)
        return len(due)

    def logs_to_flush(self, now_ms: int) -> list[PartitionLog]:
        """Logs with a closed segment that is not synced, or with records unsynced for flush.ms: the
        caller flushes them off the loop.
        """
        return [
            log
            for directory in self.online()
            for _, log in directory.all_logs()
            if log.is_flush_due
            or (
                log.first_unflushed_ms is not None
                and now_ms - log.first_unflushed_ms >= log.config.flush_ms
            )
        ]

    # -- stop -------------------------------------------------------------------------------------

    def close(self, clean: bool = True, broker_epoch: int = NO_BROKER_EPOCH) -> None:
        """Close all logs, write the checkpoints and, last, the clean-shutdown marker; release the
        locks. Blocks.

        With clean=False, or if not all logs were loaded, only files and locks are released, as a
        crash would.
        """
        clean = clean and self._opening.is_complete
        for directory in self.online():
            if clean:
                self._close_directory(directory, broker_epoch)
            else:
                for _, log in directory.all_logs():
                    log.release()
        for directory in self.all_directories:
            directory.lock.release()
        self._logs.clear()

    def _close_directory(self, directory: LogDirectory, broker_epoch: int) -> None:
        try:
            count = self.config.get_int("num.recovery.threads.per.data.dir")
            with self.threads("closing", count) as pool:
                close_logs(
                    [log for _, log in directory.all_logs()],  # a damaged one leaves the directory
                    pool,
                    open_files=self.open_files.limit,
                )
        except LogDirectoryError as error:
            self.fail(directory, error)
            return
        try:
            write_offsets(directory.file(names.RECOVERY_POINTS), directory.recovery_points())
            write_offsets(directory.file(names.LOG_START_OFFSETS), directory.start_offsets())
            # the next start recovers a log: the controller must not rely on its records
            epoch = NO_BROKER_EPOCH if directory.must_recover else broker_epoch
            write_clean_shutdown(directory.path, epoch)
        except LogDirectoryError as error:
            self.fail(directory, error)
