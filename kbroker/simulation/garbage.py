"""Python's garbage collector while a seed runs. A broker's policy is in `node/loop/garbage`."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

COLLECTION_THRESHOLD: Final = 100_000
"""So many new objects between two collections."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Within, Python seldom collects garbage: most of what a seed makes lives as long as the seed,
    and to walk the newest 700 objects again and again takes an eighth of the time.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(COLLECTION_THRESHOLD, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
