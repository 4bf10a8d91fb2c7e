"""The benchmark of controllers: how it divides its topics, and its figures."""

from __future__ import annotations

import pytest

from benchmarks.controllers import (
    PARTITIONS_PER_REQUEST,
    _controllers,
    failover_figures,
    topic_requests,
)


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
    assert failover_figures([3.0, 1.0, 2.5]) == {"median_s": 2.5, "longest_s": 3.0}


def test_all_controllers_know_the_same_voters() -> None:
    ports, properties = _controllers()
    assert len(set(ports.values())) == 3
    (voters,) = {each["controller.quorum.voters"] for each in properties.values()}
    assert voters == ",".join(f"{node}@127.0.0.1:{port}" for node, port in ports.items())
    for node, each in properties.items():
        assert each["listeners"] == f"CONTROLLER://127.0.0.1:{ports[node]}"
        assert each["node.id"] == str(node)
