"""Offsets by time: inside, between, before and after batches, and the ends by name."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.model import TopicPartition
from kbroker.ports import at_once
from kbroker.protocol.errors import ErrorCode
from kbroker.replication.reads import offsets
from kbroker.replication.reads.offsets import ListedOffset
from tests.replication.world import NOW_MS, TOPIC, World, batch

KEY = TopicPartition(TOPIC, 0)


def listed(world: World, *arguments: Any, **options: Any) -> ListedOffset:
    """An answer for which nothing has to be waited for."""
    return at_once(world.replicas.list_offset(*arguments, **options))


@pytest.fixture
def filled(world: World) -> World:
    """Offsets 0-4 at +0..4 ms, 5-9 at +100..104, 10-12 at +50..52 (late)."""
    world.append(batches=batch(5))
    world.append(batches=batch(5, timestamp=NOW_MS + 100))
    world.append(batches=batch(3, timestamp=NOW_MS + 50))
    return world


@pytest.mark.parametrize(
    ("after_ms", "offset", "timestamp_ms"),
    [
        pytest.param(-1000, 0, 0, id="before all"),
        pytest.param(0, 0, 0, id="first record"),
        pytest.param(3, 3, 3, id="inside a batch"),
        pytest.param(5, 5, 100, id="between batches"),
        pytest.param(102, 7, 102, id="inside the second"),
        pytest.param(104, 9, 104, id="the largest"),
        pytest.param(105, -1, None, id="after all"),
    ],
)
def test_by_time(filled: World, after_ms: int, offset: int, timestamp_ms: int | None) -> None:
    found = listed(filled, KEY, NOW_MS + after_ms)
    expected = -1 if timestamp_ms is None else NOW_MS + timestamp_ms
    assert (found.error, found.offset, found.timestamp) == (ErrorCode.NONE, offset, expected)
    assert found.leader_epoch == (-1 if offset == -1 else 0)


@pytest.mark.parametrize(
    ("timestamp", "offset", "time", "epoch"),
    [
        pytest.param(offsets.LATEST, 13, -1, 0, id="latest"),
        pytest.param(offsets.EARLIEST, 0, -1, 0, id="earliest"),
        pytest.param(offsets.MAX_TIMESTAMP, 9, NOW_MS + 104, 0, id="max timestamp"),
        pytest.param(offsets.EARLIEST_LOCAL, 0, -1, 0, id="earliest local"),
        pytest.param(offsets.LATEST_TIERED, -1, -1, -1, id="nothing is tiered"),
        pytest.param(offsets.EARLIEST_PENDING_UPLOAD, -1, -1, -1, id="nothing to upload"),
    ],
)
def test_the_ends(filled: World, timestamp: int, offset: int, time: int, epoch: int) -> None:
    found = listed(filled, KEY, timestamp)
    assert (found.error, found.offset, found.timestamp, found.leader_epoch) == (
        ErrorCode.NONE,
        offset,
        time,
        epoch,
    )


def test_an_empty_partition(world: World) -> None:
    for timestamp, offset in ((-1, 0), (-2, 0), (-3, -1), (0, -1)):
        found = listed(world, KEY, timestamp)
        assert (found.error, found.offset) == (ErrorCode.NONE, offset)


def test_read_committed_sees_the_last_stable_offset(filled: World) -> None:
    filled.append(
        batches=batch(
            2,
            timestamp=NOW_MS + 200,
            producer_id=1,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
    )
    assert listed(filled, KEY, -1).offset == 15
    assert listed(filled, KEY, -1, read_committed=True).offset == 13
    assert listed(filled, KEY, NOW_MS + 200).offset == 13
    assert listed(filled, KEY, NOW_MS + 200, read_committed=True).offset == -1


def test_a_new_leader_does_not_say_an_end_that_goes_back(world: World) -> None:
    """The old leader told a consumer 3; the new one knows only that 1 of 3 is committed."""
    world.host(0, replicas=(1, 2), partition_epoch=1)
    world.append(batches=batch(3))
    world.host(0, replicas=(1, 2), partition_epoch=2, epoch=1)
    assert listed(world, KEY, -1).error == ErrorCode.OFFSET_NOT_AVAILABLE
    assert listed(world, KEY, NOW_MS).error == ErrorCode.OFFSET_NOT_AVAILABLE
    assert listed(world, KEY, -2).offset == 0
    assert listed(world, KEY, -1, replica_id=2).offset == 3


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (-1, ErrorCode.NONE),
        (0, ErrorCode.NONE),
        (1, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_epochs(world: World, epoch: int, error: ErrorCode) -> None:
    assert listed(world, KEY, -1, current_leader_epoch=epoch).error == error


def test_unknown(world: World) -> None:
    found = listed(world, TopicPartition("nope", 0), -1)
    assert found.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
