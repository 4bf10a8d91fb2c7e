"""AlterPartitionReassignments and ListPartitionReassignments: Kafka's own outcomes, and a
reassignment from its start to its end.
"""

from __future__ import annotations

import pytest

from kbroker.controller import result as result_module
from kbroker.controller.partitions.reassignments import alter_reassignments
from kbroker.ports import at_once
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from tests.controller.cluster import Cluster, topic
from tests.controller.decisions import (
    Case,
    compare,
    decision_context,
    expected_records,
    record_fields,
)

Partition = AlterPartitionReassignmentsRequest.ReassignablePartition


def request(
    name: str, *partitions: Partition, resize: bool = True
) -> AlterPartitionReassignmentsRequest:
    asked = AlterPartitionReassignmentsRequest.ReassignableTopic(
        name=name, partitions=list(partitions)
    )
    return AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=resize, topics=[asked]
    )


def test_kafkas_reassignments() -> None:
    def decide(case: Case) -> object:
        fields = case["request"]
        wanted = Partition(partition_index=fields["partitionIndex"], replicas=fields["replicas"])
        asked = request(fields["topic"], wanted, resize=fields["allowReplicationFactorChange"])
        result = at_once(alter_reassignments(decision_context(case["state"]), asked))
        (answered,) = result.response.responses
        (answer,) = answered.partitions
        assert result.response.error_code == 0
        return ErrorCode(answer.error_code).name, record_fields(result.records)

    compare(
        "controller",
        700,
        decide,
        lambda case: (case["response"], expected_records(case)),
        select=lambda case: case["api"] == "AlterPartitionReassignments",
    )


def listed(response: ListPartitionReassignmentsResponse) -> dict[str, list[tuple[object, ...]]]:
    return {
        topic.name: [
            (each.partition_index, each.replicas, each.adding_replicas, each.removing_replicas)
            for each in topic.partitions
        ]
        for topic in response.topics
    }


def asked_for(*topics: tuple[str, list[int]]) -> ListPartitionReassignmentsRequest:
    kind = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
    return ListPartitionReassignmentsRequest(
        topics=[kind(name=name, partition_indexes=indexes) for name, indexes in topics]
    )


def test_a_reassignment_from_its_start_to_its_end() -> None:
    cluster = Cluster(brokers=(1, 2, 3))
    cluster.create(topic("t", assignments=[[1, 2], [2, 1]]), topic("u", assignments=[[1]]))
    everything = ListPartitionReassignmentsRequest(topics=None)
    assert listed(cluster.run(cluster.controller.list_reassignments(everything))) == {}
    moved = Partition(partition_index=1, replicas=[3, 1])
    gone = Partition(partition_index=5, replicas=[3, 1])
    response = cluster.run(cluster.controller.alter_reassignments(request("t", moved, gone)))
    errors = [each.error_code for each in response.responses[0].partitions]
    assert errors == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    under_way = {"t": [(1, [3, 1, 2], [3], [2])]}
    assert listed(cluster.run(cluster.controller.list_reassignments(everything))) == under_way
    some = asked_for(("t", [0, 1, 9]), ("u", [0]), ("no such topic", [0]))
    assert listed(cluster.run(cluster.controller.list_reassignments(some))) == under_way
    cluster.propose_isr("t", 1, [2, 1, 3])
    partition = cluster.image.topics["t"].partitions[1]
    assert (partition.replicas, partition.isr, partition.leader) == ((3, 1), (1, 3), 3)
    assert listed(cluster.run(cluster.controller.list_reassignments(everything))) == {}


def test_a_reassignment_is_cancelled() -> None:
    cluster = Cluster(brokers=(1, 2, 3))
    cluster.create(topic("t", assignments=[[1, 2]]))
    before = cluster.image.topics["t"].partitions[0]
    start = request("t", Partition(partition_index=0, replicas=[3, 1]))
    cluster.run(cluster.controller.alter_reassignments(start))
    cancel = request("t", Partition(partition_index=0, replicas=None))
    cluster.run(cluster.controller.alter_reassignments(cancel))
    after = cluster.image.topics["t"].partitions[0]
    assert (set(after.replicas), after.isr) == (set(before.replicas), before.isr)
    assert not after.is_reassigning


def test_the_messages_are_kafkas() -> None:
    """Kafka leaves out a message that is the code's own."""
    cluster = Cluster(brokers=(1, 2))
    cluster.create(topic("t", assignments=[[1]]))
    asked = request(
        "t",
        Partition(partition_index=0, replicas=None),
        Partition(partition_index=1, replicas=[1]),
        Partition(partition_index=0, replicas=[2]),
    )
    asked.topics += request("u", Partition(partition_index=0, replicas=[9])).topics
    answer = cluster.run(cluster.controller.alter_reassignments(asked))
    assert [
        [(ErrorCode(each.error_code).name, each.error_message) for each in topic.partitions]
        for topic in answer.responses
    ] == [
        [
            ("NO_REASSIGNMENT_IN_PROGRESS", None),
            ("UNKNOWN_TOPIC_OR_PARTITION", "Unable to find partition t:1."),
            ("INVALID_REQUEST", "Duplicate partition."),
        ],
        [("UNKNOWN_TOPIC_OR_PARTITION", "Unable to find a topic named u.")],
    ]
    unknown = request("t", Partition(partition_index=0, replicas=[1, 9]))
    answer = cluster.run(cluster.controller.alter_reassignments(unknown))
    (refused,) = answer.responses[0].partitions
    assert (refused.error_code, refused.error_message) == (
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "The manual partition assignment includes broker 9, but no such broker is registered.",
    )


def test_a_partition_that_is_named_again_keeps_its_first_reassignment() -> None:
    cluster = Cluster(brokers=(1, 2, 3))
    cluster.create(topic("t", assignments=[[1]]))
    wanted = [Partition(partition_index=0, replicas=[each]) for each in (2, 3)]
    cluster.run(cluster.controller.alter_reassignments(request("t", *wanted)))
    everything = ListPartitionReassignmentsRequest(topics=None)
    under_way = {"t": [(0, [2, 1], [2], [1])]}
    assert listed(cluster.run(cluster.controller.list_reassignments(everything))) == under_way
    again = asked_for(("t", [0, 0]), ("t", [0]))
    assert listed(cluster.run(cluster.controller.list_reassignments(again))) == under_way


def test_reassignments_are_decided_and_listed_in_steps() -> None:
    cluster = Cluster(brokers=(1, 2))
    cluster.create(topic("t", assignments=[[1]] * 1000))
    moved = [Partition(partition_index=index, replicas=[2]) for index in range(1000)]
    decision = cluster.controller.alter_reassignments(request("t", *moved))
    assert len(list(decision)) == 62
    nothing = asked_for(*(("no such topic", []) for _ in range(1000)))
    assert len(list(cluster.controller.list_reassignments(nothing))) == 62
    cluster.run(cluster.controller.alter_reassignments(request("t", *moved)))
    everything = ListPartitionReassignmentsRequest(topics=None)
    assert len(list(cluster.controller.list_reassignments(everything))) == 62


def test_more_reassignments_than_one_request_may_write_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(brokers=(1, 2))
    cluster.create(topic("t", assignments=[[1]] * 3))
    monkeypatch.setattr(result_module, "MAX_RECORDS_PER_OPERATION", 2)
    moved = [Partition(partition_index=index, replicas=[2]) for index in range(3)]
    with pytest.raises(KafkaError) as caught:
        cluster.run(cluster.controller.alter_reassignments(request("t", *moved)))
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    cluster.run(cluster.controller.alter_reassignments(request("t", *moved[:2])))
    assert cluster.image.topics["t"].partitions[1].is_reassigning
