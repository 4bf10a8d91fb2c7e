"""CreateTopics and DeleteTopics: every error, word for word what Apache Kafka 4.3.1 answered."""

from __future__ import annotations

import pytest

from kbroker.controller.policies import NewTopic, Policies, PolicyViolation
from kbroker.model import UNASSIGNED_DIRECTORY, ZERO_UUID, Uuid
from kbroker.ports import at_once
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, DeleteTopicsRequest
from kbroker.protocol.messages.stored.metadata_records import (
    ClearElrRecord,
    ConfigRecord,
    PartitionRecord,
    TopicRecord,
)
from tests.controller.cluster import (
    DIRECTORY,
    Assignment,
    Cluster,
    CreatableTopic,
    TopicConfig,
    directory,
    topic,
)

DeleteTopicState = DeleteTopicsRequest.DeleteTopicState
LONG = "x" * 250


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        (LONG, f"the length of '{LONG}' is longer than the max allowed length 249"),
        *(
            (
                bad,
                f"'{bad}' contains one or more characters other than ASCII alphanumerics, '.', "
                "'_' and '-'",
            )
            for bad in ("a b", "a/b", "ä", "a\n", "a:b")
        ),
    ],
)
def test_a_name_that_may_not_be(name: str, message: str) -> None:
    result = Cluster().create(topic(name)).topics[0]
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert result.error_message == f"Topic name is invalid: {message}"


ASSIGNED = "The manual partition assignment includes"


@pytest.mark.parametrize(
    ("asked", "code", "message"),
    [
        pytest.param(
            topic("t", 0),
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
            id="no partitions",
        ),
        pytest.param(
            topic("t", -2),
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
            id="negative partitions",
        ),
        pytest.param(
            topic("t", 1, 0),
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
            id="no replicas",
        ),
        pytest.param(
            topic("t", 1, 2),
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Unable to replicate the partition 2 time(s): The target replication factor of 2 "
            "cannot "
            "be reached because only 1 broker(s) are registered or some brokers have all their log "
            "directories cordoned.",
            id="more replicas than brokers",
        ),
        pytest.param(
            topic("t", assignments=[[]]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{ASSIGNED} an empty replica list.",
            id="empty assignment",
        ),
        pytest.param(
            topic("t", assignments=[[1, 1]]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{ASSIGNED} the broker 1 more than once.",
            id="broker twice",
        ),
        pytest.param(
            topic("t", assignments=[[9]]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{ASSIGNED} broker 9, but no such broker is registered.",
            id="unknown broker",
        ),
        pytest.param(
            CreatableTopic(
                name="t",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[
                    Assignment(partition_index=0, broker_ids=[1]),
                    Assignment(partition_index=0, broker_ids=[1]),
                ],
            ),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Found multiple manual partition assignments for partition 0",
            id="partition twice",
        ),
        pytest.param(
            CreatableTopic(
                name="t",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[Assignment(partition_index=1, broker_ids=[1])],
            ),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
            id="gap",
        ),
        pytest.param(
            CreatableTopic(
                name="t",
                num_partitions=1,
                replication_factor=-1,
                assignments=[Assignment(partition_index=0, broker_ids=[1])],
            ),
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
            id="assignment and partitions",
        ),
        pytest.param(
            CreatableTopic(
                name="t",
                num_partitions=-1,
                replication_factor=1,
                assignments=[Assignment(partition_index=0, broker_ids=[1])],
            ),
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to "
            "-1.",
            id="assignment and replicas",
        ),
        pytest.param(
            topic("t", configs={"foo": "x"}),
            ErrorCode.INVALID_CONFIG,
            "Unknown topic config name: foo",
            id="unknown config",
        ),
        pytest.param(
            topic("t", configs={"retention.ms": "x"}),
            ErrorCode.INVALID_CONFIG,
            "Invalid value x for configuration retention.ms: Not a number of type LONG",
            id="bad config",
        ),
        pytest.param(
            topic("t", configs={"retention.ms": None}),
            ErrorCode.INVALID_CONFIG,
            "Null value not supported for topic configs: retention.ms",
            id="null config",
        ),
        pytest.param(
            topic("__cluster_metadata"),
            ErrorCode.INVALID_REQUEST,
            "Creation of internal topic __cluster_metadata is prohibited.",
            id="the metadata log",
        ),
        pytest.param(
            topic("t", 10_001),
            ErrorCode.POLICY_VIOLATION,
            "Excessively large number of partitions per request.",
            id="too many partitions",
        ),
    ],
)
def test_what_is_refused(asked: CreatableTopic, code: ErrorCode, message: str) -> None:
    cluster = Cluster()
    before = cluster.image
    result = cluster.create(asked).topics[0]
    assert (result.error_code, result.error_message) == (code, message)
    assert cluster.image is before


def test_replica_lists_of_different_length_are_refused() -> None:
    result = Cluster(brokers=(1, 2)).create(topic("t", assignments=[[1, 2], [1]])).topics[0]
    assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert result.error_message == (
        f"{ASSIGNED} a partition with 1 replica(s), but this is not consistent with previous "
        "partitions, which have 2 replica(s)."
    )


def test_an_existing_topic() -> None:
    cluster = Cluster()
    cluster.create(topic("t"))
    result = cluster.create(topic("t")).topics[0]
    assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert result.error_message == "Topic 't' already exists."


@pytest.mark.parametrize(("first", "second"), [("a.b", "a_b"), ("a_b", "a.b"), ("_", ".x_")])
def test_dot_and_underscore_collide(first: str, second: str) -> None:
    cluster = Cluster()
    cluster.create(topic(first))
    result = cluster.create(topic(second)).topics[0]
    collides = first.replace(".", "_") == second.replace(".", "_")
    assert (result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION) is collides
    if collides:
        assert result.error_message == f"Topic '{second}' collides with existing topic: {first}"
    assert len(cluster.create(topic("c.d"), topic("c_d")).topics) == 2
    assert "c_d" not in cluster.image.topics


def test_doubled_names_are_answered_once_and_not_created() -> None:
    cluster = Cluster()
    results = cluster.create(topic("dup"), topic("other"), topic("dup")).topics
    assert [(r.name, r.error_code) for r in results] == [("other", 0), ("dup", 42)]
    assert results[1].error_message == "Duplicate topic name."
    assert list(cluster.image.topics) == ["other"]


def test_no_broker_that_could_hold_a_replica() -> None:
    cluster = Cluster(brokers=())
    cluster.register(1)
    result = cluster.create(topic("t")).topics[0]
    assert result.error_message == (
        "Unable to replicate the partition 1 time(s): All brokers are currently fenced, "
        "or have all their log directories cordoned."
    )
    manual = cluster.create(topic("t", assignments=[[1]])).topics[0]
    assert manual.error_message == (
        "All brokers specified in the manual partition assignment for partition 0 are fenced or in "
        "controlled shutdown."
    )


def test_records_of_a_topic() -> None:
    cluster = Cluster(brokers=(1, 2, 3))
    request = CreateTopicsRequest(
        topics=[topic("t", 2, 3, configs={"min.insync.replicas": "2", "cleanup.policy": "compact"})]
    )
    records = cluster.controller.create_topics(request).records
    assert [type(record) for record in records] == [
        TopicRecord,
        ConfigRecord,
        ConfigRecord,
        ClearElrRecord,
        PartitionRecord,
        PartitionRecord,
    ]
    partition = records[-1]
    assert isinstance(partition, PartitionRecord)
    assert sorted(partition.replicas) == [1, 2, 3]
    assert partition.isr == partition.replicas
    assert partition.leader == partition.replicas[0]
    assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
    assert partition.directories == [directory(each) for each in partition.replicas]


def test_minus_one_takes_the_brokers_defaults() -> None:
    cluster = Cluster(brokers=(1, 2), num_partitions="4", default_replication_factor="2")
    result = cluster.create(topic("t", -1, -1)).topics[0]
    assert (result.num_partitions, result.replication_factor) == (4, 2)
    assert [len(p.replicas) for p in cluster.image.topics["t"].partitions.values()] == [2] * 4


def test_validate_only_answers_and_creates_nothing() -> None:
    cluster = Cluster()
    before = cluster.image
    result = cluster.create(topic("t", 3), validate_only=True).topics[0]
    assert (result.error_code, result.num_partitions) == (0, 3)
    assert cluster.image is before


def test_configs_are_echoed_with_their_source() -> None:
    cluster = Cluster(log_retention_hours="2")
    result = cluster.create(topic("t", configs={"cleanup.policy": "compact"})).topics[0]
    assert result.configs is not None
    sources = {entry.name: (entry.value, entry.config_source) for entry in result.configs}
    assert sources["cleanup.policy"] == ("compact", 1)
    assert sources["min.insync.replicas"] == ("1", 3)
    assert sources["retention.ms"] == ("7200000", 4)
    assert sources["max.message.bytes"] == ("1048588", 5)
    assert list(sources) == sorted(sources)
    assert len(sources) == 33


def test_configs_of_topics_that_may_not_be_described_are_withheld() -> None:
    request = CreateTopicsRequest(topics=[topic("t")])
    result = Cluster().controller.create_topics(request, describable=frozenset())
    told = result.response.topics[0]
    assert told.topic_config_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (told.num_partitions, told.replication_factor, told.configs) == (-1, -1, [])


def test_topic_ids_are_random_and_unlike() -> None:
    cluster = Cluster()
    results = cluster.create(*(topic(f"t{i}") for i in range(50))).topics
    assert len({result.topic_id for result in results} | {ZERO_UUID}) == 51


def test_a_broker_with_several_directories_chooses_itself() -> None:
    cluster = Cluster(brokers=())
    cluster.register(1, log_dirs=(DIRECTORY, bytes(15) + b"x"))
    cluster.beat(1)
    cluster.create(topic("t"))
    partition = cluster.image.partition("t", 0)
    assert partition is not None
    assert partition.directories == (UNASSIGNED_DIRECTORY,)


def delete(cluster: Cluster, *states: DeleteTopicState) -> list[tuple[str | None, Uuid, int, str]]:
    request = DeleteTopicsRequest(topics=list(states))
    response = cluster.run(cluster.controller.delete_topics(request, api_version=6))
    return [(r.name, r.topic_id, r.error_code, r.error_message or "") for r in response.responses]


def test_delete_by_name_and_by_id() -> None:
    cluster = Cluster()
    cluster.create(
        topic("a", configs={"retention.ms": "1"}),
        topic("b"),
        topic("c", configs={"retention.ms": "1"}),
    )
    a, b = cluster.image.topics["a"].topic_id, cluster.image.topics["b"].topic_id
    told = delete(cluster, DeleteTopicState(name="a"), DeleteTopicState(topic_id=b))
    assert told == [("a", a, 0, ""), ("b", b, 0, "")]
    assert list(cluster.image.topics) == ["c"]
    assert list(cluster.image.topics_by_id.values()) == [cluster.image.topics["c"]]
    assert cluster.image.topic_configs("a") == {}
    assert cluster.image.topic_configs("c") == {"retention.ms": "1"}


def test_what_cannot_be_deleted() -> None:
    cluster = Cluster()
    cluster.create(topic("t"), topic("dd"))
    topic_id = cluster.image.topics["t"].topic_id
    told = delete(
        cluster,
        DeleteTopicState(name="nope"),
        DeleteTopicState(topic_id=b"\1" * 16),
        DeleteTopicState(),
        DeleteTopicState(name="t", topic_id=b"\2" * 16),
        DeleteTopicState(name="dd"),
        DeleteTopicState(name="dd"),
        DeleteTopicState(topic_id=b"\3" * 16),
        DeleteTopicState(topic_id=b"\3" * 16),
        DeleteTopicState(name="t"),
        DeleteTopicState(topic_id=topic_id),
    )
    assert told == [
        ("nope", ZERO_UUID, 3, "This server does not host this topic-partition."),
        (None, b"\1" * 16, 100, "This server does not host this topic ID."),
        (None, ZERO_UUID, 42, "Neither topic name nor id were specified."),
        ("t", b"\2" * 16, 42, "You may not specify both topic name and topic id."),
        ("dd", ZERO_UUID, 42, "Duplicate topic name."),
        (None, b"\3" * 16, 42, "Duplicate topic id."),
        ("t", topic_id, 42, "The provided topic name maps to an ID that was already supplied."),
    ]
    assert set(cluster.image.topics) == {"t", "dd"}


@pytest.mark.parametrize(
    ("api_version", "code"),
    [(1, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)],
)
def test_deletion_switched_off(api_version: int, code: ErrorCode) -> None:
    cluster = Cluster(delete_topic_enable="false")
    with pytest.raises(KafkaError, match=r"Topic deletion is disabled\.") as caught:
        cluster.controller.delete_topics(
            DeleteTopicsRequest(topic_names=["t"]), api_version=api_version
        )
    assert caught.value.code is code


def test_a_topic_made_anew_is_another_topic() -> None:
    cluster = Cluster()
    cluster.create(topic("t", configs={"retention.ms": "1"}))
    first = cluster.image.topics["t"].topic_id
    delete(cluster, DeleteTopicState(name="t"))
    cluster.create(topic("t"))
    assert cluster.image.topics["t"].topic_id != first
    assert cluster.image.topic_configs("t") == {}


# Quotas of controller mutations (KIP-599)


class Charges:
    """A client that may create or delete so many partitions."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.charged: list[int] = []

    def __call__(self, partition_count: int) -> None:
        if self.left < 0:
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        self.charged.append(partition_count)
        self.left -= partition_count


def test_created_partitions_are_charged_once_nothing_else_is_wrong() -> None:
    cluster = Cluster()
    charges = Charges(4)
    request = CreateTopicsRequest(topics=[topic("a", 3), topic("a b", 2), topic("b", 2)])
    request.topics.append(topic("c", 2))
    result = at_once(cluster.controller.create_topics_in_steps(request, charge=charges))
    outcomes = [(each.name, each.error_code, each.error_message) for each in result.response.topics]
    assert outcomes[0] == ("a", 0, None)
    assert outcomes[2:] == [
        ("b", 0, None),
        ("c", ErrorCode.THROTTLING_QUOTA_EXCEEDED, None),
    ]
    assert charges.charged == [3, 2]
    cluster.run(result)
    assert set(cluster.image.topics) == {"a", "b"}


def test_deleted_partitions_are_charged() -> None:
    cluster = Cluster()
    cluster.create(topic("a", 3), topic("b", 2), topic("c"))
    charges = Charges(4)
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name) for name in ("a", "nosuch", "b", "c")]
    )
    result = cluster.controller.delete_topics(request, api_version=6, charge=charges)
    response = cluster.run(result)
    assert [(each.name, each.error_code) for each in response.responses] == [
        ("a", 0),
        ("nosuch", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("b", 0),
        ("c", ErrorCode.THROTTLING_QUOTA_EXCEEDED),
    ]
    assert response.responses[3].topic_id == cluster.image.topics["c"].topic_id
    assert response.responses[3].error_message is None
    assert charges.charged == [3, 2]


class NamedForTeams:
    """A policy."""

    def __init__(self) -> None:
        self.asked: list[NewTopic] = []

    def validate(self, topic: NewTopic) -> None:
        self.asked.append(topic)
        if not topic.name.startswith("team"):
            raise PolicyViolation(f"{topic.name} belongs to no team")


def test_the_policy_of_the_operator_may_refuse_a_topic() -> None:
    cluster, policy = Cluster(brokers=(1, 2)), NamedForTeams()
    cluster.controller._policies = Policies(create_topic=policy)
    manual = CreatableTopic(
        name="team-manual",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[Assignment(partition_index=0, broker_ids=[2, 1])],
    )
    counted = CreatableTopic(
        name="team-counted",
        num_partitions=3,
        replication_factor=2,
        configs=[TopicConfig(name="retention.ms", value="5")],
    )
    request = CreateTopicsRequest(topics=[topic("mine"), manual, counted])
    response = cluster.run(cluster.controller.create_topics(request))
    assert [(each.error_code, each.error_message) for each in response.topics] == [
        (ErrorCode.POLICY_VIOLATION, "mine belongs to no team"),
        (0, None),
        (0, None),
    ]
    assert policy.asked[1:] == [
        NewTopic("team-manual", None, None, {0: [2, 1]}, {}),
        NewTopic("team-counted", 3, 2, None, {"retention.ms": "5"}),
    ]
    assert set(cluster.image.topics) == {"team-manual", "team-counted"}
