"""Which batches the first branch of an append takes; an append that was postponed continues where
it stopped; a refused one leaves the log as it was.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kbroker.log.append_cost import LOOP_BYTES, LoopBudget
from kbroker.log.append_request import AppendRequest
from kbroker.log.appending import AppendableLog, check_batches
from kbroker.log.partition_log import PartitionLog
from kbroker.log.results import CHECK_DUE, Appended, FlushDue, Refused
from kbroker.log.state.roll import RollDue
from kbroker.log.storage import files
from kbroker.log.storage.files import LogDirectoryError
from kbroker.log.validator import AppendOrigin, ValidatedBatches, validate_batches
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.compression import LARGEST_RATIO, Compression
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.views.log_config import LogConfig
from tests.log.appends import append_as_leader, request_of
from tests.log.first_branch import CONFIG, NOW_MS, append_next, claiming, open_log, what_is_left
from tests.sim.timers import SimTimers


@pytest.mark.parametrize(
    ("batch", "settings", "taken"),
    [
        pytest.param({}, {}, True, id="plain"),
        pytest.param({}, {"cleanup_policy": frozenset({"compact"})}, True, id="compacted"),
        pytest.param({}, {"compression_type": "uncompressed"}, True, id="uncompressed"),
        pytest.param({"compression": Compression.LZ4}, {}, False, id="compressed batch"),
        pytest.param({}, {"compression_type": "lz4"}, False, id="recompressed"),
        pytest.param({}, {"message_timestamp_type": "LogAppendTime"}, False, id="stamped"),
        pytest.param({}, {"flush_messages": 1}, False, id="flushed"),
    ],
)
def test_a_coordinators_batch_is_taken_by_the_first_branch(
    tmp_path: Path, batch: dict[str, Any], settings: dict[str, Any], taken: bool
) -> None:
    log = open_log(tmp_path / "topic-0")
    log.update_config(replace(CONFIG, **settings))
    request = request_of(NOW_MS, origin=AppendOrigin.COORDINATOR)
    assert log.append(batch_at(NOW_MS), 0, request)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AppendableLog, "_append_any", lambda *_: None)
        built = build_batch([(NOW_MS, b"k", b"v", [])], **batch)
        assert (log.append(built, 0, request) == Appended(1, 1, 0, -1)) is taken


def test_a_batch_that_may_not_be_transactional_is_left_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0")
    for sequence in range(3):
        batch = build_batch(
            [(NOW_MS, None, b"", [])],
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )
        before = bytes(batch)
        found = append_next(log, batch)
        assert (found, bytes(batch), log.log_end_offset) == (-1, before, sequence)
        append_as_leader(log, batch, leader_epoch=0, now_ms=NOW_MS)
    batch = build_batch(
        [(NOW_MS, None, b"", [])], producer_id=7, producer_epoch=0, base_sequence=3,
        is_transactional=True,
    )  # fmt: skip
    assert append_next(log, batch, transactional=True) == 3


@pytest.mark.parametrize("written", [0, 50])
def test_a_disk_that_fails_in_between_cuts_the_batch_off_and_ends_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    folder = tmp_path / "topic-0"
    log = open_log(folder)
    batch = build_batch([(NOW_MS, None, bytes(100), [])])
    append_as_leader(log, bytearray(batch), leader_epoch=0, now_ms=NOW_MS)
    real = os.pwrite

    def fail(fd: int, data: bytes | memoryview, position: int) -> int:
        real(fd, memoryview(data)[:written], position)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "pwrite", fail)
        with pytest.raises(LogDirectoryError):
            append_next(log, bytearray(batch))
    assert log.failure is not None
    assert log.log_end_offset == 1
    assert log.segments.active.size == len(batch)
    assert (folder / "00000000000000000000.log").stat().st_size == len(batch)
    assert append_next(log, bytearray(batch)) == -1
    with pytest.raises(LogDirectoryError):
        append_as_leader(log, bytearray(batch), leader_epoch=0, now_ms=NOW_MS)


def test_what_a_replica_took_over_does_not_open_the_way(tmp_path: Path) -> None:
    """A leader's log may hold what no client may send: a producer without an epoch."""
    log = open_log(tmp_path / "topic-0")
    for number in range(2):
        batch = build_batch(
            [(NOW_MS, None, b"", [])], producer_id=7, producer_epoch=-1, base_sequence=number,
            base_offset=number, partition_leader_epoch=0,
        )  # fmt: skip
        if not number:
            log.append_as_follower(batch, now_ms=NOW_MS)
    struct.pack_into(">q", batch, 0, 0)
    assert append_next(log, batch) == -1
    with pytest.raises(KafkaError, match="sent epoch -1"):
        append_as_leader(log, batch, leader_epoch=0, now_ms=NOW_MS)


def test_bytes_that_may_not_be_changed_are_left_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0")
    append_as_leader(log, build_batch([(NOW_MS, None, b"", [])]), leader_epoch=0, now_ms=NOW_MS)
    batch = bytes(build_batch([(NOW_MS, None, b"", [])]))
    view = memoryview(batch)
    assert append_next(log, view) == -1
    assert append_as_leader(log, view, leader_epoch=0, now_ms=NOW_MS).base_offset == 1


def batch_at(timestamp: int) -> bytearray:
    """A batch of one record."""
    return build_batch([(timestamp, None, bytes(100), [])])


@pytest.mark.parametrize("codec", list(Compression))
def test_a_batch_that_claims_more_records_than_it_can_hold_is_left_alone(
    tmp_path: Path, codec: Compression
) -> None:
    log = open_log(tmp_path / "topic-0")
    append_as_leader(log, batch_at(NOW_MS), leader_epoch=0, now_ms=NOW_MS)
    for count in range(1, 4):
        honest = build_batch([(NOW_MS, None, None, [])] * count, compression=codec)
        end = log.log_end_offset
        assert append_next(log, honest) == end
        most = (len(honest) - 61) * LARGEST_RATIO[codec] // 7
        for claimed in (most + 1, 2**31 - 1):
            lie = claiming(bytearray(honest), claimed)
            struct.pack_into(">q", lie, 0, 0)
            assert append_next(log, lie) == -1
            with pytest.raises(KafkaError, match=f"{claimed} records in"):
                append_as_leader(log, lie, leader_epoch=0, now_ms=NOW_MS)
        assert (log.log_end_offset, len(log.segments)) == (end + count, 1)


DAY_MS = 86_400_000


def new_settings(log: PartitionLog) -> Iterator[bytearray]:
    yield from (batch_at(NOW_MS), batch_at(NOW_MS))
    log.update_config(replace(CONFIG, segment_ms=10))
    yield from (batch_at(NOW_MS + 10), batch_at(NOW_MS + 11))


def cut_to_nothing(log: PartitionLog) -> Iterator[bytearray]:
    yield from (batch_at(NOW_MS), batch_at(NOW_MS))
    log.truncate_to(0, now_ms=NOW_MS)
    yield from (batch_at(NOW_MS - days * DAY_MS) for days in (8, 2, 0))


def rolled_early(log: PartitionLog) -> Iterator[bytearray]:
    log.segments.active.roll_jitter_ms = 1000
    yield batch_at(NOW_MS - 7 * DAY_MS)
    yield batch_at(NOW_MS - 1000)
    yield batch_at(NOW_MS - 999)


def full_index(log: PartitionLog) -> Iterator[bytearray]:
    for number in range(9):
        yield batch_at(NOW_MS + number)


def far_offset(log: PartitionLog) -> Iterator[bytearray]:
    yield batch_at(NOW_MS)
    far = build_batch([(NOW_MS, None, bytes(100), [])], base_offset=0x7FFFFFFE)
    log.append_as_follower(far, now_ms=NOW_MS)
    yield from (batch_at(NOW_MS), batch_at(NOW_MS))


def no_timestamps(log: PartitionLog) -> Iterator[bytearray]:
    yield from (batch_at(-1), batch_at(-1), batch_at(NOW_MS), batch_at(-1))


@pytest.mark.parametrize(
    ("tell", "config", "rolls"),
    [
        (new_settings, CONFIG, 1),
        (cut_to_nothing, CONFIG, 1),
        (rolled_early, CONFIG, 1),
        (full_index, replace(CONFIG, index_interval_bytes=0, segment_index_bytes=60), 1),
        (far_offset, CONFIG, 1),
        (no_timestamps, CONFIG, 0),
    ],
)
def test_both_ways_roll_at_the_same_batch(
    tmp_path: Path,
    tell: Callable[[PartitionLog], Iterator[bytearray]],
    config: LogConfig,
    rolls: int,
) -> None:
    """Why a segment ends, by hand: what is rare in the stories above."""
    outcomes = []
    for name in ("short", "long"):
        folder = tmp_path / name / "topic-0"
        folder.parent.mkdir()
        log = PartitionLog.open(folder, TopicPartition("topic", 0), config, now_ms=NOW_MS)
        request = request_of(NOW_MS)
        request.is_plain = name == "short"
        for batch in tell(log):
            assert isinstance(log.append(batch, 0, request), Appended)
        assert len(log.segments) == rolls + 1
        outcomes.append(what_is_left(log, folder))
    assert outcomes[0] == outcomes[1]


# what is refused or has to wait


@pytest.fixture
def validations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the size of whatever is validated."""
    sizes: list[int] = []

    def counted(batches: bytearray, **options: Any) -> ValidatedBatches:
        sizes.append(len(batches))
        return validate_batches(batches, **options)

    monkeypatch.setattr("kbroker.log.appending.validate_batches", counted)
    return sizes


def test_a_batch_that_needs_a_segment_is_validated_once(
    tmp_path: Path, validations: list[int]
) -> None:
    log = open_log(tmp_path / "topic-0")
    request, budget = request_of(NOW_MS), LoopBudget(SimTimers())
    while True:
        validations.clear()
        end = log.log_end_offset
        outcome = log.append(build_batch([(NOW_MS, None, bytes(900), [])]), 0, request, budget)
        if isinstance(outcome, RollDue):
            break
    assert (log.log_end_offset, len(log.segments)) == (end, 1)
    outcome.roll.work()
    outcome.roll.end(None)
    assert log.append_checked(outcome.checked, 3, request, may_wait=True) == Appended(
        end, end, 0, -1
    )
    assert (len(validations), len(log.segments)) == (1, 2)
    assert log.leader_epochs.latest_epoch == 3, "of the leadership in which it was appended"


def test_a_batch_that_a_worker_checks_is_validated_once(
    tmp_path: Path, validations: list[int]
) -> None:
    log = open_log(tmp_path / "topic-0")
    log.update_config(replace(CONFIG, compression_type="lz4", max_message_bytes=1 << 20))
    log.update_config(replace(log.config, segment_bytes=1 << 20))
    request, budget = request_of(NOW_MS), LoopBudget(SimTimers())
    batch = build_batch([(NOW_MS, None, bytes(LOOP_BYTES), [])])
    before = bytes(batch)
    assert log.append(batch, 0, request, budget) is CHECK_DUE
    assert (validations, bytes(batch), log.log_end_offset) == ([], before, 0)
    append_as_leader(log, batch_at(NOW_MS), leader_epoch=0, now_ms=NOW_MS)
    validations.clear()
    checked = check_batches(batch, log.config, request)
    assert isinstance(checked, ValidatedBatches)
    assert log.append_checked(checked, 0, request, may_wait=True) == Appended(1, 1, 0, -1)
    assert validations == [len(before)]


def damaged() -> bytearray:
    batch = batch_at(NOW_MS)
    batch[-1] ^= 1
    return batch


def in_transaction() -> bytearray:
    return build_batch(
        [(NOW_MS, None, b"", [])], producer_id=9, producer_epoch=0, base_sequence=0,
        is_transactional=True,
    )  # fmt: skip


def out_of_order() -> bytearray:
    return build_batch(
        [(NOW_MS, None, b"", [])], producer_id=7, producer_epoch=0, base_sequence=5
    )  # fmt: skip


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        pytest.param(damaged(), ErrorCode.CORRUPT_MESSAGE, id="CRC"),
        pytest.param(bytearray(), ErrorCode.INVALID_RECORD, id="nothing"),
        pytest.param(bytearray(20), ErrorCode.INVALID_RECORD, id="cut short"),
        pytest.param(out_of_order(), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, id="sequence"),
        pytest.param(batch_at(NOW_MS + 2 * 3_600_000), ErrorCode.INVALID_TIMESTAMP, id="time"),
        pytest.param(
            build_batch([(NOW_MS, None, bytes(2500), [])]), ErrorCode.MESSAGE_TOO_LARGE, id="size"
        ),
        pytest.param(
            in_transaction(), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, id="transaction"
        ),
    ],
)
def test_a_refused_batch_leaves_the_log_as_it_was(
    tmp_path: Path, batch: bytearray, error: ErrorCode
) -> None:
    left = []
    for name in ("without", "with"):
        folder = tmp_path / name / "topic-0"
        folder.parent.mkdir()
        log = open_log(folder)
        first = build_batch(
            [(NOW_MS, None, b"", [])], producer_id=7, producer_epoch=0, base_sequence=0
        )  # fmt: skip
        append_as_leader(log, first, leader_epoch=0, now_ms=NOW_MS)
        if name == "with":
            request = AppendRequest(-1, 0, NOW_MS, 12, 0, None)
            refused = log.append(bytearray(batch), 1, request, LoopBudget(SimTimers()))
            assert isinstance(refused, Refused)
            assert (refused.error, refused.base_offset, refused.last_offset) == (error, -1, -1)
        left.append(what_is_left(log, folder))
    assert left[0] == left[1]


def test_flush_messages_is_a_reason_to_wait(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0")
    log.update_config(replace(CONFIG, flush_messages=2))
    request = request_of(NOW_MS)
    assert log.append(batch_at(NOW_MS), 0, request) == Appended(0, 0, 0, -1)
    outcome = log.append(batch_at(NOW_MS), 0, request)
    assert isinstance(outcome, FlushDue)
    assert outcome.appended == Appended(1, 1, 0, -1)
    log.flush()
    assert log.append(batch_at(NOW_MS), 0, request) == Appended(2, 2, 0, -1)
