"""Deadlines of one shard in one heap, cheap to put off: a heartbeat only writes a number.

An entry of the heap may be early: its deadline was moved since. It is then put back instead of
firing, so a session that is renewed every three seconds costs one heap operation per session
timeout, not per heartbeat.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from kbroker.coordinator.effects import Effect


class Deadline:
    """A moment and what happens then. at_ms None: nothing is due. Set it through `Deadlines`."""

    __slots__ = ("action", "at_ms", "wake_ms")

    def __init__(self, action: Callable[[int], list[Effect]]) -> None:
        self.action = action
        self.at_ms: int | None = None
        self.wake_ms: int | None = None
        """Of the entry in the heap that counts; older entries are stale."""


class Deadlines:
    """A heap of deadlines."""

    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Deadline]] = []
        self._count = 0

    def set(self, deadline: Deadline, at_ms: int) -> None:
        """Let it fire at at_ms, whatever was set before."""
        deadline.at_ms = at_ms
        if deadline.wake_ms is None or at_ms < deadline.wake_ms:
            self._push(deadline, at_ms)

    def cancel(self, deadline: Deadline) -> None:
        """It does not fire, until it is set again."""
        deadline.at_ms = None

    def next_ms(self) -> int | None:
        """When to call `fire` next; it may turn out that nothing is due then."""
        heap = self._heap
        while heap:
            wake_ms, _, deadline = heap[0]
            if deadline.wake_ms == wake_ms and deadline.at_ms is not None:
                return wake_ms
            heapq.heappop(heap)
            if deadline.wake_ms == wake_ms:
                deadline.wake_ms = None
        return None

    def fire(self, now_ms: int) -> list[Effect]:
        """Run the action of all that is due, earliest first; an action may set further
        deadlines.
        """
        effects: list[Effect] = []
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            wake_ms, _, deadline = heapq.heappop(heap)
            if deadline.wake_ms != wake_ms:
                continue
            deadline.wake_ms = None
            at_ms = deadline.at_ms
            if at_ms is None:
                continue
            if at_ms > now_ms:
                self._push(deadline, at_ms)
                continue
            deadline.at_ms = None
            effects += deadline.action(now_ms)
        return effects

    def _push(self, deadline: Deadline, at_ms: int) -> None:
        deadline.wake_ms = at_ms
        self._count += 1
        heapq.heappush(self._heap, (at_ms, self._count, deadline))
