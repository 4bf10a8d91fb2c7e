"""The composition root: builds the parts of a broker, connects them, starts and stops them in
order.

Start: bind the listeners (their real ports are registered), lock and perhaps format the log
directories, load the logs, replay the metadata, host what it says, register and unfence, then
listen. Stop: listen no more, read no more requests, hand over leadership (which answers everybody
who waits), let responses leave, close the cores, flush, checkpoint and write the clean-shutdown
marker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kbroker.broker.controller_runtime import ControllerRuntime, as_future
from kbroker.broker.directory_assignments import LogDirectoryReporter
from kbroker.broker.producer_ids import ProducerIdManager
from kbroker.broker.transaction_gate import PartitionGate
from kbroker.coordinator.group.offsets.store import DeletedTopic
from kbroker.coordinator.group.service import GROUP_TOPIC, GroupCoordinator
from kbroker.coordinator.runtime.coordinator_log import AppendOutcome
from kbroker.coordinator.transaction.markers import MARKER_TIMEOUT_MS, MarkerRouter
from kbroker.coordinator.transaction.service import TRANSACTION_TOPIC, TransactionCoordinator
from kbroker.log.directories.directory import NO_BROKER_EPOCH
from kbroker.log.manager import LogManager
from kbroker.log.storage.files import LogDirectoryError
from kbroker.log.validator import AppendOrigin
from kbroker.metadata.image import Endpoint, MetadataImage
from kbroker.metadata.publisher import Publisher
from kbroker.model import InvariantError, StartupError, TopicPartition, Uuid
from kbroker.node.offload import ExecutorOffload
from kbroker.node.resources import NodeResources
from kbroker.node.share_services import ShareServices, build_share_services
from kbroker.node.timers import LoopTimers
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.quorum.format import ensure_formatted
from kbroker.replication.manager import ReplicaManager
from kbroker.replication.mover import UNLIMITED
from kbroker.replication.time_slices import TimeSlices
from kbroker.server.dispatch import ApiHandler, Dispatcher
from kbroker.server.handlers import all_handlers
from kbroker.server.network.connection_shared import ConnectionShared, OpenConnection
from kbroker.server.network.descriptors import descriptor_budget
from kbroker.server.network.limits import ConnectionLimits, PipelineBudget, resolve_overrides
from kbroker.server.network.listener import BoundListener, ListenerServer, advertised_host
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.services import Services
from kbroker.server.stall_probe import StallProbe
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.group_configs import GroupConfigs
from kbroker.settings.group_coordinator import GroupCoordinatorConfig
from kbroker.settings.listeners import SECURITY_PROTOCOLS
from kbroker.settings.log_config import LogConfig, LogConfigs
from kbroker.settings.network import NetworkConfig
from kbroker.settings.share_groups import ShareGroupConfig
from kbroker.settings.transaction_coordinator import TransactionCoordinatorConfig

if TYPE_CHECKING:
    from kbroker.server.metrics_endpoint import MetricsEndpoint

logger = logging.getLogger(__name__)

MIN_BACKLOG: Final = 1024
"""Unless configured. The loop accepts between requests, so a burst of clients must find room: one
that does not tries again a second later."""

TRANSACTION_APPEND_TIMEOUT_MS: Final = 30_000
"""How long a record of `__transaction_state` waits for its replicas."""

SWEEP_SECONDS: Final = 5.0
PRESSED_SWEEP_SECONDS: Final = 1.0
"""While connections wait for memory."""

DRAIN_SECONDS: Final = 3.0
"""How long a stop waits for responses to leave."""


class Broker:
    """One broker on the running loop, to whose thread all of it belongs."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        resources: NodeResources | None = None,
        handlers: Sequence[ApiHandler] | None = None,
    ) -> None:
        self.config = config
        self.resources = resources or NodeResources(config)
        self.failure: BaseException | None = None
        self._log_configs = LogConfigs(config)
        self._handlers = handlers
        self._listeners: list[ListenerServer] = []
        self._failed = asyncio.Event()
        self._stopped = False
        self._is_registered = False
        self._releasing: asyncio.Future[None] | None = None
        self._loading: asyncio.Future[None] | None = None
        self._logs: LogManager | None = None
        self._controller: ControllerRuntime | None = None
        self._replicas: ReplicaManager | None = None
        self._publisher: Publisher | None = None
        self._groups: GroupCoordinator | None = None
        self._transactions: TransactionCoordinator | None = None
        self._share: ShareServices | None = None
        self._services: Services | None = None
        self._shared: ConnectionShared | None = None
        self._dispatcher: Dispatcher | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._metrics: MetricsEndpoint | None = None
        self.stalls = StallProbe(_call_later)
        network = NetworkConfig.from_broker(config)
        self.memory = MemoryPool(network.pool_bytes, network.queued_max_request_bytes)

    @property
    def services(self) -> Services:
        """The parts, once the broker has started."""
        if self._services is None:
            raise InvariantError("the broker has not started")
        return self._services

    @property
    def dispatcher(self) -> Dispatcher:
        """The handler table, once the broker has started."""
        if self._dispatcher is None:
            raise InvariantError("the broker has not started")
        return self._dispatcher

    @property
    def bound_listeners(self) -> list[BoundListener]:
        """Where the broker listens, with real ports."""
        return [listener.bound for listener in self._listeners]

    @property
    def connections(self) -> list[OpenConnection]:
        """The open connections."""
        return [] if self._shared is None else list(self._shared.connections)

    async def wait_failed(self) -> BaseException:
        """Wait until the broker cannot go on; what happened."""
        await self._failed.wait()
        return self.failure or InvariantError("failed without a reason")

    def fail(self, error: BaseException) -> None:
        """Something after which the broker must stop: a broken invariant, a metadata log that
        cannot be written.
        """
        if self.failure is None:
            self.failure = error
            is_fault_of_disk = isinstance(error, LogDirectoryError)
            logger.critical(
                "the broker cannot go on: %s", error, exc_info=None if is_fault_of_disk else error
            )
            self._failed.set()

    # start

    async def start(self) -> None:
        """Start in order. Raises StartupError for what the user can mend; nothing stays open or
        locked then, nor if the start is cancelled.
        """
        try:
            await self._start()
        except LogDirectoryError as error:
            await self._release()
            raise StartupError(str(error)) from error
        except (StartupError, asyncio.CancelledError):
            await self._release()
            raise
        except BaseException as error:
            self.failure = self.failure or error
            await self._release()
            raise

    async def _start(self) -> None:
        started = time.monotonic()
        loop = asyncio.get_running_loop()
        config = self.config
        network = NetworkConfig.from_broker(config)
        timers = LoopTimers(loop)
        self.stalls.start()
        self._bind(network)
        self._logs = logs = LogManager(
            config,
            now_ms=timers.now_ms,
            random=self.resources.random,
            open_files=self.resources.open_files,
        )
        logs.lock()
        properties = ensure_formatted(
            config,
            self.resources.random,
            offline=logs.offline_paths,
            on_failed=logs.directory_failed,
        )
        logs.set_directory_ids(properties.directory_ids)
        self._controller = controller = ControllerRuntime(
            config, properties=properties, timers=timers, random=self.resources.random
        )
        controller.on_fatal(self.fail)
        await controller.start()
        self._loading = loop.run_in_executor(
            self.resources.workers,
            logs.load,
            self._topic_config,
            self._hosts_partition,
            self._assigned_directory,
        )
        await asyncio.shield(self._loading)  # if the start is cancelled `_release` waits for it
        self._replicas = replicas = ReplicaManager(
            config.node_id,
            logs,
            timers,
            config,
            knows=self._knows,
            offloads=self.resources.offload,
            random=self.resources.random,
            memory=self.memory,
            slices=lambda: TimeSlices(timers),
        )
        if config.metadata_log_dir in logs.offline_paths:
            raise StartupError(f"the metadata log directory {config.metadata_log_dir} is offline")
        self._report_directories(logs, controller, replicas, timers)
        self._groups = groups = self._group_coordinator(controller, replicas, timers)
        producer_ids = ProducerIdManager(controller.allocate_producer_ids)
        markers = MarkerRouter(
            _CoordinatorLog(replicas, MARKER_TIMEOUT_MS),
            {GROUP_TOPIC: groups.runtime},
            timers,
            knows=replicas.knows,
        )
        self._transactions = transactions = self._transaction_coordinator(
            controller, replicas, timers, markers, producer_ids
        )
        share_config = ShareGroupConfig.from_broker(config)
        self._share = share = build_share_services(
            share_config,
            controller=controller,
            replicas=replicas,
            groups=groups,
            log=_CoordinatorLog(replicas, share_config.share_coordinator_write_timeout_ms),
            timers=timers,
            group_configs=self._group_configs(controller),
            memory=self.memory,
        )
        self._publisher = Publisher(
            config.node_id, lambda image, overrides: self._log_configs.of(overrides)
        )
        await as_future(
            controller.register_broker(
                self._endpoints(),
                log_dirs=logs.directory_ids(),
                previous_broker_epoch=logs.previous_broker_epoch,
                rack=config.get_optional_string("broker.rack"),
            )
        )
        self._is_registered = True
        await as_future(controller.unfence_broker())
        controller.on_image(self._on_image)  # now: each partition is hosted once, in its new epoch
        controller.when_applied = replicas.when_applied
        hosted = asyncio.Event()
        replicas.when_applied(hosted.set)
        await hosted.wait()
        replicas.start()
        self._services = Services(
            config=config,
            node_id=config.node_id,
            cluster_id=properties.cluster_id,
            timers=timers,
            controller=controller,
            replicas=replicas,
            groups=groups,
            producer_ids=producer_ids,
            transactions=transactions,
            markers=markers,
            partition_gate=PartitionGate(replicas, transactions, verifies=self._verifies),
            share_groups=share.groups,
            share_coordinator=share.coordinator,
            share_reader=share.reader,
            offload=ExecutorOffload(self.resources.workers),
            slices=replicas.fair_slices,
            memory=self.memory,
            random=self.resources.random,
        )
        await self._listen(loop, network, timers)
        logger.info("started in %.0f ms", (time.monotonic() - started) * 1000)

    def _report_directories(
        self,
        logs: LogManager,
        controller: ControllerRuntime,
        replicas: ReplicaManager,
        timers: LoopTimers,
    ) -> None:
        reporter = LogDirectoryReporter(
            logs,
            controller,
            timers,
            metadata_directory=Path(self.config.metadata_log_dir).absolute(),
            fail=self.fail,
        )
        replicas.on_directory = replicas.mover.assign = reporter.assign
        replicas.on_directory_failed = reporter.directory_failed

    @property
    def _committed_image(self) -> MetadataImage:
        return MetadataImage() if self._controller is None else self._controller.committed_image

    def _assigned_directory(self, topic_partition: TopicPartition) -> Uuid | None:
        """Where the metadata has this broker's replica."""
        image = self._committed_image
        partition = image.partition(*topic_partition)
        if partition is None or self.config.node_id not in partition.replicas:
            return None
        return partition.directories[partition.replicas.index(self.config.node_id)]

    def _topic_config(self, topic: str) -> LogConfig:
        image = self._committed_image
        return self._log_configs.of(image.topic_configs(topic))

    def _hosts_partition(self, topic_partition: TopicPartition, topic_id: Uuid | None) -> bool:
        """Whether the metadata puts a replica of this very topic here."""
        image = self._committed_image
        topic = image.topics.get(topic_partition.topic)
        if topic is None or (topic_id is not None and topic.topic_id != topic_id):
            return False
        partition = topic.partitions.get(topic_partition.partition)
        return partition is not None and self.config.node_id in partition.replicas

    def _knows(self, topic: str | Uuid, partition: int) -> bool:
        """Whether the metadata has this partition, wherever it is."""
        if self._controller is None:
            return False
        image = self._controller.committed_image
        found = image.topics.get(topic) if isinstance(topic, str) else image.topics_by_id.get(topic)
        return found is not None and partition in found.partitions

    def _on_image(self, old: MetadataImage, new: MetadataImage) -> None:
        """Host what is new, let go of what is gone, tell the coordinators."""
        if self._replicas is None or self._publisher is None or self._groups is None:
            return
        self._replicas.apply(self._publisher.orders(old, new))
        if new.configs is not old.configs:
            self._replicas.mover.bytes_per_second = _move_limit(new, self.config.node_id)
        if new.topics is not old.topics and len(old.topics):
            changed = new.topics.changed_keys(old.topics)
            former = (old.topics.get(name) for name in changed)
            gone = [
                DeletedTopic(topic.name, topic.topic_id)
                for topic in former
                if topic is not None and topic.topic_id not in new.topics_by_id
            ]
            if gone:
                self._groups.on_topics_deleted(gone)
                if self._share is not None:
                    self._share.coordinator.on_topics_deleted()

    def _bind(self, network: NetworkConfig) -> None:
        backlog = network.socket_listen_backlog_size
        if not self.config.is_explicit("socket.listen.backlog.size"):
            backlog = max(backlog, MIN_BACKLOG)
        for listener in self.config.listeners:
            self._listeners.append(
                ListenerServer(
                    listener.name,
                    listener.host,
                    listener.port,
                    listener.security_protocol,
                    backlog=backlog,
                    send_buffer_bytes=network.socket_send_buffer_bytes,
                    receive_buffer_bytes=network.socket_receive_buffer_bytes,
                )
            )

    def _endpoints(self) -> list[Endpoint]:
        """The advertised listeners with real ports and a host that clients can be told."""
        bound = {listener.bound.name: listener.bound for listener in self._listeners}
        endpoints = []
        for listener in self.config.advertised_listeners:
            here = bound.get(listener.name)
            if here is None:
                continue
            endpoints.append(
                Endpoint(
                    listener.name,
                    advertised_host(listener.host),
                    listener.port or here.port,
                    SECURITY_PROTOCOLS.index(listener.security_protocol),
                )
            )
        return endpoints

    def _group_coordinator(
        self, controller: ControllerRuntime, replicas: ReplicaManager, timers: LoopTimers
    ) -> GroupCoordinator:
        settings = GroupCoordinatorConfig.from_broker(self.config)
        groups = GroupCoordinator(
            settings,
            log=_CoordinatorLog(replicas, settings.offsets_commit_timeout_ms),
            timers=timers,
            random=self.resources.random,
            topics=lambda: controller.image,
            overrides=self._group_configs(controller),
        )

        def on_leadership(topic_partition: TopicPartition, leader_epoch: int | None) -> None:
            if topic_partition.topic == GROUP_TOPIC:
                groups.on_leadership(topic_partition.partition, leader_epoch)

        replicas.on_leadership(on_leadership)
        return groups

    def _group_configs(self, controller: ControllerRuntime) -> GroupConfigs:
        return GroupConfigs(self.config, lambda name: controller.image.group_configs(name))

    def _transaction_coordinator(
        self,
        controller: ControllerRuntime,
        replicas: ReplicaManager,
        timers: LoopTimers,
        markers: MarkerRouter,
        producer_ids: ProducerIdManager,
    ) -> TransactionCoordinator:
        transactions = TransactionCoordinator(
            TransactionCoordinatorConfig.from_broker(self.config),
            log=_CoordinatorLog(replicas, TRANSACTION_APPEND_TIMEOUT_MS),
            markers=markers,
            timers=timers,
            cluster=lambda: controller.image,
            next_producer_id=producer_ids.next_id,
        )

        def on_leadership(topic_partition: TopicPartition, leader_epoch: int | None) -> None:
            if topic_partition.topic == TRANSACTION_TOPIC:
                transactions.on_leadership(topic_partition.partition, leader_epoch)

        replicas.on_leadership(on_leadership)
        return transactions

    def _verifies(self) -> bool:
        return self.config.get_bool("transaction.partition.verification.enable")

    async def _listen(
        self, loop: asyncio.AbstractEventLoop, network: NetworkConfig, timers: LoopTimers
    ) -> None:
        handlers = all_handlers() if self._handlers is None else self._handlers
        self._dispatcher = dispatcher = Dispatcher(handlers, self.services)
        self._shared = shared = ConnectionShared(
            loop=loop,
            dispatcher=dispatcher,
            timers=timers,
            limits=ConnectionLimits(
                network.max_connections,
                network.max_connections_per_ip,
                resolve_overrides(network.max_connections_per_ip_overrides),
            ),
            budget=PipelineBudget(network.queued_max_requests),
            max_frame_bytes=network.max_frame_bytes,
            max_list_bytes=network.max_list_bytes,
            max_queued_bytes=network.connection_queued_bytes,
            descriptors=descriptor_budget(
                network.descriptor_reserve, log_files=self.resources.open_files.limit
            ),
            memory=self.memory,
            page_cache=self.resources.page_cache,
            executor=self.resources.workers,
            on_fatal=self.fail,
            node_id=self.config.node_id,
            on_storage_error=self.services.replicas.logs.directory_failed,
        )
        shared.on_lost = self.services.share_reader.disconnected
        self.memory.on_pressure = self._give_back_memory
        await self._serve_metrics(dispatcher, shared)
        self.stalls.reset()
        shared.stalls = self.stalls
        for listener in self._listeners:
            await listener.start(shared)
        idle_ms = network.connections_max_idle_ms
        self._sweep(loop, idle_ms / 1000 if idle_ms >= 0 else float("inf"))

    def _give_back_memory(self) -> None:
        """Somebody begins to wait for memory."""
        if self._shared is not None:
            self._shared.give_back_memory()
        if self._replicas is not None:
            self._replicas.give_back_memory()
            self.services.share_reader.give_back_memory()

    async def _serve_metrics(self, dispatcher: Dispatcher, shared: ConnectionShared) -> None:
        """Where they are asked for; prometheus-client is imported then only."""
        address = self.config.get_string("kbroker.metrics.listener")
        if not address:
            return
        from kbroker.server.metrics import MetricsSources
        from kbroker.server.metrics_endpoint import MetricsEndpoint

        dispatcher.times = {}
        sources = MetricsSources(self.services, dispatcher, shared, self.stalls)
        self._metrics = MetricsEndpoint(address, sources)
        await self._metrics.start()

    @property
    def metrics_port(self) -> int | None:
        """Where metrics are served, None if they are not."""
        return None if self._metrics is None else self._metrics.port

    def _sweep(self, loop: asyncio.AbstractEventLoop, max_idle_seconds: float) -> None:
        """One timer for all connections: memory given back, idle ones ended."""
        if self._shared is None:
            return
        now = loop.time()
        self._shared.descriptors.refill()
        for connection in list(self._shared.connections):
            try:
                connection.sweep(now, max_idle_seconds)
            except InvariantError as error:
                self.fail(error)
            except Exception:  # of this connection: the others are swept
                logger.exception("node %d: a connection could not be swept", self.config.node_id)
                connection.abort()
        seconds = PRESSED_SWEEP_SECONDS if self.memory.contended else SWEEP_SECONDS
        delay = min(seconds, max(max_idle_seconds / 2, 0.05))
        self._sweep_timer = loop.call_later(delay, self._sweep, loop, max_idle_seconds)

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
        """Stop in order. Harmless the second time."""
        if self._stopped:
            return
        self._stopped = True
        logger.info("stopping")
        for listener in self._listeners:
            listener.close()
        self._stop_watching()
        drained = asyncio.Event()
        connections: set[OpenConnection] = set()
        if self._shared is not None:
            connections = self._shared.connections
            self._shared.on_empty = drained.set
        for connection in list(connections):
            connection.stop()
        if self._services is not None and self.failure is None:
            await self._hand_over()
        if self._groups is not None:
            self._groups.close()
        if self._transactions is not None:
            self._transactions.close()
        if self._share is not None:
            self._share.close()
        if connections:
            with suppress(TimeoutError):
                await asyncio.wait_for(drained.wait(), DRAIN_SECONDS)
            for connection in list(connections):
                connection.abort()
            await asyncio.sleep(0)
        await self._release()
        logger.info("stopped")

    def _stop_watching(self) -> None:
        self.stalls.stop()
        if self._metrics is not None:
            self._metrics.close()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()

    async def _hand_over(self) -> None:
        controller = self.services.controller
        self.services.replicas.finish_orders()
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await as_future(controller.controlled_shutdown())
        except (KafkaError, TimeoutError) as error:
            logger.warning("stopping without a controlled shutdown: %s", error)

    def kill(self) -> None:
        """Drop everything as a crash would: no flush, no checkpoints, no marker (for tests)."""
        self._stopped = True
        for listener in self._listeners:
            listener.close()
        self._stop_watching()
        if self._shared is not None:
            for connection in list(self._shared.connections):
                connection.abort()
            self._shared.close()
        if self._replicas is not None:
            self._replicas.drop_orders()
        if self._logs is not None:
            self._logs.close(clean=False)
        self.resources.close()

    async def _release(self) -> None:
        """Close what is open, in the reverse order of the start; clean unless the broker failed.
        The first caller begins it, every caller waits until all is closed; a cancelled caller does
        not interrupt it.
        """
        if self._releasing is None:
            self._releasing = asyncio.ensure_future(self._close_all())
        await asyncio.shield(self._releasing)

    async def _close_all(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._stop_watching()
        if self._shared is not None:
            self._shared.close()
        if self._logs is not None and self._loading is not None:
            self._logs.stop_loading()
            await asyncio.wait({self._loading})
            if not self._loading.cancelled():
                self._loading.exception()  # the start raised it, or was cancelled
        if self._replicas is not None:
            self._replicas.close()
        broker_epoch = NO_BROKER_EPOCH
        if self._controller is not None:
            broker_epoch = self._controller.broker_epoch
            with suppress(KafkaError):
                await self._controller.stop()
        if self._logs is not None:
            logs, self._logs = self._logs, None
            if not self._is_registered:  # that epoch is of the process before this one
                broker_epoch = logs.previous_broker_epoch
            close = partial(logs.close, clean=self.failure is None, broker_epoch=broker_epoch)
            await asyncio.get_running_loop().run_in_executor(self.resources.workers, close)
        self.resources.close()


def _call_later(seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, callback)


def _move_limit(image: MetadataImage, node_id: int) -> int:
    """A setting that Kafka has only dynamically, for one broker or for all."""
    name = "replica.alter.log.dirs.io.max.bytes.per.second"
    for configs in (image.broker_configs(node_id), image.broker_configs(None)):
        if name in configs:
            return int(configs[name])
    return UNLIMITED


class _CoordinatorLog:
    """The coordinators' port to the replicas of their topic."""

    __slots__ = ("_replicas", "_timeout_ms")

    def __init__(self, replicas: ReplicaManager, timeout_ms: int) -> None:
        self._replicas = replicas
        self._timeout_ms = timeout_ms

    def append(
        self, topic_partition: TopicPartition, batch: bytearray, *, transaction_version: int = 0
    ) -> AppendOutcome | Deferred[AppendOutcome]:
        """Append with acks=all."""
        outcome: AppendOutcome | Deferred[Any] = self._replicas.append(
            topic_partition,
            batch,
            acks=-1,
            timeout_ms=self._timeout_ms,
            origin=AppendOrigin.COORDINATOR,
            transaction_version=transaction_version,
        )
        return outcome

    def end_offset(self, topic_partition: TopicPartition) -> int:
        """Where the next record goes."""
        found = self._replicas.partition(topic_partition)
        if found is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return found.log.log_end_offset

    def delete_before(self, topic_partition: TopicPartition, offset: int) -> None:
        """Let the log begin later."""
        self._replicas.delete_records(topic_partition, offset)

    def read(self, topic_partition: TopicPartition, offset: int, max_bytes: int) -> bytes:
        """Whole committed batches from the one that holds offset on."""
        return self._replicas.read_committed_log(topic_partition, offset, max_bytes)
