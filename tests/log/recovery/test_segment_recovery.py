"""Recovery of one segment: the indexes and snapshots that appends would have made."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.partition_log import PartitionLog
from kbroker.log.recovery import segment_recovery
from kbroker.log.recovery.segment_recovery import IndexRebuild, recover_segment
from kbroker.log.storage import batch_reader
from kbroker.log.validator import AppendOrigin
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.control_records import build_end_transaction_marker
from kbroker.protocol.errors import KafkaError
from kbroker.settings.views.log_config import LogConfig
from tests.log.appends import append_as_leader
from tests.log.recovery.folders import NOW_MS, files_of, fill, open_log


def test_recovered_indexes_equal_those_written_while_appending(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 40)
    log.close()
    folder = tmp_path / "topic-0"
    written = {path.name: path.read_bytes() for path in folder.glob("*index")}
    assert any(written.values())
    for path in folder.glob("*index"):
        path.unlink()
    open_log(tmp_path).close()
    assert {path.name: path.read_bytes() for path in folder.glob("*index")} == written


@pytest.mark.parametrize("cut_bytes", [0, 30])
@pytest.mark.parametrize("chunk_bytes", [100, 1000, 1 << 20])
def test_runs_of_ordinary_batches_give_what_one_by_one_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int, cut_bytes: int
) -> None:
    """Producers with more batches than are remembered, new epochs, transactions, old leaders."""
    config = LogConfig(segment_bytes=20_000, segment_index_bytes=4096, index_interval_bytes=300)
    written = []
    for name in ("runs", "single"):
        log = open_log(tmp_path / name / "t-0", config)
        sequences: dict[tuple[int, int], int] = {}
        for number in range(120):
            producer, epoch = (-1, -1) if number % 3 == 0 else (number % 4, number // 60)
            in_transaction = producer == 1 and number >= 40
            sequence = sequences.get((producer, epoch), 0)
            batch = build_batch(
                [(NOW_MS + number % 7, b"key", bytes(number), [])] * 2,
                producer_id=producer,
                producer_epoch=epoch,
                base_sequence=-1 if producer < 0 else sequence,
                is_transactional=in_transaction,
            )
            sequences[producer, epoch] = sequence + 2
            append_as_leader(log, batch, leader_epoch=number // 50, now_ms=NOW_MS)
            if in_transaction and number % 20 == 1:
                marker = build_end_transaction_marker(
                    commit=False,
                    producer_id=1,
                    producer_epoch=epoch,
                    coordinator_epoch=3,
                    timestamp_ms=NOW_MS,
                )
                append_as_leader(
                    log,
                    marker,
                    leader_epoch=number // 50,
                    now_ms=NOW_MS,
                    origin=AppendOrigin.COORDINATOR,
                )
        last = Path(log.segments.active.path)
        log.release()
        with last.open("r+b") as file:
            file.truncate(last.stat().st_size - cut_bytes)
        for module in (batch_reader, segment_recovery):
            monkeypatch.setattr(module, "READ_CHUNK_BYTES", chunk_bytes)
        if name == "single":
            monkeypatch.setattr(
                IndexRebuild, "run", lambda self, data, at, position, offset, *rest: (at, offset)
            )
        log = open_log(tmp_path / name / "t-0", config)
        states = {
            producer: [getattr(state, slot) for slot in state.__slots__]
            for producer, state in log.producers.active_producers.items()
        }
        log.close()
        written.append((log.log_end_offset, states, files_of(tmp_path / name / "t-0")))
    assert written[0] == written[1]
    assert len(written[0][2]) > 8


def recovered(log: PartitionLog, index: int, **options: bool) -> int:
    return recover_segment(log, log.segments[index], now_ms=NOW_MS, **options)


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """Several segments, open."""
    log = open_log(tmp_path)
    fill(log, 60)
    log.flush()
    assert len(log.segments) > 2
    return log


def damage(log: PartitionLog, index: int, at: int) -> None:
    """Flip a bit of the last batch but one of a segment."""
    path = Path(log.segments[index].path)
    content = bytearray(path.read_bytes())
    position = [position for position, _ in iter_batches(content)][-2]
    content[position + at] ^= 1
    path.write_bytes(content)


def test_a_sound_segment_loses_nothing(log: PartitionLog) -> None:
    size = log.segments.first.size
    entries = log.segments.first.offset_index.entries()
    assert entries and recovered(log, 0) == 0
    assert log.segments.first.size == size
    assert log.segments.first.offset_index.entries() == entries


@pytest.mark.parametrize("at", [3, 11, 16, 20, 60])
def test_a_segment_is_cut_at_its_first_invalid_batch(log: PartitionLog, at: int) -> None:
    """A base offset, a length, the magic, the CRC, a record."""
    segment = log.segments.first
    sizes = [header.size_bytes for _, header in iter_batches(Path(segment.path).read_bytes())]
    if at == 3:  # one that decreases, or is too far for an index entry
        at = 0
    damage(log, 0, at)
    assert recovered(log, 0) == sum(sizes[-2:])
    assert Path(segment.path).stat().st_size == segment.size == sum(sizes[:-2])
    assert len(log.segments) > 2, "segments behind it are the caller's to remove"


def test_segments_behind_a_cut_are_removed_on_demand(log: PartitionLog) -> None:
    damage(log, 1, 60)
    assert recovered(log, 1, cut_following=True) > 0
    assert len(log.segments) == 2


def test_a_segment_that_may_not_be_cut_is_left_as_it_is(log: PartitionLog) -> None:
    damage(log, 0, 60)
    content = Path(log.segments.first.path).read_bytes()
    with pytest.raises(KafkaError, match="no valid record batch at position"):
        recovered(log, 0, may_cut=False)
    assert Path(log.segments.first.path).read_bytes() == content


def test_the_state_of_producers_of_the_log_is_not_touched(log: PartitionLog) -> None:
    producers, end = log.producers, log.log_end_offset
    before = producers.to_snapshot()
    recovered(log, 0)
    assert log.producers is producers and producers.to_snapshot() == before
    assert (producers.map_end_offset, log.log_end_offset) == (end, end)
