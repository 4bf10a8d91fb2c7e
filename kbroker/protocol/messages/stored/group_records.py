"""Records of `__consumer_offsets`: offsets, classic and consumer groups.

`api_key` is the record type.
"""

from __future__ import annotations

from kbroker.model import Uuid
from kbroker.protocol.codecs.schema import (
    Binary,
    CoordinatorKey,
    CoordinatorValue,
    Struct,
    array,
    binary,
    int8,
    int32,
    int64,
    string,
    struct,
    uuid,
)


class LegacyOffsetCommitKey(CoordinatorKey, api_key=0, versions="0"):
    group: str = string("0")
    topic: str = string("0")
    partition: int = int32("0")


class LegacyOffsetCommitValue(CoordinatorValue, api_key=0, versions="0"):
    offset: int = int64("0")
    metadata: str = string("0")
    commit_timestamp: int = int64("0")


class OffsetCommitKey(CoordinatorKey, api_key=1, versions="0"):
    group: str = string("0")
    topic: str = string("0")
    partition: int = int32("0")


class OffsetCommitValue(CoordinatorValue, api_key=1, versions="0-4", flexible="4+"):
    offset: int = int64("0+")
    leader_epoch: int = int32("3+", default=-1, ignorable=True)
    metadata: str = string("0+")
    commit_timestamp: int = int64("0+")
    expire_timestamp: int = int64("1", default=-1, ignorable=True)
    topic_id: Uuid = uuid("4+", tag=0, tagged="4+", ignorable=True)


class GroupMetadataKey(CoordinatorKey, api_key=2, versions="0"):
    group: str = string("0")


class GroupMetadataValue(CoordinatorValue, api_key=2, versions="0-4", flexible="4+"):
    class MemberMetadata(Struct):
        member_id: str = string("0+")
        group_instance_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)
        client_id: str = string("0+")
        client_host: str = string("0+")
        rebalance_timeout: int = int32("1+", default=-1, ignorable=True)
        session_timeout: int = int32("0+")
        subscription: Binary = binary("0+")
        assignment: Binary = binary("0+")

    protocol_type: str = string("0+")
    generation: int = int32("0+")
    protocol: str | None = string("0+", nullable="0+")
    leader: str | None = string("0+", nullable="0+")
    current_state_timestamp: int = int64("2+", default=-1, ignorable=True)
    members: list[GroupMetadataValue.MemberMetadata] = array("MemberMetadata", "0+")


class ConsumerGroupMetadataKey(CoordinatorKey, api_key=3, versions="0"):
    group_id: str = string("0")


class ConsumerGroupMetadataValue(CoordinatorValue, api_key=3, versions="0", flexible="0+"):
    epoch: int = int32("0+")
    metadata_hash: int = int64("0+", tag=0, tagged="0+", default=0)


class ConsumerGroupPartitionMetadataKey(CoordinatorKey, api_key=4, versions="0"):
    group_id: str = string("0")


class ConsumerGroupPartitionMetadataValue(CoordinatorValue, api_key=4, versions="0", flexible="0+"):
    class PartitionMetadata(Struct):
        partition: int = int32("0+")
        racks: list[str] = array("string", "0+")

    class TopicMetadata(Struct):
        topic_id: Uuid = uuid("0+")
        topic_name: str = string("0+")
        num_partitions: int = int32("0+")
        partition_metadata: list[ConsumerGroupPartitionMetadataValue.PartitionMetadata] = array(
            "PartitionMetadata", "0+"
        )

    topics: list[ConsumerGroupPartitionMetadataValue.TopicMetadata] = array("TopicMetadata", "0+")


class ConsumerGroupMemberMetadataKey(CoordinatorKey, api_key=5, versions="0"):
    group_id: str = string("0")
    member_id: str = string("0")


class ConsumerGroupMemberMetadataValue(CoordinatorValue, api_key=5, versions="0", flexible="0+"):
    class ClassicProtocol(Struct):
        name: str = string("0+")
        metadata: Binary = binary("0+")

    class ClassicMemberMetadata(Struct):
        session_timeout_ms: int = int32("0+")
        supported_protocols: list[ConsumerGroupMemberMetadataValue.ClassicProtocol] = array(
            "ClassicProtocol", "0+"
        )

    instance_id: str | None = string("0+", nullable="0+")
    rack_id: str | None = string("0+", nullable="0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: list[str] = array("string", "0+")
    subscribed_topic_regex: str | None = string("0+", nullable="0+")
    rebalance_timeout_ms: int = int32("0+", default=-1)
    server_assignor: str | None = string("0+", nullable="0+")
    classic_member_metadata: ConsumerGroupMemberMetadataValue.ClassicMemberMetadata | None = struct(
        "ClassicMemberMetadata", "0+", nullable="0+", tag=0, tagged="0+"
    )


class ConsumerGroupTargetAssignmentMetadataKey(CoordinatorKey, api_key=6, versions="0"):
    group_id: str = string("0")


class ConsumerGroupTargetAssignmentMetadataValue(
    CoordinatorValue, api_key=6, versions="0", flexible="0+"
):
    assignment_epoch: int = int32("0+")
    assignment_timestamp: int = int64("0+", tag=0, tagged="0+", default=0, ignorable=True)


class ConsumerGroupTargetAssignmentMemberKey(CoordinatorKey, api_key=7, versions="0"):
    group_id: str = string("0")
    member_id: str = string("0")


class ConsumerGroupTargetAssignmentMemberValue(
    CoordinatorValue, api_key=7, versions="0", flexible="0+"
):
    class TopicPartition(Struct):
        topic_id: Uuid = uuid("0+")
        partitions: list[int] = array("int32", "0+")

    topic_partitions: list[ConsumerGroupTargetAssignmentMemberValue.TopicPartition] = array(
        "TopicPartition", "0+"
    )


class ConsumerGroupCurrentMemberAssignmentKey(CoordinatorKey, api_key=8, versions="0"):
    group_id: str = string("0")
    member_id: str = string("0")


class ConsumerGroupCurrentMemberAssignmentValue(
    CoordinatorValue, api_key=8, versions="0", flexible="0+"
):
    class TopicPartitions(Struct):
        topic_id: Uuid = uuid("0+")
        partitions: list[int] = array("int32", "0+")
        assignment_epochs: list[int] | None = array(
            "int32", "0+", nullable="0+", tag=0, tagged="0+"
        )

    member_epoch: int = int32("0+")
    previous_member_epoch: int = int32("0+")
    state: int = int8("0+")
    assigned_partitions: list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions] = array(
        "TopicPartitions", "0+"
    )
    partitions_pending_revocation: list[
        ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions
    ] = array("TopicPartitions", "0+")


class ConsumerGroupRegularExpressionKey(CoordinatorKey, api_key=16, versions="0"):
    group_id: str = string("0")
    regular_expression: str = string("0")


class ConsumerGroupRegularExpressionValue(
    CoordinatorValue, api_key=16, versions="0", flexible="0+"
):
    topics: list[str] = array("string", "0+")
    version: int = int64("0+")
    timestamp: int = int64("0+")
