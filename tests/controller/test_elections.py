"""Elections at a client's request and periodic ones: Kafka's own, and their bounds."""

from __future__ import annotations

import pytest

from kbroker.controller.elections import balance_leaders, elect_leaders, elect_unclean_leaders
from kbroker.controller.result import at_once
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
