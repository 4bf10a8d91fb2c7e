"""Which files a flush syncs, and how far the recovery point moves."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.partition_log import PartitionLog
from kbroker.log.state.flush import LogFlush
from kbroker.log.state.flushing import begin_flush, flush_now, limit_flushes
from kbroker.log.storage.files import LogDirectoryError, LogFile
from kbroker.protocol.errors import ErrorCode, KafkaError
from tests.log.state.logs import NOW_MS, append, open_log


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """Offsets 0 to 5; everything is flushed but 4 and 5."""
    log = open_log(tmp_path)
    append(log, 2)
    log.roll(NOW_MS)
    append(log, 2)
    flush_now(log, 4)
    append(log, 2)
    return log


def names_of(flush: LogFlush) -> list[str]:
    return [Path(file.path).name for file in flush.files]


def test_only_the_file_with_new_records_is_synced(log: PartitionLog) -> None:
    flush = begin_flush(log, 6)
    assert names_of(flush) == [f"{2:020d}.log"]
    flush.sync()
    flush.finish()
    assert log.recovery_point == 6 and log.first_unflushed_ms is None
    assert names_of(begin_flush(log, 6)) == []


def test_the_files_of_a_closed_segment_and_its_snapshot(log: PartitionLog) -> None:
    log.roll(NOW_MS)
    files = names_of(begin_flush(log, 6))
    closed = [f"{2:020d}.{kind}" for kind in ("log", "index", "timeindex")]
    assert [name for name in files if name in closed] == closed
    assert f"{6:020d}.snapshot" in files
    assert log.directory.name in files, "the names in the folder, last"
    assert files.index(log.directory.name) > files.index(closed[-1])


def test_an_epoch_and_a_topic_id_are_synced_with_the_records(log: PartitionLog) -> None:
    append(log, 1, epoch=1)
    log.set_topic_id(bytes(15) + b"\x01")
    files = names_of(begin_flush(log, 7))
    assert "leader-epoch-checkpoint" in " ".join(files) and "partition.metadata" in files


def test_a_flush_that_was_not_carried_out_is_repeated_in_full(log: PartitionLog) -> None:
    append(log, 1, epoch=1)
    first = begin_flush(log, 7)
    expected = names_of(first)
    first.finish(is_synced=False)
    assert log.recovery_point == 4 and log.first_unflushed_ms is not None
    second = begin_flush(log, 7)
    assert set(expected) <= set(names_of(second))
    second.sync()
    second.finish()
    assert log.recovery_point == 7 and log.flushes == ()


def test_two_flushes_end_in_any_order(log: PartitionLog) -> None:
    first = begin_flush(log, 5)
    second = begin_flush(log, 6)
    assert log.flushes == (first, second)
    second.finish()
    assert log.recovery_point == 6
    first.finish()
    assert log.recovery_point == 6 and log.flushes == ()


def test_what_is_cut_meanwhile_does_not_count(log: PartitionLog) -> None:
    flush = begin_flush(log, 6)
    limit_flushes(log, 5)
    flush.finish()
    assert log.recovery_point == 5
    assert log.first_unflushed_ms is not None


def test_a_flush_beyond_the_end_goes_to_the_end(log: PartitionLog) -> None:
    flush_now(log, 1000)
    assert log.recovery_point == 6


def test_a_flushed_log_is_not_touched(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    flush_now(log, 6)

    def no(file: LogFile) -> None:
        raise AssertionError(file)

    monkeypatch.setattr(LogFile, "sync", no)
    flush_now(log, 6)
    flush_now(log, 3)


def test_a_failed_sync_ends_the_log_and_is_not_repeated(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = LogDirectoryError(log.directory, "sync", OSError(5, "Input/output error"))

    def fail(file: LogFile) -> None:
        raise failure

    monkeypatch.setattr(LogFile, "sync", fail)
    with pytest.raises(LogDirectoryError):
        flush_now(log, 6)
    assert log.failure is failure and log.recovery_point == 4
    with pytest.raises(KafkaError) as raised:
        flush_now(log, 6)
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_closed_log_is_not_flushed(log: PartitionLog) -> None:
    """Its folder may have been renamed: that is no fault of the directory."""
    log.mark_for_deletion("0" * 32)
    with pytest.raises(KafkaError) as raised:
        flush_now(log, 6)
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.failure is None and log.recovery_point == 4
