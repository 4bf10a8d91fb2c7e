"""The benchmark of replication: its properties, its waits, and its figures."""

from __future__ import annotations

import time

import pytest

from benchmarks.leader_kill import Arrivals, Gaps, gap_figures, leaders_in, longest_gap
from benchmarks.replica_nodes import (
    DEFAULT_TIMEOUTS,
    TIMEOUTS,
    is_in_sync,
    is_listed,
    listener_ports,
    node_properties,
)
from benchmarks.replication import GOALS, LOADS
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.settings.broker import BrokerConfig

Topic = MetadataResponse.MetadataResponseTopic
Partition = MetadataResponse.MetadataResponsePartition


def metadata(*isrs: tuple[int, ...], brokers: tuple[int, ...] = ()) -> MetadataResponse:
    """A topic with three replicas of each partition, whose leader is the first of the ISR."""
    partitions = [
        Partition(
            partition_index=index, leader_id=isr[0], replica_nodes=[1, 2, 3], isr_nodes=list(isr)
        )
        for index, isr in enumerate(isrs)
    ]
    return MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(node_id=node, host="h", port=1)
            for node in brokers
        ],
        topics=[Topic(name="t", partitions=partitions)],
    )


@pytest.mark.parametrize("timeouts", TIMEOUTS)
def test_nodes_differ_in_id_and_ports_only(timeouts: str) -> None:
    properties = node_properties(timeouts)
    own = {node: {"node.id", "listeners"} for node in properties}
    common = [
        {name: value for name, value in each.items() if name not in own[node]}
        for node, each in properties.items()
    ]
    assert common[0] == common[1] == common[2]
    ports = [port for each in properties.values() for port in listener_ports(each)]
    assert len(set(ports)) == 6
    voters = common[0]["controller.quorum.voters"].split(",")
    assert voters == [f"{node}@127.0.0.1:{ports[2 * node - 1]}" for node in properties]


def test_the_default_timeouts_are_the_defaults() -> None:
    config = BrokerConfig.from_properties({"log.dirs": "/nowhere"})
    expected = TIMEOUTS[DEFAULT_TIMEOUTS]
    assert {name: config.default_text(name) for name in expected} == expected
    assert all(each.keys() == TIMEOUTS[DEFAULT_TIMEOUTS].keys() for each in TIMEOUTS.values())


@pytest.mark.parametrize(
    ("isrs", "expected"),
    [
        pytest.param(((1, 2, 3), (2, 3, 1)), True, id="all"),
        pytest.param(((1, 2, 3), (2, 3)), False, id="one-lacks"),
        pytest.param((), True, id="no-partitions"),
    ],
)
def test_every_partition_is_in_sync_or_not(
    isrs: tuple[tuple[int, ...], ...], expected: bool
) -> None:
    assert is_in_sync(metadata(*isrs)) is expected


def test_a_broker_is_listed_and_leaders_are_told() -> None:
    found = metadata((2, 3), (3, 2), brokers=(2, 3))
    assert [node for node in (1, 2, 3) if is_listed(found, node)] == [2, 3]
    assert leaders_in(found) == {0: 2, 1: 3}


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        pytest.param([0.0, 5.0, 5.5, 8.5, 9.0], 3.0, id="a-gap-before-does-not-count"),
        pytest.param([5.0, 5.5, 10.5, 10.75], 5.0, id="it-begins-before-the-kill"),
        pytest.param([6.5, 7.0, 8.5], 1.5, id="only-after"),
    ],
)
def test_the_longest_gap_around_a_kill(times: list[float], expected: float) -> None:
    assert longest_gap(times, since=6.0) == expected


def test_without_records_after_the_kill_there_is_no_gap() -> None:
    with pytest.raises(ValueError):
        longest_gap([1.0, 2.0], since=6.0)


def test_the_kills_of_a_run_have_medians_and_longest_gaps() -> None:
    kills = [Gaps(7.0, 8.0, 9.0), Gaps(5.0, 9.5, 8.5), Gaps(6.0, 7.0, 8.0)]
    assert gap_figures(kills) == {
        "elected_s_median": 6.0,
        "producer_s_median": 8.0,
        "consumer_s_median": 8.5,
        "producer_s_longest": 9.5,
        "consumer_s_longest": 9.0,
    }


def test_an_arrival_says_when_its_record_was_sent() -> None:
    arrivals, before = Arrivals(), time.monotonic()
    arrivals.add(b"12.5")
    assert arrivals.sent_until == 12.5
    assert before <= arrivals.times[0] <= time.monotonic()


def test_the_goals_are_of_figures_that_there_are() -> None:
    figures = gap_figures([Gaps(1.0, 1.0, 1.0)])
    gaps = {name for load, name in GOALS if "killed" in load}
    assert gaps < figures.keys()
    assert {load for load, name in GOALS if name == "cpu_s_per_gb"} == {
        f"{work} {load}" for work in ("produce", "consume") for load in LOADS
    }
