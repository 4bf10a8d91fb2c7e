"""A follower's log that is found damaged while it is truncated: its partition alone is offline,
whatever is asked of it later; the broker has one log directory, with a sound log beside it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage import names
from kbroker.log.storage.checkpoint import read_offsets
from kbroker.metadata.publisher import RemovePartition
from kbroker.model import LOST_DIRECTORY, TopicPartition, Uuid
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.replication.followers.followed_partition import FollowedPartition, TruncateTo
from kbroker.replication.hosting import DirectoryReports
from kbroker.replication.partition import Partition
from tests.log.cuts import cut_now
from tests.log.damage import zero_from
from tests.replication.followers.test_follower_log import EPOCH, FollowerLogWorld, batches
from tests.replication.two_dirs import TwoDirs
from tests.replication.world import TOPIC, TOPIC_ID, batch, fetch_request, partitions_of

KEY, SOUND = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR


class DamagedWorld(FollowerLogWorld):
    """Partition 0 follows, with offsets 0 to 4 and zeros from 2 on; partition 1 leads, with 3
    records. roles: of partitions, as they changed. reported: (partition, topic id, directory id).
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.reported: list[tuple[TopicPartition, Uuid, Uuid]] = []
        self.roles: list[tuple[TopicPartition, bool]] = []
        hosting = self.replicas.hosting
        hosting._reports = DirectoryReports(self.assign, lambda path: None)
        hosting.on_role = self._role_changed
        self.host(1)
        self.append(1, batch(3))
        self.fetched(batches(1, 1, 1, 1, 1), high_watermark=2)
        self.segment = zero_from(self.log, 2)

    def assign(self, key: TopicPartition, topic_id: Uuid, directory_id: Uuid) -> Deferred[None]:
        self.reported.append((key, topic_id, directory_id))
        return Deferred.of(None)

    def _role_changed(self, partition: Partition) -> None:
        self.roles.append((partition.topic_partition, bool(partition.role)))

    def cut(self) -> PartitionLog:
        """Truncate to offset 3, as the leader says. Returns the log."""
        log = self.log
        self.begin(TruncateTo(self.followed, 3))
        self.workers.run()
        self.timers.advance(0)
        return log

    def lead(self, *, epoch: int) -> Partition:
        return self.host(
            0, leader=1, epoch=epoch, partition_epoch=epoch, replicas=(1, 2), isr=(1, 2)
        )

    def start_again(self) -> None:
        """Start on what is on disk; the partitions are as before, in a later epoch."""
        self.workers.held.clear()
        self.open()
        self.partition = self.host(
            0, leader=2, epoch=EPOCH + 5, partition_epoch=EPOCH + 5, replicas=(1, 2), isr=(2,)
        )
        self.host(1, epoch=EPOCH + 5, partition_epoch=EPOCH + 5)

    def require_one_offline(self) -> None:
        """The partition is offline, the directory and its other log are served."""
        assert not self.logs.offline_directories
        assert self.logs.offline_partitions == {KEY} and self.logs.is_damaged(KEY)
        assert set(self.logs.logs) == {SOUND}
        assert self.partition.check_leader() is STORAGE_ERROR
        sound = self.append(1, batch(1))
        assert not isinstance(sound, Deferred) and sound.error is ErrorCode.NONE


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DamagedWorld]:
    made = DamagedWorld(tmp_path)
    yield made
    made.close()


def refused_by(world: DamagedWorld) -> list[ErrorCode]:
    """The errors of an append and of a fetch."""
    appended = world.append(0)
    assert not isinstance(appended, Deferred)
    (data,) = partitions_of(world.fetch_now(fetch_request({0: 0}))).values()
    return [appended.error, ErrorCode(data.error_code)]


def test_the_partition_alone_is_offline_and_one_line_says_so(
    world: DamagedWorld, caplog: pytest.LogCaptureFixture
) -> None:
    log = world.cut()
    (failure,) = world.outcomes
    assert isinstance(failure, KafkaError) and failure.code is STORAGE_ERROR
    assert log.failure is failure and log.closed
    (line,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    text = line.getMessage()
    assert world.segment.path in text and "\n" not in text
    assert text.startswith("events-0 is offline: cannot truncate the log to offset 3: ")
    assert "restart the broker" in text
    assert world.roles[-1] == (KEY, False)
    assert world.reported[-1] == (KEY, TOPIC_ID, LOST_DIRECTORY)
    assert refused_by(world) == [STORAGE_ERROR] * 2
    world.require_one_offline()


def test_nothing_is_written_to_it_any_more(world: DamagedWorld) -> None:
    log = world.cut()
    with pytest.raises(KafkaError) as caught:
        log.append_as_follower(batches(1, base=5), now_ms=world.timers.now_ms())
    assert caught.value.code is STORAGE_ERROR
    with pytest.raises(KafkaError):
        log.begin_cut(2, is_full=False, now_ms=0, then=lambda: None)


def test_a_new_leader_epoch(world: DamagedWorld) -> None:
    world.cut()
    world.outcomes.clear()
    order = {"leader": 2, "epoch": EPOCH + 1, "partition_epoch": 1, "replicas": (1, 2)}
    again = world.host(0, **order)  # type: ignore[arg-type]  # as host takes them
    for change in (
        TruncateTo(FollowedPartition(again), 3),
        world.append_of(batches(1, base=5), high_watermark=2)._replace(
            followed=FollowedPartition(again)
        ),
    ):
        world.begin(change)
        world.workers.run()
    assert not [failure for failure in world.outcomes if isinstance(failure, OSError)]
    world.require_one_offline()
    assert world.reported[-2:] == [(KEY, TOPIC_ID, LOST_DIRECTORY)] * 2, "until it is known"


def test_this_broker_is_to_lead(world: DamagedWorld) -> None:
    world.cut()
    world.lead(epoch=EPOCH + 1)
    assert refused_by(world) == [STORAGE_ERROR] * 2
    world.require_one_offline()


def test_this_broker_is_to_lead_before_the_worker_has_begun(world: DamagedWorld) -> None:
    world.begin(TruncateTo(world.followed, 3))
    world.reported.clear()
    world.lead(epoch=EPOCH + 1)
    assert world.reported == [(KEY, TOPIC_ID, LOST_DIRECTORY)]
    assert refused_by(world) == [STORAGE_ERROR] * 2
    world.workers.run()
    world.timers.advance(0)
    (failure,) = world.outcomes
    assert isinstance(failure, KafkaError) and failure.code is STORAGE_ERROR
    world.require_one_offline()


@pytest.mark.parametrize("is_found_by_the_stop", [False, True])
def test_a_clean_stop_and_the_next_start(tmp_path: Path, is_found_by_the_stop: bool) -> None:
    world = DamagedWorld(tmp_path)
    if is_found_by_the_stop:
        world.begin(TruncateTo(world.followed, 3))
    else:
        world.cut()
    (directory,) = world.logs.directories
    world.replicas.close()
    world.logs.close(broker_epoch=7)
    assert not world.logs.offline_directories
    assert read_offsets(directory / names.RECOVERY_POINTS) == {SOUND: 3}
    assert '"brokerEpoch":-1' in (directory / names.CLEAN_SHUTDOWN).read_text(), (
        "the controller must not count on records that the recovery may remove"
    )
    assert not (directory / names.DAMAGED_LOGS).exists()
    world.start_again()
    assert world.logs.was_clean and not world.logs.offline_partitions
    assert world.log.log_end_offset == 2, "recovered: truncated before the damage"
    assert world.logs.logs[SOUND].log_end_offset == 3
    world.followed = FollowedPartition(world.partition)
    world.fetched(batches(1, 1, base=2), high_watermark=4)
    assert world.log.log_end_offset == 4
    world.replicas.close()
    world.logs.close(broker_epoch=8)
    assert '"brokerEpoch":8' in (directory / names.CLEAN_SHUTDOWN).read_text()


def test_a_crash_and_the_next_start(world: DamagedWorld) -> None:
    world.cut()
    world.logs.checkpoints.write_recovery_points()
    world.logs.checkpoints.write_start_offsets()
    world.replicas.close()
    world.logs.close(clean=False)
    world.start_again()
    assert world.log.log_end_offset == 2
    assert world.logs.logs[SOUND].log_end_offset == 3


def delete(world: DamagedWorld) -> None:
    world.replicas.apply([RemovePartition(KEY, delete=True)])


def cut_and_delete(world: DamagedWorld) -> None:
    world.cut()
    delete(world)


def delete_with_a_cut_under_way(world: DamagedWorld) -> None:
    world.begin(TruncateTo(world.followed, 3))
    delete(world)
    world.workers.run()
    world.timers.advance(0)


@pytest.mark.parametrize("end", [cut_and_delete, delete_with_a_cut_under_way])
def test_a_partition_that_is_deleted_or_reassigned(
    world: DamagedWorld, end: Callable[[DamagedWorld], None]
) -> None:
    (directory,) = world.logs.directories
    end(world)
    assert world.replicas.partition(KEY) is None and not world.logs.offline_partitions
    assert not (directory / str(KEY)).exists()
    assert len(list(directory.glob(f"{KEY}.*{names.DELETE_SUFFIX}"))) == 1
    assert not world.logs.offline_directories
    again = world.host(0, epoch=EPOCH + 2, partition_epoch=0)
    appended = world.append(0, batch(2))
    assert not isinstance(appended, Deferred) and appended.error is ErrorCode.NONE
    assert again.log.log_end_offset == 2


def test_a_move_goes_on_after_the_next_start(tmp_path: Path) -> None:
    world = TwoDirs(tmp_path)
    for _ in range(5):
        world.append(0, batch(1))
    assert world.move(1) is ErrorCode.NONE
    world.host(0, leader=2, epoch=1, partition_epoch=1, replicas=(1, 2), isr=(2,))
    log = world.logs.logs[KEY]
    zero_from(log, 2)
    cut_now(world.logs, KEY, 3)
    world.step(3)
    assert world.move(1) is world.move(0) is STORAGE_ERROR
    assert world.logs.is_moving(KEY) and not world.logs.offline_directories
    world.work.held.clear()
    world.close()
    world.open()
    world.host(0, leader=2, epoch=2, partition_epoch=2, replicas=(1, 2), isr=(2,))
    assert world.place == 0 and world.logs.logs[KEY].log_end_offset == 2
    world.finish()
    assert world.place == 1 and world.logs.logs[KEY].log_end_offset == 2
    world.work.held.clear()
    world.close()
