"""The listeners of a node and their connections. All listeners are bound first, since their real
ports are registered; those of controllers and those of brokers are opened separately, each with its
own dispatcher.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from kbroker.log.storage.files import LogDirectoryError
from kbroker.metadata.image import Endpoint
from kbroker.model import InvariantError, StartupError
from kbroker.node.connection_quotas import ConnectionQuotas
from kbroker.node.loop.stall_probe import StallProbe
from kbroker.node.resources import NodeResources
from kbroker.ports import Timers
from kbroker.server.network.connection_shared import (
    ConnectionShared,
    OpenConnection,
    RequestDispatcher,
)
from kbroker.server.network.descriptors import descriptor_budget
from kbroker.server.network.limits import PipelineBudget, resolve_overrides
from kbroker.server.network.listener import BoundListener, ListenerServer, advertised_host
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.sections.listeners import SECURITY_PROTOCOLS, Listener
from kbroker.settings.views.network import NetworkConfig

logger = logging.getLogger(__name__)

MIN_BACKLOG: Final = 1024
"""The default backlog. The loop accepts connections between requests, so the backlog must hold a
burst of clients: a client that finds it full retries a second later.
"""

SWEEP_SECONDS: Final = 5.0
PRESSED_SWEEP_SECONDS: Final = 1.0
"""The interval of sweeps while connections wait for memory."""


def _ignore(value: object) -> None:
    del value


class NodeServers:
    """The listeners of one node. The limits on requests, descriptors and memory apply to all of
    them together; those on connections (`quotas`) to the broker's and to the controllers' apart.
    budget: for requests in progress. on_fatal: called for a broken invariant. Loop thread only.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        resources: NodeResources,
        timers: Timers,
        memory: MemoryPool,
        stalls: StallProbe,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """Bind. Raises StartupError if that is impossible."""
        self._config = config
        self._network = network = NetworkConfig.from_broker(config)
        self._resources = resources
        self._timers = timers
        self._memory = memory
        self._stalls = stalls
        self._on_fatal = on_fatal
        self._shared: list[ConnectionShared] = []
        overrides = resolve_overrides(network.max_connections_per_ip_overrides)
        self.broker_quotas = ConnectionQuotas(config, overrides)
        self.controller_quotas = ConnectionQuotas(config, overrides)
        self.quotas = (self.broker_quotas, self.controller_quotas)
        self.budget = PipelineBudget(network.queued_max_requests)
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._listeners: list[ListenerServer] = []
        self._controllers = frozenset(listener.name for listener in config.controller_listeners)
        self._wanted = config.listeners
        self._clients: ConnectionShared | None = None
        """The shared state of the broker's listeners, once these are open."""
        self._changing: asyncio.Future[None] | None = None
        self._unclaimed: list[ListenerServer] = []
        """Listeners that a worker has bound and the loop has not taken over."""
        self._is_stopped = False
        try:
            for listener in (*config.listeners, *config.controller_listeners):
                self._listeners.append(self._bind(listener))
        except BaseException:
            self.close()
            raise
        self._descriptors = descriptor_budget(
            network.descriptor_reserve, log_files=resources.open_files.limit
        )

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply the settings that may change while the node runs: connection limits, and the
        listeners of a broker.
        """
        before, self._network = self._network, NetworkConfig.from_broker(config)
        for quotas in self.quotas:
            quotas.reconfigure(config)
        overrides = self._network.max_connections_per_ip_overrides
        if overrides != before.max_connections_per_ip_overrides:
            self._resources.workers.submit(
                self._resolve_overrides, asyncio.get_running_loop(), overrides
            )
        self._wanted = config.listeners
        self._change_in_background()

    def _resolve_overrides(
        self, loop: asyncio.AbstractEventLoop, overrides: Mapping[str, int]
    ) -> None:
        """Runs in a thread, because host names are looked up."""
        try:
            resolved = resolve_overrides(overrides)
        except StartupError as error:
            logger.error(
                "node %d: %s; the connection limits are unchanged", self._config.node_id, error
            )
            return
        loop.call_soon_threadsafe(self._use_overrides, overrides, resolved)

    def _use_overrides(self, wanted: Mapping[str, int], resolved: Mapping[str, int]) -> None:
        if wanted == self._network.max_connections_per_ip_overrides:  # not changed meanwhile
            for quotas in self.quotas:
                quotas.limits.change_overrides(resolved)

    def _bind(self, listener: Listener) -> ListenerServer:
        network = self._network
        backlog = network.socket_listen_backlog_size
        if not self._config.is_explicit("socket.listen.backlog.size"):
            backlog = max(backlog, MIN_BACKLOG)
        return ListenerServer(
            listener.name,
            listener.host,
            listener.port,
            listener.security_protocol,
            backlog=backlog,
            send_buffer_bytes=network.socket_send_buffer_bytes,
            receive_buffer_bytes=network.socket_receive_buffer_bytes,
            bind=self._resources.bind,
        )

    @property
    def bound(self) -> list[BoundListener]:
        """The listeners' addresses, with real ports; the brokers' first."""
        return [listener.bound for listener in self._listeners]

    @property
    def connections(self) -> Iterator[OpenConnection]:
        """The open connections."""
        for shared in self._shared:
            yield from list(shared.connections)

    def endpoints(self, advertised: Sequence[Listener]) -> dict[str, Endpoint]:
        """The advertised listeners with real ports and a host for clients and nodes."""
        bound = {each.name: each for each in self.bound}
        endpoints = {}
        for listener in advertised:
            here = bound.get(listener.name)
            if here is None:
                continue
            endpoints[listener.name] = Endpoint(
                listener.name,
                advertised_host(listener.host),
                listener.port or here.port,
                SECURITY_PROTOCOLS.index(listener.security_protocol),
            )
        return endpoints

    def shared(
        self,
        dispatcher: RequestDispatcher,
        quotas: ConnectionQuotas,
        *,
        on_storage_error: Callable[[LogDirectoryError], object] = _ignore,
        on_lost: Callable[[str], None] = _ignore,
    ) -> ConnectionShared:
        """The shared state of the connections of one type of listener; see `ConnectionShared`.
        quotas: `broker_quotas` or `controller_quotas`.
        """
        network = self._network
        shared = ConnectionShared(
            loop=asyncio.get_running_loop(),
            dispatcher=dispatcher,
            timers=self._timers,
            limits=quotas.limits,
            rates=quotas.rates,
            budget=self.budget,
            max_frame_bytes=network.max_frame_bytes,
            max_list_bytes=network.max_list_bytes,
            max_queued_bytes=network.connection_queued_bytes,
            descriptors=self._descriptors,
            memory=self._memory,
            page_cache=self._resources.page_cache,
            executor=self._resources.workers,
            on_fatal=self._on_fatal,
            node_id=self._config.node_id,
            on_storage_error=on_storage_error,
            on_lost=on_lost,
        )
        self._shared.append(shared)
        return shared

    async def bind_wanted(self) -> None:
        """Bind the listeners that the metadata has for this broker, and release those of the file
        that are not in the metadata, before any of them is registered.
        """
        await self._change_listeners()

    async def open_clients(self, shared: ConnectionShared) -> None:
        """Accept connections on the listeners of a broker from now on."""
        await self._change_listeners()
        await self.open(self._wanted, shared)
        self._clients = shared
        self._change_in_background()

    def _change_in_background(self) -> None:
        """Runs one change at a time; at its end it applies newer changes."""
        is_changing = self._changing is not None and not self._changing.done()
        if self._clients is not None and not is_changing and self._is_to_change():
            self._changing = asyncio.ensure_future(self._change_listeners())

    def _is_to_change(self) -> bool:
        return self._names() != {listener.name for listener in self._wanted}

    def _names(self) -> set[str]:
        """The names of a broker's bound listeners."""
        return {listener.bound.name for listener in self._listeners} - self._controllers

    async def _change_listeners(self) -> None:
        """Close listeners that are not wanted, bind missing ones, and open them once clients are
        served. A listener that cannot be bound is logged: the broker continues without it.
        """
        wanted: Sequence[Listener] = ()
        while wanted is not self._wanted:
            wanted = self._wanted
            for name in sorted(self._names() - {listener.name for listener in wanted}):
                self._remove(name)
            for listener in wanted:
                if listener.name not in self._names():
                    try:
                        await self._add(listener)
                    except StartupError as error:
                        logger.error("node %d: %s", self._config.node_id, error)

    async def _add(self, listener: Listener) -> None:
        # In a thread, because a host name is looked up.
        added = await asyncio.get_running_loop().run_in_executor(
            self._resources.workers, self._bind_unclaimed, listener
        )
        self._unclaimed.remove(added)
        self._listeners.append(added)
        if self._clients is not None:
            try:
                await added.start(self._clients)
            except StartupError:
                self._listeners.remove(added)
                added.close()
                raise
            logger.info("node %d: listening on %s", self._config.node_id, added.bound)

    def _bind_unclaimed(self, listener: Listener) -> ListenerServer:
        """Runs in a worker. Whether the listener is added before a stop or behind it, one of the
        two closes it: the loop may have ended before the worker does.
        """
        added = self._bind(listener)
        self._unclaimed.append(added)
        if self._is_stopped:
            added.close()
        return added

    def _remove(self, name: str) -> None:
        (removed,) = [each for each in self._listeners if each.bound.name == name]
        self._listeners.remove(removed)
        removed.close()
        for connection in self.connections:
            if connection.listener_name == name:
                connection.stop()
        logger.info("node %d: stopped listening on %s", self._config.node_id, removed.bound)

    async def open(self, listeners: Sequence[Listener], shared: ConnectionShared) -> None:
        """Accept connections on these listeners from now on."""
        names = {listener.name for listener in listeners}
        self._stalls.reset()
        shared.stalls = self._stalls
        for listener in self._listeners:
            if listener.bound.name in names:
                await listener.start(shared)
        if self._sweep_timer is None:
            idle_ms = self._network.connections_max_idle_ms
            self._sweep(idle_ms / 1000 if idle_ms >= 0 else float("inf"))

    def _sweep(self, max_idle_seconds: float) -> None:
        """Sweep all connections with one timer: release buffers, close idle connections."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._descriptors.refill()
        for connection in self.connections:
            try:
                connection.sweep(now, max_idle_seconds)
            except InvariantError as error:
                self._on_fatal(error)
            except Exception:  # an error of one connection; sweep the others
                logger.exception(
                    "node %d: unexpected error while sweeping a connection", self._config.node_id
                )
                connection.abort()
        seconds = PRESSED_SWEEP_SECONDS if self._memory.contended else SWEEP_SECONDS
        delay = min(seconds, max(max_idle_seconds / 2, 0.05))
        self._sweep_timer = loop.call_later(delay, self._sweep, max_idle_seconds)

    def give_back_memory(self) -> None:
        """Called when memory pressure begins."""
        for shared in self._shared:
            shared.give_back_memory()

    def stop_accepting(self) -> None:
        """Accept no connections; open ones stay. No effect the second time."""
        if self._changing is not None:
            self._changing.cancel()
        self._clients = None
        self._is_stopped = True
        for listener in (*self._listeners, *self._unclaimed):
            listener.close()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()

    def stop_reading(self) -> None:
        """Read no more requests; those already read are answered, then the connections are
        closed.
        """
        for connection in self.connections:
            connection.stop()

    async def drain(self, seconds: float) -> None:
        """Wait until every connection has closed, at most for that time; then close the rest."""
        drained = asyncio.Event()

        def on_empty() -> None:
            if next(self.connections, None) is None:
                drained.set()

        for shared in self._shared:
            shared.on_empty = on_empty
        if next(self.connections, None) is None:
            return
        try:
            await asyncio.wait_for(drained.wait(), seconds)
        except TimeoutError:
            self.abort()
        await asyncio.sleep(0)

    def abort(self) -> None:
        """Close every connection, also those that wait."""
        for connection in self.connections:
            connection.abort()

    def close(self) -> None:
        """Close the listeners and the shared state of connections. Can be called more than once."""
        self.stop_accepting()
        for shared in self._shared:
            shared.close()
