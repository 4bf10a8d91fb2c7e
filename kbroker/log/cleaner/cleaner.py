"""Log compaction: which log is cleaned next, and how a round alternates between workers and the
loop.

Every log.cleaner.backoff.ms, and after each round, the log with the highest dirty ratio is cleaned;
as many logs at a time as there are log.cleaner.threads. A round is a generator that runs on the
loop. The jobs it yields (reading, decompressing, rewriting, syncing: `round`; renaming: `swap`) run
in a worker; the generator itself plans, and reads and changes the log. If the log was truncated,
retired or deleted meanwhile, or is being moved, the round ends without effect (`cleaning`). A log
that cannot be cleaned is skipped until the next start, with one log line that gives the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final

from kbroker.log.cleaner.cleaning import Cleaning, CleaningSteps
from kbroker.log.cleaner.config import Account, CleanedLogs, CleanerConfig
from kbroker.log.cleaner.plan import DirtyRange, dirty_range, group_segments
from kbroker.log.cleaner.steps import CleaningStep, CleaningStopped, Source
from kbroker.log.cleaner.throttle import Throttle
from kbroker.log.state.log_state import LogState
from kbroker.log.storage import names
from kbroker.log.storage.checkpoint import CheckpointError, read_offsets, write_offsets
from kbroker.log.storage.disk_jobs import DiskJob
from kbroker.log.storage.files import LogDirectoryError
from kbroker.log.storage.segment import Segment
from kbroker.model import InvariantError, TopicPartition
from kbroker.ports import Offload, TimerHandle, Timers
from kbroker.protocol.errors import KafkaError
from kbroker.settings.broker import BrokerConfig

logger = logging.getLogger(__name__)

MAX_DELAY_MS: Final = 24 * 3_600_000
MIN_PAUSE_MS: Final = 10
"""The least pause between two looks: a smaller log.cleaner.backoff.ms would keep the loop busy."""
MIN_MORE_BYTES: Final = 256 * 1024


class LogCleaner:
    """See the module. uncleanable: logs for which a round failed, with their partitions. memory:
    asked for offset maps larger than the guaranteed size. unpacking: see `CleaningRound`.
    """

    def __init__(
        self,
        logs: CleanedLogs,
        timers: Timers,
        config: BrokerConfig,
        *,
        offload: Offload,
        memory: Account | None = None,
        unpacking: AbstractContextManager[object] | None = None,
    ) -> None:
        self._memory = memory
        self._unpacking = unpacking
        self.config = CleanerConfig.from_broker(config)
        self.uncleanable: dict[TopicPartition, LogState] = {}
        self._logs = logs
        self._timers = timers
        self._offload = offload
        self._throttle = Throttle(self.config.bytes_per_second)
        self._running: dict[TopicPartition, Cleaning] = {}
        self._asked = 0  # checkpoints prepared so far; written: the latest one of each directory
        self._written: dict[Path, int] = {}
        self._writing = Lock()
        self._waiting: TimerHandle | None = None
        self._started = False
        self._is_short = False  # of descriptors: the next look begins the next round

    # -- start and stop ----------------------------------------------------------------------------

    def start(self) -> None:
        """Read the checkpoints and begin; the first look is one back-off from now."""
        if not self.config.is_enabled or self._started:
            return
        self._started = True
        self._logs.on_cleaned_cut = self._cleaned_cut
        for directory in self._logs.directories:
            for key, offset in self._read_checkpoint(directory).items():
                log = self._logs.logs.get(key)
                if log is not None and self._logs.directory_of(key) == directory:
                    log.cleaner_offset = offset
        self._plan(self.config.backoff_ms)

    def _read_checkpoint(self, directory: Path) -> dict[TopicPartition, int]:
        try:
            return read_offsets(directory / names.CLEANER_OFFSETS)
        except CheckpointError as error:
            logger.warning("%s; cleaning all compacted logs from their start", error)
        except LogDirectoryError as error:
            self._logs.directory_failed(error)
        return {}

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply changed log.cleaner.* settings. A round in progress keeps its buffers, but the new
        I/O limit applies to it.
        """
        changed = CleanerConfig.from_broker(config)
        if changed == self.config:
            return
        self.config = changed
        self._throttle.bytes_per_second = changed.bytes_per_second
        if self._started:
            self._plan(0)

    def request_stop(self) -> None:
        """Begin no more rounds; workers stop before their next read. Close the workers, then call
        `finish_stop`.
        """
        self._started = False
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        for cleaning in self._running.values():
            cleaning.round.stop.set()

    def finish_stop(self) -> None:
        """Delete the files of unfinished rounds, or finish their swap. Called when no worker runs
        any more.
        """
        for cleaning in list(self._running.values()):
            try:
                if cleaning.steps is not None:
                    cleaning.steps.close()
            except Exception as error:  # the fault of one log: the other rounds are ended too
                is_known = isinstance(error, LogDirectoryError)
                logger.warning(
                    "%s: %s",
                    cleaning.log.topic_partition,
                    error,
                    exc_info=None if is_known else error,
                )
            self._give_back(cleaning)
        self._running.clear()

    @property
    def _pause_ms(self) -> int:
        """The time between two looks when no log is due."""
        return max(self.config.backoff_ms, MIN_PAUSE_MS)

    def _plan(self, delay_ms: int) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        self._waiting = self._timers.call_later(min(delay_ms, MAX_DELAY_MS), self.look)

    def look(self) -> None:
        """Begin a round for each log that is due while workers are free; schedule the next look."""
        if not self._started:
            return
        self._plan(self._pause_ms)
        self._is_short = False
        while len(self._running) < self.config.threads and not self._is_short:
            found = self._filthiest(self._timers.now_ms())
            if found is None:
                return
            try:
                self._begin(*found)
            except InvariantError:
                raise
            except Exception as error:  # noqa: BLE001 - the fault of one log
                self._give_up(found[0], error)

    # -- choosing a log ----------------------------------------------------------------------------

    def _filthiest(self, now_ms: int) -> tuple[LogState, DirtyRange] | None:
        """The log with the largest dirty ratio of those that are due."""
        best: tuple[LogState, DirtyRange] | None = None
        for key, log in list(self.uncleanable.items()):
            if self._logs.logs.get(key) is not log:
                del self.uncleanable[key]  # deleted, or offline
        for key, log in list(self._logs.logs.items()):
            if not log.config.compact or key in self._running or log.failure or log.closed:
                continue
            if log.frozen or self.uncleanable.get(key) is log or self._logs.is_moving(key):
                continue
            try:
                dirty = plan(log, now_ms)
            except LogDirectoryError as error:
                self._logs.directory_failed(error)
                continue
            except InvariantError:
                raise
            except Exception as error:  # noqa: BLE001 - one log's fault; clean the others
                self._give_up(log, error)
                continue
            if dirty.is_due(log.config) and (
                best is None or dirty.dirty_ratio > best[1].dirty_ratio
            ):
                best = log, dirty
        return best

    # -- one round --------------------------------------------------------------------------------

    def _begin(self, log: LogState, dirty: DirtyRange) -> None:
        # Imported here: many brokers have no compacted log.
        from kbroker.log.cleaner.compaction import last_records
        from kbroker.log.cleaner.round import CleaningRound

        config = self.config
        producers = last_records(log.producers)
        kept_bytes = self._more_map_bytes()
        cleaning = Cleaning(
            log,
            CleaningRound(
                str(log.directory),
                log.config,
                producers,
                now_ms=self._timers.now_ms(),
                first_dirty_offset=dirty.first_dirty_offset,
                upper_offset=dirty.first_uncleanable_offset,
                map_bytes=config.sure_map_bytes + kept_bytes,
                buffer_bytes=config.buffer_bytes,
                throttle=self._throttle,
                unpacking=self._unpacking,
            ),
            kept_bytes,
            is_moving=self._logs.is_moving,
        )
        cleaning.steps = self._steps(cleaning, dirty)
        self._running[log.topic_partition] = cleaning
        self._advance(cleaning)

    def _more_map_bytes(self) -> int:
        """Memory for the offset map beyond `sure_map_bytes`, as much as the pool grants. A smaller
        map only means more rounds.
        """
        wanted = self.config.map_bytes - self.config.sure_map_bytes
        if self._memory is None:
            return wanted
        while wanted >= MIN_MORE_BYTES:
            if self._memory.keep(wanted):
                return wanted
            wanted //= 2
        return 0

    def _steps(self, cleaning: Cleaning, dirty: DirtyRange) -> CleaningSteps:
        """A whole round; a worker runs the jobs that it yields."""
        log, work = cleaning.log, cleaning.round
        segments = log.segments
        upper_offset = dirty.first_uncleanable_offset
        first = segments.floor_index(dirty.first_dirty_offset)
        for segment in [each for each in list(segments)[first:] if each.base_offset < upper_offset]:
            source = _source(cleaning, segment, start_offset=dirty.first_dirty_offset)
            indexing = CleaningStep(partial(work.index_segment, source))
            yield indexing
            if not indexing.value:
                break
        groups = group_segments(
            segments,
            log.config,
            end_offset=work.end_offset,
            first_uncleanable_offset=upper_offset,
        )
        before_bytes = sum(segment.size for group in groups for segment in group)
        for group in groups:
            yield from self._replace(cleaning, group)
        _require(not cleaning.must_end)  # after a truncation the rewritten records are not clean
        log.cleaner_offset = work.end_offset
        yield CleaningStep(self._checkpoint(log))
        logger.info(
            "%s: compacted up to offset %d (exclusive): %d keys, %d -> %d bytes",
            log.topic_partition,
            work.end_offset,
            len(work.offsets),
            before_bytes,
            work.bytes_written,
        )

    def _replace(self, cleaning: Cleaning, group: list[Segment]) -> CleaningSteps:
        """Rewrite one group and swap it in."""
        from kbroker.log.cleaner.swap import SegmentSwap

        log, work = cleaning.log, cleaning.round
        swap = SegmentSwap(log, group, self._timers.now_ms)
        is_done = False
        try:
            yield CleaningStep(partial(work.begin_group, group[0].base_offset))
            for segment in group:
                source = _source(cleaning, segment)
                yield CleaningStep(partial(work.clean_segment, source))
            _require(swap.is_valid and not cleaning.must_end)
            modified_ns = group[-1].modified_ms() * 1_000_000
            ending = CleaningStep(partial(work.end_group, modified_ns))
            yield ending
            _require(swap.is_valid and not cleaning.must_end)
            swap.prepare(ending.value)
            yield swap
            _require(swap.is_valid and not cleaning.must_end)
            swap.settle()
            is_done = True
            yield CleaningStep(log.jobs.work)
        finally:
            if log.directory != cleaning.directory or log.failure is not None:
                pass
            elif is_done:
                log.jobs.settle()  # no job is left, except after a stop
            else:
                swap.undo()

    def _advance(self, cleaning: Cleaning) -> None:
        """Advance the round step by step until a worker runs its next job or the round ends."""
        steps = cleaning.steps
        if steps is None:
            return
        while True:
            error, cleaning.error = cleaning.error, None
            try:
                job = next(steps) if error is None else steps.throw(error)
            except StopIteration:
                self._end(cleaning, None)
                return
            except Exception as failure:  # noqa: BLE001 - one log must not end cleaning
                self._end(cleaning, failure)
                return
            if not self._hand_over(cleaning, job):
                return

    def _hand_over(self, cleaning: Cleaning, job: DiskJob) -> bool:
        """Submit a job to a worker; the round continues afterwards. Returns whether the job has
        already run.
        """
        is_inline = True
        is_done = False

        def work() -> None:
            try:
                job.run()
            except Exception as failure:  # noqa: BLE001 - the worker's top frame
                cleaning.error = failure

        def then(failure: OSError | None) -> None:
            nonlocal is_done
            is_done = True
            cleaning.error = cleaning.error or failure
            if not is_inline and self._running.get(cleaning.log.topic_partition) is cleaning:
                self._advance(cleaning)

        self._offload(work, then)
        is_inline = False
        return is_done

    def _end(self, cleaning: Cleaning, error: Exception | None) -> None:
        log = cleaning.log
        del self._running[log.topic_partition]
        self._give_back(cleaning)
        match error:
            case None:
                pass
            case CleaningStopped():
                logger.debug("%s: the log changed while it was cleaned", log.topic_partition)
            case _ if cleaning.is_outdated and error is not log.jobs.failure:
                logger.debug("%s: cleaning stopped: %s", log.topic_partition, error)
            case LogDirectoryError():
                self._is_short = error.is_shortage  # the round is undone, and begun again later
                if not error.is_shortage:
                    log.failure = error
                self._logs.directory_failed(error)
            case _:
                self._give_up(log, error)
        if self._started:
            self._plan(0 if error is None else self._pause_ms)

    def _give_back(self, cleaning: Cleaning) -> None:
        if self._memory is not None:
            self._memory.drop(cleaning.kept_bytes)
            cleaning.kept_bytes = 0

    def _give_up(self, log: LogState, error: Exception) -> None:
        self.uncleanable[log.topic_partition] = log
        is_known = isinstance(error, KafkaError)
        logger.error(
            "%s cannot be compacted; not compacting it until the next start: %s",
            log.topic_partition,
            error if is_known else repr(error),
            exc_info=None if is_known else error,
        )

    def _cleaned_cut(self, log: LogState) -> None:
        """Called when a log was truncated below the cleaner offset in its directory's
        checkpoint.
        """

        def written(failure: OSError | None) -> None:
            if isinstance(failure, LogDirectoryError):
                self._logs.directory_failed(failure)

        self._offload(self._checkpoint(log), written)

    def _checkpoint(self, log: LogState) -> Callable[[], None]:
        """Prepare writing the cleaner offsets of the log's directory; the result is for a worker.
        The file is not synced: after a crash of the machine the affected range is cleaned again. Of
        two checkpoints the later one wins.
        """
        directory = self._logs.directory_of(log.topic_partition)
        offsets = {
            key: other.cleaner_offset
            for key, other in self._logs.logs.items()
            if other.cleaner_offset is not None and self._logs.directory_of(key) == directory
        }
        self._asked += 1
        number, written, lock = self._asked, self._written, self._writing

        def write() -> None:
            if directory is None:
                return
            with lock:
                if written.get(directory, 0) < number:
                    write_offsets(directory / names.CLEANER_OFFSETS, offsets, sync=False)
                    written[directory] = number

        return write


def plan(log: LogState, now_ms: int) -> DirtyRange:
    """The range of a log that can be cleaned now.

    Unflushed records are excluded: a crash of the machine could lose a record after the older
    record of its key was compacted away. Closed segments are flushed soon after the roll.
    """
    stable = log.recovery_point
    if log.high_watermark is not None:
        stable = min(stable, log.high_watermark)
    unstable = log.first_unstable_offset
    return dirty_range(
        log.segments,
        log.config,
        cleaner_offset=log.cleaner_offset,
        log_start_offset=log.log_start_offset,
        last_stable_offset=stable if unstable is None else min(stable, unstable),
        now_ms=now_ms,
    )


def _source(cleaning: Cleaning, segment: Segment, *, start_offset: int = 0) -> Source:
    """The part of a segment that a worker needs. Raises CleaningStopped if it is no longer in the
    log.
    """
    segments = cleaning.log.segments
    index = segments.floor_index(segment.base_offset)
    _require(not cleaning.must_end and segments[index] is segment)
    following = segments.end_offset(index, cleaning.log.log_end_offset)
    position = segment.offset_index.lookup(start_offset)[1] if start_offset else 0
    return Source(
        segment.log_file(),
        segment.base_offset,
        following,
        segment.size,
        position,
        tuple(segments.aborted_transactions(segment.base_offset, following)),
    )


def _require(is_unchanged: bool) -> None:
    if not is_unchanged:
        raise CleaningStopped
