"""One node of the quorum, a voter or an observer: events in, effects out (docs/adr/0003). KIP-595.

Every event takes the monotonic time in ms and returns the effects to execute, in order; the shell
is `quorum/driver`, in the simulation `tests/sim`. After each event the shell asks
`next_deadline_ms` and calls `poll` then. InvariantError from an event means that this node must
stop: two leaders in one epoch, or a committed record that the leader does not have.

Elections are in `elections`, the leader in `leadership`, its responses to replicas in
`fetch_service`, the follower in `fetcher`.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from kbroker.model import InvariantError
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.api_versions import ApiVersionsResponse
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    BeginQuorumEpochRequest,
    DescribeQuorumRequest,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
    VoteRequest,
    VoteResponse,
)
from kbroker.quorum.raft.control import QuorumConfiguration
from kbroker.quorum.raft.effects import (
    Effect,
    RaftRequest,
    RaftResponse,
    ShutdownComplete,
)
from kbroker.quorum.raft.election_state import UNKNOWN_ID, ElectionState
from kbroker.quorum.raft.elections import Elections
from kbroker.quorum.raft.fetch_service import FetchService
from kbroker.quorum.raft.fetcher import Fetcher
from kbroker.quorum.raft.leadership import Leadership
from kbroker.quorum.raft.log_writer import LogWriter
from kbroker.quorum.raft.offsets import SnapshotId
from kbroker.quorum.raft.raft_config import RaftConfig
from kbroker.quorum.raft.raft_log import RaftLog
from kbroker.quorum.raft.requests.request_manager import RequestManager, Sent
from kbroker.quorum.raft.requests.response_view import ResponseView, view_response
from kbroker.quorum.raft.states.control_state import ControlState
from kbroker.quorum.raft.states.epoch_states import (
    Candidate,
    EpochState,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Unattached,
)
from kbroker.quorum.raft.states.quorum_state import QuorumState
from kbroker.quorum.raft.voter_changes import VoterChanges
from kbroker.quorum.raft.voter_membership import VoterMembership


class RaftNode:
    """One node of the quorum. quorum: its state; read-only for the shell.

    log, control: the log and its control records as they are on disk. election: the content of
    quorum-state. high_watermark: the known high watermark, at least the end of the newest snapshot.
    """

    __slots__ = (
        "_changes",
        "_election",
        "_elections",
        "_fetcher",
        "_fetches",
        "_leadership",
        "_membership",
        "_next_deadline_ms",
        "_requests",
        "_shutdown_deadline_ms",
        "_shutdown_epoch",
        "_writer",
        "quorum",
    )

    def __init__(
        self,
        config: RaftConfig,
        *,
        log: RaftLog,
        control: ControlState,
        election: ElectionState,
        random: Random,
        high_watermark: int = 0,
    ) -> None:
        self._election = election
        self.quorum = QuorumState(
            config, log=log, control=control, high_watermark=high_watermark, random=random
        )
        self._requests = RequestManager(self.quorum)
        self._writer = LogWriter(self.quorum)
        self._leadership = Leadership(self.quorum, self._requests, self._writer)
        self._elections = Elections(self.quorum, self._requests, self._leadership)
        self._fetches = FetchService(self.quorum)
        self._fetcher = Fetcher(self.quorum, self._requests, self._writer)
        self._changes = VoterChanges(self.quorum, self._requests, self._leadership, self._fetches)
        self._membership = VoterMembership(self.quorum, self._requests)
        self._next_deadline_ms: int | None = None
        self._shutdown_deadline_ms: int | None = None
        self._shutdown_epoch = -1

    # Queries of the shell.

    def next_deadline_ms(self) -> int | None:
        """The time at which `poll` is due; None if no deadline is set."""
        return self._next_deadline_ms

    @property
    def is_leader(self) -> bool:
        return isinstance(self.quorum.state, Leader)

    # Events.

    def start(self, now_ms: int) -> list[Effect]:
        """The first event: the state after a start. The only voter leads at once. Raises
        VotedButNotVoter where Kafka's node does not start; `start_unattached` may follow.
        """
        self.quorum.initialize(self._election, now_ms)
        if not isinstance(self.quorum.state, Candidate):
            if self.quorum.is_only_voter:
                self._elections.become_prospective(now_ms)
        else:
            self._elections.count_votes(now_ms)
        return self._finish(now_ms)

    def start_unattached(self, now_ms: int) -> list[Effect]:
        """The first event of a node whose `start` raised VotedButNotVoter: it looks for the leader
        and keeps its vote.
        """
        self.quorum.initialize_unattached(self._election)
        return self._finish(now_ms)

    def poll(self, now_ms: int) -> list[Effect]:
        """Check all deadlines: elections, the quorum check, retries, the max wait of parked
        fetches. May be called at any time.
        """
        return self._finish(now_ms)

    def handle_request(
        self,
        token: int,
        request: RaftRequest,
        *,
        listener_name: str,
        version: int,
        now_ms: int,
        wall_ms: int,
    ) -> list[Effect]:
        """Another node or a client sent a request; the response is a Respond with its token, now or
        in a later event. listener_name: the listener that received it, whose endpoints are in the
        response. version: the request's, which is also the response's. wall_ms: the time since the
        Unix epoch, only for responses to clients.
        """
        match request:
            case VoteRequest():
                self._elections.vote(
                    token, request, listener_name=listener_name, version=version, now_ms=now_ms
                )
            case BeginQuorumEpochRequest():
                self._leadership.begin_quorum_epoch(
                    token, request, listener_name=listener_name, version=version, now_ms=now_ms
                )
            case EndQuorumEpochRequest():
                self._leadership.end_quorum_epoch(
                    token, request, listener_name=listener_name, version=version, now_ms=now_ms
                )
            case FetchRequest():
                self._fetches.fetch(
                    token, request, listener_name=listener_name, version=version, now_ms=now_ms
                )
            case FetchSnapshotRequest():
                self._fetches.fetch_snapshot(
                    token, request, listener_name=listener_name, version=version, now_ms=now_ms
                )
            case DescribeQuorumRequest():
                self._fetches.describe(token, request, version, now_ms, wall_ms)
            case AddRaftVoterRequest():
                self._changes.add(token, request, now_ms)
            case RemoveRaftVoterRequest():
                self._changes.remove(token, request, now_ms)
            case UpdateRaftVoterRequest():
                self._changes.update(token, request, listener_name=listener_name, now_ms=now_ms)
            case _:
                raise InvariantError(f"the quorum does not serve {type(request).__name__}")
        return self._finish(now_ms)

    def request_abandoned(self, token: int) -> None:
        """The connection of a parked request was closed."""
        self._fetches.abandon(token)
        self._changes.abandon(token)

    def response_received(
        self, correlation_id: int, response: RaftResponse, now_ms: int
    ) -> list[Effect]:
        """The response to a Send. A response to an unknown request has no effects."""
        sent = self._requests.complete(correlation_id, is_failed=False, now_ms=now_ms)
        if sent is not None and not self._handle_response(sent, response, now_ms):
            self._requests.back_off(sent.destination.node_id, now_ms)
        return self._finish(now_ms)

    def request_failed(self, correlation_id: int, error: ErrorCode, now_ms: int) -> list[Effect]:
        """A Send failed. error: BROKER_NOT_AVAILABLE if not connected or disconnected,
        REQUEST_TIMED_OUT, or UNSUPPORTED_VERSION if the destination cannot serve the request.
        """
        sent = self._requests.complete(correlation_id, is_failed=True, now_ms=now_ms)
        if sent is not None:
            self._fetcher.ended(sent, is_failed=True)
            self._changes.versions_answered(sent, None, now_ms)
            if error is ErrorCode.UNSUPPORTED_VERSION:
                self._not_supported(sent, now_ms)
        return self._finish(now_ms)

    def propose(self, records: Sequence[bytes], now_ms: int) -> list[Effect]:
        """Append records of the leader as one data batch. Raises InvariantError if this node does
        not lead, or if there are no records.
        """
        self._leadership.append(records)
        return self._finish(now_ms)

    def check_kraft_upgrade(self, level: int) -> None:
        """See `VoterChanges.check_kraft_upgrade`."""
        self._changes.check_kraft_upgrade(level)

    def upgrade_kraft_version(self, level: int, now_ms: int) -> list[Effect]:
        """UpdateFeatures of kraft.version: committed once all records below the log end are. Raises
        KafkaError(INVALID_UPDATE_VERSION) if a voter does not support it.
        """
        self._changes.upgrade_kraft_version(level)
        return self._finish(now_ms)

    def flushed(self, end_offset: int, now_ms: int) -> list[Effect]:
        """A Flush is complete: the log is on disk up to end_offset (exclusive)."""
        self._writer.flushed(end_offset)
        self._leadership.log_flushed(now_ms)
        return self._finish(now_ms)

    def snapshot_written(
        self, snapshot_id: SnapshotId, size_bytes: int, now_ms: int
    ) -> list[Effect]:
        """This node wrote a snapshot of its own state, at a batch boundary not above the high
        watermark: other nodes may fetch it from now on.
        """
        self.quorum.log.add_snapshot(snapshot_id, size_bytes)
        return self._finish(now_ms)

    def log_cleaned(
        self, log_start_offset: int, snapshots: Sequence[SnapshotId], now_ms: int
    ) -> list[Effect]:
        """Retention advanced the log's start to the end of a snapshot and left these snapshots."""
        self.quorum.log.clean(log_start_offset, snapshots)
        # values in effect at the log start are kept: the log may be truncated to its start
        self.quorum.control.truncate_old(log_start_offset - 1)
        return self._finish(now_ms)

    def snapshot_received(
        self,
        snapshot_id: SnapshotId,
        size_bytes: int,
        configuration: QuorumConfiguration,
        now_ms: int,
    ) -> list[Effect]:
        """A FinishSnapshot is complete. configuration: that of the snapshot's control records."""
        self._fetcher.snapshot_received(snapshot_id, size_bytes, configuration)
        return self._finish(now_ms)

    def snapshot_refused(self, snapshot_id: SnapshotId, now_ms: int) -> list[Effect]:
        """A fetched snapshot is damaged; its `.part` file was removed."""
        self._fetcher.snapshot_refused()
        return self._finish(now_ms)

    def resign(self, epoch: int, now_ms: int) -> list[Effect]:
        """The controller resigns from that epoch. An older epoch has no effects."""
        if self.is_leader and epoch == self.quorum.epoch:
            self._leadership.resign(now_ms)
        return self._finish(now_ms)

    def shutdown(self, timeout_ms: int, now_ms: int) -> list[Effect]:
        """This node stops: a leader resigns and sends its successors. ShutdownComplete follows when
        another epoch has begun, when enough voters know of the resignation to elect one of
        themselves, when there is no other voter, or after timeout_ms. (Kafka waits for the epoch,
        of which a node with closed listeners is rarely told.)
        """
        self.quorum.is_shutting_down = True
        self._shutdown_deadline_ms = now_ms + timeout_ms
        self._shutdown_epoch = self.quorum.epoch
        if self.is_leader:
            self._leadership.resign(now_ms)
        return self._finish(now_ms)

    # Responses of other nodes.

    def _handle_response(self, sent: Sent, response: RaftResponse, now_ms: int) -> bool:
        """Returns whether the response was valid; if not, the core backs off from its sender."""
        if isinstance(response, ApiVersionsResponse):
            self._changes.versions_answered(sent, response, now_ms)
            return True
        if isinstance(response, AddRaftVoterResponse | RemoveRaftVoterResponse):
            return self._membership.answered(response.error_code, now_ms)
        if response.error_code:
            self._fetcher.ended(sent, is_failed=True)
            if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
                self._not_supported(sent, now_ms)
            return False
        view = view_response(response, self.quorum.config.listener_name)
        if view is None:
            self._fetcher.ended(sent, is_failed=True)
            return False
        is_fetch = self._fetcher.ended(sent, is_failed=False)
        if self._is_about_the_epoch(view, now_ms):
            return not view.error
        match response:
            case VoteResponse() if not view.error:
                self._elections.vote_answered(sent, response, now_ms)
            case UpdateRaftVoterResponse():
                self._membership.updated(sent, now_ms)
            case EndQuorumEpochResponse() if not view.error:
                self._leadership.end_acknowledged(sent)
            case FetchResponse() if is_fetch and not view.error:
                return self._fetcher.fetched(response, now_ms)
            case FetchSnapshotResponse() if is_fetch:
                return self._fetcher.snapshot_fetched(response, now_ms)
        return not view.error

    def _not_supported(self, sent: Sent, now_ms: int) -> None:
        """The destination does not serve the request."""
        match sent.request:
            case VoteRequest():
                self._elections.vote_not_supported(sent, now_ms)
            case UpdateRaftVoterRequest():
                self._membership.updated(sent, now_ms)

    def _is_about_the_epoch(self, view: ResponseView, now_ms: int) -> bool:
        """Apply epoch and leader of a response. Returns whether the response has no other
        content.
        """
        quorum = self.quorum
        if view.epoch < quorum.epoch or view.error is ErrorCode.UNKNOWN_LEADER_EPOCH:
            return True
        endpoints = view.endpoints or quorum.endpoints_of(view.leader_id)
        had_stale_epoch = view.epoch > quorum.epoch or view.error in (
            ErrorCode.FENCED_LEADER_EPOCH,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        )
        # also a leader without known endpoints: it may be the only node that can send them
        is_leader_new = (
            view.leader_id != UNKNOWN_ID
            and quorum.leader_id in (UNKNOWN_ID, view.leader_id)
            and not quorum.leader_endpoints
        )
        if had_stale_epoch or is_leader_new:
            quorum.maybe_transition(view.epoch, view.leader_id, endpoints, now_ms)
        return had_stale_epoch

    # Time.

    def _finish(self, now_ms: int) -> list[Effect]:
        """Run all due work after an event. Returns all effects of the event."""
        if self._fetches.high_watermark_moved:
            self._fetches.high_watermark_moved = False
            self._leadership.high_watermark_moved(now_ms)
        times: list[int | None] = []
        state: EpochState | None = None
        while self.quorum.state is not state:
            state = self.quorum.state
            times = self._poll_state(state, now_ms)
        times.append(self._changes.poll(now_ms))
        times.append(self._fetches.poll(now_ms))
        times.append(self._poll_shutdown(now_ms))
        next_ms: int | None = None
        for due_ms in times:
            if due_ms is not None and (next_ms is None or due_ms < next_ms):
                next_ms = due_ms
        self._next_deadline_ms = next_ms
        return self.quorum.take_effects()

    def _poll_state(self, state: EpochState, now_ms: int) -> list[int | None]:
        """Run the due work of the current state. Returns the next deadlines."""
        if self.quorum.is_shutting_down and not isinstance(state, Leader | Resigned):
            return []
        match state:
            case Unattached():
                self._elections.poll_unattached(state, now_ms)
                if self.quorum.state is not state:
                    return []
                return [state.election_deadline_ms, self._fetcher.poll_unattached(state, now_ms)]
            case Prospective():
                retry_ms = self._elections.poll_prospective(state, now_ms)
                return [state.election_deadline_ms, retry_ms]
            case Candidate():
                retry_ms = self._elections.poll_candidate(state, now_ms)
                return [state.election_deadline_ms, retry_ms]
            case Follower():
                if self._elections.poll_follower(state, now_ms):
                    return []
                due_ms = self._membership.poll(state, now_ms)
                retry_ms = self._fetcher.poll_follower(state, now_ms)
                deadline_ms = state.fetch_deadline_ms
                return [deadline_ms if deadline_ms > now_ms else None, due_ms, retry_ms]
            case Leader():
                return [self._leadership.poll_leader(state, now_ms)]
            case Resigned():
                return [self._leadership.poll_resigned(state, now_ms)]

    def _poll_shutdown(self, now_ms: int) -> int | None:
        deadline_ms, quorum = self._shutdown_deadline_ms, self.quorum
        if deadline_ms is None:
            return None
        state = quorum.state
        is_resigned = isinstance(state, Resigned) and quorum.epoch == self._shutdown_epoch
        others = [voter_id for voter_id in quorum.voters.ids if voter_id != quorum.local.id]
        if isinstance(state, Resigned) and is_resigned and others and now_ms < deadline_ms:
            told = sum(voter_id not in state.unacknowledged for voter_id in others)
            if told < quorum.voters.majority:
                return deadline_ms
        self._shutdown_deadline_ms = None
        quorum.emit(ShutdownComplete())
        return None
