"""A log is a list of records, whatever is rolled, cut, reopened or torn off in between."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage import names
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.records import iter_records
from kbroker.settings.views.log_config import LogConfig
from tests.log.appends import append_as_leader
from tests.log.open_log import delete_due_files

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(
    segment_bytes=1200, segment_index_bytes=240, index_interval_bytes=150, retention_ms=-1
)
Model = list[list[tuple[int, bytes]]]


class LogMachine(RuleBasedStateMachine):
    """model: the batches, each a list of (offset, value), from the log's first batch on."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.batches: Model = []
        self.start = 0
        self.end = 0
        self.epoch = 0
        self.written = 0
        self.flushed = 0
        self.log = self.open(clean=False)

    def open(self, *, clean: bool) -> PartitionLog:
        return PartitionLog.open(
            self.directory / "topic-0",
            TopicPartition("topic", 0),
            CONFIG,
            recovery_point=self.flushed,
            log_start_offset=self.start,
            clean_shutdown=clean,
            now_ms=NOW_MS,
        )

    @rule(count=st.integers(1, 5), size=st.integers(0, 120), in_new_epoch=st.booleans())
    def append(self, count: int, size: int, in_new_epoch: bool) -> None:
        self.epoch += in_new_epoch
        values = [b"%d:" % (self.written + index) + bytes(size) for index in range(count)]
        self.written += count
        batch = build_batch(
            [(NOW_MS + self.written + index, None, value, []) for index, value in enumerate(values)]
        )
        info = append_as_leader(self.log, batch, leader_epoch=self.epoch, now_ms=NOW_MS)
        assert (info.base_offset, info.last_offset) == (self.end, self.end + count - 1)
        self.batches.append([(self.end + index, value) for index, value in enumerate(values)])
        self.end += count

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW_MS)

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.flushed = self.log.recovery_point
        assert self.flushed == self.end

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        offset = int(self.end * share)
        first_base = self.log.segments.first.base_offset
        self.log.truncate_to(offset, now_ms=NOW_MS)
        if offset >= self.end:
            return
        self.batches = [batch for batch in self.batches if batch[-1][0] < offset]
        if offset < first_base:
            self.batches = []
        self.end = offset
        # if the first batch is removed in part, the log is emptied and starts at offset
        self.start = max(min(self.start, offset), self.log.segments.first.base_offset)
        self.flushed = min(self.flushed, offset)

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        offset = int(self.end * share)
        self.log.delete_records_before(offset)
        self.start = max(self.start, offset)
        self.log.delete_old_segments(NOW_MS)
        delete_due_files(self.log.segments, NOW_MS * 2)
        first = self.log.segments.first.base_offset
        self.batches = [batch for batch in self.batches if batch[-1][0] >= first]

    @rule()
    def reopen_clean(self) -> None:
        self.log.close()
        self.flushed = self.end
        self.reopen(clean=True)

    @rule()
    def kill(self) -> None:
        self.log.release()
        self.reopen(clean=False)

    @precondition(lambda self: self.log.segments.active.size > 0 and self.flushed < self.end)
    @rule(torn_bytes=st.integers(1, 2000))
    def crash_with_torn_tail(self, torn_bytes: int) -> None:
        self.log.release()
        active = self.log.segments.active
        path = self.directory / "topic-0" / names.offset_name(active.base_offset, names.LOG)
        left = max(0, path.stat().st_size - torn_bytes)
        survivors = bytes_before(path, left)
        with open(path, "r+b") as file:
            file.truncate(left)
        kept = [batch for batch in self.batches if batch[-1][0] < active.base_offset]
        kept += [
            batch
            for batch in self.batches
            if active.base_offset <= batch[-1][0] and batch[-1][0] in survivors
        ]
        self.batches = kept
        self.reopen(clean=False)

    def reopen(self, *, clean: bool) -> None:
        segments = self.log.segments
        self.log = self.open(clean=clean)
        # an end that no batch gives (a cut inside one, an empty last segment) is known only by name
        last = self.batches[-1][-1][0] + 1 if self.batches else 0
        self.end = max(last, segments.active.base_offset)
        if self.end < self.start:
            self.end = self.start
            self.batches = []
        self.flushed = min(self.flushed, self.end)

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        log = self.log
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        assert log.recovery_point <= log.log_end_offset
        seen: list[tuple[int, bytes]] = []
        offset = self.start
        while offset < self.end:
            info = log.read(offset, max_bytes=400)
            assert info.end_offset > offset
            data = b"" if isinstance(info.records, bytes) else info.records.read()
            for position, header in iter_batches(data):
                assert header.last_offset < info.end_offset
                batch = data[position : position + header.size_bytes]
                seen += [(item.offset, item.value or b"") for item in iter_records(batch, header)]
            offset = info.end_offset
        expected = [item for batch in self.batches if batch[-1][0] >= self.start for item in batch]
        assert seen == expected

    @invariant()
    def finds_records_by_time_and_keeps_epochs_in_order(self) -> None:
        entries = self.log.leader_epochs.entries
        assert entries == sorted(entries)
        assert [start for _, start in entries] == sorted({start for _, start in entries})
        for batch in self.batches[-2:]:
            if batch[0][0] >= self.start:
                number = int(batch[0][1].partition(b":")[0])
                found = self.log.offset_for_timestamp(NOW_MS + number)
                assert found is not None and found.offset <= batch[-1][0]

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            self.log.release()
            shutil.rmtree(self.directory)


def bytes_before(path: Path, size: int) -> set[int]:
    """Last offsets of the batches that lie whole in the first `size` bytes."""
    data = path.read_bytes()[:size]
    return {header.last_offset for _, header in iter_batches(data, partial_ok=True)}


class TestLogModel(LogMachine.TestCase):  # type: ignore[misc]  # hypothesis makes the class
    settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestLogModelAtLength(LogMachine.TestCase):  # type: ignore[misc]  # as above
    settings = settings(max_examples=1000, stateful_step_count=50, deadline=None)
