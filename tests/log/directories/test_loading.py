"""Opening many logs at once: the same result for any number of threads, progress, faults."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from kbroker.log.directories import loading
from kbroker.log.directories.loading import LoadJob
from kbroker.log.manager import LogManager
from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage import names
from kbroker.log.storage.files import LogDirectoryError
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.log_config import LogConfig
from tests.log.appends import append_as_leader
from tests.own_threads import own_threads

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=1000, segment_index_bytes=4096)
KEYS = [TopicPartition("t", number) for number in range(12)]

Start = Callable[[int], LogManager]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def start_manager(threads: int) -> LogManager:
        config = BrokerConfig.from_properties(
            {
                "log.dirs": f"{tmp_path / 'd1'},{tmp_path / 'd2'}",
                "node.id": "1",
                "num.recovery.threads.per.data.dir": str(threads),
            }
        )
        manager = LogManager(config, now_ms=lambda: NOW_MS, random=Random(1), threads=own_threads)
        manager.lock()
        try:
            manager.load(lambda topic: CONFIG)
        except BaseException:
            manager.close(clean=False)
            raise
        return manager

    return start_manager


def fill(manager: LogManager) -> None:
    for number, key in enumerate(KEYS):
        log = manager.get_or_create(key, None, CONFIG)
        for _ in range(10 + number):
            batch = build_batch([(NOW_MS, b"key", bytes(20), [])])
            append_as_leader(log, batch, leader_epoch=0, now_ms=NOW_MS)


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_every_log_is_recovered_whatever_the_number_of_threads(
    start: Start, threads: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "PROGRESS_SECONDS", 0.0)
    manager = start(1)
    fill(manager)
    torn = manager.logs[KEYS[3]].segments.active.path
    manager.close(clean=False)
    with open(torn, "ab") as file:
        file.write(b"torn")
    with caplog.at_level(logging.INFO, logger="kbroker.log.directories.loading"):
        manager = start(threads)
    assert {key: log.log_end_offset for key, log in manager.logs.items()} == {
        key: 10 + number for number, key in enumerate(KEYS)
    }
    assert "recovered 1 of 12 logs" in caplog.text
    assert "recovered 12 logs in" in caplog.text
    shared = {id(log.segments.open_files) for log in manager.logs.values()}
    assert len(shared) == 1
    manager.close()


@pytest.mark.parametrize("threads", [1, 4])
def test_a_surprise_in_one_log_takes_only_that_log_offline(
    start: Start, threads: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    manager = start(1)
    fill(manager)
    manager.close(clean=False)
    open_log = LoadJob.open

    def surprise(job: LoadJob, now_ms: int, producer_id_expiration_ms: int) -> PartitionLog:
        if job.topic_partition == KEYS[4]:
            raise IndexError("list index out of range")
        return open_log(job, now_ms, producer_id_expiration_ms)

    with monkeypatch.context() as patch:
        patch.setattr(LoadJob, "open", surprise)
        manager = start(threads)
    assert manager.offline_partitions == {KEYS[4]} and len(manager.logs) == len(KEYS) - 1
    assert not manager.offline_directories
    assert any(record.exc_info for record in caplog.records), "its traceback is logged"
    manager.close()
    manager = start(threads)
    assert manager.logs[KEYS[4]].log_end_offset == 14  # recovered, as after a crash
    manager.close()


@pytest.mark.parametrize("threads", [1, 4])
def test_a_disk_that_fails_meanwhile_takes_its_directory_only(
    start: Start, threads: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manager = start(1)
    fill(manager)
    manager.close(clean=False)
    open_log = LoadJob.open

    def fail(job: LoadJob, now_ms: int, producer_id_expiration_ms: int) -> PartitionLog:
        if job.topic_partition == KEYS[4]:
            raise LogDirectoryError(job.folder / "x.log", "read", OSError(5, "Input/output error"))
        return open_log(job, now_ms, producer_id_expiration_ms)

    monkeypatch.setattr(LoadJob, "open", fail)
    manager = start(threads)
    assert list(manager.offline_directories) == [tmp_path / "d1"]
    assert sorted(manager.logs) == sorted(KEYS[1::2])
    manager.close()


def test_a_corrupt_file_takes_only_its_log_offline(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = start(1)
    fill(manager)
    manager.close()
    (tmp_path / "d2" / str(KEYS[5]) / names.LEADER_EPOCHS).write_text("7\n")
    manager = start(4)
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "leader-epoch-checkpoint" in line and str(KEYS[5]) in line and "\n" not in line
    assert manager.offline_partitions == {KEYS[5]} and len(manager.logs) == len(KEYS) - 1
    assert not manager.offline_directories
    manager.close()
