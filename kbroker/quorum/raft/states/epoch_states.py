"""The states of a replica in an epoch, and which votes each of them grants. KIP-595, KIP-996.

    from          event                                            to
    any           a greater epoch                                  Unattached, Follower if it is led
    any           the leader of this epoch, none known             Follower
    Unattached    election timeout (voters)                        Prospective
    Follower      fetch timeout (voters)                           Prospective, same epoch
    Prospective   pre-votes of a majority                          Candidate, epoch + 1
    Prospective   refused by a majority, or election timeout       Follower or Unattached
    Candidate     votes of a majority                              Leader
    Candidate     election timeout                                 Prospective, same epoch
    Leader        shutdown, quorum check, no longer a voter        Resigned
    Resigned      election timeout                                 Unattached, epoch + 1

The transitions are in `quorum_state`, what a leader knows of its followers in `leader_state`.
Deadlines are in ms; None is never.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from kbroker.quorum.raft.election_state import UNKNOWN_ID
from kbroker.quorum.raft.states.leader_state import LeaderState
from kbroker.quorum.raft.voters.voter_set import ReplicaKey, VoterEndpoint, VoterSet

Endpoints: TypeAlias = tuple[VoterEndpoint, ...]


class EpochElection:
    """The votes of an election (or pre-votes) by voter id. Kafka's EpochElection."""

    __slots__ = ("_granted", "voters")

    def __init__(self, voters: VoterSet) -> None:
        self.voters = voters
        self._granted: dict[int, bool] = {}

    def record(self, voter_id: int, *, granted: bool) -> None:
        """Record the answer of a voter. The answer of a node that is not a voter does not count."""
        if self.voters.get(voter_id) is not None:
            self._granted[voter_id] = granted

    @property
    def unrecorded(self) -> tuple[int, ...]:
        """The voters that have not answered."""
        return tuple(voter_id for voter_id in self.voters.ids if voter_id not in self._granted)

    @property
    def granting(self) -> tuple[int, ...]:
        return tuple(voter_id for voter_id in self.voters.ids if self._granted.get(voter_id))

    @property
    def is_granted(self) -> bool:
        """Whether a majority granted its vote or pre-vote."""
        return len(self.granting) >= self.voters.majority

    @property
    def is_rejected(self) -> bool:
        """Whether a majority can no longer be reached."""
        return len(self.granting) + len(self.unrecorded) < self.voters.majority


class Unattached(msgspec.Struct):
    """The leader of the epoch is unknown, or known by id only (leader_id)."""

    epoch: int
    leader_id: int
    voted: ReplicaKey | None
    election_deadline_ms: int | None


class Prospective(msgspec.Struct):
    """Asks for pre-votes before it disturbs the quorum with a new epoch. lost: a majority
    rejected.
    """

    epoch: int
    leader_id: int
    leader_endpoints: Endpoints
    voted: ReplicaKey | None
    election: EpochElection
    election_deadline_ms: int


class Candidate(msgspec.Struct):
    """Requests votes in a new epoch, in which it has voted for itself."""

    epoch: int
    voted: ReplicaKey
    election: EpochElection
    election_deadline_ms: int


class Follower(msgspec.Struct):
    """Fetches from the leader. has_fetched: a Fetch from this leader succeeded."""

    epoch: int
    leader_id: int
    leader_endpoints: Endpoints
    voted: ReplicaKey | None
    fetch_deadline_ms: int
    has_fetched: bool = False

    def leader_answered(self, fetch_deadline_ms: int) -> None:
        """A Fetch, FetchSnapshot or UpdateRaftVoter succeeded: the fetch timeout starts again."""
        self.has_fetched = True
        self.fetch_deadline_ms = fetch_deadline_ms


class Leader(msgspec.Struct):
    """Leads its epoch."""

    epoch: int
    leader_id: int
    state: LeaderState


class Resigned(msgspec.Struct):
    """Led this epoch, or led it before a restart, and must not lead it again. unacknowledged: the
    voters that have not answered EndQuorumEpoch.
    """

    epoch: int
    leader_id: int
    election_deadline_ms: int
    successors: tuple[ReplicaKey, ...] = ()
    unacknowledged: set[int] = msgspec.field(default_factory=set)


EpochState: TypeAlias = Unattached | Prospective | Candidate | Follower | Leader | Resigned


def leader_id_of(state: EpochState) -> int:
    """The leader of the state's epoch if it is known; for a resigned leader, itself."""
    return UNKNOWN_ID if isinstance(state, Candidate) else state.leader_id


def voted_key_of(state: EpochState) -> ReplicaKey | None:
    """The candidate this replica voted for in the state's epoch."""
    if isinstance(state, Leader | Resigned):
        return None
    return state.voted


def can_grant_vote(
    state: EpochState, candidate: ReplicaKey, *, is_log_up_to_date: bool, is_pre_vote: bool
) -> bool:
    """Whether a replica in that state votes for a candidate of the same epoch.

    is_log_up_to_date: the candidate's log is at least as up to date as this replica's.
    """
    match state:
        case Leader():
            return False
        case Follower():
            return is_pre_vote and is_log_up_to_date and not state.has_fetched
        case Candidate() | Resigned():
            return is_pre_vote and is_log_up_to_date
        case Unattached() | Prospective():
            if is_pre_vote:
                return is_log_up_to_date
            if state.voted is not None:
                return state.voted.names(candidate)
            return state.leader_id == UNKNOWN_ID and is_log_up_to_date
