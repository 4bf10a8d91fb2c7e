"""Compaction of one log: what a reader sees afterwards, when a log is due, and what faults do."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.log.cleaner import cleaner as cleaner_module
from kbroker.log.cleaner import compaction as compaction_module
from kbroker.log.storage import descriptor_reserve, files
from kbroker.log.storage.descriptor_reserve import DescriptorReserve
from kbroker.log.storage.files import FileSlice, LogDirectoryError
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.record_conversion import write_message_set
from kbroker.protocol.batches.records import Record, iter_records
from tests.log.appends import append_as_leader
from tests.log.cleaner.cleaning import (
    DAY_MS,
    FILLED_CLEAN,
    TOPIC,
    TOPIC_ID,
    Bench,
    batch,
    batches_of,
    filled,
    records_of,
    say_flushed,
    transaction,
    view,
)
from tests.sim.timers import START_MS


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "data")


def test_the_last_value_of_each_key_stays(bench: Bench) -> None:
    filled(bench).clean()
    assert view(bench) == FILLED_CLEAN
    assert bench.log.log_end_offset == 10
    assert bench.log.cleaner_offset == 8
    assert len(bench.log.segments) == 2, "both closed segments became one"
    codecs = {h.last_offset: h.codec for h, _ in batches_of(bench.log)}
    assert codecs[7] is Compression.ZSTD, "the codec of a batch stays"
    bench.stop()


def test_every_offset_can_still_be_asked_for(bench: Bench) -> None:
    filled(bench).clean()
    for offset in range(10):
        info = bench.log.read(offset, max_bytes=1 << 20, min_one_batch=True)
        assert isinstance(info.records, FileSlice)
        data = info.records.read()
        first = next(
            record.offset
            for position, header in iter_batches(data)
            for record in iter_records(data[position : position + header.size_bytes], header)
            if record.offset >= offset
        )
        assert first == next(kept for kept, _, _ in FILLED_CLEAN if kept >= offset)


def test_a_round_without_descriptors_is_begun_again_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(bench)
    say_flushed(bench.log)
    before = bench.names()
    opened = files._open

    def fail(path: str, flags: int) -> int:
        if path.endswith(".cleaned"):
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(path, flags)

    with monkeypatch.context() as patch:
        patch.setattr(descriptor_reserve, "RESERVE", DescriptorReserve())
        patch.setattr(files, "_open", fail)
        bench.clean()
    assert bench.log.failure is None and not bench.cleaner.uncleanable
    assert not bench.logs.offline_directories
    assert bench.names() == before
    bench.append(batch(("e", "3")))
    bench.clean()
    assert view(bench) == [*FILLED_CLEAN, (10, "e", "3")]


def test_tombstones_go_when_their_horizon_has_passed(bench: Bench) -> None:
    filled(bench).clean()
    horizons = [h.base_timestamp for h, _ in batches_of(bench.log) if h.has_delete_horizon]
    assert horizons == [START_MS + DAY_MS]
    bench.timers.wall_jump_ms += DAY_MS - 1
    bench.roll()
    bench.clean()
    assert (4, "b", None) in view(bench)
    bench.append(batch(("f", "1")))
    bench.timers.wall_jump_ms += 1
    bench.roll()
    bench.clean()
    assert view(bench) == [
        (2, "c", "1"),
        (5, "d", "1"),
        (7, "a", "4"),
        (9, "e", "2"),
        (10, "f", "1"),
    ]
    timestamps = {r.offset: r.timestamp for r in records_of(bench.log)}
    assert timestamps[5] == START_MS + 1, "the horizon does not change the records' times"


@pytest.mark.parametrize("timestamp", [START_MS, 0, -1, -(2**62), -(2**63)])
@pytest.mark.parametrize("retention_ms", [0, 2**62, 2**63 - 1 - START_MS, 2**63 - 1])
def test_the_horizon_of_tombstones_fits_into_a_timestamp(
    tmp_path: Path, retention_ms: int, timestamp: int
) -> None:
    """delete.retention.ms may be any number of 63 bits: a horizon after the last possible timestamp
    never passes.
    """
    bench = Bench(tmp_path / "data", delete_retention_ms=retention_ms)
    for _ in range(3):
        bench.append(batch(("a", None), ("b", "1"), timestamp=timestamp))
        bench.roll()
        bench.clean()
    assert not bench.cleaner.uncleanable
    records = {(r.offset, r.key): (r.timestamp, r.value) for r in records_of(bench.log)}
    assert records[5, b"b"] == (timestamp + 1, b"1")
    # a delta from the horizon to a time that far back has 64 bits: the tombstone is removed early
    is_kept = retention_ms > 0 and timestamp > -(2**63)
    assert not is_kept or records[4, b"a"] == (timestamp, None)
    bench.append(batch(("c", "1")))
    bench.roll()
    bench.clean()
    is_gone = not any(r.key == b"a" for r in records_of(bench.log))
    assert is_gone == (not is_kept)


def test_transactions(bench: Bench) -> None:
    transaction(bench, 7, 0, [("a", "1"), ("b", "1")], commit=True)
    transaction(bench, 7, 1, [("a", "2")], commit=False)
    transaction(bench, 7, 2, [("b", "2")], commit=True)
    bench.roll()
    bench.append(batch(("z", "1")))
    bench.clean()
    assert view(bench) == [(0, "a", "1"), (5, "b", "2"), (7, "z", "1")]
    kinds = [(h.last_offset, h.is_control, h.record_count) for h, _ in batches_of(bench.log)]
    assert kinds == [
        (1, False, 1),
        (2, True, 1),
        (4, True, 1),
        (5, False, 1),
        (6, True, 1),
        (7, False, 1),
    ]
    aborted = bench.log.aborted_transactions(0, 8)
    assert [(t.first_offset, t.last_offset) for t in aborted] == [(3, 4)]
    # the abort marker gets a horizon when no record of the transaction is left
    bench.roll()
    bench.clean()
    assert [h.last_offset for h, _ in batches_of(bench.log) if h.has_delete_horizon] == [4]
    assert bench.log.aborted_transactions(0, 8) == []
    bench.timers.wall_jump_ms += DAY_MS
    bench.append(batch(("y", "1")))
    bench.roll()
    bench.clean()
    assert 4 not in [h.last_offset for h, _ in batches_of(bench.log)]


def test_an_open_transaction_and_what_follows_it_stay(bench: Bench) -> None:
    bench.append(batch(("a", "1")))
    bench.append(batch(("a", "2")))
    bench.roll()
    bench.append(
        batch(("a", "3"), producer_id=3, producer_epoch=0, base_sequence=0, is_transactional=True)
    )
    bench.append(batch(("a", "4")))
    bench.roll()
    bench.append(batch(("b", "1")))
    bench.clean()
    assert [offset for offset, _, _ in view(bench)] == [1, 2, 3, 4]
    assert bench.log.cleaner_offset == 2


def test_the_last_batch_of_a_producer_stays_emptied(bench: Bench) -> None:
    for sequence in range(3):
        bench.append(
            batch(("a", str(sequence)), producer_id=5, producer_epoch=0, base_sequence=sequence)
        )
    bench.append(batch(("a", "9")))
    bench.roll()
    bench.append(batch(("b", "1")))
    bench.clean()
    kept = [(h.base_offset, h.record_count, h.base_sequence) for h, _ in batches_of(bench.log)]
    assert kept == [(2, 0, 2), (3, 1, -1), (4, 1, -1)]
    bench.stop(clean=False)
    for snapshot in (bench.folder / str(TOPIC)).glob("*.snapshot"):
        snapshot.unlink()
    bench.open()
    assert bench.log.producers.active_producers[5].last_sequence == 2


def test_a_record_that_is_not_flushed_takes_no_older_one_away(bench: Bench) -> None:
    """A crash of the machine could lose the unflushed record, and the key with it."""
    for value in "1", "2":
        bench.append(batch(("a", value)))
        bench.roll()
    bench.log.on_high_watermark(2)
    bench.cleaner.look()
    assert len(view(bench)) == 2
    say_flushed(bench.log)
    bench.cleaner.look()
    assert view(bench) == [(1, "a", "2")]


def test_nothing_above_the_high_watermark(bench: Bench) -> None:
    filled(bench)
    say_flushed(bench.log)
    bench.log.on_high_watermark(3)
    bench.cleaner.look()
    assert len(view(bench)) == 10
    bench.log.on_high_watermark(4)
    bench.cleaner.look()
    assert [offset for offset, _, _ in view(bench)] == [1, 2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("config", "age_ms", "is_cleaned"),
    [
        pytest.param({"min_cleanable_dirty_ratio": 0.99}, 0, True, id="all-dirty"),
        pytest.param({"min_compaction_lag_ms": 1000}, 999, False, id="too-young"),
        pytest.param({"min_compaction_lag_ms": 1000}, 2000, True, id="old-enough"),
        pytest.param({"cleanup_policy": frozenset({"delete"})}, 0, False, id="not-compacted"),
        pytest.param({"cleanup_policy": frozenset({"delete", "compact"})}, 0, True, id="both"),
    ],
)
def test_when_a_log_is_due(
    tmp_path: Path, config: dict[str, Any], age_ms: int, is_cleaned: bool
) -> None:
    bench = filled(Bench(tmp_path, **config))
    bench.timers.wall_jump_ms += age_ms
    bench.clean()
    assert (len(view(bench)) < 10) == is_cleaned


def test_dirty_ratio_and_max_lag(tmp_path: Path) -> None:
    bench = filled(Bench(tmp_path, min_cleanable_dirty_ratio=0.5, max_compaction_lag_ms=5000))
    bench.clean()
    assert bench.log.cleaner_offset == 8
    bench.roll()
    bench.append(batch(("x", "1")))
    bench.clean()
    assert bench.log.cleaner_offset == 8, "a third is dirty"
    bench.timers.wall_jump_ms += 5_002
    bench.clean()
    assert bench.log.cleaner_offset == 10, "overdue"


def test_as_many_logs_at_once_as_there_are_threads(tmp_path: Path) -> None:
    """And each with its share of the memory."""
    waiting: list[tuple[Callable[[], None], Callable[[OSError | None], None]]] = []
    bench = Bench(
        tmp_path / "data",
        offload=lambda work, then: waiting.append((work, then)),
        properties={"log.cleaner.threads": "2", "log.cleaner.dedupe.buffer.size": "4194304"},
    )
    logs = [bench.log]
    for number in (1, 2):
        key = TopicPartition("table", number)
        logs.append(bench.logs.get_or_create(key, TOPIC_ID, bench.config))
    for log in logs:
        for value in "1", "2":
            record = batch(("a", value))
            append_as_leader(log, record, leader_epoch=0, now_ms=bench.timers.now_ms())
            log.roll(bench.timers.now_ms())
        say_flushed(log)
        log.on_high_watermark(log.log_end_offset)
    bench.cleaner.look()
    most = len(waiting)
    while waiting:
        most = max(most, len(waiting))
        work, then = waiting.pop(0)
        work()
        then(None)
        if not waiting:
            bench.cleaner.look()
    assert most == 2
    assert [log.cleaner_offset for log in logs] == [2, 2, 2]
    assert bench.cleaner.config.map_bytes == int((4 << 20) / 2 * 0.9)


def test_readers_keep_what_they_hold(bench: Bench) -> None:
    filled(bench)
    info = bench.log.read(0, max_bytes=1 << 20)
    assert isinstance(info.records, FileSlice)
    before = info.records.read()
    bench.clean()
    bench.timers.advance(120_000)
    bench.logs.delete_due_files(bench.timers.now_ms())
    assert not [name for name in bench.names() if name.endswith(".deleted")]
    assert info.records.read() == before


def test_a_damaged_batch_makes_the_log_uncleanable(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    filled(bench)
    segment = bench.log.segments.first
    segment.log_file().write_at(b"\xff", segment.size - 1)
    for _ in range(3):
        bench.clean()
        bench.timers.advance(60_000)
    assert TOPIC in bench.cleaner.uncleanable
    lines = [r.getMessage() for r in caplog.records if "cannot be compacted" in r.getMessage()]
    assert len(lines) == 1 and str(TOPIC) in lines[0] and "CRC" in lines[0]
    assert not [n for n in bench.names() if n.endswith((".cleaned", ".swap"))]
    assert not bench.logs.offline_directories


@pytest.mark.parametrize("step", ["plan", "last_records", "group_segments"])
def test_a_surprise_in_one_log_leaves_the_others_to_be_cleaned(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    other = bench.logs.get_or_create(TopicPartition("other", 0), None, bench.config)
    append_as_leader(other, batch(("a", "1"), ("a", "2")), leader_epoch=0, now_ms=START_MS)
    other.roll(START_MS)
    say_flushed(other)
    # imported with the first round
    module = compaction_module if step == "last_records" else cleaner_module
    original = getattr(module, step)

    def surprise(of: object, *args: object, **options: object) -> object:
        if of in (bench.log, bench.log.producers, bench.log.segments):
            raise IndexError("list index out of range")
        return original(of, *args, **options)

    monkeypatch.setattr(module, step, surprise)
    filled(bench).clean()
    for _ in range(3):
        bench.timers.advance(60_000)
    assert list(bench.cleaner.uncleanable) == [TOPIC]
    assert [record.value for record in records_of(other)] == [b"2"]
    bench.logs.delete(TOPIC)
    bench.timers.advance(60_000)
    assert not bench.cleaner.uncleanable  # no name of a deleted topic is kept


def test_a_disk_fault_takes_the_directory_offline(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(bench)

    def fail(self: files.LogFile, data: object, position: int) -> None:
        raise LogDirectoryError(self.path, "write", OSError(28, "No space left on device"))

    monkeypatch.setattr(files.LogFile, "write_at", fail)
    bench.clean()
    assert list(bench.logs.offline_directories) == [bench.folder]


def test_checkpoint_and_its_loss(bench: Bench) -> None:
    filled(bench).clean()
    path = bench.folder / "cleaner-offset-checkpoint"
    assert path.read_text() == f"0\n1\n{TOPIC.topic} 0 8\n"
    bench.stop()
    bench.open()
    assert bench.log.cleaner_offset == 8
    bench.stop()
    path.write_text("nonsense")
    bench.open()
    assert bench.log.cleaner_offset is None
    bench.roll()
    bench.clean()
    assert [offset for offset, _, _ in view(bench)] == [2, 4, 5, 7, 9]


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP, Compression.SNAPPY])
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("append_time", [False, True])
def test_old_message_sets_become_record_batches(
    tmp_path: Path, magic: int, codec: Compression, append_time: bool
) -> None:
    data = bytearray()
    for first in (0, 4):
        values = [b"1", b"2", b"3", None if first else b"4"]
        records = [
            Record(first + i, START_MS + i, b"k%d" % i, value) for i, value in enumerate(values)
        ]
        write_message_set(data, records, magic=magic, codec=codec, log_append_time=append_time)
    folder = tmp_path / str(TOPIC)
    folder.mkdir()
    (folder / f"{0:020d}.log").write_bytes(data)
    bench = Bench(tmp_path)
    assert bench.log.log_end_offset == 8
    bench.roll()
    bench.append(batch(("end", "1")))
    bench.clean()
    assert view(bench) == [
        (4, "k0", "1"), (5, "k1", "2"), (6, "k2", "3"), (7, "k3", None), (8, "end", "1"),
    ]  # fmt: skip
    headers = [header for header, _ in batches_of(bench.log)]
    assert {header.magic for header in headers} == {2}
    assert headers[0].codec is codec
    times = [r.timestamp for r in records_of(bench.log)][:4]
    last = START_MS + 3
    if magic == 0:
        assert times == [-1] * 4
    elif not append_time:
        assert times == [START_MS + i for i in range(4)]
    elif codec is not Compression.NONE:
        assert times == [last] * 4


def test_a_preallocated_segment_of_which_nothing_is_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path, preallocate=True, segment_bytes=4096)
    bench.append(batch(("a", "1")))
    bench.roll()
    bench.clean()
    bench.append(batch(("a", "2")))
    bench.roll()
    bench.append(batch(("b", "1")))
    bench.config = dataclasses.replace(bench.config, segment_bytes=100)  # no merging
    bench.log.update_config(bench.config)
    bench.clean()
    assert bench.log.segments.first.size == 0
    assert (bench.log.directory / f"{0:020d}.log").stat().st_size == 0
    assert view(bench) == [(1, "a", "2"), (2, "b", "1")]
    bench.stop(clean=False)
    bench.open()
    assert view(bench) == [(1, "a", "2"), (2, "b", "1")]
