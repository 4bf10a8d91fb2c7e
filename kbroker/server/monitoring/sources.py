"""What the metrics of a node are read from. Nothing is kept for them here: each scrape asks the
parts of the node, on the loop (`collection`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from kbroker.broker.lifecycle import BrokerLifecycle
from kbroker.metadata.loader import MetadataLoader
from kbroker.metrics import Histogram
from kbroker.quorum.driver import QuorumDriver
from kbroker.server.dispatch import Dispatcher
from kbroker.server.network.connection_shared import ConnectionShared
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.request_errors import RequestErrors
from kbroker.server.services import Services


class LoopStalls(Protocol):
    """How late the event loop came to its timers, in seconds (`node/loop/stall_probe`)."""

    @property
    def stalls(self) -> Histogram:
        """All since the listeners opened."""
        ...

    @property
    def recent_maximum(self) -> float:
        """The longest of the last one or two minutes."""
        ...


class OpenListeners(NamedTuple):
    """The listeners of one type, opened together: their handler table and their connections."""

    dispatcher: Dispatcher[Any]  # Any: of either type of services
    shared: ConnectionShared


class BrokerSources(NamedTuple):
    """The parts of a broker that has started."""

    services: Services
    lifecycle: BrokerLifecycle


@dataclass(slots=True, kw_only=True)
class MetricsSources:
    """The parts of one node, added as they are built. is_active_controller: None on a node that is
    no controller. forwarded: errors of requests that were forwarded to this controller. max_series:
    of one scrape.
    """

    stalls: LoopStalls
    memory: MemoryPool
    max_series: int
    listeners: list[OpenListeners] = field(default_factory=list)
    forwarded: RequestErrors | None = None
    quorum: QuorumDriver | None = None
    loader: MetadataLoader | None = None
    is_active_controller: Callable[[], bool] | None = None
    broker: BrokerSources | None = None
