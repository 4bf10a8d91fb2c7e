"""State of share partitions, between brokers (KIP-932)."""

from __future__ import annotations

from kbroker.model import Uuid
from kbroker.protocol.codecs.schema import (
    Request,
    Response,
    Struct,
    array,
    int8,
    int16,
    int32,
    int64,
    string,
    uuid,
)


class InitializeShareGroupStateRequest(
    Request, api_key=83, versions="0", flexible="0+", listeners="broker"
):
    class PartitionData(Struct):
        partition: int = int32("0+")
        state_epoch: int = int32("0+")
        start_offset: int = int64("0+")

    class InitializeStateData(Struct):
        topic_id: Uuid = uuid("0+")
        partitions: list[InitializeShareGroupStateRequest.PartitionData] = array(
            "PartitionData", "0+"
        )

    group_id: str = string("0+")
    topics: list[InitializeShareGroupStateRequest.InitializeStateData] = array(
        "InitializeStateData", "0+"
    )


class InitializeShareGroupStateResponse(Response, api_key=83, versions="0", flexible="0+"):
    class PartitionResult(Struct):
        partition: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)

    class InitializeStateResult(Struct):
        topic_id: Uuid = uuid("0+")
        partitions: list[InitializeShareGroupStateResponse.PartitionResult] = array(
            "PartitionResult", "0+"
        )

    results: list[InitializeShareGroupStateResponse.InitializeStateResult] = array(
        "InitializeStateResult", "0+"
    )


class ReadShareGroupStateRequest(
    Request, api_key=84, versions="0", flexible="0+", listeners="broker"
):
    class PartitionData(Struct):
        partition: int = int32("0+")
        leader_epoch: int = int32("0+")

    class ReadStateData(Struct):
        topic_id: Uuid = uuid("0+")
        partitions: list[ReadShareGroupStateRequest.PartitionData] = array("PartitionData", "0+")

    group_id: str = string("0+")
    topics: list[ReadShareGroupStateRequest.ReadStateData] = array("ReadStateData", "0+")


class ReadShareGroupStateResponse(Response, api_key=84, versions="0", flexible="0+"):
    class StateBatch(Struct):
        first_offset: int = int64("0+")
        last_offset: int = int64("0+")
        delivery_state: int = int8("0+")
        delivery_count: int = int16("0+")

    class PartitionResult(Struct):
        partition: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)
        state_epoch: int = int32("0+")
        start_offset: int = int64("0+")
        state_batches: list[ReadShareGroupStateResponse.StateBatch] = array("StateBatch", "0+")

    class ReadStateResult(Struct):
        topic_id: Uuid = uuid("0+")
        partitions: list[ReadShareGroupStateResponse.PartitionResult] = array(
            "PartitionResult", "0+"
        )

    results: list[ReadShareGroupStateResponse.ReadStateResult] = array("ReadStateResult", "0+")


class WriteShareGroupStateRequest(
    Request, api_key=85, versions="0-1", flexible="0+", listeners="broker"
):
    class StateBatch(Struct):
        first_offset: int = int64("0+")
        last_offset: int = int64("0+")
        delivery_state: int = int8("0+")
        delivery_count: int = int16("0+")

    class PartitionData(Struct):
        partition: int = int32("0+")
        state_epoch: int = int32("0+")
        leader_epoch: int = int32("0+")
        start_offset: int = int64("0+")
        delivery_complete_count: int = int32("1+", default=-1, ignorable=True)
        state_batches: list[WriteShareGroupStateRequest.StateBatch] = array("StateBatch", "0+")

    class WriteStateData(Struct):
        topic_id: Uuid = uuid("0+")
        partitions: list[WriteShareGroupStateRequest.PartitionData] = array("PartitionData", "0+")

    group_id: str = string("0+")
    topics: list[WriteShareGroupStateRequest.WriteStateData] = array("WriteStateData", "0+")


class WriteShareGroupStateResponse(Response, api_key=85, versions="0-1", flexible="0+"):
    class PartitionResult(Struct):
        partition: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)

    class WriteStateResult(Struct):
        topic_id: Uuid = uuid("0+")
        partitions: list[WriteShareGroupStateResponse.PartitionResult] = array(
            "PartitionResult", "0+"
        )

    results: list[WriteShareGroupStateResponse.WriteStateResult] = array("WriteStateResult", "0+")


class DeleteShareGroupStateRequest(
    Request, api_key=86, versions="0", flexible="0+", listeners="broker"
):
    class PartitionData(Struct):
        partition: int = int32("0+")

    class DeleteStateData(Struct):
        topic_id: Uuid = uuid("0+")
        partitions: list[DeleteShareGroupStateRequest.PartitionData] = array("PartitionData", "0+")

    group_id: str = string("0+")
    topics: list[DeleteShareGroupStateRequest.DeleteStateData] = array("DeleteStateData", "0+")


class DeleteShareGroupStateResponse(Response, api_key=86, versions="0", flexible="0+"):
    class PartitionResult(Struct):
        partition: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)

    class DeleteStateResult(Struct):
        topic_id: Uuid = uuid("0+")
        partitions: list[DeleteShareGroupStateResponse.PartitionResult] = array(
            "PartitionResult", "0+"
        )

    results: list[DeleteShareGroupStateResponse.DeleteStateResult] = array(
        "DeleteStateResult", "0+"
    )


class ReadShareGroupStateSummaryRequest(
    Request, api_key=87, versions="0-1", flexible="0+", listeners="broker"
):
    class PartitionData(Struct):
        partition: int = int32("0+")
        leader_epoch: int = int32("0+")

    class ReadStateSummaryData(Struct):
        topic_id: Uuid = uuid("0+")
        partitions: list[ReadShareGroupStateSummaryRequest.PartitionData] = array(
            "PartitionData", "0+"
        )

    group_id: str = string("0+")
    topics: list[ReadShareGroupStateSummaryRequest.ReadStateSummaryData] = array(
        "ReadStateSummaryData", "0+"
    )


class ReadShareGroupStateSummaryResponse(Response, api_key=87, versions="0-1", flexible="0+"):
    class PartitionResult(Struct):
        partition: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)
        state_epoch: int = int32("0+")
        leader_epoch: int = int32("0+")
        start_offset: int = int64("0+")
        delivery_complete_count: int = int32("1+", default=-1, ignorable=True)

    class ReadStateSummaryResult(Struct):
        topic_id: Uuid = uuid("0+")
        partitions: list[ReadShareGroupStateSummaryResponse.PartitionResult] = array(
            "PartitionResult", "0+"
        )

    results: list[ReadShareGroupStateSummaryResponse.ReadStateSummaryResult] = array(
        "ReadStateSummaryResult", "0+"
    )
