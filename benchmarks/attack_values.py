"""Valid values for the fields of requests: what an attack fills in where it does not lie.

The neighbours are `attack_bodies`, which decides what is repeated or falsified, and `attack_world`,
which creates on a broker the things named here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kbroker.model import ZERO_UUID
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.codecs.codec import encode
from kbroker.protocol.codecs.schema import Field
from kbroker.protocol.messages.coordinators.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

Path = tuple[str, ...]
"""The names of the fields that lead to a field, its own last."""

INT32_MAX: Final = 2**31 - 1
CONSUMER_RESOURCE: Final = 2
"""ConfigResource.Type of a topic."""

OTHER_NODE_ID: Final = 99
OTHER_DIRECTORY_ID: Final = b"another director"
"""Of a node that is not in the cluster."""

DESCRIBE_QUORUM_FRAME: Final = (
    b"\0\x37\0\2\0\0\0\1\0\6attack\0\2\x13__cluster_metadata\2\0\0\0\0\0\0\0"
)
"""DescribeQuorum v2 with its header, without its length: what an Envelope may carry."""

RECORD_TIMESTAMP: Final = 1_700_000_000_000
"""Of the first record of every topic that `attack_world` fills."""


@dataclass(frozen=True)
class Names:
    """Things that exist on the broker. partitions: of the topic. resource_type and resource_name:
    what the configuration APIs name. case: not empty for names that every API is attacked with, not
    only where topic, group or resource differ. From cluster_id on: what only controllers are told,
    and clients that push telemetry. quorum_epoch: of the metadata quorum; leader_epoch and
    partition_epoch: of the topic's partitions.
    """

    label: str
    topic: str = "plain"
    topic_id: bytes = ZERO_UUID
    partitions: int = 1
    group: str = "offsets-only"
    member_id: str = ""
    member_epoch: int = -1
    transactional_id: str = "transaction-0"
    producer_id: int = 0
    producer_epoch: int = 0
    resource_type: int = CONSUMER_RESOURCE
    resource_name: str = "plain"
    log_directory: str = "/nowhere"
    node_id: int = 1
    validate_only: bool = True
    case: str = ""
    cluster_id: str | None = None
    quorum_epoch: int = -1
    last_fetched_epoch: int = -1
    leader_epoch: int = 0
    partition_epoch: int = 0
    broker_epoch: int = -1
    replica_id: int = -1
    directory_id: bytes = ZERO_UUID
    voter_directory_id: bytes = ZERO_UUID
    log_end_offset: int = 0
    leader_id: int = 1
    port: int = 9093
    wants_shut_down: bool = False
    client_instance_id: bytes = ZERO_UUID
    subscription_id: int = 0


def subscription(names: Names) -> bytes:
    """The metadata of a member of a classic consumer group."""
    message = ConsumerProtocolSubscription(topics=[names.topic])
    return b"\0\1" + encode(message, 1)


def assignment(names: Names) -> bytes:
    """What the leader of a classic consumer group assigns to a member."""
    part = ConsumerProtocolAssignment.TopicPartition(topic=names.topic, partitions=[0])
    return b"\0\1" + encode(ConsumerProtocolAssignment(assigned_partitions=[part]), 1)


def small_batch(names: Names) -> bytes:
    """One record with a key."""
    return bytes(build_batch([(RECORD_TIMESTAMP, b"key", b"value", [])]))


def valid_value(api_key: int, path: Path, field: Field, names: Names) -> Any:
    """What a well-behaved client might send in this field, given what exists."""
    parent = path[-2] if len(path) > 1 else ""
    for key in ((api_key, path[-1]), (parent, path[-1]), path[-1]):
        maker = _VALUES.get(key)
        if maker is not None:
            return maker(names)
    kind = field.element or field.type_name
    return _DEFAULTS[kind]


_DEFAULTS: Final[dict[str, Any]] = {
    "boolean": False, "int8": 0, "int16": 0, "int32": 0, "int64": 0, "uint16": 0, "uint32": 0,
    "float64": 0.0, "uuid": ZERO_UUID, "string": "name", "bytes": b"", "records": b"",
}  # fmt: skip


def _always(value: Any) -> Callable[[Names], Any]:
    return lambda names: value


def _topic(names: Names) -> Any:
    return names.topic


def _group(names: Names) -> Any:
    return names.group


_VALUES: Final[dict[Any, Callable[[Names], Any]]] = {
    # topics and partitions
    "topic": _topic,
    "topic_name": _topic,
    "topic_names": _topic,
    "name": _topic,
    "subscribed_topic_names": _topic,
    "source_topics": _topic,
    "source_topic_regex": _topic,
    "repartition_sink_topics": _always("repartitioned"),
    ("repartition_source_topics", "name"): _always("repartitioned"),
    ("state_changelog_topics", "name"): _always("changelog"),
    ("copartition_groups", "source_topics"): _always(0),
    ("copartition_groups", "source_topic_regex"): _always(0),
    ("copartition_groups", "repartition_source_topics"): _always(0),
    "topic_id": lambda names: names.topic_id,
    "timestamp": _always(RECORD_TIMESTAMP + 50),
    "max_num_offsets": _always(1000),
    "num_partitions": _always(1),
    "replication_factor": _always(1),
    "broker_ids": lambda names: names.node_id,
    (int(ApiKey.ALTER_PARTITION_REASSIGNMENTS), "replicas"): lambda names: names.node_id,
    (int(ApiKey.CREATE_PARTITIONS), "count"): lambda names: names.partitions + 1,
    "response_partition_limit": _always(INT32_MAX),
    "allow_auto_topic_creation": _always(True),
    "include_cluster_authorized_operations": _always(True),
    "include_topic_authorized_operations": _always(True),
    "include_authorized_operations": _always(True),
    "include_synonyms": _always(True),
    "include_documentation": _always(True),
    "include_fenced_brokers": _always(True),
    # produce and fetch
    "acks": _always(1),
    "timeout_ms": _always(1000),
    "records": small_batch,
    "replica_id": lambda names: names.replica_id,
    "replica_epoch": _always(-1),
    "max_bytes": _always(INT32_MAX),
    "partition_max_bytes": _always(INT32_MAX),
    "session_epoch": _always(-1),
    "current_leader_epoch": lambda names: names.quorum_epoch,
    "last_fetched_epoch": lambda names: names.last_fetched_epoch,
    "log_start_offset": _always(-1),
    "cluster_id": lambda names: names.cluster_id,
    "rack_id": _always(""),
    "max_records": _always(1000),
    "batch_size": _always(1000),
    "acknowledge_types": _always(1),
    # groups
    "group_id": _group,
    "groups": _group,
    "groups_names": _group,
    "group_ids": _group,
    "coordinator_keys": _group,
    (int(ApiKey.FIND_COORDINATOR), "key"): _group,
    "member_id": lambda names: names.member_id,
    "member_epoch": lambda names: names.member_epoch,
    "generation_id": lambda names: names.member_epoch,
    "generation_id_or_member_epoch": lambda names: names.member_epoch,
    "share_session_epoch": _always(0),
    "group_instance_id": _always(None),
    "instance_id": _always(None),
    "reason": _always("a reason"),
    "protocol_type": _always("consumer"),
    "protocol_name": _always("range"),
    ("protocols", "name"): _always("range"),
    "metadata": subscription,
    "assignment": assignment,
    "session_timeout_ms": _always(30_000),
    "rebalance_timeout_ms": _always(30_000),
    "retention_time_ms": _always(-1),
    "commit_timestamp": _always(-1),
    "committed_leader_epoch": _always(-1),
    "committed_metadata": _always("metadata"),
    "subscribed_topic_regex": _always(None),
    "server_assignor": _always(None),
    "subtopology_id": _always("0"),
    "process_id": _always("process"),
    "states_filter": _always("Stable"),
    "types_filter": _always("consumer"),
    "host": _always("localhost"),
    # transactions
    "transactional_id": lambda names: names.transactional_id,
    "transactional_ids": lambda names: names.transactional_id,
    "v3_and_below_transactional_id": lambda names: names.transactional_id,
    "transactional_id_pattern": _always(None),
    (int(ApiKey.PRODUCE), "transactional_id"): _always(None),
    "transaction_timeout_ms": _always(60_000),
    "producer_id": lambda names: names.producer_id,
    "v3_and_below_producer_id": lambda names: names.producer_id,
    "producer_id_filters": lambda names: names.producer_id,
    "producer_epoch": lambda names: names.producer_epoch,
    "v3_and_below_producer_epoch": lambda names: names.producer_epoch,
    "state_filters": _always("Ongoing"),
    "duration_filter": _always(-1),
    "committed": _always(True),
    "transaction_result": _always(True),
    (int(ApiKey.INIT_PRODUCER_ID), "producer_id"): _always(-1),
    (int(ApiKey.INIT_PRODUCER_ID), "producer_epoch"): _always(-1),
    # configurations
    "resource_type": lambda names: names.resource_type,
    "resource_types": lambda names: names.resource_type,
    "resource_name": lambda names: names.resource_name,
    "configuration_keys": _always("retention.ms"),
    ("configs", "name"): _always("retention.ms"),
    ("configs", "value"): _always("86400000"),
    ("topic_configs", "key"): _always("retention.ms"),
    ("topic_configs", "value"): _always("86400000"),
    "validate_only": lambda names: names.validate_only,
    "path": lambda names: names.log_directory,
    "feature": _always("group.version"),
    "max_version_level": _always(1),
    "upgrade_type": _always(1),
    "endpoint_type": _always(1),
    # quotas, credentials, ACLs
    "entity_type": _always("user"),
    "match_type": _always(0),
    ("ops", "key"): _always("producer_byte_rate"),
    ("ops", "value"): _always(1e9),
    "mechanism": _always(1),
    "iterations": _always(4096),
    "salt": _always(b"salt"),
    "salted_password": _always(b"salted"),
    "resource_type_filter": _always(1),
    "operation": _always(2),
    "permission_type": _always(3),
    "client_software_name": _always("attack"),
    "client_software_version": _always("1"),
    # the metadata quorum
    "voter_id": lambda names: names.node_id,
    "voter_directory_id": lambda names: names.voter_directory_id,
    "replica_directory_id": lambda names: names.voter_directory_id,
    (int(ApiKey.VOTE), "replica_id"): _always(OTHER_NODE_ID),
    (int(ApiKey.VOTE), "replica_epoch"): lambda names: names.quorum_epoch,
    (int(ApiKey.VOTE), "last_offset"): lambda names: names.log_end_offset,
    "candidate_id": _always(OTHER_NODE_ID),
    "candidate_directory_id": _always(OTHER_DIRECTORY_ID),
    "preferred_successors": _always(OTHER_NODE_ID),
    "leader_id": lambda names: names.leader_id,
    (int(ApiKey.BEGIN_QUORUM_EPOCH), "leader_epoch"): lambda names: names.quorum_epoch,
    (int(ApiKey.END_QUORUM_EPOCH), "leader_epoch"): lambda names: names.quorum_epoch,
    ("listeners", "name"): _always("CONTROLLER"),
    ("leader_endpoints", "name"): _always("CONTROLLER"),
    ("listeners", "host"): _always("127.0.0.1"),
    ("leader_endpoints", "host"): _always("127.0.0.1"),
    ("listeners", "port"): lambda names: names.port,
    ("leader_endpoints", "port"): lambda names: names.port,
    ("k_raft_version_feature", "max_supported_version"): _always(1),
    # brokers and controllers of a cluster
    "broker_id": lambda names: names.node_id,
    "controller_id": lambda names: names.node_id,
    "broker_epoch": lambda names: names.broker_epoch,
    "previous_broker_epoch": _always(-1),
    "incarnation_id": _always(OTHER_DIRECTORY_ID),
    "log_dirs": lambda names: names.directory_id,
    "offline_log_dirs": _always(OTHER_DIRECTORY_ID),
    "cordoned_log_dirs": lambda names: names.directory_id,
    ("features", "name"): _always("metadata.version"),
    ("features", "min_supported_version"): _always(7),
    ("features", "max_supported_version"): _always(100),
    "current_metadata_offset": lambda names: names.log_end_offset,
    "want_shut_down": lambda names: names.wants_shut_down,
    (int(ApiKey.ALTER_PARTITION), "leader_epoch"): lambda names: names.leader_epoch,
    "partition_epoch": lambda names: names.partition_epoch,
    "new_isr": lambda names: names.node_id,
    ("directories", "id"): lambda names: names.directory_id,
    # telemetry of clients
    "client_instance_id": lambda names: names.client_instance_id,
    "subscription_id": lambda names: names.subscription_id,
    # forwarded requests
    "client_host_address": _always(bytes((127, 0, 0, 1))),
    "request_principal": _always(b"\0\0\5User\nANONYMOUS\0\0"),
    "request_data": _always(DESCRIBE_QUORUM_FRAME),
}
"""By (API key, field), (enclosing field, field) or field."""


DISTINCT_INTS: Final = frozenset({
    "index", "partition", "partition_index", "partition_indexes", "partitions", "broker_ids",
    "replicas", "broker_id", "new_isr", "candidate_id", "preferred_successors",
})  # fmt: skip
"""Numbers that name a partition, a broker or a voter."""

EMPTY_ARRAYS: Final = frozenset({
    (int(ApiKey.FETCH), "forgotten_topics_data"),
    (int(ApiKey.CREATE_TOPICS), "assignments"),
    (int(ApiKey.LIST_GROUPS), "states_filter"),
    (int(ApiKey.LIST_GROUPS), "types_filter"),
    (int(ApiKey.LIST_TRANSACTIONS), "state_filters"),
    (int(ApiKey.LIST_TRANSACTIONS), "producer_id_filters"),
    (int(ApiKey.CONSUMER_GROUP_HEARTBEAT), "topic_partitions"),
    (int(ApiKey.SHARE_FETCH), "acknowledgement_batches"),
    (int(ApiKey.SHARE_FETCH), "forgotten_topics_data"),
    *(
        (int(ApiKey.STREAMS_GROUP_HEARTBEAT), name)
        for name in (
            "active_tasks", "standby_tasks", "warmup_tasks", "task_offsets", "task_end_offsets",
            "source_topic_regex", "repartition_sink_topics", "repartition_source_topics",
            "state_changelog_topics", "copartition_groups",
        )
    ),
})  # fmt: skip
"""(API key, array) that a valid request of that API has no element of."""

FIXED_STRINGS: Final = frozenset({
    "value", "protocol_type", "protocol_name", "reason", "host", "committed_metadata", "rack_id",
    "process_id",
})  # fmt: skip
"""Strings that name nothing: the same in every element."""
