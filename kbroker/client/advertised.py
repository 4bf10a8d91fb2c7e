"""The addresses that a cluster advertises. One that does not answer is of a broker that is down,
whose partitions and coordinators will move, or is wrong for this machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol

from kbroker.client.cluster_view import BrokerAddress
from kbroker.protocol.errors import ErrorCode, KafkaError

ADVERTISED_GRACE_S: Final = 3.0
"""How long connecting to an advertised address is retried while none was reached: the broker may be
restarting.
"""

ADVERTISED_CONNECT_TIMEOUT_S: Final = 5.0
"""Timeout of each connection attempt to an advertised address, and of trying all others."""


class Connect(Protocol):
    """Connects to an address. Raises KafkaError."""

    def __call__(self, host: str, port: int, /, *, timeout_s: float) -> Awaitable[object]:
        """timeout_s: of the attempt."""
        ...


class AdvertisedAddresses:
    """Those of one client."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._reached: set[tuple[str, int]] = set()
        self._unreached_since_s: float | None = None

    def add_reached(self, host: str, port: int) -> None:
        """A broker has answered at an address, perhaps one of the bootstrap addresses."""
        self._reached.add((host, port))

    def is_reached(self, broker: BrokerAddress) -> bool:
        """Whether its address has answered."""
        return (broker.host, broker.port) in self._reached

    async def unreachable(
        self,
        broker: BrokerAddress,
        error: KafkaError,
        began_s: float,
        known: Callable[[], Awaitable[Iterable[BrokerAddress]]],
    ) -> KafkaError:
        """The error to raise for a broker whose address was never reached: NETWORK_EXCEPTION, or
        BROKER_NOT_AVAILABLE, which is not retriable, where no advertised address was reached for
        ADVERTISED_GRACE_S, nor can be now. error: of the attempt, began_s: when it began. known:
        gives the brokers of the cluster.
        """
        why = error.message.removeprefix(f"{broker.host}:{broker.port}: ")
        message = (
            f"broker {broker.node_id} advertises {broker.host}:{broker.port}, which this machine "
            f"cannot reach: {why}; check advertised.listeners of the broker"
        )
        if self._unreached_since_s is None:
            self._unreached_since_s = began_s
        waited_s = asyncio.get_running_loop().time() - self._unreached_since_s
        if waited_s < ADVERTISED_GRACE_S or await self._is_any_reached(broker, await known()):
            return KafkaError(ErrorCode.NETWORK_EXCEPTION, message)
        return KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, message)

    async def _is_any_reached(self, broker: BrokerAddress, known: Iterable[BrokerAddress]) -> bool:
        """Whether an address other than the broker's was reached, or answers now."""
        others = dict.fromkeys((each.host, each.port) for each in known)
        if self._reached & others.keys():
            return True
        others.pop((broker.host, broker.port), None)
        for address in others:
            timeout_s = ADVERTISED_CONNECT_TIMEOUT_S / len(others)
            try:
                await self._connect(*address, timeout_s=timeout_s)
            except KafkaError as error:
                if error.code is ErrorCode.NETWORK_EXCEPTION:
                    continue
            return True
        return False
