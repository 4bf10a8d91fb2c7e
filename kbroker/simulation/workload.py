"""The common state of the clients of a simulated cluster: its address, their history, and when they
stop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, TypeVar

from kbroker.client.cluster import TRANSACTION_COORDINATOR, Client
from kbroker.model import StartupError
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.simulation.event_loop import START_NS
from kbroker.testing.history.operations import History

T = TypeVar("T")

EVENTS: Final = "events"
LEDGER: Final = "ledger"
PARTITIONS: Final = 2
"""The partition count of each topic."""
REQUEST_TIMEOUT_S: Final = 3.0
DELIVERY_TIMEOUT_S: Final = 60.0
RETRY_S: Final = 0.1

BEHIND: Final = frozenset(
    {
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
"""Errors that are not retriable, but are returned by brokers that do not know yet that they are not
leader any more.
"""


class Workload:
    """counts: successful operations, by name. is_stopping: writers finish their operations and
    start no new ones.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        random: Random,
        note: Callable[[str], None],
        violated: Callable[[str], None],
    ) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.random = random
        self.history = History()
        self.counts: Counter[str] = Counter()
        self.is_stopping = False
        self.note = note
        self.violated = violated

    def now_ms(self) -> int:
        """Simulated time, ms."""
        return int(asyncio.get_running_loop().time() * 1000)

    def timestamp_ms(self) -> int:
        """The wall clock of the clients."""
        return START_NS // 1_000_000 + self.now_ms()

    def client(self, client_id: str) -> Client:
        """A client of the cluster."""
        return Client(self.bootstrap_servers, client_id=client_id, timeout_s=REQUEST_TIMEOUT_S)

    async def pause(self, mean_s: float) -> None:
        """Wait for a random time."""
        await asyncio.sleep(self.random.expovariate(1 / mean_s))


async def persist(
    client: Client,
    attempt: Callable[[], Awaitable[T]],
    *,
    timeout_s: float = DELIVERY_TIMEOUT_S,
    transactional_id: str | None = None,
    group: str | None = None,
) -> T:
    """Repeat attempt until it succeeds. transactional_id, group: their coordinators are looked up
    again after an error. Raises the last error after timeout_s, or one that is not retriable.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while True:
        try:
            return await attempt()
        except KafkaError as error:
            is_final = not error.code.retriable and error.code not in BEHIND
            if is_final or loop.time() > deadline_s:
                raise
        except StartupError as error:
            if loop.time() > deadline_s:
                raise KafkaError(ErrorCode.NETWORK_EXCEPTION, str(error)) from error
        client.topics.clear()
        if transactional_id is not None:
            client.forget_coordinator(transactional_id, TRANSACTION_COORDINATOR)
        if group is not None:
            client.forget_coordinator(group)
        await asyncio.sleep(RETRY_S)
