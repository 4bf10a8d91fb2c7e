"""Creating topics, adding partitions, deleting topics and records."""

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
    int64,
    string,
    uuid,
)


class CreateTopicsRequest(
    Request, api_key=19, versions="0-7", flexible="5+", listeners="broker controller"
):
    class CreatableReplicaAssignment(Struct):
        partition_index: int = int32("0+")
        broker_ids: list[int] = array("int32", "0+")

    class CreatableTopicConfig(Struct):
        name: str = string("0+")
        value: str | None = string("0+", nullable="0+")

    class CreatableTopic(Struct):
        name: str = string("0+")
        num_partitions: int = int32("0+")
        replication_factor: int = int16("0+")
        assignments: list[CreateTopicsRequest.CreatableReplicaAssignment] = array(
            "CreatableReplicaAssignment", "0+"
        )
        configs: list[CreateTopicsRequest.CreatableTopicConfig] = array(
            "CreatableTopicConfig", "0+"
        )

    topics: list[CreateTopicsRequest.CreatableTopic] = array("CreatableTopic", "0+")
    timeout_ms: int = int32("0+", default=60000)
    validate_only: bool = boolean("1+", default=False)


class CreateTopicsResponse(Response, api_key=19, versions="0-7", flexible="5+"):
    class CreatableTopicConfigs(Struct):
        name: str = string("5+")
        value: str | None = string("5+", nullable="5+")
        read_only: bool = boolean("5+")
        config_source: int = int8("5+", default=-1, ignorable=True)
        is_sensitive: bool = boolean("5+")

    class CreatableTopicResult(Struct):
        name: str = string("0+")
        topic_id: Uuid = uuid("7+", ignorable=True)
        error_code: int = int16("0+")
        error_message: str | None = string("1+", nullable="0+", ignorable=True)
        topic_config_error_code: int = int16("5+", tag=0, tagged="5+", ignorable=True)
        num_partitions: int = int32("5+", default=-1, ignorable=True)
        replication_factor: int = int16("5+", default=-1, ignorable=True)
        configs: list[CreateTopicsResponse.CreatableTopicConfigs] | None = array(
            "CreatableTopicConfigs", "5+", nullable="5+", ignorable=True
        )

    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[CreateTopicsResponse.CreatableTopicResult] = array("CreatableTopicResult", "0+")


class DeleteTopicsRequest(
    Request, api_key=20, versions="0-6", flexible="4+", listeners="broker controller"
):
    class DeleteTopicState(Struct):
        name: str | None = string("6+", nullable="6+", default=None)
        topic_id: Uuid = uuid("6+")

    topics: list[DeleteTopicsRequest.DeleteTopicState] = array("DeleteTopicState", "6+")
    topic_names: list[str] = array("string", "0-5", ignorable=True)
    timeout_ms: int = int32("0+")


class DeleteTopicsResponse(Response, api_key=20, versions="0-6", flexible="4+"):
    class DeletableTopicResult(Struct):
        name: str | None = string("0+", nullable="6+")
        topic_id: Uuid = uuid("6+", ignorable=True)
        error_code: int = int16("0+")
        error_message: str | None = string("5+", nullable="5+", default=None, ignorable=True)

    throttle_time_ms: int = int32("1+", ignorable=True)
    responses: list[DeleteTopicsResponse.DeletableTopicResult] = array("DeletableTopicResult", "0+")


class CreatePartitionsRequest(
    Request, api_key=37, versions="0-3", flexible="2+", listeners="broker controller"
):
    class CreatePartitionsAssignment(Struct):
        broker_ids: list[int] = array("int32", "0+")

    class CreatePartitionsTopic(Struct):
        name: str = string("0+")
        count: int = int32("0+")
        assignments: list[CreatePartitionsRequest.CreatePartitionsAssignment] | None = array(
            "CreatePartitionsAssignment", "0+", nullable="0+"
        )

    topics: list[CreatePartitionsRequest.CreatePartitionsTopic] = array(
        "CreatePartitionsTopic", "0+"
    )
    timeout_ms: int = int32("0+")
    validate_only: bool = boolean("0+")


class CreatePartitionsResponse(Response, api_key=37, versions="0-3", flexible="2+"):
    class CreatePartitionsTopicResult(Struct):
        name: str = string("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)

    throttle_time_ms: int = int32("0+")
    results: list[CreatePartitionsResponse.CreatePartitionsTopicResult] = array(
        "CreatePartitionsTopicResult", "0+"
    )


class DeleteRecordsRequest(Request, api_key=21, versions="0-2", flexible="2+", listeners="broker"):
    class DeleteRecordsPartition(Struct):
        partition_index: int = int32("0+")
        offset: int = int64("0+")

    class DeleteRecordsTopic(Struct):
        name: str = string("0+")
        partitions: list[DeleteRecordsRequest.DeleteRecordsPartition] = array(
            "DeleteRecordsPartition", "0+"
        )

    topics: list[DeleteRecordsRequest.DeleteRecordsTopic] = array("DeleteRecordsTopic", "0+")
    timeout_ms: int = int32("0+")


class DeleteRecordsResponse(Response, api_key=21, versions="0-2", flexible="2+"):
    class DeleteRecordsPartitionResult(Struct):
        partition_index: int = int32("0+")
        low_watermark: int = int64("0+")
        error_code: int = int16("0+")

    class DeleteRecordsTopicResult(Struct):
        name: str = string("0+")
        partitions: list[DeleteRecordsResponse.DeleteRecordsPartitionResult] = array(
            "DeleteRecordsPartitionResult", "0+"
        )

    throttle_time_ms: int = int32("0+")
    topics: list[DeleteRecordsResponse.DeleteRecordsTopicResult] = array(
        "DeleteRecordsTopicResult", "0+"
    )
