"""The quorum's core: events in, effects out (docs/adr/0003). No I/O, no clock, no asyncio.

Effects are carried out in list order; what follows a `PersistState` or a `Flush` rests on it being
on disk. Served now is a quorum of one voter; votes and high watermark are counted for any number,
so that more voters need new events (fetches of followers), not new rules. The loop around it is in
`driver`, the election in `election`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from kbroker.model import InvariantError, Uuid
from kbroker.quorum.raft.election import Election, ElectionState, LogPosition, Role

MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
"""Kafka's readers of the metadata log expect no larger batch."""


@dataclass(frozen=True, slots=True)
class PersistState:
    """Write `quorum-state`, synced, before anything that follows."""

    state: ElectionState


@dataclass(frozen=True, slots=True)
class RequestVotes:
    """Ask these voters for their vote in this epoch."""

    epoch: int
    voters: tuple[int, ...]
    log: LogPosition


@dataclass(frozen=True, slots=True)
class AppendLeaderChange:
    """Write the leader change control batch at base_offset: the first batch of this epoch."""

    epoch: int
    base_offset: int
    voters: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AppendRecords:
    """Write these records as one batch at base_offset, not synced."""

    epoch: int
    base_offset: int
    records: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Flush:
    """Sync the log off the loop, then say `flushed(end_offset)`. end_offset: exclusive."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Everything below high_watermark is committed: hand it on."""

    high_watermark: int


@dataclass(frozen=True, slots=True)
class StepDown:
    """This node no longer leads; what it had not committed is void."""

    epoch: int


Effect = (
    PersistState | RequestVotes | AppendLeaderChange | AppendRecords | Flush | Commit | StepDown
)


class Raft:
    """One node of the quorum.

    next_offset: what the next record gets, also those not written yet. high_watermark: exclusive.
    Only one flush is under way; what is proposed meanwhile shares the next one.
    """

    __slots__ = (
        "_acked",
        "_flushing_to",
        "election",
        "epoch_start_offset",
        "high_watermark",
        "last_epoch",
        "next_offset",
    )

    def __init__(
        self,
        state: ElectionState,
        log: LogPosition,
        *,
        node_id: int,
        directory_id: Uuid,
        voters: Collection[int],
        high_watermark: int = 0,
    ) -> None:
        epoch = max(state.epoch, log.epoch)
        if epoch != state.epoch:
            # the log knows a later epoch than a lost or older quorum-state: never vote or lead
            # below it
            state = ElectionState(epoch=epoch)
        self.election = Election(state, node_id=node_id, directory_id=directory_id, voters=voters)
        self.next_offset = log.end_offset
        self.last_epoch = log.epoch
        self.high_watermark = high_watermark
        self.epoch_start_offset = -1
        self._acked: dict[int, int] = {}
        self._flushing_to: int | None = None

    @property
    def epoch(self) -> int:
        return self.election.state.epoch

    @property
    def is_leader(self) -> bool:
        return self.election.role is Role.LEADER

    def start(self) -> list[Effect]:
        """Stand for election; a single voter leads at once."""
        self.election.stand()
        if self.election.lead_if_elected():
            # one write is enough: the vote and the victory are the same fact
            return [PersistState(self.election.state), *self._lead()]
        others = tuple(sorted(self.election.voters - {self.election.node_id}))
        log = LogPosition(self.last_epoch, self.next_offset)
        return [PersistState(self.election.state), RequestVotes(self.epoch, others, log)]

    def vote_received(self, voter: int, epoch: int) -> list[Effect]:
        """A voter grants its vote."""
        if self.election.vote_received(voter, epoch):
            return [PersistState(self.election.state), *self._lead()]
        return []

    def epoch_seen(self, epoch: int, leader_id: int = -1) -> list[Effect]:
        """Another node sent that epoch: this node follows it if it is higher."""
        led = self.is_leader
        if not self.election.epoch_seen(epoch, leader_id):
            return []
        effects: list[Effect] = [PersistState(self.election.state)]
        if led:
            effects.append(StepDown(epoch))
        return effects

    def propose(self, records: Sequence[bytes]) -> list[Effect]:
        """Records of the leader, one batch. Raises InvariantError on any other node, or for no
        records.
        """
        if not self.is_leader or not records:
            raise InvariantError(
                f"node {self.election.node_id} proposes {len(records)} records without leading"
            )
        base_offset = self.next_offset
        self.next_offset += len(records)
        self.last_epoch = self.epoch
        return [AppendRecords(self.epoch, base_offset, records), *self._flush()]

    def flushed(self, end_offset: int) -> list[Effect]:
        """The own log is on disk up to end_offset (exclusive)."""
        self._flushing_to = None
        effects = self.acked(self.election.node_id, end_offset)
        if self.is_leader and self.next_offset > end_offset:
            effects += self._flush()
        return effects

    def acked(self, voter: int, end_offset: int) -> list[Effect]:
        """A voter has everything below end_offset on disk."""
        if not self.is_leader or voter not in self.election.voters:
            return []
        self._acked[voter] = max(end_offset, self._acked.get(voter, 0))
        offsets = sorted((self._acked.get(each, 0) for each in self.election.voters), reverse=True)
        reached = offsets[self.election.majority - 1]
        # records of earlier epochs are committed only through one of this epoch (Raft, section
        # 5.4.2)
        if reached <= max(self.high_watermark, self.epoch_start_offset):
            return []
        self.high_watermark = reached
        return [Commit(reached)]

    def _lead(self) -> list[Effect]:
        self.epoch_start_offset = self.next_offset
        self._acked = {}
        return [
            AppendLeaderChange(self.epoch, self.next_offset, tuple(sorted(self.election.voters)))
        ]

    def leader_change_appended(self, record_count: int) -> list[Effect]:
        """The leader change batch is written; it may carry the quorum's configuration too."""
        self.next_offset += record_count
        self.last_epoch = self.epoch
        return self._flush()

    def _flush(self) -> list[Effect]:
        if self._flushing_to is not None:
            return []
        self._flushing_to = self.next_offset
        return [Flush(self.next_offset)]
