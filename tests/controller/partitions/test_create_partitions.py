"""CreatePartitions: Kafka's own outcomes, and the partitions that a topic gets."""

from __future__ import annotations

import pytest

from kbroker.controller.partitions.create_partitions import CreatePartitionsTopic, create_partitions
from kbroker.ports import at_once
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.topics import CreatePartitionsRequest
from tests.controller.cluster import Cluster, topic
from tests.controller.decisions import (
    Case,
    compare,
    decision_context,
    expected_records,
    record_fields,
)


class Zero:
    """Kafka's generator in these cases: every draw is the first."""

    def randrange(self, stop: int, /) -> int:
        return 0


def wanted(name: str, count: int, assignments: list[list[int]] | None) -> CreatePartitionsTopic:
    kind = CreatePartitionsRequest.CreatePartitionsAssignment
    return CreatePartitionsTopic(
        name=name,
        count=count,
        assignments=None if assignments is None else [kind(broker_ids=ids) for ids in assignments],
    )


def test_kafkas_outcomes() -> None:
    """Kafka's records are in the file unless its placer chose the replicas."""

    def decide(case: Case) -> object:
        fields = case["request"]
        asked = wanted(fields["name"], fields["count"], fields["assignments"])
        request = CreatePartitionsRequest(topics=[asked])
        image = decision_context(case["state"]).image
        result = at_once(create_partitions(image, request, random=Zero()))
        (answer,) = result.response.results
        error = ErrorCode(answer.error_code).name
        if "records" not in case:
            present = len(case["state"]["partitions"])
            return error, len(result.records) == fields["count"] - present
        return error, record_fields(result.records)

    def expected(case: Case) -> object:
        return case["response"], expected_records(case) if "records" in case else True

    compare(
        "controller",
        250,
        decide,
        expected,
        select=lambda case: case["api"] == "CreatePartitions",
    )


def test_a_topic_grows() -> None:
    cluster = Cluster(brokers=(1, 2, 3))
    cluster.create(topic("t", 1, 2))
    request = CreatePartitionsRequest(topics=[wanted("t", 4, None), wanted("u", 4, None)])
    request.validate_only = True
    checked = at_once(cluster.controller.create_partitions(request))
    assert not checked.records
    request.validate_only = False
    response = cluster.run(cluster.controller.create_partitions(request))
    assert response == checked.response
    codes = [each.error_code for each in response.results]
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    partitions = cluster.image.topics["t"].partitions
    assert list(partitions) == [0, 1, 2, 3]
    assert {len(set(each.replicas)) for each in partitions.values()} == {2}
    assert all(each.leader == each.replicas[0] for each in partitions.values())


def test_a_topic_that_is_named_twice_does_not_grow() -> None:
    cluster = Cluster()
    cluster.create(topic("t", 1, 1), topic("u", 1, 1))
    asked = [wanted(name, count, None) for name, count in (("t", 2), ("u", 2), ("t", 3))]
    response = cluster.run(
        cluster.controller.create_partitions(CreatePartitionsRequest(topics=asked))
    )
    assert [(each.name, each.error_code) for each in response.results] == [
        ("t", ErrorCode.INVALID_REQUEST),
        ("u", ErrorCode.NONE),
    ]
    assert [len(cluster.image.topics[name].partitions) for name in "tu"] == [1, 2]


@pytest.mark.parametrize("counts", [[2_147_483_647], [5_001, 5_002]])
def test_too_many_partitions_are_refused_before_they_are_placed(counts: list[int]) -> None:
    cluster = Cluster()
    names = [f"t{number}" for number in range(len(counts))]
    cluster.create(*(topic(name, 1, 1) for name in names))
    asked = [wanted(name, count, None) for name, count in zip(names, counts, strict=True)]
    with pytest.raises(KafkaError) as refused:
        at_once(cluster.controller.create_partitions(CreatePartitionsRequest(topics=asked)))
    assert refused.value.code is ErrorCode.POLICY_VIOLATION


def test_new_partitions_are_charged_to_the_clients_quota() -> None:
    """Those that are refused for another reason are not; what the quota refuses has no message, as
    in Kafka.
    """
    cluster = Cluster()
    cluster.create(topic("a", 2), topic("b", 2))
    charged: list[int] = []

    def charge(partition_count: int) -> None:
        charged.append(partition_count)
        if len(charged) > 1:
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)

    request = CreatePartitionsRequest(
        topics=[wanted("a", 2, None), wanted("a2", 5, None), wanted("b", 5, None)]
    )
    request.topics.append(wanted("a3", 9, None))
    at_once(create_partitions(cluster.image, request, random=Zero(), charge=charge))
    assert charged == [3]
    again = CreatePartitionsRequest(topics=[wanted("a", 6, None)])
    result = at_once(create_partitions(cluster.image, again, random=Zero(), charge=charge))
    (refused,) = result.response.results
    assert (refused.error_code, refused.error_message) == (
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        None,
    )
    assert not result.records


def test_the_decision_is_made_in_steps() -> None:
    cluster = Cluster()
    cluster.create(topic("t", 1, 1))
    asked = [wanted("t", 1025, None), *(wanted(f"u{number}", 2, None) for number in range(1000))]
    decision = cluster.controller.create_partitions(CreatePartitionsRequest(topics=asked))
    assert len(list(decision)) == 3 + 3 + 3 + 8  # names three times, then the partitions


def test_a_list_of_replicas_longer_than_the_brokers_is_refused_unsorted() -> None:
    """Whichever brokers it names: one of the first ones is unknown, or is named twice."""
    cluster = Cluster(brokers=(1, 2))
    cluster.create(topic("t", 1, 2))
    asked = [wanted("t", 2, [[2, 3, 2, 9] * 1000 + [0]])]
    response = cluster.run(
        cluster.controller.create_partitions(CreatePartitionsRequest(topics=asked))
    )
    (result,) = response.results
    assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "the broker 2 more than once" in (result.error_message or "")
