"""A leader's view of the replicas: their log ends, the high watermark, and whether a majority still
fetches. KIP-595, KIP-853.

The high watermark counts only log ends above the start of the leader's epoch (Raft, section 5.4.2)
and never decreases. The leader resigns if fewer voters than a majority, itself included, have
fetched for 1.5 x the fetch timeout (KAFKA-15489).
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from kbroker.model import InvariantError
from kbroker.quorum.raft.voters.voter_set import ReplicaKey, VoterSet

OBSERVER_TIMEOUT_MS: Final = 300_000
"""Observers that have not fetched for that time are removed."""

MAX_OBSERVERS: Final = 4_096
"""The maximum number of observers: those that have not fetched for longest are removed, since a
client may fetch with a new id each time.
"""


class ReplicaState:
    """A replica as its leader sees it. end_offset: all records below it are on the replica's disk;
    None if it has not fetched. Times are in ms, -1 if unknown.
    """

    __slots__ = (
        "_leader_end_at_fetch",
        "end_offset",
        "key",
        "last_caught_up_ms",
        "last_fetch_ms",
    )

    def __init__(self, key: ReplicaKey) -> None:
        self.key = key
        self.end_offset: int | None = None
        self.last_fetch_ms = -1
        self.last_caught_up_ms = -1
        self._leader_end_at_fetch = 0

    def fetched(self, fetch_offset: int, leader_end_offset: int | None, now_ms: int) -> None:
        """The replica fetches from fetch_offset. It was caught up at its previous fetch if
        fetch_offset has reached the leader's log end of that time.
        """
        if leader_end_offset is not None:
            if fetch_offset >= leader_end_offset:
                self.last_caught_up_ms = max(now_ms, self.last_caught_up_ms)
            elif 0 < self._leader_end_at_fetch <= fetch_offset:
                self.last_caught_up_ms = max(self.last_fetch_ms, self.last_caught_up_ms)
            self._leader_end_at_fetch = leader_end_offset
        self.last_fetch_ms = max(now_ms, self.last_fetch_ms)
        self.end_offset = fetch_offset


class LeaderState:
    """The replicas of one leader's epoch. high_watermark: None until it is known in this epoch.

    epoch_start_offset: of the LeaderChange record, the first record of the epoch.
    """

    __slots__ = (
        "_contacts",
        "_local",
        "_observers",
        "_voters",
        "check_quorum_deadline_ms",
        "epoch_start_offset",
        "fetch_timeout_ms",
        "high_watermark",
        "voter_set",
    )

    def __init__(
        self,
        local: ReplicaKey,
        voters: VoterSet,
        *,
        epoch_start_offset: int,
        fetch_timeout_ms: int,
        now_ms: int,
    ) -> None:
        self._local = local
        self.epoch_start_offset = epoch_start_offset
        self.fetch_timeout_ms = fetch_timeout_ms
        self.high_watermark: int | None = None
        self.voter_set = voters
        self._voters = {voter.id: ReplicaState(voter.key) for voter in voters}
        self._observers: dict[ReplicaKey, ReplicaState] = {}  # in the order of their last fetches
        self._contacts: set[int] = set()
        self.check_quorum_deadline_ms = now_ms + self.check_quorum_ms

    # Replicas.

    @property
    def check_quorum_ms(self) -> int:
        """The time after which a leader resigns if no majority fetches."""
        return self.fetch_timeout_ms * 3 // 2

    @property
    def voters(self) -> list[ReplicaState]:
        """The voters by ascending id."""
        return [self._voters[voter_id] for voter_id in sorted(self._voters)]

    def observers(self, now_ms: int) -> list[ReplicaState]:
        """The observers that fetched in the last OBSERVER_TIMEOUT_MS, by id and directory id."""
        for key, state in list(self._observers.items()):
            if now_ms - state.last_fetch_ms >= OBSERVER_TIMEOUT_MS and key != self._local:
                del self._observers[key]
        return [self._observers[key] for key in sorted(self._observers)]

    def _forget_silent_observers(self, now_ms: int) -> None:
        """Remove them in the order of their last fetches; takes as many steps as there are to
        remove.
        """
        while (key := self._longest_silent_observer()) is not None:
            silent_ms = now_ms - self._observers[key].last_fetch_ms
            if silent_ms < OBSERVER_TIMEOUT_MS and len(self._observers) <= MAX_OBSERVERS:
                break
            del self._observers[key]

    def _longest_silent_observer(self) -> ReplicaKey | None:
        return next((key for key in islice(self._observers, 2) if key != self._local), None)

    def replica(self, key: ReplicaKey) -> ReplicaState | None:
        """The state of a replica; None if it has never fetched and is no voter."""
        if self.voter_set.is_voter(key):
            return self._voters[key.id]
        return self._observers.get(key)

    def _replica(self, key: ReplicaKey) -> ReplicaState:
        state = self.replica(key)
        if state is None:
            state = self._observers[key] = ReplicaState(key)
        return state

    @property
    def is_voter(self) -> bool:
        """Whether the leader itself is a voter."""
        return self.voter_set.is_voter(self._local)

    def set_voters(self, voters: VoterSet) -> None:
        """Use another voter set from now on; the state of replicas is kept."""
        former = dict(self._voters)
        self._voters = {}
        for voter in voters:
            known = former.get(voter.id)
            if known is not None and self.voter_set.is_voter(voter.key):
                del former[voter.id]
            else:
                known = self._observers.pop(voter.key, None) or ReplicaState(voter.key)
            known.key = voter.key
            self._voters[voter.id] = known
        for state in former.values():
            self._observers.setdefault(state.key, state)
        self.voter_set = voters

    # The high watermark.

    def local_end(self, end_offset: int, voters: VoterSet) -> bool:
        """All records below end_offset are on the leader's disk; voters is the newest set of its
        log. Returns whether the high watermark moved. Raises InvariantError if the log got shorter.
        """
        state = self._replica(self._local)
        if state.end_offset is not None and end_offset < state.end_offset:
            raise InvariantError(f"a leader's log of {state.end_offset} ends at {end_offset}")
        state.end_offset = end_offset
        if voters is not self.voter_set and voters != self.voter_set:
            self.set_voters(voters)
        return self._move_high_watermark()

    def fetched(self, key: ReplicaKey, fetch_offset: int, now_ms: int) -> bool:
        """A replica fetches from fetch_offset, so all records below are on its disk. Returns
        whether the high watermark moved. A consumer (a negative id) does not count.
        """
        if key.id < 0:
            return False
        state = self._replica(key)
        state.fetched(fetch_offset, self._replica(self._local).end_offset, now_ms)
        if self._observers.pop(key, None) is not None:
            self._observers[key] = state
            self._forget_silent_observers(now_ms)
        self.contact(key, now_ms)
        return self.voter_set.is_voter(key) and self._move_high_watermark()

    def _by_end_offset(self) -> list[ReplicaState]:
        """The voters, the longest log first, those that have not fetched last, then by id."""

        def order(state: ReplicaState) -> tuple[int, int]:
            return (1 if state.end_offset is None else -state.end_offset, state.key.id)

        return sorted(self._voters.values(), key=order)

    def _move_high_watermark(self) -> bool:
        reached = self._by_end_offset()[len(self._voters) // 2].end_offset
        if reached is None or reached <= self.epoch_start_offset:
            return False
        if self.high_watermark is not None and reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        return True

    # Contact with the voters.

    def contact(self, key: ReplicaKey, now_ms: int) -> None:
        """A replica sent a Fetch, FetchSnapshot or UpdateRaftVoter: the quorum check starts again
        once so many voters did that they are a majority together with the leader.
        """
        if self.voter_set.is_voter(key) and key.id != self._local.id:
            self._contacts.add(key.id)
        needed = len(self._voters) // 2 + (0 if self.is_voter else 1)
        if len(self._contacts) >= needed:
            self._contacts.clear()
            self.check_quorum_deadline_ms = now_ms + self.check_quorum_ms

    def check_quorum_deadline(self) -> int | None:
        """When the leader resigns without contact to a majority; None, as in Kafka, if there is
        only one voter, which may be another node.
        """
        return None if len(self._voters) == 1 else self.check_quorum_deadline_ms

    def to_begin_epoch(self, now_ms: int) -> list[ReplicaKey]:
        """The voters that have not fetched for half the fetch timeout and are sent
        BeginQuorumEpoch.
        """
        half_ms = self.fetch_timeout_ms // 2
        return [
            state.key
            for state in self.voters
            if state.key.id != self._local.id and now_ms - state.last_fetch_ms >= half_ms
        ]

    def successors(self) -> tuple[ReplicaKey, ...]:
        """The other voters, the one with the longest log first."""
        return tuple(state.key for state in self._by_end_offset() if state.key.id != self._local.id)
