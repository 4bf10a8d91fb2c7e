"""Opening the logs of the log directories at start: several at once, with a line of progress.

Opening a log blocks for as long as its recovery takes, and touches nothing but its own folder. So
`num.recovery.threads.per.data.dir` threads per directory do it; what they made is handed out in the
order asked for, to the one thread that keeps account. Python runs one of them at a time but for
reads, writes and checksums, which is what recovery waits for (docs/adr/0010).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from kbroker.log import names
from kbroker.log.directory import LogDirectory
from kbroker.log.files import OpenFiles
from kbroker.log.partition_log import PartitionLog
from kbroker.model import StartupError, TopicPartition
from kbroker.settings.log_config import LogConfig

logger = logging.getLogger(__name__)

PROGRESS_SECONDS: Final = 5.0
OPEN_FILES_PER_LOG: Final = 64
"""While it is being opened, a log counts its descriptors by itself."""


class LoadJob(NamedTuple):
    """A folder that holds a log."""

    directory: LogDirectory
    folder: Path
    topic_partition: TopicPartition
    config: LogConfig
    recovery_point: int
    log_start_offset: int

    def open(self, now_ms: int, producer_id_expiration_ms: int) -> PartitionLog:
        """Blocks. Raises what PartitionLog.open raises."""
        log = PartitionLog.open(
            self.folder,
            self.topic_partition,
            self.config,
            recovery_point=self.recovery_point,
            log_start_offset=self.log_start_offset,
            clean_shutdown=self.directory.was_clean,
            now_ms=now_ms,
            producer_id_expiration_ms=producer_id_expiration_ms,
            open_files=OpenFiles(OPEN_FILES_PER_LOG),
        )
        if self.directory.was_clean and 0 < self.recovery_point < log.log_end_offset:
            # bits of an offset, which no CRC covers, or of the checkpoint
            raise StartupError(
                f"{log.segments.active.path}: the log ends at offset {log.log_end_offset} and was "
                f"closed at {self.recovery_point}, as {names.RECOVERY_POINTS} says: damaged after "
                "a clean stop; put the file back, or remove "
                f"{self.directory.file(names.CLEAN_SHUTDOWN)} to go on with what is there"
            )
        return log


class Progress:
    """Says now and then how far the start is, if it takes long."""

    __slots__ = ("_done", "_due", "_started", "_total", "_verb")

    def __init__(self, jobs: Sequence[LoadJob]) -> None:
        self._total = len(jobs)
        self._done = 0
        self._verb = "loaded" if all(job.directory.was_clean for job in jobs) else "recovered"
        self._started = time.monotonic()
        self._due = self._started + PROGRESS_SECONDS

    def one_more(self) -> None:
        """A log is there."""
        self._done += 1
        now = time.monotonic()
        if now >= self._due and self._done < self._total:
            self._due = now + PROGRESS_SECONDS
            logger.info("%s %s of %s logs", self._verb, f"{self._done:,}", f"{self._total:,}")

    def end(self) -> None:
        """All logs are there."""
        if self._total:
            seconds = time.monotonic() - self._started
            logger.info("%s %s logs in %.1f s", self._verb, f"{self._done:,}", seconds)


Opened = Callable[[], PartitionLog]
"""Gives the log, or raises what opening it raised."""


def open_logs(
    jobs: Sequence[LoadJob], open_one: Callable[[LoadJob], PartitionLog], *, threads: int
) -> Generator[tuple[LoadJob, Opened]]:
    """Open all in so many threads; hands them out in order. threads: 1 opens each when it is asked
    for. Closed, it waits for what is under way.
    """
    progress = Progress(jobs)
    if threads <= 1 or len(jobs) < 2:
        for job in jobs:
            yield job, lambda job=job: open_one(job)  # type: ignore[misc]  # bound now
            progress.one_more()
        progress.end()
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="kbroker-recovery")
    try:
        futures: list[Future[PartitionLog]] = [pool.submit(open_one, job) for job in jobs]
        for number, job in enumerate(jobs):
            with suppress(Exception):
                futures[number].result()  # the caller asks again, and has the error then
            yield job, futures[number].result
            progress.one_more()
        progress.end()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
