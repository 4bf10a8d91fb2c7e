"""The core's effects on a log in a directory: buffered appends, group commit, truncation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.log.storage.files import LogDirectoryError
from kbroker.model import InvariantError
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.quorum.disk.storage import QuorumStorage, StoredBatch, metadata_log_config
from kbroker.quorum.log_effects import LogEffects
from kbroker.quorum.raft.control import leader_change
from kbroker.quorum.raft.effects import AppendBatches, AppendControl, AppendRecords, ReadRecords
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


@pytest.mark.parametrize(
    ("from_offset", "max_bytes", "values"),
    [
        pytest.param(0, 1000, [b"a"], id="of the file"),
        pytest.param(1, 1000, [b"b", b"c", b"d"], id="all that is buffered"),
        pytest.param(1, 1, [b"b"], id="one batch at least"),
        pytest.param(3, 1000, [b"d"], id="from a later batch on"),
        pytest.param(4, 1000, [], id="at the end"),
    ],
)
def test_a_read_has_what_is_not_written_yet(
    world: World, from_offset: int, max_bytes: int, values: list[bytes]
) -> None:
    world.effects.append_records(records(0, b"a"))
    world.flush()
    for offset, value in enumerate((b"b", b"c", b"d"), 1):
        world.effects.append_records(records(offset, value))
    data = world.effects.read(ReadRecords(from_offset, max_bytes))
    assert [each.records for each in world.storage.batches_of(data)] == [[each] for each in values]
    assert world.end_offset == 1


def fetched(*batches: tuple[int, bytes]) -> AppendBatches:
    """Batches of epoch 4 with one record each, as a leader sends them: base offset and value."""
    data = b"".join(
        bytes(build_batch([(0, None, value, ())], base_offset=base, partition_leader_epoch=4))
        for base, value in batches
    )
    return AppendBatches(batches[0][0], batches[-1][0] + 1, data)


@pytest.mark.parametrize("may_vote", [True, False])
def test_fetched_batches_of_a_broker_are_written_at_once(world: World, *, may_vote: bool) -> None:
    world.storage.may_vote = may_vote
    stored = [StoredBatch(0, 1, 4, [b"a"]), StoredBatch(1, 2, 4, [b"b"])]
    assert world.effects.append_batches(fetched((0, b"a"), (1, b"b"))) == stored
    assert world.end_offset == (0 if may_vote else 2)
    world.flush()
    assert list(world.storage.read(0, 2)) == stored


def test_what_is_appended_during_a_flush_is_not_written_before_it_has_ended(world: World) -> None:
    world.effects.append_records(records(0, b"a"))
    world.flush()
    world.effects.append_batches(fetched((1, b"b")))
    world.effects.append_batches(fetched((2, b"c")))
    assert world.end_offset == 1
    world.offload.run()
    world.flush()
    assert world.end_offset == 3


def test_a_log_that_ends_elsewhere_is_a_broken_invariant(world: World) -> None:
    world.effects.append_records(records(0, b"a"))
    world.effects.unwritten[0] = world.effects.unwritten[0]._replace(next_offset=7)
    with pytest.raises(InvariantError, match="up to offset 7 the log ends at 1"):
        world.flush()


def test_a_truncation_takes_what_is_not_written_yet(world: World) -> None:
    world.effects.append_records(records(0, b"a"))
    world.effects.append_records(records(1, b"b"))
    world.effects.truncate(1)
    world.effects.append_records(records(1, b"c", epoch=2))
    world.flush()
    assert [each.records for each in world.storage.read(0, 2)] == [[b"a"], [b"c"]]
    world.effects.append_records(records(2, b"d", epoch=2))
    world.effects.truncate(1)
    assert world.end_offset == 1 and not world.effects.unwritten


def test_a_failed_sync_is_told_and_the_next_flush_has_its_files_again(world: World) -> None:
    world.effects.append_records(records(0, b"a"))
    world.flush()
    failure = LogDirectoryError("x", "fsync", OSError(5, "input/output error"))
    world.offload.run_one(failure)
    assert world.synced == [(1, failure)] and world.storage.log.recovery_point == 0
