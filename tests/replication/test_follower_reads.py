"""Fetches of followers at the leader: epochs of their brokers, sessions that cost nothing while
nothing happens, and when a follower was caught up.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.replication.leaders.isr import IsrPorts
from kbroker.replication.partition import Partition
from kbroker.replication.reads.fetch_session import FetchSession
from tests.replication.proposals import Brokers, Proposals
from tests.replication.world import TOPIC, TOPIC_ID, World, fetch_request, partitions_of

VERSION = 17
EPOCH = 30
LAG_MS = 1_000
WAIT_MS = 400


@pytest.fixture
def brokers() -> Brokers:
    return Brokers({1: 10, 2: EPOCH, 3: 50})


@pytest.fixture
def proposals() -> Proposals:
    return Proposals()


@pytest.fixture
def led(make_world: Callable[..., World], brokers: Brokers, proposals: Proposals) -> World:
    """Three partitions with followers 2, in sync, and one record each."""
    world = make_world(
        partitions=0,
        isr_ports=IsrPorts(brokers, proposals),
        replica_lag_time_max_ms=str(LAG_MS),
    )
    for index in range(3):
        world.host(index, replicas=(1, 2))
        world.append(index)
    return world


def follower_request(
    offsets: dict[int, int], session: tuple[int, int] = (0, 0), *, epoch: int = EPOCH
) -> FetchRequest:
    request = fetch_request(
        offsets, topic_id=TOPIC_ID, max_wait_ms=WAIT_MS, session=session, current_leader_epoch=0
    )
    request.replica_state = FetchRequest.ReplicaState(replica_id=2, replica_epoch=epoch)
    return request


def partition_of(world: World) -> Partition:
    """Partition 0."""
    found = world.replicas.partition(TopicPartition(TOPIC, 0))
    assert found is not None
    return found


class FollowerSide:
    """The session of follower 2 with the leader."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.id = 0
        self.epoch = 0

    def fetch(self, offsets: dict[int, int] | None = None) -> FetchResponse:
        """Fetch, naming only these partitions; waits if there is nothing."""
        request = follower_request(offsets or {}, (self.id, self.epoch))
        response = self.world.fetch_now(request, version=VERSION)
        assert not response.error_code
        self.id = response.session_id
        self.epoch += 1
        return response

    @property
    def session(self) -> FetchSession:
        found = self.world.replicas.sessions.get(self.id)
        assert found is not None
        return found


def settled(world: World) -> FollowerSide:
    """A follower that has everything and knows the high watermarks."""
    follower = FollowerSide(world)
    follower.fetch(dict.fromkeys(range(3), 0))
    follower.fetch(dict.fromkeys(range(3), 1))
    for _ in range(2):
        follower.fetch()
    return follower


def test_a_follower_at_the_end_costs_nothing_per_partition(led: World) -> None:
    follower = settled(led)
    assert not follower.session.dirty
    assert not follower.fetch().responses
    led.append(1)
    assert [partition.index for partition in follower.session.dirty] == [1]
    assert list(partitions_of(follower.fetch())) == [1]


def test_it_learns_the_high_watermark_first(led: World) -> None:
    follower = FollowerSide(led)
    follower.fetch(dict.fromkeys(range(3), 0))
    data = partitions_of(follower.fetch(dict.fromkeys(range(3), 1)))
    assert [each.high_watermark for each in data.values()] == [1, 1, 1]
    assert len(follower.session.dirty) == 3
    assert not follower.fetch().responses
    assert not follower.session.dirty


def test_an_idle_follower_is_caught_up_as_of_its_last_fetch(
    led: World, proposals: Proposals
) -> None:
    """Nothing of its partitions was read for a long time, and yet it does not lag."""
    follower = settled(led)
    for _ in range(10):
        follower.fetch()
    partition = partition_of(led)
    assert led.timers.monotonic_ms() - partition.remotes[2].last_caught_up_ms > LAG_MS
    led.append(0)
    partition.shrink_isr(led.timers.monotonic_ms())
    assert not proposals.sent
    led.timers.advance(LAG_MS + 1)
    partition.shrink_isr(led.timers.monotonic_ms())
    assert [each.isr for each in proposals.sent] == [((1, -1),)]


def test_a_fetch_that_waits_counts_when_it_comes(led: World) -> None:
    """As in Kafka, and not again when it is answered: the follower has had no more since."""
    follower = settled(led)
    came_ms = led.timers.monotonic_ms()
    request = follower_request({0: 1}, (follower.id, follower.epoch))
    pending = led.replicas.fetch(request, api_version=VERSION, now_ms=came_ms)
    assert isinstance(pending, Deferred)
    led.timers.advance(WAIT_MS // 2)
    led.append(0)
    led.timers.advance(0)
    assert list(partitions_of(pending.value)) == [0]
    remote = partition_of(led).remotes[2]
    assert (remote.last_fetch_ms, remote.last_fetch_leader_end) == (came_ms, 1)
    follower.epoch += 1
    led.append(0)
    follower.fetch({0: 2})
    assert remote.last_caught_up_ms == came_ms


def test_a_follower_outside_the_isr_is_looked_at_with_each_fetch(
    led: World, brokers: Brokers, proposals: Proposals
) -> None:
    """It may join as soon as it is unfenced."""
    for index in range(3):
        led.host(index, replicas=(1, 2), isr=(1,), partition_epoch=1)
    del brokers.epochs[2]
    follower = settled(led)
    assert len(follower.session.dirty) == 3
    brokers.epochs[2] = EPOCH
    follower.fetch()
    assert [each.isr for each in proposals.sent] == [((1, -1), (2, EPOCH))] * 3


def test_who_leaves_the_isr_is_looked_at_again(led: World) -> None:
    follower = settled(led)
    led.host(2, replicas=(1, 2), isr=(1,), partition_epoch=1)
    assert [partition.index for partition in follower.session.dirty] == [2]


def test_a_fetch_of_an_earlier_life_does_not_count(led: World) -> None:
    request = follower_request({0: 1}, (0, -1), epoch=EPOCH - 1)
    data = partitions_of(led.fetch_now(request, version=VERSION))[0]
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition_of(led).remotes[2].log_end_offset == -1
