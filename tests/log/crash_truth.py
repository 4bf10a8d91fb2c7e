"""The expected state of a partition's log after any sequence of operations and faults: a plain list
of batches and a few offsets, compared with the log that a restart found.

The rules, and why each is no stricter:

- A kill loses no acknowledged batch: written data is in the page cache. The files hold the list,
  batch for batch; only an operation that the kill interrupted may be done, half done from its end,
  or not begun.
- A power loss loses no flushed batch. Of the unflushed ones each segment keeps a first part. A
  closed segment may lose its end while the one after it survives: recovery truncates the log where
  it detects damage, and a file that ends between two batches shows none (docs/adr/0014). If a
  flushed batch is truncated for that reason, all later ones are truncated too.
- No batch is altered or invented. Only segments that retention had retired may reappear: their
  names are not synced, as in Kafka, and DeleteRecords is durable once the start is checkpointed.
- The producer state is a replay of the batches from the log start on. It may have more: a snapshot
  or the memory of the process has seen batches that DeleteRecords, retention or a lost end removed.
  In Kafka too a reload replays from the log start and trusts the newest snapshot before it.
- Leader epochs are those of the batches. Where a crash has moved the log start back they may be
  unknown below the former start, as in Kafka, which forgets them with DeleteRecords.
- Lookups by time and the aborted transactions equal the result of a scan of the batches.
- Where the log was compacted, rows are compared instead of batches (`crash_rows`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from kbroker.log.partition_log import PartitionLog
from kbroker.log.producer.markers import marker_of
from kbroker.log.producer.producer_state import (
    CompletedTransaction,
    ProducerState,
    ProducerStateManager,
)
from kbroker.log.producer.replay import replay_producer
from kbroker.log.time_search import find_now
from kbroker.log.tools.findings import Problem
from kbroker.log.tools.verify_partition import PartitionCheck
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_header import BatchHeader, iter_batches
from kbroker.protocol.batches.records import iter_records
from tests.log.crash_rows import CompactedRows, Row


@dataclass(frozen=True)
class Batch:
    """An appended batch. data: with its offsets, as read back. times: of its records."""

    header: BatchHeader
    data: bytes
    rows: tuple[Row, ...]
    times: tuple[int, ...]

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
        records = list(iter_records(batch, header))
        rows = tuple((item.offset, item.key, item.value) for item in records)
        found.append(Batch(header, batch, rows, tuple(item.timestamp for item in records)))
    return found


def read_all(log: PartitionLog) -> list[Batch]:
    """Every batch from the log start offset on, as a consumer reads them."""
    found: list[Batch] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        info = log.read(offset, max_bytes=400)
        assert info.end_offset > offset
        data = info.records if isinstance(info.records, bytes) else info.records.read()
        found += parse(data)
        offset = info.end_offset
    return found


def stored(log: PartitionLog) -> list[Batch]:
    """Every batch in the files of the log's segments, including those before its start."""
    found: list[Batch] = []
    for segment in log.segments:
        found += parse(segment.log_file().read_at(0, segment.size))
    return found


@dataclass
class Truth:
    """See the module. batches: those in the files, in order; gone: those removed by the log start
    or from between existing batches.

    flushed: every batch before it is on disk. begins_from, begins_to: the range of the log start
    after a kill. epochs_from: from there on leader epochs must be known. doubtful: interrupted
    appends. cut, is_retiring: a truncation to there, or retention, was interrupted. retired:
    segments that may reappear after a power loss; has_retired: even empty ones may.
    """

    batches: list[Batch] = field(default_factory=list)
    gone: list[Batch] = field(default_factory=list)
    retired: list[Batch] = field(default_factory=list)
    has_retired: bool = False
    doubtful: list[Batch] = field(default_factory=list)
    flushed: int = 0
    begins_from: int = 0
    begins_to: int = 0
    epochs_from: int = 0
    cut: int | None = None
    is_retiring: bool = False
    compacted: CompactedRows = field(default_factory=CompactedRows)

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else self.begins_to

    # -- what happens to the log ------------------------------------------------------------------

    def begins_at(self, log: PartitionLog) -> None:
        """The log start offset advanced, and retention may have retired segments. Those that still
        have their names may reappear after a kill.
        """
        self.begins_to = log.log_start_offset
        self.epochs_from = max(self.epochs_from, self.begins_to)
        self.is_retiring = log.jobs.is_pending
        if self.is_retiring:
            return
        first = log.segments.first.base_offset
        retired = [batch for batch in self.batches if batch.base < first]
        self.retired += retired
        self.gone += retired
        self.batches = [batch for batch in self.batches if batch.base >= first]
        self.has_retired = self.has_retired or bool(retired) or first > self.begins_from
        self.begins_from = max(self.begins_from, first)

    def was_cut(self, offset: int, log: PartitionLog) -> None:
        """The log was truncated to offset, which is synced together with all names."""
        assert self._may_begin_at(log.log_start_offset)
        self.batches = [batch for batch in self.batches if batch.end <= offset]
        self.gone = [batch for batch in self.gone if batch.base < offset]
        self.retired, self.has_retired = [], False
        self.cut = None
        self.flushed = min(self.flushed, offset)
        self.begins_from = min(self.begins_from, offset)
        self.begins_to = log.log_start_offset
        self.epochs_from = min(self.epochs_from, offset)
        self._forget_compacted(offset)

    def is_compacted(self, end: int) -> None:
        """Compaction begins: it may remove any records before end."""
        self.compacted.end = max(self.compacted.end, end)
        self._remember_rows()

    def was_compacted(self, found: list[Batch]) -> None:
        """Compaction is done."""
        self._same(self.batches, found, "compaction")
        self.gone += [batch for batch in self.batches if batch not in found]
        self.batches = found

    def _forget_compacted(self, end: int) -> None:
        self.compacted = CompactedRows(min(self.compacted.end, end))
        self._remember_rows()

    def _remember_rows(self) -> None:
        low = [batch for batch in self.batches if batch.base < self.compacted.end]
        aborted = self._aborted_ranges()
        self.compacted.add(
            self.retired + low,
            committed=[
                batch
                for batch in low
                if not batch.header.is_control and not _is_within(batch, aborted)
            ],
        )

    # -- what a restart must find -----------------------------------------------------------------

    def check_restart(self, log: PartitionLog, *, power_loss: bool, is_on_disk: bool) -> None:
        """Compare the log with the expected states, then use the found state as the new truth.

        is_on_disk: the found state is completely on disk.
        """
        found = stored(log)
        end = log.log_end_offset
        assert end == max(log.segments.active.base_offset, found[-1].end if found else 0)
        if power_loss:
            self._check_loss(log, found)
        else:
            self._check_kill(log, found)
        problems = self._problems(log, power_loss=power_loss)
        assert problems == [], problems
        known = {batch.data for batch in found}
        candidates = [*self.gone, *self.batches, *self.doubtful]
        self.gone = [each for each in candidates if each.data not in known and each.base < end]
        self.batches = found
        self.retired, self.doubtful = [], []
        self.has_retired = False
        self.cut, self.is_retiring = None, False
        self.begins_from = self.begins_to = log.log_start_offset
        self.epochs_from = max(min(self.epochs_from, end), self.begins_to)
        self.flushed = end if is_on_disk else min(self.flushed, end)
        self._forget_compacted(end)
        self.check_derived(log)

    def _may_begin_at(self, start: int) -> bool:
        is_emptied = self.cut is not None and all(batch.base >= start for batch in self.batches)
        return start <= (max(self.begins_to, self.cut or 0) if is_emptied else self.begins_to)

    def _is_emptied(self, found: list[Batch]) -> bool:
        """Whether the log was truncated below its begin, which removes all of it. Until then the
        disk may have what retention deleted, under the old names.
        """
        return not found and self.cut is not None and self.cut < self.begins_to

    def _check_kill(self, log: PartitionLog, found: list[Batch]) -> None:
        start, end, first = log.log_start_offset, log.log_end_offset, log.segments.first.base_offset
        low = self.begins_from if self.cut is None else min(self.begins_from, self.cut)
        assert low <= start and self._may_begin_at(start), "begin moved"
        if self._is_emptied(found):
            return
        # if compaction left no record right before a truncation, an interrupted one may end there
        cut = self.cut
        must = [batch.end for batch in self.batches if cut is None or batch.end <= cut]
        assert end >= (self.end if cut is None else max(must, default=0)), "records lost"
        is_whole = not self.is_retiring and self.cut is None
        assert not is_whole or not self.batches or first <= self.batches[0].base, "segments lost"
        candidates = self.batches + self.doubtful
        wanted = [batch for batch in candidates if batch.base >= first and batch.end <= end]
        self._same(wanted, found, "kill")

    def _check_loss(self, log: PartitionLog, found: list[Batch]) -> None:
        start = log.log_start_offset
        assert self._may_begin_at(start), "begin moved"
        # even the name of a folder that was never synced may be lost
        is_anew = not found and log.log_end_offset == 0 and self.flushed == 0
        low = self.begins_from if self.cut is None else min(self.begins_from, self.cut)
        assert is_anew or self.has_retired or start >= low, "begin moved back"
        candidates = self.retired + self.batches + self.doubtful
        known = {batch.data for batch in found}
        lost = [
            batch.base
            for batch in self.batches
            if batch.data not in known
            and start < batch.end <= self.flushed
            and batch.base >= self.compacted.end
        ]
        if lost and not self._is_emptied(found):
            assert self.cut is not None and lost[0] >= self.cut, "flushed records lost"
            assert not found or found[-1].base < lost[0], "a truncation left a hole"
        for base, following in pairwise([*log.segments.base_offsets, log.log_end_offset]):
            if base >= self.compacted.end:
                here = [batch.data for batch in found if base <= batch.base < following]
                wanted = [batch.data for batch in candidates if base <= batch.base < following]
                assert here == wanted[: len(here)], "loss of power"
        self._check_rows(found, self.flushed, "loss of power")

    def check_same(self, log: PartitionLog, found: list[Batch], when: str) -> None:
        """The records that a consumer reads from the log start offset on."""
        assert log.log_end_offset >= self.end
        wanted = [batch for batch in self.batches if batch.end > log.log_start_offset]
        self._same(wanted, found, when)

    def _same(self, wanted: list[Batch], found: list[Batch], when: str) -> None:
        low = self.compacted.end
        assert [batch.data for batch in found if batch.base >= low] == [
            batch.data for batch in wanted if batch.base >= low
        ], when
        self._check_rows(found, 1 << 62, when)

    def _check_rows(self, found: list[Batch], end: int, when: str) -> None:
        if self.cut is not None and self.cut < self.compacted.end:
            return  # a row that was superseded by a truncated one is missing too
        self.compacted.check(
            [batch for batch in found if batch.base < self.compacted.end],
            start=max(self.begins_to, found[0].base if found else 0),
            end=end,
            when=when,
        )

    def _aborted_ranges(self) -> list[tuple[int, int, int]]:
        """(producer, first, last offset) of aborted and of open transactions."""
        replayed = ProducerStateManager(_NOBODY, expiration_ms=1 << 60)
        found = []
        for batch in self.batches:
            completed = _replay(replayed, batch)
            if completed is not None:
                replayed.complete_transaction(completed)
                if completed.is_aborted:
                    found.append(completed[:3])
        for producer_id, state in replayed.active_producers.items():
            if state.transaction_first_offset is not None:
                found.append((producer_id, state.transaction_first_offset, 1 << 62))
        return found

    def _problems(self, log: PartitionLog, *, power_loss: bool) -> list[Problem]:
        check = PartitionCheck(
            log.directory,
            log_start_offset=max(log.log_start_offset, self.epochs_from),
            records=True,
        )
        # checks where a hole is allowed
        problems = [
            item
            for item in check.run()
            if isinstance(item, Problem) and not item.what.endswith("are missing")
        ]
        if power_loss:
            # a torn snapshot is detected by its CRC on use
            torn = "not a producer snapshot"
            problems = [item for item in problems if not item.what.startswith(torn)]
        return problems

    # -- what follows from the batches ------------------------------------------------------------

    def check_derived(self, log: PartitionLog) -> None:
        """Check that producers, aborted transactions, epochs and times follow from the batches."""
        visible = [batch for batch in self.batches if batch.end > log.log_start_offset]
        self._check_producers(log, visible)
        for batch in visible:
            if batch.base >= log.log_start_offset:
                known = log.leader_epochs.epoch_for_offset(batch.base)
                is_forgotten = known is None and batch.base < self.epochs_from
                assert is_forgotten or known == batch.header.partition_leader_epoch
        self._check_times(log, visible)

    def _check_producers(self, log: PartitionLog, visible: list[Batch]) -> None:
        start = log.log_start_offset
        before = self.gone + [batch for batch in self.batches if batch.base < start]
        replayed = ProducerStateManager(_NOBODY, expiration_ms=1 << 60)
        aborted = set()
        for batch in visible:
            completed = _replay(replayed, batch)
            if completed is not None:
                replayed.complete_transaction(completed)
                if completed.is_aborted:
                    aborted.add((completed.producer_id, completed.last_offset))
        states = log.producers.active_producers
        assert replayed.active_producers.keys() <= states.keys()
        for producer_id, state in states.items():
            mine = replayed.active_producers.get(producer_id, ProducerState(producer_id))
            past = [batch for batch in before if batch.header.producer_id == producer_id]
            if state.last_offset != mine.last_offset:
                assert state.last_offset > mine.last_offset
                assert state.last_offset in {
                    batch.end - 1 for batch in past if not batch.header.is_control
                }
            elif mine.batches:
                # a snapshot holds no time but the producer's
                assert state.batches[-1][:3] == mine.batches[-1][:3]
                assert state.last_timestamp == mine.last_timestamp or past
            assert state.producer_epoch == 0
            if state.transaction_first_offset != mine.transaction_first_offset:
                assert state.transaction_first_offset in {None, *(batch.base for batch in past)}
                assert state.transaction_first_offset is not None or any(
                    batch.header.is_control for batch in past
                )
        listed = log.aborted_transactions(start, log.log_end_offset)
        assert aborted <= {(item.producer_id, item.last_offset) for item in listed}
        bases = {batch.base for batch in before}
        extra = [item for item in listed if (item.producer_id, item.last_offset) not in aborted]
        assert self.compacted.end or all(item.first_offset in bases for item in extra)

    def _check_times(self, log: PartitionLog, visible: list[Batch]) -> None:
        newest = find_now(log.search_max_timestamp())
        if not self.batches:
            assert newest is None
            return
        time = max(batch.header.max_timestamp for batch in self.batches)
        # a batch that compaction emptied may keep the largest time without a record that has it
        assert self.compacted.end or (newest is not None and newest.timestamp == time)
        if visible:
            times = [batch.header.max_timestamp for batch in visible]
            for wanted in {min(times), times[len(times) // 2], max(times), max(times) + 1}:
                at = log.offset_for_timestamp(wanted)
                assert (None if at is None else at.offset) == _first_from(
                    visible, wanted, log.log_start_offset
                )


_NOBODY = TopicPartition("nobody", 0)


def _replay(producers: ProducerStateManager, batch: Batch) -> CompletedTransaction | None:
    if batch.header.producer_id < 0:
        return None
    return replay_producer(producers, batch.header, marker_of(batch.header, batch.data))


def _is_within(batch: Batch, ranges: Iterable[tuple[int, int, int]]) -> bool:
    return batch.header.is_transactional and any(
        batch.header.producer_id == producer_id and first <= batch.base <= last
        for producer_id, first, last in ranges
    )


def _first_from(batches: list[Batch], timestamp: int, start: int) -> int | None:
    """A scan that finds the expected result of a lookup by time."""
    for batch in batches:
        for (offset, _, _), time in zip(batch.rows, batch.times, strict=True):
            if time >= timestamp and offset >= start:
                return offset
    return None
