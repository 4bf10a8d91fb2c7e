"""What a broker does to its logs now and then: retention, flushing, checkpoints. Kafka's names for
the intervals.

Syncing blocks, so it leaves the loop thread: the thread gets file handles only, and what follows
from a flush (the recovery point) is done back on the loop. Neighbour: `log.manager` knows how each
thing is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from kbroker.log.files import LogDirectoryError
from kbroker.log.manager import LogManager
from kbroker.log.partition_log import PartitionLog
from kbroker.model import TimerHandle, Timers, TopicPartition
from kbroker.settings.broker import BrokerConfig

logger = logging.getLogger(__name__)

FLUSH_CHECK_MS: Final = 1_000
"""How often flush.ms is looked at, if no topic rolls meanwhile."""

MAX_DELAY_MS: Final = 24 * 3_600_000
"""Timers are set no further ahead; Kafka's "never" is a 64-bit number."""


class OffloadPort(Protocol):
    """Runs work in a thread, and then on the loop thread with the OSError it raised, or None."""

    def __call__(
        self, work: Callable[[], None], then: Callable[[OSError | None], None]
    ) -> None: ...


class ThreadOffload:
    """The port over one thread: flushes queue up rather than compete for the disk."""

    __slots__ = ("_executor", "_loop")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._executor: ThreadPoolExecutor | None = None

    def __call__(self, work: Callable[[], None], then: Callable[[OSError | None], None]) -> None:
        if self._executor is None:
            self._loop = asyncio.get_running_loop()
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="kbroker-flush")
        self._executor.submit(self._run, work, then)

    def _run(self, work: Callable[[], None], then: Callable[[OSError | None], None]) -> None:
        failure: OSError | None = None
        try:
            work()
        except OSError as error:
            failure = error
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(then, failure)

    def close(self) -> None:
        """Wait for what is under way. Blocks."""
        if self._executor is not None:
            self._executor.shutdown(wait=True)
            self._executor = None


class Maintenance:
    """The periodic work of one broker.

    high_watermarks: asked at each checkpoint. on_retention: called when log starts may have moved.
    """

    __slots__ = (
        "_checkpoint_ms",
        "_flushing",
        "_high_watermarks",
        "_intervals",
        "_logs",
        "_node_id",
        "_offload",
        "_on_retention",
        "_own_offload",
        "_timers",
        "_waiting",
        "_written",
        "running",
    )

    def __init__(
        self,
        node_id: int,
        logs: LogManager,
        timers: Timers,
        config: BrokerConfig,
        *,
        offload: OffloadPort | None,
        high_watermarks: Callable[[], Mapping[TopicPartition, int]],
        on_retention: Callable[[], None],
    ) -> None:
        self._node_id = node_id
        self._logs = logs
        self._timers = timers
        self._own_offload = ThreadOffload() if offload is None else None
        self._offload: OffloadPort = offload or self._own_offload  # type: ignore[assignment]  # one of the two is there
        self._high_watermarks = high_watermarks
        self._on_retention = on_retention
        self._flushing: set[TopicPartition] = set()
        self._waiting: dict[str, TimerHandle] = {}
        self._written: Mapping[TopicPartition, int] = {}
        self.running = False
        interval = config.get_int
        self._intervals: dict[str, tuple[int, Callable[[], None]]] = {
            "retention": (interval("log.retention.check.interval.ms"), self.run_retention),
            "flush": (
                min(interval("log.flush.scheduler.interval.ms"), FLUSH_CHECK_MS),
                self.flush_due,
            ),
            "recovery points": (
                interval("log.flush.offset.checkpoint.interval.ms"),
                self._logs.checkpoint_recovery_points,
            ),
            "start offsets": (
                interval("log.flush.start.offset.checkpoint.interval.ms"),
                self._logs.checkpoint_start_offsets,
            ),
            "high watermarks": (
                interval("replica.high.watermark.checkpoint.interval.ms"),
                self.checkpoint_high_watermarks,
            ),
        }

    def start(self) -> None:
        """Begin; the first run of each work is one interval from now."""
        if self.running:
            return
        self.running = True
        self._logs.on_rolled = self._rolled
        for log in self._logs.logs.values():
            log.on_rolled = self._rolled
        for name in self._intervals:
            self._plan(name)

    def stop(self) -> None:
        """End; blocks until a flush that is under way is over."""
        self.running = False
        for handle in self._waiting.values():
            handle.cancel()
        self._waiting.clear()
        if self._own_offload is not None:
            self._own_offload.close()

    def _plan(self, name: str) -> None:
        interval_ms, _ = self._intervals[name]
        self._waiting[name] = self._timers.call_later(
            max(1, min(interval_ms, MAX_DELAY_MS)), lambda: self._fire(name)
        )

    def _fire(self, name: str) -> None:
        if not self.running:
            return
        self._intervals[name][1]()
        self._plan(name)

    # the work

    def run_retention(self) -> None:
        """Retire what is too old or too much, and delete what was retired long enough ago."""
        retired = self._logs.run_retention(self._timers.now_ms())
        if retired:
            logger.info("node %d: retired %d segments", self._node_id, retired)
        self._on_retention()

    def flush_due(self) -> None:
        """Flush logs that rolled or have unsynced records older than flush.ms."""
        for log in self._logs.logs_to_flush(self._timers.now_ms()):
            self._flush(log)

    def checkpoint_high_watermarks(self) -> None:
        """Write the high watermarks if any changed since the last time."""
        watermarks = self._high_watermarks()
        if watermarks != self._written:
            self._logs.write_high_watermarks(watermarks)
            self._written = watermarks

    def _rolled(self, log: PartitionLog) -> None:
        self._timers.call_later(0, lambda: self._flush(log))

    def _flush(self, log: PartitionLog) -> None:
        """Sync in the thread, then move the recovery point here."""
        key = log.topic_partition
        if key in self._flushing or log.closed or log.failure is not None or not self.running:
            return
        try:
            end_offset = log.log_end_offset
            files = log.unflushed_files(end_offset)
        except LogDirectoryError as error:
            self._logs.directory_failed(error)
            return
        self._flushing.add(key)

        def sync_all() -> None:
            for file in files:
                file.sync()

        def flushed(failure: OSError | None) -> None:
            self._flushing.discard(key)
            if isinstance(failure, LogDirectoryError):
                log.failure = log.failure or failure
                self._logs.directory_failed(failure)
            elif failure is None and not log.closed:
                log.mark_flushed(end_offset)

        self._offload(sync_all, flushed)
