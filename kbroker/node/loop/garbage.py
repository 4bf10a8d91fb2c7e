"""Python's garbage collector in a broker: full collections that stay short.

A full collection visits every object, at 0.2 us each, and blocks everything else: a broker of
10,000 partitions would pause for 60 ms. So the objects that survive a full collection are frozen:
no later collection visits them. A frozen object is freed with its last reference, like any object,
but a reference cycle of frozen objects is not. The broker has no known cycles
(tests/node/loop/test_garbage.py); to free unknown ones, all objects are collected once in two
cases: in an idle broker, and when the number of frozen objects has been doubled for a minute.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Final

COLLECTION_THRESHOLDS: Final = (700, 10, 2)
"""A full collection runs after some 20,000 new objects, instead of 70,000."""

FREEZE_OBJECTS: Final = 10_000
"""The objects that survived a full collection are frozen once there are this many."""

WALK_OBJECTS: Final = 1_000_000
"""While the broker is busy, all frozen objects are collected once as many were added as the last
complete collection left, and at least this many. That takes 0.2 s for a million.
"""

GROWTH_LOOK_SECONDS: Final = 20.0
GROWTH_LOOKS: Final = 4
"""This many successive checks must find the growth: the objects of large requests in progress live
for a second or two only, and a collection during such a request would free nothing.
"""

REST_LOOK_SECONDS: Final = 600.0
"""How often an idle broker checks how many objects were frozen."""


CallLater = Callable[[float, Callable[[], None]], object]
"""Calls back after so many seconds."""


class CollectorPolicy:
    """Freezes surviving objects, and decides when frozen ones are collected. One per process, like
    the collector.
    """

    __slots__ = ("_growth_looks", "_known", "_known_blocks")

    def __init__(self) -> None:
        self._known = 0  # frozen after the last complete collection
        self._known_blocks = 0  # memory blocks at that time
        self._growth_looks = 0  # the number of successive checks that found the growth

    def enable(self) -> None:
        """Enable the collector, which is disabled during imports. Their objects are frozen, so
        collections during the start do not visit them.
        """
        _freeze_all()
        gc.enable()

    def begin(self) -> None:
        """Freeze all existing objects, and from now on those that survive a full collection."""
        _freeze_all()
        gc.set_threshold(*COLLECTION_THRESHOLDS)
        self._remember_size()
        gc.callbacks.append(self.freeze_survivors)

    def freeze_survivors(self, phase: str, info: dict[str, int]) -> None:
        """A callback for gc.callbacks."""
        if (
            phase == "stop"
            and info["generation"] == 2
            and len(gc.get_objects(generation=2)) >= FREEZE_OBJECTS
        ):
            gc.freeze()

    def collect_when_grown(self, call_later: CallLater) -> None:
        """Check regularly whether the number of frozen objects has doubled; collect them if that
        persists. Counting a million objects takes 50 ms, so only the last check does that: each
        object takes at least one memory block, and blocks are counted quickly.
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
        """Check from time to time whether many objects were frozen since the last complete
        collection and the broker is idle; if so, collect all objects.
        """

        def look() -> None:
            if is_resting() and gc.get_freeze_count() - self._known >= FREEZE_OBJECTS:
                self._walk()
            call_later(REST_LOOK_SECONDS, look)

        call_later(REST_LOOK_SECONDS, look)

    def _walk(self) -> None:
        """Also collect cycles of frozen objects."""
        gc.unfreeze()
        gc.collect()
        _freeze_all()
        self._remember_size()
        self._growth_looks = 0

    def _remember_size(self) -> None:
        self._known = gc.get_freeze_count()
        self._known_blocks = sys.getallocatedblocks()


def _freeze_all() -> None:
    """Freeze all objects. The collector compares the number of new objects with the survivors of
    the last full collection, and collects fully when it exceeds a quarter of them. An empty
    collection resets that number; otherwise the next collection would visit far more objects than
    later ones.
    """
    gc.freeze()
    gc.collect()
