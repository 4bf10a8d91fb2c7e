"""One partition log: append, read, roll, flush, cut, retire, and disks that fail."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.log import time_search
from kbroker.log.partition_log import PartitionLog
from kbroker.log.state.flush import Flush
from kbroker.log.storage import files, names
from kbroker.log.storage.files import FileSlice, LogDirectoryError
from kbroker.log.storage.open_files import OpenFiles
from kbroker.log.validator import AppendOrigin
from kbroker.model import TopicPartition, uuid_from_string
from kbroker.protocol.batch_builder import build_batch
from kbroker.protocol.batch_header import iter_batches
from kbroker.protocol.compression import Compression
from kbroker.protocol.control_records import build_end_transaction_marker
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import iter_records
from kbroker.settings.log_config import LogConfig
from tests.log.appends import append_as_leader

NOW_MS = 1_700_000_000_000
SMALL = LogConfig(segment_bytes=2000, segment_index_bytes=4096, index_interval_bytes=100)

OpenLog = Callable[..., PartitionLog]


@pytest.fixture
def open_log(tmp_path: Path) -> OpenLog:
    def open_(config: LogConfig = SMALL, **options: object) -> PartitionLog:
        options.setdefault("now_ms", NOW_MS)
        return PartitionLog.open(
            tmp_path / "topic-0",
            TopicPartition("topic", 0),
            config,
            **options,  # type: ignore[arg-type]  # the keywords of open
        )

    return open_


def batch_of(
    count: int = 1, *, timestamp: int = NOW_MS, size: int = 20, **options: object
) -> bytearray:
    records = [(timestamp + index, b"key", bytes(size), []) for index in range(count)]
    return build_batch(records, **options)  # type: ignore[arg-type]  # the keywords of build_batch


def append(
    log: PartitionLog, count: int = 1, *, epoch: int = 0, now_ms: int = NOW_MS, **options: object
) -> int:
    """Append one batch; returns its base offset."""
    batch = batch_of(count, **options)  # type: ignore[arg-type]  # as above
    return append_as_leader(log, batch, leader_epoch=epoch, now_ms=now_ms).base_offset


def data_of(records: FileSlice | bytes) -> bytes:
    return records if isinstance(records, bytes) else records.read()


def offsets_of(records: FileSlice | bytes) -> list[int]:
    data = data_of(records)
    return [
        record.offset
        for position, header in iter_batches(data)
        for record in iter_records(data[position : position + header.size_bytes], header)
    ]


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


def test_an_offset_too_far_from_the_base_rolls(open_log: OpenLog) -> None:
    log = open_log(LogConfig())
    log.append_as_follower(batch_of(base_offset=5), now_ms=NOW_MS)
    log.append_as_follower(batch_of(base_offset=2**31 + 5), now_ms=NOW_MS)
    assert log.segments.base_offsets == [0, 2**31 + 5]
    assert offsets_of(log.read(6, max_bytes=1000).records) == [2**31 + 5]


def test_jitter_spreads_the_roll(open_log: OpenLog) -> None:
    log = open_log(LogConfig(segment_ms=10_000, segment_jitter_ms=5_000))
    assert 0 <= log.segments.active.roll_jitter_ms < 5_000


def test_files_are_laid_out_and_cut_as_kafkas(open_log: OpenLog, tmp_path: Path) -> None:
    topic_id = uuid_from_string("CNpoIUjqRtiScueGoWMAkg")
    log = open_log(topic_id=topic_id)
    for _ in range(30):
        append(log, epoch=3)
    folder = tmp_path / "topic-0"
    base = log.segments.active.base_offset
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert sizes[names.offset_name(base, names.INDEX)] == 4096
    assert sizes[names.offset_name(base, names.TIME_INDEX)] == 4092
    assert (
        sizes[names.offset_name(0, names.INDEX)] % 8
        == 0
        < sizes[names.offset_name(0, names.INDEX)]
        < 4096
    )
    assert names.offset_name(base, names.SNAPSHOT) in sizes
    log.flush()
    assert (folder / "leader-epoch-checkpoint").read_text() == "0\n1\n3 0\n"
    assert (
        folder / "partition.metadata"
    ).read_text() == "version: 0\ntopic_id: CNpoIUjqRtiScueGoWMAkg"
    log.close()
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert sizes[names.offset_name(base, names.INDEX)] < 4096
    assert names.offset_name(30, names.SNAPSHOT) in sizes
    reopened = open_log(clean_shutdown=True)
    assert (reopened.topic_id, reopened.log_end_offset) == (topic_id, 30)
    assert (folder / names.offset_name(base, names.INDEX)).stat().st_size == 4096


def test_preallocated_segments_are_cut_when_closed(open_log: OpenLog, tmp_path: Path) -> None:
    log = open_log(LogConfig(segment_bytes=5000, preallocate=True))
    path = tmp_path / "topic-0" / names.offset_name(0, names.LOG)
    append(log)
    assert path.stat().st_size == 5000
    size = log.size_bytes
    log.close()
    assert path.stat().st_size == size


def test_preallocated_segments_are_cut_though_their_files_are_not_open(
    open_log: OpenLog, tmp_path: Path
) -> None:
    log = open_log(LogConfig(segment_bytes=5000, preallocate=True))
    append(log)
    size = log.size_bytes
    log.segments.active.close_file()
    log.roll(NOW_MS)
    assert [s.file for s in log.segments][1:] == [None]
    log.close()
    logs = sorted((tmp_path / "topic-0").glob("*.log"))
    assert [path.stat().st_size for path in logs] == [size, 0]


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
    latest = log.max_timestamp_offset()
    assert latest is not None and tuple(latest) == (NOW_MS + 4002, 119, 0)


def test_flush_moves_the_recovery_point(open_log: OpenLog) -> None:
    log = open_log()
    for _ in range(40):
        append(log)
    assert (log.recovery_point, log.is_flush_due) == (0, True)
    flush = log.begin_flush(log.segments.active.base_offset)
    flush.sync()
    flush.finish()
    assert not log.is_flush_due
    log.flush()
    assert log.recovery_point == 40
    assert log.begin_flush().files == []


def test_a_cut_during_a_flush_is_not_taken_for_synced(open_log: OpenLog) -> None:
    log = open_log()
    for _ in range(10):
        append(log)
    up_to = log.log_end_offset
    flush = log.begin_flush(up_to)
    log.truncate_to(4)
    for _ in range(10):
        append(log)
    flush.finish()
    assert log.recovery_point == 4


def test_a_cut_during_a_flush_while_another_one_begins(open_log: OpenLog) -> None:
    log = open_log()
    for _ in range(10):
        append(log)
    first = log.begin_flush(10)
    log.truncate_to(4)
    for _ in range(10):
        append(log)
    second = log.begin_flush(5)
    first.finish()
    assert log.recovery_point == 4
    second.finish()
    assert log.recovery_point == 5


def paths(flush: Flush) -> list[str]:
    return [file.path for file in flush.files]


def test_a_flush_that_failed_is_repeated_in_full(open_log: OpenLog) -> None:
    """Names, topic id, leader epochs and the folder's own name count as synced only then."""
    log = open_log()
    log.set_topic_id(bytes(range(16)))
    append(log, 3, epoch=7)
    failed = log.begin_flush()
    assert [os.path.basename(path) for path in paths(failed)] == [
        f"{0:020d}.log",
        "leader-epoch-checkpoint",
        "partition.metadata",
        log.directory.name,
        log.directory.parent.name,
    ]
    failed.finish(is_synced=False)
    again = log.begin_flush()
    assert paths(again) == paths(failed)
    again.sync()
    again.finish()
    assert log.begin_flush().files == []


def test_a_second_flush_does_not_rely_on_the_first(open_log: OpenLog) -> None:
    log = open_log()
    append(log, 3, epoch=7)
    first = log.begin_flush()
    second = log.begin_flush()
    assert paths(second) == paths(first)
    log.set_topic_id(bytes(range(16)))  # after both have begun
    for flush in (second, first):
        flush.sync()
        flush.finish()
    names_of_the_id = [str(log.directory / "partition.metadata"), str(log.directory)]
    assert paths(log.begin_flush()) == names_of_the_id


@pytest.mark.parametrize("during_flush", [False, True])
def test_a_roll_at_the_recovery_point_waits_for_its_indexes(
    open_log: OpenLog, during_flush: bool
) -> None:
    log = open_log()
    append(log)
    end = log.log_end_offset
    if during_flush:
        flush = log.begin_flush(end)
    else:
        log.flush()
    closed = log.segments.active
    log.roll(0)
    if during_flush:
        flush.finish()
    assert log.recovery_point < end
    assert log.is_flush_due
    flush = log.begin_flush(end)
    assert set(closed.file_paths()) <= set(paths(flush))
    flush.finish()
    assert (log.recovery_point, log.is_flush_due) == (end, False)


def test_flush_messages_makes_a_flush_due(open_log: OpenLog) -> None:
    log = open_log(LogConfig(flush_messages=3))
    append(log, 2)
    assert not log.is_flush_due
    append(log, 2)
    assert (log.is_flush_due, log.recovery_point) == (True, 0), "the append itself syncs nothing"
    log.flush()
    assert (log.is_flush_due, log.recovery_point) == (False, 4)


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
    assert log.delete_due_files(NOW_MS + SMALL.file_delete_delay_ms - 1) == 0
    assert log.delete_due_files(NOW_MS + SMALL.file_delete_delay_ms) == 3
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


def test_a_slice_in_flight_outlives_its_file(open_log: OpenLog, tmp_path: Path) -> None:
    log = open_log()
    for _ in range(40):
        append(log)
    records = log.read(0, max_bytes=10_000).records
    before = data_of(records)
    log.truncate_fully(0)
    log.delete_due_files(NOW_MS * 2)
    assert not (tmp_path / "topic-0" / "00000000000000000014.log").exists()
    for _ in range(40):
        append(log, size=21)
    assert data_of(records) == before


def test_the_folder_is_renamed_for_deletion(open_log: OpenLog, tmp_path: Path) -> None:
    log = open_log()
    append(log)
    target = log.mark_for_deletion("0ca4fd6a74884fdb93550f1f414d3d7d")
    assert target.name == "topic-0.0ca4fd6a74884fdb93550f1f414d3d7d-delete"
    assert sorted(os.listdir(tmp_path)) == [target.name]


def test_few_descriptors_stay_open(open_log: OpenLog) -> None:
    log = open_log(open_files=OpenFiles(4))
    for _ in range(400):
        append(log)
    before = len(os.listdir("/proc/self/fd"))
    for offset in range(0, 400, 7):
        log.read(offset, max_bytes=500)
    assert len(os.listdir("/proc/self/fd")) <= before
    assert sum(segment.file is not None for segment in log.segments) <= 4
    assert append(log) == 400


# -- disks that fail ------------------------------------------------------------------------------


def test_a_short_write_on_a_full_disk_leaves_no_torn_tail(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    append(log, 2)
    size = log.size_bytes
    real = os.pwrite
    calls = []

    def full(fd: int, data: bytes, position: int) -> int:
        calls.append(len(data))
        if len(calls) == 1:
            return real(fd, memoryview(data)[:30], position)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "pwrite", full)
    with pytest.raises(LogDirectoryError) as caught:
        append(log)
    monkeypatch.undo()
    assert caught.value.errno == errno.ENOSPC
    assert str(caught.value) == f"cannot write {log.segments.active.path}: No space left on device"
    assert (log.log_end_offset, log.segments.active.log_file().size()) == (2, size)
    with pytest.raises(LogDirectoryError):
        append(log)  # the directory is offline until a restart
    log.release()
    assert open_log().log_end_offset == 2


def test_a_short_write_alone_is_continued(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    real = os.pwrite
    monkeypatch.setattr(
        files.os, "pwrite", lambda fd, data, position: real(fd, memoryview(data)[:7], position)
    )
    append(log, 2)
    assert offsets_of(log.read(0, max_bytes=1000).records) == [0, 1]


@pytest.mark.parametrize("call", ["pread", "fsync", "ftruncate"])
def test_an_io_error_names_the_file(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    log = open_log()
    for _ in range(20):
        append(log)

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(files.os, call, fail)
    with pytest.raises(LogDirectoryError, match=r"topic-0/0+\d+.*Input/output error") as caught:
        match call:
            case "pread":
                log.read(3, max_bytes=1)
            case "fsync":
                log.flush()
            case _:
                log.truncate_to(1)
    assert caught.value.errno == errno.EIO
    if call != "pread":
        assert log.failure is not None


def test_a_damaged_file_is_an_error_of_the_fetch(open_log: OpenLog) -> None:
    log = open_log()
    for _ in range(5):
        append(log)
    os.truncate(log.segments.active.path, 20)
    with pytest.raises(KafkaError) as caught:
        log.read(3, max_bytes=100)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_what_was_appended_is_there_after_a_kill(open_log: OpenLog) -> None:
    log = open_log()
    for _ in range(300):
        append(log)
    # no close, no flush: what the process held is gone, what it wrote is in the page cache
    log = open_log()
    assert log.log_end_offset == 300
    assert [offsets_of(log.read(at, max_bytes=1).records) for at in range(300)] == [
        [at] for at in range(300)
    ]


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
    assert log.max_timestamp_offset() == (NOW_MS + 104, 3, 0)


def loaded(log: PartitionLog) -> list[bool]:
    """Of each segment, whether its offset index is in memory."""
    return [segment.offset_index.held_bytes > 0 for segment in log.segments]


def test_indexes_of_closed_segments_share_a_bound(open_log: OpenLog) -> None:
    """The oldest goes first, the active segment's stay, and what is asked for is read again."""
    open_files = OpenFiles(100)
    open_files.indexes.limit_bytes = 0
    log = open_log(open_files=open_files)
    while len(log.segments) < 5:
        append(log, size=90)
    append(log, 3)
    append(log, 3)
    append(log, 3)
    assert loaded(log) == [False, False, False, False, True]
    open_files.indexes.limit_bytes = 2 * max(s.time_index.held_bytes for s in log.segments) + 300
    end = log.log_end_offset
    for offset in range(end):
        assert offset in offsets_of(log.read(offset, max_bytes=1).records)
        assert log.offset_for_timestamp(NOW_MS) == (NOW_MS, 0, 0)
        assert open_files.indexes.used_bytes <= open_files.indexes.limit_bytes
    assert loaded(log)[4], "the active one's"
    assert not all(loaded(log)[:4])
    append(log, size=90)
    log.truncate_to(end // 2)
    append(log, size=90)
    assert loaded(log)[-1]
    assert [offset for offset in range(end // 2 + 1)] == offsets_read(log)
    log.close()
    again = open_log(open_files=OpenFiles(100))
    assert offsets_read(again) == list(range(end // 2 + 1))
    assert again.segments.open_files.indexes.used_bytes == sum(
        segment.offset_index.held_bytes + segment.time_index.held_bytes
        for segment in list(again.segments)[:-1]
    )


def offsets_read(log: PartitionLog) -> list[int]:
    return [
        offsets_of(log.read(offset, max_bytes=1).records)[0] for offset in range(log.log_end_offset)
    ]


def test_a_flush_that_comes_late_leaves_the_files_of_a_new_log_alone(open_log: OpenLog) -> None:
    """The topic was deleted and made anew while a flush was on its way to the disk."""
    log = open_log()
    append(log, 3, epoch=7)
    late = log.begin_flush().files
    log.mark_for_deletion("0" * 32)
    new = open_log()
    append(new, epoch=1)
    new.flush()
    checkpoint = new.leader_epochs.path.read_bytes()
    for file in late:
        file.sync()
    assert new.leader_epochs.path.read_bytes() == checkpoint
