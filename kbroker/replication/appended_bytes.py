"""The bytes that a replica has appended above its high watermark, which become readable when it
moves.

A core; `partition` keeps one for each replica.
"""

from __future__ import annotations

from collections import deque
from typing import Final

MAX_APPENDS: Final = 1_000
"""The number of appends that are kept one by one; of later ones only the sum is kept."""


class AppendedBytes:
    """Ends of appends, with their bytes."""

    __slots__ = ("_appends",)

    def __init__(self) -> None:
        self._appends: deque[tuple[int, int]] = deque()

    def add(self, end_offset: int, size_bytes: int) -> None:
        """size_bytes were appended up to end_offset (exclusive)."""
        appends = self._appends
        if len(appends) >= MAX_APPENDS:
            size_bytes += appends.pop()[1]
        appends.append((end_offset, size_bytes))

    def take_below(self, offset: int) -> int:
        """Remove the appends that end at or before offset; returns their bytes."""
        appends, total = self._appends, 0
        while appends and appends[0][0] <= offset:
            total += appends.popleft()[1]
        return total

    def clear(self) -> None:
        """Remove all appends: the leadership changed or the log was truncated."""
        self._appends.clear()
