"""Who leads: the epoch, the vote and the leader of one node, and when a candidate has won. No I/O,
no clock.

    from         event                          to
    unattached   start, no leader known         candidate (epoch + 1, own vote)
    candidate    votes of a majority            leader
    candidate    a higher epoch is seen         follower
    leader       a higher epoch is seen         follower
    follower     its leader is lost             candidate (epoch + 1, own vote)

A quorum of one voter goes from start to leader within one step. What is granted is on disk before
it counts (`raft.PersistState` comes before everything that rests on it).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from kbroker.model import ZERO_UUID, InvariantError, Uuid

NOBODY: Final = -1


class Role(Enum):
    """What a node is in its epoch."""

    UNATTACHED = "unattached"
    CANDIDATE = "candidate"
    LEADER = "leader"
    FOLLOWER = "follower"


@dataclass(frozen=True, slots=True)
class ElectionState:
    """What `quorum-state` keeps: the highest epoch seen, who leads it, whom this node voted for in
    it.
    """

    epoch: int = 0
    leader_id: int = NOBODY
    voted_id: int = NOBODY
    voted_directory_id: Uuid = ZERO_UUID


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The end of a log: epoch of its last record, offset after it. The higher epoch is further,
    then the offset.
    """

    epoch: int
    end_offset: int

    def is_at_least(self, other: LogPosition) -> bool:
        return (self.epoch, self.end_offset) >= (other.epoch, other.end_offset)


class Election:
    """The election of one node among `voters` (ids)."""

    __slots__ = ("directory_id", "granted", "node_id", "role", "state", "voters")

    def __init__(
        self, state: ElectionState, *, node_id: int, directory_id: Uuid, voters: Collection[int]
    ) -> None:
        if node_id not in voters:
            raise InvariantError(f"node {node_id} is not among the voters {sorted(voters)}")
        self.state = state
        self.node_id = node_id
        self.directory_id = directory_id
        self.voters = frozenset(voters)
        self.role = Role.UNATTACHED
        self.granted: set[int] = set()

    @property
    def majority(self) -> int:
        """How many voters are one."""
        return len(self.voters) // 2 + 1

    def stand(self) -> None:
        """Become a candidate of a new epoch, with the own vote."""
        if self.role is Role.LEADER:
            raise InvariantError(
                f"node {self.node_id} leads epoch {self.state.epoch} and stands for election"
            )
        self.role = Role.CANDIDATE
        self.granted = {self.node_id}
        self.state = ElectionState(
            epoch=self.state.epoch + 1, voted_id=self.node_id, voted_directory_id=self.directory_id
        )

    def vote_received(self, voter: int, epoch: int) -> bool:
        """A vote for this node in that epoch. Returns whether it made this node the leader."""
        if self.role is not Role.CANDIDATE or epoch != self.state.epoch or voter not in self.voters:
            return False
        self.granted.add(voter)
        return self.lead_if_elected()

    def lead_if_elected(self) -> bool:
        """Become the leader if a majority has granted its vote."""
        if self.role is not Role.CANDIDATE or len(self.granted) < self.majority:
            return False
        self.role = Role.LEADER
        self.state = ElectionState(epoch=self.state.epoch, leader_id=self.node_id)
        return True

    def epoch_seen(self, epoch: int, leader_id: int = NOBODY) -> bool:
        """Another node speaks of that epoch. Returns whether the state changed, so must be
        persisted.
        """
        if epoch < self.state.epoch:
            return False
        if epoch == self.state.epoch:
            if leader_id == NOBODY or self.state.leader_id == leader_id:
                return False
            if self.state.leader_id != NOBODY:
                raise InvariantError(
                    f"epoch {epoch} has two leaders, {self.state.leader_id} and {leader_id}"
                )
            self.state = replace(self.state, leader_id=leader_id)
        else:
            self.state = ElectionState(epoch=epoch, leader_id=leader_id)
        self.role = Role.UNATTACHED if leader_id == NOBODY else Role.FOLLOWER
        self.granted = set()
        return True

    def grant(
        self, candidate: int, directory_id: Uuid, candidate_log: LogPosition, own_log: LogPosition
    ) -> bool:
        """Whether this node votes for a candidate of its present epoch; if so the vote is in
        `state`, to be persisted.
        """
        state = self.state
        if state.leader_id != NOBODY or candidate not in self.voters:
            return False
        if state.voted_id != NOBODY:
            return (state.voted_id, state.voted_directory_id) == (candidate, directory_id)
        if not candidate_log.is_at_least(own_log):
            return False
        self.state = replace(state, voted_id=candidate, voted_directory_id=directory_id)
        return True
