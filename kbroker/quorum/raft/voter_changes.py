"""The leader's part in changes of the voter set: AddRaftVoter, RemoveRaftVoter, UpdateRaftVoter and
the upgrade from kraft.version 0 to 1. KIP-853.

One change is in progress at a time, and none before a record of this epoch and the newest voter set
are committed: otherwise two majorities might not overlap. A new set takes effect when it is
appended; the request is answered when it is committed. The requests of a voter for itself are in
`voter_membership`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from kbroker.model import ZERO_UUID, InvariantError
from kbroker.protocol.batches.control_records import ControlType
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kbroker.protocol.messages.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
)
from kbroker.quorum.raft.control import QuorumConfiguration, voters_record
from kbroker.quorum.raft.effects import Destination, Respond
from kbroker.quorum.raft.fetch_service import FetchService
from kbroker.quorum.raft.leadership import Leadership
from kbroker.quorum.raft.requests.messages import leader_view
from kbroker.quorum.raft.requests.request_manager import RequestManager, Sent
from kbroker.quorum.raft.states.epoch_states import Leader
from kbroker.quorum.raft.states.quorum_state import QuorumState
from kbroker.quorum.raft.voters.voter_set import (
    ReplicaKey,
    Voter,
    VoterEndpoint,
    VoterSet,
    are_usable,
)

KRAFT_VERSION: Final = "kraft.version"
CAUGHT_UP_MS: Final = 3_600_000
"""A replica can become a voter if it was caught up and fetched within this time."""


class PendingChange(msgspec.Struct):
    """A request to change the voter set. sent: the ApiVersions request to the new voter; offset:
    that of the VotersRecord, None until it is appended.
    """

    token: int
    response_class: type[AddRaftVoterResponse] | type[RemoveRaftVoterResponse]
    leader: Leader
    deadline_ms: int
    voter: Voter
    is_acked_on_commit: bool = True
    sent: Sent | None = None
    offset: int | None = None


class VoterChanges:
    """Changes of the voter set by the leader of one epoch."""

    __slots__ = ("_fetches", "_leadership", "_pending", "_quorum", "_requests", "_volatile")

    def __init__(
        self,
        quorum: QuorumState,
        requests: RequestManager,
        leadership: Leadership,
        fetches: FetchService,
    ) -> None:
        self._quorum = quorum
        self._requests = requests
        self._leadership = leadership
        self._fetches = fetches
        self._pending: PendingChange | None = None
        self._volatile: dict[int, tuple[Leader, Voter]] = {}

    # The checks that all changes share, in Kafka's order.

    def _refusal(
        self,
        cluster_id: str | None,
        epoch: int,
        key: ReplicaKey,
        endpoints: tuple[VoterEndpoint, ...] | None,
    ) -> tuple[ErrorCode, str]:
        """Why a request is rejected, independent of the voters; NONE if it is not. endpoints: None
        if the request has none.
        """
        quorum = self._quorum
        if cluster_id is not None and cluster_id != quorum.config.cluster_id:
            return ErrorCode.INCONSISTENT_CLUSTER_ID, ""
        error = self._fetches.leader_error(epoch)
        if error:
            return error, ""
        listener_name = quorum.config.listener_name
        if key.id < 0 or key.directory_id == ZERO_UUID:
            return ErrorCode.INVALID_REQUEST, "The voter's id or directory id is missing."
        if endpoints is not None and not any(each.name == listener_name for each in endpoints):
            return ErrorCode.INVALID_REQUEST, f"The listener {listener_name} is missing."
        if endpoints is not None and not are_usable(endpoints):
            return ErrorCode.INVALID_REQUEST, "The listeners are too many, or no names."
        return ErrorCode.NONE, ""

    def _refusal_by_epoch(self) -> tuple[ErrorCode, str]:
        """Why this leader cannot start a change now."""
        if self._pending is not None:
            return ErrorCode.REQUEST_TIMED_OUT, "Another change of the voters is pending."
        if self._leader.state.high_watermark is None:
            return ErrorCode.REQUEST_TIMED_OUT, "No record of this epoch is committed yet."
        return ErrorCode.NONE, ""

    def _refusal_by_set(self) -> tuple[ErrorCode, str]:
        """Why this leader cannot add or remove a voter now."""
        error, message = self._refusal_by_epoch()
        if error:
            return error, message
        if self._quorum.control.kraft_version == 0:
            return ErrorCode.UNSUPPORTED_VERSION, "kraft.version 0 has a static voter set."
        return self._refusal_by_commit()

    def _refusal_by_commit(self) -> tuple[ErrorCode, str]:
        quorum = self._quorum
        offset = quorum.control.voters.last_offset
        if offset is not None and offset >= quorum.high_watermark:
            return ErrorCode.REQUEST_TIMED_OUT, "The newest voter set is not committed yet."
        return ErrorCode.NONE, ""

    def _append_voters(self, voters: VoterSet) -> int:
        return self._leadership.append_control([(ControlType.KRAFT_VOTERS, voters_record(voters))])

    @property
    def _leader(self) -> Leader:
        state = self._quorum.state
        if not isinstance(state, Leader):
            raise InvariantError(f"{state} changes the voters")
        return state

    # AddRaftVoter.

    def add(self, token: int, request: AddRaftVoterRequest, now_ms: int) -> None:
        """Start adding a voter: first request its supported kraft.versions."""
        quorum = self._quorum
        key = ReplicaKey(request.voter_id, request.voter_directory_id)
        endpoints = VoterEndpoint.all_of(request.listeners)
        error, message = self._refusal(request.cluster_id, quorum.epoch, key, endpoints)
        if not error:
            error, message = self._refusal_by_set()
        if not error and quorum.voters.get(key.id) is not None:
            error, message = ErrorCode.DUPLICATE_VOTER, f"Node {key.id} is a voter already."
        if error:
            response = AddRaftVoterResponse(error_code=error, error_message=message or None)
            quorum.emit(Respond(token, response))
            return
        voter = Voter(*key, endpoints)
        endpoint = voter.endpoint(quorum.config.listener_name)
        if endpoint is None:
            raise InvariantError(f"{voter} has no listener {quorum.config.listener_name}")
        destination = Destination(key.id, endpoint.host, endpoint.port)
        self._pending = PendingChange(
            token,
            AddRaftVoterResponse,
            self._leader,
            now_ms + max(min(request.timeout_ms, quorum.config.request_timeout_ms), 0),
            voter,
            request.ack_when_committed,
            self._requests.send(destination, ApiVersionsRequest()),
        )

    def versions_answered(
        self, sent: Sent, response: ApiVersionsResponse | None, now_ms: int
    ) -> None:
        """The new voter has answered with its supported versions, or not (None): append the voter
        set with it.
        """
        pending = self._pending
        if pending is None or sent is not pending.sent or pending.leader is not self._quorum.state:
            return
        pending.sent = None
        if response is None or response.error_code:
            self._answer(ErrorCode.REQUEST_TIMED_OUT, "The voter does not answer ApiVersions.")
            return
        low, high = 0, 0
        for feature in response.supported_features:
            if feature.name == KRAFT_VERSION:
                low, high = feature.min_version, feature.max_version
        kraft_version = self._quorum.control.kraft_version
        if not low <= kraft_version <= high:
            self._answer(
                ErrorCode.INVALID_REQUEST,
                f"The voter supports kraft.version {low} to {high}, not {kraft_version}.",
            )
            return
        replica = pending.leader.state.replica(pending.voter.key)
        if (
            replica is None
            or replica.last_caught_up_ms < 0
            or replica.last_fetch_ms <= now_ms - CAUGHT_UP_MS
        ):
            self._answer(ErrorCode.REQUEST_TIMED_OUT, "The voter has not caught up.")
            return
        voter = pending.voter
        voter = Voter(voter.id, voter.directory_id, voter.endpoints, (low, high))
        voters = self._quorum.voters.with_voter(voter)
        if voters is None:
            self._answer(ErrorCode.DUPLICATE_VOTER, f"Node {voter.id} is a voter already.")
            return
        pending.offset = self._append_voters(voters)
        if not pending.is_acked_on_commit:
            self._answer(ErrorCode.NONE, "")

    # RemoveRaftVoter.

    def remove(self, token: int, request: RemoveRaftVoterRequest, now_ms: int) -> None:
        """Remove a voter. A leader that removes itself leads until the set is committed."""
        quorum = self._quorum
        key = ReplicaKey(request.voter_id, request.voter_directory_id)
        error, message = self._refusal(request.cluster_id, quorum.epoch, key, None)
        if not error:
            error, message = self._refusal_by_set()
        voters = None if error else quorum.voters.without_voter(key)
        if not error and voters is None:
            error, message = ErrorCode.VOTER_NOT_FOUND, f"{key} is no voter, or the last one."
        if voters is None:
            response = RemoveRaftVoterResponse(error_code=error, error_message=message or None)
            quorum.emit(Respond(token, response))
            return
        deadline_ms = now_ms + quorum.config.request_timeout_ms
        self._pending = PendingChange(
            token, RemoveRaftVoterResponse, self._leader, deadline_ms, Voter(*key)
        )
        self._pending.offset = self._append_voters(voters)

    # UpdateRaftVoter.

    def update(
        self, token: int, request: UpdateRaftVoterRequest, *, listener_name: str, now_ms: int
    ) -> None:
        """A voter sends its endpoints and supported kraft.versions; answered at once. In a static
        quorum they are kept in memory, for the upgrade to kraft.version 1.
        """
        quorum = self._quorum
        key = ReplicaKey(request.voter_id, request.voter_directory_id)
        endpoints = VoterEndpoint.all_of(request.listeners)
        feature = request.k_raft_version_feature
        versions = (feature.min_supported_version, feature.max_supported_version)
        epoch = request.current_leader_epoch
        error, _ = self._refusal(request.cluster_id, epoch, key, endpoints)
        if not error and not 0 <= versions[0] <= versions[1]:
            error = ErrorCode.INVALID_REQUEST
        if not error:
            error, _ = self._refusal_by_epoch()
        if not error:
            error, _ = self._refusal_by_commit()
        if not error and not versions[0] <= quorum.control.kraft_version <= versions[1]:
            error = ErrorCode.INVALID_REQUEST
        if not error:
            voter = Voter(*key, endpoints, versions)
            former, voters = quorum.voters.get(voter.id), quorum.voters.with_updated_voter(voter)
            if former is None or voters is None:
                error = ErrorCode.VOTER_NOT_FOUND
            else:
                leader_state = self._leader
                if quorum.control.kraft_version == 0:
                    self._volatile[voter.id] = (leader_state, voter)
                elif not voter.is_same_as(former):
                    self._append_voters(voters)
                leader_state.state.contact(key, now_ms)
        leader = leader_view(quorum, listener_name)
        response = UpdateRaftVoterResponse(
            error_code=error,
            current_leader=UpdateRaftVoterResponse.CurrentLeader(
                leader_id=leader.leader_id, leader_epoch=leader.epoch
            ),
        )
        if leader.endpoint is not None:
            response.current_leader.host = leader.endpoint.host
            response.current_leader.port = leader.endpoint.port
        quorum.emit(Respond(token, response))

    # kraft.version.

    def check_kraft_upgrade(self, level: int) -> None:
        """Check whether kraft.version may be set to that level now; the current level is allowed.

        Raises KafkaError(INVALID_UPDATE_VERSION) if a voter does not support the level, or has not
        sent its directory id to this leader yet.
        """
        if level != self._quorum.control.kraft_version:
            self._upgraded_voters(level)

    def upgrade_kraft_version(self, level: int) -> None:
        """Append kraft.version and the voters with the data they have sent, unless the quorum
        already has that level. Raises as `check_kraft_upgrade`.
        """
        if level != self._quorum.control.kraft_version:
            voters = self._upgraded_voters(level)
            self._leadership.append_control(QuorumConfiguration(level, tuple(voters)).records())

    def _upgraded_voters(self, level: int) -> VoterSet:
        quorum, leader = self._quorum, self._leader
        current = quorum.control.kraft_version
        if (current, level) != (0, 1):
            downgrade = " because the new version is a downgrade" if level < current else ""
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"Invalid upgrade of kraft.version from version KRAFT_VERSION_{current} to "
                f"KRAFT_VERSION_{level}{downgrade}",
            )
        if leader.state.high_watermark is None:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, "No record of this epoch is committed yet."
            )
        voters: list[Voter] = []
        for voter in quorum.voters:
            told = self._volatile.get(voter.id)
            if voter.id == quorum.local.id:
                voters.append(Voter(*quorum.local, quorum.config.endpoints or voter.endpoints))
            elif told is not None and told[0] is leader:
                voters.append(told[1])
        if len(voters) < len(quorum.voters) or not VoterSet(voters).supports(level):
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"Invalid upgrade of kraft.version to KRAFT_VERSION_{level} because not all of the "
                "voters support it",
            )
        return VoterSet(voters)

    # The end of a change.

    def poll(self, now_ms: int) -> int | None:
        """Answer the pending request if its set is committed, its timeout has passed, or this node
        no longer leads. Returns when the timeout passes.
        """
        pending = self._pending
        if pending is None:
            return None
        if pending.offset is not None and pending.offset < self._quorum.high_watermark:
            self._answer(ErrorCode.NONE, "")
        elif pending.leader is not self._quorum.state:
            self._answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, "This node no longer leads.")
        elif pending.deadline_ms <= now_ms:
            self._answer(ErrorCode.REQUEST_TIMED_OUT, "The change was not committed in time.")
        else:
            return pending.deadline_ms
        return None

    def abandon(self, token: int) -> None:
        """The connection of a pending request was closed. Appended records are kept."""
        if self._pending is not None and self._pending.token == token:
            self._pending = None

    def _answer(self, error: ErrorCode, message: str) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            response = pending.response_class(error_code=error, error_message=message or None)
            self._quorum.emit(Respond(pending.token, response))
