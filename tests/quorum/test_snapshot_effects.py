"""Snapshot effects: a fetched snapshot, part by part, a damaged one, served parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.model import InvariantError
from kbroker.quorum.disk.snapshots import Snapshot, build_snapshot
from kbroker.quorum.disk.storage import QuorumStorage, metadata_log_config
from kbroker.quorum.raft.control import QuorumConfiguration
from kbroker.quorum.raft.effects import ReadSnapshot, WriteSnapshotPart
from kbroker.quorum.raft.offsets import SnapshotId
from kbroker.quorum.snapshot_effects import SnapshotEffects
from kbroker.settings.broker import BrokerConfig
from tests.quorum.conftest import StillTimers
from tests.sim.offload import HeldOffload

ID = SnapshotId(10, 2)
CONTENT = b"".join(
    build_snapshot(
        QuorumConfiguration(), [[b"a" * 50, b"b"]], epoch=2, last_contained_timestamp_ms=7, now_ms=8
    )
)


class World:
    """One directory. finished: the results of fetched snapshots."""

    def __init__(self, root: Path, timers: StillTimers) -> None:
        config = metadata_log_config(BrokerConfig.from_properties({"node.id": "1"}))
        self.storage = QuorumStorage(root, node_id=1, directory_id=b"d" * 16, log_config=config)
        self.storage.open(timers.now_ms())
        self.offload = HeldOffload()
        self.effects = SnapshotEffects(self.storage, timers, self.offload)
        self.finished: list[tuple[Snapshot | None, OSError | None]] = []

    def fetch(self, content: bytes, snapshot_id: SnapshotId = ID, step: int = 40) -> None:
        for position in range(0, len(content), step):
            part = content[position : position + step]
            self.effects.write_part(WriteSnapshotPart(snapshot_id, position, part))

    def finish(self, snapshot_id: SnapshotId = ID) -> None:
        self.effects.finish(
            snapshot_id, lambda content, failure: self.finished.append((content, failure))
        )
        self.offload.run()

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.storage.directory.glob("*checkpoint*"))


@pytest.fixture
def world(tmp_path: Path, timers: StillTimers) -> Iterator[World]:
    world = World(tmp_path, timers)
    yield world
    world.storage.close()


def test_a_fetched_snapshot_gets_its_name_when_it_is_whole(world: World) -> None:
    world.fetch(CONTENT)
    assert [name.endswith(".part") for name in world.names if name[0] == "0"] == [True]
    world.finish()
    ((content, failure),) = world.finished
    assert content is not None and content.records == [b"a" * 50, b"b"] and failure is None
    path = world.storage.directory / ID.file_name
    assert path.read_bytes() == CONTENT and path.stat().st_mode & 0o777 == 0o400
    assert not [name for name in world.names if name.endswith(".part")]


@pytest.mark.parametrize("position", [30, len(CONTENT) - 1])
def test_a_damaged_snapshot_is_refused_and_deleted(world: World, position: int) -> None:
    content = bytearray(CONTENT)
    content[position] ^= 1
    world.fetch(bytes(content))
    world.finish()
    assert world.finished == [(None, None)]
    assert not [name for name in world.names if name[0] == "0"]


def test_a_fetch_that_begins_anew_forgets_the_one_before(world: World) -> None:
    world.fetch(CONTENT[:80])
    world.fetch(CONTENT, SnapshotId(20, 3))
    world.finish(SnapshotId(20, 3))
    assert [name for name in world.names if name[0] == "0"] == [SnapshotId(20, 3).file_name]


def test_parts_of_another_snapshot_are_a_broken_invariant(world: World) -> None:
    with pytest.raises(InvariantError):
        world.effects.write_part(WriteSnapshotPart(ID, 40, b"x"))
    world.fetch(CONTENT)
    with pytest.raises(InvariantError):
        world.finish(SnapshotId(20, 3))


def test_an_own_snapshot_is_served_in_parts(world: World) -> None:
    failures: list[OSError | None] = []
    world.effects.write(SnapshotId(0, 1), [[b"x"]], failures.append)
    assert not failures
    world.offload.run()
    assert failures == [None]
    whole = world.effects.read(ReadSnapshot(SnapshotId(0, 1), 0, 10_000))
    assert whole == (world.storage.directory / SnapshotId(0, 1).file_name).read_bytes()
    assert world.effects.read(ReadSnapshot(SnapshotId(0, 1), 10, 5)) == whole[10:15]
    assert world.effects.read(ReadSnapshot(ID, 0, 5)) is None
