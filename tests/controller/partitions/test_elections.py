"""Elections at a client's request and periodic ones: Kafka's own, and their bounds."""

from __future__ import annotations

import pytest

from kbroker.controller import result as result_module
from kbroker.controller.partitions.elections import (
    balance_leaders,
    elect_leaders,
    elect_unclean_leaders,
)
from kbroker.controller.result import TOO_MANY_RECORDS
from kbroker.ports import at_once
from kbroker.protocol.codecs.codec import encode
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import ElectLeadersRequest, ElectLeadersResponse
from tests.controller.cluster import Cluster, topic
from tests.controller.decisions import (
    Case,
    compare,
    decision_context,
    expected_records,
    record_fields,
)


def results(response: ElectLeadersResponse) -> list[list[object]]:
    return [
        [topic.topic, each.partition_id, ErrorCode(each.error_code).name]
        for topic in response.replica_election_results
        for each in topic.partition_result
    ]


def test_kafkas_elections() -> None:
    def decide(case: Case) -> object:
        fields = case["request"]
        request = ElectLeadersRequest(election_type=fields["electionType"], topic_partitions=None)
        if (asked := fields["topicPartitions"]) is not None:
            request.topic_partitions = [
                ElectLeadersRequest.TopicPartitions(
                    topic=asked["topic"], partitions=asked["partitions"]
                )
            ]
        result = at_once(elect_leaders(decision_context(case["state"]), request))
        return results(result.response), record_fields(result.records)

    compare(
        "controller",
        500,
        decide,
        lambda case: (case["response"], expected_records(case)),
        select=lambda case: case["api"] == "ElectLeaders",
    )


def test_kafkas_preferred_leaders_in_turn() -> None:
    compare(
        "controller",
        150,
        lambda case: record_fields(
            at_once(balance_leaders(decision_context(case["state"]))).records
        ),
        expected_records,
        select=lambda case: case["api"] == "balance",
    )


def test_kafkas_periodic_unclean_elections() -> None:
    compare(
        "controller",
        150,
        lambda case: record_fields(
            at_once(elect_unclean_leaders(decision_context(case["state"]))).records
        ),
        expected_records,
        select=lambda case: case["api"] == "periodicUnclean",
    )


def test_an_unknown_type_of_election() -> None:
    request = ElectLeadersRequest(election_type=2, topic_partitions=None)
    with pytest.raises(KafkaError, match="Unknown election type 2") as caught:
        at_once(Cluster().controller.elect_leaders(request))
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_a_periodic_election_has_a_bound_and_says_that_there_is_more() -> None:
    cluster = Cluster(brokers=(1, 2))
    cluster.create(topic("t", assignments=[[1, 2]] * 5))
    cluster.beat(1, fence=True)
    cluster.beat(1)
    assert not at_once(cluster.controller.balance_leaders()).records  # not in sync yet
    cluster.rejoin("t", 1)
    rounds = []
    for _ in range(3):
        result = at_once(cluster.controller.balance_leaders(max_elections=2))
        cluster.run(result)
        rounds.append((len(result.records), result.response))
    assert rounds == [(2, True), (2, True), (1, False)]
    assert all(each.leader == 1 for each in cluster.image.topics["t"].partitions.values())


def led_by_the_second(partitions: int) -> Cluster:
    """A cluster whose topic t has only partitions that broker 1 should lead, and broker 2 does."""
    cluster = Cluster(brokers=(1, 2))
    cluster.create(topic("t", assignments=[[1, 2]] * partitions))
    cluster.beat(1, fence=True)
    cluster.beat(1)
    cluster.rejoin("t", 1)
    return cluster


def test_a_partition_that_is_named_again_is_elected_and_answered_once() -> None:
    cluster = led_by_the_second(2)
    named = ElectLeadersRequest.TopicPartitions
    request = ElectLeadersRequest(
        topic_partitions=[
            named(topic="t", partitions=[1, 1, -1, 7]),
            named(topic="t", partitions=[1, 0, -1]),
            named(topic="none", partitions=[]),
        ]
    )
    result = at_once(cluster.controller.elect_leaders(request))
    assert results(result.response) == [
        ["t", 1, "NONE"],
        ["t", -1, "UNKNOWN_TOPIC_OR_PARTITION"],
        ["t", 7, "UNKNOWN_TOPIC_OR_PARTITION"],
        ["t", 0, "NONE"],
    ]
    assert [each.topic for each in result.response.replica_election_results][2] == "none"
    assert len(result.records) == 2
    before = {i: each.leader_epoch for i, each in cluster.image.topics["t"].partitions.items()}
    cluster.run(result)
    for index, partition in cluster.image.topics["t"].partitions.items():
        assert (partition.leader, partition.leader_epoch) == (1, before[index] + 1)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_topic_name_as_long_as_a_string_may_be_is_answered(version: int) -> None:
    """The message repeats the name, and a string before v2 has at most 32,767 bytes."""
    name = "t" * 32_767
    named = ElectLeadersRequest.TopicPartitions(topic=name, partitions=[0])
    decision = led_by_the_second(1).controller.elect_leaders(
        ElectLeadersRequest(topic_partitions=[named])
    )
    response = at_once(decision).response
    assert results(response) == [[name, 0, "UNKNOWN_TOPIC_OR_PARTITION"]]
    assert len(encode(response, version)) > len(name)


def test_an_election_pauses_whatever_it_is_asked() -> None:
    """Few partitions, none of them, topics without any, all there are: 16 items in each step."""
    cluster = led_by_the_second(200)
    named = ElectLeadersRequest.TopicPartitions
    for asked, steps in (
        ([named(topic="t", partitions=[0] * 1000)], 62),
        ([named(topic="none", partitions=list(range(1000)))], 62),
        ([named(topic="none", partitions=[])] * 1000, 62),
        (None, 24),
    ):
        decision = cluster.controller.elect_leaders(ElectLeadersRequest(topic_partitions=asked))
        assert len(list(decision)) == steps


def test_more_elections_than_one_request_may_write_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = led_by_the_second(3)
    monkeypatch.setattr(result_module, "MAX_RECORDS_PER_OPERATION", 2)
    with pytest.raises(KafkaError, match=TOO_MANY_RECORDS) as caught:
        at_once(cluster.controller.elect_leaders(ElectLeadersRequest(topic_partitions=None)))
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
