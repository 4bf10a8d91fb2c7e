"""Moves between log directories of a follower's log that is truncated meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage.files import FileSlice
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.replication import mover
from tests.log.cuts import cut_now
from tests.replication.two_dirs import KEY, TwoDirs
from tests.replication.world import batch
from tests.sim.timers import START_MS

Epochs = list[tuple[int, int]]
"""(leader epoch, how many records of it are appended)."""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoDirs]:
    monkeypatch.setattr(mover, "CHUNK_BYTES", 1000)
    made = TwoDirs(tmp_path)
    yield made
    made.close()


def append_epochs(log: PartitionLog, epochs: Epochs) -> None:
    """Append as a follower: one batch of one record each."""
    for epoch, count in epochs:
        for _ in range(count):
            data = batch(base_offset=log.log_end_offset, partition_leader_epoch=epoch)
            log.append_as_follower(bytes(data), now_ms=START_MS)


def batches_of(log: PartitionLog) -> list[tuple[int, bytes]]:
    """(base offset, stored bytes) of every batch."""
    batches: list[tuple[int, bytes]] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        found = log.read(offset, max_bytes=1 << 20)
        assert isinstance(found.records, FileSlice)
        data = found.records.read()
        batches += [
            (header.base_offset, data[position : position + header.size_bytes])
            for position, header in iter_batches(data)
        ]
        offset = found.end_offset
    return batches


@pytest.mark.parametrize(
    ("first", "copied", "cuts", "then"),
    [
        pytest.param([(1, 10), (3, 10)], 15, [10, 5], [(2, 10), (4, 15)], id="KIP-279"),
        pytest.param([(1, 10), (3, 10)], 15, [10], [(1, 12)], id="the latest epoch is gone"),
        pytest.param([(3, 20)], 15, [0], [(2, 18)], id="no epoch in common"),
        pytest.param([(1, 5), (3, 5), (5, 5)], 15, [10, 5], [(3, 2), (4, 9)], id="two epochs"),
        pytest.param([(1, 10), (3, 10)], 15, [12], [(4, 20)], id="one epoch"),
        pytest.param([(1, 10), (3, 10)], 15, [12], [], id="the source is shorter"),
    ],
)
def test_a_follower_that_was_truncated_and_grew_while_the_move_rested(
    world: TwoDirs, first: Epochs, copied: int, cuts: list[int], then: Epochs
) -> None:
    source = world.logs.get(KEY)
    assert source is not None
    append_epochs(source, first)
    world.replicas.mover.bytes_per_second = 1 << 40
    world.move(1)
    future = world.logs.moves.future(KEY)
    assert future is not None
    while future.log_end_offset < copied:
        world.step()
    world.logs.truncate(future, copied)
    for offset in cuts:
        cut_now(world.logs, KEY, offset)
    append_epochs(source, then)
    expected = batches_of(source), source.leader_epochs.entries
    world.finish()
    moved = world.logs.get(KEY)
    assert moved is not None and moved is not source
    assert (batches_of(moved), moved.leader_epochs.entries) == expected


def test_a_chunk_that_is_read_after_the_source_was_truncated_is_not_appended(
    world: TwoDirs,
) -> None:
    """The thread reads bytes of the file, where other batches may stand by then."""
    source = world.logs.get(KEY)
    assert source is not None
    append_epochs(source, [(1, 20)])
    world.move(1)
    future = world.logs.moves.future(KEY)
    assert future is not None
    world.step()
    copied = future.log_end_offset
    position = sum(len(data) for offset, data in batches_of(source) if offset < copied)
    assert 5 < copied < 15 and len(world.work.held) == 1  # the next chunk is being read
    cut_now(world.logs, KEY, 5)
    wanted = position - source.segments.active.size  # so that a batch begins at that position
    candidates = (
        build_batch(
            [(START_MS, b"key", b"v" * size, [])] + [(START_MS, b"key", b"v", [])] * 9,
            base_offset=5,
            partition_leader_epoch=2,
        )
        for size in range(wanted)
    )
    large = next(data for data in candidates if len(data) == wanted)
    source.append_as_follower(bytes(large), now_ms=START_MS)
    append_epochs(source, [(2, 10)])
    expected = batches_of(source)
    assert [offset for offset, _ in expected][4:7] == [4, 5, 15]
    world.finish()
    moved = world.logs.get(KEY)
    assert moved is not None and batches_of(moved) == expected
