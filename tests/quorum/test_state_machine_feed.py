"""Notifications of state machines: in log order, and of leadership once the log before it is
known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from kbroker.quorum.disk.storage import StoredBatch
from kbroker.quorum.state_machine_feed import StateMachineFeed


def batch(base_offset: int, *records: bytes, epoch: int = 1) -> StoredBatch:
    """A batch of the log; a control batch with one record if it has no records."""
    return StoredBatch(base_offset, base_offset + max(len(records), 1), epoch, records)


class Told:
    """A feed, and its notifications."""

    def __init__(self) -> None:
        self.feed = StateMachineFeed()
        self.said: list[object] = []
        self.feed.on_commit(self._commit)
        self.feed.on_snapshot(self._snapshot)
        self.feed.on_leadership_gained(lambda epoch: self.said.append(("gained", epoch)))
        self.feed.on_leadership_lost(lambda: self.said.append("lost"))
        self.feed.on_leader(lambda epoch, leader_id: self.said.append((epoch, leader_id)))

    def _commit(self, base_offset: int, epoch: int, records: Sequence[bytes]) -> None:
        self.said.append((base_offset, list(records)))

    def _snapshot(self, records: Iterable[bytes], end_offset: int, epoch: int) -> None:
        self.said.append((list(records), end_offset, epoch))

    def new(self) -> list[object]:
        said, self.said = self.said, []
        return said


def test_batches_are_handed_on_once_they_are_committed() -> None:
    told = Told()
    told.feed.appended(batch(0), batch(1, b"a", b"b"))
    told.feed.committed(1)
    assert told.new() == [(0, [])]
    told.feed.committed(2)  # within a batch, as far as a follower knows
    assert told.new() == [] and told.feed.applied_offset == 1
    told.feed.committed(3)
    assert told.new() == [(1, [b"a", b"b"])] and told.feed.applied_offset == 3


def test_a_control_batch_is_told_with_the_offset_of_its_last_record() -> None:
    told = Told()
    told.feed.appended(StoredBatch(0, 3, 1, ()), batch(3, b"a"))
    told.feed.committed(4)
    assert told.new() == [(2, []), (3, [b"a"])]


def test_what_is_truncated_is_never_handed_on() -> None:
    told = Told()
    told.feed.appended(batch(0, b"kept"), batch(1, b"gone"), batch(2, b"gone"))
    told.feed.truncated(1)
    told.feed.appended(batch(1, b"new", epoch=2))
    told.feed.committed(3)
    assert told.new() == [(0, [b"kept"]), (1, [b"new"])]


def test_a_snapshot_replaces_what_was_handed_on() -> None:
    told = Told()
    told.feed.appended(batch(0, b"a"), batch(1, b"b"))
    told.feed.committed(1)
    told.new()
    told.feed.load([b"all"], 10, 3)
    assert told.new() == [([b"all"], 10, 3)]
    told.feed.appended(batch(10, b"c"))
    told.feed.committed(11)
    assert told.new() == [(10, [b"c"])]


def test_the_first_snapshot_of_a_quorum_has_nothing_to_tell() -> None:
    told = Told()
    told.feed.load(None, 0, 0)
    assert told.new() == []


def test_leadership_is_gained_once_the_epochs_first_record_is_handed_on() -> None:
    told = Told()
    told.feed.appended(batch(0, b"old"))
    told.feed.leader_changed(5, 1, 1)
    told.feed.appended(batch(1, epoch=5))
    assert told.new() == [(5, 1)]
    told.feed.committed(1)
    assert told.new() == [(0, [b"old"])]
    told.feed.committed(2)
    told.feed.committed(2)
    assert told.new() == [(1, []), ("gained", 5)]


def test_lost_leadership_fails_what_is_not_committed() -> None:
    told = Told()
    told.feed.leader_changed(5, 1, 0)
    told.feed.appended(batch(0, epoch=5), batch(1, b"a", epoch=5))
    committed, open_one = told.feed.when_committed(0), told.feed.when_committed(1)
    told.feed.committed(1)
    told.new()
    told.feed.leader_changed(5, -1, None)
    assert told.new() == ["lost", (5, -1)]
    assert committed.value == 0 and told.feed.leader == (5, -1)
    assert code(open_one) is ErrorCode.NOT_CONTROLLER
    told.feed.leadership_lost()
    told.feed.leader_changed(6, 2, None)
    assert told.new() == [(6, 2)]


def code(deferred: Deferred[int]) -> ErrorCode | None:
    return None if deferred.error is None else deferred.error.code


def test_another_epoch_of_the_same_node_is_gained_anew() -> None:
    told = Told()
    for epoch in (1, 2):
        told.feed.leader_changed(epoch, 1, epoch - 1)
        told.feed.appended(batch(epoch - 1, epoch=epoch))
        told.feed.committed(epoch)
    assert told.new() == [(1, 1), (0, []), ("gained", 1), "lost", (2, 1), (1, []), ("gained", 2)]
