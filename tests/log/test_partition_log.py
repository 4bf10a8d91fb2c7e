"""One partition log: append, read, roll, cut, retire, and offsets by time."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.log import time_search
from kbroker.log.storage import files
from kbroker.log.storage.files import FileSlice
from kbroker.log.storage.transaction_index import TransactionIndex
from kbroker.log.time_search import find_now
from kbroker.log.validator import AppendOrigin
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.control_records import build_end_transaction_marker
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.views.log_config import LogConfig
from tests.log.appends import append_as_leader
from tests.log.open_log import (
    NOW_MS,
    SMALL,
    OpenLog,
    append,
    batch_of,
    delete_due_files,
    offsets_of,
)


def test_offsets_are_given_in_order_and_records_read_back(open_log: OpenLog) -> None:
    log = open_log()
    assert [append(log, 3), append(log, 1), append(log, 2)] == [0, 3, 4]
    assert (log.log_start_offset, log.log_end_offset) == (0, 6)
    assert offsets_of(log.read(0, max_bytes=10_000).records) == [0, 1, 2, 3, 4, 5]


def test_every_offset_of_a_batch_is_answered_with_that_batch(open_log: OpenLog) -> None:
    # leaving the batch out hung consumers for ever elsewhere
    log = open_log()
    for _ in range(40):
        append(log, 5)
    assert len(log.segments) > 3
    for offset in range(log.log_end_offset):
        for max_bytes in (1, 200, 100_000):
            found = offsets_of(log.read(offset, max_bytes=max_bytes).records)
            assert found[0] == offset - offset % 5
            assert offset in found


def test_upper_offset_and_max_bytes_are_kept_in_whole_batches(open_log: OpenLog) -> None:
    log = open_log()
    size = len(batch_of(2))
    for _ in range(10):
        append(log, 2)
    assert offsets_of(log.read(4, max_bytes=10_000, upper_offset=10).records) == [4, 5, 6, 7, 8, 9]
    info = log.read(4, max_bytes=2 * size + 5, upper_offset=20)
    assert (offsets_of(info.records), info.end_offset) == ([4, 5, 6, 7], 8)
    assert log.read(4, max_bytes=size - 1, min_one_batch=False).records == b""
    assert offsets_of(log.read(4, max_bytes=0).records) == [4, 5]
    assert log.read(4, max_bytes=1000, upper_offset=4).records == b""
    assert log.read(20, max_bytes=1000).records == b""


@pytest.mark.parametrize("offset", [-1, 7, 2**62])
def test_offsets_outside_the_log_are_out_of_range(open_log: OpenLog, offset: int) -> None:
    log = open_log()
    append(log, 6)
    with pytest.raises(KafkaError) as caught:
        log.read(offset, max_bytes=100)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_reader_at_the_end_costs_no_system_call(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(LogConfig())
    append(log)
    log.read(1, max_bytes=1000)

    def refuse(*_: object) -> bytes:
        raise AssertionError("pread")

    monkeypatch.setattr(files.os, "pread", refuse)
    for offset in range(1, 50):
        assert log.read(offset, max_bytes=1000).records == b""
        append(log)
        found = log.read(offset, max_bytes=1000)
        assert isinstance(found.records, FileSlice) and found.end_offset == offset + 1


def test_segments_roll_by_size_time_full_index_and_offset_distance(open_log: OpenLog) -> None:
    log = open_log()
    for _ in range(40):
        append(log)
    assert all(segment.size <= 2000 for segment in log.segments) and len(log.segments) == 2

    log = open_log(LogConfig(segment_ms=1000, segment_bytes=10_000), clean_shutdown=True)
    before = len(log.segments)
    append(log, timestamp=NOW_MS + 5000)
    append(log, timestamp=NOW_MS + 5900)
    append(log, timestamp=NOW_MS + 6100)
    assert len(log.segments) == before + 2
    append(log, timestamp=NOW_MS + 6200)
    assert len(log.segments) == before + 2
    append(log, timestamp=NOW_MS + 9000)
    assert len(log.segments) == before + 3


def test_a_full_index_rolls(open_log: OpenLog) -> None:
    log = open_log(LogConfig(segment_index_bytes=24, index_interval_bytes=0))
    for index in range(10):
        append(log, timestamp=NOW_MS + index)
    assert len(log.segments) > 2
    assert [offsets_of(log.read(offset, max_bytes=1).records) for offset in range(10)] == [
        [offset] for offset in range(10)
    ]


@pytest.mark.parametrize(
    ("offset", "base"),
    [
        pytest.param(2**31 + 5, 6, id="fits from the log end on"),
        pytest.param(2**31 + 6, 2**31 + 6, id="does not"),
    ],
)
def test_an_offset_too_far_from_the_base_rolls(open_log: OpenLog, offset: int, base: int) -> None:
    log = open_log(LogConfig())
    log.append_as_follower(batch_of(base_offset=5), now_ms=NOW_MS)
    log.append_as_follower(batch_of(base_offset=offset), now_ms=NOW_MS)
    assert log.segments.base_offsets == [0, base]
    assert offsets_of(log.read(6, max_bytes=1000).records) == [offset]


def test_jitter_spreads_the_roll(open_log: OpenLog) -> None:
    log = open_log(LogConfig(segment_ms=10_000, segment_jitter_ms=5_000))
    assert 0 <= log.segments.active.roll_jitter_ms < 5_000


def test_a_repeated_batch_gets_its_old_offsets(open_log: OpenLog) -> None:
    log = open_log()
    options = {"producer_id": 9, "producer_epoch": 0}
    append(log, 2, base_sequence=0, **options)
    append(log, 2, base_sequence=2, **options)
    again = append_as_leader(
        log, batch_of(2, base_sequence=0, **options), leader_epoch=0, now_ms=NOW_MS
    )
    assert (again.duplicate, again.base_offset, again.last_offset) == (True, 0, 1)
    assert log.log_end_offset == 4
    log.release()
    log = open_log()  # killed between append and answer
    again = append_as_leader(
        log, batch_of(2, base_sequence=2, **options), leader_epoch=0, now_ms=NOW_MS
    )
    assert (again.duplicate, again.base_offset) == (True, 2)


def test_transactions_move_the_first_unstable_offset_and_fill_the_index(open_log: OpenLog) -> None:
    log = open_log()
    append(log)
    append(log, 2, producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    append(log)
    assert log.first_unstable_offset == 1
    marker = build_end_transaction_marker(
        commit=False, producer_id=1, producer_epoch=0, coordinator_epoch=4, timestamp_ms=NOW_MS
    )
    append_as_leader(log, marker, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    assert log.first_unstable_offset == 1
    log.on_high_watermark(5)
    assert log.first_unstable_offset is None
    (aborted,) = log.aborted_transactions(0, 5)
    assert tuple(aborted) == (1, 1, 4, 5)
    assert log.aborted_transactions(0, 1) == []
    with pytest.raises(KafkaError) as caught:
        append_as_leader(
            log,
            build_end_transaction_marker(
                commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=3, timestamp_ms=0
            ),
            leader_epoch=0,
            now_ms=NOW_MS,
            origin=AppendOrigin.COORDINATOR,
        )
    assert caught.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_a_damaged_transaction_index_is_an_error_each_time(open_log: OpenLog) -> None:
    """Records of aborted transactions would be taken for committed."""
    log = open_log()
    index = log.segments.active.transaction_index
    Path(index.path).write_bytes(struct.pack(">hqqqq", 1, 1, 0, 2, 3))
    log.segments.active.transaction_index = TransactionIndex(index.path, exists=True)
    for _ in range(2):
        with pytest.raises(KafkaError, match=r"txnindex: version 1 is unknown") as caught:
            log.aborted_transactions(0, 5)
        assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    ("timestamp", "found"),
    [
        pytest.param(0, 0, id="before all"),
        pytest.param(NOW_MS + 100, 0, id="first of a batch"),
        pytest.param(NOW_MS + 101, 1, id="inside a batch"),
        pytest.param(NOW_MS + 103, 3, id="between batches"),
        pytest.param(NOW_MS + 3902, 116, id="last but one"),
        pytest.param(NOW_MS + 4002, 119, id="last"),
        pytest.param(NOW_MS + 4003, None, id="after all"),
    ],
)
def test_offsets_by_time(open_log: OpenLog, timestamp: int, found: int | None) -> None:
    log = open_log()
    for index in range(1, 41):
        append(log, 3, timestamp=NOW_MS + index * 100, now_ms=NOW_MS + 10_000)
    result = log.offset_for_timestamp(timestamp)
    assert (None if result is None else result.offset) == found
    latest = find_now(log.search_max_timestamp())
    assert latest is not None and tuple(latest) == (NOW_MS + 4002, 119, 0)


def test_truncation_cuts_batches_indexes_epochs_and_producers(open_log: OpenLog) -> None:
    log = open_log()
    for number in range(40):
        append(
            log, 2, epoch=number // 10, producer_id=1, producer_epoch=0, base_sequence=2 * number
        )
    assert log.truncate_to(80) is False
    assert log.truncate_to(50, now_ms=NOW_MS) is True
    assert (log.log_end_offset, log.leader_epochs.entries) == (50, [(0, 0), (1, 20), (2, 40)])
    assert log.producers.active_producers[1].last_sequence == 49
    assert offsets_of(log.read(48, max_bytes=1000).records) == [48, 49]
    assert append(log, epoch=5) == 50
    assert log.leader_epochs.end_offset_for(4, log.log_end_offset) == (2, 50)
    log.close()
    assert open_log(clean_shutdown=True).log_end_offset == 51


def test_truncation_before_the_first_segment_begins_anew(open_log: OpenLog) -> None:
    log = open_log()
    log.truncate_fully(100)
    append(log, 3)
    assert log.truncate_to(50) is True
    assert (log.log_start_offset, log.log_end_offset) == (50, 50)
    assert append(log) == 50


def test_deleting_records_moves_the_start_and_retention_takes_the_files(
    open_log: OpenLog, tmp_path: Path
) -> None:
    log = open_log(replace(SMALL, retention_ms=-1))
    for _ in range(40):
        append(log, epoch=1)
    bases = list(log.segments.base_offsets)
    log.high_watermark = 30
    with pytest.raises(KafkaError):
        log.delete_records_before(31)
    assert log.delete_records_before(bases[1] + 2) is True
    assert log.leader_epochs.entries == [(1, bases[1] + 2)]
    with pytest.raises(KafkaError):
        log.read(bases[1] + 1, max_bytes=100)
    assert log.delete_old_segments(NOW_MS) == 1
    assert log.segments.base_offsets == bases[1:]
    folder = tmp_path / "topic-0"
    assert (folder / "00000000000000000000.log.deleted").exists()
    assert delete_due_files(log.segments, NOW_MS + SMALL.file_delete_delay_ms - 1) == 0
    assert delete_due_files(log.segments, NOW_MS + SMALL.file_delete_delay_ms) == 3
    assert not list(folder.glob("*.deleted"))


def test_retention_by_time_rolls_a_wholly_expired_log(open_log: OpenLog) -> None:
    log = open_log(replace(SMALL, retention_ms=1000))
    for _ in range(40):
        append(log)
    assert log.delete_old_segments(NOW_MS + 500) == 0
    log.high_watermark = 30
    assert log.delete_old_segments(NOW_MS + 5000) == 1  # nothing above the high watermark goes
    log.high_watermark = None
    assert log.delete_old_segments(NOW_MS + 5000) == 1
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (40, 40, 0)
    assert append(log) == 40


def test_retention_by_size_keeps_at_least_that_much(open_log: OpenLog) -> None:
    config = replace(SMALL, retention_ms=-1, retention_bytes=2500)
    log = open_log(config)
    for _ in range(100):
        append(log)
    log.delete_old_segments(NOW_MS)
    assert 2500 <= log.size_bytes < 2500 + 2000


def test_time_lookup_over_segments_whose_times_go_back_and_forth(open_log: OpenLog) -> None:
    log = open_log()
    times = [50, 10, 80, 20, 90, 5, 120, 60]

    def expect() -> None:
        left = [(time, offset) for offset, time in enumerate(times) if offset >= first]
        for wanted in range(0, 130, 5):
            found = log.offset_for_timestamp(NOW_MS + wanted)
            at = next((offset for time, offset in left if time >= wanted), None)
            assert (None if found is None else found.offset) == at, wanted

    first = 0
    for time in times:
        append_as_leader(
            log, build_batch([(NOW_MS + time, None, b"v", [])]), leader_epoch=0, now_ms=NOW_MS
        )
        expect_so_far = log.offset_for_timestamp(NOW_MS + time)
        assert expect_so_far is not None
        log.roll(NOW_MS)
    expect()
    first = 3
    log.delete_records_before(first)
    expect()
    log.delete_old_segments(NOW_MS)
    expect()
    log.truncate_to(6)
    del times[6:]
    expect()


def test_a_time_in_a_batch_that_is_too_large_to_look_into(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks is sent to the start of that batch, never beyond what it wants."""
    log = open_log()
    append(log, 3)
    append(log, 5, timestamp=NOW_MS + 100, size=300, compression=Compression.ZSTD)
    append(log, 2, timestamp=NOW_MS + 200)
    monkeypatch.setattr(time_search, "LOOKED_AT_BYTES", 1000)
    assert [log.offset_for_timestamp(NOW_MS + time) for time in (2, 3, 102, 104, 105)] == [
        (NOW_MS + 2, 2, 0),
        *[(NOW_MS + 104, 3, 0)] * 3,
        (NOW_MS + 200, 8, 0),
    ]
    log.truncate_to(8)
    assert find_now(log.search_max_timestamp()) == (NOW_MS + 104, 3, 0)
