"""Hypothesis drives a partition's log on a `SimDisk`, through a `LogManager` as a broker does: it
appends, rolls, flushes, truncates, deletes, compacts, and crashes at any operation on a file.
`crash_truth` has the expected content afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from random import Random
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from kbroker.log.append_cost import LoopBudget
from kbroker.log.cleaner.cleaner import LogCleaner, plan
from kbroker.log.manager import LogManager
from kbroker.log.partition_log import PartitionLog
from kbroker.log.state.roll import RollDue
from kbroker.log.state.rolling import begin_roll
from kbroker.log.storage.files import LogDirectoryError
from kbroker.log.storage.open_files import OpenFiles
from kbroker.log.validator import AppendOrigin
from kbroker.model import StartupError, TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.control_records import build_end_transaction_marker
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.log_config import LogConfig
from tests.log.appends import append_as_leader, appended, request_of
from tests.log.crash_truth import Truth, parse, read_all, stored
from tests.log.cuts import cut_now
from tests.own_threads import own_threads
from tests.sim.disk import FAULTS, Crashed, SimDisk
from tests.sim.offload import run_inline
from tests.sim.timers import SimTimer, SimTimers

NOW_MS = 1_700_000_000_000
KEY = TopicPartition("topic", 0)
ROOT = "/disk/data"
LOG_CONFIG = LogConfig(
    segment_bytes=1200,
    segment_index_bytes=240,
    index_interval_bytes=150,
    retention_ms=-1,
    retention_bytes=-1,
    file_delete_delay_ms=1000,
    max_message_bytes=1000,
)
BROKER_CONFIG = BrokerConfig.from_properties({"log.dirs": ROOT, "node.id": "1"})
TOPIC_ID = bytes(range(16))
KEYS = 5


class CrashMachine(RuleBasedStateMachine):
    """See the module. config: the topic's. examples: how many were run."""

    config: ClassVar[LogConfig] = LOG_CONFIG
    examples: ClassVar[int] = 0

    # -- the world --------------------------------------------------------------------------------

    @initialize(seed=st.integers(0, 1 << 32))
    def begin(self, seed: int) -> None:
        type(self).examples += 1
        self.disk = SimDisk(Random(seed))
        self.disk.make_root(ROOT)
        self._installed = ExitStack()
        self._installed.enter_context(self.disk.installed())
        logging.disable(logging.CRITICAL)
        self.truth = Truth()
        self.now_ms = NOW_MS
        self.epoch = 0
        self.number = 0
        self.sequences = {1: 0, 2: 0, 3: 0}
        self.power_loss = False  # the kind of the planned crash
        self.manager = self._open()

    def teardown(self) -> None:
        if hasattr(self, "_installed"):
            try:
                if self.manager.get(KEY) is not None:
                    self.crash(power_loss=True)
            finally:
                self.manager.close(clean=False)
                self._installed.close()
                logging.disable(logging.NOTSET)

    @property
    def log(self) -> PartitionLog:
        log = self.manager.get(KEY)
        assert log is not None
        return log

    def _open(self) -> LogManager:
        # a new process: no file of the old one is closed or written any more
        self.manager = LogManager(
            BROKER_CONFIG,
            now_ms=lambda: self.now_ms,
            random=Random(0),
            threads=own_threads,
            open_files=OpenFiles(3),
        )
        self.manager.load(lambda _: self.config)
        self.manager.get_or_create(KEY, TOPIC_ID, self.config)
        return self.manager

    # -- carrying out -----------------------------------------------------------------------------

    def do(self, action: Callable[[PartitionLog], object]) -> bool:
        """Whether the operation completed; otherwise the world crashed or the disk failed, and it
        was restarted.
        """
        log = self.log
        try:
            action(log)
        except Crashed:
            self.crash(power_loss=self.power_loss)
            return False
        except LogDirectoryError as error:
            assert self.disk.fault is not None, "a fault without a fault"
            self.manager.directory_failed(error)
            self.crash(power_loss=False)
            return False
        if self.manager.get(KEY) is None:
            # the manager itself detected the fault and took the directory offline
            assert self.disk.fault is not None
            self.crash(power_loss=False)
            return False
        if self.truth.is_retiring and not log.jobs.is_pending:
            self.truth.begins_at(log)
        return True

    def crash(self, *, power_loss: bool) -> None:
        """The process is killed; then a new one starts."""
        self.disk.mend()
        self.manager.close(clean=False)
        self.start(power_loss=power_loss)

    def start(self, *, power_loss: bool) -> None:
        """Start the broker, repeatedly if it crashes or fails during the start."""
        may_have_lost = is_on_disk = False
        for _ in range(3):
            # after a failed fsync the data may be lost, even without a power loss
            may_have_lost = may_have_lost or power_loss or self.disk.is_doubtful
            is_on_disk = is_on_disk or power_loss
            self.disk.restart(power_loss=power_loss)
            try:
                self._open()
                break
            except Crashed:
                power_loss = self.power_loss
            except (StartupError, LogDirectoryError):
                assert self.disk.fault is not None
                self.disk.mend()
                power_loss = False
            self.manager.close(clean=False)
        with self.disk.at_rest():
            self.truth.check_restart(self.log, power_loss=may_have_lost, is_on_disk=is_on_disk)
            self._resume_sequences()

    def _resume_sequences(self) -> None:
        for producer_id in self.sequences:
            state = self.log.producers.active_producers.get(producer_id)
            if state is None or state.last_sequence < 0:
                self.sequences[producer_id] = 0
            else:
                self.sequences[producer_id] = state.last_sequence + 1

    # -- appending --------------------------------------------------------------------------------

    def _append(
        self, batch: bytearray, origin: AppendOrigin = AppendOrigin.CLIENT, version: int = 0
    ) -> bool:
        base = self.log.log_end_offset
        # its offsets are first written in place: these bytes may be on disk
        stamped = bytearray(batch)
        stamped[0:8] = base.to_bytes(8, "big")
        stamped[12:16] = self.epoch.to_bytes(4, "big")
        (whole,) = parse(bytes(stamped))

        def append(log: PartitionLog) -> None:
            request = request_of(self.now_ms, origin=origin, transaction_version=version)
            budget = LoopBudget(SimTimers()) if self.number % 2 else None
            outcome = log.append(batch, self.epoch, request, budget)
            if isinstance(outcome, RollDue):
                outcome.roll.work()
                outcome.roll.end(None)
                checked = outcome.checked
                outcome = log.append_checked(checked, self.epoch, request, may_wait=True)
            info = appended(outcome)
            assert not info.duplicate
            assert (info.base_offset, info.last_offset + 1) == (whole.base, whole.end)

        truth = self.truth
        truth.doubtful = [whole]
        if not self.do(append):
            return False
        truth.doubtful = []
        truth.batches.append(whole)
        assert self.log.log_end_offset == whole.end
        # the flushed offset that the log reports is used
        truth.flushed = max(truth.flushed, self.log.recovery_point)
        return True

    def _rows(self, count: int, size: int) -> list[tuple[int, bytes, bytes | None, tuple[()]]]:
        rows = []
        for _ in range(count):
            self.number += 1
            key = b"k%d" % (self.number % KEYS)
            value = None if self.number % 7 == 0 else b"%d:" % self.number + bytes(size)
            rows.append((self.now_ms + self.number, key, value, ()))
        return rows

    @rule(
        count=st.integers(1, 5),
        size=st.integers(0, 100),
        in_new_epoch=st.booleans(),
        codec=st.sampled_from([Compression.NONE, Compression.NONE, Compression.GZIP]),
    )
    def append(self, count: int, size: int, in_new_epoch: bool, codec: Compression) -> None:
        self.epoch += in_new_epoch
        self._append(build_batch(self._rows(count, size), compression=codec))

    @rule(batches=st.integers(2, 9), size=st.integers(0, 60))
    def append_many(self, batches: int, size: int) -> None:
        for _ in range(batches):
            if not self._append(build_batch(self._rows(1 + self.number % 3, size))):
                break

    @rule(producer_id=st.sampled_from([1, 2]), count=st.integers(1, 4), size=st.integers(0, 60))
    def append_idempotent(self, producer_id: int, count: int, size: int) -> None:
        sequence = self.sequences[producer_id]
        batch = build_batch(
            self._rows(count, size),
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        again = bytearray(batch)
        if self._append(batch):
            self.sequences[producer_id] = sequence + count
            where = self.truth.batches[-1]

            def repeat(log: PartitionLog) -> None:
                info = append_as_leader(log, again, leader_epoch=self.epoch, now_ms=self.now_ms)
                assert info.duplicate
                assert (info.base_offset, info.last_offset + 1) == (where.base, where.end)

            self.do(repeat)

    @rule(count=st.integers(1, 3))
    def append_in_transaction(self, count: int) -> None:
        sequence = self.sequences[3]
        batch = build_batch(
            self._rows(count, 10),
            producer_id=3,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )
        if self._append(batch):
            self.sequences[3] = sequence + count

    @rule(commit=st.booleans())
    def end_transaction(self, commit: bool) -> None:
        self.number += 1
        marker = build_end_transaction_marker(
            commit=commit,
            producer_id=3,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=self.now_ms + self.number,
        )
        if self._append(marker, AppendOrigin.COORDINATOR):
            self._resume_sequences()

    # -- everything else --------------------------------------------------------------------------

    @rule()
    def roll(self) -> None:
        self.do(lambda log: log.roll(self.now_ms))

    @rule(is_made=st.booleans())
    def roll_in_a_worker(self, is_made: bool) -> None:
        """The files may or may not be created when the next operation runs."""

        def begin(log: PartitionLog) -> None:
            if log.segments.active.size:
                roll = begin_roll(log, self.now_ms, log.log_end_offset)
                if is_made:
                    roll.work()

        self.do(begin)

    @rule()
    def flush(self) -> None:
        end = self.truth.end
        if self.do(lambda log: log.flush()):
            self.truth.flushed = max(self.truth.flushed, end)

    @rule()
    def flush_closed_segments(self) -> None:
        """As the broker does after a roll."""
        up_to = self.log.segments.active.base_offset
        if self.do(lambda log: log.flush(up_to)):
            self.truth.flushed = max(self.truth.flushed, up_to)

    @rule()
    def checkpoint(self) -> None:
        manager = self.manager

        def write(log: PartitionLog) -> None:
            manager.checkpoints.write_recovery_points()
            manager.checkpoints.write_start_offsets()
            manager.checkpoints.write_high_watermarks({KEY: log.log_end_offset})

        if self.do(write):
            self.truth.begins_from = self.truth.begins_to

    @rule(share=st.floats(0, 1), in_worker=st.booleans())
    def truncate(self, share: float, in_worker: bool = False) -> None:
        batches, manager = self.truth.batches, self.manager
        if not batches:
            return
        kept = int(len(batches) * share)
        offset = batches[kept].base if kept < len(batches) else self.truth.end
        self.truth.cut = offset
        is_cut: list[bool] = []

        def truncate(log: PartitionLog) -> None:
            if not in_worker:
                is_cut.append(cut_now(manager, KEY, offset))
                return
            log.jobs.settle()
            cut = manager.begin_cut(KEY, offset, is_full=False, then=lambda: None)
            if cut is not None:
                cut.work()
                cut.end(None)
            is_cut.append(cut is not None)

        if self.do(truncate):
            if is_cut[0]:
                self.truth.was_cut(offset, self.log)
            else:  # at the end there is nothing to do, and nothing is synced
                self.truth.cut = None
            assert self.log.log_end_offset == offset
            self._resume_sequences()
            with self.disk.at_rest():
                self.truth.check_derived(self.log)

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        truth = self.truth
        offset = int(truth.begins_to + (truth.end - truth.begins_to) * share)
        truth.begins_to = max(truth.begins_to, offset)
        truth.epochs_from = max(truth.epochs_from, offset)
        if self.do(lambda log: log.delete_records_before(offset)):
            truth.begins_at(self.log)

    @rule(keep_bytes=st.integers(0, 3000), is_deferred=st.booleans())
    def retain(self, keep_bytes: int, is_deferred: bool) -> None:
        manager, truth = self.manager, self.truth
        # The log ends behind the last batch where a loss of power left an empty segment only.
        before, truth.begins_to = truth.begins_to, self.log.log_end_offset
        truth.epochs_from = max(truth.epochs_from, truth.begins_to)
        truth.is_retiring = True

        def run(log: PartitionLog) -> None:
            log.update_config(
                replace(
                    self.config, cleanup_policy=frozenset({"delete"}), retention_bytes=keep_bytes
                )
            )
            for _ in manager.retire(self.now_ms, defer=is_deferred):
                pass
            log.update_config(self.config)

        if self.do(run):
            assert self.log.log_start_offset >= before
            truth.begins_at(self.log)

    @rule(count=st.integers(1, 9))
    def rename_retired(self, count: int) -> None:
        """The worker runs some of the renames that retention queued."""

        def work(log: PartitionLog) -> None:
            for _ in range(count):
                log.jobs.work_one()
            log.jobs.collect()

        self.do(work)

    @rule(ms=st.sampled_from([500, 2000]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        manager = self.manager
        self.do(lambda _: manager.delete_due_files(self.now_ms))

    # -- restarts ---------------------------------------------------------------------------------

    @rule(power_loss=st.booleans())
    def stop_and_start(self, power_loss: bool) -> None:
        """A clean stop; everything is on disk afterwards."""
        try:
            self.manager.close(broker_epoch=7)
        except Crashed:
            self.crash(power_loss=self.power_loss)
            return
        if self.manager.offline_directories:
            self.crash(power_loss=False)
            return
        self.truth.flushed = self.truth.end
        self.truth.begins_from = self.truth.begins_to
        self.start(power_loss=power_loss)

    @rule()
    def kill(self) -> None:
        self.crash(power_loss=False)

    @rule()
    def lose_power(self) -> None:
        self.crash(power_loss=True)

    @rule(after=st.integers(0, 25) | st.integers(0, 200), power_loss=st.booleans())
    def crash_soon(self, after: int, power_loss: bool) -> None:
        """Crash at one of the next operations on files."""
        self.disk.crash_after = after
        self.power_loss = power_loss

    @rule(name=st.sampled_from(sorted(FAULTS)), after=st.integers(0, 6))
    def disk_fails_soon(self, name: str, after: int) -> None:
        self.disk.inject(name, after)

    @rule()
    def read_everything(self) -> None:
        """Check that consumers read the records of the model."""
        found = []

        def read(log: PartitionLog) -> None:
            found.extend(read_all(log))

        if self.do(read):
            self.truth.check_same(self.log, found, "reading")


class Clock:
    """The cleaner's timers, which never fire by themselves."""

    def __init__(self, machine: CrashMachine) -> None:
        self._machine = machine

    def now_ms(self) -> int:
        return self._machine.now_ms

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> SimTimer:
        del delay_ms, callback
        return SimTimer()


class CompactingMachine(CrashMachine):
    """A compacted topic. A round of compaction runs without a break; a crash may happen anywhere in
    it.
    """

    config = replace(
        LOG_CONFIG,
        cleanup_policy=frozenset({"compact"}),
        min_cleanable_dirty_ratio=0.0,
        delete_retention_ms=700,
    )

    @rule(is_rolled=st.booleans())
    def compact(self, is_rolled: bool) -> None:
        if is_rolled:
            self.roll()
            self.flush_closed_segments()
        truth, manager = self.truth, self.manager

        def run(log: PartitionLog) -> None:
            log.jobs.settle()
            if truth.is_retiring:
                truth.begins_at(log)
            log.on_high_watermark(log.log_end_offset)
            log.high_watermark = None
            truth.is_compacted(plan(log, self.now_ms).first_uncleanable_offset)
            cleaner = LogCleaner(manager, Clock(self), BROKER_CONFIG, offload=run_inline)
            cleaner.start()
            try:
                cleaner.look()
            except Crashed as error:
                # the process has ended: its generators must not clean up when Python collects them
                log.failure = LogDirectoryError(ROOT, "reach", OSError(str(error)))
                raise
            assert not cleaner.uncleanable

        if self.do(run):
            with self.disk.at_rest():
                truth.was_compacted(stored(self.log))
                truth.check_derived(self.log)
