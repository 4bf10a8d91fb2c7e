"""Limits shared by connections: their number, and the number of waiting requests."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping

from kbroker.model import StartupError


def addresses_of(host: str) -> Iterable[str]:
    """Every address of a host name; for an address itself, its normalized form. Raises OSError."""
    return dict.fromkeys(str(found[4][0]) for found in socket.getaddrinfo(host, None))


def resolve_overrides(
    overrides: Mapping[str, int], resolve: Callable[[str], Iterable[str]] = addresses_of
) -> dict[str, int]:
    """`max.connections.per.ip.overrides` by address. As in Kafka a host name is resolved once, at
    start; here the limit holds for each of its addresses. Raises StartupError for a name that
    cannot be resolved.
    """
    limits: dict[str, int] = {}
    for host, limit in overrides.items():
        try:
            limits.update(dict.fromkeys(resolve(host), limit))
        except OSError as error:
            raise StartupError(
                f"max.connections.per.ip.overrides={host}:{limit}: {error.strerror or error}; "
                "write an address, or a host name that this machine can resolve"
            ) from None
    return limits


class ConnectionLimits:
    """`max.connections`, `max.connections.per.ip` and its overrides (address -> limit), for all
    listeners of one role; by_listener: `listener.name.<listener>.max.connections`.
    protected_listener: that of brokers among themselves, unless it is the only one. It accepts
    connections beyond `max.connections`, at the cost of the other listeners.
    """

    __slots__ = (
        "_by_host",
        "_by_listener",
        "_max_by_listener",
        "_max_connections",
        "_max_per_host",
        "_overrides",
        "count",
        "protected_listener",
    )

    def __init__(
        self,
        max_connections: int,
        max_per_host: int,
        overrides: Mapping[str, int] | None = None,
        *,
        by_listener: Mapping[str, int] | None = None,
        protected_listener: str | None = None,
    ) -> None:
        self._by_host: dict[str, int] = {}
        self._by_listener: dict[str, int] = {}
        self._overrides: Mapping[str, int] = dict(overrides or {})
        self.change(
            max_connections,
            max_per_host,
            by_listener or {},
            protected_listener=protected_listener,
        )
        self.count = 0

    @property
    def is_exceeded(self) -> bool:
        """Whether there are more connections than `max.connections`."""
        return self.count > self._max_connections

    def change(
        self,
        max_connections: int,
        max_per_host: int,
        by_listener: Mapping[str, int],
        *,
        protected_listener: str | None = None,
    ) -> None:
        """Set the limits for new connections. Open ones are kept, even if they exceed the
        limits.
        """
        self._max_connections = max_connections
        self._max_per_host = max_per_host
        self._max_by_listener = dict(by_listener)
        self.protected_listener = protected_listener

    def change_overrides(self, overrides: Mapping[str, int]) -> None:
        """Set the overrides for new connections, by address."""
        self._overrides = dict(overrides)

    def admit(self, host: str, listener: str = "") -> str | None:
        """Count a new connection. If it exceeds a limit it is not counted, and the limit is
        returned.
        """
        if self.count >= self._max_connections and listener != self.protected_listener:
            return f"max.connections={self._max_connections} reached"
        of_listener = self._by_listener.get(listener, 0)
        limit = self._max_by_listener.get(listener)
        if limit is not None and of_listener >= limit:
            return f"listener.name.{listener.lower()}.max.connections={limit} reached"
        of_host = self._by_host.get(host, 0)
        limit = self._overrides.get(host, self._max_per_host)
        if of_host >= limit:
            return f"max.connections.per.ip={limit} reached"
        self._by_host[host] = of_host + 1
        self._by_listener[listener] = of_listener + 1
        self.count += 1
        return None

    def release(self, host: str, listener: str = "") -> None:
        """An admitted connection was closed."""
        self.count -= 1
        self._by_listener[listener] -= 1
        left = self._by_host[host] - 1
        if left:
            self._by_host[host] = left
        else:
            del self._by_host[host]


class PipelineBudget:
    """`queued.max.requests`: requests in progress beyond the first of each connection, over all
    connections.

    The first request of a connection is never counted, so no client waits for requests of another;
    a connection that exceeds the budget continues reading when its own requests are answered.
    """

    __slots__ = ("_limit", "used")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0

    @property
    def exhausted(self) -> bool:
        """Whether no connection may start a further request while its own requests wait."""
        return self.used >= self._limit
