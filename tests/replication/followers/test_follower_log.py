"""What a follower does to its log, over real files: appends, truncation, a new start."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.log.partition_log import PartitionLog
from kbroker.log.state.rolling import begin_roll
from kbroker.log.storage.files import LogDirectoryError
from kbroker.model import InvariantError
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.replication.followers import follower_log
from kbroker.replication.followers.followed_partition import (
    AppendFetched,
    FollowedPartition,
    FollowState,
    LogChange,
    StartOverAt,
    TruncateTo,
)
from kbroker.replication.followers.follower_log import (
    CORRUPT,
    PIECE_BATCHES,
    FollowerLogs,
    pieces_of,
)
from kbroker.replication.partition import Partition
from kbroker.replication.time_slices import FairSlices
from tests.batch_offsets import assign_offsets
from tests.replication.world import World, batch
from tests.sim.offload import HeldOffload

EPOCH = 4


class FollowerLogWorld(World):
    """A replica of `events` that follows broker 2 in epoch 4. workers: do nothing before they are
    told to. moved: partitions whose log start may have moved. outcomes: of the changes that ended.
    flushes: that were asked for, as log end offsets with their callbacks.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, partitions=0)
        self.moved: list[Partition] = []
        self.outcomes: list[Exception | None] = []
        self.flushes: list[tuple[int, Callable[[bool], None]]] = []
        self.partition = self.host(0, leader=2, epoch=EPOCH, replicas=(1, 2), isr=(2,))
        self.followed = FollowedPartition(self.partition)
        self.workers = HeldOffload()
        self.slices = FairSlices(self.timers, clock=lambda: 0.0)
        self.follower_logs = FollowerLogs(
            self.logs,
            offload=self.workers,
            when_flushed=lambda log, offset, then: self.flushes.append((offset, then)),
            on_log_start=self.moved.append,
            now_ms=self.timers.now_ms,
        )

    @property
    def log(self) -> PartitionLog:
        found = self.logs.get(self.partition.topic_partition)
        assert found is not None
        return found

    def begin(self, change: LogChange) -> None:
        """Change the log until a worker has to do something."""
        self.slices.begin(self.follower_logs.steps(change), self.outcomes.append)
        self.timers.advance(0)

    def carry_out(self, change: LogChange) -> None:
        """Change the log; raises what ends the change early."""
        self.begin(change)
        while self.workers.run_one():
            self.timers.advance(0)
        failure = self.outcomes.pop()
        if failure is not None:
            raise failure

    def append_of(
        self, records: bytes | memoryview, *, high_watermark: int = 0, log_start_offset: int = 0
    ) -> AppendFetched:
        return AppendFetched(self.followed, records, high_watermark, log_start_offset)

    def fetched(
        self, records: bytes | memoryview, *, high_watermark: int = 0, log_start_offset: int = 0
    ) -> None:
        self.carry_out(
            self.append_of(
                records, high_watermark=high_watermark, log_start_offset=log_start_offset
            )
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


def acceptable(data: bytes | bytearray, leader_epoch: int = EPOCH) -> bytes:
    return b"".join(pieces_of(data, leader_epoch))


def test_the_leaders_bytes_are_appended_as_they_are(world: FollowerLogWorld) -> None:
    data = batches(2, 3, epoch=3) + batches(1, base=5)
    world.fetched(data, high_watermark=5)
    log = world.log
    assert log.log_end_offset == 6
    assert log.leader_epochs.entries == [(3, 0), (EPOCH, 5)]
    assert log.read(0, max_bytes=1 << 20).records.read() == data  # type: ignore[union-attr]  # a file range
    assert world.partition.high_watermark == 5
    assert log.high_watermark == 5


def test_one_step_appends_what_nearly_always_comes(world: FollowerLogWorld) -> None:
    world.fetched(batches(1))
    data = batches(2, 3, base=1)
    assert world.follower_logs.append_next(world.append_of(data, high_watermark=4)) is None
    assert world.log.log_end_offset == 6
    assert world.partition.high_watermark == 4
    assert world.partition.traffic.replication_bytes_in == len(batches(1) + data)


def test_one_step_moves_the_high_watermark_and_the_log_start(world: FollowerLogWorld) -> None:
    world.fetched(batches(2, 2))
    change = world.append_of(b"", high_watermark=3, log_start_offset=4)
    assert world.follower_logs.append_next(change) is None
    assert world.partition.high_watermark == 3
    assert world.log.log_start_offset == 3
    assert world.moved == [world.partition]


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param(lambda: batches(1, base=3, epoch=3), id="another epoch"),
        pytest.param(lambda: batches(1, base=3)[:-1], id="cut short"),
    ],
)
def test_what_one_step_does_not_append_is_left_to_the_others(
    world: FollowerLogWorld, rest: Callable[[], bytes]
) -> None:
    world.fetched(batches(1))
    data = batches(2, base=1) + rest()
    left = world.follower_logs.append_next(world.append_of(data, high_watermark=9))
    assert left is not None
    assert bytes(left.records) == rest()  # type: ignore[arg-type]  # a view
    assert world.log.log_end_offset == 3
    assert world.partition.high_watermark == 3
    same = world.append_of(rest())
    assert world.follower_logs.append_next(same) is same


def test_one_step_changes_nothing_under_a_later_leader(world: FollowerLogWorld) -> None:
    world.fetched(batches(1))
    world.followed.state = FollowState.REMOVED
    change = world.append_of(batches(1, base=1))
    assert world.follower_logs.append_next(change) is change
    assert world.log.log_end_offset == 1


def test_flush_messages_holds_before_the_leader_is_told(world: FollowerLogWorld) -> None:
    """Kafka's UnifiedLog syncs within the append, on followers too."""
    world.log.config = replace(world.log.config, flush_messages=3)
    change = world.append_of(batches(1, 1))
    assert world.follower_logs.append_next(change) is change, "it may have to wait"
    world.carry_out(change)
    assert world.flushes == [], "two records of three"
    world.begin(world.append_of(batches(1, base=2)))
    assert world.outcomes == [] and world.log.log_end_offset == 3
    (offset, then), *others = world.flushes
    assert (offset, others) == (3, [])
    then(True)
    world.timers.advance(0)
    assert world.outcomes == [None]


def test_without_records_the_high_watermark_moves(world: FollowerLogWorld) -> None:
    world.fetched(batches(2))
    world.fetched(b"", high_watermark=2)
    assert world.partition.high_watermark == 2


def test_a_last_batch_that_is_cut_short_is_left_for_the_next_fetch(
    world: FollowerLogWorld,
) -> None:
    data = batches(2, 3)
    for size in (len(data) - 1, len(batches(2)) + 61, len(batches(2)) + 5):
        assert acceptable(data[:size]) == batches(2)
    world.fetched(data[:-1])
    assert world.log.log_end_offset == 2


def test_batches_of_a_newer_epoch_are_left_for_a_fetch_in_that_epoch() -> None:
    """KAFKA-18723."""
    data = batches(2) + batches(1, base=2, epoch=EPOCH + 1) + batches(1, base=3)
    assert acceptable(data) == batches(2)
    assert acceptable(data, EPOCH + 1) == data


def test_a_length_that_no_batch_has_is_corrupt() -> None:
    data = bytearray(batches(1))
    data[8:12] = b"\x00\x00\x00\x01"
    with pytest.raises(KafkaError) as refused:
        acceptable(data)
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
    world.carry_out(StartOverAt(world.followed, 12))
    assert (world.log.log_start_offset, world.log.log_end_offset) == (12, 12)
    world.fetched(batches(5, base=10), high_watermark=15, log_start_offset=12)
    assert (world.log.log_start_offset, world.log.log_end_offset) == (12, 15)
    assert world.log.segments.first.base_offset == 10


def test_truncation_takes_epochs_and_the_high_watermark_along(
    world: FollowerLogWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.fetched(batches(2, epoch=3) + batches(3, base=2), high_watermark=2)
    with caplog.at_level(logging.WARNING):
        world.carry_out(TruncateTo(world.followed, 2))
    assert not caplog.records
    assert world.log.leader_epochs.entries == [(3, 0)]
    assert world.partition.high_watermark == 2
    with caplog.at_level(logging.WARNING):
        world.carry_out(TruncateTo(world.followed, 0))
    assert "below the high watermark 2" in caplog.text
    assert world.partition.high_watermark == world.log.high_watermark == 0


def test_a_log_that_begins_anew_survives_a_crash(world: FollowerLogWorld) -> None:
    """KAFKA-7414: the checkpoints must not name offsets that the log does not have."""
    world.fetched(batches(2, 3), high_watermark=5, log_start_offset=4)
    world.log.flush()
    world.logs.checkpoints.write_recovery_points()
    world.logs.checkpoints.write_start_offsets()
    world.carry_out(StartOverAt(world.followed, 2))
    world.fetched(batches(4, base=2))
    world.logs.close(clean=False)
    world.open()
    log = world.logs.get(world.partition.topic_partition)
    assert log is not None
    assert (log.log_start_offset, log.log_end_offset) == (2, 6)


# -- workers --------------------------------------------------------------------------------------


def small_segments(world: FollowerLogWorld) -> None:
    """The next batches need a new segment."""
    world.fetched(batches(2))
    world.configure(**{"internal_segment_bytes": "150"})


def test_a_worker_makes_a_new_segment(world: FollowerLogWorld) -> None:
    small_segments(world)
    world.begin(world.append_of(batches(2, base=2), high_watermark=4))
    assert len(world.workers.held) == 1 and not world.outcomes
    assert world.follower_logs.is_changing(world.partition)
    assert (world.log.log_end_offset, world.partition.high_watermark) == (2, 0)
    world.workers.run_one()
    world.timers.advance(0)
    assert world.outcomes == [None]
    assert world.log.segments.base_offsets == [0, 2]
    assert (world.log.log_end_offset, world.partition.high_watermark) == (4, 4)
    assert not world.follower_logs.is_changing(world.partition)


def test_what_waits_for_a_segment_is_not_appended_under_a_later_leader(
    world: FollowerLogWorld,
) -> None:
    small_segments(world)
    world.begin(world.append_of(batches(2, base=2), high_watermark=4))
    world.followed.state = FollowState.REMOVED
    world.workers.run_one()
    world.timers.advance(0)
    assert world.outcomes == [None]
    assert (world.log.log_end_offset, world.partition.high_watermark) == (2, 0)


def test_a_segment_that_cannot_be_made_ends_the_change(world: FollowerLogWorld) -> None:
    small_segments(world)
    world.begin(world.append_of(batches(2, base=2)))
    world.workers.held[0] = (lambda: None, world.workers.held[0][1])
    failure = LogDirectoryError(world.log.directory, "write", OSError(errno.ENOSPC, "full"))
    world.workers.run_one(failure)
    world.timers.advance(0)
    assert world.outcomes == [failure]
    assert world.log.log_end_offset == 2


def test_a_worker_checks_what_is_large(
    world: FollowerLogWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_log, "LOOP_CHECK_BYTES", 100)
    data = batches(5)
    world.begin(world.append_of(data, high_watermark=5))
    assert len(world.workers.held) == 1 and world.log.log_end_offset == 0
    world.workers.run_one()
    world.timers.advance(0)
    assert world.outcomes.pop() is None
    assert (world.log.log_end_offset, world.partition.high_watermark) == (5, 5)
    corrupt = bytearray(batches(5, base=5))
    corrupt[-1] ^= 1
    with pytest.raises(KafkaError) as refused:
        world.fetched(bytes(corrupt))
    assert refused.value.code in CORRUPT
    assert world.log.log_end_offset == 5


def test_many_batches_are_appended_piece_by_piece(world: FollowerLogWorld) -> None:
    count = 2 * PIECE_BATCHES + 1
    data = batches(*[1] * count)
    pieces = list(pieces_of(data, EPOCH))
    assert b"".join(pieces) == data
    assert len(pieces) == 3
    corrupt = bytearray(data)
    corrupt[-1] ^= 1
    with pytest.raises(KafkaError):
        world.fetched(bytes(corrupt), high_watermark=count)
    appended = 2 * PIECE_BATCHES
    assert world.log.log_end_offset == world.partition.high_watermark == appended
    world.fetched(bytes(pieces[2]), high_watermark=count)
    assert world.log.log_end_offset == world.partition.high_watermark == count


def test_a_large_piece_has_one_batch_at_least() -> None:
    large = [batch(1, size=follower_log.PIECE_BYTES) for _ in range(3)]
    for number, each in enumerate(large):
        assign_offsets(each, number, EPOCH)
    assert list(map(bytes, pieces_of(b"".join(large), EPOCH))) == list(map(bytes, large))


def test_a_worker_cuts_the_log(world: FollowerLogWorld) -> None:
    world.fetched(batches(2, 3), high_watermark=2)
    told: list[int] = []
    world.begin(TruncateTo(world.followed, 2))
    world.follower_logs.when_idle(world.partition, lambda: told.append(world.log.log_end_offset))
    assert world.log.frozen and world.log.log_end_offset == 5 and not told
    world.workers.run_one()
    world.timers.advance(0)
    assert world.outcomes == [None] and told == [2]
    assert not world.log.frozen and world.log.log_end_offset == 2


def test_a_cut_waits_for_the_jobs_of_the_log(world: FollowerLogWorld) -> None:
    world.fetched(batches(2, 3), high_watermark=2)
    begin_roll(world.log, 0, 5)
    world.begin(TruncateTo(world.followed, 2))
    assert not world.log.frozen
    world.workers.run_one()
    world.timers.advance(0)
    assert world.log.frozen and world.log.segments.base_offsets == [0, 5]
    world.workers.run_one()
    world.timers.advance(0)
    assert world.outcomes == [None] and world.log.segments.base_offsets == [0]


def test_no_cut_begins_under_a_later_leader(world: FollowerLogWorld) -> None:
    world.fetched(batches(2, 3), high_watermark=2)
    begin_roll(world.log, 0, 5)
    world.begin(TruncateTo(world.followed, 2))
    world.followed.state = FollowState.REMOVED
    world.workers.run_one()
    world.timers.advance(0)
    assert world.outcomes == [None] and not world.workers.held
    assert world.log.log_end_offset == 5 and not world.log.frozen


def test_a_broker_that_leads_now_finishes_the_cut_first(world: FollowerLogWorld) -> None:
    world.fetched(batches(2, 3), high_watermark=2)
    world.begin(TruncateTo(world.followed, 2))
    world.host(0, leader=1, epoch=EPOCH + 1, partition_epoch=1, replicas=(1, 2), isr=(1, 2))
    assert world.partition.is_leader and not world.log.frozen
    assert world.partition.leader_epoch_start_offset == world.log.log_end_offset == 2
    world.workers.run_one()
    world.timers.advance(0)
    assert world.outcomes == [None]
    assert world.log.log_end_offset == 2


def test_a_cut_that_fails_ends_the_change(world: FollowerLogWorld) -> None:
    world.fetched(batches(2, 3), high_watermark=2)
    world.begin(TruncateTo(world.followed, 2))
    failure = LogDirectoryError(world.log.directory, "sync", OSError(errno.EIO, "broken"))
    world.workers.held[0] = (lambda: None, world.workers.held[0][1])
    world.workers.run_one(failure)
    world.timers.advance(0)
    assert world.outcomes == [failure]
    assert world.log.failure is failure


def test_closed_workers_leave_a_cut_to_the_close_of_its_log(world: FollowerLogWorld) -> None:
    world.fetched(batches(2, 3), high_watermark=2)
    begin_roll(world.log, 0, 5)
    world.begin(TruncateTo(world.followed, 2))
    world.follower_logs.close()
    world.workers.run_one()
    world.timers.advance(0)
    (failure,) = world.outcomes
    assert isinstance(failure, KafkaError)
    assert failure.code is ErrorCode.BROKER_NOT_AVAILABLE
    world.log.close()
    assert world.log.log_end_offset == 2


def test_one_change_of_a_log_is_under_way_at_most(world: FollowerLogWorld) -> None:
    world.fetched(batches(2, 3), high_watermark=2)
    world.begin(TruncateTo(world.followed, 2))
    with pytest.raises(InvariantError, match="two changes"):
        next(world.follower_logs.steps(world.append_of(b"")))
    assert world.follower_logs.is_changing(world.partition)
