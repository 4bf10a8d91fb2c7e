"""The quorum's requests and responses: each has exactly one partition, `__cluster_metadata-0`.

Kafka's RaftUtil. Every response has the epoch and leader that its sender knows, and the leader's
endpoint of the listener that received the request, if the version has the field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from kbroker.model import TopicPartition, Uuid
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.quorum import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    VoteRequest,
    VoteResponse,
)
from kbroker.quorum.raft.offsets import OffsetAndEpoch, SnapshotId
from kbroker.quorum.raft.raft_log import FetchPosition, PositionKind
from kbroker.quorum.raft.states.epoch_states import Endpoints
from kbroker.quorum.raft.states.quorum_state import QuorumState
from kbroker.quorum.raft.voters.voter_set import ReplicaKey, VoterEndpoint, endpoint_fields

METADATA_PARTITION: Final = TopicPartition("__cluster_metadata", 0)
METADATA_TOPIC_ID: Final[Uuid] = bytes(15) + b"\x01"

ENDPOINTS_VERSION: Final = 1
FETCH_LEADER_VERSION: Final = 12
FETCH_ENDPOINTS_VERSION: Final = 16
"""From these versions on a response has the leader's endpoint."""

T = TypeVar("T")
N = TypeVar("N")
N_co = TypeVar("N_co", covariant=True)
EpochResponse = TypeVar(
    "EpochResponse", VoteResponse, BeginQuorumEpochResponse, EndQuorumEpochResponse
)


class _Partition(Protocol):
    @property
    def partition_index(self) -> int: ...


P = TypeVar("P", bound=_Partition)
P_co = TypeVar("P_co", bound=_Partition, covariant=True)


class _Topic(Protocol[P_co]):
    @property
    def topic_name(self) -> str: ...
    @property
    def partitions(self) -> Sequence[P_co]: ...


class LeaderView(NamedTuple):
    """The leader as a node knows it. endpoint: that of one listener; None if unknown."""

    epoch: int
    leader_id: int
    endpoint: VoterEndpoint | None


def leader_view(quorum: QuorumState, listener_name: str) -> LeaderView:
    """The leader as this node knows it, for a response on that listener."""
    endpoints = quorum.leader_endpoints or quorum.endpoints_of(quorum.leader_id)
    found: VoterEndpoint | None = None
    for endpoint in endpoints:
        if endpoint.name == listener_name:
            found = endpoint
            break
    return LeaderView(quorum.epoch, quorum.leader_id, found)


class _NodeClass(Protocol[N_co]):
    def __call__(self, *, node_id: int, host: str, port: int) -> N_co: ...


def _leader_node(node_class: _NodeClass[N], leader: LeaderView) -> list[N]:
    """The `node_endpoints` of a response: the leader's endpoint, if it is known."""
    endpoint = leader.endpoint
    if endpoint is None:
        return []
    return [node_class(node_id=leader.leader_id, host=endpoint.host, port=endpoint.port)]


def _sole(items: Sequence[T]) -> T | None:
    return items[0] if len(items) == 1 else None


# The partition of a message.


def metadata_partition(topics: Sequence[_Topic[P]]) -> P | None:
    """The data of the metadata partition, if the message has no other partition."""
    topic = _sole(topics)
    if topic is None or topic.topic_name != METADATA_PARTITION.topic:
        return None
    partition = _sole(topic.partitions)
    if partition is None or partition.partition_index != METADATA_PARTITION.partition:
        return None
    return partition


def refused_partitions(request: DescribeQuorumRequest, error: ErrorCode) -> DescribeQuorumResponse:
    """The response with that error for each partition of the request."""
    topics = [
        DescribeQuorumResponse.TopicData(
            topic_name=topic.topic_name,
            partitions=[
                DescribeQuorumResponse.PartitionData(
                    partition_index=partition.partition_index, error_code=error
                )
                for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return DescribeQuorumResponse(topics=topics)


def fetch_partition(request: FetchRequest) -> FetchRequest.FetchPartition | None:
    """As `metadata_partition`; the topic is identified by its id, before version 13 by its name."""
    topic = _sole(request.topics)
    if topic is None or (
        topic.topic_id != METADATA_TOPIC_ID and topic.topic != METADATA_PARTITION.topic
    ):
        return None
    partition = _sole(topic.partitions)
    return partition if partition is not None and partition.partition == 0 else None


def fetched_partition(response: FetchResponse) -> FetchResponse.PartitionData | None:
    """The partition of a Fetch response."""
    topic = _sole(response.responses)
    return None if topic is None else _sole(topic.partitions)


def snapshot_partition(
    request: FetchSnapshotRequest,
) -> FetchSnapshotRequest.PartitionSnapshot | None:
    """As `metadata_partition`."""
    topic = _sole(request.topics)
    if topic is None or topic.name != METADATA_PARTITION.topic:
        return None
    partition = _sole(topic.partitions)
    return partition if partition is not None and partition.partition == 0 else None


def fetched_snapshot_partition(
    response: FetchSnapshotResponse,
) -> FetchSnapshotResponse.PartitionSnapshot | None:
    """The partition of a FetchSnapshot response."""
    topic = _sole(response.topics)
    return None if topic is None else _sole(topic.partitions)


# Requests.


def vote_request(
    cluster_id: str,
    candidate: ReplicaKey,
    voter: ReplicaKey,
    *,
    epoch: int,
    log_end: OffsetAndEpoch,
    is_pre_vote: bool,
) -> VoteRequest:
    """Request a vote, or a pre-vote, of a voter for epoch."""
    partition = VoteRequest.PartitionData(
        partition_index=METADATA_PARTITION.partition,
        replica_epoch=epoch,
        replica_id=candidate.id,
        replica_directory_id=candidate.directory_id,
        voter_directory_id=voter.directory_id,
        last_offset_epoch=log_end.epoch,
        last_offset=log_end.offset,
        pre_vote=is_pre_vote,
    )
    topic = VoteRequest.TopicData(topic_name=METADATA_PARTITION.topic, partitions=[partition])
    return VoteRequest(cluster_id=cluster_id, voter_id=voter.id, topics=[topic])


def begin_quorum_epoch_request(
    cluster_id: str, leader_id: int, endpoints: Endpoints, voter: ReplicaKey, *, epoch: int
) -> BeginQuorumEpochRequest:
    """Announce the leader of epoch to a voter."""
    partition = BeginQuorumEpochRequest.PartitionData(
        partition_index=METADATA_PARTITION.partition,
        voter_directory_id=voter.directory_id,
        leader_id=leader_id,
        leader_epoch=epoch,
    )
    topic = BeginQuorumEpochRequest.TopicData(
        topic_name=METADATA_PARTITION.topic, partitions=[partition]
    )
    return BeginQuorumEpochRequest(
        cluster_id=cluster_id,
        voter_id=voter.id,
        topics=[topic],
        leader_endpoints=endpoint_fields(BeginQuorumEpochRequest.LeaderEndpoint, endpoints),
    )


def end_quorum_epoch_request(
    cluster_id: str,
    leader_id: int,
    endpoints: Endpoints,
    successors: Sequence[ReplicaKey],
    *,
    epoch: int,
) -> EndQuorumEpochRequest:
    """Tell a voter that the leader of epoch resigns. successors: in the order of preference."""
    partition = EndQuorumEpochRequest.PartitionData(
        partition_index=METADATA_PARTITION.partition,
        leader_id=leader_id,
        leader_epoch=epoch,
        preferred_successors=[each.id for each in successors],
        preferred_candidates=[
            EndQuorumEpochRequest.ReplicaInfo(
                candidate_id=each.id, candidate_directory_id=each.directory_id
            )
            for each in successors
        ],
    )
    topic = EndQuorumEpochRequest.TopicData(
        topic_name=METADATA_PARTITION.topic, partitions=[partition]
    )
    return EndQuorumEpochRequest(
        cluster_id=cluster_id,
        topics=[topic],
        leader_endpoints=endpoint_fields(EndQuorumEpochRequest.LeaderEndpoint, endpoints),
    )


def fetch_request(quorum: QuorumState) -> FetchRequest:
    """Fetch from the end of this replica's log, all of which is on disk."""
    config, log = quorum.config, quorum.log
    partition = FetchRequest.FetchPartition(
        partition=METADATA_PARTITION.partition,
        current_leader_epoch=quorum.epoch,
        fetch_offset=log.end_offset,
        last_fetched_epoch=log.last_epoch,
        log_start_offset=log.start_offset,
        partition_max_bytes=config.fetch_max_bytes,
        replica_directory_id=config.local.directory_id,
        high_watermark=quorum.high_watermark,
    )
    topic = FetchRequest.FetchTopic(
        topic=METADATA_PARTITION.topic, topic_id=METADATA_TOPIC_ID, partitions=[partition]
    )
    return FetchRequest(
        cluster_id=config.cluster_id,
        replica_state=FetchRequest.ReplicaState(replica_id=config.local.id),
        max_wait_ms=config.fetch_max_wait_ms,
        max_bytes=config.fetch_max_bytes,
        topics=[topic],
    )


def fetch_snapshot_request(
    quorum: QuorumState, snapshot_id: SnapshotId, position: int
) -> FetchSnapshotRequest:
    """Fetch the bytes of a snapshot from position on."""
    config = quorum.config
    partition = FetchSnapshotRequest.PartitionSnapshot(
        partition=METADATA_PARTITION.partition,
        current_leader_epoch=quorum.epoch,
        snapshot_id=FetchSnapshotRequest.SnapshotId(
            end_offset=snapshot_id.end_offset, epoch=snapshot_id.epoch
        ),
        position=position,
        replica_directory_id=config.local.directory_id,
    )
    topic = FetchSnapshotRequest.TopicSnapshot(
        name=METADATA_PARTITION.topic, partitions=[partition]
    )
    return FetchSnapshotRequest(
        cluster_id=config.cluster_id,
        replica_id=config.local.id,
        max_bytes=config.fetch_snapshot_max_bytes,
        topics=[topic],
    )


# Responses.


def epoch_response(
    response_class: type[EpochResponse], leader: LeaderView, error: ErrorCode, *, version: int
) -> EpochResponse:
    """The response to a request about an epoch, with the leader that this node knows."""
    partition = response_class.PartitionData(
        partition_index=METADATA_PARTITION.partition,
        error_code=error,
        leader_id=leader.leader_id,
        leader_epoch=leader.epoch,
    )
    topic = response_class.TopicData(topic_name=METADATA_PARTITION.topic, partitions=[partition])
    response = response_class(topics=[topic])
    if version >= ENDPOINTS_VERSION:
        response.node_endpoints = _leader_node(response_class.NodeEndpoint, leader)
    return response


def vote_response(
    leader: LeaderView, error: ErrorCode, *, is_granted: bool, version: int
) -> VoteResponse:
    """The response to a Vote request."""
    response = epoch_response(VoteResponse, leader, error, version=version)
    response.topics[0].partitions[0].vote_granted = is_granted
    return response


def fetch_response(
    leader: LeaderView,
    error: ErrorCode,
    *,
    high_watermark: int | None,
    log_start_offset: int,
    position: FetchPosition | None,
    version: int,
) -> FetchResponse:
    """The response to a Fetch, without its records. high_watermark: None if unknown."""
    partition = FetchResponse.PartitionData(
        partition_index=METADATA_PARTITION.partition,
        error_code=error,
        high_watermark=-1 if high_watermark is None else high_watermark,
        log_start_offset=log_start_offset,
        records=b"",
    )
    if version >= FETCH_LEADER_VERSION:  # an older Fetch has no epoch either, and is rejected
        partition.current_leader = FetchResponse.LeaderIdAndEpoch(
            leader_id=leader.leader_id, leader_epoch=leader.epoch
        )
    if position is not None and position.kind is PositionKind.DIVERGING:
        end = position.position
        partition.diverging_epoch = FetchResponse.EpochEndOffset(
            epoch=end.epoch, end_offset=end.offset
        )
    elif position is not None and position.kind is PositionKind.SNAPSHOT:
        end = position.position
        partition.snapshot_id = FetchResponse.SnapshotId(end_offset=end.offset, epoch=end.epoch)
    topic = FetchResponse.FetchableTopicResponse(
        topic=METADATA_PARTITION.topic, topic_id=METADATA_TOPIC_ID, partitions=[partition]
    )
    response = FetchResponse(responses=[topic])
    if version >= FETCH_ENDPOINTS_VERSION:
        response.node_endpoints = _leader_node(FetchResponse.NodeEndpoint, leader)
    return response


def fetch_snapshot_response(
    leader: LeaderView,
    error: ErrorCode,
    *,
    snapshot_id: SnapshotId,
    position: int,
    size_bytes: int,
    version: int,
) -> FetchSnapshotResponse:
    """The response to a FetchSnapshot, without the snapshot's bytes."""
    partition = FetchSnapshotResponse.PartitionSnapshot(
        index=METADATA_PARTITION.partition,
        error_code=error,
        snapshot_id=FetchSnapshotResponse.SnapshotId(
            end_offset=snapshot_id.end_offset, epoch=snapshot_id.epoch
        ),
        current_leader=FetchSnapshotResponse.LeaderIdAndEpoch(
            leader_id=leader.leader_id, leader_epoch=leader.epoch
        ),
        size=size_bytes,
        position=position,
        unaligned_records=b"",
    )
    topic = FetchSnapshotResponse.TopicSnapshot(
        name=METADATA_PARTITION.topic, partitions=[partition]
    )
    response = FetchSnapshotResponse(topics=[topic])
    if version >= ENDPOINTS_VERSION:
        response.node_endpoints = _leader_node(FetchSnapshotResponse.NodeEndpoint, leader)
    return response
