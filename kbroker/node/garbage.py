"""Python's garbage collector in a broker: full collections that stay short.

A full collection walks all objects there are, 0.2 us each, and nothing else runs meanwhile: a
broker of 10,000 partitions would stand still for 60 ms. So what outlives a full collection is
frozen, which means that no later collection walks it. A frozen object goes with its last reference,
as any object does, but a reference cycle among frozen objects stays. The broker leaves none that is
known (tests/node/test_garbage.py); for one that is not, everything is walked once in two cases:
in a broker at rest, and when the frozen objects have doubled.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Final

COLLECTION_THRESHOLDS: Final = (700, 10, 2)
"""A full collection comes after some 20,000 new objects, not 70,000."""

FREEZE_OBJECTS: Final = 10_000
"""As many that outlived a full collection are frozen."""

WALK_OBJECTS: Final = 1_000_000
"""While the broker works, the frozen objects are walked once as many as the last complete walk left
were added, and this many at least: more than the large requests under way consist of (700,000), so
that no such request makes a walk. It takes 0.2 s for a million, a fifth of what it took to make
them.
"""

REST_LOOK_SECONDS: Final = 600.0
"""How often a broker at rest looks whether much was frozen."""


class CollectorPolicy:
    """What is frozen, and when all of it is walked. One per process, as the collector is."""

    __slots__ = ("_is_walk_due", "_known", "_newly_frozen")

    def __init__(self) -> None:
        self._known = 0  # frozen after the last complete walk
        self._newly_frozen = 0  # since then, those included that are freed again
        self._is_walk_due = False

    def begin(self) -> None:
        """Freeze what there is, and from now on what outlives a full collection."""
        gc.freeze()
        gc.set_threshold(*COLLECTION_THRESHOLDS)
        self._walked()
        gc.callbacks.append(self.freeze_survivors)

    def freeze_survivors(self, phase: str, info: dict[str, int]) -> None:
        """For gc.callbacks, where no collection can be started: what is unfrozen here is walked by
        the next full collection, and frozen again after it.
        """
        if phase != "stop" or info["generation"] != 2:
            return
        survivors = len(gc.get_objects(generation=2))
        if self._is_walk_due:
            gc.freeze()
            self._walked()
        elif survivors >= FREEZE_OBJECTS:
            gc.freeze()
            self._newly_frozen += survivors
            if self._newly_frozen >= self._limit:
                self._look()

    def collect_at_rest(
        self,
        call_later: Callable[[float, Callable[[], None]], object],
        is_resting: Callable[[], bool],
    ) -> None:
        """Look now and then whether much was frozen since the last complete walk and the broker is
        at rest; if so, walk all objects.
        """

        def look() -> None:
            if is_resting() and gc.get_freeze_count() - self._known >= FREEZE_OBJECTS:
                gc.unfreeze()
                gc.collect()
                gc.freeze()
                self._walked()
            call_later(REST_LOOK_SECONDS, look)

        call_later(REST_LOOK_SECONDS, look)

    def _look(self) -> None:
        """Unfreeze all if the frozen objects have doubled. To count them takes some ns each, so the
        next look is after half as many more at the earliest.
        """
        grown = gc.get_freeze_count() - self._known
        self._newly_frozen = min(grown, self._limit // 2)
        if grown >= self._limit:
            self._is_walk_due = True
            gc.unfreeze()

    @property
    def _limit(self) -> int:
        return max(WALK_OBJECTS, self._known)

    def _walked(self) -> None:
        self._is_walk_due = False
        self._known = gc.get_freeze_count()
        self._newly_frozen = 0
