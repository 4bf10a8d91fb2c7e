"""Scrapes take turns: one slice at a time, and a share of the loop's time for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from kbroker.server.monitoring.render_turns import (
    PAUSE,
    SLICE_CHARS,
    SLICE_SECONDS,
    RenderTurns,
)

STEP_SECONDS = SLICE_SECONDS / 4


class Loop:
    """Time that passes only in steps and pauses."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rendered = 0.0
        self.longest = 0.0
        self.since = 0.0

    def clock(self) -> float:
        return self.now

    async def pause(self, seconds: float) -> None:
        self.longest = max(self.longest, self.now - self.since)
        self.now += seconds
        self.since = self.now
        await asyncio.sleep(0)

    def pieces(self, name: str, count: int, text: str = "") -> Iterator[str]:
        for number in range(count):
            self.now += STEP_SECONDS
            self.rendered += STEP_SECONDS
            yield text or f"{name}{number} "


async def whole(turns: RenderTurns, pieces: Iterator[str]) -> list[str]:
    slices = []
    while (text := await turns.take(pieces)) is not None:
        slices.append(text)
    return slices


def test_one_scrape_comes_in_slices() -> None:
    loop = Loop()
    turns = RenderTurns(clock=loop.clock, pause=loop.pause)
    slices = asyncio.run(whole(turns, loop.pieces("a", 9)))
    assert slices == ["a0 a1 a2 a3 ", "a4 a5 a6 a7 ", "a8 "]
    assert loop.longest <= SLICE_SECONDS + STEP_SECONDS


def test_many_scrapes_have_one_share_of_the_time() -> None:
    loop = Loop()
    turns = RenderTurns(clock=loop.clock, pause=loop.pause)

    async def script() -> list[list[str]]:
        names = "abcdefghij"
        return await asyncio.gather(*(whole(turns, loop.pieces(name, 40)) for name in names))

    answers = asyncio.run(script())
    assert ["".join(each).split() for each in answers] == [
        [f"{name}{number}" for number in range(40)] for name in "abcdefghij"
    ]
    assert loop.longest <= SLICE_SECONDS + STEP_SECONDS, "one slice, whoever asks"
    assert loop.rendered <= loop.now / (1 + PAUSE) * 1.01


def test_a_slice_is_not_large() -> None:
    turns = RenderTurns(clock=lambda: 0.0, pause=Loop().pause)
    slices = asyncio.run(whole(turns, iter(["x" * 1000] * 100)))
    assert max(map(len, slices)) <= SLICE_CHARS + 1000
    assert sum(map(len, slices)) == 100_000


def test_who_gives_up_holds_no_turn() -> None:
    async def script() -> None:
        turns = RenderTurns()
        stuck = asyncio.Event()

        async def never(seconds: float) -> None:
            await stuck.wait()

        slow = RenderTurns(pause=never)
        task = asyncio.ensure_future(slow.take(iter(["a"])))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        slow._pause = asyncio.sleep
        assert await slow.take(iter(["b"])) == "b"
        assert await turns.take(iter([])) is None

    asyncio.run(script())
