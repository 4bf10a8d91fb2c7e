"""How fast connections may be created: on the node, and by one address (KIP-612; ConnectionQuotas
of Kafka 4.3.1).

Above the rate of the node, the acceptor of a listener pauses in Kafka, so later connections wait in
the backlog. Here each connection is accepted and not read until that acceptor would have taken it.
A connection above the rate of its address is closed after the throttle time.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final, NamedTuple

from kbroker.metadata.client_quotas import CONNECTION_CREATION_RATE, IP, bounds_of
from kbroker.metadata.image import QuotaEntity
from kbroker.server.quotas.rates import QuotaWindow, SampledRate

UNLIMITED: Final = 2**31 - 1
"""`max.connection.creation.rate` by default."""

MAX_ADDRESSES: Final = 10_000
"""Addresses whose connections are counted; beyond it the one counted longest ago is forgotten."""


class ConnectionThrottle(NamedTuple):
    """What is done with a new connection. delay_ms: nothing is read for so long. is_refused: it is
    closed after delay_ms.
    """

    delay_ms: int = 0
    is_refused: bool = False


NOT_THROTTLED: Final = ConnectionThrottle()


class _Rate:
    """One limit. bound: connections per second."""

    __slots__ = ("_max_throttle_ms", "_rate", "bound")

    def __init__(self, window: QuotaWindow, bound: float) -> None:
        self.bound = bound
        self._rate = SampledRate(window)
        self._max_throttle_ms = window.size_ms

    def charge(self, now_ms: int) -> int:
        """Record a connection; the throttle time in ms."""
        self._rate.record(1.0, now_ms)
        return min(self._rate.throttle_ms(self.bound, now_ms), self._max_throttle_ms)

    def take_back(self, now_ms: int) -> None:
        """The connection is not accepted."""
        self._rate.record(-1.0, now_ms)


class ConnectionRates:
    """Of one node. broker_rate: `max.connection.creation.rate`. protected_listener: that of brokers
    among themselves, unless it is the only one; the rate of the node does not hold there.
    """

    __slots__ = (
        "_addresses",
        "_broker",
        "_by_address",
        "_default_rate",
        "_free_from_ms",
        "_protected_listener",
        "_window",
        "is_limited",
    )

    def __init__(
        self,
        window: QuotaWindow | None = None,
        *,
        broker_rate: int = UNLIMITED,
        protected_listener: str | None = None,
    ) -> None:
        self._window = window or QuotaWindow()
        self._broker = None if broker_rate == UNLIMITED else _Rate(self._window, broker_rate)
        self._protected_listener = protected_listener
        self._free_from_ms: dict[str, int] = {}
        self._default_rate: float | None = None
        self._by_address: dict[str, float] = {}
        self._addresses: dict[str, _Rate] = {}
        self.is_limited = self._broker is not None
        """Whether `admit` need be asked."""

    def follow(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """Hold addresses to these quotas from now on (`MetadataImage.client_quotas`)."""
        self._default_rate = None
        self._by_address = {}
        for entity, rate in bounds_of(quotas, CONNECTION_CREATION_RATE).items():
            name = dict(entity).get(IP)
            if name is None:
                self._default_rate = rate
            else:
                self._by_address[normal_address(name)] = rate
        for address, counted in list(self._addresses.items()):
            bound = self._bound_of(address)
            if bound is None:
                del self._addresses[address]
            else:
                counted.bound = bound
        self.is_limited = (
            self._broker is not None or self._default_rate is not None or bool(self._by_address)
        )

    def admit(self, listener: str, address: str, now_ms: int) -> ConnectionThrottle:
        """What is done with a new connection."""
        broker = None if listener == self._protected_listener else self._broker
        accepted_ms = now_ms
        if broker is not None:
            accepted_ms = max(now_ms, self._free_from_ms.get(listener, now_ms))
            accepted_ms += broker.charge(accepted_ms)
        throttle_ms = self._charge_address(address, accepted_ms)
        if throttle_ms:
            if broker is not None:
                broker.take_back(accepted_ms)
            return ConnectionThrottle(accepted_ms - now_ms + throttle_ms, is_refused=True)
        if broker is not None:
            self._free_from_ms[listener] = accepted_ms
        return ConnectionThrottle(accepted_ms - now_ms) if accepted_ms > now_ms else NOT_THROTTLED

    def _bound_of(self, address: str) -> float | None:
        return self._by_address.get(address, self._default_rate)

    def _charge_address(self, address: str, now_ms: int) -> int:
        """The throttle time of an address, whose connection is not counted then."""
        bound = self._bound_of(address)
        if bound is None:
            return 0
        rate = self._addresses.pop(address, None)
        if rate is None:
            rate = _Rate(self._window, bound)
            if len(self._addresses) >= MAX_ADDRESSES:
                del self._addresses[next(iter(self._addresses))]
        self._addresses[address] = rate  # the one used last is at the end
        throttle_ms = rate.charge(now_ms)
        if throttle_ms:
            rate.take_back(now_ms)
        return throttle_ms


def normal_address(name: str) -> str:
    """An address as sockets write it; another text as it is."""
    try:
        return str(ip_address(name))
    except ValueError:
        return name
