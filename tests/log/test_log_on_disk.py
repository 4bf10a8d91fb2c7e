"""One partition log and its disk: its files, what it keeps open, and disks that fail."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage import files, names
from kbroker.log.storage.files import LogDirectoryError
from kbroker.log.storage.open_files import OpenFiles
from kbroker.model import uuid_from_string
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.views.log_config import LogConfig
from tests.log.open_log import NOW_MS, OpenLog, append, data_of, delete_due_files, offsets_of


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


def test_a_slice_in_flight_outlives_its_file(open_log: OpenLog, tmp_path: Path) -> None:
    log = open_log()
    for _ in range(40):
        append(log)
    records = log.read(0, max_bytes=10_000).records
    before = data_of(records)
    log.truncate_fully(0)
    delete_due_files(log.segments, NOW_MS * 2)
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
    # no close, no flush: the process's memory is lost, its writes are in the page cache
    log = open_log()
    assert log.log_end_offset == 300
    assert [offsets_of(log.read(at, max_bytes=1).records) for at in range(300)] == [
        [at] for at in range(300)
    ]


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
