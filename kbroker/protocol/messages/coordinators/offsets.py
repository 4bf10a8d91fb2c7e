"""Committed offsets of groups."""

from __future__ import annotations

from kbroker.model import Uuid
from kbroker.protocol.codecs.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    string,
    uuid,
)


class OffsetCommitRequest(Request, api_key=8, versions="0-10", flexible="8+", listeners="broker"):
    class OffsetCommitRequestPartition(Struct):
        partition_index: int = int32("0+")
        committed_offset: int = int64("0+")
        committed_leader_epoch: int = int32("6+", default=-1, ignorable=True)
        commit_timestamp: int = int64("1", default=-1)
        committed_metadata: str | None = string("0+", nullable="0+")

    class OffsetCommitRequestTopic(Struct):
        name: str = string("0-9", ignorable=True)
        topic_id: Uuid = uuid("10+", ignorable=True)
        partitions: list[OffsetCommitRequest.OffsetCommitRequestPartition] = array(
            "OffsetCommitRequestPartition", "0+"
        )

    group_id: str = string("0+")
    generation_id_or_member_epoch: int = int32("1+", default=-1, ignorable=True)
    member_id: str = string("1+", ignorable=True)
    group_instance_id: str | None = string("7+", nullable="7+", default=None)
    retention_time_ms: int = int64("2-4", default=-1, ignorable=True)
    topics: list[OffsetCommitRequest.OffsetCommitRequestTopic] = array(
        "OffsetCommitRequestTopic", "0+"
    )


class OffsetCommitResponse(Response, api_key=8, versions="0-10", flexible="8+"):
    class OffsetCommitResponsePartition(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")

    class OffsetCommitResponseTopic(Struct):
        name: str = string("0-9", ignorable=True)
        topic_id: Uuid = uuid("10+", ignorable=True)
        partitions: list[OffsetCommitResponse.OffsetCommitResponsePartition] = array(
            "OffsetCommitResponsePartition", "0+"
        )

    throttle_time_ms: int = int32("3+", ignorable=True)
    topics: list[OffsetCommitResponse.OffsetCommitResponseTopic] = array(
        "OffsetCommitResponseTopic", "0+"
    )


class OffsetFetchRequest(Request, api_key=9, versions="0-10", flexible="6+", listeners="broker"):
    class OffsetFetchRequestTopic(Struct):
        name: str = string("0-7")
        partition_indexes: list[int] = array("int32", "0-7")

    class OffsetFetchRequestTopics(Struct):
        name: str = string("8-9", ignorable=True)
        topic_id: Uuid = uuid("10+", ignorable=True)
        partition_indexes: list[int] = array("int32", "8+")

    class OffsetFetchRequestGroup(Struct):
        group_id: str = string("8+")
        member_id: str | None = string("9+", nullable="9+", default=None, ignorable=True)
        member_epoch: int = int32("9+", default=-1, ignorable=True)
        topics: list[OffsetFetchRequest.OffsetFetchRequestTopics] | None = array(
            "OffsetFetchRequestTopics", "8+", nullable="8+"
        )

    group_id: str = string("0-7")
    topics: list[OffsetFetchRequest.OffsetFetchRequestTopic] | None = array(
        "OffsetFetchRequestTopic", "0-7", nullable="2-7"
    )
    groups: list[OffsetFetchRequest.OffsetFetchRequestGroup] = array(
        "OffsetFetchRequestGroup", "8+"
    )
    require_stable: bool = boolean("7+", default=False)


class OffsetFetchResponse(Response, api_key=9, versions="0-10", flexible="6+"):
    class OffsetFetchResponsePartition(Struct):
        partition_index: int = int32("0-7")
        committed_offset: int = int64("0-7")
        committed_leader_epoch: int = int32("5-7", default=-1, ignorable=True)
        metadata: str | None = string("0-7", nullable="0-7")
        error_code: int = int16("0-7")

    class OffsetFetchResponseTopic(Struct):
        name: str = string("0-7")
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartition] = array(
            "OffsetFetchResponsePartition", "0-7"
        )

    class OffsetFetchResponsePartitions(Struct):
        partition_index: int = int32("8+")
        committed_offset: int = int64("8+")
        committed_leader_epoch: int = int32("8+", default=-1, ignorable=True)
        metadata: str | None = string("8+", nullable="8+")
        error_code: int = int16("8+")

    class OffsetFetchResponseTopics(Struct):
        name: str = string("8-9", ignorable=True)
        topic_id: Uuid = uuid("10+", ignorable=True)
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartitions] = array(
            "OffsetFetchResponsePartitions", "8+"
        )

    class OffsetFetchResponseGroup(Struct):
        group_id: str = string("8+")
        topics: list[OffsetFetchResponse.OffsetFetchResponseTopics] = array(
            "OffsetFetchResponseTopics", "8+"
        )
        error_code: int = int16("8+", default=0)

    throttle_time_ms: int = int32("3+", ignorable=True)
    topics: list[OffsetFetchResponse.OffsetFetchResponseTopic] = array(
        "OffsetFetchResponseTopic", "0-7"
    )
    error_code: int = int16("2-7", default=0, ignorable=True)
    groups: list[OffsetFetchResponse.OffsetFetchResponseGroup] = array(
        "OffsetFetchResponseGroup", "8+"
    )


class OffsetDeleteRequest(Request, api_key=47, versions="0", listeners="broker"):
    class OffsetDeleteRequestPartition(Struct):
        partition_index: int = int32("0+")

    class OffsetDeleteRequestTopic(Struct):
        name: str = string("0+")
        partitions: list[OffsetDeleteRequest.OffsetDeleteRequestPartition] = array(
            "OffsetDeleteRequestPartition", "0+"
        )

    group_id: str = string("0+")
    topics: list[OffsetDeleteRequest.OffsetDeleteRequestTopic] = array(
        "OffsetDeleteRequestTopic", "0+"
    )


class OffsetDeleteResponse(Response, api_key=47, versions="0"):
    class OffsetDeleteResponsePartition(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")

    class OffsetDeleteResponseTopic(Struct):
        name: str = string("0+")
        partitions: list[OffsetDeleteResponse.OffsetDeleteResponsePartition] = array(
            "OffsetDeleteResponsePartition", "0+"
        )

    error_code: int = int16("0+")
    throttle_time_ms: int = int32("0+", ignorable=True)
    topics: list[OffsetDeleteResponse.OffsetDeleteResponseTopic] = array(
        "OffsetDeleteResponseTopic", "0+"
    )
