"""The deadlines of one shard in one heap. Postponing a deadline, as a heartbeat does, only stores a
number.

A heap entry may be early because its deadline was postponed. It is pushed again instead of firing,
so a session that is renewed every three seconds costs one heap operation per session timeout, not
per heartbeat.

A heap entry is stale when its deadline was cancelled or brought forward. It keeps the owner of the
deadline in memory until its time, which a client may set weeks ahead; so the heap is rebuilt once
half of it is stale.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from kbroker.coordinator.runtime.result import Results

MIN_STALE: Final = 8
"""The heap is not rebuilt for fewer stale entries."""


class Deadline:
    """A time, and the action that is run then with now_ms. at_ms: None unless it is set. Set it
    through `Deadlines`.
    """

    __slots__ = ("action", "at_ms", "entry", "wake_ms")

    def __init__(self, action: Callable[[int], Results]) -> None:
        self.action = action
        self.at_ms: int | None = None
        self.entry = 0
        """The number of the deadline's valid heap entry, 0 for none; its other entries are
        stale.
        """
        self.wake_ms = 0
        """The time of that entry."""


class Deadlines:
    """A heap of deadlines."""

    __slots__ = ("_count", "_heap", "_stale")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Deadline]] = []
        self._count = 0
        self._stale = 0  # stale entries in the heap

    def __len__(self) -> int:
        """The number of heap entries, stale ones included."""
        return len(self._heap)

    def set(self, deadline: Deadline, at_ms: int) -> None:
        """Let the deadline fire at at_ms, in place of any former time."""
        deadline.at_ms = at_ms
        if not deadline.entry:
            self._push(deadline, at_ms)
        elif at_ms < deadline.wake_ms:
            self._push(deadline, at_ms)
            self._count_stale()

    def cancel(self, deadline: Deadline) -> None:
        """Keep the deadline from firing until it is set again."""
        deadline.at_ms = None
        if deadline.entry:
            deadline.entry = 0
            self._count_stale()

    def next_ms(self) -> int | None:
        """When to call `fire` next, perhaps earlier than any deadline; None without a deadline."""
        heap = self._heap
        while heap:
            wake_ms, number, deadline = heap[0]
            if deadline.entry == number:
                return wake_ms
            heapq.heappop(heap)
            self._stale -= 1
        return None

    def fire(self, now_ms: int) -> Results:
        """Run the actions of due deadlines, earliest first, up to and including the first that
        returns results; the later ones run at the next call, after those results were carried out.
        An action may set further deadlines.
        """
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            _, number, deadline = heapq.heappop(heap)
            if deadline.entry != number:
                self._stale -= 1
                continue
            deadline.entry = 0
            at_ms = deadline.at_ms
            if at_ms is not None and at_ms > now_ms:
                self._push(deadline, at_ms)
                continue
            deadline.at_ms = None
            results = deadline.action(now_ms)
            if results:
                return results
        return []

    def _push(self, deadline: Deadline, at_ms: int) -> None:
        self._count += 1
        deadline.entry, deadline.wake_ms = self._count, at_ms
        heapq.heappush(self._heap, (at_ms, self._count, deadline))

    def _count_stale(self) -> None:
        self._stale += 1
        if self._stale > MIN_STALE and self._stale * 2 > len(self._heap):
            # In place: `fire` may be iterating over it.
            self._heap[:] = [e for e in self._heap if e[2].entry == e[1]]
            heapq.heapify(self._heap)
            self._stale = 0
