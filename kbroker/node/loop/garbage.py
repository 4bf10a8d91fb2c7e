"""Python's garbage collector in a broker: full collections that stay short.

A full collection walks all objects there are, 0.2 us each, and nothing else runs meanwhile: a
broker of 10,000 partitions would stand still for 60 ms. So what outlives a full collection is
frozen, which means that no later collection walks it. A frozen object goes with its last reference,
as any object does, but a reference cycle among frozen objects stays. The broker leaves none that is
known (tests/node/loop/test_garbage.py); for one that is not, everything is walked once in two
cases: in a broker at rest, and when the frozen objects have doubled for a minute.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Final

COLLECTION_THRESHOLDS: Final = (700, 10, 2)
"""A full collection comes after some 20,000 new objects, not 70,000."""

FREEZE_OBJECTS: Final = 10_000
"""As many that outlived a full collection are frozen."""

WALK_OBJECTS: Final = 1_000_000
"""While the broker works, the frozen objects are walked once as many as the last complete walk left
were added and stay, and this many at least. It takes 0.2 s for a million.
"""

GROWTH_LOOK_SECONDS: Final = 20.0
GROWTH_LOOKS: Final = 4
"""So many looks in a row must find the growth: large requests under way consist of as many objects,
but for a second or two only, and a walk in the middle of one would be in vain.
"""

REST_LOOK_SECONDS: Final = 600.0
"""How often a broker at rest checks how many objects were frozen."""


CallLater = Callable[[float, Callable[[], None]], object]
"""Calls back after so many seconds."""


class CollectorPolicy:
    """Freezes surviving objects, and decides when they are walked. One per process, like the
    collector.
    """

    __slots__ = ("_growth_looks", "_known", "_known_blocks")

    def __init__(self) -> None:
        self._known = 0  # frozen after the last complete walk
        self._known_blocks = 0  # of memory, at that time
        self._growth_looks = 0  # the last ones, in a row, that found the growth

    def enable(self) -> None:
        """Enable the collector, which was off while modules were imported. They are frozen, so no
        collection of the start walks them.
        """
        _freeze_all()
        gc.enable()

    def begin(self) -> None:
        """Freeze all present objects, and from now on those that survive a full collection."""
        _freeze_all()
        gc.set_threshold(*COLLECTION_THRESHOLDS)
        self._remember_size()
        gc.callbacks.append(self.freeze_survivors)

    def freeze_survivors(self, phase: str, info: dict[str, int]) -> None:
        """For gc.callbacks."""
        if (
            phase == "stop"
            and info["generation"] == 2
            and len(gc.get_objects(generation=2)) >= FREEZE_OBJECTS
        ):
            gc.freeze()

    def collect_when_grown(self, call_later: CallLater) -> None:
        """Look regularly whether the frozen objects have doubled; walk them if that lasts. To count
        a million of them takes 50 ms, so that only the last look does: each is a block of memory at
        least, and those are counted quickly.
        """

        def look() -> None:
            limit = max(WALK_OBJECTS, self._known)
            has_grown = sys.getallocatedblocks() - self._known_blocks >= limit
            self._growth_looks = self._growth_looks + 1 if has_grown else 0
            if self._growth_looks >= GROWTH_LOOKS:
                self._growth_looks = 0
                if gc.get_freeze_count() - self._known >= limit:
                    self._walk()
            call_later(GROWTH_LOOK_SECONDS, look)

        call_later(GROWTH_LOOK_SECONDS, look)

    def collect_at_rest(self, call_later: CallLater, is_resting: Callable[[], bool]) -> None:
        """Look now and then whether much was frozen since the last complete walk and the broker is
        at rest; if so, walk all objects.
        """

        def look() -> None:
            if is_resting() and gc.get_freeze_count() - self._known >= FREEZE_OBJECTS:
                self._walk()
            call_later(REST_LOOK_SECONDS, look)

        call_later(REST_LOOK_SECONDS, look)

    def _walk(self) -> None:
        """Collect the cycles among frozen objects, too."""
        gc.unfreeze()
        gc.collect()
        _freeze_all()
        self._remember_size()
        self._growth_looks = 0

    def _remember_size(self) -> None:
        self._known = gc.get_freeze_count()
        self._known_blocks = sys.getallocatedblocks()


def _freeze_all() -> None:
    """Freeze all objects. The collector compares new objects with the survivors of the last full
    collection, and collects fully from a quarter as many on: an empty collection makes it forget
    the frozen ones, or the next one would walk far more objects than later ones.
    """
    gc.freeze()
    gc.collect()
