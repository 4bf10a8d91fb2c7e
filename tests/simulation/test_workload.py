"""Which operations are retried, and for how long."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from kbroker.client.cluster import Client
from kbroker.model import StartupError
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.simulation.event_loop import SimulatedLoop
from kbroker.simulation.network import SimulatedNetwork
from kbroker.simulation.workload import persist


class Attempts:
    """Raises these errors, one after the other, then returns the count of attempts."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.count = 0

    async def __call__(self) -> int:
        self.count += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.count


def error(code: ErrorCode) -> KafkaError:
    return KafkaError(code, "why")


def run(attempts: Attempts, *, timeout_s: float = 60.0) -> int:
    async def script() -> int:
        client = Client("127.0.0.1:9092")
        return await persist(client, attempts, timeout_s=timeout_s, transactional_id="t", group="g")

    loop = SimulatedLoop(SimulatedNetwork(Random(1)))
    try:
        return loop.run_until_complete(script())
    finally:
        loop.close()


def test_what_passes_is_tried_again() -> None:
    attempts = Attempts(
        error(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        error(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        error(ErrorCode.BROKER_NOT_AVAILABLE),
        StartupError("no broker answers"),
    )
    assert run(attempts) == 5


def test_what_does_not_pass_is_raised() -> None:
    attempts = Attempts(error(ErrorCode.PRODUCER_FENCED))
    with pytest.raises(KafkaError, match="PRODUCER_FENCED"):
        run(attempts)
    assert attempts.count == 1


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        pytest.param(error(ErrorCode.REQUEST_TIMED_OUT), "REQUEST_TIMED_OUT", id="late"),
        pytest.param(StartupError("no broker"), "NETWORK_EXCEPTION", id="nobody"),
    ],
)
def test_the_last_error_is_raised_in_the_end(failure: Exception, code: str) -> None:
    attempts = Attempts(*[failure] * 1000)
    with pytest.raises(KafkaError, match=code):
        run(attempts, timeout_s=5)
    assert 40 < attempts.count < 60


def test_cancelling_ends_it() -> None:
    async def script() -> None:
        attempts = Attempts(*[error(ErrorCode.REQUEST_TIMED_OUT)] * 1000)
        task = asyncio.ensure_future(persist(Client("127.0.0.1:9092"), attempts))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    loop = SimulatedLoop(SimulatedNetwork(Random(1)))
    loop.run_until_complete(script())
    loop.close()
