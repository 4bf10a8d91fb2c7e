"""A request of each served API, for a topic with one record."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.admin.acls import (
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from kbroker.protocol.messages.admin.configs import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)
from kbroker.protocol.messages.admin.log_dirs import (
    AlterReplicaLogDirsRequest,
    DescribeLogDirsRequest,
)
from kbroker.protocol.messages.admin.quotas import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
)
from kbroker.protocol.messages.admin.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
)
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.messages.authentication import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
)
from kbroker.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    UpdateFeaturesRequest,
)
from kbroker.protocol.messages.coordinators.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from kbroker.protocol.messages.coordinators.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from kbroker.protocol.messages.coordinators.offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from kbroker.protocol.messages.coordinators.share_groups import (
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
)
from kbroker.protocol.messages.coordinators.share_state import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    WriteShareGroupStateRequest,
)
from kbroker.protocol.messages.coordinators.streams_groups import (
    StreamsGroupDescribeRequest,
    StreamsGroupHeartbeatRequest,
)
from kbroker.protocol.messages.coordinators.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest, OffsetForLeaderEpochRequest
from kbroker.protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
)
from kbroker.protocol.messages.produce import ProduceRequest

TOPIC = "sweep"


def produce(version: int, topic_id: bytes) -> Message:
    batch = build_batch([(1_700_000_000_000, b"k", b"v", [])])
    request = ProduceRequest(acks=-1, timeout_ms=1000)
    data = ProduceRequest.TopicProduceData(
        partition_data=[ProduceRequest.PartitionProduceData(index=0, records=batch)]
    )
    if version >= 13:
        data.topic_id = topic_id
    else:
        data.name = TOPIC
    request.topic_data.append(data)
    return request


def fetch(version: int, topic_id: bytes) -> Message:
    topic = FetchRequest.FetchTopic(
        partitions=[FetchRequest.FetchPartition(partition=0, partition_max_bytes=1000)]
    )
    if version >= 13:
        topic.topic_id = topic_id
    else:
        topic.topic = TOPIC
    return FetchRequest(max_wait_ms=1, min_bytes=1, topics=[topic])


def list_offsets(version: int, topic_id: bytes) -> Message:
    partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    topic = ListOffsetsRequest.ListOffsetsTopic(name=TOPIC, partitions=[partition])
    return ListOffsetsRequest(replica_id=-1, topics=[topic])


def metadata(version: int, topic_id: bytes) -> Message:
    return MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=TOPIC)],
        include_topic_authorized_operations=version >= 8,
    )


def create_topics(version: int, topic_id: bytes) -> Message:
    topic = CreateTopicsRequest.CreatableTopic(
        name=f"made-by-{version}", num_partitions=1, replication_factor=1
    )
    return CreateTopicsRequest(topics=[topic])


def delete_topics(version: int, topic_id: bytes) -> Message:
    if version >= 6:
        return DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="nope")])
    return DeleteTopicsRequest(topic_names=["nope"])


def find_coordinator(version: int, topic_id: bytes) -> Message:
    if version >= 4:
        return FindCoordinatorRequest(coordinator_keys=["group"])
    return FindCoordinatorRequest(key="group")


def join_group(version: int, topic_id: bytes) -> Message:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"m")
    return JoinGroupRequest(
        group_id=f"joined-{version}",
        session_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[protocol],
        rebalance_timeout_ms=10_000 if version >= 1 else -1,
    )


def leave_group(version: int, topic_id: bytes) -> Message:
    if version >= 3:
        return LeaveGroupRequest(
            group_id="group", members=[LeaveGroupRequest.MemberIdentity(member_id="nobody")]
        )
    return LeaveGroupRequest(group_id="group", member_id="nobody")


def offset_commit(version: int, topic_id: bytes) -> Message:
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=5, committed_metadata="note"
    )
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(partitions=[partition])
    if version >= 10:
        topic.topic_id = topic_id
    else:
        topic.name = TOPIC
    return OffsetCommitRequest(group_id="group", generation_id_or_member_epoch=-1, topics=[topic])


def offset_fetch(version: int, topic_id: bytes) -> Message:
    if version < 8:
        topic = OffsetFetchRequest.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0, 1])
        return OffsetFetchRequest(group_id="group", topics=[topic])
    by_group = OffsetFetchRequest.OffsetFetchRequestTopics(partition_indexes=[0, 1])
    if version >= 10:
        by_group.topic_id = topic_id
    else:
        by_group.name = TOPIC
    group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="group", topics=[by_group])
    return OffsetFetchRequest(groups=[group])


def describe_configs(version: int, topic_id: bytes) -> Message:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name=TOPIC, configuration_keys=None
    )
    return DescribeConfigsRequest(resources=[resource])


def alter_configs(version: int, topic_id: bytes) -> Message:
    config = AlterConfigsRequest.AlterableConfig(name="retention.ms", value="3600000")
    resource = AlterConfigsRequest.AlterConfigsResource(
        resource_type=2, resource_name=TOPIC, configs=[config]
    )
    return AlterConfigsRequest(resources=[resource], validate_only=True)


def incremental_alter_configs(version: int, topic_id: bytes) -> Message:
    config = IncrementalAlterConfigsRequest.AlterableConfig(
        name="retention.ms", config_operation=0, value="3600000"
    )
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=2, resource_name=TOPIC, configs=[config]
    )
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)


def alter_client_quotas(version: int, topic_id: bytes) -> Message:
    kind = AlterClientQuotasRequest
    entity = kind.EntityData(entity_type="user", entity_name="nobody")
    operation = kind.OpData(key="producer_byte_rate", value=1e9)
    return kind(entries=[kind.EntryData(entity=[entity], ops=[operation])], validate_only=True)


def delete_records(version: int, topic_id: bytes) -> Message:
    asked = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=0)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name=TOPIC, partitions=[asked])
    return DeleteRecordsRequest(topics=[topic], timeout_ms=1000)


def offset_for_leader_epoch(version: int, topic_id: bytes) -> Message:
    asked = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=TOPIC, partitions=[asked])
    return OffsetForLeaderEpochRequest(topics=[topic])


def describe_producers(version: int, topic_id: bytes) -> Message:
    topic = DescribeProducersRequest.TopicRequest(name=TOPIC, partition_indexes=[0, 9])
    return DescribeProducersRequest(topics=[topic])


def alter_replica_log_dirs(version: int, topic_id: bytes) -> Message:
    topic = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name=TOPIC, partitions=[0])
    return AlterReplicaLogDirsRequest(
        dirs=[AlterReplicaLogDirsRequest.AlterReplicaLogDir(path="/nowhere", topics=[topic])]
    )


def add_partitions(version: int, topic_id: bytes) -> Message:
    topics = [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=TOPIC, partitions=[0, 9])]
    if version < 4:
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="tx",
            v3_and_below_producer_id=1,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=topics,
        )
    transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id="tx", producer_id=1, producer_epoch=0, verify_only=True, topics=topics
    )
    return AddPartitionsToTxnRequest(transactions=[transaction])


def txn_offset_commit(version: int, topic_id: bytes) -> Message:
    partition = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(partition_index=0)
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[partition])
    return TxnOffsetCommitRequest(
        transactional_id="tx", group_id="group", producer_id=1, producer_epoch=0, topics=[topic]
    )


def write_markers(version: int, topic_id: bytes) -> Message:
    topic = WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[0, 9])
    marker = WriteTxnMarkersRequest.WritableTxnMarker(producer_id=900, topics=[topic])
    return WriteTxnMarkersRequest(markers=[marker])


def share_fetch(version: int, topic_id: bytes) -> Message:
    partition = ShareFetchRequest.FetchPartition(partition_index=0)
    return ShareFetchRequest(
        group_id="sharers",
        member_id=f"member{version}",
        max_wait_ms=1,
        max_records=10,
        topics=[ShareFetchRequest.FetchTopic(topic_id=topic_id, partitions=[partition])],
    )


def initialize_state(version: int, topic_id: bytes) -> Message:
    kind = InitializeShareGroupStateRequest
    partition = kind.PartitionData(partition=0, state_epoch=1, start_offset=0)
    topic = kind.InitializeStateData(topic_id=topic_id, partitions=[partition])
    return kind(group_id="sharers", topics=[topic])


def read_state(version: int, topic_id: bytes) -> Message:
    kind = ReadShareGroupStateRequest
    topic = kind.ReadStateData(topic_id=topic_id, partitions=[kind.PartitionData(partition=0)])
    return kind(group_id="sharers", topics=[topic])


def write_state(version: int, topic_id: bytes) -> Message:
    kind = WriteShareGroupStateRequest
    batch = kind.StateBatch(first_offset=0, last_offset=1, delivery_state=2, delivery_count=1)
    partition = kind.PartitionData(partition=0, state_epoch=1, state_batches=[batch])
    topic = kind.WriteStateData(topic_id=topic_id, partitions=[partition])
    return kind(group_id="sharers", topics=[topic])


def delete_state(version: int, topic_id: bytes) -> Message:
    kind = DeleteShareGroupStateRequest
    topic = kind.DeleteStateData(topic_id=topic_id, partitions=[kind.PartitionData(partition=0)])
    return kind(group_id="sharers", topics=[topic])


def read_summary(version: int, topic_id: bytes) -> Message:
    kind = ReadShareGroupStateSummaryRequest
    partitions = [kind.PartitionData(partition=0)]
    topic = kind.ReadStateSummaryData(topic_id=topic_id, partitions=partitions)
    return kind(group_id="sharers", topics=[topic])


def alter_share_offsets(version: int, topic_id: bytes) -> Message:
    kind = AlterShareGroupOffsetsRequest
    partition = kind.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)
    topic = kind.AlterShareGroupOffsetsRequestTopic(topic_name=TOPIC, partitions=[partition])
    return kind(group_id="altered", topics=[topic])


def delete_share_offsets(version: int, topic_id: bytes) -> Message:
    kind = DeleteShareGroupOffsetsRequest
    topic = kind.DeleteShareGroupOffsetsRequestTopic(topic_name=TOPIC)
    return kind(group_id="altered", topics=[topic])


def describe_share_offsets(version: int, topic_id: bytes) -> Message:
    kind = DescribeShareGroupOffsetsRequest
    topic = kind.DescribeShareGroupOffsetsRequestTopic(topic_name=TOPIC, partitions=[0])
    group = kind.DescribeShareGroupOffsetsRequestGroup(group_id="sharers", topics=[topic])
    return kind(groups=[group])


def create_partitions(version: int, topic_id: bytes) -> Message:
    kind = CreatePartitionsRequest
    topic = kind.CreatePartitionsTopic(name=TOPIC, count=1, assignments=None)
    return kind(topics=[topic], timeout_ms=1000)


def elect_leaders(version: int, topic_id: bytes) -> Message:
    kind = ElectLeadersRequest
    request = kind(topic_partitions=[kind.TopicPartitions(topic=TOPIC, partitions=[0])])
    if version > 0:
        request.election_type = 1
    return request


def alter_reassignments(version: int, topic_id: bytes) -> Message:
    kind = AlterPartitionReassignmentsRequest
    partition = kind.ReassignablePartition(partition_index=0, replicas=[99])
    topic = kind.ReassignableTopic(name=TOPIC, partitions=[partition])
    return kind(topics=[topic], allow_replication_factor_change=version == 0)


REQUESTS: dict[ApiKey, Callable[[int, bytes], Message]] = {
    ApiKey.PRODUCE: produce,
    ApiKey.FETCH: fetch,
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.METADATA: metadata,
    ApiKey.DELETE_RECORDS: delete_records,
    ApiKey.DESCRIBE_LOG_DIRS: lambda version, _: DescribeLogDirsRequest(topics=None),
    ApiKey.ALTER_REPLICA_LOG_DIRS: alter_replica_log_dirs,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
    ApiKey.DESCRIBE_PRODUCERS: describe_producers,
    ApiKey.OFFSET_COMMIT: offset_commit,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.FIND_COORDINATOR: find_coordinator,
    ApiKey.JOIN_GROUP: join_group,
    ApiKey.HEARTBEAT: lambda version, _: HeartbeatRequest(group_id="group", member_id="nobody"),
    ApiKey.LEAVE_GROUP: leave_group,
    ApiKey.SYNC_GROUP: lambda version, _: SyncGroupRequest(group_id="group", member_id="nobody"),
    ApiKey.DESCRIBE_GROUPS: lambda version, _: DescribeGroupsRequest(groups=["group"]),
    ApiKey.LIST_GROUPS: lambda version, _: ListGroupsRequest(),
    ApiKey.DELETE_GROUPS: lambda version, _: DeleteGroupsRequest(groups_names=["group"]),
    ApiKey.OFFSET_DELETE: lambda version, _: OffsetDeleteRequest(
        group_id="group", topics=[OffsetDeleteRequest.OffsetDeleteRequestTopic(name="t")]
    ),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: lambda version, _: ConsumerGroupHeartbeatRequest(
        group_id="consumers",
        member_id="member",
        rebalance_timeout_ms=1000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: lambda version, _: ConsumerGroupDescribeRequest(
        group_ids=["consumers"]
    ),
    ApiKey.SHARE_GROUP_HEARTBEAT: lambda version, _: ShareGroupHeartbeatRequest(
        group_id="sharers", member_id="member", subscribed_topic_names=["t"]
    ),
    ApiKey.SHARE_GROUP_DESCRIBE: lambda version, _: ShareGroupDescribeRequest(
        group_ids=["sharers"]
    ),
    ApiKey.SHARE_FETCH: share_fetch,
    ApiKey.SHARE_ACKNOWLEDGE: lambda version, _: ShareAcknowledgeRequest(
        group_id="sharers", member_id="m", share_session_epoch=1
    ),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: initialize_state,
    ApiKey.READ_SHARE_GROUP_STATE: read_state,
    ApiKey.WRITE_SHARE_GROUP_STATE: write_state,
    ApiKey.DELETE_SHARE_GROUP_STATE: delete_state,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: read_summary,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: describe_share_offsets,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: alter_share_offsets,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: delete_share_offsets,
    ApiKey.STREAMS_GROUP_HEARTBEAT: lambda version, _: StreamsGroupHeartbeatRequest(
        group_id="streams",
        member_id="member",
        rebalance_timeout_ms=1000,
        topology=StreamsGroupHeartbeatRequest.Topology(
            subtopologies=[
                StreamsGroupHeartbeatRequest.Subtopology(subtopology_id="0", source_topics=["t"])
            ]
        ),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
    ),
    ApiKey.STREAMS_GROUP_DESCRIBE: lambda version, _: StreamsGroupDescribeRequest(
        group_ids=["streams"]
    ),
    ApiKey.API_VERSIONS: lambda version, _: ApiVersionsRequest(
        client_software_name="test", client_software_version="1"
    ),
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.CREATE_PARTITIONS: create_partitions,
    ApiKey.ELECT_LEADERS: elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda version, _: ListPartitionReassignmentsRequest(),
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: lambda version, _: AddOffsetsToTxnRequest(
        transactional_id="tx", producer_id=1, producer_epoch=0, group_id="group"
    ),
    ApiKey.TXN_OFFSET_COMMIT: txn_offset_commit,
    ApiKey.END_TXN: lambda version, _: EndTxnRequest(
        transactional_id="tx", producer_id=1, producer_epoch=0, committed=True
    ),
    ApiKey.WRITE_TXN_MARKERS: write_markers,
    ApiKey.DESCRIBE_TRANSACTIONS: lambda version, _: DescribeTransactionsRequest(
        transactional_ids=["tx"]
    ),
    ApiKey.LIST_TRANSACTIONS: lambda version, _: ListTransactionsRequest(),
    ApiKey.INIT_PRODUCER_ID: lambda version, _: InitProducerIdRequest(transactional_id=None),
    ApiKey.DESCRIBE_CONFIGS: describe_configs,
    ApiKey.ALTER_CONFIGS: alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: lambda version, _: DescribeClientQuotasRequest(),
    ApiKey.ALTER_CLIENT_QUOTAS: alter_client_quotas,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: lambda version, _: DescribeUserScramCredentialsRequest(
        users=None
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: lambda version, _: AlterUserScramCredentialsRequest(
        deletions=[
            AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="nobody", mechanism=1)
        ]
    ),
    ApiKey.DESCRIBE_ACLS: lambda version, _: DescribeAclsRequest(
        resource_type_filter=1, operation=1, permission_type=1
    ),
    ApiKey.CREATE_ACLS: lambda version, _: CreateAclsRequest(
        creations=[
            CreateAclsRequest.AclCreation(
                resource_type=2, resource_name=TOPIC, operation=2, permission_type=3
            )
        ]
    ),
    ApiKey.DELETE_ACLS: lambda version, _: DeleteAclsRequest(
        filters=[
            DeleteAclsRequest.DeleteAclsFilter(
                resource_type_filter=1, operation=1, permission_type=1
            )
        ]
    ),
    ApiKey.LIST_CONFIG_RESOURCES: lambda version, topic_id: ListConfigResourcesRequest(),
    ApiKey.UPDATE_FEATURES: lambda version, _: UpdateFeaturesRequest(
        feature_updates=[
            UpdateFeaturesRequest.FeatureUpdateKey(feature="group.version", max_version_level=1)
        ]
    ),
    ApiKey.DESCRIBE_CLUSTER: lambda version, _: DescribeClusterRequest(),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: lambda version, _: DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequest.TopicRequest(name=TOPIC)]
    ),
}
