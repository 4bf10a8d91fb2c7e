"""The parts of a broker that all its connections share."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final, Protocol

from kbroker.log.storage.files import LogDirectoryError
from kbroker.log_lines import LogThrottle
from kbroker.ports import Timers
from kbroker.protocol.codecs.codec import Part
from kbroker.server.network.descriptors import DescriptorBudget
from kbroker.server.network.hang_ups import HangUpWatch
from kbroker.server.network.limits import ConnectionLimits, PipelineBudget
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.network.page_cache import PageCache
from kbroker.server.quotas.connection_rates import ConnectionRates
from kbroker.server.requests import PendingResponse
from kbroker.server.session import ApiVersionRange, Session

logger = logging.getLogger(__name__)

MAX_QUEUED_BYTES: Final = 64 * 1024
"""How many bytes of encoded responses of one connection may wait before no further request is
started.
"""


class RequestDispatcher(Protocol):
    """The part of `dispatch.Dispatcher` that a connection needs. small_responses: API keys."""

    small_responses: frozenset[int]

    def api_versions(self) -> Sequence[ApiVersionRange]: ...
    def dispatch(
        self, session: Session, frame: memoryview, arrived_ms: int
    ) -> PendingResponse | None: ...
    def dispatch_in_slices(
        self, session: Session, frame: memoryview, arrived_ms: int
    ) -> PendingResponse | None: ...
    def render(self, pending: PendingResponse) -> list[Part]: ...


class OpenConnection(Protocol):
    """The part of a connection that the broker needs; see `connection.Connection`."""

    @property
    def outstanding(self) -> int: ...
    @property
    def listener_name(self) -> str: ...
    @property
    def idle_since(self) -> float | None: ...
    def sweep(self, now: float, max_idle_seconds: float) -> None: ...
    def give_back(self) -> None: ...
    def stop(self) -> None: ...
    def abort(self) -> None: ...


class RestingProbe(Protocol):
    """Measures the delay of the loop rarely while the broker is idle (`node/loop/stall_probe`)."""

    @property
    def resting(self) -> bool:
        """Whether the next measurement is far away."""
        ...

    def wake(self) -> None:
        """A request has arrived: measure soon."""
        ...


@dataclass(slots=True)
class ConnectionShared:
    """The parts of a broker that all its connections share.

    on_fatal: called for a broken invariant, which stops the broker. on_storage_error: called when
    records cannot be read while they are sent. max_list_bytes: the largest request other than
    Produce, not below LARGE_REQUEST_BYTES. max_queued_bytes: see MAX_QUEUED_BYTES. on_empty: called
    when the last connection is closed. on_lost: called with the id of a closed connection. held:
    connections above the rate of their address, which are closed after the throttle time.
    """

    loop: asyncio.AbstractEventLoop
    dispatcher: RequestDispatcher
    timers: Timers
    limits: ConnectionLimits
    budget: PipelineBudget
    max_frame_bytes: int
    executor: Executor | None
    on_fatal: Callable[[BaseException], None]
    max_list_bytes: int = 1 << 31
    max_queued_bytes: int = MAX_QUEUED_BYTES
    node_id: int = -1
    memory: MemoryPool = field(default_factory=MemoryPool)
    descriptors: DescriptorBudget = field(default_factory=DescriptorBudget)
    page_cache: PageCache = field(default_factory=PageCache.of_system)
    rates: ConnectionRates = field(default_factory=ConnectionRates)
    stalls: RestingProbe | None = None
    connections: dict[OpenConnection, None] = field(default_factory=dict)
    """In the order of opening, so that a simulated node is deterministic."""
    held: set[OpenConnection] = field(default_factory=set)
    refused: LogThrottle = field(default_factory=lambda: LogThrottle(logger))
    next_number: int = 0
    on_empty: Callable[[], None] = lambda: None
    on_storage_error: Callable[[LogDirectoryError], object] = lambda error: None
    on_lost: Callable[[str], None] = lambda connection_id: None
    hang_ups: HangUpWatch = field(init=False)

    def __post_init__(self) -> None:
        self.hang_ups = HangUpWatch(self.loop)

    def admit(self, host: str, listener_name: str) -> str | None:
        """Count a new connection and give it a descriptor. Returns the reason if it is refused."""
        refusal = self.limits.admit(host, listener_name)
        if refusal is None and not self.descriptors.take():
            self.limits.release(host, listener_name)
            refusal = "no file descriptor is left for connections; raise ulimit -n"
        if refusal is None and listener_name == self.limits.protected_listener:
            self._make_room(listener_name)
        return refusal

    def _make_room(self, protected: str) -> None:
        """A connection of another broker has come: if there are more connections than
        `max.connections`, close the one of the other listeners that is idle longest, as Kafka does.
        """
        if not self.limits.is_exceeded:
            return
        longest: OpenConnection | None = None
        idle_since = math.inf
        for connection in self.connections:
            since = connection.idle_since
            if since is not None and since < idle_since and connection.listener_name != protected:
                longest, idle_since = connection, since
        if longest is not None:
            self.refused.log(
                self.loop.time() * 1000,
                "node %d: closed a connection on %s: max.connections exceeded by one on %s",
                self.node_id, longest.listener_name, protected,
            )  # fmt: skip
            longest.abort()

    def close(self) -> None:
        """Called after the last connection was closed. Can be called more than once."""
        for refused in tuple(self.held):
            refused.abort()
        self.hang_ups.close()
        self.descriptors.close()

    def give_back_memory(self) -> None:
        """Called when memory pressure begins: release the buffers that are kept for speed."""
        for connection in self.connections:
            connection.give_back()
