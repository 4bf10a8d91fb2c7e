"""A share partition (KIP-932): the delivery state of a partition for one share group: which records
are available, acquired (by which member), acknowledged or archived, and how often each was
delivered.

    available -> acquired            acquire: a delivery more, a lock with a deadline
    acquired -> acknowledged         accept
    acquired -> archived             reject, gap; release or an expired lock after the last delivery
    acquired -> available            release, an expired lock

The records between `start_offset` and `end_offset` are a list of runs: adjacent records in the same
state are one object. Records below the start are acknowledged or archived, records from the end on
were not delivered yet. A `Change` is decided here and must be written before it takes effect: until
`commit` or `rollback` its offsets are not available to any member. This is a core: time is an
argument, the caller writes the state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterable

from kbroker.ports import at_once
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.share_partition_state import StateBatch
from kbroker.share.acknowledgement import (
    RENEW,
    STATE_AFTER,
    STEP_TYPES,
    Acknowledgement,
    kinds_of,
    pieces_of,
)
from kbroker.share.acquisition import Acquired, AcquireLimits, add_piece, few_of
from kbroker.share.runs import ACQUIRED, ARCHIVED, AVAILABLE, TERMINAL, Change, Run


class SharePartition:
    """See the module docstring. Only the methods change the fields."""

    __slots__ = ("_available", "_runs", "end_offset", "start_offset")

    def __init__(self, start_offset: int, batches: Iterable[StateBatch] = ()) -> None:
        """batches: the stored state, in order, without overlaps; offsets between them were never
        delivered.
        """
        self.start_offset = start_offset
        self.end_offset = start_offset
        self._runs: list[Run] = []
        self._available = 0
        for batch in batches:
            if batch.last_offset < self.end_offset:
                continue
            first = max(batch.first_offset, self.end_offset)
            if first > self.end_offset:
                self._append(Run(self.end_offset, first - 1, AVAILABLE, 0))
            state = batch.delivery_state if batch.delivery_state in TERMINAL else AVAILABLE
            self._append(Run(first, batch.last_offset, state, batch.delivery_count))
        self._advance()

    def _append(self, run: Run) -> None:
        self._runs.append(run)
        self.end_offset = run.last + 1
        if run.state == AVAILABLE:
            self._available += run.last - run.first + 1

    # -- queries -----------------------------------------------------------------------------

    @property
    def delivery_complete_count(self) -> int:
        """Number of records from the start offset on that are acknowledged or archived, or will be
        when all changes are written.
        """
        return sum(run.last - run.first + 1 for run in self._runs if run.state in TERMINAL)

    def batches(self) -> list[StateBatch]:
        """The state of all records from start_offset to end_offset."""
        return [StateBatch(run.first, run.last, run.state, run.deliveries) for run in self._runs]

    def next_fetch_offset(self, max_locks: int) -> int | None:
        """The offset to read for the next delivery. None while the maximum number of records is in
        flight.
        """
        if self._available:
            for run in self._runs:
                if run.state == AVAILABLE and run.change is None:
                    return run.first
        if self.end_offset - self.start_offset >= max_locks:
            return None
        return self.end_offset

    def next_deadline_ms(self) -> int | None:
        """When the first lock expires."""
        deadlines = [
            run.deadline_ms for run in self._runs if run.state == ACQUIRED and run.change is None
        ]
        return min(deadlines, default=None)

    def count_available(self, first: int, last: int) -> int:
        """How many of these offsets are available, those from the end offset on included."""
        count = max(last - max(first, self.end_offset) + 1, 0)
        if first < self.end_offset and self._available:
            for index in range(self._index(first), len(self._runs)):
                run = self._runs[index]
                if run.first > last:
                    break
                if run.state == AVAILABLE and run.change is None:
                    count += max(min(run.last, last) - max(run.first, first) + 1, 0)
        return count

    # -- acquisition -------------------------------------------------------------------------

    def acquire(
        self,
        member_id: str,
        batches: Iterable[tuple[int, int]],
        limits: AcquireLimits,
        now_ms: int,
    ) -> list[Acquired]:
        """Acquire records for a member. batches: (first, last) of the batches that were read, in
        order; only as many are used as are needed.

        A record near its delivery limit is acquired with few others, and finally alone: it may be
        the record that makes consumers fail.
        """
        acquired = self._acquire(member_id, batches, limits, now_ms)
        self._merge()
        return acquired

    def _acquire(
        self,
        member_id: str,
        batches: Iterable[tuple[int, int]],
        limits: AcquireLimits,
        now_ms: int,
    ) -> list[Acquired]:
        acquired: list[Acquired] = []
        count = 0
        for first, last in batches:
            first = max(first, self.start_offset)
            batch_began = True
            while first <= last:
                limit = limits.max_records - count
                if limits.is_strict and limit <= 0:
                    return acquired
                run = self._available_at(first, last, limits, limit)
                if run is None:
                    if last >= self.end_offset:
                        return acquired  # the limit of records in flight is reached
                    break
                taken = run.last - run.first + 1
                few = few_of(run, limits.delivery_limit)
                if few is not None:
                    if acquired:
                        return acquired
                    taken = min(taken, few)
                if limits.is_strict:
                    taken = min(taken, limit)
                if taken < run.last - run.first + 1:
                    self._split(run.first + taken)
                self._lock(run, member_id, now_ms + limits.lock_ms)
                add_piece(acquired, run, limits.batch_size, may_cut=batch_began)
                batch_began = False
                count += taken
                first = run.last + 1
                if few is not None:
                    return acquired
            if count >= limits.max_records:
                break
        return acquired

    def skip(self, first: int, last: int) -> None:
        """Archive the available records among these offsets, which this group cannot read
        (compacted away, or of an aborted transaction). This change need not be written.
        """
        while first <= last:
            run = self._available_at(first, last)
            if run is None:
                break
            self._available -= run.last - run.first + 1
            run.state = ARCHIVED
            first = run.last + 1
        self._advance()

    def _available_at(
        self, first: int, last: int, limits: AcquireLimits | None = None, limit: int = 0
    ) -> Run | None:
        """The first available run within these offsets, limited to them; from the end offset on a
        new run, of exactly limit records if the limit is strict.
        """
        if first < self.end_offset and self._available:
            index = self._index(first)
            while index < len(self._runs) and self._runs[index].first <= last:
                run = self._runs[index]
                if run.state == AVAILABLE and run.change is None:
                    if run.first < first:
                        self._split(first)
                        run = self._runs[index + 1]
                    if run.last > last:
                        self._split(last + 1)
                    return run
                index += 1
        if last < self.end_offset:
            return None
        if limits is not None and self.end_offset - self.start_offset >= limits.max_locks:
            return None
        if limits is not None and limits.is_strict:
            most = min(self.start_offset + limits.max_locks, self.end_offset + limit)
            last = min(last, most - 1)
        self._append(Run(self.end_offset, last, AVAILABLE, 0))
        return self._runs[-1]

    def _lock(self, run: Run, member_id: str, deadline_ms: int) -> None:
        self._available -= run.last - run.first + 1
        run.state = ACQUIRED
        run.deliveries += 1
        run.member = member_id
        run.deadline_ms = deadline_ms

    # -- acknowledgement and release ---------------------------------------------------------

    def acknowledge(
        self,
        member_id: str,
        acknowledgements: Iterable[Acknowledgement],
        *,
        delivery_limit: int,
        renewed_until_ms: int,
    ) -> Change:
        """Apply a member's acknowledgements: all of them, or none if one is invalid. Offsets below
        the start are ignored, since they are final.

        Raises KafkaError: INVALID_RECORD_STATE for records that this member has not acquired,
        INVALID_REQUEST for records that were not delivered.
        """
        steps = self.acknowledge_in_steps(
            member_id,
            acknowledgements,
            delivery_limit=delivery_limit,
            renewed_until_ms=renewed_until_ms,
        )
        return at_once(steps)

    def acknowledge_in_steps(
        self,
        member_id: str,
        acknowledgements: Iterable[Acknowledgement],
        *,
        delivery_limit: int,
        renewed_until_ms: int,
    ) -> Generator[None, None, Change]:
        """As `acknowledge`, for perhaps very many records. Between two steps the records of the
        former ones are out of reach, as those of any change; if a later step fails or the steps are
        closed, they are as before.
        """
        change = Change()
        has_renewed = False
        left = STEP_TYPES
        try:
            for piece in pieces_of(acknowledgements):
                for first, last, kind in kinds_of(piece) if piece.last >= self.start_offset else ():
                    has_renewed |= kind == RENEW
                    while (first := max(first, self.start_offset)) <= last:
                        runs = self._acquired_by(member_id, first, last, change)
                        for run in runs:
                            if kind == RENEW:
                                _mark(run, change)
                                run.deadline_ms = renewed_until_ms
                            else:
                                self._transit(run, STATE_AFTER[kind], change, delivery_limit)
                        first = runs[-1].last + 1
                        left -= len(runs)
                        if left <= 0:
                            left = STEP_TYPES
                            yield
                left -= len(piece.types)
                if left <= 0:
                    left = STEP_TYPES
                    yield
        except (KafkaError, GeneratorExit):
            self.rollback(change)
            raise
        if has_renewed:  # a new deadline need not be written
            for run in self._runs:
                if run.change is change and run.state == ACQUIRED:
                    run.change = None
        self._merge()
        return change

    def _acquired_by(self, member_id: str, first: int, last: int, change: Change) -> list[Run]:
        """The first runs of these offsets, which the member has acquired: at most `STEP_TYPES`.
        change: the one that is being made.
        """
        if last >= self.end_offset:
            message = f"Offset {last} was not delivered to anybody."
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        runs = self._within(first, last, STEP_TYPES)
        for run in runs:
            is_free = run.change is None or run.change is change
            if run.state != ACQUIRED or not is_free or run.member != member_id:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD_STATE,
                    f"Offsets {run.first} to {run.last} are not acquired by this member.",
                )
        return runs

    def release(self, member_id: str, *, delivery_limit: int) -> Change:
        """Release all records of a member that has left: they are available again."""
        change = Change()
        for run in self._runs:
            if run.state == ACQUIRED and run.change is None and run.member == member_id:
                self._transit(run, AVAILABLE, change, delivery_limit)
        return change

    def expire(self, now_ms: int, *, delivery_limit: int) -> Change:
        """Release the records whose locks have expired."""
        change = Change()
        for run in self._runs:
            if run.state == ACQUIRED and run.change is None and run.deadline_ms <= now_ms:
                self._transit(run, AVAILABLE, change, delivery_limit)
        return change

    def _transit(self, run: Run, state: int, change: Change, delivery_limit: int) -> None:
        if state == AVAILABLE and run.deliveries >= delivery_limit:
            state = ARCHIVED
        _mark(run, change)
        run.state, run.member, run.deadline_ms = state, "", 0
        batches = change.batches
        batch = StateBatch(run.first, run.last, state, run.deliveries)
        if batches and batches[-1].last_offset == run.first - 1 and batches[-1][2:] == batch[2:]:
            batches[-1] = batches[-1]._replace(last_offset=run.last)
        else:
            batches.append(batch)

    def commit(self, change: Change) -> None:
        """The change was written: make its states final."""
        for run in self._runs:
            if run.change is change:
                run.change = None
                if run.state == AVAILABLE:
                    self._available += run.last - run.first + 1
        self._merge()
        self._advance()

    def rollback(self, change: Change) -> None:
        """The change could not be written: restore the former states. Locks that expired in the
        meantime are released.
        """
        self._undo(change)
        self._merge()

    def _undo(self, change: Change) -> None:
        for run in self._runs:
            if run.change is change:
                run.change = None
                run.state, run.member, run.deadline_ms = run.former

    def log_start_moved(self, log_start_offset: int) -> None:
        """Drop the state of offsets below the log start offset."""
        if log_start_offset <= self.start_offset:
            return
        if log_start_offset < self.end_offset:
            self._split(log_start_offset)
        kept = []
        for run in self._runs:
            if run.first >= log_start_offset:
                kept.append(run)
            elif run.state == AVAILABLE and run.change is None:
                self._available -= run.last - run.first + 1
        self._runs = kept
        self.start_offset = log_start_offset
        self.end_offset = max(self.end_offset, log_start_offset)
        self._advance()

    # -- runs --------------------------------------------------------------------------------

    def _index(self, offset: int) -> int:
        """Index of the run that contains offset."""
        return max(bisect_right(self._runs, offset, key=lambda run: run.first) - 1, 0)

    def _split(self, offset: int) -> int:
        """Split the run that contains offset, so that a run begins there. Returns the index of the
        run of offset.
        """
        index = self._index(offset)
        run = self._runs[index]
        if run.first < offset <= run.last:
            index += 1
            self._runs.insert(index, run.tail(offset))
            run.last = offset - 1
        return index

    def _within(self, first: int, last: int, max_runs: int) -> list[Run]:
        """The first runs of these offsets, which are below the end offset, split at both ends."""
        runs = self._runs
        begin = end = self._split(first)
        most = min(begin + max_runs, len(runs))
        while end < most and runs[end].first <= last:
            end += 1
        final = runs[end - 1]
        if final.last > last:
            runs.insert(end, final.tail(last + 1))
            final.last = last
        return runs[begin:end]

    def _merge(self) -> None:
        """Merge adjacent runs in the same state."""
        runs: list[Run] = []
        for run in self._runs:
            if runs and runs[-1].is_like(run):
                runs[-1].last = run.last
            else:
                runs.append(run)
        self._runs = runs

    def _advance(self) -> None:
        """Advance start_offset past the leading runs in a terminal state."""
        done = 0
        for run in self._runs:
            if run.state not in TERMINAL or run.change is not None:
                break
            done += 1
        if done:
            self.start_offset = self._runs[done - 1].last + 1
            del self._runs[:done]


def _mark(run: Run, change: Change) -> None:
    """Make the run part of a change, unless it is that."""
    if run.change is None:
        run.former = (run.state, run.member, run.deadline_ms)
        run.change = change
