"""The log directories of a node and their logs, and which directories are offline.

A directory whose disk fails goes offline with its partitions; the others continue. `manager` adds
the operations on this state; `opening`, `moves` and `checkpoints` also work on it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from types import MappingProxyType

from kbroker.log.directories.directory import LogDirectory, LogUsage
from kbroker.log.partition_log import PartitionLog
from kbroker.log.state.log_state import LogState
from kbroker.log.storage.checkpoint import read_clean_shutdown
from kbroker.log.storage.damaged import DamagedLog
from kbroker.log.storage.files import (
    LogDirectoryError,
    disk_space,
    make_directory,
)
from kbroker.log.storage.open_files import OpenFiles, default_open_file_limit
from kbroker.model import (
    NO_BROKER_EPOCH,
    StartupError,
    TopicPartition,
    Uuid,
)
from kbroker.ports import ThreadPools
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.log_config import LogConfig

logger = logging.getLogger(__name__)

SHORTAGE_LOG_INTERVAL_MS = 1000
"""The minimum time between two log lines about a lack of file descriptors."""


class LogDirectories:
    """on_offline: called with a directory and its partitions when its disk failed. on_damaged:
    called with a partition whose log alone was taken offline. on_rolled: see LogState.
    on_cleaned_cut: called with a log that was truncated below its cleaner_offset. open_files,
    threads: those of the node, shared by its logs. offline_partitions: those whose directory is
    offline, and those whose log cannot be opened or is damaged.
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
        self.config = config
        self.open_files = open_files or OpenFiles(default_open_file_limit())
        self.threads = threads
        self.now_ms = now_ms
        self.random = random
        self.on_offline: Callable[[Path, list[TopicPartition]], None] | None = None
        self.on_damaged: Callable[[TopicPartition], None] | None = None
        self.on_rolled: Callable[[PartitionLog], None] | None = None
        self.on_cleaned_cut: Callable[[LogState], None] | None = None
        cordoned = _cordoned(config)
        self.all_directories: Sequence[LogDirectory] = [
            LogDirectory(Path(path).absolute(), is_cordoned=path in cordoned)
            for path in dict.fromkeys(config.log_dirs)
        ]
        """In the order of log.dirs, offline ones too."""
        self.offline_partitions: set[TopicPartition] = set()
        self.registered_epoch: int | None = None
        """The epoch of this broker, for a clean-shutdown marker that is written before all logs are
        loaded; None before the broker is registered.
        """
        self.expiration_ms = config.get_int("producer.id.expiration.ms")
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._directory_of: dict[TopicPartition, LogDirectory] = {}
        self._shortage_logged_ms = -SHORTAGE_LOG_INTERVAL_MS

    def lock(self) -> None:
        """Create the directories and take their locks.

        Raises StartupError if another broker holds a lock, or if no directory can be used.
        """
        for directory in self.all_directories:
            try:
                make_directory(directory.path)
                directory.lock.acquire()
            except LogDirectoryError as error:
                self.fail(directory, error)
        self.require_one_online()

    def cordon(self, config: BrokerConfig) -> None:
        """Apply cordoned.log.dirs: which directories get no new partitions."""
        cordoned = _cordoned(config)
        for path, directory in zip(
            dict.fromkeys(config.log_dirs), self.all_directories, strict=True
        ):
            directory.is_cordoned = path in cordoned

    def set_directory_ids(self, ids: Mapping[str, Uuid]) -> None:
        """The directory ids of meta.properties, by path as configured."""
        by_path = {Path(path).absolute(): directory_id for path, directory_id in ids.items()}
        for directory in self.all_directories:
            directory.directory_id = by_path.get(directory.path, directory.directory_id)

    def read_broker_epochs(self) -> None:
        """Read the broker epochs of the last clean shutdown, for `previous_broker_epoch`: a broker
        registers before its logs are loaded, and loading removes the markers.
        """
        for directory in self.online():
            try:
                epoch = read_clean_shutdown(directory.path)
            except LogDirectoryError as error:
                self.fail(directory, error)
                continue
            directory.broker_epoch = NO_BROKER_EPOCH if epoch is None else epoch

    # -- logs -------------------------------------------------------------------------------------

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]:
        """Every log of an online directory."""
        return MappingProxyType(self._logs)

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        return self._logs.get(topic_partition)

    def open_log(
        self,
        folder: Path,
        topic_partition: TopicPartition,
        topic_id: Uuid | None,
        config: LogConfig,
    ) -> PartitionLog:
        """Open a new log that shares the resources of the node. Raises LogDirectoryError,
        CheckpointError.
        """
        return PartitionLog.open(
            folder,
            topic_partition,
            config,
            now_ms=self.now_ms(),
            topic_id=topic_id,
            producer_id_expiration_ms=self.expiration_ms,
            open_files=self.open_files,
            random=self.random,
        )

    def add(
        self, directory: LogDirectory, topic_partition: TopicPartition, log: PartitionLog
    ) -> None:
        """Add a log to its directory."""
        log.on_rolled = self.on_rolled
        directory.logs[topic_partition] = log
        self._directory_of[topic_partition] = directory
        self._logs[topic_partition] = log

    def remove(self, topic_partition: TopicPartition) -> tuple[LogDirectory, PartitionLog] | None:
        """Remove a log. Returns it with its directory, None if it is not hosted."""
        log = self._logs.pop(topic_partition, None)
        if log is None:
            return None
        directory = self._directory_of.pop(topic_partition)
        del directory.logs[topic_partition]
        return directory, log

    def schedule_delete(self, directory: LogDirectory, log: PartitionLog) -> None:
        """Rename a log's folder to `-delete`; its files are deleted after file.delete.delay.ms.
        Raises LogDirectoryError.
        """
        folder = log.mark_for_deletion(self.unique())
        directory.deleted_folders.append((self.now_ms() + log.config.file_delete_delay_ms, folder))

    def unique(self) -> str:
        """32 hex digits for the name of a marked folder."""
        return self.random.randbytes(16).hex()

    def damaged(self, key: TopicPartition) -> DamagedLog | None:
        """The partition's damaged log; None if there is none or if it was a future log."""
        found = [each.damaged[key] for each in self.online() if key in each.damaged]
        return next((log for log in found if not log.is_future), None)

    def is_damaged(self, topic_partition: TopicPartition) -> bool:
        """Whether the log is in an online directory and offline because it is damaged."""
        return topic_partition in self.offline_partitions and any(
            topic_partition in directory.damaged for directory in self.online()
        )

    # -- directories ------------------------------------------------------------------------------

    def online(self) -> list[LogDirectory]:
        return [directory for directory in self.all_directories if directory.failure is None]

    @property
    def directories(self) -> list[Path]:
        """The online directories, in the order of log.dirs."""
        return [directory.path for directory in self.online()]

    def directory(self, path: str) -> LogDirectory:
        """The directory of log.dirs with that path. Raises KafkaError(LOG_DIR_NOT_FOUND), or
        KafkaError(KAFKA_STORAGE_ERROR) if it is offline.
        """
        for directory in self.all_directories:
            if os.fspath(directory.path) == path:
                if directory.failure is not None:
                    raise KafkaError(
                        ErrorCode.KAFKA_STORAGE_ERROR, f"log directory {path} is offline"
                    )
                return directory
        raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is none of log.dirs")

    def hosting(self, topic_partition: TopicPartition) -> LogDirectory | None:
        """The log directory that holds a partition."""
        return self._directory_of.get(topic_partition)

    def directory_of(self, topic_partition: TopicPartition) -> Path | None:
        """The path of the log directory that holds a partition."""
        directory = self._directory_of.get(topic_partition)
        return None if directory is None else directory.path

    def directory_id_of(self, topic_partition: TopicPartition) -> Uuid | None:
        """The id of the log directory that holds a partition."""
        directory = self._directory_of.get(topic_partition)
        return None if directory is None else directory.directory_id

    def directory_ids(self, *, cordoned: bool = False) -> list[Uuid]:
        """The ids of the online directories, in the order of log.dirs. cordoned: only those that
        get no new partitions.
        """
        return [
            directory.directory_id
            for directory in self.online()
            if directory.is_cordoned or not cordoned
        ]

    def usage(self, directory: LogDirectory) -> tuple[int, int, list[LogUsage]]:
        """(total bytes, usable bytes, logs) of the directory. Raises LogDirectoryError."""
        if directory.failure is not None:
            raise directory.failure
        total, usable = disk_space(directory.path)
        logs = []
        for key, log in directory.logs.items():
            lag = max((log.high_watermark or 0) - log.log_end_offset, 0)
            logs.append(LogUsage(key, log.size_bytes, lag, False))
        for key, log in directory.futures.items():
            current = self._logs.get(key)
            lag = -1 if current is None else current.log_end_offset - log.log_end_offset
            logs.append(LogUsage(key, log.size_bytes, lag, True))
        return total, usable, logs

    @property
    def previous_broker_epoch(self) -> int:
        """The epoch of the broker that last shut all directories down cleanly; -1 if a directory
        was not shut down cleanly or the epochs differ.
        """
        epochs = {
            directory.broker_epoch
            for directory in self.all_directories
            if directory.failure is None
        }
        return epochs.pop() if len(epochs) == 1 else NO_BROKER_EPOCH

    @property
    def was_clean(self) -> bool:
        """Whether all directories were closed cleanly before this start."""
        return all(directory.was_clean for directory in self.all_directories)

    # -- faults -----------------------------------------------------------------------------------

    @property
    def offline_directories(self) -> dict[Path, LogDirectoryError]:
        """Directories whose disk failed, with the fault."""
        return {
            directory.path: directory.failure
            for directory in self.all_directories
            if directory.failure is not None
        }

    @property
    def offline_paths(self) -> list[str]:
        """The offline directories, as configured."""
        offline = self.offline_directories
        return [path for path in self.config.log_dirs if Path(path).absolute() in offline]

    def directory_failed(self, error: LogDirectoryError) -> list[TopicPartition]:
        """Take the directory of the file that failed offline. Returns its partitions. If the
        process only ran out of file descriptors, no directory is taken offline.
        """
        if error.is_shortage:
            now_ms = self.now_ms()
            if now_ms - self._shortage_logged_ms >= SHORTAGE_LOG_INTERVAL_MS:
                self._shortage_logged_ms = now_ms
                logger.error("%s; raise the limit on open files (ulimit -n)", error)
            return []
        for directory in self.all_directories:
            if Path(error.path).is_relative_to(directory.path):
                return self.fail(directory, error)
        return []

    def fail(self, directory: LogDirectory, error: LogDirectoryError) -> list[TopicPartition]:
        if directory.failure is not None:
            return []
        directory.failure = error
        partitions = sorted(directory.logs)
        if partitions or self.online():  # otherwise the start fails with the same message
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
        for future in directory.futures.values():
            future.failure = future.failure or error
            future.release()
        self.offline_partitions.update(partitions)
        directory.logs.clear()
        directory.futures.clear()
        directory.deleted_folders.clear()
        if self.on_offline is not None:
            self.on_offline(directory.path, partitions)
        return partitions

    def take_damaged_offline(self, log: PartitionLog, error: KafkaError) -> None:
        """A log was found damaged while it was served: take it offline, and nothing else. The next
        start recovers it, since a clean stop writes no recovery point for it. error: names the file
        and the damage. Does nothing for a log that is no longer hosted.
        """
        key = log.topic_partition
        if self._logs.get(key) is not log:
            return
        directory = self._directory_of[key]
        self.remove(key)
        log.release()
        directory.damaged[key] = DamagedLog(
            log.directory, log.recovery_point, log.log_start_offset, was_clean=False
        )
        self.offline_partitions.add(key)
        logger.error(
            "%s is offline: %s; restart the broker: it truncates the log before the damage and "
            "fetches the later records from the leader",
            key,
            error.message,
        )
        if self.on_damaged is not None:
            self.on_damaged(key)

    def require_one_online(self) -> None:
        if not self.online():
            faults = "; ".join(str(error) for error in self.offline_directories.values())
            raise StartupError(f"none of log.dirs can be used: {faults}")


def _cordoned(config: BrokerConfig) -> Sequence[str]:
    """cordoned.log.dirs; `*` stands for all."""
    cordoned = config.get_list("cordoned.log.dirs")
    return config.log_dirs if "*" in cordoned else cordoned
