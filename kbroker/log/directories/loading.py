"""Finds and opens the logs of the log directories at start, several at a time, and logs the
progress.

Opening a log blocks for the duration of its recovery and touches only its own folder, so
`num.recovery.threads.per.data.dir` threads per directory do it. The opened logs are returned in the
requested order to the one thread that keeps the books. Python runs one of these threads at a time
except for reads, writes and checksums, on which recovery spends its time (docs/adr/0010).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Final, NamedTuple

from kbroker.log.directories.directory import LogDirectory
from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage import names
from kbroker.log.storage.checkpoint import read_clean_shutdown, read_offsets
from kbroker.log.storage.damaged import DamagedLogError
from kbroker.log.storage.files import create_file, list_directory, read_file, sync_directory, unlink
from kbroker.log.storage.open_files import OpenFiles
from kbroker.model import NO_BROKER_EPOCH, TopicPartition
from kbroker.ports import ThreadPools
from kbroker.settings.views.log_config import LogConfig

logger = logging.getLogger(__name__)

PROGRESS_SECONDS: Final = 5.0
OPEN_FILES_PER_LOG: Final = 64
"""The open-file limit of a log while it is being opened."""


_CHECKPOINTS: Final = (
    names.RECOVERY_POINTS,
    names.LOG_START_OFFSETS,
    names.HIGH_WATERMARKS,
    names.CLEANER_OFFSETS,
)


class LoadJob(NamedTuple):
    """A folder that holds a log. was_clean: it was closed cleanly, no recovery is needed. stop: set
    when the start is to stop.
    """

    directory: LogDirectory
    folder: Path
    topic_partition: TopicPartition
    config: LogConfig
    recovery_point: int
    log_start_offset: int
    was_clean: bool
    stop: Event | None = None

    @property
    def is_future(self) -> bool:
        """Whether the log will replace one in another directory."""
        return self.folder.name.endswith(names.FUTURE_SUFFIX)

    def open(self, now_ms: int, producer_id_expiration_ms: int) -> PartitionLog:
        """Open the log. Blocks. Raises what PartitionLog.open raises.

        A log that was closed cleanly is opened completely even while the start stops: it counts as
        cleanly closed afterwards, so its files must not be left half rebuilt.
        """
        log = PartitionLog.open(
            self.folder,
            self.topic_partition,
            self.config,
            recovery_point=self.recovery_point,
            log_start_offset=self.log_start_offset,
            clean_shutdown=self.was_clean,
            now_ms=now_ms,
            producer_id_expiration_ms=producer_id_expiration_ms,
            open_files=OpenFiles(OPEN_FILES_PER_LOG),
            stop=None if self.was_clean else self.stop,
        )
        if self.was_clean and 0 < self.recovery_point < log.log_end_offset:
            # damage of an offset, which no CRC covers, or of the checkpoint
            log.release()
            raise DamagedLogError(
                f"{log.segments.active.path}: the log ends at offset {log.log_end_offset} and was "
                f"closed at {self.recovery_point}, as {names.RECOVERY_POINTS} says"
            )
        return log


TopicConfigs = Callable[[str], LogConfig]


def find_logs(
    directory: LogDirectory, topic_config: TopicConfigs, now_ms: int
) -> Iterator[LoadJob]:
    """The logs to open in a directory. Removes the clean-shutdown marker.

    Raises LogDirectoryError, CheckpointError if the names of the damaged logs cannot be read.
    """
    for name in _CHECKPOINTS:
        read_file(directory.file(name))  # report an unreadable checkpoint now
    damaged = read_offsets(directory.file(names.DAMAGED_LOGS))
    epoch = read_clean_shutdown(directory.path)
    directory.was_clean = epoch is not None
    directory.broker_epoch = NO_BROKER_EPOCH if epoch is None else epoch
    if directory.was_clean:
        # synced before any write: the marker must not reappear after a crash of the machine
        unlink(directory.file(names.CLEAN_SHUTDOWN))
        sync_directory(directory.path)
    recovery_points = directory.read_or_forget(names.RECOVERY_POINTS)
    start_offsets = directory.read_or_forget(names.LOG_START_OFFSETS) or {}
    for name, _, is_directory in list_directory(directory.path):
        parsed = names.parse_directory_name(name) if is_directory else None
        if parsed is None or parsed[0].topic == names.CLUSTER_METADATA:
            continue
        key, suffix = parsed
        folder = directory.path / name
        config = topic_config(key.topic)
        if suffix == names.DELETE_SUFFIX:
            directory.deleted_folders.append((now_ms + config.file_delete_delay_ms, folder))
        elif suffix in ("", names.FUTURE_SUFFIX):
            # a clean shutdown writes a recovery point for each log that it closes
            is_closed = directory.was_clean and (recovery_points is None or key in recovery_points)
            yield LoadJob(
                directory,
                folder,
                key,
                config,
                damaged.get(key, (recovery_points or {}).get(key, 0)),
                start_offsets.get(key, 0),
                is_closed or key in damaged,
            )


def make_checkpoints(directory: LogDirectory) -> None:
    """Create the checkpoints that are missing. Raises LogDirectoryError."""
    present = {name for name, _, _ in list_directory(directory.path)}
    for name in _CHECKPOINTS:
        if name not in present:
            create_file(str(directory.file(name)))


class LoadProgress:
    """Logs the progress of a long start from time to time."""

    __slots__ = ("_done", "_due", "_started", "_total", "_verb")

    def __init__(self, jobs: Sequence[LoadJob]) -> None:
        self._total = len(jobs)
        self._done = 0
        self._verb = "loaded" if all(job.was_clean for job in jobs) else "recovered"
        self._started = time.monotonic()
        self._due = self._started + PROGRESS_SECONDS

    def one_more(self) -> None:
        """Another log has been loaded."""
        self._done += 1
        now = time.monotonic()
        if now >= self._due and self._done < self._total:
            self._due = now + PROGRESS_SECONDS
            logger.info("%s %s of %s logs", self._verb, f"{self._done:,}", f"{self._total:,}")

    def end(self) -> None:
        """All logs have been loaded."""
        if self._total:
            seconds = time.monotonic() - self._started
            logger.info("%s %s logs in %.1f s", self._verb, f"{self._done:,}", seconds)


Opened = Callable[[], PartitionLog]
"""Returns the log, or raises what opening it raised."""


def open_logs(
    jobs: Sequence[LoadJob],
    open_one: Callable[[LoadJob], PartitionLog],
    pools: ThreadPools,
    *,
    threads: int,
) -> Generator[tuple[LoadJob, Opened]]:
    """Open all logs in that many threads; yields them in order. With one thread each log is opened
    when the caller asks for it. Closing the generator waits for the logs that are being opened.
    """
    progress = LoadProgress(jobs)
    if threads <= 1 or len(jobs) < 2:
        for job in jobs:
            yield job, lambda job=job: open_one(job)  # type: ignore[misc]  # bound now
            progress.one_more()
        progress.end()
        return
    pool = pools("recovery", threads)
    try:
        futures: list[Future[PartitionLog]] = [pool.submit(open_one, job) for job in jobs]
        for number, job in enumerate(jobs):
            with suppress(Exception):
                futures[number].result()  # raised again when the caller asks for the log
            yield job, futures[number].result
            progress.one_more()
        progress.end()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
