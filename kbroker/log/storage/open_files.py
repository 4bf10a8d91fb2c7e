"""Bounds on what segments hold for speed: open files (`OpenFiles`) and loaded indexes
(`LoadedIndexes`).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Protocol

DEFAULT_INDEX_BYTES: Final = 8 << 20


class Closeable(Protocol):
    """What `OpenFiles` keeps count of: something that holds a descriptor or a loaded index it can
    do without.
    """

    used: bool

    def release(self) -> None: ...


class Loaded(Protocol):
    """Something read from a file that can be read again."""

    @property
    def held_bytes(self) -> int: ...
    def unload(self) -> None: ...


class LoadedIndexes:
    """Bounds the memory of indexes of closed segments, in the order of their loading: the oldest
    is unloaded. The newest stays, however large. limit_bytes: of all together.
    """

    __slots__ = ("_sizes", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._sizes: dict[Loaded, int] = {}

    def add(self, index: Loaded) -> None:
        """It is loaded, and its segment closed."""
        self.forget(index)
        self._sizes[index] = size = index.held_bytes
        self.used_bytes += size
        while self.used_bytes > self.limit_bytes and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            self.forget(oldest)
            oldest.unload()

    def forget(self, index: Loaded) -> None:
        """It is not loaded any more, or belongs to an active segment."""
        self.used_bytes -= self._sizes.pop(index, 0)


class OpenFiles:
    """Bounds how many segments of one node keep their file open: a second-chance queue (CLOCK), no
    work on a hit. indexes: bounds the memory of the indexes that these segments have loaded.

    A holder sets `used` whenever it touches its file. When one more is opened than `limit` allows,
    the oldest holder that was not used since its last turn is told to release. Not locked: each
    node has its own, which one thread at a time uses.
    """

    __slots__ = ("_holders", "indexes", "limit")

    def __init__(self, limit: int, *, index_bytes: int = DEFAULT_INDEX_BYTES) -> None:
        self.limit = limit
        self.indexes = LoadedIndexes(index_bytes)
        self._holders: OrderedDict[Closeable, None] = OrderedDict()

    def opened(self, holder: Closeable) -> None:
        """The holder opened its file; another may have to give up its own."""
        holders = self._holders
        turns = len(holders)
        while len(holders) >= self.limit:
            oldest, _ = holders.popitem(last=False)
            if oldest.used and turns > 0:
                oldest.used = False
                holders[oldest] = None
                turns -= 1
            else:
                oldest.release()
        holders[holder] = None

    def forget(self, holder: Closeable) -> None:
        """The holder closed its file by itself."""
        self._holders.pop(holder, None)


def default_open_file_limit() -> int:
    """How many segments may keep their file open: half of what the process may open, which leaves
    descriptors to connections.
    """
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    except (ImportError, OSError, ValueError):  # pragma: no cover - not on POSIX
        soft = 1024
    return max(64, min(soft if soft > 0 else 1024, 1 << 16) // 2)
