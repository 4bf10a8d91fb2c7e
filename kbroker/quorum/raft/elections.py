"""Elections: requests for votes and pre-votes, the answers to them, and the timeouts that start an
election. KIP-595, KIP-996.
"""

from __future__ import annotations

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.quorum import VoteRequest, VoteResponse
from kbroker.quorum.raft.effects import Respond
from kbroker.quorum.raft.election_state import MAX_TOLD_EPOCH, UNKNOWN_ID
from kbroker.quorum.raft.leadership import Leadership
from kbroker.quorum.raft.offsets import OffsetAndEpoch
from kbroker.quorum.raft.requests.messages import (
    leader_view,
    metadata_partition,
    vote_request,
    vote_response,
)
from kbroker.quorum.raft.requests.request_manager import RequestManager, Sent
from kbroker.quorum.raft.states.epoch_states import (
    Candidate,
    Follower,
    Prospective,
    Unattached,
    can_grant_vote,
)
from kbroker.quorum.raft.states.quorum_state import QuorumState
from kbroker.quorum.raft.voters.voter_set import ReplicaKey


class Elections:
    """One replica's part in elections."""

    __slots__ = ("_leadership", "_quorum", "_requests")

    def __init__(
        self, quorum: QuorumState, requests: RequestManager, leadership: Leadership
    ) -> None:
        self._quorum = quorum
        self._requests = requests
        self._leadership = leadership

    # Voting for others.

    def vote(
        self, token: int, request: VoteRequest, *, listener_name: str, version: int, now_ms: int
    ) -> None:
        """Answer a candidate's request for a vote or pre-vote."""
        quorum = self._quorum
        partition = metadata_partition(request.topics)
        if request.cluster_id is not None and request.cluster_id != quorum.config.cluster_id:
            error = ErrorCode.INCONSISTENT_CLUSTER_ID
            quorum.emit(Respond(token, VoteResponse(error_code=error)))
            return
        if partition is None:
            quorum.emit(Respond(token, VoteResponse(error_code=ErrorCode.INVALID_REQUEST)))
            return
        voter = ReplicaKey(request.voter_id, partition.voter_directory_id)
        is_granted = False
        error = self._vote_error(partition)
        if not error:
            if partition.replica_epoch > quorum.epoch:
                quorum.maybe_transition(partition.replica_epoch, UNKNOWN_ID, (), now_ms)
            if quorum.is_local(voter):
                is_granted = self._grant(partition, now_ms)
            else:
                error = ErrorCode.INVALID_VOTER_KEY
        leader = leader_view(quorum, listener_name)
        response = vote_response(leader, error, is_granted=is_granted, version=version)
        quorum.emit(Respond(token, response))

    def _vote_error(self, partition: VoteRequest.PartitionData) -> ErrorCode:
        """Why a request is rejected regardless of its epoch."""
        epoch, last_epoch = partition.replica_epoch, partition.last_offset_epoch
        # a pre-vote is for the current epoch, a vote for an epoch without records yet
        highest_epoch = epoch if partition.pre_vote else epoch - 1
        if partition.last_offset < 0 or not 0 <= last_epoch <= highest_epoch < MAX_TOLD_EPOCH:
            return ErrorCode.INVALID_REQUEST
        if epoch < self._quorum.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if partition.replica_id < 0:
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def _grant(self, partition: VoteRequest.PartitionData, now_ms: int) -> bool:
        quorum = self._quorum
        candidate = ReplicaKey(partition.replica_id, partition.replica_directory_id)
        log = OffsetAndEpoch(partition.last_offset, partition.last_offset_epoch)
        follower = quorum.state
        if isinstance(follower, Follower) and not quorum.is_voter:
            # its log may be too old to contain that it is a voter, whose vote is needed
            follower.has_fetched = follower.has_fetched and now_ms < follower.fetch_deadline_ms
        # another node with this id: a vote for it would be indistinguishable from one for itself
        is_granted = candidate.id != quorum.local.id and can_grant_vote(
            quorum.state,
            candidate,
            is_log_up_to_date=log.is_at_least(quorum.log.end),
            is_pre_vote=partition.pre_vote,
        )
        state = quorum.state
        is_new = isinstance(state, Unattached | Prospective) and state.voted is None
        if is_granted and is_new and not partition.pre_vote:
            quorum.add_vote(candidate, now_ms)
        return is_granted

    # Standing for election.

    def become_prospective(self, now_ms: int) -> None:
        """Ask for pre-votes; the only voter is elected at once."""
        self._quorum.to_prospective(now_ms)
        self.count_votes(now_ms)

    def count_votes(self, now_ms: int) -> None:
        """Become candidate or leader if a majority granted its pre-vote or vote."""
        quorum = self._quorum
        state = quorum.state
        if isinstance(state, Prospective) and state.election.is_granted:
            quorum.to_candidate(now_ms)
            state = quorum.state
        if isinstance(state, Candidate) and state.election.is_granted:
            self._leadership.begin(state.election.granting, now_ms)

    def vote_answered(self, sent: Sent, response: VoteResponse, now_ms: int) -> None:
        """A voter answered without an error; the epoch and leader of the response were already
        applied.
        """
        quorum = self._quorum
        state = quorum.state
        partition = metadata_partition(response.topics)
        if state is not sent.state or partition is None:
            return
        if isinstance(state, Prospective | Candidate) and partition.leader_epoch == state.epoch:
            state.election.record(sent.destination.node_id, granted=partition.vote_granted)
            self.count_votes(now_ms)

    def vote_not_supported(self, sent: Sent, now_ms: int) -> None:
        """A voter does not support pre-votes: this replica becomes a candidate without them."""
        quorum = self._quorum
        if quorum.state is sent.state and isinstance(quorum.state, Prospective):
            quorum.to_candidate(now_ms)
            self.count_votes(now_ms)

    # Time.

    def poll_unattached(self, state: Unattached, now_ms: int) -> None:
        """Become prospective at the election timeout."""
        deadline_ms = state.election_deadline_ms
        if deadline_ms is None:
            # became a voter when its VotersRecord was appended
            if self._quorum.is_voter:
                state.election_deadline_ms = now_ms + self._quorum.election_timeout_ms()
        elif not self._quorum.is_voter:
            state.election_deadline_ms = None
        elif deadline_ms <= now_ms:
            self.become_prospective(now_ms)

    def poll_prospective(self, state: Prospective, now_ms: int) -> int | None:
        """Request pre-votes; give up if a majority rejects them or the election timeout passes.
        Returns when to poll again.
        """
        quorum = self._quorum
        if state.election.is_rejected or state.election_deadline_ms <= now_ms:
            if state.leader_endpoints:
                epoch, leader_id = state.epoch, state.leader_id
                quorum.to_follower(epoch, leader_id, state.leader_endpoints, now_ms)
            else:
                quorum.to_unattached(state.epoch, state.leader_id, now_ms)
            return None
        return self._ask(state, now_ms)

    def poll_candidate(self, state: Candidate, now_ms: int) -> int | None:
        """Request votes; start again with pre-votes at the election timeout. Returns when to poll
        again.
        """
        if state.election_deadline_ms <= now_ms:
            self.become_prospective(now_ms)
            return None
        if state.election.is_rejected:
            return None
        return self._ask(state, now_ms)

    def poll_follower(self, state: Follower, now_ms: int) -> bool:
        """Become prospective if this voter has not fetched from its leader for the fetch timeout.
        Returns whether it does.
        """
        if state.fetch_deadline_ms > now_ms or not self._quorum.is_voter:
            return False
        self.become_prospective(now_ms)
        return True

    def _ask(self, state: Prospective | Candidate, now_ms: int) -> int | None:
        quorum, requests = self._quorum, self._requests
        retry_ms: list[int] = []
        for voter_id in state.election.unrecorded:
            voter = state.election.voters.get(voter_id)
            destination = requests.destination(voter_id)
            if voter is None or destination is None:
                continue
            if requests.is_ready(voter_id, now_ms):
                request = vote_request(
                    quorum.config.cluster_id,
                    quorum.local,
                    voter.key,
                    epoch=state.epoch,
                    log_end=quorum.log.end,
                    is_pre_vote=isinstance(state, Prospective),
                )
                requests.send(destination, request)
            elif (ready_ms := requests.ready_at_ms(voter_id)) is not None:
                retry_ms.append(ready_ms)
        return min(retry_ms, default=None)
