"""Consumers that read from followers (KIP-392): what a leader answers a consumer with a rack, and
what a follower serves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kbroker.model import TopicPartition
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.replication.leaders.isr import IsrPorts
from kbroker.replication.partition import Partition
from kbroker.replication.reads.replica_selector import RackAwareSelector
from tests.batch_offsets import assign_offsets
from tests.replication.proposals import Brokers, Proposals
from tests.replication.reads.test_replica_selector import LISTENER, Racks
from tests.replication.world import (
    TOPIC,
    World,
    batch,
    fetch_request,
    partitions_of,
    records_of,
)

VERSION = 12
EPOCH = 4
WAIT_MS = 400


class ClosestWorld(World):
    """Broker 1 in rack `a`, brokers 2 and 3 in rack `b`."""

    def open(self, *args: Any) -> None:
        super().open(*args)
        self.replicas._selector = RackAwareSelector(Racks({1: "a", 2: "b", 3: "b"}))

    @property
    def partition(self) -> Partition:
        found = self.replicas.partition(TopicPartition(TOPIC, 0))
        assert found is not None
        return found

    def lead(self) -> None:
        """Lead ten records, which the followers 2 and 3 have."""
        self.host(0, epoch=EPOCH, replicas=(1, 2, 3))
        self.append(0, batch(10))
        for replica_id in (2, 3):
            self.partition.follower_fetched(
                replica_id,
                fetch_offset=10,
                log_start_offset=0,
                broker_epoch=1,
                now_ms=self.timers.monotonic_ms(),
            )

    def follow(self, high_watermark: int = 4) -> None:
        """Follow broker 2 with ten records in batches of two."""
        self.host(0, leader=2, epoch=EPOCH, replicas=(1, 2, 3))
        for _ in range(5):
            self.receive(2, high_watermark)

    def receive(self, count: int, high_watermark: int) -> None:
        """The leader sends a batch of count records, or none, and its high watermark."""
        data = batch(count) if count else bytearray()
        if count:
            assign_offsets(data, self.partition.log.log_end_offset, EPOCH)
            self.partition.log.append_as_follower(data, now_ms=self.timers.now_ms())  # type: ignore[attr-defined]  # a PartitionLog
        self.partition.follower_advanced(high_watermark, len(data))

    def ask(
        self, offset: int, *, version: int = VERSION, rack: str = "", **options: Any
    ) -> FetchResponse | Any:
        request = self.request(offset, rack=rack, **options)
        return self.replicas.fetch(
            request, api_version=version, now_ms=self.timers.now_ms(), listener_name=LISTENER
        )

    def request(self, offset: int, *, rack: str = "", **options: Any) -> FetchRequest:
        options = {"current_leader_epoch": EPOCH} | options
        request = fetch_request({0: offset}, **options)
        request.rack_id = rack
        return request

    def read(self, offset: int, **options: Any) -> FetchResponse.PartitionData:
        """What is answered at once."""
        response = self.ask(offset, **options)
        assert isinstance(response, FetchResponse)
        return partitions_of(response)[0]


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> ClosestWorld:
    ports = IsrPorts(Brokers({1: 1, 2: 1, 3: 1}), Proposals())
    return ClosestWorld(tmp_path_factory.mktemp("closest"), partitions=0, isr_ports=ports)


# -- the leader -----------------------------------------------------------------------------------


def test_a_consumer_with_a_rack_is_sent_to_the_closest_replica(world: ClosestWorld) -> None:
    world.lead()
    data = world.read(0, rack="b", max_wait_ms=WAIT_MS)
    assert data.preferred_read_replica == 3
    assert data.error_code == 0 and not data.records
    assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (10, 10, 0)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"rack": "a"}, id="the leader is in the rack"),
        pytest.param({"rack": ""}, id="no rack"),
        pytest.param({"rack": "b", "version": 10}, id="a version without racks"),
    ],
)
def test_other_consumers_read_from_the_leader(world: ClosestWorld, options: Any) -> None:
    world.lead()
    data = world.read(0, **options)
    assert data.preferred_read_replica == -1
    assert len(records_of(data)) == 10


def test_without_a_selector_the_leader_serves_every_rack(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    world.append(0, batch(3))
    request = fetch_request({0: 0})
    request.rack_id = "b"
    data = partitions_of(world.fetch_now(request))[0]
    assert data.preferred_read_replica == -1 and len(records_of(data)) == 3


def test_a_follower_is_never_sent_elsewhere(world: ClosestWorld) -> None:
    world.lead()
    request = world.request(0, rack="b")
    request.replica_id = 2
    response = world.fetch_now(request)
    data = partitions_of(response)[0]
    assert data.preferred_read_replica == -1 and len(records_of(data)) == 10


def test_the_epoch_is_checked_first(world: ClosestWorld) -> None:
    world.lead()
    for epoch, error in (
        (EPOCH - 1, ErrorCode.FENCED_LEADER_EPOCH),
        (EPOCH + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ):
        data = world.read(0, rack="b", current_leader_epoch=epoch)
        assert (data.error_code, data.preferred_read_replica) == (error, -1)


def test_in_a_session_each_poll_is_sent_elsewhere_at_once(world: ClosestWorld) -> None:
    world.lead()
    response = world.ask(0, rack="b", max_wait_ms=WAIT_MS, session=(0, 0))
    assert partitions_of(response)[0].preferred_read_replica == 3
    request = fetch_request({}, max_wait_ms=WAIT_MS, session=(response.session_id, 1))
    again = world.replicas.fetch(request, api_version=VERSION, now_ms=world.timers.now_ms())
    assert isinstance(again, FetchResponse)
    assert partitions_of(again)[0].preferred_read_replica == 3


# -- the follower ---------------------------------------------------------------------------------


def test_a_follower_serves_what_is_below_its_high_watermark(world: ClosestWorld) -> None:
    world.follow(high_watermark=4)
    data = world.read(1)
    assert [record.offset for record in records_of(data)] == [0, 1, 2, 3]
    assert (data.high_watermark, data.last_stable_offset) == (4, 4)


@pytest.mark.parametrize(
    ("offset", "error"),
    [
        pytest.param(4, ErrorCode.NONE, id="the high watermark"),
        pytest.param(7, ErrorCode.NONE, id="above it"),
        pytest.param(10, ErrorCode.NONE, id="the end"),
        pytest.param(11, ErrorCode.OFFSET_OUT_OF_RANGE, id="beyond the end"),
    ],
)
def test_above_the_high_watermark_there_is_nothing_yet(
    world: ClosestWorld, offset: int, error: ErrorCode
) -> None:
    world.follow(high_watermark=4)
    data = world.read(offset)
    assert (data.error_code, data.records) == (error, b"")


def test_a_consumer_without_racks_is_sent_to_the_leader(world: ClosestWorld) -> None:
    world.follow()
    assert world.read(0, version=10).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_another_replica_is_sent_to_the_leader(world: ClosestWorld) -> None:
    world.follow()
    request = world.request(0)
    request.replica_id = 3
    data = partitions_of(world.fetch_now(request))[0]
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_the_epochs_of_a_follower(world: ClosestWorld) -> None:
    world.follow()
    for epoch, error in (
        (-1, ErrorCode.NONE),
        (EPOCH - 1, ErrorCode.FENCED_LEADER_EPOCH),
        (EPOCH + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ):
        assert world.read(0, current_leader_epoch=epoch).error_code == error


def test_a_log_that_diverges_from_the_consumers_history(world: ClosestWorld) -> None:
    world.follow()
    data = world.read(3, last_fetched_epoch=EPOCH + 1)
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    world.partition.log.leader_epochs.assign(EPOCH + 2, 10)  # type: ignore[attr-defined]  # a cache
    data = world.read(3, last_fetched_epoch=EPOCH + 1)
    assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (EPOCH, 10)


def test_a_wait_ends_when_the_leader_tells_of_a_higher_watermark(world: ClosestWorld) -> None:
    """The bytes came with an earlier answer."""
    world.follow(high_watermark=4)
    pending = world.ask(4, max_wait_ms=WAIT_MS)
    world.timers.advance(1)
    assert not pending.done
    world.receive(0, 8)
    world.timers.advance(0)
    assert [each.offset for each in records_of(partitions_of(pending.value)[0])] == [4, 5, 6, 7]


def test_a_wait_ends_with_the_leadership(world: ClosestWorld) -> None:
    world.follow(high_watermark=4)
    pending = world.ask(4, max_wait_ms=WAIT_MS)
    world.host(0, leader=3, epoch=EPOCH + 1, partition_epoch=1, replicas=(1, 2, 3))
    world.timers.advance(0)
    assert partitions_of(pending.value)[0].error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_a_log_that_is_cut_now_gives_nothing_until_it_is_cut(world: ClosestWorld) -> None:
    world.follow(high_watermark=4)
    log = world.logs.get(world.partition.topic_partition)
    assert log is not None
    cut = log.begin_cut(
        6, is_full=False, now_ms=world.timers.now_ms(), then=world.partition.truncated
    )
    assert cut is not None
    pending = world.ask(0, max_wait_ms=WAIT_MS)
    assert not isinstance(pending, FetchResponse)
    cut.work()
    cut.end(None)
    world.timers.advance(WAIT_MS)
    assert len(records_of(partitions_of(pending.value)[0])) == 4


def test_an_offline_replica_gives_nothing(world: ClosestWorld) -> None:
    world.follow()
    world.partition.go_offline()
    assert world.read(0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
