"""The state of each offset of a share partition as the fewest batches (KIP-932).

Kafka's name: PersisterStateBatchCombiner. The states are in `shard`.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from kbroker.protocol.share_partition_state import StateBatch

CHANGED_COST: Final = 4
"""To combine one changed batch with its neighbours costs as much as to look at so many."""

_first_offset = attrgetter("first_offset")
_last_offset = attrgetter("last_offset")


def combine(batches: Sequence[StateBatch], start_offset: int) -> list[StateBatch]:
    """The state of each offset from start_offset on, as the fewest batches in order of offset.
    Where batches overlap, the one with the most deliveries counts, then the later state.
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
        if (
            result
            and result[-1].last_offset == offset - 1
            and result[-1][2:] == (state, deliveries)
        ):
            result[-1] = result[-1]._replace(last_offset=last)
        else:
            result.append(StateBatch(offset, last, state, deliveries))
        offset = last + 1
    return result


def _is_combined(batches: Sequence[StateBatch], start_offset: int) -> bool:
    """Whether `combine` leaves these batches as they are."""
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
    """As `combine` of both. batches: combined already; if only some offsets changed, those far from
    them are taken as they are, without a look at each.
    """
    if len(changed) * CHANGED_COST >= len(batches):
        return combine([*batches, *changed], start_offset)
    waiting = [each for each in changed if each.first_offset <= each.last_offset >= start_offset]
    done = bisect_left(batches, start_offset, key=_last_offset)
    if done < len(batches) and batches[done].first_offset < start_offset:
        waiting.append(batches[done]._replace(first_offset=start_offset))
        done += 1
    waiting.sort()
    result: list[StateBatch] = []
    index = 0
    while index < len(waiting):
        first, last = waiting[index][:2]
        begin = bisect_left(batches, first - 1, done, key=_last_offset)
        near, end, reach = [], begin, last
        while index < len(waiting) and waiting[index].first_offset <= reach + 1:
            near.append(waiting[index])
            last = max(last, waiting[index].last_offset)
            end = bisect_right(batches, last + 1, end, key=_first_offset)
            reach = max(last, batches[end - 1].last_offset) if end > begin else last
            index += 1
        result += batches[done:begin]
        result += combine([*batches[begin:end], *near], start_offset)
        done = end
    result += batches[done:]
    return result
