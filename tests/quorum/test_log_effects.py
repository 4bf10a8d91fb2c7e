"""The core's effects on a log in a directory: buffered appends, group commit, truncation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.log.storage.files import LogDirectoryError
from kbroker.model import InvariantError
from kbroker.protocol.batch_builder import build_batch
from kbroker.quorum.log_effects import LogEffects
from kbroker.quorum.raft.control import leader_change
from kbroker.quorum.raft.effects import AppendBatches, AppendControl, AppendRecords, ReadRecords
from kbroker.quorum.storage import QuorumStorage, StoredBatch, metadata_log_config
from kbroker.settings.broker import BrokerConfig
from tests.quorum.conftest import StillTimers
from tests.sim.offload import HeldOffload


class World:
    """One log. synced: (end offset, failure) of the flushes that are over."""

    def __init__(self, root: Path, timers: StillTimers) -> None:
        config = metadata_log_config(BrokerConfig.from_properties({"node.id": "1"}))
        self.storage = QuorumStorage(root, node_id=1, directory_id=b"d" * 16, log_config=config)
        self.storage.open(timers.now_ms())
        self.offload = HeldOffload()
        self.effects = LogEffects(self.storage, timers, self.offload)
        self.synced: list[tuple[int, OSError | None]] = []

    @property
    def end_offset(self) -> int:
        return self.storage.log.log_end_offset

    def flush(self) -> None:
        self.effects.flush(lambda end_offset, failure: self.synced.append((end_offset, failure)))


@pytest.fixture
def world(tmp_path: Path, timers: StillTimers) -> Iterator[World]:
    world = World(tmp_path, timers)
    yield world
    world.storage.close()


def records(base_offset: int, *values: bytes, epoch: int = 1) -> AppendRecords:
    return AppendRecords(epoch, base_offset, values)


def test_what_is_appended_before_a_flush_is_one_write_and_one_sync(world: World) -> None:
    control = AppendControl(1, 0, (leader_change(1, (1,), (1,)),))
    assert world.effects.append_control(control) == StoredBatch(0, 1, 1, ())
    assert world.effects.append_records(records(1, b"a", b"b")).next_offset == 3
    assert world.end_offset == 0
    world.flush()
    assert world.end_offset == 3 and not world.synced
    world.effects.append_records(records(3, b"c"))
    world.offload.run()
    assert world.synced == [(3, None)] and world.storage.log.recovery_point == 3
    assert [each.records for each in world.storage.read(0, 3)] == [[], [b"a", b"b"]]


def test_a_read_has_what_is_not_written_yet(world: World) -> None:
    world.effects.append_records(records(0, b"a"))
    data = world.effects.read(ReadRecords(0, 100))
    assert [each.records for each in world.storage.batches_of(data)] == [[b"a"]]


def test_fetched_batches_are_in_the_file_at_once(world: World) -> None:
    data = bytes(build_batch([(0, None, b"a", ())], base_offset=0, partition_leader_epoch=4))
    assert world.effects.append_batches(AppendBatches(0, 1, data)) == [StoredBatch(0, 1, 4, [b"a"])]
    assert world.end_offset == 1
    with pytest.raises(InvariantError, match="ends at offset 2 after an append up to 3"):
        next_one = build_batch([(0, None, b"b", ())], base_offset=1, partition_leader_epoch=4)
        world.effects.append_batches(AppendBatches(1, 3, bytes(next_one)))


def test_a_truncation_takes_what_is_not_written_yet(world: World) -> None:
    world.effects.append_records(records(0, b"a"))
    world.effects.append_records(records(1, b"b"))
    world.effects.truncate(1)
    world.effects.append_records(records(1, b"c", epoch=2))
    world.effects.write()
    assert [each.records for each in world.storage.read(0, 2)] == [[b"a"], [b"c"]]


def test_a_failed_sync_is_told_and_the_next_flush_has_its_files_again(world: World) -> None:
    world.effects.append_records(records(0, b"a"))
    world.flush()
    failure = LogDirectoryError("x", "fsync", OSError(5, "input/output error"))
    world.offload.run_one(failure)
    assert world.synced == [(1, failure)] and world.storage.log.recovery_point == 0
