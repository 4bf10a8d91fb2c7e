"""Deadlines of one shard in one heap, cheap to put off: a heartbeat only writes a number.

An entry of the heap may be early: its deadline was moved since. It is then put back instead of
firing, so a session that is renewed every three seconds costs one heap operation per session
timeout, not per heartbeat.

An entry may also be stale: its deadline was cancelled or brought forward. It would hold what the
deadline belongs to until its hour comes, which a client may have set to weeks from now; so the heap
is made anew once half of it is stale.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from kbroker.coordinator.runtime.result import Results

MIN_STALE: Final = 8
"""Stale entries that are not worth a new heap."""


class Deadline:
    """A moment and what happens then. at_ms None: nothing is due. Set it through `Deadlines`."""

    __slots__ = ("action", "at_ms", "entry", "wake_ms")

    def __init__(self, action: Callable[[int], Results]) -> None:
        self.action = action
        self.at_ms: int | None = None
        self.entry = 0
        """Number of the entry in the heap that counts, 0 for none; others are stale."""
        self.wake_ms = 0
        """When that entry is due."""


class Deadlines:
    """A heap of deadlines."""

    __slots__ = ("_count", "_heap", "_stale")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Deadline]] = []
        self._count = 0
        self._stale = 0  # entries of the heap that no longer count

    def __len__(self) -> int:
        """Entries held, stale ones too."""
        return len(self._heap)

    def set(self, deadline: Deadline, at_ms: int) -> None:
        """Let it fire at at_ms, whatever was set before."""
        deadline.at_ms = at_ms
        if not deadline.entry:
            self._push(deadline, at_ms)
        elif at_ms < deadline.wake_ms:
            self._push(deadline, at_ms)
            self._one_more_stale()

    def cancel(self, deadline: Deadline) -> None:
        """It does not fire, until it is set again."""
        deadline.at_ms = None
        if deadline.entry:
            deadline.entry = 0
            self._one_more_stale()

    def next_ms(self) -> int | None:
        """When to call `fire` next; it may turn out that nothing is due then."""
        heap = self._heap
        while heap:
            wake_ms, number, deadline = heap[0]
            if deadline.entry == number:
                return wake_ms
            heapq.heappop(heap)
            self._stale -= 1
        return None

    def fire(self, now_ms: int) -> Results:
        """Run the actions of what is due, earliest first, up to the first that asks for something:
        the next ones are to see what came of it. An action may set further deadlines.
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
            effects = deadline.action(now_ms)
            if effects:
                return effects
        return []

    def _push(self, deadline: Deadline, at_ms: int) -> None:
        self._count += 1
        deadline.entry, deadline.wake_ms = self._count, at_ms
        heapq.heappush(self._heap, (at_ms, self._count, deadline))

    def _one_more_stale(self) -> None:
        self._stale += 1
        if self._stale > MIN_STALE and self._stale * 2 > len(self._heap):
            # In place: `fire` may be in the middle of it.
            self._heap[:] = [e for e in self._heap if e[2].entry == e[1]]
            heapq.heapify(self._heap)
            self._stale = 0
