"""The requests of a follower for its own entry in the voter set. KIP-853.

A voter whose endpoints or supported kraft.versions differ from its entry sends UpdateRaftVoter; in
a static quorum every voter does, so that the leader learns its directory id. An observer controller
with `controller.quorum.auto.join.enable` removes an earlier directory of its id from the voters,
then adds itself. Each is tried once per fetch timeout, between two fetches.
"""

from __future__ import annotations

from typing import Final

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.quorum import (
    AddRaftVoterRequest,
    RemoveRaftVoterRequest,
    UpdateRaftVoterRequest,
)
from kbroker.quorum.raft.requests.request_manager import RequestManager, Sent
from kbroker.quorum.raft.states.epoch_states import Follower
from kbroker.quorum.raft.states.quorum_state import QuorumState
from kbroker.quorum.raft.voters.voter_set import SUPPORTED_KRAFT_VERSIONS, Voter, endpoint_fields

EXPECTED_ANSWERS: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.DUPLICATE_VOTER,
        ErrorCode.VOTER_NOT_FOUND,
    }
)
"""Errors of AddRaftVoter and RemoveRaftVoter after which there is no back-off from the leader: the
change was made, or will be tried again.
"""


class VoterMembership:
    """The requests of one follower about itself."""

    __slots__ = ("_due_ms", "_follower", "_is_told", "_quorum", "_requests")

    def __init__(self, quorum: QuorumState, requests: RequestManager) -> None:
        self._quorum = quorum
        self._requests = requests
        self._follower: Follower | None = None
        self._due_ms = 0
        self._is_told = False

    def poll(self, state: Follower, now_ms: int) -> int | None:
        """Send the due request if no Fetch is in flight. Returns when the next one is due."""
        if state is not self._follower:
            self._follower, self._is_told = state, False
            self._due_ms = now_ms + self._quorum.config.fetch_timeout_ms
        request = self._request()
        if request is None:
            return None
        if now_ms < self._due_ms:
            return self._due_ms
        leader = self._requests.destination(state.leader_id)
        if leader is not None and self._requests.is_ready(leader.node_id, now_ms):
            self._due_ms = now_ms + self._quorum.config.fetch_timeout_ms
            self._requests.send(leader, request)
        return None

    def _request(
        self,
    ) -> UpdateRaftVoterRequest | RemoveRaftVoterRequest | AddRaftVoterRequest | None:
        """The request that is due; None if this node's entry is up to date."""
        quorum, config = self._quorum, self._quorum.config
        own = quorum.voters.get(config.local.id)
        if own is not None and own.matches(config.local):
            if not config.endpoints:
                return None
            if quorum.control.kraft_version == 0:
                return None if self._is_told else self._update_request()
            wanted = Voter(own.id, own.directory_id, config.endpoints, SUPPORTED_KRAFT_VERSIONS)
            return None if own.is_same_as(wanted) else self._update_request()
        if not config.auto_join or not config.can_be_voter or quorum.control.kraft_version == 0:
            return None
        if own is not None:
            return RemoveRaftVoterRequest(
                cluster_id=config.cluster_id,
                voter_id=own.id,
                voter_directory_id=own.directory_id,
            )
        return AddRaftVoterRequest(
            cluster_id=config.cluster_id,
            timeout_ms=config.request_timeout_ms,
            voter_id=config.local.id,
            voter_directory_id=config.local.directory_id,
            listeners=endpoint_fields(AddRaftVoterRequest.Listener, config.endpoints),
            ack_when_committed=False,
        )

    def _update_request(self) -> UpdateRaftVoterRequest:
        quorum, config = self._quorum, self._quorum.config
        low, high = SUPPORTED_KRAFT_VERSIONS
        return UpdateRaftVoterRequest(
            cluster_id=config.cluster_id,
            current_leader_epoch=quorum.epoch,
            voter_id=config.local.id,
            voter_directory_id=config.local.directory_id,
            listeners=endpoint_fields(UpdateRaftVoterRequest.Listener, config.endpoints),
            k_raft_version_feature=UpdateRaftVoterRequest.KRaftVersionFeature(
                min_supported_version=low, max_supported_version=high
            ),
        )

    def answered(self, error_code: int, now_ms: int) -> bool:
        """The leader answered AddRaftVoter or RemoveRaftVoter; the next one is due after some
        fetches. Returns whether the answer was one of EXPECTED_ANSWERS.
        """
        self._due_ms = now_ms + self._quorum.config.fetch_timeout_ms
        return error_code in EXPECTED_ANSWERS

    def updated(self, sent: Sent, now_ms: int) -> None:
        """The leader answered UpdateRaftVoter, or does not serve it. The answer counts as contact:
        the request was sent in place of a Fetch.
        """
        follower = self._follower
        if follower is not None and sent.state is follower:
            self._is_told = True
            follower.leader_answered(now_ms + self._quorum.config.fetch_timeout_ms)
