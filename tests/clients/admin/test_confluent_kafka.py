"""Every method of confluent-kafka's AdminClient (librdkafka)."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ElectionType,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.acls import DescribeAclsRequest, DescribeAclsResponse
from tests.clients.adapters import wait_until
from tests.clients.admin.subjects import TIMEOUT_S, Subjects
from tests.clients.admin.table import LOCAL, AdminTable, methods_of
from tests.e2e.wire import call

pytestmark = [
    pytest.mark.clients,
    # What the client itself warns of is not ours to mend.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

EXPLICIT_SOURCE = ConfigSource.DYNAMIC_TOPIC_CONFIG.value


class Scene(Subjects):
    """An AdminClient, and what it administers."""

    def __init__(self, bootstrap: str, new_name: Callable[[str], str]) -> None:
        super().__init__(bootstrap, new_name)
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def config(self, topic: str, name: str) -> ConfigEntry:
        """A configuration of a topic, as it is described."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return done(self.admin.describe_configs([resource]))[name]


def done(futures: dict[Any, Future[Any]]) -> Any:
    """The one result."""
    (future,) = futures.values()
    return future.result(TIMEOUT_S)


def error_of(call: Callable[[], Any]) -> str:
    """The name of the error that a call fails with."""
    with pytest.raises(KafkaException) as raised:
        call()
    return str(raised.value.args[0].name())


def offset_of(listed: ConsumerGroupTopicPartitions) -> list[tuple[str, int, int]]:
    """Topic, partition and offset of each partition."""
    return [(each.topic, each.partition, each.offset) for each in listed.topic_partitions]


calls: AdminTable[Scene] = AdminTable("confluent-kafka (librdkafka)")


@calls.row("create_topics")
def _(scene: Scene) -> None:
    name = scene.new_name("created")
    new = NewTopic(name, 3, 1, config={"retention.ms": "60000"})
    done(scene.admin.create_topics([new], validate_only=True))
    assert name not in scene.admin.list_topics(timeout=TIMEOUT_S).topics
    done(scene.admin.create_topics([new]))
    assert len(scene.admin.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions) == 3
    assert scene.config(name, "retention.ms").value == "60000"
    again = error_of(lambda: done(scene.admin.create_topics([new])))
    assert again == "TOPIC_ALREADY_EXISTS"


@calls.row("delete_topics")
def _(scene: Scene) -> None:
    name = scene.topic()
    done(scene.admin.delete_topics([name], operation_timeout=TIMEOUT_S))
    assert name not in scene.admin.list_topics(timeout=TIMEOUT_S).topics
    assert error_of(lambda: done(scene.admin.delete_topics([name]))) == "UNKNOWN_TOPIC_OR_PART"


@calls.row("list_topics")
def _(scene: Scene) -> None:
    name = scene.topic(2)
    listed = scene.admin.list_topics(timeout=TIMEOUT_S)
    assert set(listed.topics[name].partitions) == {0, 1}
    assert [broker.port for broker in listed.brokers.values()] == [scene.port]


@calls.row("describe_topics")
def _(scene: Scene) -> None:
    name = scene.topic(2)
    described = done(scene.admin.describe_topics(TopicCollection([name])))
    assert (described.name, described.is_internal) == (name, False)
    for number, partition in enumerate(described.partitions):
        assert partition.id == number
        assert [node.id for node in partition.replicas] == [partition.leader.id]
        assert [node.id for node in partition.isr] == [partition.leader.id]


@calls.row("create_partitions")
def _(scene: Scene) -> None:
    name = scene.topic(2)
    done(scene.admin.create_partitions([NewPartitions(name, 5)]))
    wait_until(
        lambda: len(scene.admin.list_topics(name).topics[name].partitions) == 5, 10, "5 partitions"
    )
    fewer = error_of(lambda: done(scene.admin.create_partitions([NewPartitions(name, 3)])))
    assert fewer == "INVALID_PARTITIONS"


@calls.row("describe_configs")
def _(scene: Scene) -> None:
    entry = scene.config(scene.topic(), "cleanup.policy")
    assert (entry.value, entry.source, entry.is_default) == (
        "delete",
        ConfigSource.DEFAULT_CONFIG.value,
        True,
    )
    broker = ConfigResource(ResourceType.BROKER, "1")
    described = done(scene.admin.describe_configs([broker]))
    assert described["node.id"].value == "1" and described["node.id"].is_read_only


@calls.row("alter_configs")
def _(scene: Scene) -> None:
    name = scene.topic()
    for settings in ({"retention.ms": "1000", "segment.ms": "2000"}, {"retention.ms": "3000"}):
        resource = ConfigResource(ResourceType.TOPIC, name, set_config=settings)
        done(scene.admin.alter_configs([resource]))
    assert scene.config(name, "retention.ms").value == "3000"
    assert scene.config(name, "segment.ms").source != EXPLICIT_SOURCE, "the rest is removed"


@calls.row("incremental_alter_configs")
def _(scene: Scene) -> None:
    name = scene.topic()

    def alter(key: str, value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(key, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        done(scene.admin.incremental_alter_configs([resource]))

    alter("retention.ms", "1000", AlterConfigOpType.SET)
    alter("cleanup.policy", "compact", AlterConfigOpType.APPEND)
    assert scene.config(name, "cleanup.policy").value == "delete,compact"
    alter("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT)
    assert scene.config(name, "cleanup.policy").value == "compact"
    alter("cleanup.policy", None, AlterConfigOpType.DELETE)
    assert scene.config(name, "cleanup.policy").value == "delete"
    assert scene.config(name, "retention.ms").value == "1000", "the rest is kept"
    unknown = error_of(lambda: alter("no.such.key", "1", AlterConfigOpType.SET))
    assert unknown == "INVALID_CONFIG"


@calls.row("describe_cluster")
def _(scene: Scene) -> None:
    described = scene.admin.describe_cluster(include_authorized_operations=True).result(TIMEOUT_S)
    assert [(node.id, node.port) for node in described.nodes] == [(1, scene.port)]
    assert described.controller.id == 1
    assert described.cluster_id == scene.admin.list_topics(timeout=TIMEOUT_S).cluster_id
    assert AclOperation.ALTER in described.authorized_operations


@calls.row("cluster_id")
def _(scene: Scene) -> None:
    described = scene.admin.describe_cluster().result(TIMEOUT_S)
    assert scene.admin.cluster_id(timeout=TIMEOUT_S) == described.cluster_id


@calls.row("list_groups")
def _(scene: Scene) -> None:
    with scene.member(scene.topic()) as group:
        (listed,) = scene.admin.list_groups(group, timeout=TIMEOUT_S)
        assert (listed.id, listed.state, listed.protocol_type) == (group, "Stable", "consumer")
        assert len(listed.members) == 1


@calls.row("list_consumer_groups")
def _(scene: Scene) -> None:
    empty = scene.group(scene.topic(), 0)
    with scene.member(scene.topic()) as stable:
        listed = scene.admin.list_consumer_groups().result(TIMEOUT_S)
        assert listed.errors == []
        states = {each.group_id: each.state for each in listed.valid}
        assert states[stable] == ConsumerGroupState.STABLE
        assert states[empty] == ConsumerGroupState.EMPTY
        only = scene.admin.list_consumer_groups(states={ConsumerGroupState.STABLE})
        names = {each.group_id for each in only.result(TIMEOUT_S).valid}
        assert stable in names and empty not in names


@calls.row("describe_consumer_groups")
def _(scene: Scene) -> None:
    topic = scene.topic(2)
    with scene.member(topic) as group:
        described = done(scene.admin.describe_consumer_groups([group]))
        assert described.state == ConsumerGroupState.STABLE
        assert described.coordinator.port == scene.port
        (member,) = described.members
        owned = [(each.topic, each.partition) for each in member.assignment.topic_partitions]
        assert sorted(owned) == [(topic, 0), (topic, 1)]


@calls.row("delete_consumer_groups")
def _(scene: Scene) -> None:
    group = scene.group(scene.topic(), 0)
    done(scene.admin.delete_consumer_groups([group]))
    gone = error_of(lambda: done(scene.admin.delete_consumer_groups([group])))
    assert gone == "GROUP_ID_NOT_FOUND"
    with scene.member(scene.topic()) as used:
        refused = error_of(lambda: done(scene.admin.delete_consumer_groups([used])))
        assert refused == "NON_EMPTY_GROUP"


@calls.row("list_consumer_group_offsets")
def _(scene: Scene) -> None:
    topic = scene.topic(2, records=5)
    group = scene.group(topic, 3)
    every = done(scene.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
    assert offset_of(every) == [(topic, 0, 3)]
    both = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    named = scene.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, both)])
    assert offset_of(done(named)) == [(topic, 0, 3), (topic, 1, -1001)]


@calls.row("alter_consumer_group_offsets")
def _(scene: Scene) -> None:
    topic = scene.topic(records=5)
    group = scene.group(topic, 3)
    changed = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 1)])
    done(scene.admin.alter_consumer_group_offsets([changed]))
    listed = scene.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    assert offset_of(done(listed)) == [(topic, 0, 1)]


@calls.row("list_offsets")
def _(scene: Scene) -> None:
    topic = scene.topic(records=5)
    partition = TopicPartition(topic, 0)
    for spec, offset in (
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.latest(), 5),
        (OffsetSpec.for_timestamp(0), 0),
    ):
        assert done(scene.admin.list_offsets({partition: spec})).offset == offset
    newest = done(scene.admin.list_offsets({partition: OffsetSpec.max_timestamp()}))
    assert 0 <= newest.offset < 5 and newest.timestamp > 0


@calls.row("delete_records")
def _(scene: Scene) -> None:
    topic = scene.topic(records=5)
    deleted = done(scene.admin.delete_records([TopicPartition(topic, 0, 2)]))
    assert deleted.low_watermark == 2
    first = done(scene.admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.earliest()}))
    assert first.offset == 2
    far = error_of(lambda: done(scene.admin.delete_records([TopicPartition(topic, 0, 9)])))
    assert far == "OFFSET_OUT_OF_RANGE"


@calls.row("elect_leaders", outcome="ELECTION_NOT_NEEDED")
def _(scene: Scene) -> str:
    """The leader of a single replica is its preferred one."""
    partition = TopicPartition(scene.topic(), 0)
    elected = scene.admin.elect_leaders(ElectionType.PREFERRED, [partition]).result(TIMEOUT_S)
    error = elected[partition]
    assert isinstance(error, KafkaException | KafkaError)
    return str((error.args[0] if isinstance(error, KafkaException) else error).name())


@calls.row("alter_user_scram_credentials")
def _(scene: Scene) -> None:
    user, mechanism = scene.new_name("user"), ScramMechanism.SCRAM_SHA_256
    info = ScramCredentialInfo(mechanism, 8192)
    upsertion = UserScramCredentialUpsertion(user, info, b"secret")
    done(scene.admin.alter_user_scram_credentials([upsertion]))
    described = done(scene.admin.describe_user_scram_credentials([user]))
    assert [each.iterations for each in described.scram_credential_infos] == [8192]
    deletion = UserScramCredentialDeletion(user, mechanism)
    done(scene.admin.alter_user_scram_credentials([deletion]))
    gone = error_of(lambda: done(scene.admin.alter_user_scram_credentials([deletion])))
    assert gone == "RESOURCE_NOT_FOUND"


@calls.row("describe_user_scram_credentials")
def _(scene: Scene) -> None:
    user, mechanism = scene.new_name("user"), ScramMechanism.SCRAM_SHA_512
    info = ScramCredentialInfo(mechanism, 4096)
    done(
        scene.admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion(user, info, b"secret")]
        )
    )
    every = scene.admin.describe_user_scram_credentials().result(TIMEOUT_S)
    found = [(each.mechanism, each.iterations) for each in every[user].scram_credential_infos]
    assert found == [(mechanism, 4096)]
    unknown = scene.admin.describe_user_scram_credentials([scene.new_name("user")])
    assert error_of(lambda: done(unknown)) == "RESOURCE_NOT_FOUND"


def binding(kind: type[AclBinding] | type[AclBindingFilter]) -> Any:
    """An ACL, or what finds it."""
    return kind(
        ResourceType.TOPIC,
        "t",
        ResourcePatternType.LITERAL,
        "User:bob",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )


@calls.row("create_acls", outcome="SECURITY_DISABLED")
def _(scene: Scene) -> str:
    return error_of(lambda: done(scene.admin.create_acls([binding(AclBinding)])))


@calls.row("describe_acls", outcome="SECURITY_DISABLED")
def _(scene: Scene) -> str:
    """librdkafka drops the error of this one response, and tells of no ACLs."""
    assert scene.admin.describe_acls(binding(AclBindingFilter)).result(TIMEOUT_S) == []
    request = DescribeAclsRequest(
        resource_type_filter=ResourceType.TOPIC.value,
        resource_name_filter="t",
        operation=AclOperation.READ.value,
        permission_type=AclPermissionType.ALLOW.value,
    )
    with socket.create_connection(scene.address, timeout=TIMEOUT_S) as connection:
        response = call(connection, request, 2)
    assert isinstance(response, DescribeAclsResponse)
    return ErrorCode(response.error_code).name


@calls.row("delete_acls", outcome="SECURITY_DISABLED")
def _(scene: Scene) -> str:
    return error_of(lambda: done(scene.admin.delete_acls([binding(AclBindingFilter)])))


@calls.row("poll", outcome=LOCAL)
def _(scene: Scene) -> None:
    assert scene.admin.poll(0) == 0


@calls.row("set_sasl_credentials", outcome=LOCAL)
def _(scene: Scene) -> None:
    scene.admin.set_sasl_credentials("user", "secret")
    assert scene.admin.cluster_id(timeout=TIMEOUT_S), "without SASL they are not used"


@pytest.fixture(scope="module")
def scene(bootstrap: str) -> Iterator[Scene]:
    counted = iter(range(1_000_000))
    yield Scene(bootstrap, lambda stem: f"ck-{stem}-{next(counted)}")


def test_each_method_has_a_row() -> None:
    assert set(calls.rows) == methods_of(AdminClient)


@pytest.mark.parametrize("method", list(calls.rows))
def test_call(scene: Scene, method: str) -> None:
    calls.run(method, scene)
