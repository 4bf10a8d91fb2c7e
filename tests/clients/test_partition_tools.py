"""More partitions, elections and reassignments by the clients that administrators use: librdkafka,
kafka-python, and Apache Kafka's own tools. On a cluster of one broker nothing can be elected or
moved, and each client is told so in Kafka's words.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.java import java_problem
from tests.clients.kafka_tools import KafkaTools

pytestmark = [
    pytest.mark.clients,
    # What the clients themselves warn of is not ours to mend.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
needs_java = pytest.mark.skipif(java_problem() is not None, reason=java_problem() or "")

TOPICS = "org.apache.kafka.tools.TopicCommand"
ELECTIONS = "org.apache.kafka.tools.LeaderElectionCommand"
REASSIGNMENTS = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
NO_SUCH_BROKER = 99


def librdkafka(bootstrap: str) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def topic(bootstrap: str, new_name: Callable[[str], str]) -> str:
    """A new topic of two partitions."""
    from confluent_kafka.admin import NewTopic

    name = new_name("parts")
    admin = librdkafka(bootstrap)
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(20)
    return name


@pytest.fixture
def node_id(bootstrap: str) -> int:
    """The id of the one broker."""
    (broker,) = librdkafka(bootstrap).list_topics(timeout=20).brokers
    return int(broker)


def partition_count(bootstrap: str, topic: str) -> int:
    return len(librdkafka(bootstrap).list_topics(topic, timeout=20).topics[topic].partitions)


def test_librdkafka_creates_partitions(bootstrap: str, topic: str, node_id: int) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import NewPartitions

    admin = librdkafka(bootstrap)

    def grow(count: int, assignment: list[list[int]] | None = None, **options: bool) -> str | None:
        more = (
            NewPartitions(topic, count)
            if assignment is None
            else NewPartitions(topic, count, replica_assignment=assignment)
        )
        try:
            admin.create_partitions([more], **options)[topic].result(20)
        except KafkaException as error:
            return f"{error.args[0].name()}: {error.args[0].str()}"
        return None

    assert grow(5, validate_only=True) is None
    assert partition_count(bootstrap, topic) == 2
    assert grow(4) is None
    assert partition_count(bootstrap, topic) == 4
    assert grow(4) == "INVALID_PARTITIONS: Topic already has 4 partition(s)."
    assert grow(3) == (
        f"INVALID_PARTITIONS: The topic {topic} currently has 4 partition(s); 3 would not be an "
        "increase."
    )
    assert grow(5, [[NO_SUCH_BROKER]]) == (
        "INVALID_REPLICA_ASSIGNMENT: The manual partition assignment includes broker 99, but no "
        "such broker is registered."
    )
    assert grow(5, [[node_id]]) is None
    assert partition_count(bootstrap, topic) == 5


def test_librdkafka_elects_leaders(bootstrap: str, topic: str) -> None:
    from confluent_kafka import ElectionType, TopicPartition

    admin = librdkafka(bootstrap)
    asked = [TopicPartition(topic, 0), TopicPartition(topic, 9)]
    for kind in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
        outcome = admin.elect_leaders(kind, asked).result(20)
        assert {place.partition: error.name() for place, error in outcome.items()} == {
            0: "ELECTION_NOT_NEEDED",
            9: "UNKNOWN_TOPIC_OR_PART",
        }
    assert not any(
        place.topic == topic
        for place in admin.elect_leaders(ElectionType.PREFERRED, None).result(20)
    )


def test_kafka_python_elects_and_reassigns(bootstrap: str, topic: str, node_id: int) -> None:
    from kafka import TopicPartition
    from kafka.admin import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_partitions({topic: 3})
        elected = admin.elect_leaders(0, {topic: [0, 1, 2]})
        (results,) = elected.replica_election_results
        assert {each.error_code for each in results.partition_result} == {84}
        places = [TopicPartition(topic, index) for index in (0, 1, 2, 7)]
        wanted = dict(zip(places, ([NO_SUCH_BROKER], None, [node_id], [node_id]), strict=True))
        outcome = admin.alter_partition_reassignments(wanted)
        assert [error and error.__name__ for error in (outcome[place] for place in places)] == [
            "InvalidReplicationAssignmentError",
            "NoReassignmentInProgressError",
            None,
            "UnknownTopicOrPartitionError",
        ]
        assert admin.list_partition_reassignments() == {}
        assert admin.list_partition_reassignments(places) == {}
    finally:
        admin.close()


@pytest.fixture
def run(kafka_tools: KafkaTools, bootstrap: str) -> Callable[..., str]:
    """Run one of Kafka's tools; what it prints. code: with which it is to end."""

    def tool(main_class: str, *arguments: str, code: int = 0) -> str:
        words = (main_class, "--bootstrap-server", bootstrap, *arguments)
        return kafka_tools.output(*words, code=code, errors=True)

    return tool


@needs_java
def test_kafkas_topic_tool_adds_partitions(run: Callable[..., str], topic: str) -> None:
    alter = ("--alter", "--topic", topic, "--partitions")
    run(TOPICS, *alter, "4")
    described = run(TOPICS, "--describe", "--topic", topic)
    assert "PartitionCount: 4" in described
    assert "would not be an increase" in run(TOPICS, *alter, "3", code=1)


@needs_java
def test_kafkas_election_tool(run: Callable[..., str], topic: str) -> None:
    partition = ("--topic", topic, "--partition", "1")
    elected = run(ELECTIONS, "--election-type", "preferred", *partition)
    assert f"Valid replica already elected for partitions {topic}-1" in elected
    everything = ("--election-type", "unclean", "--all-topic-partitions")
    assert "Error" not in run(ELECTIONS, *everything)
    missing = run(
        *(ELECTIONS, "--election-type", "unclean", "--topic", topic),
        *("--partition", "9"),
        code=1,
    )
    assert f"No such partition as {topic}-9" in missing


@needs_java
def test_kafkas_reassignment_tool(
    run: Callable[..., str], topic: str, node_id: int, tmp_path: Path
) -> None:
    def file(name: str, content: object) -> str:
        path = tmp_path / name
        path.write_text(json.dumps(content))
        return str(path)

    assert "No partition reassignments found." in run(REASSIGNMENTS, "--list")
    topics = file("topics.json", {"version": 1, "topics": [{"topic": topic}]})
    generated = run(
        *(REASSIGNMENTS, "--generate", "--topics-to-move-json-file", topics),
        *("--broker-list", str(node_id)),
    )
    assert "Proposed partition reassignment configuration" in generated
    plan = file("plan.json", json.loads(generated.strip().splitlines()[-1]))
    of_plan = ("--reassignment-json-file", plan)
    executed = run(REASSIGNMENTS, "--execute", *of_plan)
    assert f"Successfully started partition reassignments for {topic}-0,{topic}-1" in executed
    verified = run(REASSIGNMENTS, "--verify", *of_plan)
    assert f"Reassignment of partition {topic}-0 is completed." in verified
    cancelled = run(REASSIGNMENTS, "--cancel", *of_plan)
    assert "None of the specified partition reassignments are active." in cancelled
