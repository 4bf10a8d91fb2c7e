"""Offsets by time and by leader epoch (KIP-79, KIP-101, KIP-320)."""

from __future__ import annotations

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
)


class ListOffsetsRequest(Request, api_key=2, versions="0-11", flexible="6+", listeners="broker"):
    class ListOffsetsPartition(Struct):
        partition_index: int = int32("0+")
        current_leader_epoch: int = int32("4+", default=-1, ignorable=True)
        timestamp: int = int64("0+")
        max_num_offsets: int = int32("0", default=1)

    class ListOffsetsTopic(Struct):
        name: str = string("0+")
        partitions: list[ListOffsetsRequest.ListOffsetsPartition] = array(
            "ListOffsetsPartition", "0+"
        )

    replica_id: int = int32("0+")
    isolation_level: int = int8("2+")
    topics: list[ListOffsetsRequest.ListOffsetsTopic] = array("ListOffsetsTopic", "0+")
    timeout_ms: int = int32("10+", ignorable=True)


class ListOffsetsResponse(Response, api_key=2, versions="0-11", flexible="6+"):
    class ListOffsetsPartitionResponse(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        old_style_offsets: list[int] = array("int64", "0")
        timestamp: int = int64("1+", default=-1)
        offset: int = int64("1+", default=-1)
        leader_epoch: int = int32("4+", default=-1)

    class ListOffsetsTopicResponse(Struct):
        name: str = string("0+")
        partitions: list[ListOffsetsResponse.ListOffsetsPartitionResponse] = array(
            "ListOffsetsPartitionResponse", "0+"
        )

    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[ListOffsetsResponse.ListOffsetsTopicResponse] = array(
        "ListOffsetsTopicResponse", "0+"
    )


class OffsetForLeaderEpochRequest(
    Request, api_key=23, versions="0-4", flexible="4+", listeners="broker"
):
    class OffsetForLeaderPartition(Struct):
        partition: int = int32("0+")
        current_leader_epoch: int = int32("2+", default=-1, ignorable=True)
        leader_epoch: int = int32("0+")

    class OffsetForLeaderTopic(Struct):
        topic: str = string("0+")
        partitions: list[OffsetForLeaderEpochRequest.OffsetForLeaderPartition] = array(
            "OffsetForLeaderPartition", "0+"
        )

    replica_id: int = int32("3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderEpochRequest.OffsetForLeaderTopic] = array(
        "OffsetForLeaderTopic", "0+"
    )


class OffsetForLeaderEpochResponse(Response, api_key=23, versions="0-4", flexible="4+"):
    class EpochEndOffset(Struct):
        error_code: int = int16("0+")
        partition: int = int32("0+")
        leader_epoch: int = int32("1+", default=-1, ignorable=True)
        end_offset: int = int64("0+", default=-1)

    class OffsetForLeaderTopicResult(Struct):
        topic: str = string("0+")
        partitions: list[OffsetForLeaderEpochResponse.EpochEndOffset] = array(
            "EpochEndOffset", "0+"
        )

    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult] = array(
        "OffsetForLeaderTopicResult", "0+"
    )
