"""Deferreds and futures, each made of the other: results, errors, and surprises."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kbroker.node.futures import as_deferred, as_future
from kbroker.ports import Deferred, Surprise
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


def test_a_future_as_a_deferred(caplog: pytest.LogCaptureFixture) -> None:
    async def script() -> None:
        futures = [asyncio.get_running_loop().create_future() for _ in range(4)]
        found = [as_deferred(future) for future in futures]
        errors: list[KafkaError] = []
        for deferred in found[1:]:
            deferred.on_done(lambda _: None, errors.append)
        futures[0].set_result(7)
        futures[1].set_exception(KafkaError(ErrorCode.NOT_CONTROLLER))
        futures[2].set_exception(ValueError("surprise"))
        futures[3].cancel()
        assert not found[0].done
        await asyncio.sleep(0)
        assert found[0].value == 7
        assert errors[0].code is ErrorCode.NOT_CONTROLLER
        assert isinstance(errors[1], Surprise)
        assert errors[2].code is ErrorCode.UNKNOWN_SERVER_ERROR

    with caplog.at_level(logging.ERROR):
        asyncio.run(script())
    assert [record.getMessage() for record in caplog.records] == ["unexpected exception in a task"]
