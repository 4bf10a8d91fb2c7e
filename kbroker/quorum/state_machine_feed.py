"""Notifies a node's state machines of the metadata log, in log order: snapshots, committed batches,
and whether this node leads.

A newly elected node calls `on_leadership_gained` after all records before its epoch, and the
LeaderChange record that starts it, have been passed on: a controller that becomes active thus knows
every committed record. Neighbour: `driver` feeds this from the core's effects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.quorum.disk.storage import StoredBatch

CommitListener = Callable[[int, int, Sequence[bytes]], None]
"""(base offset, epoch, records) of a committed batch. A control batch has no records, and the
offset is that of its last record.
"""

SnapshotListener = Callable[[Iterable[bytes], int, int], None]
"""(records, end offset (exclusive), epoch) of a snapshot. It replaces the state passed on before;
the next commit continues it.
"""

LeaderListener = Callable[[int, int], None]
"""(epoch, leader id): -1 while no leader of the epoch is known."""


class _Claim(NamedTuple):
    """This node leads an epoch. start_offset: that of the epoch's LeaderChange record."""

    epoch: int
    start_offset: int


class StateMachineFeed:
    """Listeners are called in the order of their registration; an exception of a listener stops the
    node.

    applied_offset: all records below it (exclusive) were passed on. leader: (epoch, leader id).
    """

    def __init__(self) -> None:
        self.applied_offset = 0
        self.leader = (0, -1)
        self._uncommitted: deque[StoredBatch] = deque()
        self._waiting: deque[tuple[int, Deferred[int]]] = deque()
        self._commit_listeners: list[CommitListener] = []
        self._snapshot_listeners: list[SnapshotListener] = []
        self._gained_listeners: list[Callable[[int], None]] = []
        self._lost_listeners: list[Callable[[], None]] = []
        self._leader_listeners: list[LeaderListener] = []
        self._claim: _Claim | None = None
        self._is_claim_told = False

    # Listeners.

    def on_commit(self, callback: CommitListener) -> None:
        """Call back for each committed batch, in order, also for those found at start."""
        self._commit_listeners.append(callback)

    def on_snapshot(self, callback: SnapshotListener) -> None:
        """Call back with the newest snapshot at start, before any commit, and with each snapshot
        that a follower fetches later because its leader no longer has the log before it.
        """
        self._snapshot_listeners.append(callback)

    def on_leadership_gained(self, callback: Callable[[int], None]) -> None:
        """Call back with the epoch that this node leads; see the module."""
        self._gained_listeners.append(callback)

    def on_leadership_lost(self, callback: Callable[[], None]) -> None:
        """Call back when this node can no longer commit what it appended: the outcome of every
        uncommitted append is then unknown.
        """
        self._lost_listeners.append(callback)

    def on_leader(self, callback: LeaderListener) -> None:
        """Call back whenever another leader or epoch becomes known."""
        self._leader_listeners.append(callback)

    # The log.

    def load(self, records: Iterable[bytes] | None, end_offset: int, epoch: int) -> None:
        """Start with a snapshot. records: None for a snapshot without metadata (0-0)."""
        self._uncommitted.clear()
        self.applied_offset = end_offset
        if records is not None:
            for listener in self._snapshot_listeners:
                listener(records, end_offset, epoch)

    def appended(self, *batches: StoredBatch) -> None:
        """These batches continue the log; they are passed on once they are committed."""
        self._uncommitted.extend(batches)

    def truncated(self, end_offset: int) -> None:
        """The log was truncated to end_offset (exclusive)."""
        while self._uncommitted and self._uncommitted[-1].base_offset >= end_offset:
            self._uncommitted.pop()

    def committed(self, high_watermark: int) -> None:
        """All records below high_watermark (exclusive) are committed: pass them on."""
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0].next_offset <= high_watermark:
            batch = uncommitted.popleft()
            self.applied_offset = batch.next_offset
            base_offset = batch.base_offset if batch.records else batch.next_offset - 1
            for listener in self._commit_listeners:
                listener(base_offset, batch.epoch, batch.records)
        while self._waiting and self._waiting[0][0] < high_watermark:
            last_offset, deferred = self._waiting.popleft()
            deferred.resolve(last_offset)
        self._tell_claim()

    def when_committed(self, last_offset: int) -> Deferred[int]:
        """Resolves with last_offset, the end of an append of this leader, once it is committed.
        Fails with NOT_CONTROLLER if this node loses leadership before.
        """
        deferred: Deferred[int] = Deferred()
        self._waiting.append((last_offset, deferred))
        return deferred

    # Leadership.

    def leader_changed(self, epoch: int, leader_id: int, epoch_start_offset: int | None) -> None:
        """Another leader or epoch is known. epoch_start_offset: given if this node leads the
        epoch.
        """
        self.leadership_lost()
        self.leader = epoch, leader_id
        if epoch_start_offset is not None:
            self._claim = _Claim(epoch, epoch_start_offset)
        for listener in self._leader_listeners:
            listener(epoch, leader_id)
        self._tell_claim()

    def leadership_lost(self) -> None:
        """This node does not lead, or cannot write: fail everything that waits for a commit. The
        listeners are notified if it led.
        """
        if self._claim is not None:
            self._claim, self._is_claim_told = None, False
            for lost in self._lost_listeners:
                lost()
        waiting, self._waiting = self._waiting, deque()
        for _, deferred in waiting:
            deferred.fail(not_controller())

    def _tell_claim(self) -> None:
        claim = self._claim
        if claim is None or self._is_claim_told or self.applied_offset <= claim.start_offset:
            return
        self._is_claim_told = True
        for listener in self._gained_listeners:
            listener(claim.epoch)


def not_controller() -> KafkaError:
    """This node does not lead the quorum, or cannot write its log any more."""
    return KafkaError(ErrorCode.NOT_CONTROLLER, "This node is not the active controller.")
