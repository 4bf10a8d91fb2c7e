"""A simulated broker that runs what a kbroker node runs of replication: `ReplicaManager` over log
files on a `SimDisk`, `ReplicaFetchers`, `IsrChangeSender`, the metadata loader and publisher. Its
requests travel as values over the `SimNetwork`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import cast

from kbroker.broker.controller_channel import BrokerRegistrationData
from kbroker.broker.hosted_replicas import HostedReplicas
from kbroker.broker.live_brokers import LiveBrokers
from kbroker.broker.metadata_cache import MetadataCache
from kbroker.controller.brokers.broker_heartbeat import HeartbeatReply
from kbroker.log.manager import LogManager
from kbroker.log.partition_log import PartitionLog
from kbroker.log.state.cut import Cut
from kbroker.metadata.image import Endpoint, MetadataImage
from kbroker.metadata.publisher import Publisher
from kbroker.model import TopicPartition, Uuid
from kbroker.ports import Deferred, to_deferred
from kbroker.protocol.batches.batch_header import BatchHeader, iter_batches
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
)
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kbroker.replication.appends.append import PartitionAppendResult
from kbroker.replication.followers.fetchers import ReplicaFetcher, ReplicaFetchers
from kbroker.replication.followers.follower import FollowedPartitions
from kbroker.replication.followers.follower_log import FollowerLogs
from kbroker.replication.followers.follower_session import ReplicaFetchLimits
from kbroker.replication.leaders.isr import IsrPorts
from kbroker.replication.leaders.isr_changes import IsrChanges, IsrChangeSender
from kbroker.replication.manager import ReplicaManager
from kbroker.replication.partition import Partition
from kbroker.replication.reads.offsets import ListedOffset
from kbroker.replication.time_slices import FairSlices, Steps, TimeSlices
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.log_config import LogConfigs
from tests.own_threads import own_threads
from tests.sim.disk import SimDisk
from tests.sim.node_disks import DiskProcess, NodeDisks
from tests.sim.offload import DelayedOffload, always, run_inline
from tests.sim.replication_controller import CONTROLLER_ID, FetchMetadata
from tests.sim.rpc import Rpc
from tests.sim.simulation import Simulation
from tests.sim.timers import SimTimers
from tests.sim.two_brokers import (
    CLUSTER_ID,
    MetadataBatch,
    MetadataLog,
    MetadataReader,
    batch_of,
    log_directory_id,
)

DATA = "/data/logs"
FETCH_VERSION = 17
HEARTBEAT_MS = 100
RETRY_MS = 50
TIMEOUT_MS = 700
FETCH_TIMEOUT_MS = 500
METADATA_TIMEOUT_MS = 5_000
LIMITS = ReplicaFetchLimits(
    max_wait_ms=150, min_bytes=1, max_bytes=3_000, partition_max_bytes=1_200
)
BACKOFF_MS = 100


class BrokerProcess(DiskProcess):
    """A process with a disk. checked: called after each of its steps, with its disk present."""

    def __init__(
        self,
        heap: SimTimers,
        random: Random,
        disks: NodeDisks,
        disk: SimDisk,
        *,
        crashed: Callable[[], None],
        checked: Callable[[], None],
    ) -> None:
        super().__init__(heap, random, disks, disk, crashed)
        self._after_step = checked


class RemoteLeader:
    """`fetchers.LeaderEndPoint` over the network."""

    def __init__(self, rpc: Rpc, leader_id: int) -> None:
        self._rpc = rpc
        self._leader_id = leader_id

    def fetch(self, request: FetchRequest) -> Deferred[FetchResponse]:
        """See `fetchers.LeaderEndPoint`."""
        answer = self._rpc.ask(self._leader_id, request, timeout_ms=FETCH_TIMEOUT_MS)
        return cast("Deferred[FetchResponse]", answer)

    def list_offsets(self, request: ListOffsetsRequest) -> Deferred[ListOffsetsResponse]:
        """See `fetchers.LeaderEndPoint`."""
        answer = self._rpc.ask(self._leader_id, request, timeout_ms=TIMEOUT_MS)
        return cast("Deferred[ListOffsetsResponse]", answer)


class SimReplicaBroker:
    """A node with the broker role. process: None while it is down. is_serving: it is registered and
    unfenced, and hosts its replicas. truncations, starts_over: changes of logs that were no
    appends. violations: what must not have happened within a step.
    """

    def __init__(
        self,
        node_id: int,
        simulation: Simulation,
        disks: NodeDisks,
        settings: dict[str, str],
        *,
        checked: Callable[[SimReplicaBroker], None],
        may_kill: Callable[[SimReplicaBroker], bool],
    ) -> None:
        self.node_id = node_id
        self.disk = SimDisk(simulation.random(f"disk {node_id}"))
        self.disk.make_root(DATA)
        self.process: BrokerProcess | None = None
        self.is_serving = False
        self.lives = 0
        self.truncations = 0
        self.starts_over = 0
        self.power_losses = 0
        self.violations: list[str] = []
        self._simulation = simulation
        self._disks = disks
        self._checked = checked
        self._may_kill = may_kill
        self._config = BrokerConfig.from_properties(
            {"node.id": str(node_id), "log.dirs": DATA, **settings}
        )

    # -- lives ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a node that is down."""
        if self.process is not None:
            return
        self.lives += 1
        self.is_serving = False
        random = self._simulation.random(f"process {self.node_id} {self.lives}")
        self.process = process = BrokerProcess(
            self._simulation.timers,
            random,
            self._disks,
            self.disk,
            crashed=lambda: None,
            checked=lambda: self._checked(self),
        )
        self._rpc = Rpc(self.node_id, self.lives, self._simulation.network, process, self._serve)
        self._simulation.network.attach(self.node_id, process, receive=self._rpc.received)
        process.run(partial(self._boot, process, random))

    def kill(self, *, power_loss: bool) -> None:
        """End the process, unless it is the last one with all acknowledged records."""
        if self.process is None or not self._may_kill(self):
            return
        self._simulation.note(f"node {self.node_id} dies, power loss: {power_loss}")
        self.process.kill()
        self.process = None
        self.is_serving = False
        self.power_losses += power_loss
        self._simulation.network.detach(self.node_id, silently=power_loss)
        self.disk.restart(power_loss=power_loss)

    def _boot(self, process: BrokerProcess, random: Random) -> None:
        config, node_id = self._config, self.node_id
        self.logs = LogManager(config, now_ms=process.now_ms, random=random, threads=own_threads)
        self.logs.set_directory_ids({DATA: log_directory_id(node_id)})
        self.logs.load()
        self.broker_epoch = -1
        self._reader = MetadataReader(node_id, MetadataLog())
        self._position = 0
        self._incarnation: Uuid = bytes([node_id, self.lives]) * 8
        log_configs = LogConfigs(config)
        hosted = HostedReplicas(node_id, lambda: self.image, log_configs)
        self.cache = MetadataCache(CLUSTER_ID, lambda: 1)
        changes = IsrChanges(node_id)
        IsrChangeSender(changes, self._alter_partition, process, broker_epoch=self._epoch)
        self.replicas = ReplicaManager(
            node_id,
            self.logs,
            process,
            config,
            knows=hosted.exists,
            isr_ports=IsrPorts(LiveBrokers(lambda: self.image), changes),
            offloads=always(run_inline),
            random=random,
            slices=lambda: TimeSlices(process, clock=lambda: 0.0),
            fair_slices=FairSlices(process, clock=lambda: 0.0),
        )
        self._follower_logs = FollowerLogs(
            CountedLogs(self),
            offload=DelayedOffload(process, random),
            when_flushed=self.replicas.when_flushed,
            on_log_start=self.replicas.hosting.log_start_moved,
            now_ms=process.now_ms,
        )
        self.fetchers = ReplicaFetchers(partial(self._make_fetcher, process), self._follower_logs)
        self.replicas.hosting.on_role = self.fetchers.update
        self._publisher = Publisher(node_id, lambda _, overrides: log_configs.of(overrides))
        self._fetch_metadata()
        self._register()

    def _make_fetcher(self, process: BrokerProcess, leader_id: int, number: int) -> ReplicaFetcher:
        follower = FollowedPartitions(
            self.node_id, LIMITS, backoff_ms=BACKOFF_MS, broker_epoch=self._epoch
        )
        return ReplicaFetcher(
            follower,
            RemoteLeader(self._rpc, leader_id),
            self._follower_logs,
            process,
            slices=self.replicas.fair_slices,
            on_storage_error=self.replicas.hosting.read_failed,
        )

    def _epoch(self) -> int:
        return self.broker_epoch

    # -- metadata ---------------------------------------------------------------------------------

    @property
    def image(self) -> MetadataImage:
        """The newest image that this broker has received."""
        return self._reader.loader.image

    def _later(self, delay_ms: float, work: Callable[[], None]) -> None:
        assert self.process is not None
        self.process.call_later(delay_ms, work)

    def _fetch_metadata(self) -> None:
        answer = self._rpc.ask(
            CONTROLLER_ID, FetchMetadata(self._position), timeout_ms=METADATA_TIMEOUT_MS
        )
        answer.on_done(self._metadata_fetched, lambda _: self._fetch_metadata())

    def _metadata_fetched(self, answer: object) -> None:
        for batch in cast("tuple[MetadataBatch, ...]", answer):
            self._position += 1
            for _ in self._reader.loader.committed(*batch):
                pass
            self._checked(self)  # each image is a step of its own
        self._fetch_metadata()

    def _register(self) -> None:
        if not self._position:
            self._later(RETRY_MS, self._register)
            return
        registration = BrokerRegistrationData(
            incarnation_id=self._incarnation,
            endpoints={"PLAINTEXT": Endpoint("PLAINTEXT", "sim", 9090 + self.node_id)},
            log_dirs=(log_directory_id(self.node_id),),
        )
        request = registration.request(broker_id=self.node_id, cluster_id=CLUSTER_ID)
        answer = self._rpc.ask(CONTROLLER_ID, request, timeout_ms=TIMEOUT_MS)
        answer.on_done(self._registered, lambda _: self._later(RETRY_MS, self._register))

    def _registered(self, answer: object) -> None:
        self.broker_epoch = cast("int", answer)
        self._simulation.note(f"node {self.node_id} registered, epoch {self.broker_epoch}")
        self._heartbeat()

    def _heartbeat(self) -> None:
        request = BrokerHeartbeatRequest(
            broker_id=self.node_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self.image.offset,
            want_fence=False,
            want_shut_down=False,
        )
        answer = self._rpc.ask(CONTROLLER_ID, request, timeout_ms=TIMEOUT_MS)
        answer.on_done(self._heartbeat_answered, lambda _: None)
        self._later(HEARTBEAT_MS, self._heartbeat)

    def _heartbeat_answered(self, answer: object) -> None:
        reply = cast("HeartbeatReply", answer)
        if not reply.is_fenced and not self.is_serving and self._knows_itself():
            self.is_serving = True
            self._reader.loader.on_image(self._on_image)
            self.replicas.start()

    def _knows_itself(self) -> bool:
        """Whether the metadata here have the registration of this life, unfenced."""
        broker = self.image.brokers.get(self.node_id)
        return broker is not None and broker.epoch == self.broker_epoch and not broker.fenced

    def _on_image(self, old: MetadataImage, new: MetadataImage) -> None:
        self.replicas.apply(self._publisher.orders(old, new))
        self.replicas.when_applied().on_done(lambda _: setattr(self.cache, "image", new))

    def _alter_partition(self, request: AlterPartitionRequest) -> Deferred[AlterPartitionResponse]:
        answer = self._rpc.ask(CONTROLLER_ID, request, timeout_ms=TIMEOUT_MS)
        return cast("Deferred[AlterPartitionResponse]", answer)

    # -- requests ---------------------------------------------------------------------------------

    def _serve(self, body: object) -> Deferred[object]:
        if not self.is_serving:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE)
        assert self.process is not None
        if isinstance(body, FetchRequest):
            now_ms = self.process.monotonic_ms()
            fetched = self.replicas.fetch(body, api_version=FETCH_VERSION, now_ms=now_ms)
            return to_deferred(fetched).then(_with_bytes)
        assert isinstance(body, ListOffsetsRequest)
        return Deferred.of(self._list_offsets(body))

    def _list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        response = ListOffsetsResponse(topics=[])
        for topic in request.topics:
            listed = ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=[])
            response.topics.append(listed)
            for asked in topic.partitions:
                steps = self.replicas.list_offset(
                    TopicPartition(topic.name, asked.partition_index),
                    asked.timestamp,
                    current_leader_epoch=asked.current_leader_epoch,
                    replica_id=request.replica_id,
                )
                found = _result_of(steps)
                listed.partitions.append(
                    ListOffsetsResponse.ListOffsetsPartitionResponse(
                        partition_index=asked.partition_index,
                        error_code=int(found.error),
                        offset=found.offset,
                    )
                )
        return response

    def append(self, key: TopicPartition, value: int) -> Deferred[PartitionAppendResult]:
        """Produce one record with acks=all; within a step of the process."""
        assert self.process is not None
        batch = batch_of([value], self.process.now_ms())
        return to_deferred(self.replicas.append(key, batch, acks=-1, timeout_ms=1_000))

    # -- what is looked at ------------------------------------------------------------------------

    def partitions(self) -> list[Partition]:
        """The replicas that are hosted now."""
        return list(self.replicas.partitions()) if self.is_serving else []

    def stored(self, key: TopicPartition, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        """(base offset, bytes) of each batch from begin up to end."""
        log = self.logs.get(key)
        assert isinstance(log, PartitionLog)
        begin = max(begin, log.log_start_offset)
        while begin < end:
            records = log.read(begin, max_bytes=1 << 16, upper_offset=end).records
            data = records if isinstance(records, bytes) else records.read()
            assert data, f"nothing at {begin} below {end}"
            header: BatchHeader
            for position, header in iter_batches(data):
                yield header.base_offset, data[position : position + header.size_bytes]
                begin = header.next_offset


class CountedLogs:
    """`follower_log.TruncatableLogs` of a broker, which counts what is done."""

    def __init__(self, broker: SimReplicaBroker) -> None:
        self._broker = broker

    def begin_cut(
        self,
        topic_partition: TopicPartition,
        offset: int,
        *,
        is_full: bool,
        then: Callable[[], None],
    ) -> Cut | None:
        """See `LogManager.begin_cut`. There are no unclean elections, so nothing committed is
        truncated.
        """
        broker = self._broker
        partition = broker.replicas.partition(topic_partition)
        if partition is None or (not is_full and offset < partition.high_watermark):
            broker.violations.append(f"{topic_partition}: truncated to {offset}, committed beyond")
        cut = broker.logs.begin_cut(topic_partition, offset, is_full=is_full, then=then)
        if is_full:
            broker.starts_over += 1
        elif cut is not None:
            broker.truncations += 1
        return cut


def _with_bytes(response: FetchResponse) -> object:
    """A response whose records are no longer ranges of the leader's files."""
    for topic in response.responses:
        for data in topic.partitions:
            records = data.records
            if records is not None and not isinstance(records, bytes):
                data.records = records.read()  # type: ignore[union-attr]  # a file range
    return response


def _result_of(steps: Steps[ListedOffset]) -> ListedOffset:
    """The end of steps that wait for nothing."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: ListedOffset = end.value
        return result
