"""The leader's role: its first batch, the high watermark, the quorum check, resignation; and both
sides of BeginQuorumEpoch and EndQuorumEpoch. KIP-595, KIP-853.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from kbroker.model import InvariantError
from kbroker.protocol.batches.control_records import ControlType
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.quorum import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
)
from kbroker.quorum.raft.control import QuorumConfiguration, leader_change
from kbroker.quorum.raft.effects import Respond
from kbroker.quorum.raft.election_state import MAX_TOLD_EPOCH
from kbroker.quorum.raft.log_writer import LogWriter
from kbroker.quorum.raft.requests.messages import (
    begin_quorum_epoch_request,
    end_quorum_epoch_request,
    epoch_response,
    leader_view,
    metadata_partition,
)
from kbroker.quorum.raft.requests.request_manager import RequestManager, Sent
from kbroker.quorum.raft.states.epoch_states import Follower, Leader, Resigned
from kbroker.quorum.raft.states.quorum_state import QuorumState
from kbroker.quorum.raft.voters.voter_set import (
    EndpointFields,
    ReplicaKey,
    Voter,
    VoterEndpoint,
    are_usable,
)

MAX_SUCCESSORS: Final = 1000
"""The maximum number of successors that a resigning leader may send."""


class _LeaderOfEpoch(Protocol):
    """The partition of BeginQuorumEpoch and EndQuorumEpoch."""

    @property
    def leader_id(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...


class Leadership:
    """The duties of a leader, and a voter's responses to its leader's announcements."""

    __slots__ = ("_begin_epoch_at_ms", "_quorum", "_requests", "_writer")

    def __init__(self, quorum: QuorumState, requests: RequestManager, writer: LogWriter) -> None:
        self._quorum = quorum
        self._requests = requests
        self._writer = writer
        self._begin_epoch_at_ms = 0

    # Leading.

    def begin(self, granting: Sequence[int], now_ms: int) -> None:
        """A majority elected this replica: it leads, and its epoch begins with a LeaderChange."""
        quorum = self._quorum
        quorum.to_leader(now_ms)
        self._begin_epoch_at_ms = now_ms
        records = [leader_change(quorum.local.id, quorum.voters.ids, granting)]
        self._writer.append_control([*records, *self._configuration_records()])
        self._voters_changed()

    def _configuration_records(self) -> list[tuple[ControlType, Message]]:
        """kraft.version and voters, if the log lacks their current values: they are only known from
        the bootstrap checkpoint, or the endpoints of this replica changed.
        """
        quorum = self._quorum
        voters, offset = quorum.voters, quorum.control.voters.last_offset
        if quorum.control.kraft_version == 0 or offset is None:
            return []
        own = voters.get(quorum.local.id)
        endpoints = quorum.config.endpoints
        wanted = None if own is None else Voter(*own.key, endpoints)
        if own is not None and wanted is not None and endpoints and not own.is_same_as(wanted):
            voters = voters.with_updated_voter(wanted) or voters
        elif offset >= 0:
            return []
        return QuorumConfiguration(quorum.control.kraft_version, tuple(voters)).records()

    def append(self, records: Sequence[bytes]) -> None:
        """Append records of the controller. Raises InvariantError if this replica does not lead."""
        if not isinstance(self._quorum.state, Leader) or not records:
            raise InvariantError(
                f"node {self._quorum.local} proposes {len(records)} records without leading"
            )
        self._writer.append_records(records)

    def append_control(self, records: Sequence[tuple[ControlType, Message]]) -> int:
        """Append records that change the quorum; they take effect at once. Returns the last
        offset.
        """
        offset = self._writer.append_control(records)
        self._voters_changed()
        return offset

    def _voters_changed(self) -> None:
        state = self._quorum.state
        if isinstance(state, Leader) and state.state.voter_set != self._quorum.voters:
            state.state.set_voters(self._quorum.voters)

    def log_flushed(self, now_ms: int) -> None:
        """The leader's own log is on disk up to its `flushed_offset`, which counts for the high
        watermark.
        """
        state = self._quorum.state
        if isinstance(state, Leader):
            flushed_offset = self._quorum.log.flushed_offset
            if flushed_offset > state.state.epoch_start_offset:
                state.state.local_end(flushed_offset, self._quorum.voters)
            self.high_watermark_moved(now_ms)

    def high_watermark_moved(self, now_ms: int) -> None:
        """Commit the records that a majority has. A leader that is not a committed voter
        resigns.
        """
        quorum = self._quorum
        state = quorum.state
        if not isinstance(state, Leader) or state.state.high_watermark is None:
            return
        quorum.advance_high_watermark(state.state.high_watermark)
        offset = quorum.control.voters.last_offset
        if not quorum.is_voter and offset is not None and offset < state.state.high_watermark:
            self.resign(now_ms)

    def resign(self, now_ms: int) -> None:
        """Resign from the epoch."""
        self._quorum.to_resigned(now_ms)

    def poll_leader(self, leader: Leader, now_ms: int) -> int | None:
        """Resign if no majority fetches; send BeginQuorumEpoch to voters that do not fetch. Returns
        when to poll again.
        """
        deadline_ms = leader.state.check_quorum_deadline()
        if deadline_ms is not None and deadline_ms <= now_ms:
            self.resign(now_ms)
            return None
        if len(self._quorum.voters) == 1 and self._quorum.is_voter:
            return None
        if self._begin_epoch_at_ms <= now_ms:
            self._begin_epoch_at_ms = now_ms + max(self._quorum.config.fetch_timeout_ms // 2, 1)
            for key in leader.state.to_begin_epoch(now_ms):
                self._send_begin_epoch(key, now_ms)
        times = (deadline_ms, self._begin_epoch_at_ms)
        return min(each for each in times if each is not None)

    def _send_begin_epoch(self, key: ReplicaKey, now_ms: int) -> None:
        quorum = self._quorum
        destination = self._requests.destination(key.id)
        if destination is not None and self._requests.is_ready(key.id, now_ms):
            config = quorum.config
            request = begin_quorum_epoch_request(
                config.cluster_id, config.local.id, config.endpoints, key, epoch=quorum.epoch
            )
            self._requests.send(destination, request)

    # After leading.

    def poll_resigned(self, state: Resigned, now_ms: int) -> int | None:
        """Send EndQuorumEpoch to the voters, until the election timeout. Returns when to poll
        again.
        """
        quorum = self._quorum
        if state.election_deadline_ms <= now_ms and not quorum.is_shutting_down:
            # an observer starts no elections: it keeps its epoch, which no other node can lead
            epoch = state.epoch + 1 if quorum.is_voter else state.epoch
            leader_id = -1 if quorum.is_voter else state.leader_id
            quorum.to_unattached(epoch, leader_id, now_ms)
            return None
        times = [] if quorum.is_shutting_down else [state.election_deadline_ms]
        config = quorum.config
        for voter_id in sorted(state.unacknowledged):
            destination = self._requests.destination(voter_id)
            if destination is None:
                continue
            if self._requests.is_ready(voter_id, now_ms):
                request = end_quorum_epoch_request(
                    config.cluster_id,
                    config.local.id,
                    config.endpoints,
                    state.successors,
                    epoch=state.epoch,
                )
                self._requests.send(destination, request)
            elif (ready_ms := self._requests.ready_at_ms(voter_id)) is not None:
                times.append(ready_ms)
        return min(times, default=None)

    def end_acknowledged(self, sent: Sent) -> None:
        """A voter has answered EndQuorumEpoch."""
        state = self._quorum.state
        if state is sent.state and isinstance(state, Resigned):
            state.unacknowledged.discard(sent.destination.node_id)

    # A voter is told who leads.

    def begin_quorum_epoch(
        self,
        token: int,
        request: BeginQuorumEpochRequest,
        *,
        listener_name: str,
        version: int,
        now_ms: int,
    ) -> None:
        """The leader of an epoch announces itself."""
        quorum = self._quorum
        partition = metadata_partition(request.topics)
        error = self._request_error(request.cluster_id, partition is not None)
        if partition is None or error:
            quorum.emit(Respond(token, BeginQuorumEpochResponse(error_code=error)))
            return
        error = self._adopt_leader(partition, request.leader_endpoints, now_ms)
        if not error:
            voter = ReplicaKey(request.voter_id, partition.voter_directory_id)
            if not quorum.is_local(voter):
                error = ErrorCode.INVALID_VOTER_KEY
        leader = leader_view(quorum, listener_name)
        quorum.emit(
            Respond(
                token,
                epoch_response(BeginQuorumEpochResponse, leader, error, version=version),
            )
        )

    def end_quorum_epoch(
        self,
        token: int,
        request: EndQuorumEpochRequest,
        *,
        listener_name: str,
        version: int,
        now_ms: int,
    ) -> None:
        """The leader of an epoch resigns: its successors start elections, the first one first."""
        quorum = self._quorum
        partition = metadata_partition(request.topics)
        error = self._request_error(request.cluster_id, partition is not None)
        if partition is None or error:
            quorum.emit(Respond(token, EndQuorumEpochResponse(error_code=error)))
            return
        candidates, successors = partition.preferred_candidates, partition.preferred_successors
        error = ErrorCode.INVALID_REQUEST
        if len(candidates) <= MAX_SUCCESSORS >= len(successors):
            error = self._adopt_leader(partition, request.leader_endpoints, now_ms)
        if not error:
            state = quorum.state
            if isinstance(state, Follower) and state.leader_id == partition.leader_id:
                keys = [
                    ReplicaKey(each.candidate_id, each.candidate_directory_id)
                    for each in candidates
                ] or [ReplicaKey(each) for each in successors]
                backoff_ms = succession_backoff_ms(
                    quorum.local, keys, quorum.config.election_backoff_max_ms
                )
                state.fetch_deadline_ms = now_ms + backoff_ms
        leader = leader_view(quorum, listener_name)
        quorum.emit(
            Respond(
                token,
                epoch_response(EndQuorumEpochResponse, leader, error, version=version),
            )
        )

    def _request_error(self, cluster_id: str | None, has_partition: bool) -> ErrorCode:
        if cluster_id is not None and cluster_id != self._quorum.config.cluster_id:
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        return ErrorCode.NONE if has_partition else ErrorCode.INVALID_REQUEST

    def _adopt_leader(
        self, leader: _LeaderOfEpoch, endpoints: Iterable[EndpointFields], now_ms: int
    ) -> ErrorCode:
        """Take over the epoch, the leader and its endpoints from the leader's own request. Returns
        why the request is rejected; NONE if it is not.
        """
        quorum = self._quorum
        if leader.leader_epoch < quorum.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        told = VoterEndpoint.all_of(endpoints)
        if leader.leader_id < 0 or leader.leader_epoch > MAX_TOLD_EPOCH or not are_usable(told):
            return ErrorCode.INVALID_REQUEST
        if not quorum.has_consistent_leader(leader.leader_epoch, leader.leader_id):
            return ErrorCode.INVALID_REQUEST  # an epoch has one leader: the sender is not it
        listeners = told or quorum.endpoints_of(leader.leader_id)
        quorum.maybe_transition(leader.leader_epoch, leader.leader_id, listeners, now_ms)
        return ErrorCode.NONE


def succession_backoff_ms(local: ReplicaKey, successors: Sequence[ReplicaKey], max_ms: int) -> int:
    """How long a voter waits until it stands for election after its leader resigned: not at all if
    it is the first successor or none is listed, then twice as long for each next one; a voter that
    is not listed waits for max_ms.
    """
    if not successors:
        return 0
    position = next((index for index, key in enumerate(successors) if key.names(local)), None)
    if position is None:
        return max_ms
    if position == 0:
        return 0
    return min(max_ms, (max_ms >> (len(successors) - 1)) << (position - 1))
