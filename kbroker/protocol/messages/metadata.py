"""Metadata: the cluster as clients see it."""

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


class MetadataRequest(Request, api_key=3, versions="0-13", flexible="9+", listeners="broker"):
    class MetadataRequestTopic(Struct):
        topic_id: Uuid = uuid("10+", ignorable=True)
        name: str | None = string("0+", nullable="10+")

    topics: list[MetadataRequest.MetadataRequestTopic] | None = array(
        "MetadataRequestTopic", "0+", nullable="1+"
    )
    allow_auto_topic_creation: bool = boolean("4+", default=True)
    include_cluster_authorized_operations: bool = boolean("8-10")
    include_topic_authorized_operations: bool = boolean("8+")


class MetadataResponse(Response, api_key=3, versions="0-13", flexible="9+"):
    class MetadataResponseBroker(Struct):
        node_id: int = int32("0+")
        host: str = string("0+")
        port: int = int32("0+")
        rack: str | None = string("1+", nullable="1+", default=None, ignorable=True)

    class MetadataResponsePartition(Struct):
        error_code: int = int16("0+")
        partition_index: int = int32("0+")
        leader_id: int = int32("0+")
        leader_epoch: int = int32("7+", default=-1, ignorable=True)
        replica_nodes: list[int] = array("int32", "0+")
        isr_nodes: list[int] = array("int32", "0+")
        offline_replicas: list[int] = array("int32", "5+", ignorable=True)

    class MetadataResponseTopic(Struct):
        error_code: int = int16("0+")
        name: str | None = string("0+", nullable="12+")
        topic_id: Uuid = uuid("10+", ignorable=True)
        is_internal: bool = boolean("1+", default=False, ignorable=True)
        partitions: list[MetadataResponse.MetadataResponsePartition] = array(
            "MetadataResponsePartition", "0+"
        )
        topic_authorized_operations: int = int32("8+", default=-0x8000_0000)

    throttle_time_ms: int = int32("3+", ignorable=True)
    brokers: list[MetadataResponse.MetadataResponseBroker] = array("MetadataResponseBroker", "0+")
    cluster_id: str | None = string("2+", nullable="2+", default=None, ignorable=True)
    controller_id: int = int32("1+", default=-1, ignorable=True)
    topics: list[MetadataResponse.MetadataResponseTopic] = array("MetadataResponseTopic", "0+")
    cluster_authorized_operations: int = int32("8-10", default=-0x8000_0000)
    error_code: int = int16("13+", ignorable=True)


class DescribeTopicPartitionsRequest(
    Request, api_key=75, versions="0", flexible="0+", listeners="broker"
):
    class TopicRequest(Struct):
        name: str = string("0+")

    class Cursor(Struct):
        topic_name: str = string("0+")
        partition_index: int = int32("0+")

    topics: list[DescribeTopicPartitionsRequest.TopicRequest] = array("TopicRequest", "0+")
    response_partition_limit: int = int32("0+", default=2000)
    cursor: DescribeTopicPartitionsRequest.Cursor | None = struct(
        "Cursor", "0+", nullable="0+", default=None
    )


class DescribeTopicPartitionsResponse(Response, api_key=75, versions="0", flexible="0+"):
    class DescribeTopicPartitionsResponsePartition(Struct):
        error_code: int = int16("0+")
        partition_index: int = int32("0+")
        leader_id: int = int32("0+")
        leader_epoch: int = int32("0+", default=-1, ignorable=True)
        replica_nodes: list[int] = array("int32", "0+")
        isr_nodes: list[int] = array("int32", "0+")
        eligible_leader_replicas: list[int] | None = array(
            "int32", "0+", nullable="0+", default=None
        )
        last_known_elr: list[int] | None = array("int32", "0+", nullable="0+", default=None)
        offline_replicas: list[int] = array("int32", "0+", ignorable=True)

    class DescribeTopicPartitionsResponseTopic(Struct):
        error_code: int = int16("0+")
        name: str | None = string("0+", nullable="0+")
        topic_id: Uuid = uuid("0+", ignorable=True)
        is_internal: bool = boolean("0+", default=False, ignorable=True)
        partitions: list[
            DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition
        ] = array("DescribeTopicPartitionsResponsePartition", "0+")
        topic_authorized_operations: int = int32("0+", default=-0x8000_0000)

    class Cursor(Struct):
        topic_name: str = string("0+")
        partition_index: int = int32("0+")

    throttle_time_ms: int = int32("0+", ignorable=True)
    topics: list[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic] = array(
        "DescribeTopicPartitionsResponseTopic", "0+"
    )
    next_cursor: DescribeTopicPartitionsResponse.Cursor | None = struct(
        "Cursor", "0+", nullable="0+", default=None
    )


class DescribeClusterRequest(
    Request, api_key=60, versions="0-2", flexible="0+", listeners="broker controller"
):
    include_cluster_authorized_operations: bool = boolean("0+")
    endpoint_type: int = int8("1+", default=1)
    include_fenced_brokers: bool = boolean("2+")


class DescribeClusterResponse(Response, api_key=60, versions="0-2", flexible="0+"):
    class DescribeClusterBroker(Struct):
        broker_id: int = int32("0+")
        host: str = string("0+")
        port: int = int32("0+")
        rack: str | None = string("0+", nullable="0+", default=None)
        is_fenced: bool = boolean("2+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    endpoint_type: int = int8("1+", default=1)
    cluster_id: str = string("0+")
    controller_id: int = int32("0+", default=-1)
    brokers: list[DescribeClusterResponse.DescribeClusterBroker] = array(
        "DescribeClusterBroker", "0+"
    )
    cluster_authorized_operations: int = int32("0+", default=-0x8000_0000)
