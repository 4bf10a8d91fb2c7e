"""What is said of a wait, and that a short one is not worth a word."""

from __future__ import annotations

import asyncio

import pytest

from kbroker.cli.console.waiting import said_to_wait


async def answered(after_s: float) -> int:
    await asyncio.sleep(after_s)
    return 7


def test_a_long_wait_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert asyncio.run(said_to_wait(answered(0.05), "waiting", after_s=0.001)) == 7
    assert capsys.readouterr().err == "waiting\n"


def test_a_short_wait_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    async def twice() -> None:
        assert await said_to_wait(answered(0), "waiting", after_s=0.02) == 7
        await asyncio.sleep(0.05)

    asyncio.run(twice())
    assert capsys.readouterr().err == ""


def test_an_error_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    async def failing() -> None:
        raise ValueError("no")

    async def twice() -> None:
        with pytest.raises(ValueError, match="no"):
            await said_to_wait(failing(), "waiting", after_s=0.02)
        await asyncio.sleep(0.05)

    asyncio.run(twice())
    assert capsys.readouterr().err == ""
