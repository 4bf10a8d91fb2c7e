"""Saying what a command waits for, where it would otherwise be silent."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from kbroker.cli.console.output import note

T = TypeVar("T")

NOTE_AFTER_S: Final = 3.0


async def said_to_wait(
    coroutine: Coroutine[Any, Any, T], text: str, *, after_s: float | None = None
) -> T:
    """The result of coroutine. A note says text once if there is none after after_s seconds
    (NOTE_AFTER_S by default).
    """
    delay_s = NOTE_AFTER_S if after_s is None else after_s
    timer = asyncio.get_running_loop().call_later(delay_s, note, text)
    try:
        return await coroutine
    finally:
        timer.cancel()
