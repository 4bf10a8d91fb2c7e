"""A producer retries batches that a killed broker had written but not acknowledged, also across a
roll.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.partition_log import PartitionLog
from kbroker.log.producer import recent_batches
from kbroker.log.storage import names
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.views.log_config import LogConfig
from tests.log.appends import append_as_leader

NOW_MS = 1_700_000_000_000
PRODUCER = 5
SMALL = LogConfig(index_interval_bytes=100)


def open_log(folder: Path, *, config: LogConfig = SMALL, **options: object) -> PartitionLog:
    return PartitionLog.open(
        folder / "t-0",
        TopicPartition("t", 0),
        config,
        now_ms=NOW_MS,
        **options,  # type: ignore[arg-type]  # the keywords of open
    )


def send(log: PartitionLog, sequence: int, *, epoch: int = 0, producer_id: int = PRODUCER) -> int:
    """The base offset; -1 if the batch was a duplicate."""
    batch = build_batch(
        [(NOW_MS, b"key", b"value", [])] * 2,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    info = append_as_leader(log, batch, leader_epoch=0, now_ms=NOW_MS)
    return -1 if info.duplicate else info.base_offset


def killed(log: PartitionLog, folder: Path, **options: object) -> PartitionLog:
    """Rolled, killed, and reopened; the recovery point is after the roll."""
    log.roll(NOW_MS)
    end = log.log_end_offset
    log.release()
    return open_log(folder, recovery_point=end, **options)  # type: ignore[arg-type]  # of open


def test_five_batches_are_known_after_a_roll_and_a_kill(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(8):
        send(log, 2 * number)
        send(log, 2 * number, producer_id=6)
    log = killed(log, tmp_path)
    assert [send(log, 2 * number) for number in range(3, 8)] == [-1] * 5
    with pytest.raises(KafkaError) as caught:
        send(log, 4)
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 16) == 32
    assert [send(log, 2 * number) for number in range(4, 9)] == [-1] * 5


def test_only_those_of_the_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for sequence in (0, 2, 4):
        send(log, sequence)
    for sequence in (0, 2):
        send(log, sequence, epoch=1)
    log = killed(log, tmp_path)
    batches = log.producers.active_producers[PRODUCER].batches
    assert [(batch.first_sequence, batch.first_offset) for batch in batches] == [(0, 6), (2, 8)]


def test_from_where_it_has_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_batches, "RECALL_BYTES", 200)
    monkeypatch.setattr(recent_batches, "LARGE_RECALL_BYTES", 200)
    log = open_log(tmp_path)
    for number in range(8):
        send(log, 2 * number)
    log = killed(log, tmp_path)
    batches = log.producers.active_producers[PRODUCER].batches
    assert [batch.first_sequence for batch in batches] in ([10, 12, 14], [8, 10, 12, 14])


def test_large_batches_across_segments(tmp_path: Path) -> None:
    """Five of them are more than a segment here, and more than is read for small ones."""
    config = LogConfig(segment_bytes=1 << 20)
    log = open_log(tmp_path, config=config)
    batches = [
        build_batch(
            [(NOW_MS, b"key", bytes(400_000), [])],
            producer_id=PRODUCER,
            producer_epoch=0,
            base_sequence=number,
        )
        for number in range(9)
    ]
    for batch in batches:
        append_as_leader(log, bytearray(batch), leader_epoch=0, now_ms=NOW_MS)
    assert len(log.segments) > 4
    log = killed(log, tmp_path, config=config)
    known = log.producers.active_producers[PRODUCER].batches
    assert [batch.first_sequence for batch in known] == [4, 5, 6, 7, 8]
    for batch in batches[4:]:
        info = append_as_leader(log, bytearray(batch), leader_epoch=0, now_ms=NOW_MS)
        assert info.duplicate


def test_a_damaged_end_is_left_out(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(3):
        send(log, 2 * number)
    log.roll(NOW_MS)
    log.release()
    path = tmp_path / "t-0" / names.offset_name(0, names.LOG)
    data = bytearray(path.read_bytes())
    data[8:12] = b"\x7f\xff\xff\xff"
    path.write_bytes(data)
    log = open_log(tmp_path, recovery_point=6)
    batches = log.producers.active_producers[PRODUCER].batches
    assert [batch.first_sequence for batch in batches] == [4]
