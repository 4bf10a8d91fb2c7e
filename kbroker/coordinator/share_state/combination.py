"""Combines the state batches of a share partition into the fewest batches (KIP-932).

Kafka's name: PersisterStateBatchCombiner. The states are in `shard`.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter

from kbroker.protocol.share_partition_state import StateBatch

_first_offset = attrgetter("first_offset")
_last_offset = attrgetter("last_offset")


def combine(batches: Sequence[StateBatch], start_offset: int) -> list[StateBatch]:
    """The state of each offset from start_offset on, as the fewest batches in order of offset.
    Where batches overlap, the one with the higher delivery count is used, then the one with the
    later state.
    """
    if _is_combined(batches, start_offset):
        return list(batches)
    waiting = sorted(
        {batch for batch in batches if batch.first_offset <= batch.last_offset >= start_offset}
    )
    if _is_combined(waiting, start_offset):
        return waiting
    result: list[StateBatch] = []
    active: list[tuple[int, int, int]] = []  # (-deliveries, -state, last): the best on top
    index, offset = 0, start_offset
    while index < len(waiting) or active:
        if not active:
            offset = max(offset, waiting[index].first_offset)
        while index < len(waiting) and waiting[index].first_offset <= offset:
            batch = waiting[index]
            heapq.heappush(
                active, (-batch.delivery_count, -batch.delivery_state, batch.last_offset)
            )
            index += 1
        while active and active[0][2] < offset:
            heapq.heappop(active)
        if not active:
            continue
        deliveries, state, last = -active[0][0], -active[0][1], active[0][2]
        if index < len(waiting):
            last = min(last, waiting[index].first_offset - 1)
        _append(result, StateBatch(offset, last, state, deliveries))
        offset = last + 1
    return result


def _is_combined(batches: Sequence[StateBatch], start_offset: int) -> bool:
    """Whether `combine` does not change these batches."""
    last, known_state, known_count = start_offset - 1, -1, -1
    for first, next_last, state, count in batches:
        if first <= last or first > next_last:
            return False
        if first == last + 1 and state == known_state and count == known_count:
            return False
        last, known_state, known_count = next_last, state, count
    return True


def combine_changed(
    batches: Sequence[StateBatch], changed: Sequence[StateBatch], start_offset: int
) -> list[StateBatch]:
    """`combine` of both. batches: already combined, possibly tens of thousands. Those that no
    changed batch overlaps are copied in bulk; of the others each is compared once.
    """
    result: list[StateBatch] = []
    done = bisect_left(batches, start_offset, key=_last_offset)
    rest: StateBatch | None = (
        None  # the rest of the stored batch before `done`, if it is still to be added
    )
    if done < len(batches) and batches[done].first_offset < start_offset:
        rest = batches[done]._replace(first_offset=start_offset)
        done += 1
    for over in combine(changed, start_offset):
        if rest is not None and rest.last_offset < over.first_offset:
            _append(result, rest)
            rest = None
        begin = bisect_left(batches, over.first_offset, done, key=_last_offset)
        _extend(result, batches[done:begin])
        done = bisect_right(batches, over.last_offset, begin, key=_first_offset)
        overlapped = list(batches[begin:done])
        if rest is not None:
            overlapped.insert(0, rest)
        rest = _overlay(result, overlapped, over)
    if rest is not None:
        _append(result, rest)
    _extend(result, batches[done:])
    return result


def _overlay(
    result: list[StateBatch], overlapped: list[StateBatch], over: StateBatch
) -> StateBatch | None:
    """Append the state of each offset up to the end of `over`. overlapped: the combined batches
    that share an offset with it. Returns the part of the last of them after `over`.
    """
    if not overlapped:
        _append(result, over)
        return None
    at, last, state, deliveries = over
    rest: StateBatch | None = None
    if overlapped[-1].last_offset > last:
        rest = overlapped[-1]._replace(first_offset=last + 1)
        overlapped[-1] = overlapped[-1]._replace(last_offset=last)
    if overlapped[0].first_offset < at:
        _append(result, overlapped[0]._replace(last_offset=at - 1))
        overlapped[0] = overlapped[0]._replace(first_offset=at)
    pieces: list[StateBatch] = []
    for batch in overlapped:
        first, batch_last, batch_state, batch_deliveries = batch
        if batch_deliveries > deliveries or (
            batch_deliveries == deliveries and batch_state > state
        ):
            if at < first:
                pieces.append(StateBatch(at, first - 1, state, deliveries))
            pieces.append(batch)
            at = batch_last + 1
    if at <= last:
        pieces.append(StateBatch(at, last, state, deliveries))
    _extend(result, pieces)
    return rest


def _append(result: list[StateBatch], batch: StateBatch) -> None:
    """Append a batch; one that continues the last with the same state extends it."""
    if result:
        before = result[-1]
        if before.last_offset == batch.first_offset - 1 and before[2:] == batch[2:]:
            result[-1] = before._replace(last_offset=batch.last_offset)
            return
    result.append(batch)


def _extend(result: list[StateBatch], batches: Sequence[StateBatch]) -> None:
    """Append batches that are already combined."""
    if batches:
        _append(result, batches[0])
        result += batches[1:]
