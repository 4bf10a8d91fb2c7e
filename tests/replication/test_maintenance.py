"""Retention, flushing and checkpoints on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.log.files import LogDirectoryError, LogFile
from kbroker.model import TopicPartition
from kbroker.protocol.errors import ErrorCode
from kbroker.replication.maintenance import ThreadOffload
from kbroker.replication.manager import PartitionAppendResult
from tests.replication.world import NOW_MS, TOPIC, World, batch, fetch_request, partitions_of

HOUR_MS = 3_600_000


def log_of(world: World, index: int = 0):  # type: ignore[no-untyped-def]  # a PartitionLog
    log = world.logs.get(TopicPartition(TOPIC, index))
    assert log is not None
    return log


def test_retention_moves_the_start_and_tells_readers(make_world: Callable[..., World]) -> None:
    world = make_world(partitions=1, log_retention_check_interval_ms="60000")
    world.configure(retention_ms="1000", segment_ms="1000")
    world.replicas.start()
    world.append(batches=batch(3))
    world.timers.advance(2000)
    world.append(batches=batch(2, timestamp=NOW_MS + 2000))
    world.timers.advance(60_000)
    data = partitions_of(world.fetch_now(fetch_request({0: 0})))[0]
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert world.replicas.list_offset(TopicPartition(TOPIC, 0), -2).offset >= 3


def test_a_closed_segment_is_flushed_soon(world: World) -> None:
    world.replicas.start()
    world.configure(segment_ms="1000")
    world.append(batches=batch(3))
    world.timers.advance(2000)
    assert log_of(world).recovery_point == 0
    world.append(batches=batch(1, timestamp=NOW_MS + 2000))
    world.timers.advance(1)
    assert log_of(world).recovery_point >= 3


def test_flush_ms(world: World) -> None:
    world.replicas.start()
    world.configure(flush_ms="5000")
    world.append(batches=batch(3))
    world.timers.advance(4000)
    assert log_of(world).recovery_point == 0
    world.timers.advance(3000)
    assert log_of(world).recovery_point == 3


def test_a_failed_flush_takes_the_directory_offline(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.replicas.start()
    world.configure(flush_ms="1000")
    world.append()

    def fail(self: LogFile) -> None:
        raise LogDirectoryError(self.path, "fsync", OSError(5, "Input/output error"))

    monkeypatch.setattr(LogFile, "sync", fail)
    world.timers.advance(3000)
    result = world.append()
    assert isinstance(result, PartitionAppendResult)
    assert result.error == ErrorCode.KAFKA_STORAGE_ERROR


def test_checkpoints(world: World) -> None:
    folder: Path = world.folder / "data"
    world.replicas.start()
    world.append(batches=batch(3))
    world.timers.advance(5_000)
    watermarks = (folder / "replication-offset-checkpoint").read_text()
    assert f"{TOPIC} 0 3" in watermarks.splitlines()
    world.timers.advance(60_000)
    assert (folder / "recovery-point-offset-checkpoint").exists()
    assert (folder / "log-start-offset-checkpoint").exists()


def test_nothing_runs_after_the_end(world: World) -> None:
    world.replicas.start()
    world.replicas.close()
    before = (world.folder / "data" / "replication-offset-checkpoint").stat().st_mtime_ns
    world.timers.advance(HOUR_MS)
    after = (world.folder / "data" / "replication-offset-checkpoint").stat().st_mtime_ns
    assert before == after


def test_the_thread_hands_back_to_the_loop() -> None:
    async def run() -> list[str]:
        offload = ThreadOffload()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        heard: list[str] = []

        def fail() -> None:
            raise OSError(5, "broken")

        offload(lambda: None, lambda failure: heard.append(str(failure)))
        offload(fail, lambda failure: (heard.append(str(failure)), done.set_result(None)))
        await asyncio.wait_for(done, 5)
        offload.close()
        return heard

    assert asyncio.run(run()) == ["None", "[Errno 5] broken"]
