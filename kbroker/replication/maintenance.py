"""The periodic work on a broker's logs: retention, flushing, checkpoints. The intervals have
Kafka's names.

Syncing blocks, so a worker thread does it. That thread gets only file handles or finished
checkpoints; the recovery point and the responses that wait for a flush are handled on the loop
afterwards (docs/adr/0010). Neighbour: `log.manager` carries out each kind of work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final

from kbroker.log.cleaner.cleaner import LogCleaner
from kbroker.log.directories.directory import remove_all
from kbroker.log.manager import LogManager
from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage.checkpoint import Checkpoint
from kbroker.log.storage.files import LogDirectoryError
from kbroker.model import InvariantError, TopicPartition
from kbroker.ports import Memory, OffloadFactory, TimerHandle, Timers
from kbroker.protocol.errors import KafkaError
from kbroker.replication.time_slices import TimeSlices
from kbroker.settings.broker import BrokerConfig

logger = logging.getLogger(__name__)

FLUSH_CHECK_MS: Final = 1_000
"""How often flush.ms is checked, if no topic rolls in between."""

DELETION_CHECK_MS: Final = 1_000
"""How often files are deleted whose file.delete.delay.ms is over."""

MIN_INTERVAL_MS: Final = 10
"""The shortest interval of periodic work, whatever is configured: each run goes through all logs.
"""

CLEANER_THREADS: Final = 32
"""At least so many logs can be cleaned at once if log.cleaner.threads is raised while the broker
runs. A thread is started when there is work for it.
"""

MAX_DELAY_MS: Final = 24 * 3_600_000
"""Timers are set no further ahead; Kafka's "never" is a 64-bit number."""


class Maintenance:
    """The periodic work of one broker.

    high_watermarks: asked at each checkpoint. on_retention: called when log starts may have moved.
    slices: what retention over all logs is cut into.
    """

    __slots__ = (
        "_checkpoint_ms",
        "_cleaner_offload",
        "_flush_waiters",
        "_flushing",
        "_high_watermarks",
        "_intervals",
        "_logs",
        "_node_id",
        "_offload",
        "_on_retention",
        "_slices",
        "_timers",
        "_waiting",
        "_writing",
        "_written",
        "cleaner",
        "running",
    )

    def __init__(
        self,
        node_id: int,
        logs: LogManager,
        timers: Timers,
        config: BrokerConfig,
        *,
        offloads: OffloadFactory,
        high_watermarks: Callable[[], Mapping[TopicPartition, int]],
        on_retention: Callable[[], None],
        slices: TimeSlices,
        memory: Memory | None = None,
        unpacking: AbstractContextManager[object] | None = None,
    ) -> None:
        self._node_id = node_id
        self._logs = logs
        self._timers = timers
        self._offload = offloads("flush", 1)  # with more, syncs would compete for the disk
        threads = max(config.get_int("log.cleaner.threads"), CLEANER_THREADS)
        self._cleaner_offload = offloads("cleaner", threads)
        self.cleaner = LogCleaner(
            logs,
            timers,
            config,
            offload=self._cleaner_offload,
            memory=memory,
            unpacking=unpacking,
        )
        self._high_watermarks = high_watermarks
        self._on_retention = on_retention
        self._slices = slices
        self._flushing: set[PartitionLog] = set()
        self._waiting: dict[str, TimerHandle] = {}
        self._flush_waiters: dict[PartitionLog, list[tuple[int, Callable[[bool], None]]]] = {}
        self._writing: set[Path] = set()  # checkpoints
        self._written: Mapping[TopicPartition, int] = {}
        self.running = False
        interval = config.get_int
        self._intervals: dict[str, tuple[int, Callable[[], object]]] = {
            "retention": (interval("log.retention.check.interval.ms"), self.run_retention),
            "flush": (
                min(interval("log.flush.scheduler.interval.ms"), FLUSH_CHECK_MS),
                self.flush_due,
            ),
            "deletion": (DELETION_CHECK_MS, self.delete_due_files),
            "recovery points": (
                interval("log.flush.offset.checkpoint.interval.ms"),
                lambda: self._write(self._logs.checkpoints.of_recovery_points()),
            ),
            "start offsets": (
                interval("log.flush.start.offset.checkpoint.interval.ms"),
                lambda: self._write(self._logs.checkpoints.of_start_offsets()),
            ),
            "high watermarks": (
                interval("replica.high.watermark.checkpoint.interval.ms"),
                self.checkpoint_high_watermarks,
            ),
        }

    def start(self) -> None:
        """Start the timers; each kind of work first runs after one interval."""
        if self.running:
            return
        self.running = True
        self._logs.on_rolled = self._rolled
        for log in self._logs.logs.values():
            log.on_rolled = self._rolled
        for name in self._intervals:
            self._plan(name)
        self.cleaner.start()

    def stop(self) -> None:
        """Stop the timers. Blocks until a flush and a read of the cleaner that are in progress are
        done.
        """
        self.running = False
        self._slices.close()
        self.cleaner.request_stop()
        for handle in self._waiting.values():
            handle.cancel()
        self._waiting.clear()
        self._offload.close()
        self._cleaner_offload.close()
        self.cleaner.finish_stop()

    def _plan(self, name: str) -> None:
        interval_ms, _ = self._intervals[name]
        self._waiting[name] = self._timers.call_later(
            max(MIN_INTERVAL_MS, min(interval_ms, MAX_DELAY_MS)), lambda: self._fire(name)
        )

    def _fire(self, name: str) -> None:
        if not self.running:
            return
        self._plan(name)  # first: whatever happens, there is a next time
        try:
            self._intervals[name][1]()
        except LogDirectoryError as error:
            self._logs.directory_failed(error)
        except InvariantError:
            raise
        except Exception as error:  # noqa: BLE001 - top frame of this work; the others go on
            self._logs.faults.report(f"node {self._node_id}", name, error)

    # the work

    def run_retention(self) -> None:
        """Retire segments beyond retention.ms or retention.bytes, unless the last run is still in
        progress.
        """
        if not self._slices.idle:
            return
        retired = 0

        def one_log(log_and_count: tuple[PartitionLog, int]) -> None:
            nonlocal retired
            log, count = log_and_count
            retired += count
            if count:
                self._rename(log)

        def done() -> None:
            if retired:
                logger.info("node %d: retired %d segments", self._node_id, retired)
            self._on_retention()

        self._slices.add(map(one_log, self._logs.retire(self._timers.now_ms(), defer=True)), done)

    def _rename(self, log: PartitionLog) -> None:
        """Give retired files their names in the thread."""
        jobs = log.jobs

        def renamed(failure: OSError | None) -> None:
            if isinstance(failure, LogDirectoryError):
                self._logs.directory_failed(failure)
                if not failure.is_shortage:  # then what is left of the queue is tried again
                    log.failure = log.failure or failure
                    return
            jobs.collect()

        self._offload(jobs.work, renamed)

    def delete_due_files(self) -> None:
        """Delete in the thread what was retired file.delete.delay.ms ago."""
        due = self._logs.take_due_files(self._timers.now_ms())

        def deleted(failure: OSError | None) -> None:
            if isinstance(failure, LogDirectoryError):
                self._logs.directory_failed(failure)

        if due:
            self._offload(lambda: remove_all(due), deleted)

    def flush_due(self) -> None:
        """Flush logs that rolled or have unsynced records older than flush.ms."""
        for log in self._logs.logs_to_flush(self._timers.now_ms()):
            self._flush(log)

    def checkpoint_high_watermarks(self) -> None:
        """Write the high watermarks if any changed since the last time."""
        watermarks = self._high_watermarks()
        if watermarks != self._written and self._write(
            self._logs.checkpoints.of_high_watermarks(watermarks)
        ):
            self._written = watermarks

    def _write(self, checkpoints: Iterable[Checkpoint]) -> bool:
        """Write checkpoints in the thread. A file whose last write is not done is left to the next
        interval, so that writes do not pile up on a slow disk. Returns whether every file could be
        written.
        """
        is_complete = True
        for checkpoint in checkpoints:
            if checkpoint.path in self._writing:
                is_complete = False
                continue
            self._writing.add(checkpoint.path)
            self._offload(checkpoint.write, partial(self._written_or_failed, checkpoint.path))
        return is_complete

    def _written_or_failed(self, path: Path, failure: OSError | None) -> None:
        self._writing.discard(path)
        if isinstance(failure, LogDirectoryError):
            self._logs.directory_failed(failure)

    def when_flushed(self, log: PartitionLog, offset: int, then: Callable[[bool], None]) -> None:
        """Call back once all records before offset are on disk, or with False if that cannot be
        known (the disk failed, the log was truncated or closed). Starts the flush that is needed;
        one flush serves several waiters.
        """
        if not self.running:
            then(self._flush_here(log))
            return
        self._flush_waiters.setdefault(log, []).append((offset, then))
        self._flush_for_waiters(log)

    def log_replaced(self, old: PartitionLog, new: PartitionLog) -> None:
        """A log moved to another directory: its waiters now wait for flushes of the new log."""
        waiters = self._flush_waiters.pop(old, None)
        if waiters is not None:
            self._flush_waiters.setdefault(new, []).extend(waiters)
            self._flush_for_waiters(new)

    def _flush_for_waiters(self, log: PartitionLog) -> None:
        """Start a flush, unless one is in progress. If none can be started, the waiters are called
        with False.
        """
        self._flush(log)
        if log not in self._flushing:  # closed, or its disk failed
            self._answer_waiters(log, failed=True)

    def _flush_here(self, log: PartitionLog) -> bool:
        try:
            log.flush()
        except LogDirectoryError as error:
            self._logs.directory_failed(error)
            return False
        except KafkaError:  # closed, or its disk failed before
            return False
        return True

    def _answer_waiters(self, log: PartitionLog, *, failed: bool = False) -> None:
        """Call the waiters whose offset is on disk or never will be; flush for the others."""
        waiters = self._flush_waiters.pop(log, None)
        if waiters is None:
            return
        is_gone = failed or log.closed or log.failure is not None or not self.running
        left = []
        for offset, then in waiters:
            if offset <= log.recovery_point:
                then(True)
            elif is_gone or offset > log.log_end_offset:
                then(False)
            else:
                left.append((offset, then))
        if left:
            self._flush_waiters.setdefault(log, []).extend(left)
            self._flush_for_waiters(log)

    def _rolled(self, log: PartitionLog) -> None:
        self._timers.call_later(0, lambda: self._flush(log))

    def _flush(self, log: PartitionLog) -> None:
        """Sync in the thread, then move the recovery point here."""
        if log in self._flushing or log.closed or log.failure is not None or not self.running:
            return
        if log.frozen:
            return  # the worker that cuts it syncs it
        try:
            flush = log.begin_flush()
        except LogDirectoryError as error:
            if not error.is_shortage:
                log.failure = error
            self._logs.directory_failed(error)
            self._answer_waiters(log, failed=True)
            return
        except InvariantError:
            raise
        except Exception as error:  # noqa: BLE001 - of this log: the others are flushed
            self._logs.faults.report(log.topic_partition, "flush", error)
            self._answer_waiters(log, failed=True)
            return
        self._flushing.add(log)

        files = flush.files

        def sync_all() -> None:
            for file in files:
                file.sync()

        def flushed(failure: OSError | None) -> None:
            self._flushing.discard(log)
            flush.finish(is_synced=failure is None and not log.closed)
            if log.closed:
                return  # deleted or moved meanwhile: its folder has another name now
            if isinstance(failure, LogDirectoryError):
                if not failure.is_shortage:  # then nothing was synced: the next flush has it again
                    log.failure = log.failure or failure
                self._logs.directory_failed(failure)

        def answer(failure: OSError | None) -> None:
            flushed(failure)
            self._answer_waiters(log, failed=failure is not None)

        self._offload(sync_all, answer)
