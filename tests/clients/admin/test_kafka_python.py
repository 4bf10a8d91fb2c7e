"""Every method of kafka-python's KafkaAdminClient."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.clients.adapters import wait_until
from tests.clients.admin.subjects import Subjects
from tests.clients.admin.table import LOCAL, AdminTable, methods_of

with warnings.catch_warnings():
    # kafka-python reads its schemas as Python 3.11 deprecates it, when it is imported
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient, TopicPartition, errors
    from kafka.admin import (
        ACL,
        AbortTransactionSpec,
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        ACLResourcePatternType,
        AlterConfigOp,
        ConfigResource,
        ConfigResourceType,
        MemberToRemove,
        OffsetSpec,
        OffsetTimestamp,
        ResourcePattern,
        ResourcePatternFilter,
        ResourceType,
        ScramMechanism,
        TransactionState,
        UpdateFeatureType,
        UserScramCredentialDeletion,
        UserScramCredentialUpsertion,
    )
    from kafka.structs import OffsetAndMetadata, TopicPartitionReplica

pytestmark = [
    pytest.mark.clients,
    # What the client itself warns of is not ours to mend.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

PREFERRED, UNCLEAN = 0, 1


class Scene(Subjects):
    """A KafkaAdminClient, and what it administers."""

    def __init__(self, bootstrap: str, new_name: Callable[[str], str]) -> None:
        super().__init__(bootstrap, new_name)
        self.admin = KafkaAdminClient(bootstrap_servers=bootstrap)

    def config(self, topic: str, name: str) -> Any:
        """A configuration of a topic as it is described."""
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        described = self.admin.describe_configs([resource], config_filter="all")
        return described["topic"][topic][name]

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The offsets of a group."""
        listed = self.admin.list_group_offsets([group])[group]
        return {partition: found.offset for partition, found in listed.items()}


def error_of(call: Callable[[], Any]) -> str:
    """The name of the error that a call fails with."""
    with pytest.raises(errors.BrokerResponseError) as raised:
        call()
    return str(raised.value.message)


calls: AdminTable[Scene] = AdminTable("kafka-python")


@calls.row("create_topics")
def _(scene: Scene) -> None:
    name = scene.new_name("created")
    new = {name: {"num_partitions": 3, "configs": {"retention.ms": "60000"}}}
    scene.admin.create_topics(new, validate_only=True)
    assert name not in scene.admin.list_topics()
    (created,) = scene.admin.create_topics(new, wait_for_metadata=True)["topics"]
    assert (created["name"], created["num_partitions"]) == (name, 3)
    assert created["configs"]["retention.ms"]["value"] == "60000"
    assert error_of(lambda: scene.admin.create_topics(new)) == "TOPIC_ALREADY_EXISTS"


@calls.row("wait_for_topics")
def _(scene: Scene) -> None:
    scene.admin.wait_for_topics([scene.topic(3)])
    with pytest.raises(errors.KafkaTimeoutError):
        scene.admin.wait_for_topics([scene.new_name("missing")], timeout_ms=200)


@calls.row("delete_topics")
def _(scene: Scene) -> None:
    by_name, by_id = scene.topic(), scene.topic()
    (described,) = scene.admin.describe_topics([by_id])
    scene.admin.delete_topics([by_name, UUID(described["topic_id"])])
    assert not {by_name, by_id} & set(scene.admin.list_topics())
    gone = error_of(lambda: scene.admin.delete_topics([by_name]))
    assert gone == "UNKNOWN_TOPIC_OR_PARTITION"


@calls.row("list_topics")
def _(scene: Scene) -> None:
    assert scene.topic() in scene.admin.list_topics()


@calls.row("describe_topics")
def _(scene: Scene) -> None:
    name = scene.topic(2)
    (described,) = scene.admin.describe_topics([name])
    partitions = {each["partition_index"]: each for each in described["partitions"]}
    assert set(partitions) == {0, 1}
    assert all(each["isr_nodes"] == each["replica_nodes"] == [1] for each in partitions.values())


@calls.row("describe_topic_partitions")
def _(scene: Scene) -> None:
    name = scene.topic(3)
    found: list[int] = []
    cursor = None
    for _ in range(2):
        page = scene.admin.describe_topic_partitions(
            [name], response_partition_limit=2, cursor=cursor
        )
        (topic,) = page["topics"]
        found += [each["partition_index"] for each in topic["partitions"]]
        cursor = page["next_cursor"]
    assert found == [0, 1, 2] and cursor is None


@calls.row("create_partitions")
def _(scene: Scene) -> None:
    name = scene.topic(2)
    scene.admin.create_partitions({name: 5})
    wait_until(
        lambda: len(scene.admin.describe_topics([name])[0]["partitions"]) == 5, 10, "5 partitions"
    )
    fewer = error_of(lambda: scene.admin.create_partitions({name: 3}))
    assert fewer == "INVALID_PARTITIONS"


@calls.row("delete_records")
def _(scene: Scene) -> None:
    partition = TopicPartition(scene.topic(records=5), 0)
    deleted = scene.admin.delete_records({partition: 2})
    assert deleted[partition]["low_watermark"] == 2
    far = error_of(lambda: scene.admin.delete_records({partition: 9}))
    assert far == "OFFSET_OUT_OF_RANGE"


@calls.row("list_partition_offsets")
def _(scene: Scene) -> None:
    partition = TopicPartition(scene.topic(records=5), 0)
    for spec, offset in (
        (OffsetSpec.EARLIEST, 0),
        (OffsetSpec.LATEST, 5),
        (OffsetTimestamp(0), 0),
    ):
        assert scene.admin.list_partition_offsets({partition: spec})[partition].offset == offset


@calls.row("elect_leaders", outcome="ELECTION_NOT_NEEDED")
def _(scene: Scene) -> str:
    """The leader of a single replica is its preferred one."""
    topic = scene.topic()
    elected = scene.admin.elect_leaders(PREFERRED, {topic: [0]})
    (result,) = elected.replica_election_results
    (partition,) = result.partition_result
    return str(errors.for_code(partition.error_code).message)


@calls.row("alter_partition_reassignments")
def _(scene: Scene) -> None:
    partition = TopicPartition(scene.topic(), 0)
    assert scene.admin.alter_partition_reassignments({partition: [1]}) == {partition: None}
    unknown = scene.admin.alter_partition_reassignments({partition: [1, 77]})
    assert unknown == {partition: errors.InvalidReplicationAssignmentError}
    idle = scene.admin.alter_partition_reassignments({partition: None})
    assert idle == {partition: errors.NoReassignmentInProgressError}


@calls.row("list_partition_reassignments")
def _(scene: Scene) -> None:
    topic = scene.topic()
    assert scene.admin.list_partition_reassignments() == {}
    assert scene.admin.list_partition_reassignments({topic: [0]}) == {}


@calls.row("describe_configs")
def _(scene: Scene) -> None:
    assert scene.config(scene.topic(), "cleanup.policy")["value"] == "delete"
    broker = ConfigResource(ConfigResourceType.BROKER, "1")
    described = scene.admin.describe_configs([broker], include_synonyms=True, config_filter="all")
    assert described["broker"]["1"]["node.id"]["value"] == "1"


@calls.row("alter_configs")
def _(scene: Scene) -> None:
    name = scene.topic()

    def alter(key: str, change: Any, **options: Any) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, name, {key: change})
        assert scene.admin.alter_configs([resource], **options) == {"topic": {name: "OK"}}

    alter("retention.ms", "1000")
    alter("cleanup.policy", (AlterConfigOp.APPEND, "compact"))
    assert scene.config(name, "cleanup.policy")["value"] == "delete,compact"
    alter("retention.ms", "2000", validate_only=True)
    assert scene.config(name, "retention.ms")["value"] == "1000"
    alter("retention.ms", "3000", incremental=False)
    assert scene.config(name, "retention.ms")["value"] == "3000"


@calls.row("reset_configs")
def _(scene: Scene) -> None:
    name = scene.topic()
    default = scene.config(name, "retention.ms")["value"]
    for incremental in (True, False):
        changed = ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "1000"})
        scene.admin.alter_configs([changed])
        resource = ConfigResource(ConfigResourceType.TOPIC, name, ["retention.ms"])
        scene.admin.reset_configs([resource], incremental=incremental)
        assert scene.config(name, "retention.ms")["value"] == default


@calls.row("list_config_resources")
def _(scene: Scene) -> None:
    name = scene.topic()
    listed = scene.admin.list_config_resources()
    assert name in listed["topic"] and listed["broker"] == ["1"]
    assert scene.admin.list_config_resources(["BROKER_LOGGER"]) == {"broker_logger": ["1"]}


@calls.row("describe_cluster")
def _(scene: Scene) -> None:
    described = scene.admin.describe_cluster()
    assert [(each["broker_id"], each["port"]) for each in described["brokers"]] == [(1, scene.port)]
    assert described["controller_id"] == 1 and described["cluster_id"]


@calls.row("describe_log_dirs")
def _(scene: Scene) -> None:
    name = scene.topic(records=5)
    (described,) = scene.admin.describe_log_dirs({name: [0]})
    assert described["broker"] == 1 and len(described["log_dirs"]) == 2
    (size,) = [
        partition["partition_size"]
        for folder in described["log_dirs"]
        for topic in folder["topics"]
        for partition in topic["partitions"]
    ]
    assert size > 0


@calls.row("alter_replica_log_dirs")
def _(scene: Scene) -> None:
    name = scene.topic(records=5)

    def folders(holding: bool) -> list[str]:
        (described,) = scene.admin.describe_log_dirs({name: [0]})
        found = described["log_dirs"]
        return [each["log_dir"] for each in found if bool(each["topics"]) is holding]

    (other,) = folders(False)
    replica = TopicPartitionReplica(name, 0, 1)
    moved = scene.admin.alter_replica_log_dirs({replica: other})
    assert moved == {replica: errors.NoError}
    wait_until(lambda: folders(True) == [other], 20, "the replica lies in the other directory")
    nowhere = scene.admin.alter_replica_log_dirs({replica: str(Path(other) / "none")})
    assert nowhere == {replica: errors.LogDirNotFoundError}


@calls.row("describe_metadata_quorum")
def _(scene: Scene) -> None:
    ((topic,), nodes) = (lambda d: (d["topics"], d["nodes"]))(
        scene.admin.describe_metadata_quorum()
    )
    (partition,) = topic["partitions"]
    assert (topic["topic_name"], partition["error"]) == ("__cluster_metadata", None)
    assert partition["leader_id"] == 1 and partition["high_watermark"] > 0
    assert [each["replica_id"] for each in partition["current_voters"]] == [1]
    assert isinstance(nodes, list)


@calls.row("get_broker_version_data")
def _(scene: Scene) -> None:
    assert scene.admin.get_broker_version_data(1).api_versions[3] == (0, 13)


@calls.row("api_versions")
def _(scene: Scene) -> None:
    served = {key.name: versions for key, versions in scene.admin.api_versions().items()}
    assert served["Metadata"] == (0, 13)
    assert "CreateDelegationToken" not in served


@calls.row("describe_features")
def _(scene: Scene) -> None:
    for from_controller in (False, True):
        features = scene.admin.describe_features(send_request_to_controller=from_controller)
        low, high = features["metadata.version"]["supported"]
        assert low <= features["metadata.version"]["finalized"][1] <= high


@calls.row("update_features")
def _(scene: Scene) -> None:
    level = scene.admin.describe_features()["group.version"]["finalized"][1]
    assert scene.admin.update_features({"group.version": level}, validate_only=True) == {
        "group.version": "OK"
    }
    far = {"group.version": (UpdateFeatureType.UPGRADE, 99)}
    assert error_of(lambda: scene.admin.update_features(far)) == "INVALID_UPDATE_VERSION"


@calls.row("list_groups")
def _(scene: Scene) -> None:
    empty = scene.group(scene.topic(), 0)
    with scene.member(scene.topic()) as stable:
        states = {each["group_id"]: each["group_state"] for each in scene.admin.list_groups()}
        assert (states[stable], states[empty]) == ("Stable", "Empty")
        only = scene.admin.list_groups(states_filter=["Stable"], types_filter=["classic"])
        names = {each["group_id"] for each in only}
        assert stable in names and empty not in names


@calls.row("describe_groups")
def _(scene: Scene) -> None:
    topic = scene.topic(2)
    with scene.member(topic) as group:
        described = scene.admin.describe_groups([group])[group]
        assert (described["error"], described["group_state"]) == (None, "Stable")
        (member,) = described["members"]
        owned = member["member_assignment"]["assigned_partitions"]
        assert [(each["topic"], sorted(each["partitions"])) for each in owned] == [(topic, [0, 1])]
    missing = scene.new_name("group")
    assert "GroupIdNotFound" in scene.admin.describe_groups([missing])[missing]["error"]


@calls.row("delete_groups")
def _(scene: Scene) -> None:
    group = scene.group(scene.topic(), 0)
    assert scene.admin.delete_groups([group]) == {group: "OK"}
    assert scene.admin.delete_groups([group]) == {group: "GroupIdNotFoundError"}
    with scene.member(scene.topic()) as used:
        assert scene.admin.delete_groups([used]) == {used: "NonEmptyGroupError"}


@calls.row("list_group_offsets")
def _(scene: Scene) -> None:
    topic = scene.topic(records=5)
    first, second = scene.group(topic, 3), scene.group(topic, 4)
    listed = scene.admin.list_group_offsets([first, second])
    partition = TopicPartition(topic, 0)
    assert {group: found[partition].offset for group, found in listed.items()} == {
        first: 3,
        second: 4,
    }


@calls.row("alter_group_offsets")
def _(scene: Scene) -> None:
    partition = TopicPartition(scene.topic(records=5), 0)
    group = scene.group(partition.topic, 3)
    changed = {partition: OffsetAndMetadata(1, "", -1)}
    assert scene.admin.alter_group_offsets(group, changed) == {partition: errors.NoError}
    assert scene.committed(group) == {partition: 1}


@calls.row("reset_group_offsets")
def _(scene: Scene) -> None:
    partition = TopicPartition(scene.topic(records=5), 0)
    group = scene.group(partition.topic, 3)
    for spec, offset in ((OffsetSpec.EARLIEST, 0), (OffsetSpec.LATEST, 5), (77, 5)):
        result = scene.admin.reset_group_offsets(group, {partition: spec})
        assert result == {partition: {"error": errors.NoError, "offset": offset}}
        assert scene.committed(group) == {partition: offset}


@calls.row("delete_group_offsets")
def _(scene: Scene) -> None:
    partition = TopicPartition(scene.topic(records=5), 0)
    group = scene.group(partition.topic, 3)
    deleted = scene.admin.delete_group_offsets(group, [partition])
    assert deleted == {partition: errors.NoError}
    assert scene.committed(group) == {}
    with scene.member(partition.topic) as used:
        refused = scene.admin.delete_group_offsets(used, [partition])
        assert refused == {partition: errors.GroupSubscribedToTopicError}


@calls.row("remove_group_members")
def _(scene: Scene) -> None:
    with scene.member(scene.topic(), static=True) as group:
        removed = scene.admin.remove_group_members(
            group, [MemberToRemove(group_instance_id="instance")]
        )
        assert list(removed.values()) == [errors.NoError]
        assert scene.admin.describe_groups([group])[group]["members"] == []


@calls.row("list_transactions")
def _(scene: Scene) -> None:
    with scene.transaction(scene.topic()) as transaction:

        def names(**filters: Any) -> set[str]:
            (listed,) = scene.admin.list_transactions(**filters).values()
            return {each.transactional_id for each in listed}

        # of the enumeration's member it sends another text than its value
        assert transaction in names(state_filters=[TransactionState.ONGOING.value])
        assert names(transactional_id_pattern=transaction) == {transaction}
        assert transaction not in names(duration_filter_ms=3_600_000)


@calls.row("describe_transactions")
def _(scene: Scene) -> None:
    topic = scene.topic()
    with scene.transaction(topic) as transaction:
        described = scene.admin.describe_transactions([transaction])[transaction]
        assert described.state == TransactionState.ONGOING
        assert described.topic_partitions == {TopicPartition(topic, 0)}
    missing = scene.new_name("transaction")
    gone = error_of(lambda: scene.admin.describe_transactions([missing]))
    assert gone == "TRANSACTIONAL_ID_NOT_FOUND"


@calls.row("describe_producers")
def _(scene: Scene) -> None:
    partition = TopicPartition(scene.topic(), 0)
    with scene.transaction(partition.topic) as transaction:
        (producer,) = scene.admin.describe_producers([partition])[partition].active_producers
        described = scene.admin.describe_transactions([transaction])[transaction]
        assert producer.producer_id == described.producer_id
        assert producer.current_transaction_start_offset == 0


@calls.row("abort_transaction")
def _(scene: Scene) -> None:
    partition = TopicPartition(scene.topic(), 0)
    with scene.transaction(partition.topic):

        def open_transaction() -> Any:
            (found,) = scene.admin.describe_producers([partition])[partition].active_producers
            return found

        found = open_transaction()
        spec = AbortTransactionSpec(partition, found.producer_id, found.producer_epoch)
        scene.admin.abort_transaction(spec)
        assert open_transaction().current_transaction_start_offset == -1


@calls.row("find_hanging_transactions")
def _(scene: Scene) -> None:
    with scene.transaction(scene.topic()) as transaction:
        hanging = scene.admin.find_hanging_transactions(max_transaction_timeout_ms=-300_000)
        assert transaction in {each["transactional_id"] for each in hanging}
        assert scene.admin.find_hanging_transactions() == []


@calls.row("alter_user_scram_credentials")
def _(scene: Scene) -> None:
    user, mechanism = scene.new_name("user"), ScramMechanism.SCRAM_SHA_256
    upsertion = UserScramCredentialUpsertion(user, mechanism, "secret", iterations=8192)
    assert scene.admin.alter_user_scram_credentials([upsertion]) == {user: None}
    described = scene.admin.describe_user_scram_credentials([user])[user]["credential_infos"]
    assert described == [{"mechanism": mechanism, "iterations": 8192}]
    deletion = UserScramCredentialDeletion(user, mechanism)
    assert scene.admin.alter_user_scram_credentials([deletion]) == {user: None}
    again = scene.admin.alter_user_scram_credentials([deletion])[user]
    assert again is not None and "does not exist" in again


@calls.row("describe_user_scram_credentials")
def _(scene: Scene) -> None:
    user = scene.new_name("user")
    upsertion = UserScramCredentialUpsertion(user, ScramMechanism.SCRAM_SHA_512, "secret")
    scene.admin.alter_user_scram_credentials([upsertion])
    assert user in scene.admin.describe_user_scram_credentials()
    missing = scene.new_name("user")
    described = scene.admin.describe_user_scram_credentials([missing])[missing]
    assert "does not exist" in described["error"]


READ = (ACLOperation.READ, ACLPermissionType.ALLOW)


@calls.row("create_acls", outcome="SECURITY_DISABLED")
def _(scene: Scene) -> str:
    acl = ACL("User:bob", "*", *READ, ResourcePattern(ResourceType.TOPIC, "t"))
    created = scene.admin.create_acls([acl])
    assert created["succeeded"] == []
    (error,) = created["failed"]
    return str(error.message)


def any_acl() -> ACLFilter:
    """Finds every ACL."""
    pattern = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
    return ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, pattern)


@calls.row("describe_acls", outcome="SECURITY_DISABLED")
def _(scene: Scene) -> str:
    return error_of(lambda: scene.admin.describe_acls(any_acl()))


@calls.row("delete_acls", outcome="SECURITY_DISABLED")
def _(scene: Scene) -> str:
    ((_, deleted, error),) = scene.admin.delete_acls([any_acl()])
    assert deleted == []
    return str(error.message)


@calls.row("close", outcome=LOCAL)
def _(scene: Scene) -> None:
    other = KafkaAdminClient(bootstrap_servers=scene.bootstrap)
    other.close()
    with pytest.raises(RuntimeError, match="closed"):
        other.list_topics()


@pytest.fixture(scope="module")
def scene(bootstrap: str) -> Iterator[Scene]:
    counted = iter(range(1_000_000))
    one = Scene(bootstrap, lambda stem: f"kp-{stem}-{next(counted)}")
    yield one
    one.admin.close()


def test_each_method_has_a_row() -> None:
    assert set(calls.rows) == methods_of(KafkaAdminClient)


@pytest.mark.parametrize("method", list(calls.rows))
def test_call(scene: Scene, method: str) -> None:
    calls.run(method, scene)
