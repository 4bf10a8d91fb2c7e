"""Converts `ports.Deferred` to asyncio's futures."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from kbroker.ports import Deferred
from kbroker.protocol.errors import KafkaError

T = TypeVar("T")


async def as_future(deferred: Deferred[T]) -> T:
    """Wait for a Deferred from a coroutine. Raises its KafkaError if it fails."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def resolve(value: T) -> None:
        if not future.done():
            future.set_result(value)

    def fail(error: KafkaError) -> None:
        if not future.done():
            future.set_exception(error)

    deferred.on_done(resolve, fail)
    return await future
