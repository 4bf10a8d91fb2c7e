"""Topologies upon a cluster's topics: task counts, internal topics, what does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.coordinator.group.streams.status import StreamsStatus
from kbroker.coordinator.group.streams.topology import (
    ConfiguredTopology,
    configure,
    required_topics,
    same_topology,
    topology_of,
)
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.streams_groups import StreamsGroupHeartbeatRequest
from tests.coordinator.simulation import FakeTopics

_Sub = StreamsGroupHeartbeatRequest.Subtopology
_Topic = StreamsGroupHeartbeatRequest.TopicInfo
_Copartition = StreamsGroupHeartbeatRequest.CopartitionGroup


def told(*subtopologies: _Sub, epoch: int = 0) -> StreamsGroupHeartbeatRequest.Topology:
    return StreamsGroupHeartbeatRequest.Topology(epoch=epoch, subtopologies=list(subtopologies))


def sub(number: int, **fields: Any) -> _Sub:
    """repartitions: name -> partitions of repartition topics it reads; logs: its changelogs."""
    repartitions = fields.pop("repartitions", {})
    logs = fields.pop("logs", [])
    return _Sub(
        subtopology_id=str(number),
        repartition_source_topics=[
            _Topic(name=name, partitions=count) for name, count in repartitions.items()
        ],
        state_changelog_topics=[_Topic(name=name) for name in logs],
        **fields,
    )


def configured(*subtopologies: _Sub, **topic_counts: int) -> ConfiguredTopology:
    topics = FakeTopics()
    for name, count in topic_counts.items():
        topics.add(name.replace("_", "-"), count)
    return configure(topology_of(told(*subtopologies)), topics.topics)


def counts(found: ConfiguredTopology) -> dict[str, int]:
    """Partitions of what is to be created."""
    return {topic.name: topic.num_partitions for topic in found.missing}


CHAIN = (
    sub(0, source_topics=["a", "b"], repartition_sink_topics=["r1"]),
    sub(1, repartitions={"r1": 0}, logs=["l1"], repartition_sink_topics=["r2"]),
    sub(2, repartitions={"r2": 0}, source_topics=["c"], logs=["l2"]),
)


def test_partitions_pass_down_the_chain() -> None:
    found = configured(*CHAIN, a=2, b=4, c=3)
    assert found.problem is not None and found.problem[0] is StreamsStatus.MISSING_INTERNAL_TOPICS
    assert counts(found) == {"r1": 4, "l1": 4, "r2": 4, "l2": 4}
    ready = configured(*CHAIN, a=2, b=4, c=3, r1=4, l1=4, r2=4, l2=4)
    assert ready.is_ready and not ready.missing
    assert {name: one.task_count for name, one in ready.subtopologies.items()} == {
        "0": 4,
        "1": 4,
        "2": 4,
    }
    assert [name for name, one in ready.subtopologies.items() if one.is_stateful] == ["1", "2"]
    assert ready.subtopologies["2"].inputs == {"c", "r2"}


def test_a_chain_in_any_order() -> None:
    """Also one of thousands that is told from its end."""
    length = 3_000
    chain = [sub(0, source_topics=["a"], repartition_sink_topics=["r0"])]
    for number in range(1, length):
        name, sink = f"r{number - 1}", f"r{number}"
        chain.append(sub(number, repartitions={name: 0}, repartition_sink_topics=[sink]))
    for one in chain:
        one.subtopology_id = f"{length - int(one.subtopology_id):06}"
    assert set(counts(configured(*reversed(chain), a=2)).values()) == {2}


def test_too_many_tasks() -> None:
    many = [sub(number, source_topics=["a"]) for number in range(11)]
    assert configured(*many[:10], a=10_000).is_ready
    with pytest.raises(KafkaError) as raised:
        configured(*many, a=10_000)
    assert raised.value.code is ErrorCode.STREAMS_INVALID_TOPOLOGY


def test_an_application_chooses_partitions() -> None:
    found = configured(
        sub(0, source_topics=["a"], repartition_sink_topics=["r"]),
        sub(1, repartitions={"r": 7}, logs=["l"]),
        a=2,
    )
    assert counts(found) == {"r": 7, "l": 7}


def test_what_is_missing_and_what_does_not_fit() -> None:
    missing = configured(*CHAIN, c=3)
    assert missing.problem == (
        StreamsStatus.MISSING_SOURCE_TOPICS,
        "Source topics a, b are missing.",
    )
    assert not missing.subtopologies and not missing.missing
    grown = configured(*CHAIN, a=2, b=8, c=3, r1=4, l1=4, r2=4, l2=4)
    assert grown.problem == (
        StreamsStatus.INCORRECTLY_PARTITIONED_TOPICS,
        "Existing topic r1 has different number of partitions: expected 8, found 4",
    )
    many = configured(sub(0, source_topics=["e", "f", "g", "h", "i"]))
    assert many.problem is not None
    assert many.problem[1] == "Source topics e, f, g and 2 additional topics are missing."


def test_joined_topics_have_the_same_number_of_partitions() -> None:
    joined = sub(
        1,
        source_topics=["b"],
        repartitions={"r": 0},
        copartition_groups=[_Copartition(source_topics=[0], repartition_source_topics=[0])],
    )
    writer = sub(0, source_topics=["a"], repartition_sink_topics=["r"])
    assert counts(configured(writer, joined, a=2, b=5)) == {"r": 5}
    both = sub(0, source_topics=["a", "b"], copartition_groups=[_Copartition(source_topics=[0, 1])])
    assert configured(both, a=3, b=3).is_ready
    unequal = configured(both, a=3, b=4).problem
    assert unequal is not None and unequal[0] is StreamsStatus.INCORRECTLY_PARTITIONED_TOPICS
    fixed = sub(
        1,
        source_topics=["b"],
        repartitions={"r": 4},
        copartition_groups=[_Copartition(source_topics=[0], repartition_source_topics=[0])],
    )
    wrong = configured(writer, fixed, a=2, b=5).problem
    assert wrong is not None and "[4] of repartition topic [r]" in wrong[1]


def test_joined_repartition_topics_take_the_largest_or_the_chosen_number() -> None:
    writers = (
        sub(0, source_topics=["a"], repartition_sink_topics=["r"]),
        sub(1, source_topics=["b"], repartition_sink_topics=["s"]),
    )
    group = [_Copartition(repartition_source_topics=[0, 1])]
    free = sub(2, repartitions={"r": 0, "s": 0}, copartition_groups=group)
    assert counts(configured(*writers, free, a=2, b=5)) == {"r": 5, "s": 5}
    chosen = sub(2, repartitions={"r": 3, "s": 0}, copartition_groups=group)
    assert counts(configured(*writers, chosen, a=2, b=5)) == {"r": 3, "s": 3}
    torn = sub(2, repartitions={"r": 3, "s": 4}, copartition_groups=group)
    problem = configured(*writers, torn, a=2, b=5).problem
    assert problem is not None and problem[0] is StreamsStatus.INCORRECTLY_PARTITIONED_TOPICS


@pytest.mark.parametrize(
    "subtopologies",
    [
        [sub(0, source_topics=["a"]), sub(0, source_topics=["a"])],
        [sub(0)],
        [sub(0, source_topics=[""])],
        [sub(0, source_topics=["a/b"])],
        [sub(0, source_topics=["__transaction_state"])],
        [sub(0, source_topics=["a"], repartition_sink_topics=["."])],
        [sub(0, source_topics=["a"], repartitions={"r": -1})],
        [
            sub(0, repartitions={"r": 0}, repartition_sink_topics=["s"]),
            sub(1, repartitions={"s": 0}, repartition_sink_topics=["r"]),
        ],
        [sub(0, source_topics=["a"], repartitions={"r": 0})],
        [sub(0, source_topics=["a"], copartition_groups=[_Copartition(source_topics=[1])])],
        [sub(0, source_topics=["a"], copartition_groups=[_Copartition(source_topics=[-1])])],
        [
            sub(
                0,
                source_topics=["a"],
                copartition_groups=[_Copartition(repartition_source_topics=[0])],
            )
        ],
    ],
    ids=lambda subtopologies: str(subtopologies)[:60],
)
def test_no_topology(subtopologies: list[_Sub]) -> None:
    with pytest.raises(KafkaError) as raised:
        configured(*subtopologies, a=1)
    assert raised.value.code is ErrorCode.STREAMS_INVALID_TOPOLOGY


def test_the_order_of_subtopologies_says_nothing() -> None:
    one, other = topology_of(told(*CHAIN)), topology_of(told(*reversed(CHAIN)))
    assert same_topology(one, other)
    assert not same_topology(one, topology_of(told(*CHAIN, epoch=1)))
    assert not same_topology(one, topology_of(told(*CHAIN[:2])))
    assert required_topics(one) == {"a", "b", "c", "r1", "r2", "l1", "l2"}
