"""AlterPartitionReassignments and ListPartitionReassignments: Kafka's own outcomes, and a
reassignment from its start to its end.
"""

from __future__ import annotations

from kbroker.controller.reassignments import alter_reassignments
from kbroker.controller.result import at_once
from kbroker.protocol.errors import ErrorCode
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


def asked(*topics: tuple[str, list[int]]) -> ListPartitionReassignmentsRequest:
    kind = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
    return ListPartitionReassignmentsRequest(
        topics=[kind(name=name, partition_indexes=indexes) for name, indexes in topics]
    )


def test_a_reassignment_from_its_start_to_its_end() -> None:
    cluster = Cluster(brokers=(1, 2, 3))
    cluster.create(topic("t", assignments=[[1, 2], [2, 1]]), topic("u", assignments=[[1]]))
    everything = ListPartitionReassignmentsRequest(topics=None)
    assert listed(cluster.controller.list_reassignments(everything)) == {}
    moved = Partition(partition_index=1, replicas=[3, 1])
    gone = Partition(partition_index=5, replicas=[3, 1])
    response = cluster.run(cluster.controller.alter_reassignments(request("t", moved, gone)))
    errors = [each.error_code for each in response.responses[0].partitions]
    assert errors == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    under_way = {"t": [(1, [3, 1, 2], [3], [2])]}
    assert listed(cluster.controller.list_reassignments(everything)) == under_way
    some = asked(("t", [0, 1, 9]), ("u", [0]), ("no such topic", [0]))
    assert listed(cluster.controller.list_reassignments(some)) == under_way
    cluster.propose_isr("t", 1, [2, 1, 3])
    partition = cluster.image.topics["t"].partitions[1]
    assert (partition.replicas, partition.isr, partition.leader) == ((3, 1), (1, 3), 3)
    assert listed(cluster.controller.list_reassignments(everything)) == {}


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
