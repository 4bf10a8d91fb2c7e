"""Settings of Python's garbage collector while a seed runs. A broker's policy is in
`node/loop/garbage`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

COLLECTION_THRESHOLD: Final = 100_000
"""The number of new objects between two collections."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """A context in which Python rarely collects garbage: most objects of a seed live as long as the
    seed, and visiting the newest 700 objects repeatedly takes an eighth of the time.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(COLLECTION_THRESHOLD, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
