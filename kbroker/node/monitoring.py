"""Builds the endpoint of `kbroker.metrics.listener`: metrics, health and readiness of one node.

The endpoint starts early, so that during a long recovery a probe sees a node that is alive and not
ready. It looks up the components of the node at each request, since they are built meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from kbroker import __version__
from kbroker.broker.lifecycle import BrokerState
from kbroker.coordinator.runtime.host import Host, HostStatus
from kbroker.coordinator.runtime.runtime import CoordinatorRuntime
from kbroker.log.manager import LogManager
from kbroker.node.broker.broker_role import BrokerRole
from kbroker.node.loop.stall_probe import StallProbe
from kbroker.node.metadata_log import MetadataLog
from kbroker.server.dispatch import Dispatcher
from kbroker.server.monitoring.collection import collect
from kbroker.server.monitoring.endpoint import SETTING, MonitoringEndpoint
from kbroker.server.monitoring.health import (
    BrokerFacts,
    HealthCheck,
    NodeFacts,
    liveness,
    readiness,
)
from kbroker.server.monitoring.sources import BrokerSources, MetricsSources, OpenListeners
from kbroker.server.network.connection_shared import ConnectionShared
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.request_errors import RequestErrors
from kbroker.settings.broker import BrokerConfig

MAX_SERIES: Final = "kbroker.metrics.max.series"


class NodeMonitoring:
    """A `MonitoredNode`, and its endpoint. failure: the error because of which the node must stop.
    log, role: None until they are built. is_active_controller: None on a node that is no
    controller. Loop thread only.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        stalls: StallProbe,
        memory: MemoryPool,
        logs: LogManager,
        failure: Callable[[], BaseException | None],
        log: Callable[[], MetadataLog | None],
        role: Callable[[], BrokerRole | None],
        is_active_controller: Callable[[], bool] | None,
    ) -> None:
        self._config = config
        self._logs = logs
        self._failure = failure
        self._log = log
        self._role = role
        self._sources = MetricsSources(
            stalls=stalls,
            memory=memory,
            max_series=config.get_int(MAX_SERIES),
            is_active_controller=is_active_controller,
        )
        self._endpoint = MonitoringEndpoint(config.get_string(SETTING), self)

    @property
    def port(self) -> int:
        """The endpoint's real port."""
        return self._endpoint.port

    async def start(self) -> None:
        """Listen. Raises StartupError if that is impossible."""
        await self._endpoint.start()

    def close(self) -> None:
        """Stop listening. No effect the second time."""
        self._endpoint.close()

    def add_listeners(self, dispatcher: Dispatcher[Any], shared: ConnectionShared) -> None:
        """Add listeners that are about to open; their requests are measured from now on."""
        dispatcher.times = {}
        self._sources.listeners.append(OpenListeners(dispatcher, shared))

    def add_forwarded(self, errors: RequestErrors) -> None:
        """Add the errors of requests that are forwarded to this controller."""
        self._sources.forwarded = errors

    # called by the endpoint

    def metrics(self) -> Iterator[str]:
        """See `MonitoredNode`."""
        sources, log, role = self._sources, self._log(), self._role()
        if log is not None:
            sources.quorum, sources.loader = log.driver, log.loader
        if role is not None and role.is_started and role.lifecycle is not None:
            sources.broker = BrokerSources(role.services, role.lifecycle)
        return collect(sources)

    def liveness(self) -> list[HealthCheck]:
        """See `MonitoredNode`."""
        return liveness(self._facts())

    def readiness(self) -> list[HealthCheck]:
        """See `MonitoredNode`."""
        return readiness(self._facts())

    def description(self) -> Mapping[str, str]:
        """See `MonitoredNode`."""
        config = self._config
        log = self._log()
        return {
            "Version": __version__,
            "Node": str(config.node_id),
            "Roles": ", ".join(config.process_roles),
            "Cluster": "" if log is None else log.loader.image.cluster_id,
        }

    def _facts(self) -> NodeFacts:
        failure, log = self._failure(), self._log()
        lag = None
        if log is not None and log.caught_up.done and log.driver.status is not None:
            lag = max(log.driver.high_watermark - 1 - log.loader.last_offset, 0)
        return NodeFacts(
            failure="" if failure is None else str(failure) or type(failure).__name__,
            online_directories=len(self._logs.online()),
            directories=len(self._logs.all_directories),
            leader_id=-1 if log is None else log.driver.feed.leader[1],
            lag_records=lag,
            broker=self._broker_facts(log) if self._config.is_broker else None,
        )

    def _broker_facts(self, log: MetadataLog | None) -> BrokerFacts:
        role = self._role()
        if role is None or role.lifecycle is None or log is None:
            return BrokerFacts(state=BrokerState.NOT_RUNNING, epoch=-1, is_fenced=True)
        registered = log.loader.image.brokers.get(self._config.node_id)
        is_known = registered is not None and registered.epoch == role.broker_epoch
        return BrokerFacts(
            state=role.lifecycle.state,
            epoch=role.broker_epoch,
            silent_ms=role.lifecycle.silent_ms,
            session_ms=self._config.get_int("broker.session.timeout.ms"),
            is_fenced=registered is None or not is_known or registered.fenced,
            coordinators=_coordinators(role) if role.is_started else {},
        )


def _coordinators(role: BrokerRole) -> dict[str, dict[HostStatus, int]]:
    services = role.services
    runtimes: Iterable[CoordinatorRuntime[Any]] = (
        services.groups.runtime,
        services.transactions.runtime,
        services.share_coordinator.runtime,
    )
    counts: dict[str, dict[HostStatus, int]] = {}
    for runtime in runtimes:
        for host in runtime.hosts():
            _count(counts, host)
    return counts


def _count(counts: dict[str, dict[HostStatus, int]], host: Host[Any]) -> None:
    of_topic = counts.setdefault(host.topic_partition.topic, {})
    of_topic[host.status] = of_topic.get(host.status, 0) + 1
