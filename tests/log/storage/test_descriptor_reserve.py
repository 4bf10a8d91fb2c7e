"""A process without a free descriptor: log files take one from the reserve, and no directory goes
offline, unless a change was half done.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from kbroker.log.manager import LogManager
from kbroker.log.state.rolling import begin_roll
from kbroker.log.storage import descriptor_reserve, files, index
from kbroker.log.storage.descriptor_reserve import DescriptorReserve
from kbroker.log.storage.files import LogDirectoryError, LogFile
from kbroker.log.validator import AppendOrigin
from kbroker.model import TopicPartition, random_uuid
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.control_records import build_end_transaction_marker
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.log_config import LogConfig
from tests.log.appends import append_as_leader
from tests.own_threads import own_threads

NOW_MS = 1_700_000_000_000
PARTITION = TopicPartition("t", 0)
CONFIG = LogConfig(segment_bytes=1000, segment_index_bytes=4096)


class Shortage:
    """`os` with an `open` that fails, `left` times after `first` times, for lack of a
    descriptor.
    """

    def __init__(self) -> None:
        self.left = 0
        self.first = 0
        self.error = errno.EMFILE
        self.failed = 0

    def open(self, *args: object) -> int:
        if self.first:
            self.first -= 1
        elif self.left:
            self.left -= 1
            self.failed += 1
            raise OSError(self.error, os.strerror(self.error))
        return os.open(*args)  # type: ignore[arg-type]  # those of os.open

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)


@pytest.fixture
def shortage(monkeypatch: pytest.MonkeyPatch) -> Shortage:
    shortage = Shortage()
    monkeypatch.setattr(files, "os", shortage)
    return shortage


@pytest.fixture
def reserve(monkeypatch: pytest.MonkeyPatch) -> Iterator[DescriptorReserve]:
    """Two descriptors, for this test alone."""
    reserve = DescriptorReserve()
    monkeypatch.setattr(descriptor_reserve, "RESERVE", reserve)
    reserve.hold(2)
    yield reserve
    reserve.let_go(2)


@pytest.fixture
def empty_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker of this process, such as one shared by other tests, has a descriptor to lend."""
    monkeypatch.setattr(descriptor_reserve, "RESERVE", DescriptorReserve())


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
def test_a_file_takes_a_descriptor_of_the_reserve(
    tmp_path: Path, reserve: DescriptorReserve, shortage: Shortage, error: int
) -> None:
    shortage.error = error
    openings: list[Callable[[], object]] = [
        lambda: LogFile(os.fspath(tmp_path / "log"), create=True).size(),
        lambda: files.atomic_write(tmp_path / "checkpoint", b"0"),
        lambda: files.read_file(tmp_path / "checkpoint"),
        lambda: files.create_file(os.fspath(tmp_path / "segment")),
        lambda: files.sync_directory(tmp_path),
    ]
    for use in openings:
        shortage.left = 2
        use()
        assert shortage.left == 0
        assert reserve.missing == 2
        assert reserve.refill()
        assert reserve.missing == 0


def test_without_a_reserve_the_open_fails_once(
    tmp_path: Path, reserve: DescriptorReserve, shortage: Shortage
) -> None:
    shortage.left = 10
    with pytest.raises(LogDirectoryError) as caught:
        LogFile(os.fspath(tmp_path / "log"), create=True)
    assert caught.value.is_shortage
    assert shortage.failed == 3


def test_another_error_leaves_the_reserve_alone(
    tmp_path: Path, reserve: DescriptorReserve, shortage: Shortage
) -> None:
    shortage.error, shortage.left = errno.EIO, 1
    with pytest.raises(LogDirectoryError) as caught:
        LogFile(os.fspath(tmp_path / "log"), create=True)
    assert not caught.value.is_shortage
    assert reserve.missing == 0


def test_brokers_of_a_process_share_the_larger_reserve() -> None:
    reserve = DescriptorReserve()
    reserve.hold(2)
    reserve.hold(3)
    assert [reserve.lend() for _ in range(4)] == [True, True, True, False]
    assert reserve.refill()
    reserve.let_go(3)
    assert [reserve.lend() for _ in range(3)] == [True, True, False]
    reserve.let_go(2)
    assert reserve.missing == 0 and not reserve.lend()


def start(config: BrokerConfig) -> LogManager:
    manager = LogManager(config, now_ms=lambda: NOW_MS, random=Random(1), threads=own_threads)
    manager.lock()
    manager.load(lambda topic: CONFIG)
    return manager


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[LogManager]:
    manager = start(
        BrokerConfig.from_properties({"log.dirs": str(tmp_path / "data"), "node.id": "1"})
    )
    yield manager
    manager.close()


def append(manager: LogManager) -> int:
    batch = build_batch([(NOW_MS, b"key", bytes(20), [])])
    log = manager.logs[PARTITION]
    return append_as_leader(log, batch, leader_epoch=0, now_ms=NOW_MS).base_offset


@pytest.mark.usefixtures("empty_reserve")
def test_a_shortage_takes_neither_the_log_nor_its_directory_offline(
    manager: LogManager, shortage: Shortage, caplog: pytest.LogCaptureFixture
) -> None:
    log = manager.get_or_create(PARTITION, random_uuid(Random(2)), CONFIG)
    assert append(manager) == 0
    log.segments.active.close_file()
    shortage.left = 1
    for _ in range(2):
        with pytest.raises(LogDirectoryError) as caught:
            append(manager)
        assert manager.directory_failed(caught.value) == []
        shortage.left = 1
    shortage.left = 0
    assert not manager.offline_directories
    assert [append(manager) for _ in range(20)] == list(range(1, 21))
    lines = [line for line in caplog.messages if "ulimit -n" in line]
    assert len(lines) == 1, "lines about it are throttled"


def end_of_transaction(manager: LogManager) -> None:
    """Append the abort marker of producer 7."""
    marker = build_end_transaction_marker(
        producer_id=7, producer_epoch=0, commit=False, coordinator_epoch=1, timestamp_ms=NOW_MS
    )
    append_as_leader(
        manager.logs[PARTITION],
        marker,
        leader_epoch=0,
        now_ms=NOW_MS,
        origin=AppendOrigin.COORDINATOR,
    )


@pytest.mark.usefixtures("empty_reserve")
def test_a_marker_whose_transaction_cannot_be_indexed_ends_the_log(
    manager: LogManager, shortage: Shortage
) -> None:
    """The marker is in the file already: the next batch must not get its offset."""
    log = manager.get_or_create(PARTITION, random_uuid(Random(2)), CONFIG)
    batch = build_batch(
        [(NOW_MS, b"key", b"value", [])],
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    append_as_leader(log, batch, leader_epoch=0, now_ms=NOW_MS)
    shortage.left = 1
    with pytest.raises(LogDirectoryError) as caught:
        end_of_transaction(manager)
    with pytest.raises(LogDirectoryError):
        append(manager)
    assert manager.directory_failed(caught.value) == [PARTITION]
    manager.close(clean=False)
    again = start(manager.config)
    found = again.logs[PARTITION]
    assert (found.log_end_offset, found.first_unstable_offset) == (2, None)
    assert len(found.segments.aborted_transactions(0, 2)) == 1
    assert append(again) == 2
    again.close()


@pytest.mark.usefixtures("empty_reserve")
def test_an_index_that_cannot_be_written_after_its_batch_ends_the_log(
    manager: LogManager, shortage: Shortage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "PENDING_LIMIT", 1)
    config = replace(CONFIG, index_interval_bytes=0)
    log = manager.get_or_create(PARTITION, random_uuid(Random(2)), config)
    append(manager)
    shortage.left = 1
    with pytest.raises(LogDirectoryError) as caught:
        append(manager)
    assert log.failure is caught.value
    assert manager.directory_failed(caught.value) == [PARTITION]
    manager.close(clean=False)
    again = start(manager.config)
    assert append(again) == 1
    again.close()


ROLL_OPENS = 6
"""Files that a roll opens: two indexes that it trims, three that it creates, and the snapshot."""


@pytest.mark.usefixtures("empty_reserve")
@pytest.mark.parametrize("by", ["worker", "loop", "loop after the worker"])
@pytest.mark.parametrize("opened", range(ROLL_OPENS))
def test_after_a_roll_without_descriptors_the_old_segment_goes_on(
    manager: LogManager, shortage: Shortage, opened: int, by: str
) -> None:
    log = manager.get_or_create(PARTITION, random_uuid(Random(2)), CONFIG)
    while log.segments.active.size < CONFIG.segment_bytes - 120:
        append(manager)
    end, active = log.log_end_offset, log.segments.active
    log.jobs.settle()
    before = sorted(log.directory.iterdir())
    shortage.first, shortage.left = opened, 1
    if by == "loop":
        with pytest.raises(LogDirectoryError) as caught:
            log.roll(NOW_MS)
    else:
        roll = begin_roll(log, NOW_MS, end)
        with pytest.raises(LogDirectoryError) as caught:
            roll.work()
        if by == "loop after the worker":
            shortage.first, shortage.left = opened, 1
            with pytest.raises(LogDirectoryError):
                log.roll(NOW_MS)
        roll.end(caught.value)
        assert roll.failure is caught.value
    assert manager.directory_failed(caught.value) == []
    assert (log.failure, shortage.left, log.segments.active) == (None, 0, active)
    assert sorted(log.directory.iterdir()) == before
    log.check()
    small = build_batch([(NOW_MS + 1, None, b"", [])])
    append_as_leader(log, small, leader_epoch=0, now_ms=NOW_MS)
    assert log.segments.base_offsets == [0], "a batch for which there is room"
    for _ in range(20):
        append(manager)
    log.check()
    assert log.segments.base_offsets[1] == end + 1
    manager.close()
    again = start(manager.config)
    assert again.logs[PARTITION].log_end_offset == end + 21
    assert append(again) == end + 21
    again.close()


@pytest.mark.usefixtures("empty_reserve")
def test_a_new_segment_that_cannot_be_taken_over_ends_the_log(
    manager: LogManager, shortage: Shortage
) -> None:
    """Its files exist. A preallocated file is opened to cut it to its size."""
    log = manager.get_or_create(
        PARTITION, random_uuid(Random(2)), replace(CONFIG, preallocate=True)
    )
    append(manager)
    roll = begin_roll(log, NOW_MS, 1)
    roll.work()
    log.segments.active.close_file()
    shortage.left = 1
    roll.end(None)
    assert roll.failure is not None and log.failure is roll.failure
    assert manager.directory_failed(roll.failure) == [PARTITION]


@pytest.mark.usefixtures("empty_reserve")
def test_retention_and_a_flush_without_descriptors_are_tried_again(
    manager: LogManager, shortage: Shortage
) -> None:
    log = manager.get_or_create(PARTITION, random_uuid(Random(2)), replace(CONFIG, retention_ms=1))
    append(manager)
    shortage.left = 1
    with pytest.raises(LogDirectoryError):
        log.flush()
    assert (log.failure, log.flushes, log.recovery_point) == (None, (), 0)
    log.flush()
    assert log.recovery_point == 1
    shortage.left = 1
    with pytest.raises(LogDirectoryError):
        log.delete_old_segments(NOW_MS + 1000)
    assert (log.failure, log.log_start_offset) == (None, 0)
    assert log.delete_old_segments(NOW_MS + 1000) == 1
    assert log.log_start_offset == 1
    assert append(manager) == 1


@pytest.mark.usefixtures("empty_reserve")
@pytest.mark.parametrize("by", ["worker", "loop"])
@pytest.mark.parametrize("is_full", [False, True])
def test_a_truncation_without_descriptors_takes_the_directory_offline(
    manager: LogManager, shortage: Shortage, is_full: bool, by: str
) -> None:
    """It may be half done."""
    log = manager.get_or_create(PARTITION, random_uuid(Random(2)), CONFIG)
    for _ in range(20):
        append(manager)
    log.flush()
    if by == "loop":
        shortage.left = 1
        with pytest.raises(LogDirectoryError) as caught:
            if is_full:
                log.truncate_fully(3, now_ms=NOW_MS)
            else:
                log.truncate_to(3, now_ms=NOW_MS)
    else:
        cut = manager.begin_cut(PARTITION, 3, is_full=is_full, then=lambda: None)
        assert cut is not None
        shortage.left = 1
        with pytest.raises(LogDirectoryError) as caught:
            cut.work()
        cut.end(caught.value)
        assert cut.failure is caught.value
    assert (log.failure, shortage.left) == (caught.value, 0)
    assert manager.directory_failed(caught.value) == [PARTITION]


@pytest.mark.usefixtures("empty_reserve")
def test_a_log_that_could_not_be_created_during_a_shortage_is_created_later(
    manager: LogManager, shortage: Shortage
) -> None:
    topic_id = random_uuid(Random(2))
    shortage.left = 1
    with pytest.raises(KafkaError) as caught:
        manager.get_or_create(PARTITION, topic_id, CONFIG)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert not manager.offline_directories
    manager.get_or_create(PARTITION, topic_id, CONFIG)
    assert append(manager) == 0
