"""The benchmark of controllers: how it divides its topics, and its figures."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from benchmarks.controllers import (
    MEASURED_CREATE_REQUESTS,
    PARTITIONS_PER_REQUEST,
    Failover,
    _controllers,
    creation_figures,
    failover_figures,
    in_turn,
    peak_bytes,
    topic_requests,
)
from benchmarks.side_by_side import ROOT, checkout
from benchmarks.single_node import single_servers


@pytest.mark.parametrize(
    ("partitions", "requests", "topics"),
    [
        pytest.param(9_000, 9, 90, id="whole-requests"),
        pytest.param(1_050, 2, 11, id="the-rest"),
        pytest.param(7, 1, 1, id="one-small-topic"),
        pytest.param(0, 0, 0, id="none"),
    ],
)
def test_topics_have_so_many_partitions_together(
    partitions: int, requests: int, topics: int
) -> None:
    made = list(topic_requests("t", partitions))
    names = [name for request in made for name in request]
    assert len(made) == requests
    assert len(set(names)) == len(names) == topics
    assert sum(sum(request.values()) for request in made) == partitions
    assert all(sum(request.values()) <= PARTITIONS_PER_REQUEST for request in made)


def test_the_kills_of_a_run_have_a_median_and_a_longest() -> None:
    kills = [Failover(2.75, 3.0), Failover(0.5, 1.0), Failover(2.375, 2.5)]
    assert failover_figures(kills) == {
        "median_s": 2.5,
        "longest_s": 3.0,
        "after_election_s": 0.25,
    }


def test_the_first_request_and_the_last_ones_count() -> None:
    assert MEASURED_CREATE_REQUESTS == 2
    seconds = [9.0, 7.0, 3.0, 5.0]
    first, last = creation_figures([{"response_s": each, "all_cpu_s": 1.0} for each in seconds])
    assert first == {"response_s": 9.0, "all_cpu_s": 1.0}
    assert last == {"response_s": 4.0, "all_cpu_s": 1.0}


def test_the_first_one_changes_with_each_run() -> None:
    orders = [in_turn(("kbroker", "kafka"), run) for run in range(3)]
    assert orders == [["kbroker", "kafka"], ["kafka", "kbroker"], ["kbroker", "kafka"]]


def test_the_peak_is_no_less_than_what_is_resident() -> None:
    assert peak_bytes(os.getpid()) > 10_000_000


def test_single_nodes_are_those_of_the_servers_and_of_the_sources_before(tmp_path: Path) -> None:
    assert list(single_servers(["kbroker", "kafka"], None)) == ["kbroker", "kafka"]
    assert list(single_servers(["kbroker", "kafka"], tmp_path)) == ["kbroker", "kafka", "before"]
    assert list(single_servers(["kafka"], tmp_path)) == ["kafka"]


def test_a_folder_without_sources_is_nothing_to_compare_with(tmp_path: Path) -> None:
    assert checkout(str(ROOT)) == ROOT
    with pytest.raises(argparse.ArgumentTypeError, match="no folder with a checkout"):
        checkout(str(tmp_path))


def test_all_controllers_know_the_same_voters() -> None:
    ports, properties = _controllers()
    assert len(set(ports.values())) == 3
    (voters,) = {each["controller.quorum.voters"] for each in properties.values()}
    assert voters == ",".join(f"{node}@127.0.0.1:{port}" for node, port in ports.items())
    for node, each in properties.items():
        assert each["listeners"] == f"CONTROLLER://127.0.0.1:{ports[node]}"
        assert each["node.id"] == str(node)
