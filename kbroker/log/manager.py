"""All logs of a broker: its log directories, their locks, checkpoints and markers; making,
retiring, deleting logs.

A directory whose disk fails goes offline with its partitions; the others go on.
`__cluster_metadata-0` is the quorum's: it opens that log by itself. Methods that block for long say
so. The shell (replication/manager, server/broker) calls the periodic ones: checkpoints, retention,
flushing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Final

from kbroker.log import names
from kbroker.log.checkpoint import (
    CheckpointError,
    read_clean_shutdown,
    read_offsets,
    write_clean_shutdown,
    write_offsets,
)
from kbroker.log.files import (
    DirectoryLock,
    LogDirectoryError,
    create_file,
    list_directory,
    make_directory,
    remove_tree,
    unlink,
)
from kbroker.log.partition_log import PartitionLog
from kbroker.model import StartupError, TopicPartition, Uuid
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.log_config import LogConfig

logger = logging.getLogger(__name__)

NO_BROKER_EPOCH: Final = -1
_CHECKPOINTS: Final = (
    names.RECOVERY_POINTS,
    names.LOG_START_OFFSETS,
    names.HIGH_WATERMARKS,
    names.CLEANER_OFFSETS,
)

TopicConfigs = Callable[[str], LogConfig]
IsKnown = Callable[[TopicPartition, Uuid | None], bool]


class LogDirectory:
    """One of log.dirs. was_clean: its last broker closed it properly; broker_epoch: its."""

    __slots__ = ("broker_epoch", "doomed", "failure", "lock", "logs", "path", "was_clean")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = DirectoryLock(path)
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.was_clean = False
        self.broker_epoch = NO_BROKER_EPOCH
        self.failure: LogDirectoryError | None = None
        self.doomed: list[tuple[int, Path]] = []
        """(when, folder) of `-delete` folders."""

    def file(self, name: str) -> Path:
        return self.path / name


class LogManager:
    """Owns every partition log but the metadata log's.

    on_offline: called with a directory and its partitions when its disk failed. on_rolled: given to
    every log, see PartitionLog.
    """

    def __init__(
        self, config: BrokerConfig, *, now_ms: Callable[[], int], random: Random | None = None
    ) -> None:
        self.config = config
        self.default_log_config = LogConfig.from_configs(config, {})
        self.on_offline: Callable[[Path, list[TopicPartition]], None] | None = None
        self.on_rolled: Callable[[PartitionLog], None] | None = None
        self._now_ms = now_ms
        self._random = random or Random()
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._directory_of: dict[TopicPartition, LogDirectory] = {}
        self._directories = [LogDirectory(Path(path).absolute()) for path in config.log_dirs]
        self._expiration_ms = config.get_int("producer.id.expiration.ms")
        self.offline_partitions: set[TopicPartition] = set()

    # -- start ------------------------------------------------------------------------------------

    def lock(self) -> None:
        """Make the directories and take their locks.

        Raises StartupError if another broker has one, or if none can be used.
        """
        for directory in self._directories:
            try:
                make_directory(directory.path)
                directory.lock.acquire()
            except LogDirectoryError as error:
                self._fail(directory, error)
        self._require_one_online()

    def load(
        self, topic_config: TopicConfigs | None = None, is_known: IsKnown | None = None
    ) -> None:
        """Open every log in every directory. Blocks; recovers what was not closed cleanly.

        topic_config: settings of a topic, the broker's defaults without it. is_known: whether the
        metadata has this partition; an unknown one is set aside as `-stray`. Raises StartupError.
        """
        for directory in self._online():
            try:
                self._load_directory(directory, topic_config or self._default_config, is_known)
            except LogDirectoryError as error:
                self._fail(directory, error)
            except CheckpointError as error:
                raise StartupError(
                    f"{error}; mend the file, or remove it to do without it"
                ) from error
        self._require_one_online()

    def _default_config(self, topic: str) -> LogConfig:
        del topic
        return self.default_log_config

    def _load_directory(
        self, directory: LogDirectory, topic_config: TopicConfigs, is_known: IsKnown | None
    ) -> None:
        epoch = read_clean_shutdown(directory.path)
        directory.was_clean = epoch is not None
        directory.broker_epoch = NO_BROKER_EPOCH if epoch is None else epoch
        unlink(directory.file(names.CLEAN_SHUTDOWN))
        recovery_points = _read_or_forget(directory.file(names.RECOVERY_POINTS))
        start_offsets = _read_or_forget(directory.file(names.LOG_START_OFFSETS))
        now_ms = self._now_ms()
        for name, _, is_directory in list_directory(directory.path):
            parsed = names.parse_directory_name(name) if is_directory else None
            if parsed is None or parsed[0].topic == names.CLUSTER_METADATA:
                continue
            topic_partition, suffix = parsed
            folder = directory.path / name
            if suffix == names.DELETE_SUFFIX:
                delay_ms = topic_config(topic_partition.topic).file_delete_delay_ms
                directory.doomed.append((now_ms + delay_ms, folder))
            elif not suffix:
                self._load_log(
                    directory,
                    folder,
                    topic_partition,
                    topic_config(topic_partition.topic),
                    recovery_point=recovery_points.get(topic_partition, 0),
                    log_start_offset=start_offsets.get(topic_partition, 0),
                    is_known=is_known,
                )
        for name in _CHECKPOINTS:
            path = directory.file(name)
            if not path.exists():
                create_file(str(path))

    def _load_log(
        self,
        directory: LogDirectory,
        folder: Path,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        recovery_point: int,
        log_start_offset: int,
        is_known: IsKnown | None,
    ) -> None:
        if topic_partition in self._logs:
            raise StartupError(
                f"{topic_partition} is in two log directories "
                f"({self._logs[topic_partition].directory} and {folder}): "
                "remove the older one"
            )
        log = PartitionLog.open(
            folder,
            topic_partition,
            config,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            clean_shutdown=directory.was_clean,
            now_ms=self._now_ms(),
            producer_id_expiration_ms=self._expiration_ms,
        )
        if is_known is not None and not is_known(topic_partition, log.topic_id):
            target = log.mark_as_stray(self._unique())
            logger.warning(
                "%s is unknown to the metadata, set aside as %s", topic_partition, target.name
            )
            return
        self._add(directory, topic_partition, log)

    def _add(
        self, directory: LogDirectory, topic_partition: TopicPartition, log: PartitionLog
    ) -> None:
        log.on_rolled = self.on_rolled
        directory.logs[topic_partition] = log
        self._directory_of[topic_partition] = directory
        self._logs[topic_partition] = log

    def _unique(self) -> str:
        return self._random.randbytes(16).hex()

    # -- what there is ----------------------------------------------------------------------------

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]:
        """Every log of an online directory."""
        return MappingProxyType(self._logs)

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        return self._logs.get(topic_partition)

    def get_or_create(
        self, topic_partition: TopicPartition, topic_id: Uuid | None, config: LogConfig
    ) -> PartitionLog:
        """The log of this partition, made if there is none, in the directory that has the fewest.

        Raises KafkaError(INCONSISTENT_TOPIC_ID) if the folder belongs to another topic of that
        name, KafkaError(KAFKA_STORAGE_ERROR) if its directory is offline, or all are.
        """
        log = self._logs.get(topic_partition)
        if log is None:
            return self._create(topic_partition, topic_id, config)
        if log.topic_id is None and topic_id is not None:
            log.set_topic_id(topic_id)
        if topic_id is not None and log.topic_id != topic_id:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{log.directory} belongs to another topic of the name {topic_partition.topic}",
            )
        log.update_config(config)
        return log

    def _create(
        self, topic_partition: TopicPartition, topic_id: Uuid | None, config: LogConfig
    ) -> PartitionLog:
        online = self._online()
        if topic_partition in self.offline_partitions or not online:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory of {topic_partition} is offline"
            )
        directory = min(online, key=lambda candidate: len(candidate.logs))
        try:
            log = PartitionLog.open(
                directory.path / str(topic_partition),
                topic_partition,
                config,
                now_ms=self._now_ms(),
                topic_id=topic_id,
                producer_id_expiration_ms=self._expiration_ms,
            )
        except LogDirectoryError as error:
            self._fail(directory, error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        except CheckpointError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self._add(directory, topic_partition, log)
        return log

    def delete(self, topic_partition: TopicPartition) -> bool:
        """Rename the partition's folder to `-delete`; it goes after file.delete.delay.ms. Returns
        whether it was there.
        """
        log = self._logs.pop(topic_partition, None)
        self.offline_partitions.discard(topic_partition)
        if log is None:
            return False
        directory = self._directory_of.pop(topic_partition)
        del directory.logs[topic_partition]
        try:
            folder = log.mark_for_deletion(self._unique())
        except LogDirectoryError as error:
            self._fail(directory, error)
            return True
        directory.doomed.append((self._now_ms() + log.config.file_delete_delay_ms, folder))
        return True

    @property
    def previous_broker_epoch(self) -> int:
        """The epoch of the broker that last closed all directories cleanly, -1 if not all were or
        they differ.
        """
        epochs = {
            directory.broker_epoch for directory in self._directories if directory.failure is None
        }
        return epochs.pop() if len(epochs) == 1 else NO_BROKER_EPOCH

    @property
    def was_clean(self) -> bool:
        """Whether all directories were closed cleanly before this start."""
        return all(directory.was_clean for directory in self._directories)

    def directory_of(self, topic_partition: TopicPartition) -> Path | None:
        """The log directory that holds a partition."""
        directory = self._directory_of.get(topic_partition)
        return None if directory is None else directory.path

    @property
    def directories(self) -> list[Path]:
        """The online ones, in the order of log.dirs."""
        return [directory.path for directory in self._online()]

    # -- faults -----------------------------------------------------------------------------------

    @property
    def offline_directories(self) -> dict[Path, LogDirectoryError]:
        """Directories whose disk failed, and how."""
        return {
            directory.path: directory.failure
            for directory in self._directories
            if directory.failure is not None
        }

    def directory_failed(self, error: LogDirectoryError) -> list[TopicPartition]:
        """Take the directory of the file that failed offline. Returns the partitions that went with
        it.
        """
        for directory in self._directories:
            if Path(error.path).is_relative_to(directory.path):
                return self._fail(directory, error)
        return []

    def _fail(self, directory: LogDirectory, error: LogDirectoryError) -> list[TopicPartition]:
        if directory.failure is not None:
            return []
        directory.failure = error
        partitions = sorted(directory.logs)
        logger.error(
            "log directory %s is offline with %d partitions: %s",
            directory.path,
            len(partitions),
            error,
        )
        for topic_partition in partitions:
            log = self._logs.pop(topic_partition)
            log.failure = log.failure or error
            log.release()
            del self._directory_of[topic_partition]
        self.offline_partitions.update(partitions)
        directory.logs.clear()
        directory.doomed.clear()
        if self.on_offline is not None:
            self.on_offline(directory.path, partitions)
        return partitions

    def _online(self) -> list[LogDirectory]:
        return [directory for directory in self._directories if directory.failure is None]

    def _require_one_online(self) -> None:
        if not self._online():
            faults = "; ".join(str(error) for error in self.offline_directories.values())
            raise StartupError(f"none of log.dirs can be used: {faults}")

    # -- checkpoints ------------------------------------------------------------------------------

    def checkpoint_recovery_points(self) -> None:
        """Write how far each log is flushed. Syncs a small file per directory."""
        for directory in self._online():
            points = {key: log.recovery_point for key, log in directory.logs.items()}
            self._write(directory, names.RECOVERY_POINTS, points)

    def checkpoint_start_offsets(self) -> None:
        """Write the start of each log that begins behind its first segment's base."""
        for directory in self._online():
            starts = {
                key: log.log_start_offset
                for key, log in directory.logs.items()
                if log.log_start_offset > log.segments.first.base_offset
            }
            self._write(directory, names.LOG_START_OFFSETS, starts)

    def read_high_watermarks(self) -> dict[TopicPartition, int]:
        """The high watermarks at the last checkpoint. Raises StartupError for a corrupt file."""
        watermarks: dict[TopicPartition, int] = {}
        for directory in self._online():
            try:
                watermarks |= read_offsets(directory.file(names.HIGH_WATERMARKS))
            except CheckpointError as error:
                raise StartupError(
                    f"{error}; remove the file to start from each log's start"
                ) from error
            except LogDirectoryError as error:
                self._fail(directory, error)
        return watermarks

    def write_high_watermarks(self, watermarks: Mapping[TopicPartition, int]) -> None:
        """Write the high watermarks, each into the directory that has its partition."""
        for directory in self._online():
            mine = {key: watermarks[key] for key in directory.logs if key in watermarks}
            self._write(directory, names.HIGH_WATERMARKS, mine)

    def _write(
        self, directory: LogDirectory, name: str, offsets: Mapping[TopicPartition, int]
    ) -> None:
        try:
            write_offsets(directory.file(name), offsets)
        except LogDirectoryError as error:
            self._fail(directory, error)

    # -- periodic work ----------------------------------------------------------------------------

    def run_retention(self, now_ms: int) -> int:
        """Retire old segments, forget expired producers, delete what is due. Returns how many
        segments were retired.
        """
        retired = 0
        for log in list(self._logs.values()):
            try:
                log.producers.expire(now_ms)
                if log.config.delete or log.log_start_offset > log.segments.first.base_offset:
                    retired += log.delete_old_segments(now_ms)
            except LogDirectoryError as error:
                self.directory_failed(error)
        self.delete_due_files(now_ms)
        return retired

    def delete_due_files(self, now_ms: int) -> int:
        """Delete files and folders whose delay is over. Returns how many folders went."""
        count = 0
        for directory in self._online():
            try:
                for log in directory.logs.values():
                    log.delete_due_files(now_ms)
                due = [folder for due_ms, folder in directory.doomed if due_ms <= now_ms]
                for folder in due:
                    remove_tree(folder)
                    count += 1
                directory.doomed = [item for item in directory.doomed if item[0] > now_ms]
            except LogDirectoryError as error:
                self._fail(directory, error)
        return count

    def logs_to_flush(self, now_ms: int) -> list[PartitionLog]:
        """Logs with a closed segment not yet synced, or unsynced for flush.ms: flush them off the
        loop.
        """
        return [
            log
            for log in self._logs.values()
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

        clean=False only lets go, as a crash would.
        """
        for directory in self._online():
            if clean:
                self._close_directory(directory, broker_epoch)
            else:
                _release(directory.logs.values())
        for directory in self._directories:
            directory.lock.release()
        self._logs.clear()

    def _close_directory(self, directory: LogDirectory, broker_epoch: int) -> None:
        try:
            for log in directory.logs.values():
                log.close()
        except LogDirectoryError as error:
            self._fail(directory, error)
            return
        points = {key: log.recovery_point for key, log in directory.logs.items()}
        starts = {
            key: log.log_start_offset
            for key, log in directory.logs.items()
            if log.log_start_offset > log.segments.first.base_offset
        }
        try:
            write_offsets(directory.file(names.RECOVERY_POINTS), points)
            write_offsets(directory.file(names.LOG_START_OFFSETS), starts)
            write_clean_shutdown(directory.path, broker_epoch)
        except LogDirectoryError as error:
            self._fail(directory, error)


def _read_or_forget(path: Path) -> dict[TopicPartition, int]:
    """A checkpoint that costs only time if it is lost: everything is recovered from offset 0 then,
    as in Kafka.
    """
    try:
        return read_offsets(path)
    except CheckpointError as error:
        logger.warning("%s; started without it", error)
        return {}


def _release(logs: Iterable[PartitionLog]) -> None:
    for log in logs:
        log.release()
