"""The leader's responses to Fetch, FetchSnapshot and DescribeQuorum. KIP-595, KIP-630, KIP-1166.

A Fetch acknowledges all records below its offset as durable at the fetcher. A Fetch for which there
is no news is parked until records are appended, the high watermark exceeds the one that the fetcher
knows, its max wait is over, or this node no longer leads (KAFKA-10677).
"""

from __future__ import annotations

import msgspec

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
)
from kbroker.quorum.raft.effects import ReadRecords, ReadSnapshot, Respond
from kbroker.quorum.raft.offsets import BOOTSTRAP_ID, SnapshotId
from kbroker.quorum.raft.raft_log import FetchPosition, PositionKind
from kbroker.quorum.raft.requests.messages import (
    METADATA_PARTITION,
    fetch_partition,
    fetch_response,
    fetch_snapshot_response,
    leader_view,
    metadata_partition,
    refused_partitions,
    snapshot_partition,
)
from kbroker.quorum.raft.states.epoch_states import Leader
from kbroker.quorum.raft.states.leader_state import ReplicaState
from kbroker.quorum.raft.states.quorum_state import QuorumState
from kbroker.quorum.raft.voters.voter_set import ReplicaKey, endpoint_fields

REPLICA_STATE_VERSION = 15
"""From this version on a Fetch names its replica in ReplicaState."""


class ParkedFetch(msgspec.Struct):
    """A Fetch that waits. leader: the leader state in which it was parked. known_high_watermark:
    the one in the request, or, for a request without one, the leader's when it was parked.
    """

    token: int
    listener_name: str
    version: int
    partition: FetchRequest.FetchPartition
    max_bytes: int
    deadline_ms: int
    leader: Leader
    known_high_watermark: int


class FetchService:
    """Answers requests of replicas. high_watermark_moved: set for `leadership`, which checks it
    after each Fetch.
    """

    __slots__ = ("_parked", "_quorum", "high_watermark_moved")

    def __init__(self, quorum: QuorumState) -> None:
        self._quorum = quorum
        self._parked: dict[int, ParkedFetch] = {}
        self.high_watermark_moved = False

    def leader_error(self, request_epoch: int) -> ErrorCode:
        """Why a request that only the leader of request_epoch serves is rejected; NONE if it is
        not.
        """
        quorum = self._quorum
        if request_epoch < quorum.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if request_epoch > quorum.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if not isinstance(quorum.state, Leader):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if quorum.is_shutting_down:
            return ErrorCode.BROKER_NOT_AVAILABLE
        return ErrorCode.NONE

    # Fetch.

    def fetch(
        self, token: int, request: FetchRequest, *, listener_name: str, version: int, now_ms: int
    ) -> None:
        """Answer a Fetch or park it."""
        quorum = self._quorum
        partition = fetch_partition(request)
        error = ErrorCode.NONE
        if request.cluster_id is not None and request.cluster_id != quorum.config.cluster_id:
            error = ErrorCode.INCONSISTENT_CLUSTER_ID
        elif partition is None:
            error = ErrorCode.INVALID_REQUEST
        if partition is None or error:
            quorum.emit(Respond(token, FetchResponse(error_code=error)))
            return
        if (
            request.max_wait_ms < 0
            or partition.fetch_offset < 0
            or partition.last_fetched_epoch < 0
            or partition.last_fetched_epoch > partition.current_leader_epoch
        ):
            error = ErrorCode.INVALID_REQUEST
        else:
            error = self.leader_error(partition.current_leader_epoch)
        state = quorum.state
        if error or not isinstance(state, Leader):
            self._refuse(token, error, listener_name, version)
            return
        parked = ParkedFetch(
            token,
            listener_name,
            version,
            partition,
            # Kafka's replicas send partition_max_bytes 0, and its leader ignores the field
            max(min(request.max_bytes, quorum.config.fetch_max_bytes), 0),
            now_ms + request.max_wait_ms,
            state,
            partition.high_watermark,
        )
        replica_id = (
            request.replica_state.replica_id
            if version >= REPLICA_STATE_VERSION
            else request.replica_id
        )
        key = ReplicaKey(replica_id, partition.replica_directory_id)
        position = self._position(partition)
        if position.kind is PositionKind.VALID:
            self._count(state, key, partition.fetch_offset, now_ms)
        if request.max_wait_ms == 0 or self._has_answer(parked, position):
            self._answer(parked, position)
        else:
            # before version 18 a request has no high watermark: it is answered when that moves
            high_watermark = state.state.high_watermark
            parked.known_high_watermark = -1 if high_watermark is None else high_watermark
            self._parked[token] = parked

    def _count(self, state: Leader, key: ReplicaKey, fetch_offset: int, now_ms: int) -> None:
        """A valid Fetch acknowledges the records below its offset."""
        if key.id != self._quorum.local.id:
            moved = state.state.fetched(key, fetch_offset, now_ms)
            self.high_watermark_moved = self.high_watermark_moved or moved

    def _position(self, partition: FetchRequest.FetchPartition) -> FetchPosition:
        """The position of the fetcher."""
        return self._quorum.log.fetch_position(partition.fetch_offset, partition.last_fetched_epoch)

    def _has_answer(self, parked: ParkedFetch, position: FetchPosition) -> bool:
        """Whether there are records, or a newer high watermark, for a fetcher at position."""
        partition, log = parked.partition, self._quorum.log
        high_watermark = parked.leader.state.high_watermark
        return (
            position.kind is not PositionKind.VALID
            or log.end_offset > partition.fetch_offset
            or (high_watermark is not None and high_watermark > parked.known_high_watermark)
        )

    def _answer(self, parked: ParkedFetch, position: FetchPosition) -> None:
        quorum, partition = self._quorum, parked.partition
        response = fetch_response(
            leader_view(quorum, parked.listener_name),
            ErrorCode.NONE,
            high_watermark=parked.leader.state.high_watermark,
            log_start_offset=quorum.log.start_offset,
            position=position,
            version=parked.version,
        )
        read = None
        is_valid = position.kind is PositionKind.VALID
        if is_valid and quorum.log.end_offset > partition.fetch_offset:
            read = ReadRecords(partition.fetch_offset, parked.max_bytes)
        quorum.emit(Respond(parked.token, response, read))

    def _refuse(self, token: int, error: ErrorCode, listener_name: str, version: int) -> None:
        quorum = self._quorum
        response = fetch_response(
            leader_view(quorum, listener_name),
            error,
            high_watermark=None,
            log_start_offset=quorum.log.start_offset,
            position=None,
            version=version,
        )
        quorum.emit(Respond(token, response))

    # Parked fetches.

    def abandon(self, token: int) -> None:
        """The connection of a parked Fetch was closed."""
        self._parked.pop(token, None)

    def poll(self, now_ms: int) -> int | None:
        """Answer the parked fetches that can be answered now. Returns when the next max wait
        ends.
        """
        if not self._parked:
            return None
        for token, parked in list(self._parked.items()):
            if parked.leader is not self._quorum.state:
                del self._parked[token]
                error = ErrorCode.NOT_LEADER_OR_FOLLOWER
                self._refuse(token, error, parked.listener_name, parked.version)
            elif self._quorum.is_shutting_down:
                del self._parked[token]
                error = ErrorCode.BROKER_NOT_AVAILABLE
                self._refuse(token, error, parked.listener_name, parked.version)
            else:
                position = self._position(parked.partition)
                if parked.deadline_ms <= now_ms or self._has_answer(parked, position):
                    del self._parked[token]
                    self._answer(parked, position)
        return min((parked.deadline_ms for parked in self._parked.values()), default=None)

    # FetchSnapshot.

    def fetch_snapshot(
        self,
        token: int,
        request: FetchSnapshotRequest,
        *,
        listener_name: str,
        version: int,
        now_ms: int,
    ) -> None:
        """Answer with the bytes of a snapshot."""
        quorum = self._quorum
        if request.cluster_id is not None and request.cluster_id != quorum.config.cluster_id:
            error = ErrorCode.INCONSISTENT_CLUSTER_ID
            quorum.emit(Respond(token, FetchSnapshotResponse(error_code=error)))
            return
        partition = snapshot_partition(request)
        snapshot_id, position, size_bytes = SnapshotId(0, 0), 0, 0
        read = None
        if partition is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            asked = partition.snapshot_id
            snapshot_id = SnapshotId(asked.end_offset, asked.epoch)
            position = partition.position
            size_bytes = quorum.log.snapshots.get(snapshot_id, 0)
            error = self.leader_error(partition.current_leader_epoch)
            if not error and (snapshot_id == BOOTSTRAP_ID or not size_bytes):
                error = ErrorCode.SNAPSHOT_NOT_FOUND
            if not error and not 0 <= position < size_bytes:
                error = ErrorCode.POSITION_OUT_OF_RANGE
            state = quorum.state
            if not error and isinstance(state, Leader):
                key = ReplicaKey(request.replica_id, partition.replica_directory_id)
                state.state.contact(key, now_ms)
                max_bytes = max(min(request.max_bytes, quorum.config.fetch_snapshot_max_bytes), 0)
                read = ReadSnapshot(snapshot_id, position, max_bytes)
        response = fetch_snapshot_response(
            leader_view(quorum, listener_name),
            error,
            snapshot_id=snapshot_id,
            position=position,
            size_bytes=size_bytes,
            version=version,
        )
        quorum.emit(Respond(token, response, read))

    # DescribeQuorum.

    def describe(
        self, token: int, request: DescribeQuorumRequest, version: int, now_ms: int, wall_ms: int
    ) -> None:
        """Answer with the replicas as the leader sees them. wall_ms: now since the Unix epoch."""
        quorum = self._quorum
        state = quorum.state
        if metadata_partition(request.topics) is None:
            self._refuse_describe(token, request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return
        if not isinstance(state, Leader):
            self._refuse_describe(token, request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        leading = state.state
        high_watermark = leading.high_watermark
        partition = DescribeQuorumResponse.PartitionData(
            partition_index=METADATA_PARTITION.partition,
            leader_id=quorum.local.id,
            leader_epoch=quorum.epoch,
            high_watermark=-1 if high_watermark is None else high_watermark,
            current_voters=[
                self._describe(each, version, wall_ms, now_ms) for each in leading.voters
            ],
            observers=[
                self._describe(each, version, wall_ms, now_ms) for each in leading.observers(now_ms)
            ],
        )
        topic = DescribeQuorumResponse.TopicData(
            topic_name=METADATA_PARTITION.topic, partitions=[partition]
        )
        response = DescribeQuorumResponse(topics=[topic])
        if version >= 2:
            response.nodes = [
                DescribeQuorumResponse.Node(
                    node_id=voter.id,
                    listeners=endpoint_fields(DescribeQuorumResponse.Listener, voter.endpoints),
                )
                for voter in quorum.voters
            ]
        quorum.emit(Respond(token, response))

    def _describe(
        self, state: ReplicaState, version: int, wall_ms: int, now_ms: int
    ) -> DescribeQuorumResponse.ReplicaState:
        times = (state.last_fetch_ms, state.last_caught_up_ms)
        if state.key.id == self._quorum.local.id:
            times = (now_ms, now_ms)
        last_fetch_ms, last_caught_up_ms = (
            each if each < 0 else wall_ms - (now_ms - each) for each in times
        )
        described = DescribeQuorumResponse.ReplicaState(
            replica_id=state.key.id,
            log_end_offset=-1 if state.end_offset is None else state.end_offset,
            last_fetch_timestamp=last_fetch_ms,
            last_caught_up_timestamp=last_caught_up_ms,
        )
        if version >= 2:
            described.replica_directory_id = state.key.directory_id
        return described

    def _refuse_describe(
        self, token: int, request: DescribeQuorumRequest, error: ErrorCode
    ) -> None:
        self._quorum.emit(Respond(token, refused_partitions(request, error)))
