"""Records of share groups in `__consumer_offsets` (KIP-932)."""

from __future__ import annotations

from kbroker.model import Uuid
from kbroker.protocol.codecs.schema import (
    CoordinatorKey,
    CoordinatorValue,
    Struct,
    array,
    int8,
    int32,
    int64,
    string,
    uuid,
)


class ShareGroupMemberMetadataKey(CoordinatorKey, api_key=10, versions="0"):
    group_id: str = string("0")
    member_id: str = string("0")


class ShareGroupMemberMetadataValue(CoordinatorValue, api_key=10, versions="0", flexible="0+"):
    rack_id: str | None = string("0+", nullable="0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: list[str] = array("string", "0+")


class ShareGroupMetadataKey(CoordinatorKey, api_key=11, versions="0"):
    group_id: str = string("0")


class ShareGroupMetadataValue(CoordinatorValue, api_key=11, versions="0", flexible="0+"):
    epoch: int = int32("0+")
    metadata_hash: int = int64("0+")


class ShareGroupTargetAssignmentMetadataKey(CoordinatorKey, api_key=12, versions="0"):
    group_id: str = string("0")


class ShareGroupTargetAssignmentMetadataValue(
    CoordinatorValue, api_key=12, versions="0", flexible="0+"
):
    assignment_epoch: int = int32("0+")
    assignment_timestamp: int = int64("0+", tag=0, tagged="0+", default=0, ignorable=True)


class ShareGroupTargetAssignmentMemberKey(CoordinatorKey, api_key=13, versions="0"):
    group_id: str = string("0")
    member_id: str = string("0")


class ShareGroupTargetAssignmentMemberValue(
    CoordinatorValue, api_key=13, versions="0", flexible="0+"
):
    class TopicPartition(Struct):
        topic_id: Uuid = uuid("0+")
        partitions: list[int] = array("int32", "0+")

    topic_partitions: list[ShareGroupTargetAssignmentMemberValue.TopicPartition] = array(
        "TopicPartition", "0+"
    )


class ShareGroupCurrentMemberAssignmentKey(CoordinatorKey, api_key=14, versions="0"):
    group_id: str = string("0")
    member_id: str = string("0")


class ShareGroupCurrentMemberAssignmentValue(
    CoordinatorValue, api_key=14, versions="0", flexible="0+"
):
    class TopicPartitions(Struct):
        topic_id: Uuid = uuid("0+")
        partitions: list[int] = array("int32", "0+")

    member_epoch: int = int32("0+")
    previous_member_epoch: int = int32("0+")
    state: int = int8("0+")
    assigned_partitions: list[ShareGroupCurrentMemberAssignmentValue.TopicPartitions] = array(
        "TopicPartitions", "0+"
    )


class ShareGroupStatePartitionMetadataKey(CoordinatorKey, api_key=15, versions="0"):
    group_id: str = string("0")


class ShareGroupStatePartitionMetadataValue(
    CoordinatorValue, api_key=15, versions="0", flexible="0+"
):
    class TopicPartitionsInfo(Struct):
        topic_id: Uuid = uuid("0+")
        topic_name: str = string("0+")
        partitions: list[int] = array("int32", "0+")

    class TopicInfo(Struct):
        topic_id: Uuid = uuid("0+")
        topic_name: str = string("0+")

    initializing_topics: list[ShareGroupStatePartitionMetadataValue.TopicPartitionsInfo] = array(
        "TopicPartitionsInfo", "0+"
    )
    initialized_topics: list[ShareGroupStatePartitionMetadataValue.TopicPartitionsInfo] = array(
        "TopicPartitionsInfo", "0+"
    )
    deleting_topics: list[ShareGroupStatePartitionMetadataValue.TopicInfo] = array(
        "TopicInfo", "0+"
    )
