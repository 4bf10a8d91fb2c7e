"""Builds the broker role of a node (process.roles): replicas, coordinators, the services of the
request handlers, and this broker's membership in the cluster.

The role needs the node's metadata log for images and a `BrokerChannel` for requests; it does not
depend on where the active controller runs. The node owns the connections (`node`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kbroker.broker.controller_channel import (
    BrokerChannel,
    BrokerRegistrationData,
    ControllerChannel,
)
from kbroker.broker.directory_assignments import LogDirectoryReporter
from kbroker.broker.hosted_replicas import HostedReplicas
from kbroker.broker.lifecycle import BrokerLifecycle, LifecycleCore
from kbroker.broker.live_brokers import LiveBrokers
from kbroker.broker.metadata_cache import MetadataCache
from kbroker.broker.metadata_listener import MetadataListener
from kbroker.broker.producer_ids import ProducerIdManager
from kbroker.log.manager import LogManager
from kbroker.metadata.features import CORDONED_DIRECTORIES_LEVEL
from kbroker.metadata.image import Endpoint
from kbroker.metadata.publisher import Publisher
from kbroker.model import NO_BROKER_EPOCH, InvariantError, StartupError, Uuid, random_uuid
from kbroker.node.broker.controlled_shutdown import leave_cluster
from kbroker.node.broker.controller_connection import why_not_registered
from kbroker.node.broker.dynamic_config import DynamicConfig
from kbroker.node.broker.late_coordinators import (
    LateGroupListener,
    LateShareListener,
    LateTransactions,
    build_partition_gate,
    late_coordinators,
    make_with_leadership,
)
from kbroker.node.broker.quotas import client_quotas
from kbroker.node.broker.replication_throttles import ThrottleListener
from kbroker.node.loop.futures import as_future
from kbroker.node.loop.offload import ExecutorOffload
from kbroker.node.metadata_log import MetadataLog
from kbroker.node.resources import NodeResources
from kbroker.ports import Deferred, Timers
from kbroker.protocol.errors import KafkaError
from kbroker.replication.hosting import DirectoryReports
from kbroker.replication.leaders.isr import IsrPorts
from kbroker.replication.leaders.isr_changes import IsrChanges
from kbroker.replication.manager import ReplicaManager
from kbroker.replication.reads.replica_selector import RackAwareSelector
from kbroker.replication.time_slices import FairSlices, TimeSlices
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.services import Coordinators, Late, Services, ShareServices
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.rules import RACK_AWARE
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from kbroker.settings.views.log_config import LogConfigs
from kbroker.settings.views.share_groups import ShareGroupConfig

if TYPE_CHECKING:
    from kbroker.broker.telemetry.telemetry import Telemetry
    from kbroker.node.broker.peer_coordinators import PeerCoordinators
    from kbroker.node.broker.replication import BrokerReplication

logger = logging.getLogger(__name__)


class ChannelFactory(Protocol):
    """Makes this broker's channel to the active controller. The second value is the same channel if
    it also answers requests of clients, None if those are forwarded.
    """

    def __call__(
        self, *, when_applied: Callable[[], Deferred[None]]
    ) -> tuple[BrokerChannel, ControllerChannel | None]: ...


class BrokerRole:
    """The broker of one node. logs: locked, with the directory ids of `meta.properties`. fail:
    called with an error after which the broker must stop. Loop thread only.
    """

    def __init__(
        self,
        dynamic: DynamicConfig,
        *,
        resources: NodeResources,
        timers: Timers,
        memory: MemoryPool,
        logs: LogManager,
        log: MetadataLog,
        channel: ChannelFactory,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._dynamic = dynamic
        config = dynamic.current
        self._resources = resources
        self._timers = timers
        self._memory = memory
        self._logs = logs
        self._log = log
        self._make_channel = channel
        self._fail = fail
        self._log_configs = LogConfigs(config)
        dynamic.follow(lambda _, now: self._log_configs.reconfigure(now))
        self.metadata = MetadataCache(log.loader.image.cluster_id, lambda: log.driver.kraft_version)
        self._hosted = HostedReplicas(config.node_id, lambda: log.loader.image, self._log_configs)
        self._live_brokers = LiveBrokers(lambda: log.loader.image)
        self._loading: asyncio.Future[None] | None = None
        self._replicas: ReplicaManager | None = None
        self.lifecycle: BrokerLifecycle | None = None
        self._reporter: LogDirectoryReporter | None = None
        self._isr_changes = IsrChanges(config.node_id)
        self._replication: BrokerReplication | None = None
        self._peers: PeerCoordinators | None = None
        self._services: Services | None = None
        self._local_controller: ControllerChannel | None = None
        self.is_started = False

    @property
    def _config(self) -> BrokerConfig:
        """The settings in effect."""
        return self._dynamic.current

    @property
    def services(self) -> Services:
        """The services for handlers, once the broker has started."""
        if self._services is None or not self.is_started:
            raise InvariantError("the broker has not started")
        return self._services

    @property
    def broker_epoch(self) -> int:
        """The broker epoch of this process's registration, -1 before it."""
        return NO_BROKER_EPOCH if self.lifecycle is None else self.lifecycle.broker_epoch

    async def start(self, endpoints: Mapping[str, Endpoint]) -> None:
        """Register, catch up with the metadata, open the logs, unfence, host the partitions of the
        metadata. Returns once all partitions are hosted. endpoints: the advertised listeners with
        their real ports.

        Strays are only determined from metadata that contains this registration: an older image,
        possibly of a former leader, may lack topics that have logs here. Raises StartupError if the
        controller does not register this broker.
        """
        channel, self._local_controller = self._make_channel(when_applied=self._when_applied)
        self._logs.read_broker_epochs()
        self.lifecycle = lifecycle = self._build_lifecycle(channel, endpoints)
        try:
            self._logs.registered_epoch = await as_future(lifecycle.start())
        except KafkaError as error:
            raise StartupError(
                f"broker {self._config.node_id} is not registered at the active controller: {error}"
                f"{why_not_registered(error, self._config, self._log.driver)}"
            ) from error
        if not self._config.is_whole_cluster:
            logger.info(
                "Node %d: broker registered with epoch %d, catching up with the metadata",
                self._config.node_id,
                lifecycle.broker_epoch,
            )
        await as_future(lifecycle.when_caught_up())
        registered = self._logs.directory_ids()
        await self._load_logs()
        self._reporter = self._build_reporter(channel)
        replicas = self._host_nothing_yet(self._reporter)
        if self._config.metadata_log_dir in self._logs.offline_paths:
            raise StartupError(
                f"the metadata log directory {self._config.metadata_log_dir} is offline"
            )
        if not self._config.is_whole_cluster:
            self._replication = self._replicate(channel, replicas, lifecycle)
            self._peers = self._meet_peers()
        self._services = services = self._build_services(channel, replicas, lifecycle)
        self._dynamic.follow(self._reconfigure)
        self._throttle(replicas)
        failed = sorted(set(registered) - set(self._logs.directory_ids()))
        if failed:
            await as_future(channel.directories_failed(lifecycle.broker_epoch, failed))
        await as_future(lifecycle.unfence())
        self._log.loader.on_image(lifecycle.on_image)
        await as_future(lifecycle.when_unfenced_here())
        # only now, so that each partition is hosted once, in its new leader epoch
        self._log.loader.on_image(self._build_listener(services).on_image)
        await as_future(replicas.when_applied())
        replicas.start()
        self.is_started = True

    def _reconfigure(self, before: BrokerConfig, now: BrokerConfig) -> None:
        """Pass changed settings to the components that use them."""
        services = self._services
        if services is None:
            return
        services.reconfigure(before, now)
        services.replicas.reconfigure(now)
        if self._replication is not None:
            self._replication.reconfigure(now)

    def _throttle(self, replicas: ReplicaManager) -> None:
        """Apply the replication throttles of the metadata."""
        throttles = ThrottleListener(self._config.node_id, replicas.throttles)
        throttles.reconfigure(self._config)
        self._dynamic.follow(lambda _, now: throttles.reconfigure(now))
        self._log.loader.on_image(throttles.on_image)

    def _when_applied(self) -> Deferred[None]:
        """Resolves once all images published so far are applied."""
        return Deferred.of(None) if self._replicas is None else self._replicas.when_applied()

    async def _load_logs(self) -> None:
        self._loading = asyncio.get_running_loop().run_in_executor(
            self._resources.workers,
            self._logs.load,
            self._hosted.topic_config,
            self._hosted.is_assigned,
            self._hosted.directory,
        )
        await asyncio.shield(self._loading)  # if the start is cancelled, `close` waits for it

    def _host_nothing_yet(self, reporter: LogDirectoryReporter) -> ReplicaManager:
        is_rack_aware = self._config.get_optional_string("replica.selector.class") == RACK_AWARE
        self._replicas = ReplicaManager(
            self._config.node_id,
            self._logs,
            self._timers,
            self._config,
            knows=self._hosted.exists,
            isr_ports=IsrPorts(self._live_brokers, self._isr_changes),
            reports=DirectoryReports(reporter.assign, reporter.directory_failed),
            offloads=self._resources.offload,
            random=self._resources.random,
            memory=self._memory,
            slices=lambda: TimeSlices(self._timers, clock=self._resources.clock),
            fair_slices=FairSlices(self._timers, clock=self._resources.clock),
            selector=RackAwareSelector(self.metadata) if is_rack_aware else None,
            isr_updates=self._isr_changes.updates,
        )
        return self._replicas

    def _replicate(
        self, channel: BrokerChannel, replicas: ReplicaManager, lifecycle: BrokerLifecycle
    ) -> BrokerReplication:
        """Imported here: a node that is its whole cluster does not need it."""
        from kbroker.node.broker.replication import FOLLOWER_THREADS, BrokerReplication

        return BrokerReplication(
            self._config,
            replicas,
            self._isr_changes,
            metadata=self.metadata,
            controller=channel,
            timers=self._timers,
            random=self._resources.random,
            offload=self._resources.offload("follower", FOLLOWER_THREADS),
            broker_epoch=lambda: lifecycle.broker_epoch,
        )

    def _meet_peers(self) -> PeerCoordinators:
        """Imported here: a node that is its whole cluster does not need it."""
        from kbroker.node.broker.peer_coordinators import PeerCoordinators

        return PeerCoordinators(
            self._config,
            loader=self._log.loader,
            metadata=self.metadata,
            timers=self._timers,
            random=self._resources.random,
            memory=self._memory,
        )

    def _build_lifecycle(
        self, channel: BrokerChannel, endpoints: Mapping[str, Endpoint]
    ) -> BrokerLifecycle:
        config = self._config
        core = LifecycleCore(
            heartbeat_interval_ms=config.get_int("broker.heartbeat.interval.ms"),
            registration_timeout_ms=config.get_int("initial.broker.registration.timeout.ms"),
            session_timeout_ms=config.get_int("broker.session.timeout.ms"),
        )
        registration = BrokerRegistrationData(
            incarnation_id=random_uuid(self._resources.random),
            endpoints=endpoints,
            log_dirs=tuple(self._logs.directory_ids()),
            previous_broker_epoch=self._logs.previous_broker_epoch,
            rack=config.get_optional_string("broker.rack"),
        )
        return BrokerLifecycle(
            core,
            channel,
            self._timers,
            node_id=config.node_id,
            registration=registration,
            cordoned=self._cordoned,
        )

    def _cordoned(self) -> Sequence[Uuid] | None:
        """The cordoned directories for heartbeats; None while there are none and never were any."""
        image = self._log.loader.image
        broker = image.brokers.get(self._config.node_id)
        if broker is None or image.metadata_version < CORDONED_DIRECTORIES_LEVEL:
            return None
        cordoned = self._logs.directory_ids(cordoned=True)
        return cordoned if cordoned or broker.cordoned_log_dirs else None

    def _build_reporter(self, channel: BrokerChannel) -> LogDirectoryReporter:
        return LogDirectoryReporter(
            self._logs,
            channel,
            self._timers,
            broker_epoch=lambda: self.broker_epoch,
            is_assigned=self._hosted.is_assigned,
            metadata_directory=Path(self._config.metadata_log_dir).absolute(),
            failure_timeout_ms=self._config.get_int("log.dir.failure.timeout.ms"),
            fail=self._fail,
        )

    def _build_services(
        self, channel: BrokerChannel, replicas: ReplicaManager, lifecycle: BrokerLifecycle
    ) -> Services:
        config, timers, random = self._config, self._timers, self._resources.random
        producer_ids = ProducerIdManager(
            lambda: channel.allocate_producer_ids(lifecycle.broker_epoch), timers
        )
        coordinators = self._late_coordinators(replicas, producer_ids)
        share = self._late_share_services(channel, replicas, coordinators)
        make_with_leadership(coordinators, share, replicas)
        gate = build_partition_gate(
            lambda: self._dynamic.current,
            replicas=replicas,
            timers=timers,
            transactions=LateTransactions(coordinators),
            peers=self._peers,
        )
        return Services(
            config=config,
            node_id=config.node_id,
            cluster_id=self.metadata.image.cluster_id,
            timers=timers,
            local_controller=self._local_controller,
            channel=channel,
            metadata=self.metadata,
            replicas=replicas,
            producer_ids=producer_ids,
            coordinators=coordinators,
            partition_gate=gate,
            share=share,
            offload=ExecutorOffload(self._resources.workers),
            slices=replicas.fair_slices,
            memory=self._memory,
            quotas=client_quotas(config),
            set_log_level=self._resources.set_log_level,
            random=random,
            telemetry=self._build_telemetry(),
        )

    def _late_coordinators(
        self, replicas: ReplicaManager, producer_ids: ProducerIdManager
    ) -> Late[Coordinators]:
        config = self._config
        settings = GroupCoordinatorConfig.from_broker(config)
        self._dynamic.follow(lambda _, now: settings.reconfigure(now))

        return late_coordinators(
            config,
            settings,
            metadata=self.metadata,
            replicas=replicas,
            timers=self._timers,
            random=self._resources.random,
            producer_ids=producer_ids,
            peers=self._peers,
            delete_share_group=lambda group_id: self.services.share_groups.delete_group(group_id),
        )

    def _late_share_services(
        self, channel: BrokerChannel, replicas: ReplicaManager, coordinators: Late[Coordinators]
    ) -> Late[ShareServices]:
        """Created, with imports, when the broker first has share groups."""
        share_config = ShareGroupConfig.from_broker(self._config)

        def make() -> ShareServices:
            from kbroker.node.broker.coordinators import CoordinatorLog, group_configs
            from kbroker.node.broker.share_services import build_share_services

            return build_share_services(
                share_config,
                controller=channel,
                metadata=self.metadata,
                replicas=replicas,
                groups=coordinators.get().groups,
                log=CoordinatorLog(replicas, self._timers, None),
                timers=self._timers,
                offload=ExecutorOffload(self._resources.workers),
                group_configs=group_configs(self._config, self.metadata),
                memory=self._memory,
                peers=self._peers,
            )

        return Late(make)

    def _build_telemetry(self) -> Telemetry | None:
        if not self._config.get_string("kbroker.telemetry.receiver"):
            return None  # without importing it
        from kbroker.node.broker.telemetry import build_telemetry

        resources = self._resources
        telemetry = build_telemetry(
            self._config, self._timers, offloads=resources.offload, random=resources.random
        )
        if telemetry is not None:
            self._log.loader.on_image(telemetry.on_image)
        return telemetry

    def _build_listener(self, services: Services) -> MetadataListener:
        publisher = Publisher(
            self._config.node_id, lambda image, overrides: self._log_configs.of(overrides)
        )
        return MetadataListener(
            self._config.node_id,
            publisher,
            self.metadata,
            replicas=services.replicas,
            mover=services.replicas.mover,
            groups=LateGroupListener(services.coordinators),
            share=LateShareListener(services.share),
        )

    # stop

    async def shut_down(self) -> None:
        """Controlled shutdown: the controller moves leaderships away and fences this broker, which
        completes all requests that wait in a partition.
        """
        if self.lifecycle is None or self._replicas is None:
            return
        self._replicas.finish_orders()
        await leave_cluster(self._config, self.lifecycle)

    def close_coordinators(self) -> None:
        """Stop the coordinators: waiting requests are answered."""
        if self._services is not None:
            for part in (self._services.coordinators.made, self._services.share.made):
                if part is not None:
                    part.close()

    async def close(self) -> None:
        """Stop what the role has started, except the logs, which the node closes last."""
        self._close_membership()
        self._close_peers()
        if self._loading is not None:
            self._logs.stop_loading()
            await asyncio.wait({self._loading})
            if not self._loading.cancelled():
                self._loading.exception()  # start() raised it, or was cancelled
        if self._replicas is not None:
            self._replicas.close()

    def kill(self) -> None:
        """Stop as a crash would: apply no more images, send the controller no more requests."""
        self._close_membership()
        self._close_peers()
        if self._replicas is not None:
            self._replicas.drop_orders()

    def _close_peers(self) -> None:
        """Stop fetching from other brokers and sending requests to them."""
        if self._replication is not None:
            self._replication.close()
        if self._peers is not None:
            self._peers.close()

    def _close_membership(self) -> None:
        """Stop sending requests about this broker and its directories to the controller."""
        if self.lifecycle is not None:
            self.lifecycle.close()
        if self._reporter is not None:
            self._reporter.close()

    def give_back_memory(self) -> None:
        """Called when memory pressure begins."""
        self.services.replicas.give_back_memory()
        if self.services.share.made is not None:
            self.services.share.made.reader.give_back_memory()
