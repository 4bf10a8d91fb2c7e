"""Opens all logs of a node at its start.

`loading` finds and opens the logs; this module hosts each of them, renames it to `-stray`, or keeps
it offline as damaged, and completes moves between directories that a crash interrupted.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from contextlib import closing, suppress
from threading import Event

from kbroker.log.directories.checkpoints import OffsetCheckpoints
from kbroker.log.directories.loading import (
    LoadJob,
    Opened,
    TopicConfigs,
    find_logs,
    make_checkpoints,
    open_logs,
)
from kbroker.log.directories.log_directories import LogDirectories
from kbroker.log.directories.moves import LogMoves
from kbroker.log.partition_log import PartitionLog
from kbroker.log.state.log_state import RecoveryStopped
from kbroker.log.storage import names
from kbroker.log.storage.checkpoint import (
    CheckpointError,
    write_clean_shutdown,
)
from kbroker.log.storage.damaged import DamagedLog, DamagedLogError, damage_told_by
from kbroker.log.storage.files import (
    LogDirectoryError,
    rename,
)
from kbroker.model import (
    StartupError,
    TopicPartition,
    Uuid,
)

logger = logging.getLogger(__name__)

IsKnown = Callable[[TopicPartition, Uuid | None], bool]
"""Whether the metadata has a partition with that topic id."""

AssignedDirectory = Callable[[TopicPartition], Uuid | None]
"""The directory id that the metadata gives this broker's replica of a partition."""


class LogOpening:
    """One start. is_complete: all logs are loaded."""

    __slots__ = ("_checkpoints", "_directories", "_moves", "_opened", "_stop", "is_complete")

    def __init__(
        self, directories: LogDirectories, moves: LogMoves, checkpoints: OffsetCheckpoints
    ) -> None:
        self._directories = directories
        self._moves = moves
        self._checkpoints = checkpoints
        self._opened: list[PartitionLog] = []
        self._stop = Event()
        self.is_complete = False

    def load(
        self,
        topic_config: TopicConfigs,
        is_known: IsKnown | None,
        assigned: AssignedDirectory | None,
    ) -> None:
        """Open every log in every directory. Blocks; recovers logs that were not closed cleanly.

        topic_config: settings of a topic. is_known: a partition that is not in the metadata is
        stray, and its folder is renamed to `-stray`. assigned: decides how a move between
        directories that a crash interrupted is completed. Raises StartupError, or RecoveryStopped
        after `stop`; the clean-shutdown markers are then restored.
        """
        try:
            self._load(topic_config, is_known, assigned)
        except (StartupError, RecoveryStopped):
            self._unload()
            raise
        self._opened.clear()
        self.is_complete = True

    def stop(self) -> None:
        """End a `load` that runs in another thread, which then raises RecoveryStopped. The
        directory locks may be released only after `load` has returned: until then it writes.
        """
        self._stop.set()

    def _unload(self) -> None:
        """Close the opened logs. No records were appended, so the clean-shutdown markers are
        written again; the next start recovers all other logs again.
        """
        clean = {
            directory.path: directory
            for directory in self._directories.online()
            if directory.was_clean
        }
        for log in self._opened:
            if log.directory.parent in clean:
                with suppress(LogDirectoryError):
                    log.close()
            else:
                log.release()
        registered = self._directories.registered_epoch
        for path, directory in clean.items():
            with suppress(LogDirectoryError):
                epoch = directory.broker_epoch if registered is None else registered
                write_clean_shutdown(path, epoch)

    def _load(
        self,
        topic_config: TopicConfigs,
        is_known: IsKnown | None,
        assigned: AssignedDirectory | None,
    ) -> None:
        jobs: list[LoadJob] = []
        for directory in self._directories.online():
            try:
                jobs += [
                    job._replace(stop=self._stop)
                    for job in find_logs(directory, topic_config, self._directories.now_ms())
                ]
            except LogDirectoryError as error:
                self._directories.fail(directory, error)
            except CheckpointError as error:
                fault = OSError(errno.EINVAL, f"{error}; mend it")
                self._directories.fail(directory, LogDirectoryError(directory.path, "read", fault))
        threads = self._directories.config.get_int("num.recovery.threads.per.data.dir") * len(
            self._directories.online()
        )
        with closing(
            open_logs(jobs, self._open_one, self._directories.threads, threads=threads)
        ) as opened_logs:
            for job, opened in opened_logs:
                try:
                    if job.directory.failure is None:
                        self._take_in(job, opened, is_known)
                except LogDirectoryError as error:
                    self._directories.fail(job.directory, error)
        for directory in self._directories.online():
            try:
                make_checkpoints(directory)
                directory.write_damaged()
            except LogDirectoryError as error:
                self._directories.fail(directory, error)
        self._settle_futures(assigned or (lambda topic_partition: None))
        # before records are appended: see LogDirectory.recovery_points
        self._checkpoints.write_recovery_points()
        self._directories.require_one_online()

    def _settle_futures(self, assigned: AssignedDirectory) -> None:
        """Promote a future log without a current one if the metadata assigns the partition to its
        directory; delete a future log that is in the directory of its current log.
        """
        for directory in self._directories.online():
            for key in list(directory.futures):
                current = self._directories.hosting(key)
                try:
                    if current is directory:
                        self._directories.schedule_delete(directory, directory.futures.pop(key))
                    elif current is not None or self._directories.damaged(key) is not None:
                        continue
                    elif assigned(key) == directory.directory_id:
                        self._moves.promote_future(key)
                        logger.warning(
                            "%s: completed the interrupted move to %s", key, directory.path
                        )
                except LogDirectoryError as error:
                    self._directories.fail(directory, error)
        for directory in self._directories.online():
            # a damaged future log is ignored beside a good log; alone, it is the partition's log
            self._directories.offline_partitions |= (
                directory.damaged.keys() - self._directories.logs.keys()
            )

    def _open_one(self, job: LoadJob) -> PartitionLog:
        if self._stop.is_set():
            raise RecoveryStopped
        log = job.open(self._directories.now_ms(), self._directories.expiration_ms)
        self._opened.append(log)
        return log

    def _take_in(self, job: LoadJob, opened: Opened, is_known: IsKnown | None) -> None:
        """Host an opened log, or keep it as damaged if it could not be opened."""
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
        except Exception as error:  # one log must not prevent the others from being served
            logger.error("%s: unexpected error at opening", topic_partition, exc_info=error)
            self._set_damaged(job, repr(error), is_known)
            return
        log.share(self._directories.open_files, self._directories.random)
        if is_known is not None and not is_known(topic_partition, log.topic_id):
            target = log.mark_as_stray(self._directories.unique())
            logger.warning(
                "stray partition %s: not in the metadata with the topic id of its %s; "
                "renamed to %s",
                topic_partition,
                names.PARTITION_METADATA,
                target.name,
            )
            return
        if job.is_future:
            log.on_rolled = self._directories.on_rolled
            directory.futures[topic_partition] = log
        else:
            self._directories.add(directory, topic_partition, log)

    def _require_one_folder(self, job: LoadJob) -> None:
        key = job.topic_partition
        damaged = self._directories.damaged(key)
        other = None if damaged is None else damaged.folder
        if key in self._directories.logs:
            other = self._directories.logs[key].directory
        if other is not None:
            raise StartupError(
                f"{key} is in two log directories ({other} and {job.folder}): remove the older one"
            )

    def _set_damaged(self, job: LoadJob, why: str, is_known: IsKnown | None) -> None:
        """Keep the log as damaged: it is offline, the other logs are not affected."""
        key = job.topic_partition
        if is_known is not None and not is_known(key, None):
            target = names.marked_directory_name(
                key, self._directories.unique(), names.STRAY_SUFFIX
            )
            rename(job.folder, job.folder.with_name(target))
            logger.warning("stray partition %s is not in the metadata; renamed to %s", key, target)
            return
        job.directory.damaged[key] = DamagedLog(
            job.folder, job.recovery_point, job.log_start_offset, job.was_clean
        )
        logger.error("%s is offline: %s", key, why)
