"""Conversion between Deferreds and futures: results, errors, and unexpected exceptions."""

from __future__ import annotations

import asyncio

import pytest

from kbroker.node.loop.futures import as_future
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError


def test_a_coroutine_waits_for_a_deferred() -> None:
    async def script() -> None:
        deferred: Deferred[int] = Deferred()
        waiting = asyncio.ensure_future(as_future(deferred))
        await asyncio.sleep(0)
        assert not waiting.done()
        deferred.resolve(7)
        assert await waiting == 7
        assert await as_future(Deferred.of(8)) == 8
        with pytest.raises(KafkaError) as caught:
            await as_future(Deferred[int].failed(KafkaError(ErrorCode.NOT_CONTROLLER)))
        assert caught.value.code is ErrorCode.NOT_CONTROLLER

    asyncio.run(script())


def test_a_deferred_may_end_after_who_waited_was_cancelled() -> None:
    async def script() -> None:
        for end in ("resolve", "fail"):
            deferred: Deferred[int] = Deferred()
            waiting = asyncio.ensure_future(as_future(deferred))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            if end == "resolve":
                deferred.resolve(7)
            else:
                deferred.fail(KafkaError(ErrorCode.NOT_CONTROLLER))
            assert waiting.cancelled()

    asyncio.run(script())
