"""The composition root: builds a node from its settings, starts it and stops it in order.

Start: bind the listeners (`servers`; their real ports are registered), lock the log directories and
format them if necessary, accept connections of controller listeners, replay the metadata log
(`metadata_log`), join the quorum (`controller_role`); on a broker also register, catch up with the
metadata, open the logs, unfence and host partitions (`broker_role`), then accept connections of
clients. Stop: controlled shutdown, accept no connections, read no requests, send the pending
responses, close the roles and the metadata log, flush the logs, write checkpoints and the
clean-shutdown marker. A node that is its whole cluster stops reading first, since no other broker
can take over: its controlled shutdown completes every waiting request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kbroker.broker.node_to_controller import NodeToController
from kbroker.log.manager import LogManager
from kbroker.log.storage.files import LogDirectoryError
from kbroker.metadata.loader import MetadataLoader
from kbroker.model import NO_BROKER_EPOCH, InvariantError, StartupError
from kbroker.node.broker.broker_role import BrokerRole
from kbroker.node.broker.controller_connection import (
    build_node_to_controller,
    controller_channel,
)
from kbroker.node.broker.dynamic_config import DynamicConfig
from kbroker.node.broker.quotas import enforce_client_quotas, follow_connection_rates
from kbroker.node.controller_role import ControllerRole
from kbroker.node.dispatchers import ControllerDispatchers, broker_dispatcher
from kbroker.node.loop.stall_probe import StallProbe
from kbroker.node.loop.timers import LoopTimers
from kbroker.node.metadata_log import MetadataLog
from kbroker.node.resources import NodeResources
from kbroker.node.servers import NodeServers
from kbroker.quorum.formatting.format import ensure_formatted
from kbroker.server.api_handler import ApiHandler
from kbroker.server.dispatch import Dispatcher
from kbroker.server.network.connection_shared import OpenConnection
from kbroker.server.network.listener import BoundListener
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.services import ControllerServices, Services
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.network import NetworkConfig

if TYPE_CHECKING:
    from kbroker.node.monitoring import NodeMonitoring

logger = logging.getLogger(__name__)

DRAIN_SECONDS: Final = 3.0
"""How long a stop waits until responses are sent."""


class Broker:
    """One node on the running loop, whose thread owns all of its state: a broker, a controller, or
    both, by process.roles.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        resources: NodeResources | None = None,
        handlers: Sequence[ApiHandler[Services]] | None = None,
    ) -> None:
        self.config = config
        self.resources = resources or NodeResources(config)
        self.dynamic = DynamicConfig(config)
        self.failure: BaseException | None = None
        self._handlers = handlers
        self._servers: NodeServers | None = None
        self._failed = asyncio.Event()
        self._joining: asyncio.Timeout | None = None
        self._stopped = False
        self._releasing: asyncio.Future[None] | None = None
        self._logs: LogManager | None = None
        self._log: MetadataLog | None = None
        self._to_controller: NodeToController | None = None
        self._controller: ControllerRole | None = None
        self._controllers: ControllerDispatchers | None = None
        self._role: BrokerRole | None = None
        self._dispatcher: Dispatcher[Services] | None = None
        self._monitoring: NodeMonitoring | None = None
        clock, cpu_clock = self.resources.stall_clocks
        self.stalls = StallProbe(_call_later, clock=clock, cpu_clock=cpu_clock)
        network = NetworkConfig.from_broker(config)
        self.memory = MemoryPool(
            network.pool_bytes,
            network.queued_max_request_bytes,
            on_pressure=self._give_back_memory,
        )

    @property
    def services(self) -> Services:
        """The broker's services, once it has started."""
        if self._role is None:
            raise InvariantError("the broker has not started, or is a controller only")
        return self._role.services

    @property
    def metadata(self) -> MetadataLoader:
        """The committed metadata of this node, which may be newer than the metadata that clients
        see.
        """
        if self._log is None:
            raise InvariantError("the broker has not started")
        return self._log.loader

    @property
    def dispatcher(self) -> Dispatcher[Services]:
        """The handler table of the broker's listeners, once the broker has started."""
        if self._dispatcher is None:
            raise InvariantError("the broker has not started")
        return self._dispatcher

    @property
    def bound_listeners(self) -> list[BoundListener]:
        """The listeners' addresses, with real ports; the broker's first."""
        return [] if self._servers is None else self._servers.bound

    @property
    def connections(self) -> list[OpenConnection]:
        """The open connections."""
        return [] if self._servers is None else list(self._servers.connections)

    async def wait_failed(self) -> BaseException:
        """Wait until the broker cannot continue; returns the error."""
        await self._failed.wait()
        return self.failure or InvariantError("failed without a reason")

    def fail(self, error: BaseException) -> None:
        """Stop the broker because of a fatal error: a broken invariant, or a metadata log that
        cannot be written.
        """
        if self.failure is None:
            self.failure = error
            is_fault_of_disk = isinstance(error, LogDirectoryError)
            logger.critical(
                "fatal error, stopping the broker: %s",
                error,
                exc_info=None if is_fault_of_disk else error,
            )
            self._failed.set()
            if self._joining is not None:  # end what waits in `_join_cluster`
                self._joining.reschedule(asyncio.get_running_loop().time())

    # start

    async def start(self) -> None:
        """Start in order. Raises StartupError for problems that the user can fix, disk faults among
        them, and the error of `fail` if the broker fails meanwhile. After an error, or if the start
        is cancelled, nothing stays open or locked.
        """
        try:
            await self._start()
        except LogDirectoryError as error:
            await self._release()
            raise StartupError(str(error)) from error
        except (StartupError, asyncio.CancelledError):
            await self._release()
            raise
        except GeneratorExit:
            raise  # its loop ended before it: nothing can be awaited any more
        except BaseException as error:
            self.failure = self.failure or error
            await self._release()
            raise

    async def _start(self) -> None:
        started = time.monotonic()
        config = self.config
        timers = self.resources.timers()
        self.stalls.start()
        self._servers = servers = NodeServers(
            config,
            resources=self.resources,
            timers=timers,
            memory=self.memory,
            stalls=self.stalls,
            on_fatal=self.fail,
        )
        self._logs = logs = LogManager(
            config,
            now_ms=timers.now_ms,
            random=self.resources.random,
            open_files=self.resources.open_files,
            threads=self.resources.threads,
        )
        logs.lock()
        properties = ensure_formatted(
            config,
            self.resources.random,
            offline=logs.offline_paths,
            on_failed=logs.directory_failed,
        )
        logs.set_directory_ids(properties.directory_ids)
        await self._serve_monitoring(logs)
        endpoints = servers.endpoints(config.advertised_controller_listeners)
        self._log = log = MetadataLog(
            config,
            properties,
            timers,
            offload=self.resources.offload("quorum", 1),
            random=self.resources.random,
            clock=self.resources.clock,
            endpoints=endpoints.values(),
        )
        log.driver.on_fatal(self.fail)
        self._follow_settings(log, servers, logs)
        self._to_controller = to_controller = build_node_to_controller(
            config, log.driver, timers, self.resources.random
        )
        if config.is_controller:
            self._controller = controller = ControllerRole(
                config,
                properties,
                timers,
                log,
                self.resources.random,
                clock=self.resources.clock,
                endpoints=endpoints,
                requests=to_controller,
            )
            self._controllers = ControllerDispatchers(partial(self._services_of, controller))
            if self._monitoring is not None:
                self._monitoring.add_forwarded(self._controllers.errors)
            if config.controller_listeners:
                await self._open_controller(servers, self._controllers)
        await log.start()
        if config.is_single_node:
            _check_voters(config, log.driver.voter_ids)
        await self._join_cluster(
            partial(self._start_broker, servers, timers, logs, log, to_controller)
        )
        logger.info("started in %.0f ms", (time.monotonic() - started) * 1000)

    def _follow_settings(self, log: MetadataLog, servers: NodeServers, logs: LogManager) -> None:
        """Apply the settings of the metadata before any other listener reads them."""
        log.loader.on_image(self.dynamic.on_image)
        self.dynamic.follow(lambda _, now: servers.reconfigure(now))
        self.dynamic.follow(lambda _, now: logs.reconfigure(now))
        follow_connection_rates([each.rates for each in servers.quotas], log.loader)

    def _services_of(self, controller: ControllerRole) -> ControllerServices:
        return controller.services(self.memory, self.dynamic, self.resources.set_log_level)

    async def _join_cluster(self, start_broker: Callable[[], Awaitable[None]]) -> None:
        """Start the roles. Raises the failure of this broker if it fails meanwhile: the roles would
        wait for ever for a metadata log that has failed, because proposals fail with NOT_CONTROLLER
        then, which is retried.
        """
        try:
            async with asyncio.timeout(None) as self._joining:
                if self._controller is not None and self.failure is None:
                    await self._controller.start()
                if self.config.is_broker and self.failure is None:
                    await start_broker()
        except Exception:
            if self.failure is None:
                raise
        finally:
            self._joining = None
        if self.failure is not None:
            raise self.failure

    async def _start_broker(
        self,
        servers: NodeServers,
        timers: LoopTimers,
        logs: LogManager,
        log: MetadataLog,
        to_controller: NodeToController,
    ) -> None:
        self._role = BrokerRole(
            self.dynamic,
            resources=self.resources,
            timers=timers,
            memory=self.memory,
            logs=logs,
            log=log,
            channel=partial(
                controller_channel,
                self.config,
                None if self._controller is None else self._controller.service,
                to_controller,
                log.loader,
            ),
            fail=self.fail,
        )
        await servers.bind_wanted()
        own = self.config.advertised_listeners
        names = {listener.name for listener in own}
        added = [
            listener
            for listener in self.dynamic.current.advertised_listeners
            if listener.name not in names
        ]
        await self._role.start(servers.endpoints((*own, *added)))
        await self._open_broker(servers, to_controller)

    async def _open_controller(
        self, servers: NodeServers, controllers: ControllerDispatchers
    ) -> None:
        """Open the controller's listeners early: other nodes may send requests before this node
        knows the leader.
        """
        dispatcher = controllers.of_listeners()
        shared = servers.shared(dispatcher, servers.controller_quotas)
        enforce_client_quotas(controllers.services, self.metadata, dispatcher, shared)
        if self._monitoring is not None:
            self._monitoring.add_listeners(dispatcher, shared)
        await servers.open(self.config.controller_listeners, shared)

    async def _open_broker(self, servers: NodeServers, to_controller: NodeToController) -> None:
        controllers = self._controllers if self.config.is_whole_cluster else None
        self._dispatcher = dispatcher = broker_dispatcher(
            self.services, controllers, to_controller, handlers=self._handlers
        )
        shared = servers.shared(
            dispatcher,
            servers.broker_quotas,
            on_storage_error=self.services.replicas.logs.directory_failed,
            on_lost=self.services.disconnected,
        )
        enforce_client_quotas(self.services, self.metadata, dispatcher, shared)
        if self._monitoring is not None:
            self._monitoring.add_listeners(dispatcher, shared)
        await servers.open_clients(shared)

    def _give_back_memory(self) -> None:
        """Called when memory pressure begins."""
        if self._servers is not None:
            self._servers.give_back_memory()
        if self._role is not None and self._role.is_started:
            self._role.give_back_memory()

    async def _serve_monitoring(self, logs: LogManager) -> None:
        """Serve metrics and health if configured; imported only then."""
        if not self.config.get_string("kbroker.metrics.listener"):
            return
        from kbroker.node.monitoring import NodeMonitoring

        self._monitoring = NodeMonitoring(
            self.config,
            stalls=self.stalls,
            memory=self.memory,
            logs=logs,
            failure=lambda: self.failure,
            log=lambda: self._log,
            role=lambda: self._role,
            is_active_controller=self._is_active_controller if self.config.is_controller else None,
        )
        await self._monitoring.start()

    def _is_active_controller(self) -> bool:
        return self._controller is not None and self._controller.service.is_active

    @property
    def metrics_port(self) -> int | None:
        """The port of metrics and health, None without one."""
        return None if self._monitoring is None else self._monitoring.port

    def loop_exception(
        self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]
    ) -> None:  # Any: asyncio's
        """For a loop that runs this broker only (`set_exception_handler`): a broken invariant in a
        callback stops the broker.
        """
        error = context.get("exception")
        if isinstance(error, InvariantError):
            self.fail(error)
        else:
            loop.default_exception_handler(context)

    # stop

    async def stop(self) -> None:
        """Stop in order. No effect the second time."""
        if self._stopped:
            return
        self._stopped = True
        logger.info("stopping")
        if not self.config.is_whole_cluster:
            await self._leave_cluster()  # other brokers take over while this broker still serves
        self._stop_accepting()
        if self._servers is not None:
            self._servers.stop_reading()
        if self.config.is_whole_cluster:
            await self._leave_cluster()
        if self._role is not None:
            self._role.close_coordinators()
        if self._servers is not None:
            await self._servers.drain(DRAIN_SECONDS)
        await self._release()
        logger.info("stopped")

    async def _leave_cluster(self) -> None:
        if self._role is not None and self._role.is_started and self.failure is None:
            await self._role.shut_down()

    def _stop_accepting(self) -> None:
        if self._servers is not None:
            self._servers.stop_accepting()
        self.stalls.stop()
        if self._monitoring is not None:
            self._monitoring.close()

    def kill(self) -> None:
        """Drop everything as a crash would: no flush, no checkpoints, no marker (for tests)."""
        self._stopped = True
        self._stop_accepting()
        if self._servers is not None:
            self._servers.abort()
            self._servers.close()
        if self._role is not None:
            self._role.kill()
        if self._controller is not None:
            self._controller.kill()
        if self._to_controller is not None:
            self._to_controller.close()
        if self._log is not None:
            self._log.kill()
        if self._logs is not None:
            self._logs.close(clean=False)
        self.resources.close()

    async def _release(self) -> None:
        """Close everything that is open, in the reverse order of the start; cleanly unless the
        broker failed. The first caller starts it, every caller waits until everything is closed; a
        cancelled caller does not interrupt it.
        """
        if self._releasing is None:
            self._releasing = asyncio.ensure_future(self._close_all())
        await asyncio.shield(self._releasing)

    async def _close_all(self) -> None:
        self._stop_accepting()
        if self._servers is not None:
            self._servers.abort()  # after a start that failed, connections may be open
            self._servers.close()
        broker_epoch = NO_BROKER_EPOCH
        if self._role is not None:
            broker_epoch = self._role.broker_epoch
            await self._role.close()
        if self._controller is not None:
            self._controller.close()
        if self._to_controller is not None:
            self._to_controller.close()
        if self._log is not None:
            await self._log.stop()
        if self._controller is not None:
            self._controller.closed()
        if self._logs is not None:
            logs, self._logs = self._logs, None
            if broker_epoch == NO_BROKER_EPOCH:  # not registered: write the epoch of the previous
                broker_epoch = logs.previous_broker_epoch  # shutdown again
            close = partial(logs.close, clean=self.failure is None, broker_epoch=broker_epoch)
            await asyncio.get_running_loop().run_in_executor(self.resources.workers, close)
        self.resources.close()


def _check_voters(config: BrokerConfig, voter_ids: Sequence[int]) -> None:
    """Check that this node is the only voter, as the settings say. Raises StartupError if the log
    has other voters.
    """
    if tuple(voter_ids) != (config.node_id,):
        raise StartupError(
            f"{config.metadata_log_dir}: the quorum has the voters"
            f" {', '.join(map(str, voter_ids))}, and the settings name none but this node"
            f" ({config.node_id}): set controller.quorum.bootstrap.servers"
        )


def _call_later(seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, callback)
