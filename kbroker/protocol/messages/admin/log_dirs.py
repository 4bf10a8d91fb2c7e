"""Log directories and the replicas in them (KIP-113)."""

from __future__ import annotations

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
)


class DescribeLogDirsRequest(
    Request, api_key=35, versions="0-5", flexible="2+", listeners="broker"
):
    class DescribableLogDirTopic(Struct):
        topic: str = string("0+")
        partitions: list[int] = array("int32", "0+")

    topics: list[DescribeLogDirsRequest.DescribableLogDirTopic] | None = array(
        "DescribableLogDirTopic", "0+", nullable="0+"
    )


class DescribeLogDirsResponse(Response, api_key=35, versions="0-5", flexible="2+"):
    class DescribeLogDirsPartition(Struct):
        partition_index: int = int32("0+")
        partition_size: int = int64("0+")
        offset_lag: int = int64("0+")
        is_future_key: bool = boolean("0+")

    class DescribeLogDirsTopic(Struct):
        name: str = string("0+")
        partitions: list[DescribeLogDirsResponse.DescribeLogDirsPartition] = array(
            "DescribeLogDirsPartition", "0+"
        )

    class DescribeLogDirsResult(Struct):
        error_code: int = int16("0+")
        log_dir: str = string("0+")
        topics: list[DescribeLogDirsResponse.DescribeLogDirsTopic] = array(
            "DescribeLogDirsTopic", "0+"
        )
        total_bytes: int = int64("4+", default=-1, ignorable=True)
        usable_bytes: int = int64("4+", default=-1, ignorable=True)
        is_cordoned: bool = boolean("5+", default=False, ignorable=True)

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("3+", ignorable=True)
    results: list[DescribeLogDirsResponse.DescribeLogDirsResult] = array(
        "DescribeLogDirsResult", "0+"
    )


class AlterReplicaLogDirsRequest(
    Request, api_key=34, versions="0-2", flexible="2+", listeners="broker"
):
    class AlterReplicaLogDirTopic(Struct):
        name: str = string("0+")
        partitions: list[int] = array("int32", "0+")

    class AlterReplicaLogDir(Struct):
        path: str = string("0+")
        topics: list[AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic] = array(
            "AlterReplicaLogDirTopic", "0+"
        )

    dirs: list[AlterReplicaLogDirsRequest.AlterReplicaLogDir] = array("AlterReplicaLogDir", "0+")


class AlterReplicaLogDirsResponse(Response, api_key=34, versions="0-2", flexible="2+"):
    class AlterReplicaLogDirPartitionResult(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")

    class AlterReplicaLogDirTopicResult(Struct):
        topic_name: str = string("0+")
        partitions: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult] = array(
            "AlterReplicaLogDirPartitionResult", "0+"
        )

    throttle_time_ms: int = int32("0+")
    results: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult] = array(
        "AlterReplicaLogDirTopicResult", "0+"
    )
