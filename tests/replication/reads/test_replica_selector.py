"""The replica that a consumer reads from: as Kafka's RackAwareReplicaSelector and its
findPreferredReadReplica choose it.
"""

from __future__ import annotations

import pytest

from kbroker.replication.partition import Partition
from kbroker.replication.reads.replica_selector import ClosestReplica, RackAwareSelector
from tests.replication.test_partition import NOW_MS, NumberLog, partition

LISTENER = "PLAINTEXT"


class Racks:
    """`BrokerRacks`. unreachable: brokers without the listener, or fenced."""

    def __init__(self, racks: dict[int, str | None]) -> None:
        self.racks = racks
        self.unreachable: set[int] = set()

    def rack_of(self, broker_id: int, listener_name: str) -> str | None:
        assert listener_name == LISTENER
        return None if broker_id in self.unreachable else self.racks.get(broker_id)


def led(**followers: tuple[int, int, int]) -> Partition:
    """A partition that broker 1 leads up to offset 100. followers: `r2` and so on: log start, log
    end, when it was caught up last (before now).
    """
    log = NumberLog(end=100)
    made = partition((1, 2, 3, 4), isr=(1, 2, 3), log=log, high_watermark=50)
    for name, (start, end, lag_ms) in followers.items():
        remote = made.remotes[int(name[1:])]
        remote.log_start_offset, remote.log_end_offset = start, end
        remote.last_caught_up_ms = NOW_MS - lag_ms
    return made


def choice(made: Partition, racks: Racks, offset: int, rack: str = "b") -> int | None:
    return ClosestReplica(RackAwareSelector(racks), rack, LISTENER).of(made, offset, NOW_MS)


@pytest.fixture
def racks() -> Racks:
    return Racks({1: "a", 2: "b", 3: "b", 4: "b"})


def test_the_most_caught_up_replica_in_the_rack(racks: Racks) -> None:
    assert choice(led(r2=(0, 90, 0), r3=(0, 95, 500)), racks, 40) == 3
    assert choice(led(r2=(0, 95, 100), r3=(0, 95, 500)), racks, 40) == 2
    assert choice(led(r2=(0, 95, 100), r3=(0, 95, 100)), racks, 40) == 3


def test_the_leader_if_it_is_in_the_rack(racks: Racks) -> None:
    racks.racks[1] = "b"
    assert choice(led(r2=(0, 100, 0), r3=(0, 100, 0)), racks, 40) is None


def test_the_leader_for_a_rack_without_a_replica(racks: Racks) -> None:
    assert choice(led(r2=(0, 100, 0), r3=(0, 100, 0)), racks, 40, rack="c") is None


@pytest.mark.parametrize(
    ("offset", "chosen"),
    [
        pytest.param(9, None, id="before its start"),
        pytest.param(10, 2, id="its start"),
        pytest.param(90, 2, id="its end"),
        pytest.param(91, None, id="beyond its end"),
    ],
)
def test_only_a_replica_that_has_the_offset(racks: Racks, offset: int, chosen: int | None) -> None:
    racks.racks[3] = "c"
    assert choice(led(r2=(10, 90, 0), r3=(0, 100, 0)), racks, offset) == chosen


def test_only_members_of_the_isr(racks: Racks) -> None:
    racks.racks[2] = racks.racks[3] = "c"
    assert choice(led(r4=(0, 100, 0)), racks, 40) is None


def test_only_brokers_that_the_client_can_reach(racks: Racks) -> None:
    racks.unreachable = {3}
    made = led(r2=(0, 90, 0), r3=(0, 95, 0))
    assert choice(made, racks, 40) == 2
    racks.unreachable = {2, 3}
    assert choice(made, racks, 40) is None


def test_a_follower_that_has_not_fetched_is_not_chosen(racks: Racks) -> None:
    assert choice(led(), racks, 0) is None


def test_a_broker_that_does_not_lead_chooses_none(racks: Racks) -> None:
    made = led(r2=(0, 100, 0), r3=(0, 100, 0))
    made.become_follower(
        leader=2, leader_epoch=6, partition_epoch=1, replicas=(1, 2, 3, 4), isr=(1, 2, 3)
    )
    assert choice(made, racks, 40) is None
