"""A partition's log on a `SimDisk` against a plain list of batches: what every crash must leave.

The machine drives a `LogManager` as a broker does. It knows three things: the batches in order,
how far they were flushed, and where the log may begin. After a kill every batch that was
acknowledged is there; after a loss of power every batch that was flushed, and of those after it a
first part. The rest of the rules (bad disks, interrupted operations) only widen what may be there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kbroker.log import partition_log
from kbroker.log.files import LogDirectoryError, OpenFiles
from kbroker.log.manager import LogManager
from kbroker.log.partition_log import AppendOrigin, PartitionLog
from kbroker.log.producer_state import ProducerStateManager
from kbroker.log.recovery import marker_of, replay_producer
from kbroker.log.verify import Problem, verify_folder
from kbroker.model import StartupError, TopicPartition
from kbroker.protocol.records import (
    BatchHeader,
    Compression,
    build_batch,
    build_end_transaction_marker,
    iter_batches,
    iter_records,
)
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.log_config import LogConfig
from tests.sim.disk import FAULTS, Crashed, SimDisk

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

Row = tuple[int, bytes | None, bytes | None]
"""offset, key, value"""


@dataclass(frozen=True)
class Batch:
    """What was appended. data: with its offsets, as read back."""

    header: BatchHeader
    data: bytes
    rows: tuple[Row, ...]

    @property
    def base(self) -> int:
        return self.header.base_offset

    @property
    def end(self) -> int:
        return self.header.next_offset


def parse(data: bytes) -> list[Batch]:
    """The batches in bytes that were read from a log."""
    found = []
    for position, header in iter_batches(data):
        batch = data[position : position + header.size_bytes]
        rows = tuple((item.offset, item.key, item.value) for item in iter_records(batch, header))
        found.append(Batch(header, batch, rows))
    return found


def read_all(log: PartitionLog) -> list[Batch]:
    """Every batch from the log's start on, as a consumer reads them."""
    found: list[Batch] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        info = log.read(offset, max_bytes=400)
        assert info.end_offset > offset
        data = info.records if isinstance(info.records, bytes) else info.records.read()
        found += parse(data)
        offset = info.end_offset
    return found


class CrashMachine(RuleBasedStateMachine):
    """See the module. compact: how one round of compaction is run inline; None: none yet."""

    compact: ClassVar[Callable[[LogManager, TopicPartition, int], None] | None] = None

    # -- the world --------------------------------------------------------------------------------

    @initialize(seed=st.integers(0, 1 << 32))
    def begin(self, seed: int) -> None:
        self.disk = SimDisk(Random(seed))
        self.disk.make_root(ROOT)
        self._installed = ExitStack()
        self._installed.enter_context(self.disk.installed())
        self._installed.enter_context(mock.patch.object(partition_log, "_open_files"))
        logging.disable(logging.CRITICAL)
        self.batches: list[Batch] = []
        self.flushed = 0  # every batch before it is on disk
        self.start_on_disk = 0  # the log begins here or later, whatever happens
        self.compacted = 0  # below it only the last of each key must be there
        self.retired: set[bytes] = set()  # deleted; a loss of power may bring them back
        self.doubtful: list[Batch] = []  # an append that was interrupted: there or not
        self.was_doubtful = False  # the last restart followed a failed fsync
        self.cut: int | None = None  # a truncation to here was interrupted
        self.may_begin_at = 0
        self.now_ms = NOW_MS
        self.epoch = 0
        self.number = 0
        self.sequences = {1: 0, 2: 0, 3: 0}
        self.clean = False
        self.power_loss = False
        self.manager: LogManager | None = None
        self.start(power_loss=False, first=True)

    def teardown(self) -> None:
        if hasattr(self, "_installed"):
            try:
                if self.manager is not None and self.log is not None:
                    self.crash(power_loss=True)
            finally:
                if self.manager is not None:
                    self.manager.close(clean=False)
                self._installed.close()
                logging.disable(logging.NOTSET)

    @property
    def log(self) -> PartitionLog | None:
        return None if self.manager is None else self.manager.get(KEY)

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else self.may_begin_at

    def start(self, *, power_loss: bool, first: bool = False) -> None:
        """Start the broker, as often as it takes when it crashes or fails on the way."""
        for attempt in range(3):
            # a process of its own: nothing of the old one is closed or written any more
            partition_log._open_files = OpenFiles(3)
            self.manager = LogManager(
                BROKER_CONFIG, now_ms=lambda: self.now_ms, random=Random(attempt)
            )
            try:
                self.manager.load(lambda _: LOG_CONFIG)
                self.manager.get_or_create(KEY, TOPIC_ID, LOG_CONFIG)
                break
            except Crashed:
                self.disk.restart(power_loss=self.power_loss)
                power_loss = power_loss or self.power_loss
            except (StartupError, LogDirectoryError):
                if self.disk.fault is None:
                    raise
                self.disk.mend()
                self.was_doubtful = self.was_doubtful or self.disk.is_doubtful
                power_loss = power_loss or self.was_doubtful
                self.disk.restart(power_loss=False)
            self.manager.close(clean=False)
        assert self.log is not None, "three starts were not enough"
        if not first:
            with self.disk.at_rest():
                self.check_after_restart(power_loss=power_loss)

    # -- carrying out -----------------------------------------------------------------------------

    def do(self, action: Callable[[PartitionLog], object]) -> bool:
        """Whether it was done; else the world crashed or the disk failed, and it was restarted."""
        log = self.log
        assert log is not None
        try:
            action(log)
        except Crashed:
            self.crash(power_loss=self.power_loss)
            return False
        except LogDirectoryError as error:
            assert self.disk.fault is not None, "a fault without a fault"
            assert self.manager is not None
            if log.failure is not None or self.disk.fault is not None:
                self.manager.directory_failed(error)
            self.disk.mend()
            self.crash(power_loss=False)
            return False
        if self.manager is not None and self.manager.get(KEY) is None:
            # the manager met the fault by itself and took the directory offline
            assert self.disk.fault is not None
            self.disk.mend()
            self.crash(power_loss=False)
            return False
        return True

    def crash(self, *, power_loss: bool) -> None:
        """The process ends without a word; then a new one starts."""
        doubtful_disk = self.was_doubtful = self.disk.is_doubtful
        assert self.manager is not None
        self.manager.close(clean=False)
        self.disk.restart(power_loss=power_loss)
        self.disk.mend()
        self.start(power_loss=power_loss or doubtful_disk)

    # -- what must hold ---------------------------------------------------------------------------

    def check_after_restart(self, *, power_loss: bool) -> None:
        log = self.log
        assert log is not None
        candidates = self.batches + self.doubtful
        found = read_all(log)
        must_reach = self.flushed if power_loss else self.end
        if self.cut is not None:
            must_reach = min(must_reach, self.cut)
        if not power_loss:
            assert self.start_on_disk <= log.log_start_offset <= self.may_begin_at, "begin moved"
        assert log.log_end_offset >= must_reach or log.log_end_offset >= self.end, "records lost"
        wanted = [batch for batch in candidates if batch.end > log.log_start_offset]
        end = log.log_end_offset
        if power_loss:
            self._is_rest(wanted, found)
        else:
            self._same([batch for batch in wanted if batch.end <= end], found, "restart")
        problems = [item for item in verify_folder(log.directory) if isinstance(item, Problem)]
        if power_loss:
            # a torn snapshot is found out by its CRC when it is wanted
            problems = [item for item in problems if item.path.suffix != ".snapshot"]
        assert problems == [], problems
        # what is there now is what counts from here on
        self.retired |= {batch.data for batch in self.batches if batch not in found}
        self.batches = found
        self.doubtful = []
        self.cut = None
        self.may_begin_at = self.start_on_disk = log.log_start_offset
        if self.start_on_disk > log.segments.first.base_offset:
            self.start_on_disk = log.segments.first.base_offset
        if power_loss and not self.was_doubtful:
            self.flushed = log.log_end_offset  # what a loss of power left is on disk
        self.flushed = min(self.flushed, log.log_end_offset)
        self._resume_sequences(log)
        self.check_derived()

    def _is_rest(self, wanted: list[Batch], found: list[Batch]) -> None:
        """What a loss of power left: everything flushed, and of each unflushed segment a first
        part. (A closed segment may have lost more than the one behind it: as Kafka, recovery keeps
        both.)
        """
        known = {batch.data for batch in wanted} | self.retired
        assert {batch.data for batch in found} <= known or self.compacted
        bases = [batch.base for batch in found]
        assert bases == sorted(set(bases))
        reach = self.flushed if self.cut is None else min(self.flushed, self.cut)
        self._same(
            [batch for batch in wanted if batch.end <= reach],
            [batch for batch in found if batch.end <= reach and batch.data not in self.retired],
            "loss of power",
        )

    def _same(self, wanted: list[Batch], found: list[Batch], when: str) -> None:
        if not self.compacted:
            assert [batch.data for batch in found] == [batch.data for batch in wanted], when
            return
        latest = {key: offset for batch in wanted for offset, key, _ in batch.rows}
        rows = {row for batch in wanted for row in batch.rows}
        must = {
            row
            for row in rows
            if row[0] >= self.compacted or (row[2] is not None and latest[row[1]] == row[0])
        }
        seen = [row for batch in found for row in batch.rows]
        assert [row[0] for row in seen] == sorted({row[0] for row in seen}), when
        assert must <= set(seen) <= rows, when

    def check_derived(self) -> None:
        """Producers, aborted transactions, epochs and times are what the batches say."""
        log = self.log
        assert log is not None
        replayed = ProducerStateManager(KEY, expiration_ms=1 << 60)
        aborted = []
        for batch in self.batches:
            completed = (
                replay_producer(replayed, batch.header, marker_of(batch.header, batch.data))
                if batch.header.producer_id >= 0
                else None
            )
            if completed is not None:
                replayed.complete_transaction(completed)
                if completed.is_aborted:
                    aborted.append((completed.producer_id, completed.last_offset))
            epoch = batch.header.partition_leader_epoch
            if batch.base >= log.log_start_offset:
                # the start on disk may lie behind: older epochs are gone then, as in Kafka
                known = log.leader_epochs.epoch_for_offset(batch.base)
                assert known == epoch or (known is None and log.leader_epochs.entries)
        last = {batch.header.producer_id: batch.end for batch in self.batches}
        for producer_id, mine in replayed.active_producers.items():
            if last[producer_id] <= log.log_start_offset:
                continue
            state = log.producers.active_producers[producer_id]
            assert state.producer_epoch == mine.producer_epoch
            # of a producer whose data DeleteRecords took, a snapshot knows more than the batches
            assert state.last_sequence == mine.last_sequence or mine.last_sequence < 0
            is_open = mine.transaction_first_offset is not None
            assert (state.transaction_first_offset is not None) == is_open
        listed = log.aborted_transactions(log.log_start_offset, log.log_end_offset)
        ours = {(item.producer_id, item.last_offset) for item in listed}
        assert set(aborted) <= ours
        if self.batches and not self.compacted:
            last = self.batches[-1]
            time = max(batch.header.max_timestamp for batch in self.batches)
            newest = log.max_timestamp_offset()
            assert newest is not None and newest.timestamp >= time
            if last.header.max_timestamp == time and last.end > log.log_start_offset:
                at = log.offset_for_timestamp(time)
                assert at is not None and at.offset <= last.end

    def _resume_sequences(self, log: PartitionLog) -> None:
        for producer_id in self.sequences:
            state = log.producers.active_producers.get(producer_id)
            if state is None or state.last_sequence < 0:
                self.sequences[producer_id] = 0
            else:
                self.sequences[producer_id] = state.last_sequence + 1

    # -- appending --------------------------------------------------------------------------------

    def _append(
        self, batch: bytearray, origin: AppendOrigin = AppendOrigin.CLIENT, version: int = 0
    ) -> bool:
        log = self.log
        assert log is not None
        base = log.log_end_offset
        sent = bytes(batch)
        (expected,) = parse(sent)
        header = expected.header
        rows = tuple((base + offset, key, value) for offset, key, value in expected.rows)

        def append(log: PartitionLog) -> None:
            info = log.append_as_leader(
                batch,
                leader_epoch=self.epoch,
                now_ms=self.now_ms,
                origin=origin,
                transaction_version=version,
            )
            assert not info.duplicate
            assert (info.base_offset, info.last_offset) == (base, base + header.last_offset_delta)

        # its offsets are written in place before anything else: that is what may be on disk
        stamped = bytearray(sent)
        stamped[0:8] = base.to_bytes(8, "big")
        stamped[12:16] = self.epoch.to_bytes(4, "big")
        (whole,) = parse(bytes(stamped))
        assert whole.rows == rows
        self.doubtful = [whole]
        if not self.do(append):
            return False
        self.doubtful = []
        self.batches.append(whole)
        log = self.log
        assert log is not None and log.log_end_offset == whole.end
        self.flushed = max(self.flushed, log.recovery_point)
        return True

    def _rows(self, count: int, size: int) -> list[tuple[int, bytes, bytes, tuple[()]]]:
        rows = []
        for _ in range(count):
            self.number += 1
            key = b"k%d" % (self.number % KEYS)
            rows.append((self.now_ms + self.number, key, b"%d:" % self.number + bytes(size), ()))
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
            where = self.batches[-1]

            def repeat(log: PartitionLog) -> None:
                info = log.append_as_leader(again, leader_epoch=self.epoch, now_ms=self.now_ms)
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
            log = self.log
            assert log is not None
            self._resume_sequences(log)

    # -- everything else --------------------------------------------------------------------------

    @rule()
    def roll(self) -> None:
        self.do(lambda log: log.roll(self.now_ms))

    @rule()
    def flush(self) -> None:
        end = self.end
        if self.do(lambda log: log.flush()):
            self.flushed = max(self.flushed, end)

    @rule()
    def flush_closed_segments(self) -> None:
        """As the broker does after a roll."""
        log = self.log
        assert log is not None
        up_to = log.segments.active.base_offset
        if self.do(lambda log: log.flush(up_to)):
            log = self.log
            assert log is not None
            self.flushed = max(self.flushed, min(up_to, log.recovery_point))

    @rule()
    def checkpoint(self) -> None:
        assert self.manager is not None
        manager = self.manager

        def write(log: PartitionLog) -> None:
            manager.checkpoint_recovery_points()
            manager.checkpoint_start_offsets()
            manager.write_high_watermarks({KEY: log.log_end_offset})

        if self.do(write) and self.manager is manager:
            self.start_on_disk = self.may_begin_at

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        log = self.log
        assert log is not None
        if not self.batches:
            return
        kept = self.batches[: int(len(self.batches) * share)]
        offset = self.batches[len(kept)].base if len(kept) < len(self.batches) else self.end
        if offset < self.may_begin_at:
            return
        self.cut = offset
        manager = self.manager
        assert manager is not None
        if self.do(lambda _: manager.truncate(KEY, offset)):
            self.cut = None
            self.batches = kept
            self.flushed = min(self.flushed, offset)
            log = self.log
            assert log is not None
            assert log.log_end_offset == offset
            self.may_begin_at = min(self.may_begin_at, offset)
            self._resume_sequences(log)
            with self.disk.at_rest():
                self.check_derived()

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        offset = int(self.may_begin_at + (self.end - self.may_begin_at) * share)
        self.may_begin_at = max(self.may_begin_at, offset)
        if self.do(lambda log: log.delete_records_before(offset)):
            self._begins_later()

    def _begins_later(self) -> None:
        log = self.log
        assert log is not None
        self.may_begin_at = log.log_start_offset
        self.retired |= {batch.data for batch in self.batches if batch.end <= self.start_on_disk}
        self.batches = [batch for batch in self.batches if batch.end > self.start_on_disk]

    @rule(keep_bytes=st.integers(0, 3000))
    def retain(self, keep_bytes: int) -> None:
        manager = self.manager
        assert manager is not None
        end = self.end
        before = self.may_begin_at
        self.may_begin_at = end

        def run(log: PartitionLog) -> None:
            log.update_config(replace(LOG_CONFIG, retention_bytes=keep_bytes))
            manager.run_retention(self.now_ms)
            log.update_config(LOG_CONFIG)

        if self.do(run):
            log = self.log
            assert log is not None
            assert log.log_start_offset >= before
            self._begins_later()

    @rule(ms=st.sampled_from([500, 2000]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        manager = self.manager
        assert manager is not None
        self.do(lambda _: manager.delete_due_files(self.now_ms))

    @precondition(lambda self: type(self).compact is not None)
    @rule()
    def run_compaction(self) -> None:
        manager, run = self.manager, type(self).compact
        assert manager is not None and run is not None
        self.compacted = max(self.compacted, self.end)
        if self.do(lambda _: run(manager, KEY, self.now_ms)):
            log = self.log
            assert log is not None
            self._same(self.batches, read_all(log), "compaction")
            self.batches = read_all(log)

    # -- restarts ---------------------------------------------------------------------------------

    @rule()
    def stop_and_start(self) -> None:
        manager = self.manager
        assert manager is not None
        end, begin = self.end, self.may_begin_at

        def stop(_: PartitionLog) -> None:
            manager.close(broker_epoch=7)

        self.start_on_disk_before = self.start_on_disk
        log = self.log
        assert log is not None
        try:
            stop(log)
        except Crashed:
            self.crash(power_loss=self.power_loss)
            return
        if manager.offline_directories:
            self.disk.mend()
            self.crash(power_loss=False)
            return
        self.flushed, self.start_on_disk = end, begin
        self.disk.restart(power_loss=False)
        self.was_doubtful = False
        self.start(power_loss=False)

    @rule()
    def kill(self) -> None:
        self.crash(power_loss=False)

    @rule()
    def lose_power(self) -> None:
        self.crash(power_loss=True)

    @rule(after=st.integers(0, 25), power_loss=st.booleans())
    def crash_soon(self, after: int, power_loss: bool) -> None:
        """At one of the next operations on files."""
        self.disk.crash_after = after
        self.power_loss = power_loss

    @rule(name=st.sampled_from(sorted(FAULTS)), after=st.integers(0, 6))
    def disk_fails_soon(self, name: str, after: int) -> None:
        self.disk.inject(name, after)

    @rule()
    def read_everything(self) -> None:
        """Consumers see what the model has."""
        found: list[Batch] = []

        def read(log: PartitionLog) -> None:
            found.extend(read_all(log))

        if self.do(read):
            log = self.log
            assert log is not None
            assert log.log_end_offset >= self.end
            wanted = [batch for batch in self.batches if batch.end > log.log_start_offset]
            self._same(wanted, found, "reading")
