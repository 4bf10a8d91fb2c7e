"""Compaction of one log: what a reader sees afterwards, when a log is due, what a crash leaves."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbroker.log.cleaner import cleaner as cleaner_module
from kbroker.log.cleaner import round as cleaning_round
from kbroker.log.cleaner import swap
from kbroker.log.storage import disk_jobs, files, segments
from kbroker.log.storage.checkpoint import read_offsets
from kbroker.log.storage.files import FileSlice, LogDirectoryError
from kbroker.model import TopicPartition
from kbroker.protocol.batch_header import iter_batches
from kbroker.protocol.compression import Compression
from kbroker.protocol.control_records import build_end_transaction_marker
from kbroker.protocol.record_conversion import write_message_set
from kbroker.protocol.records import Record, iter_records
from tests.log.appends import append_as_leader
from tests.log.cleaner.cleaning import (
    FILLED_CLEAN,
    TOPIC,
    TOPIC_ID,
    Bench,
    batch,
    batches_of,
    filled,
    records_of,
    say_flushed,
    view,
)
from tests.sim.offload import HeldOffload
from tests.sim.timers import START_MS

DAY_MS = 86_400_000


class Crash(BaseException):
    """The process ends here."""


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
    """delete.retention.ms may be any number of 63 bits: beyond the last moment is never."""
    bench = Bench(tmp_path / "data", delete_retention_ms=retention_ms)
    for _ in range(3):
        bench.append(batch(("a", None), ("b", "1"), timestamp=timestamp))
        bench.roll()
        bench.clean()
    assert not bench.cleaner.uncleanable
    records = {(r.offset, r.key): (r.timestamp, r.value) for r in records_of(bench.log)}
    assert records[5, b"b"] == (timestamp + 1, b"1")
    # a delta from the horizon to a time that far back has 64 bits: such a tombstone goes early
    is_kept = retention_ms > 0 and timestamp > -(2**63)
    assert not is_kept or records[4, b"a"] == (timestamp, None)
    bench.append(batch(("c", "1")))
    bench.roll()
    bench.clean()
    is_gone = not any(r.key == b"a" for r in records_of(bench.log))
    assert is_gone == (not is_kept)


def transaction(
    bench: Bench, producer_id: int, epoch: int, items: list[tuple[str, str]], *, commit: bool
) -> None:
    bench.append(
        batch(*items, producer_id=producer_id, producer_epoch=epoch, base_sequence=0,
              is_transactional=True)
    )  # fmt: skip
    end_transaction(bench, producer_id, epoch + 1, commit=commit)


def end_transaction(bench: Bench, producer_id: int, epoch: int, *, commit: bool) -> None:
    marker = build_end_transaction_marker(
        commit=commit, producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=0,
        timestamp_ms=bench.timers.now_ms(), base_offset=bench.log.log_end_offset,
        partition_leader_epoch=0,
    )  # fmt: skip
    bench.replay(marker)


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
    # the marker of the aborted one gets a horizon once nothing of it is left, and goes after it
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
    """A crash of the machine could lose it, and the key with it."""
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


def steps_of_a_round(folder: Path) -> int:
    held = HeldOffload()
    bench = filled(Bench(folder, offload=held))
    bench.clean()
    count = 0
    while held.run_one():
        count += 1
    assert view(bench) == FILLED_CLEAN
    bench.stop()
    return count


@pytest.mark.parametrize("change", ["truncate", "delete", "retire", "policy", "stop", "append"])
def test_the_log_changes_between_any_two_steps(tmp_path: Path, change: str) -> None:
    steps = steps_of_a_round(tmp_path / "count")
    if change == "truncate":
        steps -= 2  # before these, names and checkpoint, the older record has gone already
    for step in range(steps):
        held = HeldOffload()
        bench = filled(Bench(tmp_path / str(step), offload=held))
        bench.clean()
        for _ in range(step):
            held.run_one()
        log = bench.log
        match change:
            case "truncate":
                log.truncate_to(6, now_ms=START_MS)
                bench.append(batch(("n", "1")))
            case "delete":
                bench.logs.delete(TOPIC)
            case "retire":
                log.delete_records_before(5)
                log.delete_old_segments(START_MS)
            case "policy":
                log.update_config(Bench(tmp_path / f"x{step}", cleanup_policy=frozenset()).config)
            case "stop":
                bench.cleaner.request_stop()
                bench.cleaner.finish_stop()
                held.held.clear()
            case "append":
                bench.append(batch(("n", "1")))
        while held.run_one():
            pass
        assert not bench.cleaner.uncleanable
        assert not bench.logs.offline_directories
        if change == "delete":
            continue
        seen = dict((key, value) for _, key, value in view(bench))
        assert seen["a"] == ("2" if change == "truncate" else "4")
        assert seen.get("n") == ("1" if change in ("truncate", "append") else None)
        leftovers = [n for n in bench.names() if n.endswith((".cleaned", ".swap"))]
        assert not leftovers
        bench.stop()


@pytest.mark.parametrize("back", [0, 1, 2])
def test_a_log_that_is_cut_after_its_swap_is_not_clean_beyond_the_cut(
    tmp_path: Path, back: int
) -> None:
    """While a worker changes the names, or writes the checkpoint: what is appended after the cut
    has never been looked at.
    """
    steps = steps_of_a_round(tmp_path / "count")
    held = HeldOffload()
    bench = filled(Bench(tmp_path / "data", offload=held))
    bench.clean()
    for _ in range(steps - back):
        held.run_one()
    bench.logs.truncate(TOPIC, 6)
    while held.run_one():
        pass
    assert read_offsets(bench.folder / "cleaner-offset-checkpoint").get(TOPIC, 0) <= 6
    assert bench.log.cleaner_offset is None or bench.log.cleaner_offset <= 6
    bench.append(batch(("n", "1"), ("n", "2"), ("n", "3")))
    bench.roll()
    bench.clean()
    while held.run_one():
        pass
    assert [value for _, key, value in view(bench) if key == "n"] == ["3"]
    bench.stop()
    bench.open()
    assert bench.log.cleaner_offset == 9
    bench.stop()


def test_a_crash_at_each_file_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after each rename and unlink of a round, and each write of the new segment."""
    crash_at = -1
    count = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if 0 < crash_at <= count:  # a dead process does no more
                raise Crash
            return function(*arguments, **options)

        return run

    def patch(context: pytest.MonkeyPatch) -> None:
        for module in (swap, disk_jobs, segments):
            for name in ("rename", "unlink", "sync_directory"):
                if hasattr(module, name):
                    context.setattr(module, name, counted(getattr(module, name)))
        for name in ("write_at", "truncate", "sync"):
            method = getattr(files.LogFile, name)
            context.setattr(files.LogFile, name, counted(method))
        context.setattr(cleaner_module, "write_offsets", counted(cleaner_module.write_offsets))

    total = None
    while total is None or crash_at <= total:
        bench = filled(Bench(tmp_path / f"{crash_at}"))
        bench.log.flush()
        count = 0
        with monkeypatch.context() as context:
            patch(context)
            if total is None:
                bench.clean()
                total, crash_at = count, 0
                assert total > 20
                continue
            crash_at += 1
            count = 0
            try:
                bench.clean()
            except Crash:
                pass
            else:
                break
            bench.log.failure = LogDirectoryError("", "", OSError())
            bench.cleaner.finish_stop()
        bench.logs.close(clean=False)
        bench.open()
        reopened = view(bench)
        assert reopened in (
            [(0, "a", "1"), (1, "b", "1"), (2, "c", "1"), (3, "a", "2"), (4, "b", None),
             (5, "d", "1"), (6, "a", "3"), *FILLED_CLEAN[3:]],
            FILLED_CLEAN,
        ), crash_at  # fmt: skip
        assert bench.log.log_end_offset == 10
        assert not [n for n in bench.names() if n.endswith((".cleaned", ".swap", ".deleted"))]
        bench.clean()
        assert view(bench) == FILLED_CLEAN
        bench.stop()
    assert crash_at > 20


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
    original = getattr(cleaner_module, step)

    def surprise(of: object, *args: object, **options: object) -> object:
        if of in (bench.log, bench.log.producers, bench.log.segments):
            raise IndexError("list index out of range")
        return original(of, *args, **options)

    monkeypatch.setattr(cleaner_module, step, surprise)
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


def test_the_throttle() -> None:
    now = 0.0
    throttle = cleaning_round.Throttle(1000.0, clock=lambda: now)
    assert throttle.charge(100) == 0
    assert throttle.charge(900) == pytest.approx(1.0)
    now = 1.0
    assert throttle.charge(100) == 0
    now = 5.0
    assert throttle.charge(1000) == 0, "what was not used is not saved up beyond the window"


@pytest.mark.parametrize("rate", [0.0, -1.0, float("-inf"), float("nan"), float("inf"), 1.8e308])
def test_a_throttle_without_a_number_above_0_is_none(rate: float) -> None:
    """log.cleaner.io.max.bytes.per.second has no validator, in Kafka neither."""
    throttle = cleaning_round.Throttle(rate, clock=lambda: 0.0)
    assert throttle.charge(1 << 40) == 0


@pytest.mark.parametrize("rate", [5e-324, 1e-9])
def test_a_throttle_asks_for_no_wait_that_a_thread_cannot_do(rate: float) -> None:
    throttle = cleaning_round.Throttle(rate, clock=lambda: 0.0)
    assert 0 < throttle.charge(1) <= threading.TIMEOUT_MAX


KEYS = st.sampled_from(["a", "b", "c", "d"])
ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.lists(st.tuples(KEYS, st.sampled_from(["1", "2", None])), min_size=1, max_size=4),
            st.sampled_from(list(Compression)),
        ),
        st.tuples(st.just("begin"), st.integers(1, 2), KEYS),
        st.tuples(st.just("end"), st.integers(1, 2), st.booleans()),
        st.tuples(st.just("roll")),
        st.tuples(st.just("clean")),
        st.tuples(st.just("wait"), st.sampled_from([1000, DAY_MS])),
        st.tuples(st.just("restart"), st.booleans()),
    ),
    max_size=25,
)


class Model:
    """What was written, and what a reader must and may see of it."""

    def __init__(self) -> None:
        self.records: dict[int, tuple[str, str | None]] = {}
        self.decided: dict[int, bool] = {}
        self.open: dict[int, list[int]] = {}
        self.epochs = {1: 0, 2: 0}

    def committed(self) -> dict[int, tuple[str, str | None]]:
        return {o: r for o, r in self.records.items() if self.decided.get(o, True)}


def committed_view(bench: Bench) -> dict[int, tuple[str, str | None]]:
    """As a read_committed consumer works it out from batches and aborted transactions."""
    log = bench.log
    unstable = log.first_unstable_offset
    end = log.log_end_offset if unstable is None else unstable
    aborted = log.aborted_transactions(0, end)
    seen = {}
    for header, data in batches_of(log):
        gone = any(
            t.producer_id == header.producer_id
            and t.first_offset <= header.base_offset <= t.last_offset
            for t in aborted
        )
        if header.is_control or header.base_offset >= end or gone:
            continue
        for r in iter_records(data, header):
            value = None if r.value is None else r.value.decode()
            seen[r.offset] = ((r.key or b"").decode(), value)
    return seen


def apply(bench: Bench, model: Model, action: tuple[Any, ...]) -> None:
    end = bench.log.log_end_offset
    match action:
        case ("append", items, codec):
            bench.append(batch(*items, compression=codec))
            model.records |= {end + i: item for i, item in enumerate(items)}
        case ("begin", producer_id, key):
            offsets = model.open.setdefault(producer_id, [])
            bench.append(
                batch((key, f"t{end}"), producer_id=producer_id, is_transactional=True,
                      producer_epoch=model.epochs[producer_id], base_sequence=len(offsets))
            )  # fmt: skip
            model.records[end] = (key, f"t{end}")
            model.decided[end] = False
            offsets.append(end)
        case ("end", producer_id, commit) if producer_id in model.open:
            model.epochs[producer_id] += 1
            end_transaction(bench, producer_id, model.epochs[producer_id], commit=commit)
            for offset in model.open.pop(producer_id):
                model.decided[offset] = commit
        case ("roll",):
            bench.roll()
        case ("clean",):
            bench.clean()
        case ("wait", ms):
            bench.timers.wall_jump_ms += ms
        case ("restart", clean):
            bench.stop(clean=clean)
            bench.open()
            bench.log.on_high_watermark(bench.log.log_end_offset)


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(actions=ACTIONS)
def test_a_reader_sees_the_last_value_of_each_key(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[Any, ...]]
) -> None:
    check_model(tmp_path_factory.mktemp("model"), actions)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(max_examples=3000, deadline=None)
@given(actions=ACTIONS)
def test_a_reader_sees_the_last_value_of_each_key_at_length(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[Any, ...]]
) -> None:
    check_model(tmp_path_factory.mktemp("model"), actions)


def check_model(folder: Path, actions: list[tuple[Any, ...]]) -> None:
    bench = Bench(folder, segment_index_bytes=4096, segment_bytes=700)
    model = Model()
    for action in actions:
        apply(bench, model, action)
        bench.log.on_high_watermark(bench.log.log_end_offset)
        assert not bench.cleaner.uncleanable
        offsets = [r.offset for r in records_of(bench.log)]
        assert offsets == sorted(set(offsets)), "order and no doubles"
        committed = model.committed()
        unstable = min((o[0] for o in model.open.values()), default=bench.log.log_end_offset)
        visible = {o: r for o, r in committed.items() if o < unstable}
        seen = committed_view(bench)
        assert seen.items() <= visible.items()
        last = {key: offset for offset, (key, _) in sorted(visible.items())}
        for key, offset in last.items():
            is_tombstone = visible[offset][1] is None
            assert offset in seen or is_tombstone, f"{key} at {offset}"
        states = bench.log.producers.active_producers
        for producer_id, offsets in model.open.items():
            assert states[producer_id].transaction_first_offset == offsets[0]
            assert states[producer_id].last_sequence == len(offsets) - 1
    bench.stop()


def test_what_a_reader_holds_stays_valid_at_every_step(tmp_path: Path) -> None:
    held = HeldOffload()
    bench = filled(Bench(tmp_path, offload=held))
    bench.clean()
    slices: list[tuple[FileSlice, bytes]] = []
    while True:
        seen = view(bench)
        assert {key: value for _, key, value in seen} == {
            key: value for _, key, value in FILLED_CLEAN
        }
        for offset in range(10):
            found = bench.log.read(offset, max_bytes=100).records
            assert isinstance(found, FileSlice)
            slices.append((found, found.read()))
        if not held.run_one():
            break
    bench.logs.delete_due_files(START_MS + DAY_MS)
    assert view(bench) == FILLED_CLEAN
    assert all(found.read() == data for found, data in slices)


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
