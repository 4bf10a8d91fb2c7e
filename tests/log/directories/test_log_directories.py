"""Where logs are, and what remains when a disk fails."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from random import Random

import pytest

from kbroker.log.directories.log_directories import LogDirectories
from kbroker.log.manager import LogManager
from kbroker.log.storage.checkpoint import write_clean_shutdown
from kbroker.log.storage.files import LogDirectoryError
from kbroker.log.storage.names import CLEAN_SHUTDOWN
from kbroker.model import NO_BROKER_EPOCH, StartupError, TopicPartition
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.broker import BrokerConfig
from tests.log.directories.manager import NOW_MS, fill, start
from tests.own_threads import own_threads

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
ID_1, ID_2 = bytes(15) + b"\x01", bytes(15) + b"\x02"


def directories(tmp_path: Path, **properties: str) -> LogDirectories:
    paths = f"{tmp_path / 'd1'},{tmp_path / 'd2'}"
    config = BrokerConfig.from_properties(
        {"log.dirs": paths, "node.id": "1"}
        | {name.replace("_", "."): value for name, value in properties.items()}
    )
    return LogDirectories(config, now_ms=lambda: NOW_MS, random=Random(1), threads=own_threads)


def disk_error(path: Path, number: int = errno.EIO) -> LogDirectoryError:
    return LogDirectoryError(path, "write", OSError(number, os.strerror(number)))


@pytest.fixture
def manager(tmp_path: Path) -> LogManager:
    manager = start(tmp_path)
    fill(manager, A)
    fill(manager, B)
    manager.set_directory_ids({str(tmp_path / "d1"): ID_1, str(tmp_path / "d2"): ID_2})
    return manager


def test_a_directory_is_found_by_its_path(tmp_path: Path) -> None:
    found = directories(tmp_path)
    assert found.directory(str(tmp_path / "d2")) is found.all_directories[1]
    for path in ("", "d1", str(tmp_path), str(tmp_path / "d1") + "/"):
        with pytest.raises(KafkaError) as caught:
            found.directory(path)
        assert caught.value.code is ErrorCode.LOG_DIR_NOT_FOUND
    found.fail(found.all_directories[0], disk_error(tmp_path / "d1"))
    with pytest.raises(KafkaError) as caught:
        found.directory(str(tmp_path / "d1"))
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize(("cordoned", "expected"), [("*", 2), ("", 0)])
def test_cordoned_directories(tmp_path: Path, cordoned: str, expected: int) -> None:
    found = directories(tmp_path, cordoned_log_dirs=cordoned)
    found.set_directory_ids({str(tmp_path / "d1"): ID_1, str(tmp_path / "d2"): ID_2})
    assert len(found.directory_ids(cordoned=True)) == expected
    assert found.directory_ids() == [ID_1, ID_2]
    one = directories(tmp_path, cordoned_log_dirs=str(tmp_path / "d2"))
    assert [directory.is_cordoned for directory in one.all_directories] == [False, True]


def test_where_a_log_is(manager: LogManager) -> None:
    assert {manager.directory_id_of(A), manager.directory_id_of(B)} == {ID_1, ID_2}
    removed = manager.remove(A)
    assert removed is not None and removed[1].topic_partition == A
    assert manager.remove(A) is None
    assert manager.directory_of(A) is manager.hosting(A) is manager.directory_id_of(A) is None
    assert list(manager.logs) == [B]


def test_a_disk_that_fails_takes_its_partitions_and_no_others(manager: LogManager) -> None:
    told: list[tuple[Path, list[TopicPartition]]] = []
    manager.on_offline = lambda path, partitions: told.append((path, partitions))
    log, path = manager.logs[A], manager.directory_of(A)
    assert path is not None
    error = disk_error(path / "a-0" / "0.log")
    assert manager.directory_failed(error) == [A]
    assert manager.directory_failed(error) == [], "it is offline already"
    assert told == [(path, [A])]
    assert log.failure is error and list(manager.logs) == [B]
    assert manager.offline_partitions == {A}
    assert manager.offline_paths == [str(path)]
    manager.require_one_online()
    other = manager.directory_of(B)
    assert other is not None
    manager.directory_failed(disk_error(other))
    with pytest.raises(StartupError, match=r"none of log\.dirs"):
        manager.require_one_online()


def test_a_damaged_log_takes_nothing_else_offline(manager: LogManager) -> None:
    told: list[TopicPartition] = []
    manager.on_damaged = told.append
    log, directory = manager.logs[A], manager.hosting(A)
    assert directory is not None and not directory.must_recover
    error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "0.log: no record batch at position 9")
    for _ in range(2):  # the second time it is no longer hosted
        manager.take_damaged_offline(log, error)
    assert told == [A] and log.closed and list(manager.logs) == [B]
    assert manager.is_damaged(A) and not manager.offline_directories
    assert directory.must_recover and A not in directory.recovery_points()
    assert manager.delete(A)
    assert not directory.must_recover and not manager.offline_partitions


def test_a_file_that_is_elsewhere_takes_nothing_offline(manager: LogManager) -> None:
    assert manager.directory_failed(disk_error(Path("/elsewhere/0.log"))) == []
    assert not manager.offline_directories


def test_a_lack_of_descriptors_takes_nothing_offline(
    manager: LogManager, caplog: pytest.LogCaptureFixture
) -> None:
    path = manager.directory_of(A)
    assert path is not None
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert manager.directory_failed(disk_error(path / "0.log", errno.EMFILE)) == []
    assert not manager.offline_directories and len(caplog.records) == 1
    assert "ulimit" in caplog.text


def test_usage_of_a_directory(manager: LogManager) -> None:
    log = manager.logs[A]
    log.high_watermark = 5
    directory = manager.hosting(A)
    assert directory is not None
    total, usable, (used,) = manager.usage(directory)
    assert total >= usable > 0
    assert used == (A, log.size_bytes, 2, False)
    manager.fail(directory, disk_error(directory.path))
    with pytest.raises(LogDirectoryError):
        manager.usage(directory)


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [((5, 5), 5), ((5, 6), NO_BROKER_EPOCH), ((5, NO_BROKER_EPOCH), NO_BROKER_EPOCH)],
)
def test_the_epoch_of_the_broker_before_is_that_of_all_directories(
    tmp_path: Path, epochs: tuple[int, int], expected: int
) -> None:
    found = directories(tmp_path)
    for directory, epoch in zip(found.all_directories, epochs, strict=True):
        directory.broker_epoch = epoch
    assert found.previous_broker_epoch == expected


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [((5, 5), 5), ((5, 6), NO_BROKER_EPOCH), ((5, None), NO_BROKER_EPOCH)],
)
def test_the_epoch_of_the_broker_before_is_known_before_the_logs_are_loaded(
    tmp_path: Path, epochs: tuple[int | None, ...], expected: int
) -> None:
    found = directories(tmp_path)
    found.lock()
    for directory, epoch in zip(found.all_directories, epochs, strict=True):
        if epoch is not None:
            write_clean_shutdown(directory.path, epoch)
    found.read_broker_epochs()
    assert found.previous_broker_epoch == expected
    assert [(each.path / CLEAN_SHUTDOWN).exists() for each in found.all_directories] == [
        epoch is not None for epoch in epochs
    ]


def test_a_directory_whose_marker_cannot_be_read_is_offline(tmp_path: Path) -> None:
    found = directories(tmp_path)
    found.lock()
    write_clean_shutdown(tmp_path / "d1", 5)
    (tmp_path / "d2" / CLEAN_SHUTDOWN).mkdir()
    found.read_broker_epochs()
    assert list(found.offline_directories) == [tmp_path / "d2"]
    assert found.previous_broker_epoch == 5


def test_a_path_that_is_given_twice_is_one_directory(tmp_path: Path) -> None:
    path = str(tmp_path / "d1")
    config = BrokerConfig.from_properties({"log.dirs": f"{path},{path}", "node.id": "1"})
    found = LogDirectories(config, now_ms=lambda: NOW_MS, random=Random(1), threads=own_threads)
    assert len(found.all_directories) == 1
