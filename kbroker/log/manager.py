"""All logs of a broker: its log directories, their locks, checkpoints and markers; making,
retiring, deleting logs.

A directory whose disk fails goes offline with its partitions; the others go on.
`__cluster_metadata-0` is the quorum's: it opens that log by itself. Methods that block for long say
so. The shell (replication/manager, node/node) calls the periodic ones: checkpoints, retention,
flushing.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from threading import Event
from types import MappingProxyType

from kbroker.log.directories.directory import NO_BROKER_EPOCH, LogDirectory, LogUsage, remove_all
from kbroker.log.directories.loading import (
    LoadJob,
    Opened,
    TopicConfigs,
    find_logs,
    make_checkpoints,
    open_logs,
)
from kbroker.log.partition_log import PartitionLog
from kbroker.log.state.closing import close_logs
from kbroker.log.state.log_state import RecoveryStopped
from kbroker.log.storage import names
from kbroker.log.storage.checkpoint import (
    Checkpoint,
    CheckpointError,
    write_clean_shutdown,
    write_offsets,
)
from kbroker.log.storage.damaged import DamagedLog, DamagedLogError, damage_told_by
from kbroker.log.storage.faults import FaultReports
from kbroker.log.storage.files import (
    LogDirectoryError,
    disk_space,
    make_directory,
    rename,
)
from kbroker.log.storage.open_files import OpenFiles, default_open_file_limit
from kbroker.model import (
    RESERVED_UUIDS,
    InvariantError,
    StartupError,
    TopicPartition,
    Uuid,
    uuid_to_string,
)
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.log_config import LogConfig

logger = logging.getLogger(__name__)

IsKnown = Callable[[TopicPartition, Uuid | None], bool]
AssignedDirectory = Callable[[TopicPartition], Uuid | None]
"""The directory id that the metadata gives this broker's replica of a partition."""


SHORTAGE_LOG_INTERVAL_MS = 1000
"""Between two lines about a lack of descriptors."""


class LogManager:
    """Owns every partition log but the metadata log's.

    on_offline: called with a directory and its partitions when its disk failed. on_rolled: given to
    every log, see PartitionLog. on_cleaned_cut: called with a log that was cut below its
    cleaner_offset. open_files: of the node, which its logs share.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        now_ms: Callable[[], int],
        random: Random,
        open_files: OpenFiles | None = None,
    ) -> None:
        self.config = config
        self.open_files = open_files or OpenFiles(default_open_file_limit())
        self.default_log_config = LogConfig.from_configs(config, {})
        self.on_offline: Callable[[Path, list[TopicPartition]], None] | None = None
        self.on_rolled: Callable[[PartitionLog], None] | None = None
        self.on_cleaned_cut: Callable[[PartitionLog], None] | None = None
        self.faults = FaultReports()
        self._now_ms = now_ms
        self._random = random
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._directory_of: dict[TopicPartition, LogDirectory] = {}
        cordoned = _cordoned(config)
        self._directories = [
            LogDirectory(Path(path).absolute(), is_cordoned=path in cordoned)
            for path in dict.fromkeys(config.log_dirs)
        ]
        self._preferred: dict[TopicPartition, LogDirectory] = {}
        self._expiration_ms = config.get_int("producer.id.expiration.ms")
        self.offline_partitions: set[TopicPartition] = set()
        self._opened: list[PartitionLog] = []  # while they are loaded
        self._stop_loading = Event()
        self._is_loaded = False
        self._shortage_logged_ms = -SHORTAGE_LOG_INTERVAL_MS

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

    def set_directory_ids(self, ids: Mapping[str, Uuid]) -> None:
        """The directory ids of meta.properties, by path as configured."""
        by_path = {Path(path).absolute(): directory_id for path, directory_id in ids.items()}
        for directory in self._directories:
            directory.directory_id = by_path.get(directory.path, directory.directory_id)

    def load(
        self,
        topic_config: TopicConfigs | None = None,
        is_known: IsKnown | None = None,
        assigned: AssignedDirectory | None = None,
    ) -> None:
        """Open every log in every directory. Blocks; recovers what was not closed cleanly.

        topic_config: settings of a topic, the broker's defaults without it. is_known: whether the
        metadata has this partition; an unknown one is set aside as `-stray`. assigned: settles what
        a crash in the middle of a move between directories left. Raises StartupError, or
        RecoveryStopped after `stop_loading`; what had been closed cleanly counts as that again
        then.
        """
        try:
            self._load(topic_config, is_known, assigned)
        except (StartupError, RecoveryStopped):
            self._unload()
            raise
        self._opened.clear()
        self._is_loaded = True

    def stop_loading(self) -> None:
        """End a `load` that runs in another thread, which raises RecoveryStopped soon. Only when it
        has ended may the locks be released: until then it writes.
        """
        self._stop_loading.set()

    def _unload(self) -> None:
        """Nothing was appended: the markers of a clean stop that were there come back. All other
        logs are recovered again by the next start.
        """
        clean = {directory.path: directory for directory in self._online() if directory.was_clean}
        for log in self._opened:
            if log.directory.parent in clean:
                with suppress(LogDirectoryError):
                    log.close()
            else:
                log.release()
        for path, directory in clean.items():
            with suppress(LogDirectoryError):
                write_clean_shutdown(path, directory.broker_epoch)

    def _load(
        self,
        topic_config: TopicConfigs | None,
        is_known: IsKnown | None,
        assigned: AssignedDirectory | None,
    ) -> None:
        def default(_: str) -> LogConfig:
            return self.default_log_config

        jobs: list[LoadJob] = []
        for directory in self._online():
            try:
                jobs += [
                    job._replace(stop=self._stop_loading)
                    for job in find_logs(directory, topic_config or default, self._now_ms())
                ]
            except LogDirectoryError as error:
                self._fail(directory, error)
            except CheckpointError as error:
                fault = OSError(errno.EINVAL, f"{error}; mend it")
                self._fail(directory, LogDirectoryError(directory.path, "read", fault))
        threads = self.config.get_int("num.recovery.threads.per.data.dir") * len(self._online())
        with closing(open_logs(jobs, self._open_one, threads=threads)) as opened_logs:
            for job, opened in opened_logs:
                try:
                    if job.directory.failure is None:
                        self._take_in(job, opened, is_known)
                except LogDirectoryError as error:
                    self._fail(job.directory, error)
        for directory in self._online():
            try:
                make_checkpoints(directory)
                directory.write_damaged()
            except LogDirectoryError as error:
                self._fail(directory, error)
        self._settle_futures(assigned or (lambda topic_partition: None))
        # before anything is appended: see LogDirectory.recovery_points
        self.checkpoint_recovery_points()
        self._require_one_online()

    def _settle_futures(self, assigned: AssignedDirectory) -> None:
        """A future log whose current one is gone takes its place if the metadata says that it is
        there; one beside its current log is none.
        """
        for directory in self._online():
            for key in list(directory.futures):
                current = self._directory_of.get(key)
                try:
                    if current is directory:
                        self._doom(directory, directory.futures.pop(key))
                    elif current is not None or self._damaged(key) is not None:
                        continue
                    elif assigned(key) == directory.directory_id:
                        self.promote_future(key)
                        logger.warning("%s: its move to %s is finished", key, directory.path)
                except LogDirectoryError as error:
                    self._fail(directory, error)
        for directory in self._online():
            # a damaged copy is nothing to a log that is there; without one it is the log
            self.offline_partitions |= directory.damaged.keys() - self._logs.keys()

    def _open_one(self, job: LoadJob) -> PartitionLog:
        if self._stop_loading.is_set():
            raise RecoveryStopped
        log = job.open(self._now_ms(), self._expiration_ms)
        self._opened.append(log)
        return log

    def _take_in(self, job: LoadJob, opened: Opened, is_known: IsKnown | None) -> None:
        """Keep account of an opened log, or of one that cannot be opened."""
        directory, topic_partition = job.directory, job.topic_partition
        if not job.is_future:
            self._require_one_folder(job)
        try:
            log = opened()
        except (DamagedLogError, CheckpointError, LogDirectoryError) as error:
            why = damage_told_by(error, directory.path)
            if why is None:
                raise
            self._set_damaged(job, why, is_known)
            return
        except (StartupError, RecoveryStopped):
            raise
        except Exception as error:  # one log must not keep all others from serving
            logger.error("%s: opening it failed unexpectedly", topic_partition, exc_info=error)
            self._set_damaged(job, repr(error), is_known)
            return
        log.share(self.open_files, self._random)
        if is_known is not None and not is_known(topic_partition, log.topic_id):
            target = log.mark_as_stray(self._unique())
            logger.warning(
                "%s is unknown to the metadata with the topic id that its %s names, "
                "set aside as %s",
                topic_partition,
                names.PARTITION_METADATA,
                target.name,
            )
            return
        if job.is_future:
            log.on_rolled = self.on_rolled
            directory.futures[topic_partition] = log
        else:
            self._add(directory, topic_partition, log)

    def _require_one_folder(self, job: LoadJob) -> None:
        key = job.topic_partition
        damaged = self._damaged(key)
        other = None if damaged is None else damaged.folder
        if key in self._logs:
            other = self._logs[key].directory
        if other is not None:
            raise StartupError(
                f"{key} is in two log directories ({other} and {job.folder}): remove the older one"
            )

    def _damaged(self, key: TopicPartition) -> DamagedLog | None:
        found = [each.damaged[key] for each in self._online() if key in each.damaged]
        return next((log for log in found if not log.is_future), None)

    def _set_damaged(self, job: LoadJob, why: str, is_known: IsKnown | None) -> None:
        """The log is offline, all others go on."""
        key = job.topic_partition
        if is_known is not None and not is_known(key, None):
            target = names.marked_directory_name(key, self._unique(), names.STRAY_SUFFIX)
            rename(job.folder, job.folder.with_name(target))
            logger.warning("%s is unknown to the metadata, set aside as %s", key, target)
            return
        job.directory.damaged[key] = DamagedLog(
            job.folder, job.recovery_point, job.log_start_offset, job.was_clean
        )
        logger.error("%s is offline: %s", key, why)

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
        self,
        topic_partition: TopicPartition,
        topic_id: Uuid | None,
        config: LogConfig,
        *,
        directory_id: Uuid | None = None,
        is_new: bool = True,
    ) -> PartitionLog:
        """The log of this partition. If there is none it is made: in the directory with that id
        if the metadata names one, else in the one that AlterReplicaLogDirs asked for, else in the
        one that has the fewest.

        is_new: the partition was created just now; an older one that is in no online directory may
        be in one that is offline, and is not made anew. Raises KafkaError(INCONSISTENT_TOPIC_ID) if
        the folder belongs to another topic of that name, KafkaError(KAFKA_STORAGE_ERROR) if its
        directory is offline, or all are.
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
            log = PartitionLog.open(
                directory.path / str(topic_partition),
                topic_partition,
                config,
                now_ms=self._now_ms(),
                topic_id=topic_id,
                producer_id_expiration_ms=self._expiration_ms,
                open_files=self.open_files,
                random=self._random,
            )
        except LogDirectoryError as error:
            self.directory_failed(error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        except CheckpointError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self._add(directory, topic_partition, log)
        return log

    def _directory_for(
        self, topic_partition: TopicPartition, directory_id: Uuid | None, is_new: bool
    ) -> LogDirectory:
        """Where a new log goes. Raises KafkaError(KAFKA_STORAGE_ERROR)."""
        online = self._online()
        named = directory_id is not None and directory_id not in RESERVED_UUIDS
        if topic_partition in self.offline_partitions or not online:
            candidates: list[LogDirectory] = []
        elif preferred := self._preferred.get(topic_partition):
            candidates = [preferred] if preferred.failure is None else []
        elif named:
            candidates = [each for each in online if each.directory_id == directory_id]
        elif not is_new and len(online) < len(self._directories):
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

    # -- moving a log to another directory --------------------------------------------------------

    def prefer(self, topic_partition: TopicPartition, path: str) -> None:
        """Remember where a log that is not here yet shall be made."""
        if topic_partition not in self._logs:
            self._preferred[topic_partition] = self.directory(path)

    def directory(self, path: str) -> LogDirectory:
        """The directory of log.dirs with that path. Raises KafkaError(LOG_DIR_NOT_FOUND), or
        KafkaError(KAFKA_STORAGE_ERROR) if it is offline.
        """
        for directory in self._directories:
            if os.fspath(directory.path) == path:
                if directory.failure is not None:
                    raise KafkaError(
                        ErrorCode.KAFKA_STORAGE_ERROR, f"log directory {path} is offline"
                    )
                return directory
        raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is none of log.dirs")

    def future(self, topic_partition: TopicPartition) -> PartitionLog | None:
        """The log that shall take the place of the current one."""
        directory = self._future_directory(topic_partition)
        return None if directory is None else directory.futures[topic_partition]

    def future_directory_id(self, topic_partition: TopicPartition) -> Uuid | None:
        """Where that log is."""
        directory = self._future_directory(topic_partition)
        return None if directory is None else directory.directory_id

    def _future_directory(self, topic_partition: TopicPartition) -> LogDirectory | None:
        for directory in self._directories:
            if topic_partition in directory.futures:
                return directory
        return None

    def future_partitions(self) -> list[TopicPartition]:
        """All partitions that have a future log."""
        return [key for directory in self._directories for key in directory.futures]

    def create_future(self, topic_partition: TopicPartition, path: str) -> bool:
        """Begin a move of a log to the directory with that path; a move to another one ends.

        Returns whether there is a move now: not if the log is there already. Raises KafkaError.
        """
        directory = self.directory(path)
        current = self._logs[topic_partition]
        moving_to = self._future_directory(topic_partition)
        if moving_to is directory:
            return True
        self.drop_future(topic_partition)
        if self._directory_of[topic_partition] is directory:
            return False
        name = names.marked_directory_name(topic_partition, self._unique(), names.FUTURE_SUFFIX)
        try:
            log = PartitionLog.open(
                directory.path / name,
                topic_partition,
                current.config,
                now_ms=self._now_ms(),
                topic_id=current.topic_id,
                producer_id_expiration_ms=self._expiration_ms,
                open_files=self.open_files,
                random=self._random,
            )
            log.truncate_fully(current.log_start_offset, now_ms=self._now_ms())
        except LogDirectoryError as error:
            self.directory_failed(error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        log.on_rolled = self.on_rolled
        directory.futures[topic_partition] = log
        return True

    def drop_future(self, topic_partition: TopicPartition) -> None:
        """End a move: what was copied is deleted."""
        directory = self._future_directory(topic_partition)
        if directory is not None:
            try:
                self._doom(directory, directory.futures.pop(topic_partition))
            except LogDirectoryError as error:
                self._fail(directory, error)

    def promote_future(self, topic_partition: TopicPartition) -> PartitionLog:
        """The future log takes the place of the current one, whose folder becomes `-delete`.

        Blocks shortly. If the system crashes in between there is only the future log, which the
        next start promotes. Raises LogDirectoryError; a directory that failed is offline then.
        """
        directory = self._future_directory(topic_partition)
        if directory is None:
            raise InvariantError(f"{topic_partition} has no future log")
        future = directory.futures[topic_partition]
        current = self._logs.get(topic_partition)
        if current is not None:
            source = self._directory_of[topic_partition]
            try:
                self._doom(source, current)
            except LogDirectoryError as error:
                self._fail(source, error)
                raise
            del self._logs[topic_partition], source.logs[topic_partition]
            del self._directory_of[topic_partition]
        del directory.futures[topic_partition]
        try:
            log = future.become_current(now_ms=self._now_ms())
            if current is not None:
                log.take_over(current)
        except LogDirectoryError as error:
            self._fail(directory, error)
            raise
        self._add(directory, topic_partition, log)
        return log

    def _doom(self, directory: LogDirectory, log: PartitionLog) -> None:
        """Rename a log's folder to `-delete`; it goes after file.delete.delay.ms."""
        folder = log.mark_for_deletion(self._unique())
        directory.doomed.append((self._now_ms() + log.config.file_delete_delay_ms, folder))

    def delete(self, topic_partition: TopicPartition) -> bool:
        """Rename the partition's folder to `-delete`; it goes after file.delete.delay.ms. Returns
        whether it was there.
        """
        self.drop_future(topic_partition)
        self._preferred.pop(topic_partition, None)
        log = self._logs.pop(topic_partition, None)
        self.offline_partitions.discard(topic_partition)
        self.faults.forget(topic_partition)
        if log is None:
            return any(self._delete_damaged(each, topic_partition) for each in self._online())
        directory = self._directory_of.pop(topic_partition)
        del directory.logs[topic_partition]
        try:
            self._doom(directory, log)
        except LogDirectoryError as error:
            self._fail(directory, error)
        return True

    def _delete_damaged(self, directory: LogDirectory, key: TopicPartition) -> bool:
        due_ms = self._now_ms() + self.default_log_config.file_delete_delay_ms
        try:
            return directory.doom_damaged(key, unique=self._unique(), due_ms=due_ms)
        except LogDirectoryError as error:
            self._fail(directory, error)
            return True

    def is_damaged(self, topic_partition: TopicPartition) -> bool:
        """Whether the log is here and offline since it cannot be opened."""
        return topic_partition in self.offline_partitions and any(
            topic_partition in directory.damaged for directory in self._online()
        )

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

    def directory_id_of(self, topic_partition: TopicPartition) -> Uuid | None:
        """The id of the log directory that holds a partition."""
        directory = self._directory_of.get(topic_partition)
        return None if directory is None else directory.directory_id

    def directory_ids(self, *, cordoned: bool = False) -> list[Uuid]:
        """Of the online directories, in the order of log.dirs; cordoned: of those of them that get
        no new partitions.
        """
        return [
            directory.directory_id
            for directory in self._online()
            if directory.is_cordoned or not cordoned
        ]

    def usage(self, directory: LogDirectory) -> tuple[int, int, list[LogUsage]]:
        """(total, usable bytes of its disk, its logs). Raises LogDirectoryError."""
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
    def all_directories(self) -> Sequence[LogDirectory]:
        """In the order of log.dirs, offline ones too."""
        return self._directories

    @property
    def directories(self) -> list[Path]:
        """The online ones, in the order of log.dirs."""
        return [directory.path for directory in self._online()]

    def truncate(
        self, topic_partition: TopicPartition, offset: int, *, is_future: bool = False
    ) -> bool:
        """Make offset the end of that log, or of its future one; whether anything was cut. Blocks.

        If what goes had been flushed the recovery point on disk comes down with it, before anything
        is written there again: else a crash of the machine would find the new batches unchecked. So
        does the log's start, else the next one would take them for deleted. Raises
        LogDirectoryError.
        """
        log = self.future(topic_partition) if is_future else self._logs.get(topic_partition)
        if log is None:
            raise InvariantError(f"{topic_partition} has no such log")
        recovery_point, log_start_offset = log.recovery_point, log.log_start_offset
        cleaner_offset = log.cleaner_offset
        is_cut = log.truncate_to(offset, now_ms=self._now_ms())
        if is_cut and recovery_point >= log.log_end_offset:
            self.checkpoint_recovery_points()
        if log.log_start_offset < log_start_offset:
            self.checkpoint_start_offsets()
        if cleaner_offset != log.cleaner_offset and self.on_cleaned_cut is not None:
            self.on_cleaned_cut(log)
        return is_cut

    # -- faults -----------------------------------------------------------------------------------

    @property
    def offline_directories(self) -> dict[Path, LogDirectoryError]:
        """Directories whose disk failed, and how."""
        return {
            directory.path: directory.failure
            for directory in self._directories
            if directory.failure is not None
        }

    @property
    def offline_paths(self) -> list[str]:
        """The same directories, as configured."""
        offline = self.offline_directories
        return [path for path in self.config.log_dirs if Path(path).absolute() in offline]

    def directory_failed(self, error: LogDirectoryError) -> list[TopicPartition]:
        """Take the directory of the file that failed offline. Returns the partitions that went with
        it. Where the process only had no descriptor left, nothing is taken offline.
        """
        if error.is_shortage:
            now_ms = self._now_ms()
            if now_ms - self._shortage_logged_ms >= SHORTAGE_LOG_INTERVAL_MS:
                self._shortage_logged_ms = now_ms
                logger.error("%s; raise the limit of open files (ulimit -n)", error)
            return []
        for directory in self._directories:
            if Path(error.path).is_relative_to(directory.path):
                return self._fail(directory, error)
        return []

    def _fail(self, directory: LogDirectory, error: LogDirectoryError) -> list[TopicPartition]:
        if directory.failure is not None:
            return []
        directory.failure = error
        partitions = sorted(directory.logs)
        if partitions or self._online():  # else the start ends with a line that says the same
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
        self._write(self.recovery_point_checkpoints())

    def checkpoint_start_offsets(self) -> None:
        """Write the start of each log that begins behind its first segment's base."""
        self._write(self.start_offset_checkpoints())

    def read_high_watermarks(self) -> dict[TopicPartition, int]:
        """The high watermarks at the last checkpoint."""
        watermarks: dict[TopicPartition, int] = {}
        for directory in self._online():
            try:
                watermarks |= directory.read_or_forget(names.HIGH_WATERMARKS) or {}
            except LogDirectoryError as error:
                self._fail(directory, error)
        return watermarks

    def write_high_watermarks(self, watermarks: Mapping[TopicPartition, int]) -> None:
        """Write the high watermarks, each into the directory that has its partition. Blocks."""
        self._write(self.high_watermark_checkpoints(watermarks))

    def recovery_point_checkpoints(self) -> list[Checkpoint]:
        """How far each log is flushed, for a thread to write."""
        return self._checkpoints(names.RECOVERY_POINTS, LogDirectory.recovery_points)

    def start_offset_checkpoints(self) -> list[Checkpoint]:
        """The start of each log that begins behind its first segment's base, to be written."""
        return self._checkpoints(names.LOG_START_OFFSETS, LogDirectory.start_offsets)

    def high_watermark_checkpoints(
        self, watermarks: Mapping[TopicPartition, int]
    ) -> list[Checkpoint]:
        """The high watermarks, each for the directory that has its partition, to be written."""

        def of(directory: LogDirectory) -> dict[TopicPartition, int]:
            return {
                key: min(watermarks[key], log.log_end_offset)
                for key, log in directory.all_logs()
                if key in watermarks
            }

        return self._checkpoints(names.HIGH_WATERMARKS, of)

    def _checkpoints(
        self, name: str, of: Callable[[LogDirectory], dict[TopicPartition, int]]
    ) -> list[Checkpoint]:
        return [Checkpoint(each.file(name), of(each)) for each in self._online()]

    def _write(self, checkpoints: Iterable[Checkpoint]) -> None:
        for checkpoint in checkpoints:
            try:
                checkpoint.write()
            except LogDirectoryError as error:
                self.directory_failed(error)

    # -- periodic work ----------------------------------------------------------------------------

    def retire(self, now_ms: int, *, defer: bool = False) -> Iterator[tuple[PartitionLog, int]]:
        """Forget expired producers, retire old segments; yields each log and how many of it."""
        for key, log in list(self._logs.items()):
            if self._logs.get(key) is not log:
                continue  # deleted meanwhile
            retired = 0
            try:
                log.producers.expire(now_ms)
                if log.config.delete or log.log_start_offset > log.segments.first.base_offset:
                    retired = log.delete_old_segments(now_ms, defer=defer)
            except LogDirectoryError as error:
                self.directory_failed(error)
            except InvariantError:
                raise
            except Exception as error:  # noqa: BLE001 - of this log: retention goes on with the others
                self.faults.report(key, "retention", error)
            yield log, retired

    def take_due_files(self, now_ms: int) -> list[str]:
        """Files and folders whose delay is over: the caller deletes them with `remove_all`, off the
        loop.
        """
        return [path for directory in self._online() for path in directory.take_due(now_ms)]

    def delete_due_files(self, now_ms: int) -> int:
        """Delete what is due here and now. Blocks. Returns how many files and folders."""
        due = self.take_due_files(now_ms)
        try:
            remove_all(due)
        except LogDirectoryError as error:
            self.directory_failed(error)
        return len(due)

    def logs_to_flush(self, now_ms: int) -> list[PartitionLog]:
        """Logs with a closed segment not yet synced, or unsynced for flush.ms: flush them off the
        loop.
        """
        return [
            log
            for directory in self._online()
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

        clean=False only lets go, as a crash would, and so does a manager whose logs were not all
        loaded.
        """
        clean = clean and self._is_loaded
        for directory in self._online():
            if clean:
                self._close_directory(directory, broker_epoch)
            else:
                for _, log in directory.all_logs():
                    log.release()
        for directory in self._directories:
            directory.lock.release()
        self._logs.clear()

    def _close_directory(self, directory: LogDirectory, broker_epoch: int) -> None:
        try:
            threads = self.config.get_int("num.recovery.threads.per.data.dir")
            close_logs(
                (log for _, log in directory.all_logs()),
                threads=threads,
                open_files=self.open_files.limit,
            )
        except LogDirectoryError as error:
            self._fail(directory, error)
            return
        try:
            write_offsets(directory.file(names.RECOVERY_POINTS), directory.recovery_points())
            write_offsets(directory.file(names.LOG_START_OFFSETS), directory.start_offsets())
            write_clean_shutdown(directory.path, broker_epoch)
        except LogDirectoryError as error:
            self._fail(directory, error)


def _cordoned(config: BrokerConfig) -> Sequence[str]:
    """cordoned.log.dirs; `*` stands for all."""
    cordoned = config.get_list("cordoned.log.dirs")
    return config.log_dirs if "*" in cordoned else cordoned
