"""A metadata log, controllers and two brokers in one thread, on `SimTimers` and real log files.

Every part is the one that a node runs, built by its constructor: `ControllerService`,
`MetadataLoader`, `MetadataListener`, `ReplicaManager` with its partitions, `GroupCoordinator`. A
test decides when metadata is committed, when a broker receives it, and when a message between the
brokers arrives. The fetching of a follower stands here, one partition at a time, and takes over no
high watermark: `tests.sim.replication_world` has kbroker's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from kbroker.broker.controller_channel import BrokerRegistrationData
from kbroker.broker.hosted_replicas import HostedReplicas
from kbroker.broker.live_brokers import LiveBrokers
from kbroker.broker.metadata_cache import MetadataCache
from kbroker.broker.metadata_listener import MetadataListener
from kbroker.controller.controller import Controller
from kbroker.controller.service import ControllerService, Operation
from kbroker.coordinator.group.service import GROUP_TOPIC, GroupCoordinator
from kbroker.log.manager import LogManager
from kbroker.log.partition_log import PartitionLog
from kbroker.metadata.image import Endpoint, MetadataImage
from kbroker.metadata.loader import MetadataLoader
from kbroker.metadata.publisher import Publisher
from kbroker.metadata.records import decode_record
from kbroker.model import TopicPartition, Uuid
from kbroker.node.broker.coordinators import build_group_coordinator
from kbroker.ports import Deferred, OffloadFactory, to_deferred
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import BatchHeader, iter_batches
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest
from kbroker.protocol.messages.cluster import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
)
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.quorum.formatting.bootstrap import default_bootstrap_records
from kbroker.replication.appends.append import PartitionAppendResult
from kbroker.replication.leaders.isr import IsrPorts
from kbroker.replication.leaders.isr_changes import RETRY_MS, IsrChanges
from kbroker.replication.manager import ReplicaManager
from kbroker.replication.partition import Partition
from kbroker.replication.role import Role
from kbroker.replication.time_slices import FairSlices, TimeSlices
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from kbroker.settings.views.log_config import LogConfigs
from tests.log.cuts import cut_now
from tests.own_threads import own_threads
from tests.replication.world import partitions_of, record_bytes
from tests.sim.offload import always, run_inline
from tests.sim.timers import SimTimers

CLUSTER_ID = "cluster"
BROKERS = (1, 2)
CONTROLLERS = (3, 4)
GROUP_PARTITION = TopicPartition(GROUP_TOPIC, 0)
LAG_MAX_MS = 10_000
FETCH_VERSION = 16
SETTINGS = {
    "broker.session.timeout.ms": str(1 << 30),  # a seed says who is fenced, and when
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "2",
    "replica.lag.time.max.ms": str(LAG_MAX_MS),
    "group.initial.rebalance.delay.ms": "1000",
}


def offloads() -> OffloadFactory:
    """Blocking work is done within the call: there is no other thread."""
    return always(run_inline)


def batch_of(values: Sequence[int], now_ms: int) -> bytearray:
    """A batch of records with these numbers as their values."""
    return build_batch([(now_ms, None, b"%d" % value, ()) for value in values])


class MetadataBatch(NamedTuple):
    base_offset: int
    epoch: int
    records: tuple[bytes, ...]


class MetadataLog:
    """The log of a metadata quorum whose commits the test decides. committed: how many of the
    batches are.
    """

    kraft_version = 1
    is_leader = True

    def __init__(self) -> None:
        self.epoch = 1
        self.batches: list[MetadataBatch] = []
        self.committed = 0

    @property
    def next_offset(self) -> int:
        """See `controller.service.MetadataLog`."""
        return self.batches[-1].base_offset + len(self.batches[-1].records) if self.batches else 0

    def append(self, records: Sequence[bytes], *, atomic: bool = True) -> None:
        """See `controller.service.MetadataLog`."""
        self.batches.append(MetadataBatch(self.next_offset, self.epoch, tuple(records)))

    def check_kraft_upgrade(self, level: int) -> None:
        """See `controller.configs.features.KRaftVersions`."""
        assert level == self.kraft_version

    def upgrade_kraft_version(self, level: int) -> None:
        """See `controller.service.MetadataLog`."""
        assert level == self.kraft_version

    def commit(self) -> None:
        """Commit the next batch, if there is one."""
        self.committed = min(self.committed + 1, len(self.batches))

    def elect(self, kept: int) -> None:
        """Another leader, in a new epoch, which has so many of the batches that were not committed;
        it commits them before anything else.
        """
        del self.batches[self.committed + kept :]
        self.committed = len(self.batches)
        self.epoch += 1


@dataclass(frozen=True)
class Message:
    """Between brokers. arrive may be called more than once; lose: the sender stops waiting."""

    arrive: Callable[[], None]
    lose: Callable[[], None]


class MetadataReader:
    """The loader of one node, and how much of the log the node has received."""

    def __init__(self, node_id: int, log: MetadataLog) -> None:
        self._log = log
        self._position = 0
        self.loader = MetadataLoader(CLUSTER_ID, node_id=node_id)
        self.loader.caught_up()

    def receive(self) -> MetadataBatch | None:
        """Replay the next committed batch. Returns it; None if there is none."""
        if self._position == self._log.committed:
            return None
        batch = self._log.batches[self._position]
        self._position += 1
        for _ in self.loader.committed(*batch):
            pass
        return batch


class ControllerNode:
    """A node with the controller role."""

    def __init__(self, node_id: int, log: MetadataLog, timers: SimTimers) -> None:
        self.node_id = node_id
        self._reader = MetadataReader(node_id, log)
        config = BrokerConfig.from_properties({"node.id": str(node_id), **SETTINGS})
        self.service = ControllerService(
            Controller(config, random=Random(node_id), node_id=node_id),
            log,
            committed_image=lambda: self.image,
            timers=timers,
            config=config,
            slices=TimeSlices(timers, clock=lambda: 0.0),
        )

    @property
    def image(self) -> MetadataImage:
        """The committed image."""
        return self._reader.loader.image

    def receive(self) -> None:
        """Replay everything that is committed, and answer the proposals in it."""
        while (batch := self._reader.receive()) is not None:
            self.service.committed(*batch)

    def activate(self) -> None:
        """This node leads the quorum."""
        self.receive()
        self.service.activate(open_transaction=self._reader.loader.in_transaction)


class NoShareGroups:
    """The share coordinator of a broker without share groups."""

    def on_topics_deleted(self) -> None:
        """Nothing is kept of topics."""


def log_directory_id(broker_id: int) -> Uuid:
    """The id of the one log directory of that broker."""
    return bytes([100 + broker_id]) * 16


class SimBroker:
    """A node with the broker role. messages: to the other broker. waiting: partitions whose fetch
    has no response yet. synced: partitions that follow, with the leader epoch in which a fetch
    found no divergence. truncations: how many there were.
    """

    def __init__(
        self,
        node_id: int,
        folder: Path,
        log: MetadataLog,
        timers: SimTimers,
        messages: list[Message],
    ) -> None:
        self.node_id = node_id
        self._timers = timers
        self._messages = messages
        self._reader = MetadataReader(node_id, log)
        self.waiting: set[TopicPartition] = set()
        self.synced: dict[TopicPartition, int] = {}
        self.truncations = 0
        self.config = config = BrokerConfig.from_properties(
            {"node.id": str(node_id), "log.dirs": str(folder / str(node_id)), **SETTINGS}
        )
        self.logs = LogManager(
            config, now_ms=timers.now_ms, random=Random(node_id), threads=own_threads
        )
        self.logs.set_directory_ids({str(folder / str(node_id)): log_directory_id(node_id)})
        self.logs.lock()
        self.logs.load()
        log_configs = LogConfigs(config)
        hosted = HostedReplicas(node_id, lambda: self.image, log_configs)
        self.cache = MetadataCache(CLUSTER_ID, lambda: log.kraft_version)
        self.isr_changes = IsrChanges(node_id)
        self.replicas = ReplicaManager(
            node_id,
            self.logs,
            timers,
            config,
            knows=hosted.exists,
            isr_ports=IsrPorts(LiveBrokers(lambda: self.image), self.isr_changes),
            offloads=offloads(),
            random=Random(node_id + 10),
            slices=lambda: TimeSlices(timers, clock=lambda: 0.0),
            fair_slices=FairSlices(timers, clock=lambda: 0.0),
        )
        self.groups: GroupCoordinator = build_group_coordinator(
            config,
            GroupCoordinatorConfig.from_broker(config),
            metadata=self.cache,
            replicas=self.replicas,
            timers=timers,
            random=Random(node_id + 20),
        )
        listener = MetadataListener(
            node_id,
            Publisher(node_id, lambda _, overrides: log_configs.of(overrides)),
            self.cache,
            replicas=self.replicas,
            mover=self.replicas.mover,
            groups=self.groups,
            share=NoShareGroups(),
        )
        self._reader.loader.on_image(listener.on_image)

    @property
    def image(self) -> MetadataImage:
        """The newest image that this broker has received."""
        return self._reader.loader.image

    @property
    def broker_epoch(self) -> int:
        """Of its registration, as far as it has received it."""
        return self.image.brokers[self.node_id].epoch

    def receive(self) -> bool:
        """Receive the next committed batch of metadata; whether there was one."""
        return self._reader.receive() is not None

    def close(self) -> None:
        """Stop, without the files of a clean stop."""
        self.groups.close()
        self.replicas.close()
        self.logs.close(clean=False)

    def partition(self, key: TopicPartition) -> Partition:
        """A replica that is here."""
        partition = self.replicas.partition(key)
        assert partition is not None, f"{key} is not on broker {self.node_id}"
        return partition

    def log_of(self, key: TopicPartition) -> PartitionLog:
        """The log of a replica that is here."""
        log = self.logs.get(key)
        assert log is not None
        return log

    def append(
        self, key: TopicPartition, values: Sequence[int], *, acks: int = -1, timeout_ms: int = 5_000
    ) -> Deferred[PartitionAppendResult]:
        """Produce one batch with these values to a partition led here."""
        batch = batch_of(values, self._timers.now_ms())
        return to_deferred(self.replicas.append(key, batch, acks=acks, timeout_ms=timeout_ms))

    def stored(self, key: TopicPartition, begin: int = 0) -> Iterator[tuple[BatchHeader, bytes]]:
        """The batches of a log from the one with offset begin on."""
        log = self.log_of(key)
        while begin < log.log_end_offset:
            records = log.read(begin, max_bytes=1 << 20).records
            data = records if isinstance(records, bytes) else records.read()  # type: ignore[attr-defined]  # a file range otherwise
            for position, header in iter_batches(data):
                yield header, bytes(data[position : position + header.size_bytes])
                begin = header.next_offset

    # -- following -------------------------------------------------------------------------------

    def following(self) -> list[TopicPartition]:
        """What may be fetched now."""
        return [
            each.topic_partition
            for each in self.replicas.partitions()
            if each.role is Role.FOLLOWER
            and each.leader in BROKERS
            and each.topic_partition not in self.waiting
        ]

    def fetch(self, key: TopicPartition, leader: SimBroker, *, max_wait_ms: int = 0) -> None:
        """Send the leader a Fetch request for what this follower lacks."""
        partition, log = self.partition(key), self.log_of(key)
        epoch, offset = partition.leader_epoch, log.log_end_offset
        last_epoch = log.leader_epochs.latest_epoch
        request = FetchRequest(
            replica_state=FetchRequest.ReplicaState(
                replica_id=self.node_id, replica_epoch=self.broker_epoch
            ),
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            topics=[
                FetchRequest.FetchTopic(
                    topic_id=partition.topic_id,
                    partitions=[
                        FetchRequest.FetchPartition(
                            partition=key.partition,
                            current_leader_epoch=epoch,
                            fetch_offset=offset,
                            last_fetched_epoch=-1 if last_epoch is None else last_epoch,
                            log_start_offset=log.log_start_offset,
                            partition_max_bytes=1 << 20,
                        )
                    ],
                )
            ],
        )
        self.waiting.add(key)

        def respond(response: FetchResponse) -> None:
            data = partitions_of(response)[key.partition]
            records = record_bytes(data) if data.records is not None else b""  # before it changes
            arrive = partial(self._fetched, key, epoch, offset, data, records)
            self._messages.append(Message(arrive, lose))

        def lose() -> None:
            self.waiting.discard(key)

        def arrive() -> None:
            leader.answer_fetch(request).on_done(respond)

        self._messages.append(Message(arrive, lose))

    def answer_fetch(self, request: FetchRequest) -> Deferred[FetchResponse]:
        """Answer a follower."""
        now_ms = self._timers.now_ms()
        return to_deferred(self.replicas.fetch(request, api_version=FETCH_VERSION, now_ms=now_ms))

    def _fetched(
        self,
        key: TopicPartition,
        epoch: int,
        offset: int,
        data: FetchResponse.PartitionData,
        records: bytes,
    ) -> None:
        """A response arrived: append, or truncate where the leader's log has another history."""
        self.waiting.discard(key)
        partition, log = self.partition(key), self.log_of(key)
        if partition.role is not Role.FOLLOWER or partition.leader_epoch != epoch:
            return
        if data.error_code or log.log_end_offset != offset:
            assert data.error_code != ErrorCode.OFFSET_OUT_OF_RANGE
            return
        diverging = data.diverging_epoch
        if diverging.end_offset >= 0:
            _, own_end = log.leader_epochs.end_offset_for(diverging.epoch, log.log_end_offset)
            end_offset = min(diverging.end_offset, own_end)
            assert end_offset >= partition.high_watermark, "a committed record is truncated"
            cut_now(self.logs, key, end_offset)
            self.truncations += 1
            return
        self.synced[key] = epoch
        if records:
            log.append_as_follower(records, now_ms=self._timers.now_ms())


def alter_partition(request: AlterPartitionRequest) -> Operation[AlterPartitionResponse]:
    """The leader of partitions asks for other ISRs. The response waits for the proposals before it:
    they may be what it rests on.
    """
    return lambda controller, _: controller.alter_partition(request)


@dataclass
class Cluster:
    """See the module. messages: between the brokers, in the order in which they were sent."""

    folder: Path
    timers: SimTimers = field(default_factory=SimTimers)
    log: MetadataLog = field(default_factory=MetadataLog)
    messages: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.controllers = [ControllerNode(each, self.log, self.timers) for each in CONTROLLERS]
        self.brokers = {
            each: SimBroker(each, self.folder, self.log, self.timers, self.messages)
            for each in BROKERS
        }
        self.controllers[0].activate()
        bootstrap = [decode_record(data) for data in default_bootstrap_records()]
        self.submit(lambda controller, _: controller.bootstrap(bootstrap))
        for broker_id in BROKERS:
            self.submit(register(broker_id))
            self.commit()
            self.submit(unfence(broker_id))
        self.commit()

    def close(self) -> None:
        """Stop both brokers."""
        for broker in self.brokers.values():
            broker.close()

    # -- the controller --------------------------------------------------------------------------

    @property
    def controller(self) -> ControllerNode:
        """The active controller."""
        return next(each for each in self.controllers if each.service.is_active)

    def submit(self, operation: Operation[object]) -> Deferred[object]:
        """Ask the active controller; a refusal fails the Deferred."""
        try:
            return self.controller.service.submit(operation)
        except KafkaError as error:
            return Deferred.failed(error)

    def commit(self, batches: int | None = None) -> None:
        """Commit the next batches of metadata, all by default; brokers do not receive them yet."""
        left = len(self.log.batches) - self.log.committed if batches is None else batches
        for _ in range(left):
            self.log.commit()
            self.controller.receive()

    def fail_over_controller(self, kept: int = 0) -> None:
        """The other controller node leads the quorum from now on; see `MetadataLog.elect`."""
        old = self.controller
        new = next(each for each in self.controllers if each is not old)
        old.service.resign()
        self.log.elect(kept)
        old.receive()
        new.activate()

    def create_group_topic(self) -> Deferred[object]:
        """`__consumer_offsets`, as the settings say: one partition with two replicas."""
        return self.submit(lambda controller, _: controller.ensure_internal_topic(GROUP_TOPIC))

    def create_topic(
        self, name: str, assignments: Sequence[Sequence[int]], **configs: str
    ) -> Deferred[object]:
        """CreateTopics with these replicas, the preferred leader first."""
        topic = CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                CreateTopicsRequest.CreatableReplicaAssignment(
                    partition_index=index, broker_ids=list(replicas)
                )
                for index, replicas in enumerate(assignments)
            ],
            configs=[
                CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ],
        )
        request = CreateTopicsRequest(topics=[topic])
        return self.submit(lambda controller, _: controller.create_topics(request))

    def propose_isr(self, broker: SimBroker, key: TopicPartition) -> None:
        """A leader asks for the ISR that it wants, if that is another one."""
        broker.partition(key).shrink_isr(self.timers.monotonic_ms())
        self._send_isr_changes(broker)

    def _send_isr_changes(self, broker: SimBroker) -> None:
        changes, now_ms = broker.isr_changes, self.timers.monotonic_ms()
        request = changes.request(broker.broker_epoch, now_ms)
        if request is None:
            return

        def answered(response: AlterPartitionResponse) -> None:
            changes.answered(response, self.timers.monotonic_ms())

        def failed(error: KafkaError) -> None:
            """NOT_CONTROLLER: it may have been committed, so the same is proposed again."""
            changes.failed(self.timers.monotonic_ms())
            self.timers.call_later(RETRY_MS, lambda: self._send_isr_changes(broker))

        self.submit(alter_partition(request)).on_done(answered, failed)

    # -- time and messages -----------------------------------------------------------------------

    def leader_of(self, key: TopicPartition) -> SimBroker:
        """The broker that leads, as the controller knows."""
        partition = self.controller.image.partition(*key)
        assert partition is not None
        return self.brokers[partition.leader]

    def fetch(self, broker: SimBroker, key: TopicPartition, *, max_wait_ms: int = 0) -> None:
        """A follower asks the leader that it knows."""
        leader = self.brokers[broker.partition(key).leader]
        broker.fetch(key, leader, max_wait_ms=max_wait_ms)

    def deliver(self, index: int = 0) -> None:
        """Let a message arrive, by default the oldest."""
        self.messages.pop(index).arrive()
        self.timers.advance(0)

    def receive(self) -> None:
        """Both brokers receive all committed metadata."""
        for broker in self.brokers.values():
            while broker.receive():
                self.timers.advance(0)

    def settle(self, rounds: int = 4) -> None:
        """Everything arrives: metadata, ISR changes, and what followers lack."""
        for _ in range(rounds):
            self.commit()
            self.receive()
            for broker in self.brokers.values():
                for key in broker.following():
                    self.fetch(broker, key)
            while self.messages:
                self.deliver()
            for broker in self.brokers.values():
                for partition in broker.replicas.partitions():
                    self.propose_isr(broker, partition.topic_partition)
            self.timers.advance(0)


def register(broker_id: int) -> Operation[object]:
    """A broker starts."""
    registration = BrokerRegistrationData(
        incarnation_id=Uuid(bytes([broker_id]) * 16),
        endpoints={"PLAINTEXT": Endpoint("PLAINTEXT", "localhost", 9090 + broker_id)},
        log_dirs=(log_directory_id(broker_id),),
    )
    return lambda controller, _: controller.register_broker(
        registration.request(broker_id=broker_id, cluster_id=controller.image.cluster_id),
        kraft_version=1,
        has_valid_session=False,
    )


def heartbeat(broker_id: int, *, want_fence: bool) -> Operation[object]:
    """A heartbeat of a broker that has read all the metadata."""
    return lambda controller, _: controller.broker_heartbeat(
        BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=controller.image.brokers[broker_id].epoch,
            current_metadata_offset=controller.image.offset,
            want_fence=want_fence,
            want_shut_down=False,
        )
    )


def fence(broker_id: int) -> Operation[object]:
    """The controller counts a broker out; its leaderships move."""
    return heartbeat(broker_id, want_fence=True)


def unfence(broker_id: int) -> Operation[object]:
    """The broker may lead again."""
    return heartbeat(broker_id, want_fence=False)
