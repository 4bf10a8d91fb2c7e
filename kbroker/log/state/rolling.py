"""Rolling a log to a new segment. At most one roll of a log is in progress; `roll` is its job.

A roll that a worker makes waits in the log's queue (`begin_roll`); one that cannot wait is run at
once, outside the queue (`roll_now`, see `storage.disk_jobs`).
"""

from __future__ import annotations

import logging
from functools import partial

from kbroker.log.state.flushing import limit_flushes
from kbroker.log.state.log_state import LogState
from kbroker.log.state.roll import Roll
from kbroker.log.storage.files import LogDirectoryError
from kbroker.log.storage.segment import Segment

logger = logging.getLogger(__name__)


def roll_now(state: LogState, now_ms: int, base_offset: int = 0) -> Segment:
    """Close the active segment and create one at base_offset (not below the log end offset).
    Returns the new segment. Blocks. Raises LogDirectoryError.
    """
    settle_roll(state)
    base_offset = max(state.log_end_offset, base_offset)
    active = state.segments.active
    if active.base_offset != base_offset or active.size:
        roll = _prepare(state, now_ms, base_offset)
        try:
            roll.run()  # not queued: an append need not wait for the renames of retired segments
        except LogDirectoryError as error:
            roll.fail(error)
            raise
        roll.settle()
        if roll.failure is not None:
            raise roll.failure
    return state.segments.active


def begin_roll(state: LogState, now_ms: int, base_offset: int) -> Roll:
    """The roll in progress, or a new one in the log's queue. An operation that cannot wait for a
    worker completes it (`settle_roll`).
    """
    roll = state.roll_under_way
    if roll is None:
        roll = _prepare(state, now_ms, base_offset)
        state.roll_under_way = roll
        state.jobs.add(roll)
    return roll


def _prepare(state: LogState, now_ms: int, base_offset: int) -> Roll:
    has_snapshot = base_offset > state.last_snapshot_offset
    return Roll(
        state.jobs,
        state.segments,
        state.producers,
        state.snapshots if has_snapshot else None,
        state.config,
        base_offset,
        now_ms=now_ms,
        then=partial(_rolled, state, has_snapshot),
    )


def settle_roll(state: LogState) -> None:
    """Complete the roll or truncation in progress, in this thread. Blocks. Raises
    LogDirectoryError.
    """
    state.thaw()
    roll = state.roll_under_way
    if roll is not None:
        state.jobs.settle(roll)
        if roll.failure is not None:
            raise roll.failure


def settle_jobs(state: LogState) -> None:
    """Complete all jobs of the log in this thread. Blocks. Raises LogDirectoryError."""
    settle_roll(state)
    state.jobs.settle()


def _rolled(state: LogState, has_snapshot: bool, new: Segment | LogDirectoryError) -> None:
    state.roll_under_way = None
    if isinstance(new, LogDirectoryError):
        if new.is_shortage:
            state.producers.map_end_offset = state.log_end_offset
            state.changes.changed()  # the files that were removed again
        else:
            state.failure = state.failure or new
        return
    if has_snapshot:
        state.last_snapshot_offset = new.base_offset
    new.index_interval_bytes = state.config.index_interval_bytes  # may have changed meanwhile
    state.changes.changed()
    # the indexes were closed just now: the recovery point moves once they are synced
    state.recovery_point = min(state.recovery_point, new.base_offset - 1)
    limit_flushes(state, new.base_offset - 1)
    logger.info("%s: rolled a new segment at offset %d", state.topic_partition, new.base_offset)
    if state.on_rolled is not None:
        state.on_rolled(state)
