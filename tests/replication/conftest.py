from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.replication.waiting_batches import opened_anew
from tests.replication.world import World
from tests.sim.offload import HeldOffload


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """make_world(partitions=3, fetch_max_bytes="2048"): closed after the test."""
    worlds: list[World] = []

    def make(**options: object) -> World:
        worlds.append(World(tmp_path / str(len(worlds)), **options))  # type: ignore[arg-type]  # keywords of the callee
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    """Three partitions, all led here, no followers."""
    return make_world(partitions=3)


@pytest.fixture
def offload(world: World) -> HeldOffload:
    """The thread of a world whose topic has a codec of its own."""
    return opened_anew(world, compression_type="zstd")
