"""The driver over a real directory: order, group commit, restarts, crashes between any steps."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from kbroker.log.partition_log import PartitionLog
from kbroker.log.state.flush import Syncable
from kbroker.log.storage.files import LogDirectoryError
from kbroker.model import StartupError
from kbroker.node.loop.futures import as_future
from kbroker.node.loop.offload import ExecutorOffload
from kbroker.ports import Deferred
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.quorum.driver import QuorumDriver
from kbroker.quorum.effect_executor import Transport
from kbroker.quorum.formatting.format import ensure_formatted
from kbroker.quorum.raft.effects import MAX_BATCH_BYTES
from kbroker.settings.broker import BrokerConfig
from tests.quorum.conftest import StillTimers

LOG = "__cluster_metadata-0/00000000000000000000.log"


def no_transport() -> Transport:
    raise AssertionError("the only voter talks to no other node")


class Node:
    """One run of the driver; `seen`: what it passed to the state machine."""

    def __init__(self, directory: Path, timers: StillTimers, **settings: str) -> None:
        properties = {key.replace("_", "."): value for key, value in settings.items()}
        config = BrokerConfig.from_properties(
            {"log.dirs": str(directory), "node.id": "1", **properties}
        )
        meta = ensure_formatted(config, Random(1))
        self.directory = directory
        self.driver = QuorumDriver.from_config(
            config,
            properties=meta,
            timers=timers,
            offload=ExecutorOffload(ThreadPoolExecutor(1)),
            random=Random(2),
            open_transport=no_transport,
        )
        self.batches: list[tuple[int, int, list[bytes]]] = []
        self.snapshot: list[bytes] = []
        self.snapshot_end = 0
        self.failures: list[BaseException] = []
        self.driver.feed.on_commit(self._commit)
        self.driver.feed.on_snapshot(self._snapshot)
        self.driver.on_fatal(self.failures.append)

    def _commit(self, base_offset: int, epoch: int, records: Sequence[bytes]) -> None:
        self.batches.append((base_offset, epoch, list(records)))

    def _snapshot(self, records: Iterable[bytes], end_offset: int, epoch: int) -> None:
        self.snapshot, self.snapshot_end = list(records), end_offset

    @property
    def seen(self) -> list[bytes]:
        """All known records, in order: the snapshot, then the records committed after it."""
        return self.snapshot + [record for _, _, records in self.batches for record in records]

    async def start(self) -> None:
        await as_future(self.driver.start())
        if self.driver.failure is not None:
            raise self.driver.failure

    async def stop(self) -> None:
        has_failed = self.driver.failure is not None
        await as_future(self.driver.stop())
        if self.driver.failure is not None and not has_failed:
            raise self.driver.failure

    async def write_snapshot(
        self, *, end_offset: int, epoch: int, chunks: Iterable[Sequence[bytes]]
    ) -> None:
        written = self.driver.write_snapshot(end_offset=end_offset, epoch=epoch, chunks=chunks)
        await as_future(written)

    async def settle(self) -> None:
        idle: Deferred[None] = Deferred()
        self.driver._executor.once_idle(functools.partial(idle.resolve, None))
        await as_future(idle)

    def kill(self) -> None:
        """End as after kill -9: written data is kept, nothing is closed cleanly."""
        self.driver._offload.close()


async def restarted(directory: Path, timers: StillTimers) -> Node:
    node = Node(directory, timers)
    await node.start()
    return node


def test_first_start(tmp_path: Path, timers: StillTimers) -> None:
    async def script() -> None:
        node = await restarted(tmp_path, timers)
        assert (node.driver.epoch, node.driver.next_offset, node.driver.kraft_version) == (1, 3, 1)
        assert node.batches == [(2, 1, [])]  # a control batch of three records
        first = node.driver.append([b"a", b"b"])
        second = node.driver.append([b"c"])
        assert not first.done
        await node.settle()
        assert (first.value, second.value) == (4, 5)
        assert node.batches[1:] == [(3, 1, [b"a", b"b"]), (5, 1, [b"c"])]
        await node.stop()
        assert (tmp_path / "__cluster_metadata-0" / "quorum-state").read_bytes() == (
            b'{"leaderId":1,"leaderEpoch":1,"votedId":-1,'
            b'"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
        )

    asyncio.run(script())


def test_the_time_until_a_commit_is_measured(tmp_path: Path, timers: StillTimers) -> None:
    async def script() -> None:
        node = Node(tmp_path, timers)
        assert node.driver.status is None
        await node.start()
        node.driver.append([b"a"])
        timers.time_ms += 250
        await node.settle()
        measured = node.driver.commit_seconds
        assert (measured.count, measured.total, measured.maximum) == (1, 0.25, 0.25)
        status = node.driver.status
        assert status is not None
        assert (status.state, status.leader_id, status.voter_count) == ("leader", 1, 1)
        assert status.high_watermark == status.log_end_offset == node.driver.next_offset
        await node.stop()

    asyncio.run(script())


def test_each_life_has_its_epoch_and_begins_with_a_leader_change(
    tmp_path: Path, timers: StillTimers
) -> None:
    async def script() -> None:
        for life in range(1, 4):
            node = await restarted(tmp_path, timers)
            assert node.driver.epoch == life
            node.driver.append([b"%d" % life])
            await node.stop()
            assert node.seen == [b"%d" % each for each in range(1, life + 1)]

    asyncio.run(script())
    headers = [header for _, header in iter_batches((tmp_path / LOG).read_bytes())]
    assert [(h.partition_leader_epoch, h.is_control, h.record_count) for h in headers] == [
        (1, True, 3),
        (1, False, 1),
        (2, True, 1),
        (2, False, 1),
        (3, True, 1),
        (3, False, 1),
    ]
    epochs = (tmp_path / "__cluster_metadata-0" / "leader-epoch-checkpoint").read_text()
    assert epochs == "0\n3\n1 0\n2 4\n3 6\n"


def test_many_waiting_appends_share_few_syncs(
    tmp_path: Path, timers: StillTimers, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    append = PartitionLog.append_as_follower

    def counted(log: PartitionLog, batches: bytearray, *, now_ms: int) -> object:
        writes.append(len(batches))
        return append(log, batches, now_ms=now_ms)

    monkeypatch.setattr(PartitionLog, "append_as_follower", counted)

    async def script() -> None:
        node = await restarted(tmp_path, timers)
        writes.clear()
        waiting = [node.driver.append([b"%d" % i]) for i in range(100)]
        await node.settle()
        assert [deferred.value for deferred in waiting] == list(range(3, 103))
        assert len(writes) <= 2
        await node.stop()

    asyncio.run(script())


def test_records_that_need_not_be_atomic_are_split(tmp_path: Path, timers: StillTimers) -> None:
    async def script() -> None:
        node = await restarted(tmp_path, timers)
        big = [bytes(MAX_BATCH_BYTES // 4)] * 5
        node.driver.append(big, atomic=False)
        await node.settle()
        assert [len(records) for _, _, records in node.batches[1:]] == [1] * 5
        await node.stop()

    asyncio.run(script())


@pytest.mark.parametrize("cut", [1, 30, 61, 70])
def test_a_torn_tail_is_cut_off(tmp_path: Path, timers: StillTimers, cut: int) -> None:
    async def script() -> None:
        node = await restarted(tmp_path, timers)
        for record in (b"kept", b"torn"):
            node.driver.append([record])
            await node.settle()
        node.kill()
        log = tmp_path / LOG
        data = log.read_bytes()
        end = max(position + header.size_bytes for position, header in iter_batches(data))
        log.write_bytes(data[: end - cut])
        again = await restarted(tmp_path, timers)
        assert again.seen == [b"kept"]
        assert again.driver.epoch == 2
        again.driver.append([b"new"])
        await again.stop()
        third = await restarted(tmp_path, timers)
        assert third.seen == [b"kept", b"new"]
        await third.stop()

    asyncio.run(script())


def test_left_overs_of_a_crash_are_ignored(tmp_path: Path, timers: StillTimers) -> None:
    async def script() -> None:
        node = await restarted(tmp_path, timers)
        node.driver.append([b"a"])
        await node.stop()
        folder = tmp_path / "__cluster_metadata-0"
        part = folder / "00000000000000000004-0000000001-17.checkpoint.part"
        part.write_bytes(b"half a snapshot")
        (folder / "quorum-state.tmp").write_bytes(b'{"leader')
        again = await restarted(tmp_path, timers)
        assert again.seen == [b"a"]
        assert not part.exists()
        await again.stop()

    asyncio.run(script())


def test_a_lost_quorum_state_does_not_reuse_an_epoch(tmp_path: Path, timers: StillTimers) -> None:
    async def script() -> None:
        for _ in range(3):
            node = await restarted(tmp_path, timers)
            await node.stop()
        (tmp_path / "__cluster_metadata-0" / "quorum-state").unlink()
        node = await restarted(tmp_path, timers)
        assert node.driver.epoch == 4
        await node.stop()

    asyncio.run(script())


def test_a_corrupt_quorum_state_is_one_line(tmp_path: Path, timers: StillTimers) -> None:
    async def script() -> None:
        node = await restarted(tmp_path, timers)
        await node.stop()
        (tmp_path / "__cluster_metadata-0" / "quorum-state").write_text("{")
        with pytest.raises(StartupError, match="quorum-state is corrupt"):
            await restarted(tmp_path, timers)

    asyncio.run(script())


def note(acknowledged: list[bytes], record: bytes, offset: int) -> None:
    acknowledged.append(record)


@pytest.mark.parametrize("step", ["replace", "fsync", "pwrite", "chmod", "write"])
@pytest.mark.parametrize("countdown", range(8))
def test_a_crash_between_any_two_steps_leaves_a_startable_directory(
    tmp_path: Path,
    timers: StillTimers,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    countdown: int,
) -> None:
    """Formatting, a life with a snapshot, another one: the n-th call of os.<step> fails."""
    acknowledged: list[bytes] = []
    real = getattr(os, step)
    left = countdown

    def failing(*args: object, **kwargs: object) -> object:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(5, "the power is gone")
        return real(*args, **kwargs)

    async def life(first: int) -> None:
        node = await restarted(tmp_path, timers)
        for number in range(first, first + 3):
            record = b"%d" % number
            node.driver.append([record]).on_done(functools.partial(note, acknowledged, record))
            await node.settle()
        await node.write_snapshot(
            end_offset=node.driver.high_watermark, epoch=node.driver.epoch, chunks=[node.seen]
        )
        await node.stop()

    async def until_the_crash() -> None:
        await life(0)
        await life(3)

    with monkeypatch.context() as patch:
        patch.setattr(os, step, failing)
        with contextlib.suppress(OSError, StartupError, KafkaError):
            asyncio.run(until_the_crash())

    async def after() -> None:
        node = await restarted(tmp_path, timers)
        assert node.seen[: len(acknowledged)] == acknowledged
        node.driver.append([b"after"])
        await node.stop()
        again = await restarted(tmp_path, timers)
        assert again.seen == [*node.seen]
        await again.stop()

    asyncio.run(after())


def test_a_disk_that_fails_is_fatal_and_acknowledges_nothing(
    tmp_path: Path, timers: StillTimers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script() -> None:
        node = await restarted(tmp_path, timers)

        def fail(self: object) -> None:
            raise LogDirectoryError("x", "fsync", OSError(5, "input/output error"))

        monkeypatch.setattr("kbroker.log.storage.files.LogFile.sync", fail)
        deferred = node.driver.append([b"a"])
        await node.settle()
        assert deferred.error is not None and deferred.error.code is ErrorCode.NOT_CONTROLLER
        assert node.seen == []
        assert len(node.failures) == 1
        later = node.driver.append([b"b"])
        assert later.error is not None and later.error.code is ErrorCode.NOT_CONTROLLER
        await node.stop()

    asyncio.run(script())


def test_snapshots_and_retention(tmp_path: Path, timers: StillTimers) -> None:
    async def script() -> None:
        node = Node(tmp_path, timers, metadata_max_retention_bytes="1")
        await node.start()
        for life in range(3):
            node.driver.append([b"%d" % life])
            await node.settle()
            await node.write_snapshot(
                end_offset=node.driver.high_watermark, epoch=1, chunks=[node.seen]
            )
        folder = tmp_path / "__cluster_metadata-0"
        assert [path.name for path in folder.glob("*.checkpoint")] == [
            "00000000000000000006-0000000001.checkpoint"
        ]
        await node.stop()
        again = await restarted(tmp_path, timers)
        assert again.snapshot_end == 6
        assert again.snapshot == [b"0", b"1", b"2"]
        assert again.driver.kraft_version == 1
        await again.stop()

    asyncio.run(script())


@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_an_old_snapshot_that_is_damaged_keeps_no_other_from_being_cleaned(
    tmp_path: Path, timers: StillTimers, damage: str
) -> None:
    folder = tmp_path / "__cluster_metadata-0"

    async def script() -> None:
        node = Node(tmp_path, timers, metadata_max_retention_ms="1000")
        await node.start()
        for life in range(3):
            node.driver.append([b"%d" % life])
            await node.settle()
            if life == 2:
                timers.time_ms += 500
                (oldest, _) = sorted(folder.glob("*.checkpoint"))
                data = bytearray(oldest.read_bytes())
                data[40] ^= 1
                oldest.unlink()
                if damage == "flipped":
                    oldest.write_bytes(data)
            await node.write_snapshot(
                end_offset=node.driver.high_watermark, epoch=1, chunks=[node.seen]
            )
        assert [path.name for path in sorted(folder.glob("*.checkpoint"))] == [
            "00000000000000000005-0000000001.checkpoint",
            "00000000000000000006-0000000001.checkpoint",
        ]
        await node.stop()

    asyncio.run(script())


def test_a_log_that_ends_before_its_snapshot_is_begun_anew(
    tmp_path: Path, timers: StillTimers
) -> None:
    async def script() -> None:
        node = await restarted(tmp_path, timers)
        node.driver.append([b"a", b"b"])
        await node.settle()
        await node.write_snapshot(end_offset=5, epoch=1, chunks=[[b"a", b"b"]])
        await node.stop()
        for path in (tmp_path / "__cluster_metadata-0").glob("0*.log"):
            path.write_bytes(b"")
        again = await restarted(tmp_path, timers)
        assert (again.snapshot, again.driver.epoch, again.driver.next_offset) == (
            [b"a", b"b"],
            2,
            6,
        )
        again.driver.append([b"c"])
        await again.stop()
        third = await restarted(tmp_path, timers)
        assert third.seen == [b"a", b"b", b"c"]
        await third.stop()

    asyncio.run(script())


def test_a_log_without_the_snapshot_before_it_is_refused(
    tmp_path: Path, timers: StillTimers
) -> None:
    async def script() -> None:
        node = await restarted(tmp_path, timers)
        node.driver.append([b"a"])
        await node.settle()
        await node.write_snapshot(end_offset=4, epoch=1, chunks=[[b"a"]])
        await node.stop()
        folder = tmp_path / "__cluster_metadata-0"
        for path in folder.glob("0*.log"):
            path.write_bytes(b"")
        again = await restarted(tmp_path, timers)
        await again.stop()
        (folder / "00000000000000000004-0000000001.checkpoint").unlink()
        with pytest.raises(StartupError, match="no snapshot holds what was before"):
            await restarted(tmp_path, timers)

    asyncio.run(script())


def test_the_metadata_of_another_node_is_refused(tmp_path: Path, timers: StillTimers) -> None:
    async def script() -> None:
        for name in ("a", "b"):
            node = await restarted(tmp_path / name, timers)
            await node.stop()
        folder = tmp_path / "a" / "__cluster_metadata-0"
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "b" / "__cluster_metadata-0", folder)
        text = (tmp_path / "a" / "meta.properties").read_text()
        lines = [
            "directory.id=imeMtvJjT-mRm2meW9xqpA" if line.startswith("directory.id") else line
            for line in text.splitlines()
        ]
        (tmp_path / "a" / "meta.properties").write_text("\n".join(lines))
        with pytest.raises(StartupError, match=r"voter 1 has another directory\.id"):
            await restarted(tmp_path / "a", timers)

    asyncio.run(script())


@pytest.mark.parametrize(("name", "epoch"), [("data-clean", 2), ("data-unclean", 3)])
def test_kafkas_own_directories(
    kafka_directory: Callable[[str], Path],
    timers: StillTimers,
    name: str,
    epoch: int,
) -> None:
    async def script() -> None:
        directory = kafka_directory(name)
        node = await restarted(directory, timers)
        assert node.driver.epoch == epoch + 1
        assert node.driver.kraft_version == 1
        assert node.snapshot_end == 177
        await node.stop()
        again = await restarted(directory, timers)
        assert again.seen == node.seen
        await again.stop()

    asyncio.run(script())


def test_a_listener_that_fails_stops_the_node(tmp_path: Path, timers: StillTimers) -> None:
    async def script() -> None:
        node = await restarted(tmp_path, timers)

        def fail(base_offset: int, epoch: int, records: Sequence[bytes]) -> None:
            raise KeyError("surprise")

        node.driver.feed.on_commit(fail)
        deferred = node.driver.append([b"a"])
        await node.settle()
        assert deferred.error is not None and deferred.error.code is ErrorCode.NOT_CONTROLLER
        assert [type(failure) for failure in node.failures] == [KeyError]
        await node.stop()

    asyncio.run(script())


class HeldSync:
    """In place of the driver's `_sync_all`: blocks until the test releases it."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.released = threading.Event()
        self.is_over = False

    def __call__(self, files: Sequence[Syncable]) -> None:
        self.begun.set()
        assert self.released.wait(30)
        for file in files:
            file.sync()
        self.is_over = True


def test_a_start_that_is_cancelled_during_a_flush_can_be_stopped(
    tmp_path: Path, timers: StillTimers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM during the election: the flush in progress ends, then the log is closed."""
    held = HeldSync()

    async def script() -> None:
        node = Node(tmp_path, timers)
        with monkeypatch.context() as patch:
            patch.setattr("kbroker.quorum.log_effects._sync_all", held)
            starting = asyncio.ensure_future(node.start())
            await asyncio.to_thread(held.begun.wait, 30)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        stopping = asyncio.ensure_future(node.stop())
        await asyncio.sleep(0)
        log = node.driver._storage.log
        assert not stopping.done() and not log.closed
        held.released.set()
        async with asyncio.timeout(10):
            await stopping
        assert held.is_over and log.closed

    asyncio.run(script())

    async def next_life() -> None:
        node = await restarted(tmp_path, timers)
        assert node.driver.epoch == 2
        await node.stop()

    asyncio.run(next_life())
