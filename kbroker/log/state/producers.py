"""Brings the producer state of a log to the log end: the newest snapshot, then the batches after
it.
"""

from __future__ import annotations

import logging

from kbroker.log.producer.markers import marker_of
from kbroker.log.producer.recent_batches import recall_batches
from kbroker.log.producer.replay import replay_producer
from kbroker.log.state.log_state import LogState
from kbroker.log.storage.batch_reader import read_batches
from kbroker.model import InvariantError
from kbroker.protocol.batches.batch_header import MAGIC
from kbroker.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)


def take_snapshot(state: LogState) -> None:
    """Write a snapshot of the producer state at its map_end_offset, unless there is one."""
    offset = state.producers.map_end_offset
    if offset > state.last_snapshot_offset:
        state.snapshots.write(offset, state.producers.to_snapshot())
        state.last_snapshot_offset = offset


def rebuild_producers(state: LogState, *, now_ms: int, clean_shutdown: bool) -> None:
    """Bring the producer state to log_end_offset: the newest snapshot, then the batches after it.

    Also called after a truncation. Leaves a snapshot at the end offset and at the last two
    segments, so that the next start has less to read.
    """
    producers, segments, end = state.producers, state.segments, state.log_end_offset
    bases = segments.base_offsets
    wanted = {*bases[-2:], end}
    if clean_shutdown and state.snapshots.latest is None and _is_without_producers(state):
        # written by a Kafka without producer snapshots: not scanned completely, as in Kafka
        for offset in sorted(wanted):
            producers.map_end_offset = offset
            take_snapshot(state)
        return
    state.snapshots.delete_outside(state.log_start_offset, end)
    _load_snapshot(state, now_ms)
    if not clean_shutdown:
        recall_batches(producers, segments)
    if end > producers.map_end_offset:
        last = segments.floor_index(end)
        for index in range(segments.floor_index(producers.map_end_offset), last + 1):
            segment = segments[index]
            start = max(segment.base_offset, producers.map_end_offset, state.log_start_offset)
            producers.map_end_offset = start
            if segment.base_offset in wanted:
                take_snapshot(state)
            end_position = segment.position_of(end) if index == last else segment.size
            for header, batch in read_batches(
                segment.path, segment.position_of(start), end_position
            ):
                state.check_stop()
                completed = replay_producer(producers, header, marker_of(header, batch))
                if completed is not None:
                    producers.complete_transaction(completed)
    producers.map_end_offset = end
    take_snapshot(state)


def _is_without_producers(state: LogState) -> bool:
    """Whether the last batch has a format without producer ids, or there is no batch."""
    segment = next((each for each in list(state.segments)[::-1] if each.size), None)
    if segment is None:
        return True
    start = segment.position_of(segment.next_offset() - 1)
    return all(
        header.magic < MAGIC for header, _ in read_batches(segment.path, start, segment.size)
    )


def _load_snapshot(state: LogState, now_ms: int) -> None:
    """Load the newest valid snapshot; invalid ones are deleted."""
    state.producers.clear(state.log_start_offset)
    state.last_snapshot_offset = state.log_start_offset
    while (offset := state.snapshots.latest) is not None:
        try:
            state.producers.load_snapshot(
                state.snapshots.read(offset), map_end_offset=offset, now_ms=now_ms
            )
        except KafkaError as error:
            if error.code is not ErrorCode.CORRUPT_MESSAGE:
                raise InvariantError(f"unexpected error {error.code!r} from a snapshot") from error
            logger.warning(
                "%s: invalid producer snapshot %d: %s; deleting it",
                state.topic_partition,
                offset,
                error.message,
            )
            state.snapshots.delete(offset)
        else:
            state.last_snapshot_offset = offset
            return
