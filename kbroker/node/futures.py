"""Between `ports.Deferred` and asyncio's futures."""

from __future__ import annotations

import asyncio
import logging
from typing import TypeVar

from kbroker.ports import Deferred, Surprise
from kbroker.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

T = TypeVar("T")


async def as_future(deferred: Deferred[T]) -> T:
    """Wait for a Deferred from a coroutine. Raises the KafkaError it fails with."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def resolve(value: T) -> None:
        if not future.done():
            future.set_result(value)

    def fail(error: KafkaError) -> None:
        if not future.done():
            future.set_exception(error)

    deferred.on_done(resolve, fail)
    return await future


def as_deferred(future: asyncio.Future[T]) -> Deferred[T]:
    """The result of a task or future. An exception that is no KafkaError fails the Deferred with
    `Surprise`.
    """
    deferred: Deferred[T] = Deferred()

    def done(future: asyncio.Future[T]) -> None:
        if future.cancelled():
            deferred.fail(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "cancelled"))
            return
        error = future.exception()
        if error is None:
            deferred.resolve(future.result())
        elif isinstance(error, KafkaError):
            deferred.fail(error)
        else:
            logger.error("unexpected exception in a task", exc_info=error)
            deferred.fail(Surprise())

    future.add_done_callback(done)
    return deferred
