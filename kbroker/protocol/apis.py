"""The table of APIs: keys, versions, header versions, and the module of each message.

Modules of `messages` are imported on first use. The table has the APIs of Kafka 4.3.1, and below
their lowest versions those last supported by Kafka 3.9 that we can still read and write. The APIs
that this broker serves are in the handler table of `server/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from kbroker.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kbroker.protocol.codecs.schema import Request, Response

NO_FLEXIBLE: Final = 32768
"""`ApiInfo.flexible_from` of an API without flexible versions: above every version."""


class ApiKey(IntEnum):
    """Every API key of Kafka 4.3.1, including the four of which it has removed all versions."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


class ApiInfo(NamedTuple):
    """One API. Versions are inclusive.

    oldest_version: the lowest that is declared; min_version: the lowest of Kafka 4.3.1 (for clients
    before 0.11 it dropped some). max_version: the highest stable one; unstable_max_version: the
    highest at all. flexible_from: first version with request header 2 and, save for ApiVersions,
    response header 1. family: the module below `messages`. forwardable: forwarded to the controller
    in an Envelope.
    """

    name: str
    family: str
    oldest_version: int
    min_version: int
    max_version: int
    unstable_max_version: int
    flexible_from: int
    listeners: tuple[str, ...]
    forwardable: bool
    cluster_action: bool


def _api(
    name: str,
    family: str,
    versions: tuple[int, int],
    flexible_from: int,
    listeners: str = "broker",
    *,
    oldest: int | None = None,
    unstable_max: int | None = None,
    forwardable: bool = False,
    cluster_action: bool = False,
) -> ApiInfo:
    low, high = versions
    unstable = high if unstable_max is None else unstable_max
    return ApiInfo(
        name,
        family,
        low if oldest is None else oldest,
        low,
        high,
        unstable,
        flexible_from,
        tuple(listeners.split()),
        forwardable,
        cluster_action,
    )


APIS: Final[Mapping[int, ApiInfo]] = {
    ApiKey.PRODUCE: _api("Produce", "produce", (3, 13), 9, oldest=0),
    ApiKey.FETCH: _api("Fetch", "fetch", (4, 18), 12, "broker controller", oldest=0),
    ApiKey.LIST_OFFSETS: _api("ListOffsets", "list_offsets", (1, 11), 6, oldest=0),
    ApiKey.METADATA: _api("Metadata", "metadata", (0, 13), 9),
    ApiKey.OFFSET_COMMIT: _api("OffsetCommit", "coordinators.offsets", (2, 10), 8, oldest=0),
    ApiKey.OFFSET_FETCH: _api("OffsetFetch", "coordinators.offsets", (1, 10), 6, oldest=0),
    ApiKey.FIND_COORDINATOR: _api("FindCoordinator", "coordinators.groups", (0, 6), 3),
    ApiKey.JOIN_GROUP: _api("JoinGroup", "coordinators.groups", (0, 9), 6),
    ApiKey.HEARTBEAT: _api("Heartbeat", "coordinators.groups", (0, 4), 4),
    ApiKey.LEAVE_GROUP: _api("LeaveGroup", "coordinators.groups", (0, 5), 4),
    ApiKey.SYNC_GROUP: _api("SyncGroup", "coordinators.groups", (0, 5), 4),
    ApiKey.DESCRIBE_GROUPS: _api("DescribeGroups", "coordinators.groups", (0, 6), 5),
    ApiKey.LIST_GROUPS: _api("ListGroups", "coordinators.groups", (0, 5), 3),
    ApiKey.SASL_HANDSHAKE: _api(
        "SaslHandshake", "authentication", (0, 1), NO_FLEXIBLE, "broker controller"
    ),
    ApiKey.API_VERSIONS: _api("ApiVersions", "api_versions", (0, 4), 3, "broker controller"),
    ApiKey.CREATE_TOPICS: _api(
        "CreateTopics", "admin.topics", (2, 7), 5, "broker controller", forwardable=True, oldest=0
    ),
    ApiKey.DELETE_TOPICS: _api(
        "DeleteTopics", "admin.topics", (1, 6), 4, "broker controller", forwardable=True, oldest=0
    ),
    ApiKey.DELETE_RECORDS: _api("DeleteRecords", "admin.topics", (0, 2), 2),
    ApiKey.INIT_PRODUCER_ID: _api(
        "InitProducerId", "coordinators.transactions", (0, 5), 2, unstable_max=6
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _api(
        "OffsetForLeaderEpoch", "list_offsets", (2, 4), 4, oldest=0
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: _api(
        "AddPartitionsToTxn", "coordinators.transactions", (0, 5), 3
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: _api("AddOffsetsToTxn", "coordinators.transactions", (0, 4), 3),
    ApiKey.END_TXN: _api("EndTxn", "coordinators.transactions", (0, 5), 3),
    ApiKey.WRITE_TXN_MARKERS: _api(
        "WriteTxnMarkers", "coordinators.transactions", (1, 2), 1, cluster_action=True
    ),
    ApiKey.TXN_OFFSET_COMMIT: _api("TxnOffsetCommit", "coordinators.transactions", (0, 5), 3),
    ApiKey.DESCRIBE_ACLS: _api(
        "DescribeAcls", "admin.acls", (1, 3), 2, "broker controller", oldest=0
    ),
    ApiKey.CREATE_ACLS: _api(
        "CreateAcls", "admin.acls", (1, 3), 2, "broker controller", forwardable=True, oldest=0
    ),
    ApiKey.DELETE_ACLS: _api(
        "DeleteAcls", "admin.acls", (1, 3), 2, "broker controller", forwardable=True, oldest=0
    ),
    ApiKey.DESCRIBE_CONFIGS: _api(
        "DescribeConfigs", "admin.configs", (1, 4), 4, "broker controller", oldest=0
    ),
    ApiKey.ALTER_CONFIGS: _api(
        "AlterConfigs", "admin.configs", (0, 2), 2, "broker controller", forwardable=True
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _api(
        "AlterReplicaLogDirs", "admin.log_dirs", (1, 2), 2, oldest=0
    ),
    ApiKey.DESCRIBE_LOG_DIRS: _api("DescribeLogDirs", "admin.log_dirs", (1, 5), 2, oldest=0),
    ApiKey.SASL_AUTHENTICATE: _api(
        "SaslAuthenticate", "authentication", (0, 2), 2, "broker controller"
    ),
    ApiKey.CREATE_PARTITIONS: _api(
        "CreatePartitions", "admin.topics", (0, 3), 2, "broker controller", forwardable=True
    ),
    ApiKey.CREATE_DELEGATION_TOKEN: _api(
        "CreateDelegationToken",
        "authentication",
        (1, 3),
        2,
        "broker controller",
        forwardable=True,
        oldest=0,
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: _api(
        "RenewDelegationToken",
        "authentication",
        (1, 2),
        2,
        "broker controller",
        forwardable=True,
        oldest=0,
    ),
    ApiKey.EXPIRE_DELEGATION_TOKEN: _api(
        "ExpireDelegationToken",
        "authentication",
        (1, 2),
        2,
        "broker controller",
        forwardable=True,
        oldest=0,
    ),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _api(
        "DescribeDelegationToken", "authentication", (1, 3), 2, "broker controller", oldest=0
    ),
    ApiKey.DELETE_GROUPS: _api("DeleteGroups", "coordinators.groups", (0, 2), 2),
    ApiKey.ELECT_LEADERS: _api(
        "ElectLeaders", "cluster", (0, 2), 2, "broker controller", forwardable=True
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _api(
        "IncrementalAlterConfigs", "admin.configs", (0, 1), 1, "broker controller", forwardable=True
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _api(
        "AlterPartitionReassignments", "cluster", (0, 1), 0, "broker controller", forwardable=True
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _api(
        "ListPartitionReassignments", "cluster", (0, 0), 0, "broker controller", forwardable=True
    ),
    ApiKey.OFFSET_DELETE: _api("OffsetDelete", "coordinators.offsets", (0, 0), NO_FLEXIBLE),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _api("DescribeClientQuotas", "admin.quotas", (0, 1), 1),
    ApiKey.ALTER_CLIENT_QUOTAS: _api(
        "AlterClientQuotas", "admin.quotas", (0, 1), 1, "broker controller", forwardable=True
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _api(
        "DescribeUserScramCredentials", "authentication", (0, 0), 0, "broker controller"
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _api(
        "AlterUserScramCredentials",
        "authentication",
        (0, 0),
        0,
        "broker controller",
        forwardable=True,
    ),
    ApiKey.VOTE: _api("Vote", "quorum", (0, 2), 0, "controller", cluster_action=True),
    ApiKey.BEGIN_QUORUM_EPOCH: _api(
        "BeginQuorumEpoch", "quorum", (0, 1), 1, "controller", cluster_action=True
    ),
    ApiKey.END_QUORUM_EPOCH: _api(
        "EndQuorumEpoch", "quorum", (0, 1), 1, "controller", cluster_action=True
    ),
    ApiKey.DESCRIBE_QUORUM: _api(
        "DescribeQuorum",
        "quorum",
        (0, 2),
        0,
        "broker controller",
        forwardable=True,
        cluster_action=True,
    ),
    ApiKey.ALTER_PARTITION: _api(
        "AlterPartition", "cluster", (2, 3), 2, "controller", cluster_action=True
    ),
    ApiKey.UPDATE_FEATURES: _api(
        "UpdateFeatures",
        "cluster",
        (0, 2),
        0,
        "broker controller",
        forwardable=True,
        cluster_action=True,
    ),
    ApiKey.ENVELOPE: _api("Envelope", "cluster", (0, 0), 0, "controller", cluster_action=True),
    ApiKey.FETCH_SNAPSHOT: _api("FetchSnapshot", "quorum", (0, 1), 0, "controller"),
    ApiKey.DESCRIBE_CLUSTER: _api("DescribeCluster", "metadata", (0, 2), 0, "broker controller"),
    ApiKey.DESCRIBE_PRODUCERS: _api("DescribeProducers", "coordinators.transactions", (0, 0), 0),
    ApiKey.BROKER_REGISTRATION: _api(
        "BrokerRegistration", "cluster", (0, 4), 0, "controller", cluster_action=True
    ),
    ApiKey.BROKER_HEARTBEAT: _api(
        "BrokerHeartbeat", "cluster", (0, 2), 0, "controller", cluster_action=True
    ),
    ApiKey.UNREGISTER_BROKER: _api(
        "UnregisterBroker", "cluster", (0, 0), 0, "broker controller", forwardable=True
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: _api(
        "DescribeTransactions", "coordinators.transactions", (0, 0), 0
    ),
    ApiKey.LIST_TRANSACTIONS: _api("ListTransactions", "coordinators.transactions", (0, 2), 0),
    ApiKey.ALLOCATE_PRODUCER_IDS: _api(
        "AllocateProducerIds",
        "cluster",
        (0, 0),
        0,
        "controller",
        forwardable=True,
        cluster_action=True,
    ),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _api(
        "ConsumerGroupHeartbeat", "coordinators.consumer_groups", (0, 1), 0
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _api(
        "ConsumerGroupDescribe", "coordinators.consumer_groups", (0, 1), 0
    ),
    ApiKey.CONTROLLER_REGISTRATION: _api(
        "ControllerRegistration", "cluster", (0, 0), 0, "controller"
    ),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: _api(
        "GetTelemetrySubscriptions", "admin.telemetry", (0, 0), 0
    ),
    ApiKey.PUSH_TELEMETRY: _api("PushTelemetry", "admin.telemetry", (0, 0), 0),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: _api(
        "AssignReplicasToDirs", "cluster", (0, 0), 0, "controller"
    ),
    ApiKey.LIST_CONFIG_RESOURCES: _api("ListConfigResources", "admin.configs", (0, 1), 0),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _api("DescribeTopicPartitions", "metadata", (0, 0), 0),
    ApiKey.SHARE_GROUP_HEARTBEAT: _api(
        "ShareGroupHeartbeat", "coordinators.share_groups", (1, 1), 1
    ),
    ApiKey.SHARE_GROUP_DESCRIBE: _api("ShareGroupDescribe", "coordinators.share_groups", (1, 1), 1),
    ApiKey.SHARE_FETCH: _api("ShareFetch", "coordinators.share_groups", (1, 2), 1),
    ApiKey.SHARE_ACKNOWLEDGE: _api("ShareAcknowledge", "coordinators.share_groups", (1, 2), 1),
    ApiKey.ADD_RAFT_VOTER: _api(
        "AddRaftVoter", "quorum", (0, 1), 0, "broker controller", forwardable=True
    ),
    ApiKey.REMOVE_RAFT_VOTER: _api(
        "RemoveRaftVoter", "quorum", (0, 0), 0, "broker controller", forwardable=True
    ),
    ApiKey.UPDATE_RAFT_VOTER: _api("UpdateRaftVoter", "quorum", (0, 0), 0, "controller"),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _api(
        "InitializeShareGroupState", "coordinators.share_state", (0, 0), 0, cluster_action=True
    ),
    ApiKey.READ_SHARE_GROUP_STATE: _api(
        "ReadShareGroupState", "coordinators.share_state", (0, 0), 0, cluster_action=True
    ),
    ApiKey.WRITE_SHARE_GROUP_STATE: _api(
        "WriteShareGroupState", "coordinators.share_state", (0, 1), 0, cluster_action=True
    ),
    ApiKey.DELETE_SHARE_GROUP_STATE: _api(
        "DeleteShareGroupState", "coordinators.share_state", (0, 0), 0, cluster_action=True
    ),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _api(
        "ReadShareGroupStateSummary", "coordinators.share_state", (0, 1), 0, cluster_action=True
    ),
    ApiKey.STREAMS_GROUP_HEARTBEAT: _api(
        "StreamsGroupHeartbeat", "coordinators.streams_groups", (0, 0), 0
    ),
    ApiKey.STREAMS_GROUP_DESCRIBE: _api(
        "StreamsGroupDescribe", "coordinators.streams_groups", (0, 0), 0
    ),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: _api(
        "DescribeShareGroupOffsets", "coordinators.share_groups", (0, 1), 0
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: _api(
        "AlterShareGroupOffsets", "coordinators.share_groups", (0, 0), 0
    ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: _api(
        "DeleteShareGroupOffsets", "coordinators.share_groups", (0, 0), 0
    ),
}


_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)


def api_info(api_key: int) -> ApiInfo:
    """The entry of an API.

    Raises KafkaError(UNSUPPORTED_VERSION) if the key is unknown or has no version left.
    """
    info = APIS.get(api_key)
    if info is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"no API has key {api_key}")
    return info


def valid_versions(api_key: int) -> tuple[int, int]:
    """Lowest and highest stable version of an API, both inclusive, as in Kafka 4.3.1's schemas."""
    info = api_info(api_key)
    return info.min_version, info.max_version


def latest_version_unstable(api_key: int) -> bool:
    """Whether the highest version is served only with `unstable.api.versions.enable`."""
    info = api_info(api_key)
    return info.unstable_max_version != info.max_version


def request_header_version(api_key: int, version: int) -> int:
    """1, or 2 where the version is flexible. Kafka 4 has removed version 0."""
    return 2 if version >= api_info(api_key).flexible_from else 1


def response_header_version(api_key: int, version: int) -> int:
    """0, or 1 where the version is flexible.

    Always 0 for ApiVersions, whose reader does not know the broker's versions yet (KIP-511).
    """
    info = APIS.get(api_key)
    if info is None:
        info = api_info(api_key)
    return 1 if version >= info.flexible_from and api_key != _API_VERSIONS else 0


@cache
def request_class(api_key: int) -> type[Request]:
    """The request's class; imports its family at first use."""
    return cast("type[Request]", _message_class(api_info(api_key), "Request"))


@cache
def response_class(api_key: int) -> type[Response]:
    """The response's class; imports its family at first use."""
    return cast("type[Response]", _message_class(api_info(api_key), "Response"))


def _message_class(info: ApiInfo, suffix: str) -> object:
    module = import_module(f"kbroker.protocol.messages.{info.family}")
    return getattr(module, info.name + suffix)
