"""Defects put into the quorum's core, each of which the simulation must find: the proof that its
faults and checks are able to.

So many seeds, from 0 on, each of them needed when this was written: vote_before_fsync 45,
old_epoch_committed_by_counting 1, uncommitted_records_applied 1, quorum_check_left_out 97,
parked_fetch_not_failed_on_resignation 15, voter_set_not_rolled_back 44, unflushed_records_counted
1, follower_fetches_before_fsync 1, candidate_with_a_shorter_log_elected 8,
sync_reported_before_it_has_ended 1, truncated_batches_handed_on 5, vote_not_synced 2.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from unittest import mock

from kbroker.log.storage import files
from kbroker.quorum.disk import quorum_state_file
from kbroker.quorum.log_effects import LogEffects
from kbroker.quorum.raft.effects import Effect, PersistState
from kbroker.quorum.raft.fetch_service import FetchService
from kbroker.quorum.raft.log_writer import LogWriter
from kbroker.quorum.raft.offsets import OffsetAndEpoch
from kbroker.quorum.raft.states.control_state import ControlState
from kbroker.quorum.raft.states.leader_state import LeaderState
from kbroker.quorum.raft.states.quorum_state import QuorumState
from kbroker.quorum.state_machine_feed import StateMachineFeed

Mutant = Callable[[], AbstractContextManager[object]]


def vote_before_fsync() -> AbstractContextManager[object]:
    """quorum-state is written after the messages that rest on it."""
    original = QuorumState.take_effects

    def take_effects(quorum: QuorumState) -> list[Effect]:
        effects = original(quorum)
        persisted = [each for each in effects if isinstance(each, PersistState)]
        return [each for each in effects if not isinstance(each, PersistState)] + persisted

    return mock.patch.object(QuorumState, "take_effects", take_effects)


def old_epoch_committed_by_counting() -> AbstractContextManager[object]:
    """A leader commits what a majority has, though it is of earlier epochs (Raft, 5.4.2)."""
    original = LeaderState.__init__

    def init(leader: LeaderState, *arguments: object, **options: object) -> None:
        original(leader, *arguments, **options)  # type: ignore[arg-type]  # as it was called
        leader.epoch_start_offset = -1

    return mock.patch.object(LeaderState, "__init__", init)


def uncommitted_records_applied() -> AbstractContextManager[object]:
    """A follower applies everything that it has fetched."""
    original = QuorumState.advance_high_watermark

    def advance(quorum: QuorumState, offset: int) -> None:
        original(quorum, max(offset, quorum.log.end_offset))

    return mock.patch.object(QuorumState, "advance_high_watermark", advance)


def quorum_check_left_out() -> AbstractContextManager[object]:
    """A leader leads without a majority that fetches (KAFKA-15489)."""

    def deadline(leader: LeaderState) -> None:
        return None

    return mock.patch.object(LeaderState, "check_quorum_deadline", deadline)


def parked_fetch_not_failed_on_resignation() -> AbstractContextManager[object]:
    """A Fetch waits on, at a node that no longer leads (KAFKA-10677)."""
    original = FetchService.poll

    def poll(service: FetchService, now_ms: int) -> int | None:
        state = service._quorum.state
        parked = service._parked
        held = {token: each for token, each in parked.items() if each.leader is not state}
        for token in held:
            del parked[token]
        due_ms = original(service, now_ms)
        parked.update(held)
        return due_ms

    return mock.patch.object(FetchService, "poll", poll)


def voter_set_not_rolled_back() -> AbstractContextManager[object]:
    """Voters of a batch that was truncated still count."""

    def truncate_new(control: ControlState, end_offset: int) -> None:
        control.voters.truncate_new(end_offset + 10)

    return mock.patch.object(ControlState, "truncate_new", truncate_new)


def unflushed_records_counted() -> AbstractContextManager[object]:
    """A leader counts its own log end before it is on disk."""
    original = LogWriter.append_records

    def append_records(writer: LogWriter, records: list[bytes]) -> None:
        original(writer, records)
        log = writer._quorum.log
        log.flushed_offset = log.end_offset

    return mock.patch.object(LogWriter, "append_records", append_records)


def follower_fetches_before_fsync() -> AbstractContextManager[object]:
    """A follower's next Fetch acknowledges records that are not on its disk."""
    return mock.patch.object(LogWriter, "is_flushed", True)


def candidate_with_a_shorter_log_elected() -> AbstractContextManager[object]:
    """Votes are given without a look at the candidate's log."""

    def is_at_least(own: OffsetAndEpoch, other: OffsetAndEpoch) -> bool:
        return True

    return mock.patch.object(OffsetAndEpoch, "is_at_least", is_at_least)


def sync_reported_before_it_has_ended() -> AbstractContextManager[object]:
    """The driver tells the core of a flush whose fsync is still under way."""
    original = LogEffects.flush

    def flush(effects: LogEffects, then: Callable[[int, OSError | None], None]) -> None:
        original(effects, lambda end_offset, failure: None)
        effects._timers.call_later(0, lambda: then(effects._storage.log.log_end_offset, None))

    return mock.patch.object(LogEffects, "flush", flush)


def truncated_batches_handed_on() -> AbstractContextManager[object]:
    """A follower's state machine gets what its log no longer has."""

    def truncated(feed: StateMachineFeed, end_offset: int) -> None:
        del feed, end_offset

    return mock.patch.object(StateMachineFeed, "truncated", truncated)


def vote_not_synced() -> AbstractContextManager[object]:
    """quorum-state is replaced without an fsync of file and folder."""
    unsynced = partial(files.atomic_write, sync=False)
    return mock.patch.object(quorum_state_file, "atomic_write", unsynced)


DRIVER_MUTANTS: dict[str, Mutant] = {
    mutant.__name__: mutant
    for mutant in (
        sync_reported_before_it_has_ended,
        truncated_batches_handed_on,
        vote_not_synced,
    )
}
"""In the driver and its storage; found by seeds that run these."""

MUTANTS: dict[str, Mutant] = {
    mutant.__name__: mutant
    for mutant in (
        vote_before_fsync,
        old_epoch_committed_by_counting,
        uncommitted_records_applied,
        quorum_check_left_out,
        parked_fetch_not_failed_on_resignation,
        voter_set_not_rolled_back,
        unflushed_records_counted,
        follower_fetches_before_fsync,
        candidate_with_a_shorter_log_elected,
    )
}
