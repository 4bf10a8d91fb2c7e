"""The KRaft quorum (KIP-595, KIP-630, KIP-853)."""

from __future__ import annotations

from kbroker.model import Uuid
from kbroker.protocol.codecs.schema import (
    Records,
    Request,
    Response,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uint16,
    uuid,
)


class VoteRequest(Request, api_key=52, versions="0-2", flexible="0+", listeners="controller"):
    class PartitionData(Struct):
        partition_index: int = int32("0+")
        replica_epoch: int = int32("0+")
        replica_id: int = int32("0+")
        replica_directory_id: Uuid = uuid("1+", ignorable=True)
        voter_directory_id: Uuid = uuid("1+", ignorable=True)
        last_offset_epoch: int = int32("0+")
        last_offset: int = int64("0+")
        pre_vote: bool = boolean("2+")

    class TopicData(Struct):
        topic_name: str = string("0+")
        partitions: list[VoteRequest.PartitionData] = array("PartitionData", "0+")

    cluster_id: str | None = string("0+", nullable="0+", default=None)
    voter_id: int = int32("1+", default=-1, ignorable=True)
    topics: list[VoteRequest.TopicData] = array("TopicData", "0+")


class VoteResponse(Response, api_key=52, versions="0-2", flexible="0+"):
    class PartitionData(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        leader_id: int = int32("0+")
        leader_epoch: int = int32("0+")
        vote_granted: bool = boolean("0+")

    class TopicData(Struct):
        topic_name: str = string("0+")
        partitions: list[VoteResponse.PartitionData] = array("PartitionData", "0+")

    class NodeEndpoint(Struct):
        node_id: int = int32("1+")
        host: str = string("1+")
        port: int = uint16("1+")

    error_code: int = int16("0+")
    topics: list[VoteResponse.TopicData] = array("TopicData", "0+")
    node_endpoints: list[VoteResponse.NodeEndpoint] = array(
        "NodeEndpoint", "1+", tag=0, tagged="1+"
    )


class BeginQuorumEpochRequest(
    Request, api_key=53, versions="0-1", flexible="1+", listeners="controller"
):
    class PartitionData(Struct):
        partition_index: int = int32("0+")
        voter_directory_id: Uuid = uuid("1+", ignorable=True)
        leader_id: int = int32("0+")
        leader_epoch: int = int32("0+")

    class TopicData(Struct):
        topic_name: str = string("0+")
        partitions: list[BeginQuorumEpochRequest.PartitionData] = array("PartitionData", "0+")

    class LeaderEndpoint(Struct):
        name: str = string("1+")
        host: str = string("1+")
        port: int = uint16("1+")

    cluster_id: str | None = string("0+", nullable="0+", default=None)
    voter_id: int = int32("1+", default=-1, ignorable=True)
    topics: list[BeginQuorumEpochRequest.TopicData] = array("TopicData", "0+")
    leader_endpoints: list[BeginQuorumEpochRequest.LeaderEndpoint] = array(
        "LeaderEndpoint", "1+", ignorable=True
    )


class BeginQuorumEpochResponse(Response, api_key=53, versions="0-1", flexible="1+"):
    class PartitionData(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        leader_id: int = int32("0+")
        leader_epoch: int = int32("0+")

    class TopicData(Struct):
        topic_name: str = string("0+")
        partitions: list[BeginQuorumEpochResponse.PartitionData] = array("PartitionData", "0+")

    class NodeEndpoint(Struct):
        node_id: int = int32("1+")
        host: str = string("1+")
        port: int = uint16("1+")

    error_code: int = int16("0+")
    topics: list[BeginQuorumEpochResponse.TopicData] = array("TopicData", "0+")
    node_endpoints: list[BeginQuorumEpochResponse.NodeEndpoint] = array(
        "NodeEndpoint", "1+", tag=0, tagged="1+"
    )


class EndQuorumEpochRequest(
    Request, api_key=54, versions="0-1", flexible="1+", listeners="controller"
):
    class ReplicaInfo(Struct):
        candidate_id: int = int32("1+")
        candidate_directory_id: Uuid = uuid("1+")

    class PartitionData(Struct):
        partition_index: int = int32("0+")
        leader_id: int = int32("0+")
        leader_epoch: int = int32("0+")
        preferred_successors: list[int] = array("int32", "0", ignorable=True)
        preferred_candidates: list[EndQuorumEpochRequest.ReplicaInfo] = array(
            "ReplicaInfo", "1+", ignorable=True
        )

    class TopicData(Struct):
        topic_name: str = string("0+")
        partitions: list[EndQuorumEpochRequest.PartitionData] = array("PartitionData", "0+")

    class LeaderEndpoint(Struct):
        name: str = string("1+")
        host: str = string("1+")
        port: int = uint16("1+")

    cluster_id: str | None = string("0+", nullable="0+", default=None)
    topics: list[EndQuorumEpochRequest.TopicData] = array("TopicData", "0+")
    leader_endpoints: list[EndQuorumEpochRequest.LeaderEndpoint] = array(
        "LeaderEndpoint", "1+", ignorable=True
    )


class EndQuorumEpochResponse(Response, api_key=54, versions="0-1", flexible="1+"):
    class PartitionData(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        leader_id: int = int32("0+")
        leader_epoch: int = int32("0+")

    class TopicData(Struct):
        topic_name: str = string("0+")
        partitions: list[EndQuorumEpochResponse.PartitionData] = array("PartitionData", "0+")

    class NodeEndpoint(Struct):
        node_id: int = int32("1+")
        host: str = string("1+")
        port: int = uint16("1+")

    error_code: int = int16("0+")
    topics: list[EndQuorumEpochResponse.TopicData] = array("TopicData", "0+")
    node_endpoints: list[EndQuorumEpochResponse.NodeEndpoint] = array(
        "NodeEndpoint", "1+", tag=0, tagged="1+"
    )


class DescribeQuorumRequest(
    Request, api_key=55, versions="0-2", flexible="0+", listeners="broker controller"
):
    class PartitionData(Struct):
        partition_index: int = int32("0+")

    class TopicData(Struct):
        topic_name: str = string("0+")
        partitions: list[DescribeQuorumRequest.PartitionData] = array("PartitionData", "0+")

    topics: list[DescribeQuorumRequest.TopicData] = array("TopicData", "0+")


class DescribeQuorumResponse(Response, api_key=55, versions="0-2", flexible="0+"):
    class ReplicaState(Struct):
        replica_id: int = int32("0+")
        replica_directory_id: Uuid = uuid("2+")
        log_end_offset: int = int64("0+")
        last_fetch_timestamp: int = int64("1+", default=-1, ignorable=True)
        last_caught_up_timestamp: int = int64("1+", default=-1, ignorable=True)

    class PartitionData(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("2+", nullable="2+", ignorable=True)
        leader_id: int = int32("0+")
        leader_epoch: int = int32("0+")
        high_watermark: int = int64("0+")
        current_voters: list[DescribeQuorumResponse.ReplicaState] = array("ReplicaState", "0+")
        observers: list[DescribeQuorumResponse.ReplicaState] = array("ReplicaState", "0+")

    class TopicData(Struct):
        topic_name: str = string("0+")
        partitions: list[DescribeQuorumResponse.PartitionData] = array("PartitionData", "0+")

    class Listener(Struct):
        name: str = string("2+")
        host: str = string("2+")
        port: int = uint16("2+")

    class Node(Struct):
        node_id: int = int32("2+")
        listeners: list[DescribeQuorumResponse.Listener] = array("Listener", "2+")

    error_code: int = int16("0+")
    error_message: str | None = string("2+", nullable="2+", ignorable=True)
    topics: list[DescribeQuorumResponse.TopicData] = array("TopicData", "0+")
    nodes: list[DescribeQuorumResponse.Node] = array("Node", "2+")


class FetchSnapshotRequest(
    Request, api_key=59, versions="0-1", flexible="0+", listeners="controller"
):
    class SnapshotId(Struct):
        end_offset: int = int64("0+")
        epoch: int = int32("0+")

    class PartitionSnapshot(Struct):
        partition: int = int32("0+")
        current_leader_epoch: int = int32("0+")
        snapshot_id: FetchSnapshotRequest.SnapshotId = struct("SnapshotId", "0+")
        position: int = int64("0+")
        replica_directory_id: Uuid = uuid("1+", tag=0, tagged="1+", ignorable=True)

    class TopicSnapshot(Struct):
        name: str = string("0+")
        partitions: list[FetchSnapshotRequest.PartitionSnapshot] = array("PartitionSnapshot", "0+")

    cluster_id: str | None = string("0+", nullable="0+", tag=0, tagged="0+", default=None)
    replica_id: int = int32("0+", default=-1)
    max_bytes: int = int32("0+", default=0x7FFF_FFFF)
    topics: list[FetchSnapshotRequest.TopicSnapshot] = array("TopicSnapshot", "0+")


class FetchSnapshotResponse(Response, api_key=59, versions="0-1", flexible="0+"):
    class SnapshotId(Struct):
        end_offset: int = int64("0+")
        epoch: int = int32("0+")

    class LeaderIdAndEpoch(Struct):
        leader_id: int = int32("0+")
        leader_epoch: int = int32("0+")

    class PartitionSnapshot(Struct):
        index: int = int32("0+")
        error_code: int = int16("0+")
        snapshot_id: FetchSnapshotResponse.SnapshotId = struct("SnapshotId", "0+")
        current_leader: FetchSnapshotResponse.LeaderIdAndEpoch = struct(
            "LeaderIdAndEpoch", "0+", tag=0, tagged="0+"
        )
        size: int = int64("0+")
        position: int = int64("0+")
        unaligned_records: Records | None = records("0+")

    class TopicSnapshot(Struct):
        name: str = string("0+")
        partitions: list[FetchSnapshotResponse.PartitionSnapshot] = array("PartitionSnapshot", "0+")

    class NodeEndpoint(Struct):
        node_id: int = int32("1+")
        host: str = string("1+")
        port: int = uint16("1+")

    throttle_time_ms: int = int32("0+", ignorable=True)
    error_code: int = int16("0+")
    topics: list[FetchSnapshotResponse.TopicSnapshot] = array("TopicSnapshot", "0+")
    node_endpoints: list[FetchSnapshotResponse.NodeEndpoint] = array(
        "NodeEndpoint", "1+", tag=0, tagged="1+"
    )


class AddRaftVoterRequest(
    Request, api_key=80, versions="0-1", flexible="0+", listeners="controller broker"
):
    class Listener(Struct):
        name: str = string("0+")
        host: str = string("0+")
        port: int = uint16("0+")

    cluster_id: str | None = string("0+", nullable="0+")
    timeout_ms: int = int32("0+")
    voter_id: int = int32("0+")
    voter_directory_id: Uuid = uuid("0+")
    listeners: list[AddRaftVoterRequest.Listener] = array("Listener", "0+")
    ack_when_committed: bool = boolean("1+", default=True)


class AddRaftVoterResponse(Response, api_key=80, versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", ignorable=True)


class RemoveRaftVoterRequest(
    Request, api_key=81, versions="0", flexible="0+", listeners="controller broker"
):
    cluster_id: str | None = string("0+", nullable="0+")
    voter_id: int = int32("0+")
    voter_directory_id: Uuid = uuid("0+")


class RemoveRaftVoterResponse(Response, api_key=81, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", ignorable=True)


class UpdateRaftVoterRequest(
    Request, api_key=82, versions="0", flexible="0+", listeners="controller"
):
    class Listener(Struct):
        name: str = string("0+")
        host: str = string("0+")
        port: int = uint16("0+")

    class KRaftVersionFeature(Struct):
        min_supported_version: int = int16("0+")
        max_supported_version: int = int16("0+")

    cluster_id: str | None = string("0+", nullable="0+")
    current_leader_epoch: int = int32("0+")
    voter_id: int = int32("0+")
    voter_directory_id: Uuid = uuid("0+")
    listeners: list[UpdateRaftVoterRequest.Listener] = array("Listener", "0+")
    k_raft_version_feature: UpdateRaftVoterRequest.KRaftVersionFeature = struct(
        "KRaftVersionFeature", "0+"
    )


class UpdateRaftVoterResponse(Response, api_key=82, versions="0", flexible="0+"):
    class CurrentLeader(Struct):
        leader_id: int = int32("0+", default=-1)
        leader_epoch: int = int32("0+", default=-1)
        host: str = string("0+")
        port: int = int32("0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    current_leader: UpdateRaftVoterResponse.CurrentLeader = struct(
        "CurrentLeader", "0+", tag=0, tagged="0+"
    )
