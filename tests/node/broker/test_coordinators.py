"""A group coordinator over a replica with a follower: responses wait for the high watermark, and
leadership is fenced by its epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.coordinator.group.service import GROUP_TOPIC
from kbroker.coordinator.runtime.host import HostStatus
from kbroker.coordinator.runtime.records import encode_batch
from kbroker.model import TopicPartition
from kbroker.node.broker.coordinators import CoordinatorLog, build_group_coordinator
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.offsets import (
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kbroker.replication.leaders.isr import IsrPorts
from kbroker.replication.partition import Partition
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from tests.coordinator.replicated import run_steps
from tests.coordinator.runtime.test_decisions import number_record
from tests.coordinator.simulation import Context, FakeTopics
from tests.replication.proposals import Brokers, Proposals
from tests.replication.world import World

E = ErrorCode
KEY = TopicPartition(GROUP_TOPIC, 0)
TOPIC_ID = bytes(15) + b"\x09"
BROKER_EPOCH = 9
TIMEOUT_MS = 5_000


class Topics(FakeTopics):
    def group_configs(self, group_id: str) -> dict[str, str]:
        return {}


class Coordinating:
    """A broker with a replica of `__consumer_offsets`, whose other replica is on broker 2."""

    def __init__(self, folder: Path) -> None:
        ports = IsrPorts(Brokers({1: BROKER_EPOCH, 2: BROKER_EPOCH}), Proposals())
        self.world = World(folder, partitions=0, isr_ports=ports)
        self.timers = self.world.timers
        topics = Topics()
        topics.add(GROUP_TOPIC, 1)
        topics.add("events", 1)
        metadata: Any = SimpleNamespace(image=topics)
        self.groups = build_group_coordinator(
            self.world.config,
            GroupCoordinatorConfig.from_broker(self.world.config),
            metadata=metadata,
            replicas=self.world.replicas,
            timers=self.timers,
            random=Random(1),
        )
        self.log = CoordinatorLog(self.world.replicas, self.timers, None)
        self.answers: list[ErrorCode | int] = []

    def order(self, leader: int, epoch: int) -> Partition:
        """The metadata's orders; stale ones are those of an older epoch."""
        partition = self.world.host(
            topic=GROUP_TOPIC,
            topic_id=TOPIC_ID,
            leader=leader,
            epoch=epoch,
            partition_epoch=epoch,
            replicas=(1, 2),
        )
        self.timers.advance(0)
        return partition

    def fetched(self, offset: int) -> None:
        """The follower has all records before offset."""
        partition = self.world.replicas.partition(KEY)
        assert partition is not None
        partition.follower_fetched(
            2,
            fetch_offset=offset,
            log_start_offset=0,
            broker_epoch=BROKER_EPOCH,
            now_ms=self.timers.monotonic_ms(),
        )
        self.timers.advance(0)

    def commit(self, offset: int) -> None:
        partition = OffsetCommitRequest.OffsetCommitRequestPartition(committed_offset=offset)
        topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="events", partitions=[partition])
        request = OffsetCommitRequest(
            group_id="g", generation_id_or_member_epoch=-1, topics=[topic]
        )
        run_steps(
            self.groups.offsets.commit(Context(9), request),
            lambda response: self.answers.append(E(response.topics[0].partitions[0].error_code)),
        )

    def read(self) -> None:
        wanted = OffsetFetchRequest.OffsetFetchRequestTopics(name="events", partition_indexes=[0])
        group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=[wanted])

        def answered(response: OffsetFetchResponse) -> None:
            (found,) = response.groups
            error = E(found.error_code)
            self.answers.append(error or found.topics[0].partitions[0].committed_offset)

        request = OffsetFetchRequest(groups=[group])
        run_steps(self.groups.offsets.fetch(request, 8, lambda count: True), answered)

    def statuses(self) -> list[tuple[int, HostStatus]]:
        return [(host.epoch, host.status) for host in self.groups.runtime.hosts()]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[], Coordinating]]:
    made: list[Coordinating] = []

    def make_one() -> Coordinating:
        made.append(Coordinating(tmp_path / str(len(made))))
        return made[-1]

    yield make_one
    for one in made:
        one.groups.close()
        one.world.close()


def test_a_commit_and_a_read_wait_for_the_follower(make: Callable[[], Coordinating]) -> None:
    broker = make()
    broker.order(leader=1, epoch=1)
    broker.commit(7)
    broker.read()
    assert broker.answers == []
    broker.fetched(1)
    assert broker.answers == [E.NONE, 7]


def test_the_tail_that_a_new_leader_finds_is_not_shown(make: Callable[[], Coordinating]) -> None:
    broker = make()
    broker.order(leader=1, epoch=1)
    broker.commit(7)
    broker.fetched(1)
    broker.commit(8)
    broker.order(leader=2, epoch=2)  # which lacks the second commit
    assert broker.answers == [E.NONE, E.NOT_COORDINATOR]
    assert broker.statuses() == []
    broker.order(leader=1, epoch=3)
    assert broker.statuses() == [(3, HostStatus.ACTIVE)]
    broker.read()
    assert broker.answers[2:] == []
    broker.fetched(2)
    assert broker.answers[2:] == [8]


def test_a_follower_that_does_not_come_ends_the_wait(make: Callable[[], Coordinating]) -> None:
    """offsets.commit.timeout.ms; what was written is not shown afterwards either."""
    broker = make()
    broker.order(leader=1, epoch=1)
    broker.commit(7)
    broker.timers.advance(TIMEOUT_MS)
    assert broker.answers == [E.COORDINATOR_NOT_AVAILABLE]
    broker.read()
    broker.timers.advance(TIMEOUT_MS - 1)
    assert broker.answers[1:] == []
    broker.timers.advance(1)
    assert broker.answers[1:] == [E.COORDINATOR_NOT_AVAILABLE]
    broker.read()
    broker.fetched(1)
    assert broker.answers[2:] == [7]


def test_orders_of_older_epochs_neither_unload_nor_load(make: Callable[[], Coordinating]) -> None:
    broker = make()
    broker.order(leader=1, epoch=5)
    broker.order(leader=2, epoch=4)
    assert broker.statuses() == [(5, HostStatus.ACTIVE)]
    broker.order(leader=2, epoch=6)
    broker.order(leader=1, epoch=5)
    assert broker.statuses() == []
    broker.order(leader=1, epoch=7)
    assert broker.statuses() == [(7, HostStatus.ACTIVE)]


def test_a_new_epoch_of_the_same_leader_keeps_writes_in_flight(
    make: Callable[[], Coordinating],
) -> None:
    broker = make()
    broker.order(leader=1, epoch=1)
    broker.commit(7)
    broker.order(leader=1, epoch=2)
    broker.read()
    assert broker.answers == []
    broker.fetched(1)
    assert broker.answers == [E.NONE, 7]
    assert broker.statuses() == [(2, HostStatus.ACTIVE)]


def test_a_missing_epoch_fails_writes_in_flight_and_keeps_their_records(
    make: Callable[[], Coordinating],
) -> None:
    broker = make()
    broker.order(leader=1, epoch=1)
    broker.commit(7)
    broker.order(leader=1, epoch=3)  # another broker may have led epoch 2
    assert broker.answers == [E.NOT_COORDINATOR]
    broker.read()
    broker.fetched(1)
    assert broker.answers[1:] == [7]
    assert broker.statuses() == [(3, HostStatus.ACTIVE)]


def test_a_write_of_another_epoch_is_refused(make: Callable[[], Coordinating]) -> None:
    broker = make()
    broker.order(leader=1, epoch=2)
    for epoch in (1, 3):
        batch = encode_batch([number_record("a", 1)], 0)
        refused = broker.log.append(KEY, batch, leader_epoch=epoch)
        assert refused.value.error is E.NOT_LEADER_OR_FOLLOWER
    assert broker.log.end_offset(KEY) == 0
    written = broker.log.append(KEY, encode_batch([number_record("a", 1)], 0), leader_epoch=2)
    assert not written.done
    elsewhere = TopicPartition("nowhere", 0)
    batch = encode_batch([number_record("a", 1)], 0)
    unknown = broker.log.append(elsewhere, batch, leader_epoch=2)
    assert unknown.value.error is E.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.log.when_committed(elsewhere).value is E.NOT_LEADER_OR_FOLLOWER
