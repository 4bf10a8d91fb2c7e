"""How fast connections may be created: on the node, and by one address (KIP-612; ConnectionQuotas
of Kafka 4.3.1).

Above the rate of the node, the acceptor of a listener pauses in Kafka, so later connections wait in
the backlog. Here each connection is accepted and not read until that acceptor would have taken it;
of one listener so many wait as the backlog holds, and further ones are closed at once, uncounted.
One that leaves while it waits keeps its turn, as in the backlog.
A connection above the rate of its address is closed after the throttle time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final, NamedTuple

from kbroker.metadata.client_quotas import CONNECTION_CREATION_RATE, IP
from kbroker.metadata.image import QuotaEntity
from kbroker.replication.rates import QuotaWindow, SampledRate

UNLIMITED: Final = 2**31 - 1
"""`max.connection.creation.rate` by default."""

MAX_ADDRESSES: Final = 10_000
"""Addresses whose connections are counted; beyond it the one counted longest ago is forgotten."""


class ConnectionThrottle(NamedTuple):
    """What is done with a new connection. delay_ms: nothing is read for so long. is_refused: it is
    closed after delay_ms. refusal: why it is closed at once.
    """

    delay_ms: int = 0
    is_refused: bool = False
    refusal: str | None = None


NOT_THROTTLED: Final = ConnectionThrottle()
BACKLOG_FULL: Final = ConnectionThrottle(
    refusal="max.connection.creation.rate exceeded, and socket.listen.backlog.size connections wait"
)


class _Rate:
    """What one limit counts."""

    __slots__ = ("_max_throttle_ms", "_rate")

    def __init__(self, window: QuotaWindow) -> None:
        self._rate = SampledRate(window)
        self._max_throttle_ms = window.size_ms

    def charge(self, bound: float, now_ms: int) -> int:
        """Record a connection; the throttle time in ms. bound: connections per second."""
        self._rate.record(1.0, now_ms)
        return min(self._rate.throttle_ms(bound, now_ms), self._max_throttle_ms)

    def take_back(self, now_ms: int) -> None:
        """The connection is not accepted."""
        self._rate.record(-1.0, now_ms)


class ConnectionRates:
    """Of the listeners of one role. broker_rate: `max.connection.creation.rate`.
    protected_listener: that of brokers among themselves, unless it is the only one; broker_rate
    does not hold there. by_listener: the rates of single listeners, which hold beside it. backlog:
    connections of one listener that may wait, `socket.listen.backlog.size`.
    """

    __slots__ = (
        "_addresses",
        "_backlog",
        "_broker",
        "_broker_rate",
        "_by_address",
        "_by_listener",
        "_default_rate",
        "_listeners",
        "_protected_listener",
        "_waiting",
        "_window",
    )

    def __init__(
        self,
        window: QuotaWindow | None = None,
        *,
        broker_rate: int = UNLIMITED,
        protected_listener: str | None = None,
        by_listener: Mapping[str, int] | None = None,
        backlog: int = 50,
    ) -> None:
        self._window = window or QuotaWindow()
        self._broker_rate = UNLIMITED
        self._broker: _Rate | None = None
        self._by_listener: Mapping[str, int] = {}
        self._listeners: dict[str, _Rate] = {}
        self._backlog = backlog
        self._waiting: dict[str, deque[int]] = {}
        """By listener: when each of its waiting connections counts as accepted, in order."""
        self._default_rate: float | None = None
        self._by_address: dict[str, float] = {}
        self._addresses: dict[str, _Rate] = {}
        self.change_rates(broker_rate, by_listener or {}, protected_listener=protected_listener)

    @property
    def is_limited(self) -> bool:
        """Whether `admit` need be asked."""
        return (
            self._broker is not None
            or bool(self._listeners)
            or self._default_rate is not None
            or bool(self._by_address)
        )

    def change_rates(
        self,
        broker_rate: int,
        by_listener: Mapping[str, int],
        *,
        protected_listener: str | None = None,
    ) -> None:
        """Other rates of the node and its listeners; what was counted so far counts on."""
        if (broker_rate, by_listener) != (self._broker_rate, self._by_listener):
            self._waiting.clear()  # new connections do not queue behind those of the old rates
        self._broker_rate = broker_rate
        self._protected_listener = protected_listener
        if broker_rate == UNLIMITED:
            self._broker = None
        elif self._broker is None:
            self._broker = _Rate(self._window)
        self._by_listener = dict(by_listener)
        self._listeners = {
            name: self._listeners.get(name) or _Rate(self._window) for name in by_listener
        }

    def change(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """The quotas of these entities have changed (`MetadataImage.client_quotas`); an empty
        mapping: the entity has none any more.
        """
        for entity, values in quotas.items():
            parts, rate = dict(entity), values.get(CONNECTION_CREATION_RATE)
            if IP not in parts:
                continue
            name = parts[IP]
            if name is None:
                self._default_rate = rate
            elif rate is None:
                self._by_address.pop(normal_address(name), None)
            else:
                self._by_address[normal_address(name)] = rate

    def admit(self, listener: str, address: str, now_ms: int) -> ConnectionThrottle:
        """What is done with a new connection."""
        broker = None if listener == self._protected_listener else self._broker
        own = self._listeners.get(listener)
        limits = [(broker, self._broker_rate), (own, self._by_listener.get(listener, UNLIMITED))]
        limited = [(rate, bound) for rate, bound in limits if rate is not None]
        accepted_ms = now_ms
        waiting = self._waiting_on(listener, now_ms) if limited else None
        if waiting:
            if len(waiting) >= self._backlog:
                return BACKLOG_FULL
            accepted_ms = waiting[-1]
        if limited:
            accepted_ms += max(rate.charge(bound, accepted_ms) for rate, bound in limited)
        throttle_ms = self._charge_address(address, accepted_ms)
        if throttle_ms:
            for rate, _ in limited:
                rate.take_back(accepted_ms)
            return ConnectionThrottle(accepted_ms - now_ms + throttle_ms, is_refused=True)
        if waiting is None or accepted_ms <= now_ms:
            return NOT_THROTTLED
        waiting.append(accepted_ms)
        return ConnectionThrottle(accepted_ms - now_ms)

    def _waiting_on(self, listener: str, now_ms: int) -> deque[int]:
        """When the connections of a listener that still wait count as accepted, in order."""
        waiting = self._waiting.setdefault(listener, deque())
        while waiting and waiting[0] <= now_ms:
            waiting.popleft()
        return waiting

    def _charge_address(self, address: str, now_ms: int) -> int:
        """The throttle time of an address, whose connection is not counted then."""
        bound = self._by_address.get(address, self._default_rate)
        rate = self._addresses.pop(address, None)
        if bound is None:
            return 0
        if rate is None:
            rate = _Rate(self._window)
            if len(self._addresses) >= MAX_ADDRESSES:
                del self._addresses[next(iter(self._addresses))]
        self._addresses[address] = rate  # the one used last is at the end
        throttle_ms = rate.charge(bound, now_ms)
        if throttle_ms:
            rate.take_back(now_ms)
        return throttle_ms


def normal_address(name: str) -> str:
    """An address as sockets write it; another text as it is."""
    try:
        return str(ip_address(name))
    except ValueError:
        return name
