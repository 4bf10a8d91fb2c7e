"""Which batches of a leader a log takes in one step, and that they leave what the general way of
appending them leaves; and where a new segment begins.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kbroker.log import appending
from kbroker.log.partition_log import PartitionLog
from kbroker.log.state.roll import RollDue
from kbroker.log.storage import files
from kbroker.log.storage.files import LogDirectoryError
from kbroker.log.storage.segment import Segment
from kbroker.log.validator import AppendOrigin, validate_replicated
from kbroker.protocol.batches import batch_header
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import ATTRIBUTES_POSITION, iter_batches
from kbroker.protocol.batches.checksum import crc32c
from kbroker.protocol.batches.control_records import build_end_transaction_marker
from kbroker.protocol.errors import ErrorCode, KafkaError
from tests.batch_offsets import assign_offsets
from tests.log.appends import append_as_leader
from tests.log.first_branch import NOW_MS, open_log, what_is_left

EPOCH = 4
MANY = 100


def batch_of(
    base_offset: int,
    count: int = 1,
    *,
    epoch: int = EPOCH,
    size: int = 100,
    timestamp: int = NOW_MS,
    **options: Any,
) -> bytearray:
    """As a leader of an epoch has it."""
    return build_batch(
        [(timestamp, None, bytes(size), [])] * count,
        base_offset=base_offset,
        partition_leader_epoch=epoch,
        **options,
    )


def idempotent(base_offset: int, sequence: int, *, epoch: int = 0, **options: Any) -> bytearray:
    """Of producer 7."""
    return batch_of(
        base_offset, producer_id=7, producer_epoch=epoch, base_sequence=sequence, **options
    )


def take(log: PartitionLog, data: bytes | bytearray, *, leader_epoch: int = EPOCH) -> int:
    """How many bytes the log takes in one step."""
    view = memoryview(bytes(data))
    return log.append_next_replicated(view, leader_epoch, NOW_MS, max_batches=MANY)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    """With one batch of producer 7, in an open transaction of producer 8."""
    made = open_log(tmp_path / "topic-0")
    made.append_as_follower(idempotent(0, 0), now_ms=NOW_MS)
    begun = batch_of(1, producer_id=8, producer_epoch=0, base_sequence=0, is_transactional=True)
    made.append_as_follower(begun, now_ms=NOW_MS)
    yield made
    made.close()


def test_the_next_batches_are_taken_together(log: PartitionLog) -> None:
    data = idempotent(2, 1) + batch_of(3, 5) + idempotent(8, 2) + batch_of(
        9, producer_id=8, producer_epoch=0, base_sequence=1, is_transactional=True
    )  # fmt: skip
    assert take(log, data) == len(data)
    assert (log.log_end_offset, log.producers.map_end_offset) == (10, 10)
    assert log.read(2, max_bytes=1 << 20).records.read() == bytes(data)  # type: ignore[union-attr]  # a file range
    assert log.producers.active_producers[7].last_sequence == 2
    assert log.first_unstable_offset == 1


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: batch_of(4), id="a gap"),
        pytest.param(lambda: batch_of(1), id="an old offset"),
        pytest.param(lambda: batch_of(2, epoch=3), id="an older epoch"),
        pytest.param(lambda: batch_of(2, epoch=5), id="a newer epoch"),
        pytest.param(lambda: idempotent(2, 0, epoch=1), id="a new producer epoch"),
        pytest.param(lambda: idempotent(2, -1), id="no sequence"),
        pytest.param(lambda: idempotent(2, 0x7FFF_FFFF, count=2), id="sequences that wrap"),
        pytest.param(lambda: idempotent(2, 1, is_transactional=True), id="a new transaction"),
        pytest.param(
            lambda: batch_of(2, producer_id=9, producer_epoch=0, base_sequence=0),
            id="a new producer",
        ),
        pytest.param(
            lambda: batch_of(2, timestamp=NOW_MS + 8 * 86_400_000), id="due for a new segment"
        ),
        pytest.param(lambda: batch_of(2, 60), id="no room in the segment"),
        pytest.param(lambda: batch_of(2)[:-1], id="cut short"),
        pytest.param(lambda: batch_of(2)[:30], id="cut short within the header"),
        pytest.param(lambda: bytearray(), id="nothing"),
    ],
)
def test_other_batches_are_left_alone(log: PartitionLog, make: Callable[[], bytearray]) -> None:
    size = log.segments.active.size
    assert take(log, make()) == 0
    assert (log.log_end_offset, log.segments.active.size) == (2, size)
    good = batch_of(2)
    assert take(log, good + make()) in (0, len(good))


@pytest.mark.parametrize(
    ("position", "layout", "value"),
    [
        pytest.param(8, ">i", 48, id="too short for a header"),
        pytest.param(8, ">i", -100, id="a negative length"),
        pytest.param(8, ">i", 0x7FFF_FFFF, id="a length beyond the end"),
        pytest.param(16, ">b", 1, id="an old magic"),
        pytest.param(17, ">I", 1, id="a wrong CRC"),
        pytest.param(21, ">h", 0x20, id="a control batch"),
        pytest.param(21, ">h", 0x08, id="LogAppendTime"),
        pytest.param(23, ">i", -1, id="a negative delta"),
        pytest.param(57, ">i", 0, id="no records"),
        pytest.param(70, ">b", 1, id="a changed record"),
    ],
)
def test_damaged_batches_are_left_alone(
    log: PartitionLog, position: int, layout: str, value: int
) -> None:
    data = batch_of(2)
    struct.pack_into(layout, data, position, value)
    assert take(log, data) == 0
    assert take(log, batch_of(2) + data) == len(batch_of(2))
    assert log.log_end_offset == 3


def test_batches_of_an_epoch_that_the_log_has_before_the_leader_are_left_alone(
    log: PartitionLog,
) -> None:
    assert take(log, batch_of(2), leader_epoch=EPOCH - 1) == 0


def test_no_more_batches_are_taken_than_asked_for(log: PartitionLog) -> None:
    data = b"".join(batch_of(offset) for offset in range(2, 6))
    taken = log.append_next_replicated(memoryview(data), EPOCH, NOW_MS, max_batches=3)
    assert (taken, log.log_end_offset) == (len(data) * 3 // 4, 5)


def test_a_disk_that_fails_ends_the_log(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    size = log.segments.active.size
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "pwrite", fail)
        with pytest.raises(LogDirectoryError):
            take(log, idempotent(2, 1))
    assert (log.log_end_offset, log.segments.active.size) == (2, size)
    assert log.producers.active_producers[7].last_sequence == 0
    assert take(log, batch_of(2)) == 0


def leaders_log(random: Random) -> Iterator[bytes]:
    """Answers of several batches, as a leader sends them."""
    offset, epoch, sequences = 0, 0, {7: 0, 8: 0, 9: 0}
    open_transaction = False
    for _ in range(60):
        data = bytearray()
        for _ in range(random.randrange(1, 5)):
            count = random.randrange(1, 4)
            options: dict[str, Any] = {}
            producer = random.choice((None, 7, 8, 9))
            if producer is not None:
                options = {
                    "producer_id": producer,
                    "producer_epoch": 0,
                    "base_sequence": sequences[producer],
                    "is_transactional": producer == 9,
                }
                sequences[producer] += count
                open_transaction |= producer == 9
            if random.random() < 0.05:
                epoch += 1
            timestamp = NOW_MS + random.randrange(1000)
            data += batch_of(offset, count, epoch=epoch, timestamp=timestamp, **options)
            offset += count
        if open_transaction and random.random() < 0.2:
            data += marker(offset, epoch)
            offset, open_transaction = offset + 1, False
        yield bytes(data)


def marker(offset: int, epoch: int) -> bytes:
    """The commit of producer 9."""
    built = build_end_transaction_marker(
        commit=True, producer_id=9, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW_MS
    )
    assign_offsets(built, offset, epoch)
    return bytes(built)


def append_in_general(log: PartitionLog, data: bytes) -> None:
    checked = validate_replicated(data, next_offset=log.log_end_offset)
    log.append_replicated(checked, now_ms=NOW_MS, may_wait=False)


@pytest.mark.parametrize("seed", range(10))
def test_both_ways_leave_the_same(tmp_path: Path, seed: int) -> None:
    left, taken = [], 0
    for name in ("general", "fast"):
        folder = tmp_path / name / "topic-0"
        folder.parent.mkdir()
        log = open_log(folder)
        for data in leaders_log(Random(seed)):
            done = take(log, data, leader_epoch=100) if name == "fast" else 0
            taken += done
            if done < len(data):
                append_in_general(log, data[done:])
        left.append(what_is_left(log, folder))
    assert left[0] == left[1]
    assert taken > 10_000


@pytest.fixture
def crcs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what CRCs were computed of, on either way."""
    sizes: list[int] = []

    def counted(data: memoryview) -> int:
        sizes.append(len(data))
        return crc32c(data)

    monkeypatch.setattr(appending, "crc32c", counted)
    monkeypatch.setattr(batch_header, "crc32c", counted)
    return sizes


def test_a_crc_is_computed_once_on_both_ways_together(log: PartitionLog, crcs: list[int]) -> None:
    """What the log does not take in one step has no CRC computed yet, unless it is damaged."""
    data = [bytes(each) for each in leaders_log(Random(1))]
    expected = [
        header.size_bytes - ATTRIBUTES_POSITION for each in data for _, header in iter_batches(each)
    ]
    crcs.clear()
    log.truncate_fully(0)
    left = 0
    for each in data:
        done = take(log, each, leader_epoch=100)
        if done < len(each):
            left += 1
            append_in_general(log, each[done:])
    assert left > 10
    assert crcs == expected


def test_only_the_crc_of_a_damaged_batch_is_computed_again(
    log: PartitionLog, crcs: list[int]
) -> None:
    good, bad = bytes(batch_of(2)), batch_of(3)
    bad[-1] ^= 1
    crcs.clear()
    assert take(log, good + bad) == len(good)
    with pytest.raises(KafkaError) as caught:
        append_in_general(log, bytes(bad))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert len(crcs) == 3


# -- a new segment after records that compaction removed at the leader ----------------------------


def roll_due_at_a_gap(log: PartitionLog) -> RollDue:
    """A full segment, and the next batch begins 10 offsets after the log end."""
    while not log.segments.active.should_roll(200, log.log_end_offset, NOW_MS, log.config, NOW_MS):
        log.append_as_follower(batch_of(log.log_end_offset), now_ms=NOW_MS)
    checked = validate_replicated(batch_of(log.log_end_offset + 10), next_offset=log.log_end_offset)
    due = log.append_replicated(checked, now_ms=NOW_MS, may_wait=True)
    assert due is not None
    return due


def test_a_postponed_roll_never_leaves_the_active_segment_behind_the_log_end(
    log: PartitionLog,
) -> None:
    due = roll_due_at_a_gap(log)
    end = log.log_end_offset
    due.roll.work()
    due.roll.end(None)
    log.check()
    assert log.append_replicated(due.checked, now_ms=NOW_MS, may_wait=True) is None
    log.check()
    assert (log.segments.base_offsets, log.log_end_offset) == ([0, end], end + 11)
    assert log.read(end, max_bytes=1 << 20).records.read() == due.checked.batches  # type: ignore[union-attr]  # a file range


def test_another_leader_has_the_record_that_compaction_removed(log: PartitionLog) -> None:
    """It leads before the batch for which the segment was made is appended."""
    due = roll_due_at_a_gap(log)
    end = log.log_end_offset
    due.roll.work()
    due.roll.end(None)
    data = batch_of(end, epoch=EPOCH + 1)
    log.append_as_follower(data, now_ms=NOW_MS)
    log.check()
    assert (log.segments.base_offsets, log.log_end_offset) == ([0, end], end + 1)
    assert log.read(end, max_bytes=1 << 20).records.read() == bytes(data)  # type: ignore[union-attr]  # a file range


def test_this_replica_leads_before_the_roll_has_run(log: PartitionLog) -> None:
    """The append of a coordinator completes the roll."""
    roll_due_at_a_gap(log)
    end = log.log_end_offset
    batch = build_batch([(NOW_MS, b"key", b"value", [])])
    origin = AppendOrigin.COORDINATOR
    appended = append_as_leader(log, batch, leader_epoch=EPOCH + 1, now_ms=NOW_MS, origin=origin)
    log.check()
    assert (appended.base_offset, log.segments.base_offsets) == (end, [0, end])


def test_after_a_gap_that_no_index_entry_spans_the_segment_begins_at_the_batch(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log ends there then, even if the batch cannot be written yet."""
    base = log.log_end_offset + (1 << 31)
    checked = validate_replicated(batch_of(base), next_offset=log.log_end_offset)

    def fail(*_: object) -> None:
        raise LogDirectoryError(log.directory, "open", OSError(errno.EMFILE, "too many"))

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "append", fail)
        with pytest.raises(LogDirectoryError):
            log.append_replicated(checked, now_ms=NOW_MS, may_wait=True)
    log.check()
    assert (log.segments.base_offsets, log.log_end_offset) == ([0, base], base)
    assert log.append_replicated(checked, now_ms=NOW_MS, may_wait=True) is None
    log.check()
    assert (log.segments.base_offsets, log.log_end_offset) == ([0, base], base + 1)
