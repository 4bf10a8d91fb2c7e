"""One replica of the quorum: its log, voters and state, and the transitions between states.
KIP-595, KIP-853, KIP-996. Kafka's QuorumState.

The promise of a transition (an epoch, a leader, a vote) is persisted by an effect before any effect
that depends on it. Prospective and Resigned are not persisted. The other modules of this room
decide when a transition takes place; they share one QuorumState and its list of effects.
"""

from __future__ import annotations

from random import Random

from kbroker.model import InvariantError
from kbroker.quorum.raft.effects import Commit, Effect, LeaderChanged, PersistState
from kbroker.quorum.raft.election_state import UNKNOWN_ID, ElectionState
from kbroker.quorum.raft.raft_config import RaftConfig
from kbroker.quorum.raft.raft_log import RaftLog
from kbroker.quorum.raft.states.control_state import ControlState
from kbroker.quorum.raft.states.epoch_states import (
    Candidate,
    Endpoints,
    EpochElection,
    EpochState,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Unattached,
    leader_id_of,
    voted_key_of,
)
from kbroker.quorum.raft.states.leader_state import LeaderState
from kbroker.quorum.raft.voters.voter_set import ReplicaKey, VoterSet


class VotedButNotVoter(InvariantError):
    """The node's start fails: this replica voted for itself in epoch, and is not in the newest
    voter set of its log: it was removed, or the record that added it was truncated. Kafka's
    CandidateState raises IllegalArgumentException.
    """

    def __init__(self, local: ReplicaKey, epoch: int, voters: VoterSet) -> None:
        super().__init__(
            f"Node {local.id}: quorum-state says that this node voted for itself in epoch {epoch}, "
            f"but {local} is not among the voters that its log names "
            f"({', '.join(str(voter.key) for voter in voters) or 'none'}): "
            "it was removed, or the record that made it one was truncated"
        )
        self.epoch = epoch


class QuorumState:
    """The state of one replica. high_watermark: records below it are known to be committed; it
    never decreases.
    """

    __slots__ = (
        "_announced",
        "_effects",
        "_random",
        "config",
        "control",
        "high_watermark",
        "is_shutting_down",
        "log",
        "state",
    )

    state: EpochState

    def __init__(
        self,
        config: RaftConfig,
        *,
        log: RaftLog,
        control: ControlState,
        high_watermark: int,
        random: Random,
    ) -> None:
        self.config = config
        self.log = log
        self.control = control
        self.high_watermark = high_watermark
        self.is_shutting_down = False
        self._random = random
        self._effects: list[Effect] = []
        self._announced = (-1, UNKNOWN_ID)

    # Effects.

    def emit(self, *effects: Effect) -> None:
        """Add effects to the list of the current event."""
        self._effects += effects

    def take_effects(self) -> list[Effect]:
        """The effects since the last call, in order. A PersistState that is replaced before another
        effect depends on it is left out.
        """
        effects, self._effects = self._effects, []
        for effect in effects:
            if isinstance(effect, PersistState):
                return self._without_replaced(effects)
        return effects

    @staticmethod
    def _without_replaced(effects: list[Effect]) -> list[Effect]:
        kept: list[Effect] = []
        is_replaced = False
        for effect in reversed(effects):
            if isinstance(effect, PersistState):
                if not is_replaced:
                    kept.append(effect)
                is_replaced = True
            else:
                kept.append(effect)
                # notifications of this process's state machines need not be durable
                is_replaced = is_replaced and isinstance(effect, LeaderChanged | Commit)
        kept.reverse()
        return kept

    def _persist(self) -> None:
        voted = voted_key_of(self.state)
        election = ElectionState.of(self.epoch, self.leader_id, voted)
        self.emit(PersistState(election, self.control.kraft_version, self.voters.ids))

    def _announce(self) -> None:
        """Notify the state machines of another leader or epoch. A node that led the epoch and
        resigned still reports itself as leader, as other nodes do, but does not lead.
        """
        state = self.state
        is_former = self.leader_id == self.local.id and not isinstance(state, Leader)
        leader_id = UNKNOWN_ID if is_former else self.leader_id
        if (state.epoch, leader_id) != self._announced:
            self._announced = (state.epoch, leader_id)
            start = state.state.epoch_start_offset if isinstance(state, Leader) else None
            self.emit(LeaderChanged(state.epoch, leader_id, start))

    # Queries.

    @property
    def local(self) -> ReplicaKey:
        return self.config.local

    @property
    def epoch(self) -> int:
        return self.state.epoch

    @property
    def leader_id(self) -> int:
        """The leader of the epoch, or UNKNOWN_ID; a resigned leader is still its own."""
        return leader_id_of(self.state)

    @property
    def leader_endpoints(self) -> Endpoints:
        """The listeners of the leader; empty if they are unknown."""
        match self.state:
            case Follower() | Prospective():
                return self.state.leader_endpoints
            case Leader():
                return self.config.endpoints
        return ()

    @property
    def voters(self) -> VoterSet:
        """The newest voter set of the log, committed or not."""
        return self.control.voters.last

    @property
    def is_voter(self) -> bool:
        return self.control.voters.last.is_voter(self.config.local)

    @property
    def is_only_voter(self) -> bool:
        return self.voters.is_only_voter(self.local)

    def is_local(self, key: ReplicaKey) -> bool:
        """Whether a request with key as its receiver is meant for this replica: a receiver id of -1
        matches any replica, and so does an unknown directory id.
        """
        if key.id == UNKNOWN_ID:
            return True
        return key.names(self.local)

    def endpoints_of(self, voter_id: int) -> Endpoints:
        """The listeners of a voter, from the voter set."""
        voter = self.control.voters.last.get(voter_id)
        return () if voter is None else voter.endpoints

    def election_timeout_ms(self) -> int:
        """A new random timeout in [t, 2t)."""
        timeout_ms = self.config.election_timeout_ms
        return timeout_ms + self._random.randrange(max(timeout_ms, 1))

    def choose(self, count: int) -> int:
        """A random index below count."""
        return self._random.randrange(count)

    def advance_high_watermark(self, offset: int) -> None:
        """Records below offset are committed."""
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.emit(Commit(offset))

    # Transitions.

    def initialize(self, election: ElectionState, now_ms: int) -> None:
        """The state after a start. Raises VotedButNotVoter; the caller may then call
        `initialize_unattached`.
        """
        deadline_ms = now_ms + self.election_timeout_ms()
        voted = election.voted_key
        endpoints = self.endpoints_of(election.leader_id)
        if election.epoch < self.log.last_epoch:
            # quorum-state is older than the log: this replica may have voted in between
            epoch = self.log.last_epoch
            self._enter(Unattached(epoch, UNKNOWN_ID, None, self._voter_deadline(deadline_ms)))
            self._persist()
        elif election.leader_id == self.local.id:
            self._enter(
                Resigned(election.epoch, self.local.id, deadline_ms, (), self._other_voter_ids())
            )
        elif voted is not None and voted.names(self.local):
            if not self.is_voter:
                raise VotedButNotVoter(self.local, election.epoch, self.voters)
            votes = self._own_vote()
            self._enter(Candidate(election.epoch, self.local, votes, deadline_ms))
        elif election.leader_id != UNKNOWN_ID and endpoints:
            fetch_deadline_ms = now_ms + self.config.fetch_timeout_ms
            self._enter(
                Follower(election.epoch, election.leader_id, endpoints, voted, fetch_deadline_ms)
            )
            self._announce()
        else:
            deadline = self._voter_deadline(deadline_ms)
            self._enter(Unattached(election.epoch, election.leader_id, voted, deadline))

    def initialize_unattached(self, election: ElectionState) -> None:
        """The state after a start that `initialize` refused: not a voter, so no election timeout;
        epoch, leader and vote are kept.
        """
        self._enter(Unattached(election.epoch, election.leader_id, election.voted_key, None))

    def _enter(self, state: EpochState) -> None:
        self.state = state

    def _voter_deadline(self, deadline_ms: int) -> int | None:
        """The deadline for a voter; None for an observer, which never starts an election."""
        return deadline_ms if self.is_voter else None

    def _other_voter_ids(self) -> set[int]:
        return {voter_id for voter_id in self.voters.ids if voter_id != self.local.id}

    def _own_vote(self) -> EpochElection:
        votes = EpochElection(self.voters)
        votes.record(self.local.id, granted=True)
        return votes

    def to_unattached(self, epoch: int, leader_id: int, now_ms: int) -> None:
        """Move to a greater epoch, or to the current one from Prospective or Resigned; its leader
        is unknown, or known by id only. The remaining election timeout is kept, so that a series of
        epochs cannot postpone an election.
        """
        state = self.state
        if epoch < state.epoch or (
            epoch == state.epoch and not isinstance(state, Prospective | Resigned)
        ):
            raise InvariantError(f"node {self.local}: {state} to Unattached in epoch {epoch}")
        deadline_ms = now_ms + self.election_timeout_ms()
        match state:
            case Unattached() | Candidate() | Resigned():
                deadline_ms = state.election_deadline_ms or deadline_ms
            case Prospective() if not state.election.is_rejected:
                deadline_ms = state.election_deadline_ms
        voted = voted_key_of(state) if epoch == state.epoch else None
        self._enter(Unattached(epoch, leader_id, voted, self._voter_deadline(deadline_ms)))
        self._persist()
        self._announce()

    def add_vote(self, candidate: ReplicaKey, now_ms: int) -> None:
        """Vote for candidate in the current epoch."""
        state = self.state
        if not isinstance(state, Unattached | Prospective) or candidate.id == self.local.id:
            raise InvariantError(f"node {self.local}: {state} votes for {candidate}")
        # the candidate may be elected: it gets the time for that
        deadline_ms = now_ms + self.election_timeout_ms()
        if isinstance(state, Unattached):
            deadline = self._voter_deadline(deadline_ms)
            self._enter(Unattached(state.epoch, state.leader_id, candidate, deadline))
        else:
            state.voted = candidate
            state.election_deadline_ms = deadline_ms
        self._persist()

    def to_follower(self, epoch: int, leader_id: int, endpoints: Endpoints, now_ms: int) -> None:
        """The leader of epoch is known, with its endpoints."""
        state = self.state
        if (
            leader_id == self.local.id
            or epoch < state.epoch
            or (epoch == state.epoch and isinstance(state, Leader | Resigned))
        ):
            raise InvariantError(
                f"node {self.local}: {state} to Follower of {leader_id} in epoch {epoch}"
            )
        voted = voted_key_of(state) if epoch == state.epoch else None
        deadline_ms = now_ms + self.config.fetch_timeout_ms
        self._enter(Follower(epoch, leader_id, endpoints, voted, deadline_ms))
        self._persist()
        self._announce()

    def to_prospective(self, now_ms: int) -> None:
        """This voter starts an election with pre-votes. Keeps epoch, leader and vote."""
        state = self.state
        if not self.is_voter or isinstance(state, Leader | Prospective):
            raise InvariantError(f"node {self.local}: {state} to Prospective")
        self._enter(
            Prospective(
                state.epoch,
                self.leader_id,
                self.leader_endpoints,
                voted_key_of(state),
                self._own_vote(),
                now_ms + self.election_timeout_ms(),
            )
        )

    def to_candidate(self, now_ms: int) -> None:
        """A majority granted the pre-vote: this voter becomes candidate in a new epoch."""
        if not isinstance(self.state, Prospective):
            raise InvariantError(f"node {self.local}: {self.state} to Candidate")
        deadline_ms = now_ms + self.election_timeout_ms()
        self._enter(Candidate(self.epoch + 1, self.local, self._own_vote(), deadline_ms))
        self._persist()
        self._announce()

    def to_leader(self, now_ms: int) -> None:
        """A majority elected this voter. Its epoch starts at the log end."""
        if not isinstance(self.state, Candidate):
            raise InvariantError(f"node {self.local}: {self.state} to Leader")
        leading = LeaderState(
            self.local,
            self.voters,
            epoch_start_offset=self.log.end_offset,
            fetch_timeout_ms=self.config.fetch_timeout_ms,
            now_ms=now_ms,
        )
        self._enter(Leader(self.epoch, self.local.id, leading))
        self._persist()
        self._announce()

    def to_resigned(self, now_ms: int) -> None:
        """This leader resigns and tells the voters, those with the longest log first."""
        state = self.state
        if not isinstance(state, Leader):
            raise InvariantError(f"node {self.local}: {state} to Resigned")
        successors = state.state.successors()
        deadline_ms = now_ms + self.election_timeout_ms()
        self._enter(
            Resigned(state.epoch, self.local.id, deadline_ms, successors, self._other_voter_ids())
        )
        self._announce()

    # Epoch and leader in messages of other nodes.

    def has_consistent_leader(self, epoch: int, leader_id: int) -> bool:
        """Whether leader_id is consistent with the leader of epoch that this replica knows."""
        if epoch != self.epoch or leader_id == UNKNOWN_ID:
            return True
        if self.leader_id == UNKNOWN_ID:
            return leader_id != self.local.id or not isinstance(self.state, Candidate)
        return leader_id == self.leader_id

    def maybe_transition(
        self, epoch: int, leader_id: int, endpoints: Endpoints, now_ms: int
    ) -> None:
        """Apply an epoch that another node has sent and, unless leader_id is UNKNOWN_ID, its
        leader. Raises InvariantError for a second leader in one epoch.
        """
        if epoch < self.epoch:
            return
        if not self.has_consistent_leader(epoch, leader_id):
            raise InvariantError(
                f"node {self.local}: epoch {epoch} has two leaders, {leader_id} and "
                f"{self.leader_id} ({self.state})"
            )
        if epoch > self.epoch:
            if leader_id in (UNKNOWN_ID, self.local.id) or not endpoints:
                # this replica led that epoch with another disk: it neither leads nor votes in it
                self.to_unattached(epoch, leader_id, now_ms)
            else:
                self.to_follower(epoch, leader_id, endpoints, now_ms)
        elif leader_id == self.local.id:
            self._led_here_before()
        elif leader_id != UNKNOWN_ID and len(endpoints) > len(self.leader_endpoints):
            self.to_follower(epoch, leader_id, endpoints, now_ms)

    def _led_here_before(self) -> None:
        """Other nodes report that this replica leads its current epoch, of which it has no record:
        its quorum-state was lost.
        """
        state = self.state
        if isinstance(state, Unattached | Prospective) and state.leader_id == UNKNOWN_ID:
            state.leader_id = self.local.id
            self._persist()
