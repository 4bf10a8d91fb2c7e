"""The producer state of a log is restored from its snapshots and batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.partition_log import PartitionLog
from kbroker.log.state import producers as producers_module
from kbroker.log.state.producers import rebuild_producers, take_snapshot
from kbroker.log.storage import names
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.control_records import build_end_transaction_marker
from tests.log.state.logs import NOW_MS, append, open_log, produce


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """Producer 7 in both segments, 8 only in the first; the second begins at 4."""
    log = open_log(tmp_path)
    for sequence in range(3):
        produce(log, 7, sequence)
    produce(log, 8, 0)
    log.roll(NOW_MS)
    produce(log, 7, 3)
    return log


def sequences(log: PartitionLog) -> dict[int, int]:
    return {key: state.last_sequence for key, state in log.producers.active_producers.items()}


def rebuild(log: PartitionLog, *, clean_shutdown: bool = True) -> None:
    rebuild_producers(log, now_ms=NOW_MS, clean_shutdown=clean_shutdown)


@pytest.mark.parametrize("clean_shutdown", [True, False])
@pytest.mark.parametrize("kept", [[4], [], [2, 4]])
def test_the_same_from_any_snapshot_and_from_none(
    log: PartitionLog, clean_shutdown: bool, kept: list[int]
) -> None:
    expected = sequences(log)
    for offset in list(log.snapshots.offsets):
        if offset not in kept:
            log.snapshots.delete(offset)
    rebuild(log, clean_shutdown=clean_shutdown)
    assert sequences(log) == expected == {7: 3, 8: 0}
    assert log.producers.map_end_offset == 5
    assert log.last_snapshot_offset == 5 == log.snapshots.latest


def test_only_batches_behind_the_snapshot_are_read(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, int]] = []
    real = producers_module.read_batches

    def noted(path: str, position: int, end: int) -> object:
        read.append((Path(path).name, position))
        return real(path, position, end)

    monkeypatch.setattr(producers_module, "read_batches", noted)
    rebuild(log)
    assert read == [(names.offset_name(4, names.LOG), 0)]


def test_a_damaged_snapshot_is_deleted_and_the_one_before_it_is_used(
    log: PartitionLog, caplog: pytest.LogCaptureFixture
) -> None:
    take_snapshot(log)
    path = log.directory / names.offset_name(5, names.SNAPSHOT)
    path.write_bytes(b"\x00\x01" + bytes(20))
    rebuild(log)
    assert "snapshot 5" in caplog.text
    assert sequences(log) == {7: 3, 8: 0}


def test_a_snapshot_is_written_once_for_an_offset(log: PartitionLog) -> None:
    take_snapshot(log)
    path = log.directory / names.offset_name(5, names.SNAPSHOT)
    path.write_bytes(b"kept")
    take_snapshot(log)
    assert path.read_bytes() == b"kept"


def test_snapshots_behind_the_end_and_at_the_start_go(log: PartitionLog) -> None:
    log.snapshots.write(100, log.producers.to_snapshot())
    log.snapshots.write(2, log.producers.to_snapshot())
    log.log_start_offset = 4
    rebuild(log)
    assert log.snapshots.offsets == [5]


def test_an_open_transaction_is_open_again_and_an_ended_one_is_not(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    produce(log, 7, 0, is_transactional=True)
    produce(log, 8, 0, is_transactional=True)
    marker = build_end_transaction_marker(
        commit=True,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=NOW_MS,
        base_offset=2,
    )
    log.append_as_follower(marker, now_ms=NOW_MS)
    for offset in list(log.snapshots.offsets):
        log.snapshots.delete(offset)
    rebuild(log, clean_shutdown=False)
    log.on_high_watermark(3)
    assert log.first_unstable_offset == 1


def test_a_log_of_before_snapshots_is_not_read_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last batch is a message of an old format, which has no producer, as in Kafka."""
    log = open_log(tmp_path)
    monkeypatch.setattr(producers_module, "_is_without_producers", lambda state: True)
    append(log, 3)
    for offset in list(log.snapshots.offsets):
        log.snapshots.delete(offset)
    monkeypatch.delattr(producers_module, "read_batches")
    rebuild(log)
    assert log.snapshots.latest == 3


def test_what_a_follower_appends_at_once_hides_no_aborted_transaction(tmp_path: Path) -> None:
    """Producer 7 aborts two transactions; one of producer 8 begins after them. A follower of
    Kafka's has 4 as the last stable offset of the first, so that a read up to 4 ends with it.
    """
    batches = bytearray()
    for base_offset in (0, 2):
        batches += record(7, base_offset)
        batches += build_end_transaction_marker(
            commit=False,
            producer_id=7,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=NOW_MS,
            base_offset=base_offset + 1,
            partition_leader_epoch=0,
        )
    batches += record(8, 4)
    log = open_log(tmp_path)
    log.append_as_follower(batches, now_ms=NOW_MS)
    index = log.segments.active.transaction_index
    assert [tuple(entry) for entry in index.entries()] == [(7, 0, 1, 2), (7, 2, 3, 4)]
    assert [entry.first_offset for entry in log.aborted_transactions(0, 4)] == [0, 2]


def record(producer_id: int, base_offset: int) -> bytearray:
    """A batch of a transaction, with one record."""
    return build_batch(
        [(NOW_MS, None, b"value", [])],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=base_offset // 2,
        is_transactional=True,
        partition_leader_epoch=0,
    )
