"""Fetch, for consumers and followers (KIP-227 sessions, KIP-516 topic ids, KIP-595 quorum)."""

from __future__ import annotations

from kbroker.model import Uuid
from kbroker.protocol.codecs.schema import (
    Records,
    Request,
    Response,
    Struct,
    array,
    int8,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uuid,
)


class FetchRequest(
    Request, api_key=1, versions="0-18", flexible="12+", listeners="broker controller"
):
    class ReplicaState(Struct):
        replica_id: int = int32("15+", default=-1)
        replica_epoch: int = int64("15+", default=-1)

    class FetchPartition(Struct):
        partition: int = int32("0+")
        current_leader_epoch: int = int32("9+", default=-1, ignorable=True)
        fetch_offset: int = int64("0+")
        last_fetched_epoch: int = int32("12+", default=-1)
        log_start_offset: int = int64("5+", default=-1, ignorable=True)
        partition_max_bytes: int = int32("0+")
        replica_directory_id: Uuid = uuid("17+", tag=0, tagged="17+", ignorable=True)
        high_watermark: int = int64(
            "18+", tag=1, tagged="18+", default=0x7FFF_FFFF_FFFF_FFFF, ignorable=True
        )

    class FetchTopic(Struct):
        topic: str = string("0-12", ignorable=True)
        topic_id: Uuid = uuid("13+", ignorable=True)
        partitions: list[FetchRequest.FetchPartition] = array("FetchPartition", "0+")

    class ForgottenTopic(Struct):
        topic: str = string("7-12", ignorable=True)
        topic_id: Uuid = uuid("13+", ignorable=True)
        partitions: list[int] = array("int32", "7+")

    cluster_id: str | None = string(
        "12+", nullable="12+", tag=0, tagged="12+", default=None, ignorable=True
    )
    replica_id: int = int32("0-14", default=-1)
    replica_state: FetchRequest.ReplicaState = struct("ReplicaState", "15+", tag=1, tagged="15+")
    max_wait_ms: int = int32("0+")
    min_bytes: int = int32("0+")
    max_bytes: int = int32("3+", default=0x7FFF_FFFF, ignorable=True)
    isolation_level: int = int8("4+", default=0, ignorable=True)
    session_id: int = int32("7+", default=0, ignorable=True)
    session_epoch: int = int32("7+", default=-1, ignorable=True)
    topics: list[FetchRequest.FetchTopic] = array("FetchTopic", "0+")
    forgotten_topics_data: list[FetchRequest.ForgottenTopic] = array("ForgottenTopic", "7+")
    rack_id: str = string("11+", default="", ignorable=True)


class FetchResponse(Response, api_key=1, versions="0-18", flexible="12+"):
    class EpochEndOffset(Struct):
        epoch: int = int32("12+", default=-1)
        end_offset: int = int64("12+", default=-1)

    class LeaderIdAndEpoch(Struct):
        leader_id: int = int32("12+", default=-1)
        leader_epoch: int = int32("12+", default=-1)

    class SnapshotId(Struct):
        end_offset: int = int64("0+", default=-1)
        epoch: int = int32("0+", default=-1)

    class AbortedTransaction(Struct):
        producer_id: int = int64("4+")
        first_offset: int = int64("4+")

    class PartitionData(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        high_watermark: int = int64("0+")
        last_stable_offset: int = int64("4+", default=-1, ignorable=True)
        log_start_offset: int = int64("5+", default=-1, ignorable=True)
        diverging_epoch: FetchResponse.EpochEndOffset = struct(
            "EpochEndOffset", "12+", tag=0, tagged="12+"
        )
        current_leader: FetchResponse.LeaderIdAndEpoch = struct(
            "LeaderIdAndEpoch", "12+", tag=1, tagged="12+"
        )
        snapshot_id: FetchResponse.SnapshotId = struct("SnapshotId", "12+", tag=2, tagged="12+")
        aborted_transactions: list[FetchResponse.AbortedTransaction] | None = array(
            "AbortedTransaction", "4+", nullable="4+", ignorable=True
        )
        preferred_read_replica: int = int32("11+", default=-1)
        records: Records | None = records("0+", nullable="0+")

    class FetchableTopicResponse(Struct):
        topic: str = string("0-12", ignorable=True)
        topic_id: Uuid = uuid("13+", ignorable=True)
        partitions: list[FetchResponse.PartitionData] = array("PartitionData", "0+")

    class NodeEndpoint(Struct):
        node_id: int = int32("16+")
        host: str = string("16+")
        port: int = int32("16+")
        rack: str | None = string("16+", nullable="16+", default=None)

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("7+", ignorable=True)
    session_id: int = int32("7+", default=0)
    responses: list[FetchResponse.FetchableTopicResponse] = array("FetchableTopicResponse", "0+")
    node_endpoints: list[FetchResponse.NodeEndpoint] = array(
        "NodeEndpoint", "16+", tag=0, tagged="16+"
    )
