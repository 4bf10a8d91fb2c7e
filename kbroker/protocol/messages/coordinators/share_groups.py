"""Share groups (KIP-932)."""

from __future__ import annotations

from kbroker.model import Uuid
from kbroker.protocol.codecs.schema import (
    Records,
    Request,
    Response,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uuid,
)


class ShareGroupHeartbeatRequest(
    Request, api_key=76, versions="1", flexible="0+", listeners="broker"
):
    group_id: str = string("0+")
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    rack_id: str | None = string("0+", nullable="0+", default=None)
    subscribed_topic_names: list[str] | None = array("string", "0+", nullable="0+", default=None)


class ShareGroupHeartbeatResponse(Response, api_key=76, versions="1", flexible="0+"):
    class TopicPartitions(Struct):
        topic_id: Uuid = uuid("0+")
        partitions: list[int] = array("int32", "0+")

    class Assignment(Struct):
        topic_partitions: list[ShareGroupHeartbeatResponse.TopicPartitions] = array(
            "TopicPartitions", "0+"
        )

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    member_id: str | None = string("0+", nullable="0+", default=None)
    member_epoch: int = int32("0+")
    heartbeat_interval_ms: int = int32("0+")
    assignment: ShareGroupHeartbeatResponse.Assignment | None = struct(
        "Assignment", "0+", nullable="0+", default=None
    )


class ShareGroupDescribeRequest(
    Request, api_key=77, versions="1", flexible="0+", listeners="broker"
):
    group_ids: list[str] = array("string", "0+")
    include_authorized_operations: bool = boolean("0+")


class ShareGroupDescribeResponse(Response, api_key=77, versions="1", flexible="0+"):
    class TopicPartitions(Struct):
        topic_id: Uuid = uuid("0+")
        topic_name: str = string("0+")
        partitions: list[int] = array("int32", "0+")

    class Assignment(Struct):
        topic_partitions: list[ShareGroupDescribeResponse.TopicPartitions] = array(
            "TopicPartitions", "0+"
        )

    class Member(Struct):
        member_id: str = string("0+")
        rack_id: str | None = string("0+", nullable="0+", default=None)
        member_epoch: int = int32("0+")
        client_id: str = string("0+")
        client_host: str = string("0+")
        subscribed_topic_names: list[str] = array("string", "0+")
        assignment: ShareGroupDescribeResponse.Assignment = struct("Assignment", "0+")

    class DescribedGroup(Struct):
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)
        group_id: str = string("0+")
        group_state: str = string("0+")
        group_epoch: int = int32("0+")
        assignment_epoch: int = int32("0+")
        assignor_name: str = string("0+")
        members: list[ShareGroupDescribeResponse.Member] = array("Member", "0+")
        authorized_operations: int = int32("0+", default=-0x8000_0000)

    throttle_time_ms: int = int32("0+")
    groups: list[ShareGroupDescribeResponse.DescribedGroup] = array("DescribedGroup", "0+")


class ShareFetchRequest(Request, api_key=78, versions="1-2", flexible="0+", listeners="broker"):
    class AcknowledgementBatch(Struct):
        first_offset: int = int64("0+")
        last_offset: int = int64("0+")
        acknowledge_types: list[int] = array("int8", "0+")

    class FetchPartition(Struct):
        partition_index: int = int32("0+")
        partition_max_bytes: int = int32("0")
        acknowledgement_batches: list[ShareFetchRequest.AcknowledgementBatch] = array(
            "AcknowledgementBatch", "0+"
        )

    class FetchTopic(Struct):
        topic_id: Uuid = uuid("0+")
        partitions: list[ShareFetchRequest.FetchPartition] = array("FetchPartition", "0+")

    class ForgottenTopic(Struct):
        topic_id: Uuid = uuid("0+")
        partitions: list[int] = array("int32", "0+")

    group_id: str | None = string("0+", nullable="0+", default=None)
    member_id: str | None = string("0+", nullable="0+")
    share_session_epoch: int = int32("0+")
    max_wait_ms: int = int32("0+")
    min_bytes: int = int32("0+")
    max_bytes: int = int32("0+", default=0x7FFF_FFFF)
    max_records: int = int32("1+")
    batch_size: int = int32("1+")
    share_acquire_mode: int = int8("2+", default=0, ignorable=True)
    is_renew_ack: bool = boolean("2+", default=False)
    topics: list[ShareFetchRequest.FetchTopic] = array("FetchTopic", "0+")
    forgotten_topics_data: list[ShareFetchRequest.ForgottenTopic] = array("ForgottenTopic", "0+")


class ShareFetchResponse(Response, api_key=78, versions="1-2", flexible="0+"):
    class LeaderIdAndEpoch(Struct):
        leader_id: int = int32("0+")
        leader_epoch: int = int32("0+")

    class AcquiredRecords(Struct):
        first_offset: int = int64("0+")
        last_offset: int = int64("0+")
        delivery_count: int = int16("0+")

    class PartitionData(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)
        acknowledge_error_code: int = int16("0+")
        acknowledge_error_message: str | None = string("0+", nullable="0+", default=None)
        current_leader: ShareFetchResponse.LeaderIdAndEpoch = struct("LeaderIdAndEpoch", "0+")
        records: Records | None = records("0+", nullable="0")
        acquired_records: list[ShareFetchResponse.AcquiredRecords] = array("AcquiredRecords", "0+")

    class ShareFetchableTopicResponse(Struct):
        topic_id: Uuid = uuid("0+")
        partitions: list[ShareFetchResponse.PartitionData] = array("PartitionData", "0+")

    class NodeEndpoint(Struct):
        node_id: int = int32("0+")
        host: str = string("0+")
        port: int = int32("0+")
        rack: str | None = string("0+", nullable="0+", default=None)

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = int32("1+")
    responses: list[ShareFetchResponse.ShareFetchableTopicResponse] = array(
        "ShareFetchableTopicResponse", "0+"
    )
    node_endpoints: list[ShareFetchResponse.NodeEndpoint] = array("NodeEndpoint", "0+")


class ShareAcknowledgeRequest(
    Request, api_key=79, versions="1-2", flexible="0+", listeners="broker"
):
    class AcknowledgementBatch(Struct):
        first_offset: int = int64("0+")
        last_offset: int = int64("0+")
        acknowledge_types: list[int] = array("int8", "0+")

    class AcknowledgePartition(Struct):
        partition_index: int = int32("0+")
        acknowledgement_batches: list[ShareAcknowledgeRequest.AcknowledgementBatch] = array(
            "AcknowledgementBatch", "0+"
        )

    class AcknowledgeTopic(Struct):
        topic_id: Uuid = uuid("0+")
        partitions: list[ShareAcknowledgeRequest.AcknowledgePartition] = array(
            "AcknowledgePartition", "0+"
        )

    group_id: str | None = string("0+", nullable="0+", default=None)
    member_id: str | None = string("0+", nullable="0+")
    share_session_epoch: int = int32("0+")
    is_renew_ack: bool = boolean("2+", default=False)
    topics: list[ShareAcknowledgeRequest.AcknowledgeTopic] = array("AcknowledgeTopic", "0+")


class ShareAcknowledgeResponse(Response, api_key=79, versions="1-2", flexible="0+"):
    class LeaderIdAndEpoch(Struct):
        leader_id: int = int32("0+")
        leader_epoch: int = int32("0+")

    class PartitionData(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)
        current_leader: ShareAcknowledgeResponse.LeaderIdAndEpoch = struct("LeaderIdAndEpoch", "0+")

    class ShareAcknowledgeTopicResponse(Struct):
        topic_id: Uuid = uuid("0+")
        partitions: list[ShareAcknowledgeResponse.PartitionData] = array("PartitionData", "0+")

    class NodeEndpoint(Struct):
        node_id: int = int32("0+")
        host: str = string("0+")
        port: int = int32("0+")
        rack: str | None = string("0+", nullable="0+", default=None)

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = int32("2+", ignorable=True)
    responses: list[ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse] = array(
        "ShareAcknowledgeTopicResponse", "0+"
    )
    node_endpoints: list[ShareAcknowledgeResponse.NodeEndpoint] = array("NodeEndpoint", "0+")


class DescribeShareGroupOffsetsRequest(
    Request, api_key=90, versions="0-1", flexible="0+", listeners="broker"
):
    class DescribeShareGroupOffsetsRequestTopic(Struct):
        topic_name: str = string("0+")
        partitions: list[int] = array("int32", "0+")

    class DescribeShareGroupOffsetsRequestGroup(Struct):
        group_id: str = string("0+")
        topics: (
            list[DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestTopic] | None
        ) = array("DescribeShareGroupOffsetsRequestTopic", "0+", nullable="0+")

    groups: list[DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup] = array(
        "DescribeShareGroupOffsetsRequestGroup", "0+"
    )


class DescribeShareGroupOffsetsResponse(Response, api_key=90, versions="0-1", flexible="0+"):
    class DescribeShareGroupOffsetsResponsePartition(Struct):
        partition_index: int = int32("0+")
        start_offset: int = int64("0+")
        leader_epoch: int = int32("0+")
        lag: int = int64("1+", default=-1, ignorable=True)
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)

    class DescribeShareGroupOffsetsResponseTopic(Struct):
        topic_name: str = string("0+")
        topic_id: Uuid = uuid("0+")
        partitions: list[
            DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition
        ] = array("DescribeShareGroupOffsetsResponsePartition", "0+")

    class DescribeShareGroupOffsetsResponseGroup(Struct):
        group_id: str = string("0+")
        topics: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic] = (
            array("DescribeShareGroupOffsetsResponseTopic", "0+")
        )
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)

    throttle_time_ms: int = int32("0+")
    groups: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup] = array(
        "DescribeShareGroupOffsetsResponseGroup", "0+"
    )


class AlterShareGroupOffsetsRequest(
    Request, api_key=91, versions="0", flexible="0+", listeners="broker"
):
    class AlterShareGroupOffsetsRequestPartition(Struct):
        partition_index: int = int32("0+")
        start_offset: int = int64("0+")

    class AlterShareGroupOffsetsRequestTopic(Struct):
        topic_name: str = string("0+")
        partitions: list[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition] = (
            array("AlterShareGroupOffsetsRequestPartition", "0+")
        )

    group_id: str = string("0+")
    topics: list[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic] = array(
        "AlterShareGroupOffsetsRequestTopic", "0+"
    )


class AlterShareGroupOffsetsResponse(Response, api_key=91, versions="0", flexible="0+"):
    class AlterShareGroupOffsetsResponsePartition(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)

    class AlterShareGroupOffsetsResponseTopic(Struct):
        topic_name: str = string("0+")
        topic_id: Uuid = uuid("0+")
        partitions: list[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition] = (
            array("AlterShareGroupOffsetsResponsePartition", "0+")
        )

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    responses: list[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic] = array(
        "AlterShareGroupOffsetsResponseTopic", "0+"
    )


class DeleteShareGroupOffsetsRequest(
    Request, api_key=92, versions="0", flexible="0+", listeners="broker"
):
    class DeleteShareGroupOffsetsRequestTopic(Struct):
        topic_name: str = string("0+")

    group_id: str = string("0+")
    topics: list[DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic] = array(
        "DeleteShareGroupOffsetsRequestTopic", "0+"
    )


class DeleteShareGroupOffsetsResponse(Response, api_key=92, versions="0", flexible="0+"):
    class DeleteShareGroupOffsetsResponseTopic(Struct):
        topic_name: str = string("0+")
        topic_id: Uuid = uuid("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    responses: list[DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic] = array(
        "DeleteShareGroupOffsetsResponseTopic", "0+"
    )
