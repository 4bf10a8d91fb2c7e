"""What a follower does to its log, over real files: appends, truncation, a new start."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.batch_header import assign_offsets
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.replication.followed_partition import (
    AppendFetched,
    FollowedPartition,
    StartOverAt,
    TruncateTo,
)
from kbroker.replication.follower_log import CORRUPT, FollowerLogs, acceptable_batches
from kbroker.replication.partition import Partition
from tests.replication.world import World, batch

EPOCH = 4


class FollowerLogWorld(World):
    """A replica of `events` that follows broker 2 in epoch 4. moved: partitions whose log start
    moved.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, partitions=0)
        self.moved: list[Partition] = []
        self.partition = self.host(0, leader=2, epoch=EPOCH, replicas=(1, 2), isr=(2,))
        self.followed = FollowedPartition(self.partition)
        self.follower_logs = FollowerLogs(
            self.logs, on_log_start=self.moved.append, now_ms=self.timers.now_ms
        )

    @property
    def log(self) -> PartitionLog:
        found = self.logs.get(self.partition.topic_partition)
        assert found is not None
        return found

    def fetched(
        self, records: bytes | memoryview, *, high_watermark: int = 0, log_start_offset: int = 0
    ) -> None:
        self.follower_logs.carry_out(
            AppendFetched(self.followed, records, high_watermark, log_start_offset)
        )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FollowerLogWorld]:
    made = FollowerLogWorld(tmp_path)
    yield made
    made.close()


def batches(*counts: int, base: int = 0, epoch: int = EPOCH) -> bytes:
    """Batches as a leader has them."""
    data = bytearray()
    for count in counts:
        one = batch(count)
        base = assign_offsets(one, base, epoch)
        data += one
    return bytes(data)


def test_the_leaders_bytes_are_appended_as_they_are(world: FollowerLogWorld) -> None:
    data = batches(2, 3, epoch=3) + batches(1, base=5)
    world.fetched(data, high_watermark=5)
    log = world.log
    assert log.log_end_offset == 6
    assert log.leader_epochs.entries == [(3, 0), (EPOCH, 5)]
    assert log.read(0, max_bytes=1 << 20).records.read() == data  # type: ignore[union-attr]  # a file range
    assert world.partition.high_watermark == 5
    assert log.high_watermark == 5


def test_without_records_the_high_watermark_moves(world: FollowerLogWorld) -> None:
    world.fetched(batches(2))
    world.fetched(b"", high_watermark=2)
    assert world.partition.high_watermark == 2


def test_a_last_batch_that_is_cut_short_is_left_for_the_next_fetch(
    world: FollowerLogWorld,
) -> None:
    data = batches(2, 3)
    for size in (len(data) - 1, len(batches(2)) + 61, len(batches(2)) + 5):
        assert bytes(acceptable_batches(data[:size], EPOCH)) == batches(2)
    world.fetched(data[:-1])
    assert world.log.log_end_offset == 2


def test_batches_of_a_newer_epoch_are_left_for_a_fetch_in_that_epoch() -> None:
    """KAFKA-18723."""
    data = batches(2) + batches(1, base=2, epoch=EPOCH + 1) + batches(1, base=3)
    assert bytes(acceptable_batches(data, EPOCH)) == batches(2)
    assert bytes(acceptable_batches(data, EPOCH + 1)) == data


def test_a_length_that_no_batch_has_is_corrupt() -> None:
    data = bytearray(batches(1))
    data[8:12] = b"\x00\x00\x00\x01"
    with pytest.raises(KafkaError) as refused:
        acceptable_batches(data, EPOCH)
    assert refused.value.code in CORRUPT


def test_corrupt_records_leave_the_log_as_it_is(world: FollowerLogWorld) -> None:
    data = bytearray(batches(2))
    data[-1] ^= 1
    with pytest.raises(KafkaError) as refused:
        world.fetched(bytes(data), high_watermark=2)
    assert refused.value.code in CORRUPT
    assert world.log.log_end_offset == 0
    assert world.partition.high_watermark == 0


def test_offsets_below_the_own_end_are_no_corruption(world: FollowerLogWorld) -> None:
    world.fetched(batches(3))
    with pytest.raises(KafkaError) as refused:
        world.fetched(batches(3))
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_log_start_follows_the_leaders_up_to_the_high_watermark(
    world: FollowerLogWorld,
) -> None:
    world.fetched(batches(2, 3), high_watermark=2, log_start_offset=1)
    assert world.log.log_start_offset == 1
    world.fetched(b"", high_watermark=4, log_start_offset=5)
    assert world.log.log_start_offset == 4
    world.fetched(b"", high_watermark=4, log_start_offset=2)
    assert world.log.log_start_offset == 4
    assert len(world.moved) == 2


def test_a_leaders_log_that_starts_within_a_batch(world: FollowerLogWorld) -> None:
    """KAFKA-6975: an empty log at offset 12 gets the batch of 10 to 14 as a whole."""
    world.follower_logs.carry_out(StartOverAt(world.followed, 12))
    assert (world.log.log_start_offset, world.log.log_end_offset) == (12, 12)
    world.fetched(batches(5, base=10), high_watermark=15, log_start_offset=12)
    assert (world.log.log_start_offset, world.log.log_end_offset) == (12, 15)
    assert world.log.segments.first.base_offset == 10


def test_truncation_takes_epochs_and_the_high_watermark_along(
    world: FollowerLogWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.fetched(batches(2, epoch=3) + batches(3, base=2), high_watermark=2)
    with caplog.at_level(logging.WARNING):
        world.follower_logs.carry_out(TruncateTo(world.followed, 2))
    assert not caplog.records
    assert world.log.leader_epochs.entries == [(3, 0)]
    assert world.partition.high_watermark == 2
    with caplog.at_level(logging.WARNING):
        world.follower_logs.carry_out(TruncateTo(world.followed, 0))
    assert "below the high watermark 2" in caplog.text
    assert world.partition.high_watermark == world.log.high_watermark == 0


def test_a_log_that_begins_anew_survives_a_crash(world: FollowerLogWorld) -> None:
    """KAFKA-7414: the checkpoints must not name offsets that the log does not have."""
    world.fetched(batches(2, 3), high_watermark=5, log_start_offset=4)
    world.log.flush()
    world.logs.checkpoints.write_recovery_points()
    world.logs.checkpoints.write_start_offsets()
    world.follower_logs.carry_out(StartOverAt(world.followed, 2))
    world.fetched(batches(4, base=2))
    world.logs.close(clean=False)
    world.open()
    log = world.logs.get(world.partition.topic_partition)
    assert log is not None
    assert (log.log_start_offset, log.log_end_offset) == (2, 6)
