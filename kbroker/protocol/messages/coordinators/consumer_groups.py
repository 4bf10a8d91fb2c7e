"""The consumer group protocol of KIP-848."""

from __future__ import annotations

from kbroker.model import Uuid
from kbroker.protocol.codecs.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    string,
    struct,
    uuid,
)


class ConsumerGroupHeartbeatRequest(
    Request, api_key=68, versions="0-1", flexible="0+", listeners="broker"
):
    class TopicPartitions(Struct):
        topic_id: Uuid = uuid("0+")
        partitions: list[int] = array("int32", "0+")

    group_id: str = string("0+")
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    instance_id: str | None = string("0+", nullable="0+", default=None)
    rack_id: str | None = string("0+", nullable="0+", default=None)
    rebalance_timeout_ms: int = int32("0+", default=-1)
    subscribed_topic_names: list[str] | None = array("string", "0+", nullable="0+", default=None)
    subscribed_topic_regex: str | None = string("1+", nullable="1+", default=None)
    server_assignor: str | None = string("0+", nullable="0+", default=None)
    topic_partitions: list[ConsumerGroupHeartbeatRequest.TopicPartitions] | None = array(
        "TopicPartitions", "0+", nullable="0+", default=None
    )


class ConsumerGroupHeartbeatResponse(Response, api_key=68, versions="0-1", flexible="0+"):
    class TopicPartitions(Struct):
        topic_id: Uuid = uuid("0+")
        partitions: list[int] = array("int32", "0+")

    class Assignment(Struct):
        topic_partitions: list[ConsumerGroupHeartbeatResponse.TopicPartitions] = array(
            "TopicPartitions", "0+"
        )

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    member_id: str | None = string("0+", nullable="0+", default=None)
    member_epoch: int = int32("0+")
    heartbeat_interval_ms: int = int32("0+")
    assignment: ConsumerGroupHeartbeatResponse.Assignment | None = struct(
        "Assignment", "0+", nullable="0+", default=None
    )


class ConsumerGroupDescribeRequest(
    Request, api_key=69, versions="0-1", flexible="0+", listeners="broker"
):
    group_ids: list[str] = array("string", "0+")
    include_authorized_operations: bool = boolean("0+")


class ConsumerGroupDescribeResponse(Response, api_key=69, versions="0-1", flexible="0+"):
    class TopicPartitions(Struct):
        topic_id: Uuid = uuid("0+")
        topic_name: str = string("0+")
        partitions: list[int] = array("int32", "0+")

    class Assignment(Struct):
        topic_partitions: list[ConsumerGroupDescribeResponse.TopicPartitions] = array(
            "TopicPartitions", "0+"
        )

    class Member(Struct):
        member_id: str = string("0+")
        instance_id: str | None = string("0+", nullable="0+", default=None)
        rack_id: str | None = string("0+", nullable="0+", default=None)
        member_epoch: int = int32("0+")
        client_id: str = string("0+")
        client_host: str = string("0+")
        subscribed_topic_names: list[str] = array("string", "0+")
        subscribed_topic_regex: str | None = string("0+", nullable="0+", default=None)
        assignment: ConsumerGroupDescribeResponse.Assignment = struct("Assignment", "0+")
        target_assignment: ConsumerGroupDescribeResponse.Assignment = struct("Assignment", "0+")
        member_type: int = int8("1+", default=-1, ignorable=True)

    class DescribedGroup(Struct):
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)
        group_id: str = string("0+")
        group_state: str = string("0+")
        group_epoch: int = int32("0+")
        assignment_epoch: int = int32("0+")
        assignor_name: str = string("0+")
        members: list[ConsumerGroupDescribeResponse.Member] = array("Member", "0+")
        authorized_operations: int = int32("0+", default=-0x8000_0000)

    throttle_time_ms: int = int32("0+")
    groups: list[ConsumerGroupDescribeResponse.DescribedGroup] = array("DescribedGroup", "0+")
