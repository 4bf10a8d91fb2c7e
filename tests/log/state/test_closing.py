"""Closing many logs at once: what is synced, and what a failure means."""

from __future__ import annotations

import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kbroker.log.partition_log import PartitionLog
from kbroker.log.state import closing
from kbroker.log.state.closing import close_logs
from kbroker.log.storage import files
from kbroker.log.storage.files import LogDirectoryError
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.views.log_config import LogConfig
from tests.log.appends import append_as_leader
from tests.log.damage import zero_from

NOW_MS = 1_750_000_000_000

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="names of descriptors are Linux's"
)


def make_logs(folder: Path, count: int) -> list[PartitionLog]:
    logs = []
    for index in range(count):
        key = TopicPartition("t", index)
        log = PartitionLog.open(
            folder / str(key), key, LogConfig(), now_ms=NOW_MS, topic_id=bytes(15) + b"\1"
        )
        log.leader_epochs.assign(0, 0)
        append_as_leader(
            log, build_batch([(NOW_MS, None, b"v", [])]), leader_epoch=0, now_ms=NOW_MS
        )
        logs.append(log)
    return logs


@pytest.mark.parametrize("count", [1, 7])
def test_each_file_is_synced_once_and_the_names_of_the_folder_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    synced: Counter[str] = Counter()
    lock = threading.Lock()

    def fsync(fd: int) -> None:
        with lock:
            synced[os.readlink(f"/proc/self/fd/{fd}")] += 1

    monkeypatch.setattr(files.os, "fsync", fsync)
    monkeypatch.setattr(closing, "BATCH_LOGS", 3)
    logs = make_logs(tmp_path, count)
    with ThreadPoolExecutor(2) as pool:
        close_logs(logs, pool)
    assert set(synced.values()) == {1}
    assert str(tmp_path) in synced
    for log in logs:
        assert log.closed
        assert log.recovery_point == 1
        assert str(log.directory) in synced
        on_disk = {str(path) for path in log.directory.iterdir()}
        assert on_disk <= synced.keys()
        assert (log.directory / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"


def test_a_failed_sync_ends_it_for_the_whole_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = make_logs(tmp_path, 3)

    def fsync(fd: int) -> None:
        if "t-1/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(files.os, "fsync", fsync)
    with ThreadPoolExecutor(2) as pool, pytest.raises(LogDirectoryError):
        close_logs(logs, pool)
    assert all(log.failure is not None for log in logs)
    assert not any(log.recovery_point for log in logs)


def test_a_log_that_failed_before_is_not_closed_in_silence(tmp_path: Path) -> None:
    logs = make_logs(tmp_path, 2)
    logs[1].failure = LogDirectoryError(tmp_path, "write", OSError(5, "Input/output error"))
    logs[1].release()
    with pytest.raises(LogDirectoryError):
        close_logs(logs)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_damaged_log_is_left_out(tmp_path: Path, is_known: bool) -> None:
    logs = make_logs(tmp_path, 3)
    zero_from(logs[1], 0)
    logs[1].leader_epochs.assign(1, 1)
    batch = build_batch([(NOW_MS, None, b"v", [])])
    append_as_leader(logs[1], batch, leader_epoch=1, now_ms=NOW_MS)
    cut = logs[1].begin_cut(1, is_full=False, now_ms=NOW_MS, then=lambda: None)
    assert cut is not None
    if is_known:
        cut.work()
        cut.end(None)
    close_logs(logs)
    assert isinstance(logs[1].failure, KafkaError)
    assert logs[1].failure.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert all(log.closed for log in logs)
    assert [log.recovery_point for log in logs] == [1, 0, 1]
