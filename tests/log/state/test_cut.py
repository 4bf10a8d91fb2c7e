"""A truncation by a worker: what the loop sees meanwhile, and that the result equals that of a
truncation on the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from kbroker.log.manager import LogManager
from kbroker.log.partition_log import PartitionLog
from kbroker.log.state import truncation
from kbroker.log.state.cut import Cut
from kbroker.log.state.rolling import begin_roll
from kbroker.log.state.truncation import truncate_fully, truncate_to
from kbroker.log.storage import names
from kbroker.log.storage.checkpoint import read_offsets
from kbroker.log.storage.files import LogDirectoryError
from kbroker.model import InvariantError
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.broker import BrokerConfig
from tests.log.state.logs import KEY, NOW_MS, append, open_log, produce
from tests.own_threads import own_threads


def make_log(folder: Path) -> PartitionLog:
    """Offsets 0 to 35 in segments at 0, 10, 20 and 30, each of its own leader epoch; the last one
    is idempotent.
    """
    log = open_log(folder)
    for epoch in range(3):
        append(log, 10, epoch=epoch)
        log.roll(NOW_MS)
    for sequence in range(6):
        produce(log, 7, sequence, epoch=3)
    return log


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return make_log(tmp_path / "log")


def begin(
    log: PartitionLog,
    offset: int,
    *,
    is_full: bool = False,
    then: Callable[[], None] = lambda: None,
) -> Cut:
    cut = log.begin_cut(offset, is_full=is_full, now_ms=NOW_MS, then=then)
    assert cut is not None
    return cut


def facts(log: PartitionLog) -> dict[str, object]:
    """The state of a log, in memory and on disk."""
    producers = {
        number: (state.producer_epoch, state.last_sequence)
        for number, state in log.producers.active_producers.items()
    }
    return {
        "ends": (log.log_start_offset, log.log_end_offset, log.high_watermark, log.cleaner_offset),
        "bases": list(log.segments.base_offsets),
        "sizes": [segment.size for segment in log.segments],
        "epochs": log.leader_epochs.entries,
        "snapshots": (log.snapshots.offsets, log.last_snapshot_offset),
        "producers": producers,
        "count": log.truncation_count,
        "deleted": list(log.segments.deleted_files),
        "files": {path.name: path.read_bytes() for path in sorted(log.directory.iterdir())},
    }


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("offset", [0, 3, 10, 19, 20, 29, 30, 31, 35])
def test_the_log_is_what_a_truncation_on_the_loop_makes(
    tmp_path: Path, offset: int, is_full: bool
) -> None:
    logs = [make_log(tmp_path / name / "t-0") for name in ("loop", "worker")]
    for each in logs:
        each.high_watermark, each.cleaner_offset = 12, 25
        each.flush()
    (truncate_fully if is_full else truncate_to)(logs[0], offset, now_ms=NOW_MS)
    cut = begin(logs[1], offset, is_full=is_full)
    cut.work()
    cut.end(None)
    expected, found = facts(logs[0]), facts(logs[1])
    prefix, other = str(logs[0].directory), str(logs[1].directory)
    deleted = expected["deleted"]
    assert isinstance(deleted, list)
    expected["deleted"] = [(due, path.replace(prefix, other)) for due, path in deleted]
    assert found == expected
    for each in logs:
        each.check()
        assert each.recovery_point <= offset
        append(each, 1, epoch=9)
        each.roll(NOW_MS)
        each.flush()
        assert each.recovery_point == each.log_end_offset == offset + 1


def test_the_log_is_frozen_until_the_cut_is_settled(log: PartitionLog) -> None:
    log.high_watermark, log.recovery_point = 15, 33
    flush = log.begin_flush(36)
    flush.sync()
    told: list[int] = []
    cut = begin(log, 12, then=lambda: told.append(log.log_end_offset))
    assert log.frozen
    assert log.log_end_offset == 36
    assert log.recovery_point == 11, "its checkpoint is written before anything is cut"
    flush.finish()
    assert log.recovery_point == 11, "a flush that was under way covers nothing that is cut"
    cut.work()
    assert log.frozen and log.log_end_offset == 36 and not told
    cut.end(None)
    assert not log.frozen
    assert told == [12]
    cut.end(None)
    assert told == [12]
    assert log.recovery_point <= 12


def test_a_log_that_is_needed_now_finishes_the_cut_itself(log: PartitionLog) -> None:
    told: list[int] = []
    cut = begin(log, 12, then=lambda: told.append(log.log_end_offset))
    log.thaw()
    assert told == [12] and not log.frozen
    cut.work()
    cut.end(None)
    assert told == [12]
    log.thaw()
    log.close()


def test_a_close_finishes_the_cut(log: PartitionLog) -> None:
    begin(log, 12)
    log.close()
    assert log.log_end_offset == 12
    folder = log.directory
    log = PartitionLog.open(folder, KEY, log.config, clean_shutdown=True, now_ms=NOW_MS)
    assert log.log_end_offset == 12


def test_a_log_that_was_let_go_is_not_cut_for_its_owner(log: PartitionLog) -> None:
    told: list[int] = []
    begin(log, 12, then=lambda: told.append(1))
    log.release()
    assert not log.jobs.work_one()
    assert not told


def test_a_log_that_is_let_go_during_the_cut_is_not_cut_for_its_owner(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = truncation.sync_directory

    def sync(path: Path) -> None:
        log.release()
        original(path)

    monkeypatch.setattr(truncation, "sync_directory", sync)
    told: list[int] = []
    cut = begin(log, 12, then=lambda: told.append(1))
    cut.work()
    assert log.closed
    cut.end(None)
    assert not told and log.log_end_offset == 36


def test_a_configuration_that_changes_meanwhile_counts(log: PartitionLog) -> None:
    cut = begin(log, 25)
    config = log.config
    log.update_config(type(config)(segment_bytes=config.segment_bytes, index_interval_bytes=77))
    cut.work()
    cut.end(None)
    assert {segment.index_interval_bytes for segment in log.segments} == {77}


def test_where_nothing_is_cut_there_is_no_job(log: PartitionLog) -> None:
    log.leader_epochs.assign(4, 36)
    assert log.begin_cut(36, is_full=False, now_ms=NOW_MS, then=lambda: None) is None
    assert log.leader_epochs.latest_epoch == 3
    assert log.jobs.is_idle and not log.frozen


def test_a_job_that_waits_has_to_be_done_first(log: PartitionLog) -> None:
    begin_roll(log, NOW_MS, 36)
    with pytest.raises(InvariantError, match="cannot be cut"):
        begin(log, 12)
    with pytest.raises(InvariantError, match="cannot be cut"):
        begin(log, -1, is_full=True)


def test_a_disk_that_fails_ends_the_log(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = LogDirectoryError(log.directory, "sync", OSError(5, "Input/output error"))

    def fail(path: object) -> None:
        raise failure

    monkeypatch.setattr(truncation, "sync_directory", fail)
    told: list[int] = []
    cut = begin(log, 12, then=lambda: told.append(1))
    with pytest.raises(LogDirectoryError):
        cut.work()
    cut.end(failure)
    assert log.failure is cut.failure is failure
    assert not log.frozen and not told
    with pytest.raises(LogDirectoryError):
        begin(log, 12)


def test_a_damaged_segment_ends_the_log_and_not_its_directory(log: PartitionLog) -> None:
    segment = log.segments[1]
    Path(segment.path).write_bytes(bytes(segment.size))
    for index in (segment.offset_index, segment.time_index):
        index.reset()
    told: list[KafkaError] = []
    cut = log.begin_cut(15, is_full=False, now_ms=NOW_MS, then=lambda: None, on_damage=told.append)
    assert cut is not None
    cut.work()
    assert not told and log.frozen
    cut.end(None)
    assert cut.failure is not None and log.failure is cut.failure
    assert log.jobs.failure is None, "the directory has no fault"
    (error,) = told
    assert error is log.failure and error.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert segment.path in error.message and not log.frozen
    with pytest.raises(KafkaError) as caught:
        begin(log, 12)
    assert caught.value is error
    files = {path.name: path.read_bytes() for path in log.directory.iterdir()}
    log.close()
    assert files == {path.name: path.read_bytes() for path in log.directory.iterdir()}


def test_checkpoints_come_down_before_anything_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    config = BrokerConfig.from_properties({"log.dirs": str(folder), "node.id": "1"})
    manager = LogManager(config, now_ms=lambda: NOW_MS, random=Random(1), threads=own_threads)
    manager.load()
    log = manager.get_or_create(KEY, None, manager.default_log_config)
    append(log, 10)
    log.flush()
    log.high_watermark = 8
    log.delete_records_before(8)
    earlier = [*manager.checkpoints.of_recovery_points(), *manager.checkpoints.of_start_offsets()]
    told: list[int] = []
    cut = manager.begin_cut(KEY, 5, is_full=False, then=lambda: told.append(1))
    assert cut is not None
    before: list[tuple[int, int]] = []
    original = truncation.cut_segments

    def cut_segments(*args: object, **options: object) -> None:
        points = read_offsets(folder / names.RECOVERY_POINTS)
        starts = read_offsets(folder / names.LOG_START_OFFSETS)
        before.append((points[KEY], starts[KEY]))
        original(*args, **options)  # type: ignore[arg-type]  # passed on as they are

    monkeypatch.setattr(truncation, "cut_segments", cut_segments)
    assert list(manager.retire(NOW_MS)) == [], "retention leaves a frozen log alone"
    cut.work()
    cut.end(None)
    assert before == [(4, 5)]
    assert told == [1]
    for checkpoint in earlier:  # which a thread was slow to write
        checkpoint.write()
    assert read_offsets(folder / names.RECOVERY_POINTS)[KEY] == 4
    manager.close()
