"""Acknowledgements of records that a producer was given."""

from __future__ import annotations

import asyncio

import pytest

from kbroker.cli.records.deliveries import Deliveries
from kbroker.client.producer import RecordMetadata
from kbroker.protocol.errors import ErrorCode, KafkaError


class Counted:
    """A progress bar."""

    def __init__(self) -> None:
        self.count = 0

    def advance(self, count: int = 1) -> None:
        self.count += count


def test_acknowledged_cancelled_and_failed() -> None:
    async def test() -> None:
        done, calls = Counted(), list[str]()
        deliveries = Deliveries(done)
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(4)]
        for index, future in enumerate(futures):
            deliveries.watch(future, lambda index=index: calls.append(str(index)))
        futures[0].set_result(RecordMetadata("t", 0, 0, 0))
        futures[1].cancel()
        await asyncio.sleep(0)
        deliveries.check()
        assert (done.count, calls, deliveries.has_failed) == (1, ["0"], False)
        for index, code in ((2, ErrorCode.MESSAGE_TOO_LARGE), (3, ErrorCode.INVALID_RECORD)):
            futures[index].set_exception(KafkaError(code, "no"))
            await asyncio.sleep(0)
        assert (done.count, deliveries.has_failed) == (1, True)
        with pytest.raises(KafkaError) as caught:
            deliveries.check()
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE

    asyncio.run(test())
