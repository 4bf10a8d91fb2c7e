"""Replicas by name and id, and what is said of one that is not here. Orders in turns of the loop
are tested in tests/server/test_hosting.py, failures of disks in test_manager.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.log.storage.files import LogDirectoryError
from kbroker.model import TopicPartition, Uuid
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.replication.hosting import DirectoryReports
from kbroker.replication.partition import Partition
from kbroker.replication.time_slices import TimeSlices
from tests.replication.test_time_slices import Ticks
from tests.replication.world import TOPIC, TOPIC_ID, World, batch

OTHER_ID = b"o" * 16


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, partitions=2)
    yield made
    made.close()


def test_a_replica_by_name_and_by_id(world: World) -> None:
    found = world.replicas.partition(TopicPartition(TOPIC, 1))
    assert found is not None
    assert world.replicas.find(TOPIC, 1) is found is world.replicas.find(TOPIC_ID, 1)
    assert len(list(world.replicas.partitions())) == 2


def test_what_is_not_here(world: World) -> None:
    replicas = world.replicas
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert replicas.find("none", 0) is replicas.find(TOPIC, 7) is replicas.find(TOPIC_ID, 7)
    assert replicas.find("none", 0) is unknown
    assert replicas.find(OTHER_ID, 0) is ErrorCode.UNKNOWN_TOPIC_ID
    assert replicas.partition(TopicPartition("none", 0)) is None


def test_only_a_leader_is_given_with_its_log(world: World) -> None:
    key = TopicPartition(TOPIC, 0)
    partition, log = world.replicas.hosting.led(key)
    assert partition.log is log
    world.host(0, leader=2, epoch=1, partition_epoch=1, replicas=(1, 2))
    for wanted, error in (
        (key, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (TopicPartition(TOPIC, 9), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        with pytest.raises(KafkaError) as caught:
            world.replicas.hosting.led(wanted)
        assert caught.value.code is error


def test_a_topic_ends_with_its_last_replica(world: World) -> None:
    world.remove(0)
    assert world.replicas.topic(TOPIC) is world.replicas.topic_by_id(TOPIC_ID) is not None
    world.remove(1)
    assert world.replicas.topic(TOPIC) is None
    assert world.replicas.topic_by_id(TOPIC_ID) is None
    world.remove(1)


def test_a_topic_of_the_same_name_takes_the_place_of_the_former(world: World) -> None:
    world.append(0, batch(3))
    made = world.host(0, topic_id=OTHER_ID)
    assert made.topic_id == OTHER_ID
    assert world.replicas.find(OTHER_ID, 0) is made is world.replicas.find(TOPIC, 0)


def test_the_high_watermarks_of_replicas_that_are_online(world: World) -> None:
    world.append(0, batch(3))
    partition = world.replicas.partition(TopicPartition(TOPIC, 1))
    assert partition is not None
    partition.go_offline()
    assert world.replicas.hosting.high_watermarks() == {TopicPartition(TOPIC, 0): 3}


@pytest.mark.parametrize("lag_ms", ["-2147483648", "0", "1"])
def test_members_that_lag_are_looked_for_with_pauses_whatever_the_lag(
    lag_ms: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, replica_lag_time_max_ms=lag_ms, replica_fetch_wait_max_ms=lag_ms)
    looks: list[int] = []
    monkeypatch.setattr(Partition, "shrink_isr", lambda partition, now_ms: looks.append(now_ms))
    world.replicas.hosting.start_shrinking_isrs()
    world.timers.advance(1000)
    assert len(looks) == 10
    world.close()


def test_lagging_members_are_looked_for_in_several_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    (partition,) = world.replicas.partitions()
    looks: list[int] = []
    monkeypatch.setattr(Partition, "shrink_isr", lambda partition, now_ms: looks.append(now_ms))
    hosting = world.replicas.hosting
    monkeypatch.setattr(hosting, "partitions", lambda: [partition] * 100)
    hosting._looks = TimeSlices(world.timers, seconds=0.001, clock=Ticks())
    hosting.start_shrinking_isrs()
    counts: list[int] = []
    while len(looks) < 100:
        assert world.timers.run_next(world.timers.time_ms + 60_000)
        counts.append(len(looks))
    assert len(counts) > 3 and counts[0] < 50
    monkeypatch.undo()
    world.close()


class Told:
    """Keeps what is reported of directories, and whether the replica was online then."""

    def __init__(self) -> None:
        self.assigned: list[tuple[TopicPartition, Uuid, Uuid]] = []
        self.failed: list[tuple[Path, bool]] = []
        self.world: World

    def assign(self, key: TopicPartition, topic_id: Uuid, directory_id: Uuid) -> Deferred[None]:
        self.assigned.append((key, topic_id, directory_id))
        return Deferred.of(None)

    def directory_failed(self, path: Path) -> None:
        partition = self.world.replicas.partition(TopicPartition(TOPIC, 0))
        assert partition is not None
        self.failed.append((path, bool(partition.role)))


def test_a_directory_that_fails_is_reported_once_its_replicas_are_offline(tmp_path: Path) -> None:
    told = Told()
    reports = DirectoryReports(told.assign, told.directory_failed)
    told.world = world = World(tmp_path, reports=reports)
    (directory,) = world.logs.directories
    fault = LogDirectoryError(directory / "x", "read", OSError(5, "Input/output error"))
    world.logs.directory_failed(fault)
    assert told.failed == [(directory, False)]
    assert world.replicas.mover.assign == told.assign
    world.close()
