"""A start that is cancelled: what it waits for, what it leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kbroker.broker.controller_channel import LocalControllerChannel
from kbroker.controller.brokers.broker_heartbeat import HeartbeatReply
from kbroker.log.directories.loading import LoadJob
from kbroker.log.partition_log import PartitionLog
from kbroker.log.state.log_state import RecoveryStopped
from kbroker.log.storage import names
from kbroker.log.storage.checkpoint import read_clean_shutdown, read_offsets, write_offsets
from kbroker.log.storage.directory_lock import DirectoryLock
from kbroker.model import StartupError, TopicPartition
from kbroker.node.node import Broker
from kbroker.ports import Deferred
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.settings.broker import BrokerConfig
from kbroker.testing import EmbeddedBroker

TOPICS = ("a", "b", "c")
RECORDS = 20
NOW_MS = 1_700_000_000_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def dirty(data: Path) -> Path:
    """A log directory after kill -9, three logs of 20 records."""
    with EmbeddedBroker(data=data) as broker:
        fill(broker)
        broker.kill()
    return data


@pytest.fixture
def clean(data: Path) -> Path:
    """The same after a clean stop."""
    with EmbeddedBroker(data=data) as broker:
        fill(broker)
    return data


def fill(broker: EmbeddedBroker) -> None:
    for topic in TOPICS:
        broker.create_topic(topic)
    broker.call(append_to_all)


def append_to_all(broker: Broker) -> None:
    for topic in TOPICS:
        for _ in range(RECORDS):
            batch = build_batch([(NOW_MS, b"key", bytes(20), [])])
            broker.services.replicas.append(TopicPartition(topic, 0), batch, acks=1, timeout_ms=0)


def config_of(data: Path) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(data),
            "num.recovery.threads.per.data.dir": "2",
        }
    )


def is_locked(data: Path) -> bool:
    lock = DirectoryLock(data)
    try:
        lock.acquire()
    except StartupError:
        return True
    lock.release()
    return False


def assert_sound(data: Path) -> None:
    """The next start has all records, and stops in order."""
    with EmbeddedBroker(data=data) as broker:
        ends = broker.call(
            lambda running: {
                topic: running.services.replicas.logs.logs[TopicPartition(topic, 0)].log_end_offset
                for topic in TOPICS
            }
        )
    assert ends == dict.fromkeys(TOPICS, RECORDS)
    assert read_clean_shutdown(data) is not None


class HeldOpen:
    """In place of `LoadJob.open`: the first log is opened only when the test lets go of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self.released = threading.Event()
        self.stopped: list[TopicPartition] = []
        self.opened: list[TopicPartition] = []
        open_log = LoadJob.open

        def held(job: LoadJob, now_ms: int, producer_id_expiration_ms: int) -> PartitionLog:
            self.begun.set()
            assert self.released.wait(30)
            try:
                log = open_log(job, now_ms, producer_id_expiration_ms)
            except RecoveryStopped:
                self.stopped.append(job.topic_partition)
                raise
            self.opened.append(job.topic_partition)
            return log

        monkeypatch.setattr(LoadJob, "open", held)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldOpen]:
    with monkeypatch.context() as patch:
        held = HeldOpen(patch)
        yield held
        held.released.set()


async def cancel_while_loading(data: Path, held: HeldOpen, *, cancels: int = 1) -> None:
    starting = asyncio.ensure_future(Broker(config_of(data)).start())
    await asyncio.to_thread(held.begun.wait, 30)
    for _ in range(cancels):
        starting.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
    assert is_locked(data)
    held.released.set()
    with suppress(asyncio.CancelledError):
        await starting
        pytest.fail("the start was cancelled")


@pytest.mark.usefixtures("dirty")
def test_a_start_that_is_cancelled_keeps_its_lock_until_recovery_writes_no_more(
    data: Path, held: HeldOpen, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(cancel_while_loading(data, held))
    assert not is_locked(data)
    assert held.stopped and not held.opened  # those under way; the third was never begun
    assert len(held.stopped) < len(TOPICS)
    assert read_clean_shutdown(data) is None
    monkeypatch.undo()
    assert_sound(data)


@pytest.mark.usefixtures("clean")
def test_logs_that_were_closed_in_order_count_as_that_after_a_start_that_was_cancelled(
    data: Path, held: HeldOpen
) -> None:
    epoch = read_clean_shutdown(data)
    points = read_offsets(data / names.RECOVERY_POINTS)
    asyncio.run(cancel_while_loading(data, held))
    again = read_clean_shutdown(data)
    assert epoch is not None and again is not None
    assert again > epoch >= 0  # it had registered before it loaded its logs
    assert read_offsets(data / names.RECOVERY_POINTS) == points
    assert_sound(data)


@pytest.mark.usefixtures("dirty")
def test_the_start_is_cancelled_twice(data: Path, held: HeldOpen) -> None:
    """The second cancel ends the wait for the first, not the release of the directory: the lock is
    kept as long as recovery writes.
    """

    async def script() -> None:
        await cancel_while_loading(data, held, cancels=2)
        for _ in range(1000):  # the release goes on by itself
            if not is_locked(data):
                break
            await asyncio.sleep(0.01)

    asyncio.run(script())
    assert not is_locked(data)
    assert_sound(data)


@pytest.mark.usefixtures("dirty")
def test_a_start_that_is_cancelled_with_all_logs_recovered_closes_them_in_order(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Kafka: what was recovered need not be recovered again. High watermarks that were not
    taken up yet stay on disk.
    """
    watermarks = {TopicPartition(topic, 0): RECORDS - 1 for topic in TOPICS}
    write_offsets(data / names.HIGH_WATERMARKS, watermarks)

    async def script() -> None:
        reached = asyncio.Event()
        heartbeat = LocalControllerChannel.heartbeat

        def hold(
            self: LocalControllerChannel, broker_epoch: int, **wishes: bool
        ) -> Deferred[HeartbeatReply]:
            if wishes["want_fence"]:
                return heartbeat(self, broker_epoch, **wishes)
            reached.set()
            return Deferred()

        with monkeypatch.context() as patch:
            patch.setattr(LocalControllerChannel, "heartbeat", hold)
            starting = asyncio.ensure_future(Broker(config_of(data)).start())
            await reached.wait()
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
                pytest.fail("the start was cancelled")

    asyncio.run(script())
    assert not is_locked(data)
    assert (read_clean_shutdown(data) or 0) > 0  # the epoch of this registration
    assert read_offsets(data / names.HIGH_WATERMARKS) == watermarks
    points = read_offsets(data / names.RECOVERY_POINTS)
    assert points == {TopicPartition(topic, 0): RECORDS for topic in TOPICS}
    assert_sound(data)
