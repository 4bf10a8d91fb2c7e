"""Lets scrapes take turns in rendering: all of them together have a share of the loop's time.

A scrape is rendered in slices of a millisecond. Slices of different scrapes never overlap, and
after each one the loop has three times as long for its clients. Ten scrapers that never pause cost
no more than one, but wait longer for their responses.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

SLICE_SECONDS: Final = 0.001
"""A slice ends with the step during which this is over."""

SLICE_CHARS: Final = 32 * 1024
PAUSE: Final = 3.0
"""Seconds without a slice, for each second of slices."""


class RenderTurns:
    """See the module. clock: seconds, steady, and not the loop's own, which stands still during a
    turn. pause: waits for so many seconds.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._pause = pause
        self._turn = asyncio.Lock()

    async def take(self, pieces: Iterator[str]) -> str | None:
        """The next slice of a scrape, when its turn has come; None after the last one."""
        async with self._turn:
            begin = self._clock()
            taken, is_over = self._slice(pieces, begin + SLICE_SECONDS)
            await self._pause((self._clock() - begin) * PAUSE)
        return None if is_over and not taken else taken

    def _slice(self, pieces: Iterator[str], until: float) -> tuple[str, bool]:
        """The text, and whether there is no more."""
        taken: list[str] = []
        size = 0
        for piece in pieces:
            taken.append(piece)
            size += len(piece)
            if size >= SLICE_CHARS or self._clock() >= until:
                return "".join(taken), False
        return "".join(taken), True
