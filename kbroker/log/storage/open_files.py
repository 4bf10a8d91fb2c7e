"""Limits on the resources that segments keep: open files (`OpenFiles`) and loaded indexes
(`LoadedIndexes`).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Protocol

DEFAULT_INDEX_BYTES: Final = 8 << 20


class Closeable(Protocol):
    """A member of `OpenFiles`: holds a descriptor or a loaded index that it can release."""

    used: bool

    def release(self) -> None: ...


class Loaded(Protocol):
    """Content of a file that can be unloaded and loaded again."""

    @property
    def held_bytes(self) -> int: ...
    def unload(self) -> None: ...


class LoadedIndexes:
    """Limits the memory of indexes of closed segments. When it is exceeded, indexes are unloaded in
    the order of their loading; the newest stays, even if it alone is too large. limit_bytes: for
    all together.
    """

    __slots__ = ("_sizes", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._sizes: dict[Loaded, int] = {}

    def add(self, index: Loaded) -> None:
        """An index of a closed segment was loaded."""
        self.forget(index)
        self._sizes[index] = size = index.held_bytes
        self.used_bytes += size
        while self.used_bytes > self.limit_bytes and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            self.forget(oldest)
            oldest.unload()

    def forget(self, index: Loaded) -> None:
        """The index was unloaded, or its segment became active."""
        self.used_bytes -= self._sizes.pop(index, 0)


class OpenFiles:
    """Limits how many segments of one node keep their file open: a second-chance queue (CLOCK),
    without work on a hit. indexes: limits the memory of the loaded indexes of these segments.

    A holder sets `used` whenever it uses its file. When one more file is opened than `limit`
    allows, the oldest holder that was not used since its last turn is told to release its file. Not
    locked: each node has its own, which one thread at a time uses.
    """

    __slots__ = ("_holders", "indexes", "limit")

    def __init__(self, limit: int, *, index_bytes: int = DEFAULT_INDEX_BYTES) -> None:
        self.limit = limit
        self.indexes = LoadedIndexes(index_bytes)
        self._holders: OrderedDict[Closeable, None] = OrderedDict()

    def opened(self, holder: Closeable) -> None:
        """The holder opened its file; another holder may be told to release its own."""
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
        """The holder closed its file itself."""
        self._holders.pop(holder, None)


def default_open_file_limit() -> int:
    """How many segments may keep their file open: half of the process's limit on open files; the
    rest is for connections.
    """
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    except (ImportError, OSError, ValueError):  # pragma: no cover - not on POSIX
        soft = 1024
    return max(64, min(soft if soft > 0 else 1024, 1 << 16) // 2)
