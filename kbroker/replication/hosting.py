"""The replicas that this broker hosts: look-up, orders from the metadata, and directory failures.

`Hosting` opens, changes and closes replicas by the orders of `metadata.publisher`, calls listeners
for changes of leadership, and keeps the checkpoint of high watermarks. A log directory whose disk
fails takes its partitions offline (KAFKA_STORAGE_ERROR), a damaged log its own; all others go on.
Everything runs on the loop thread. Its neighbour `manager` serves requests from these replicas.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from kbroker.log.manager import LogManager
from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage.files import LogDirectoryError
from kbroker.metadata.publisher import HostPartition, Order, RemovePartition, UpdateTopicConfig
from kbroker.metrics import TopicTraffic
from kbroker.model import LOST_DIRECTORY, ZERO_UUID, InvariantError, TopicPartition, Uuid
from kbroker.ports import Deferred, TimerHandle, Timers
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.replication.leaders.isr import IsrPorts
from kbroker.replication.mover import AssignDirectory
from kbroker.replication.partition import Partition
from kbroker.replication.reads.fetch_set import TopicKey
from kbroker.replication.time_slices import STEP_ITEMS, TimeSlices

logger = logging.getLogger(__name__)

LeadershipCallback = Callable[[TopicPartition, int | None], None]
"""Called with the leader epoch once this broker leads a partition, with None when it no longer
does.
"""


MIN_SHRINK_PERIOD_MS: Final = 100
"""The shortest time between two checks for lagging members of ISRs: each check visits every
partition that is led here.
"""


class HostedTopic:
    """A topic with replicas on this broker; partitions by index.

    unopened: indexes of replicas that belong here but whose log directory is offline.
    """

    __slots__ = ("name", "partitions", "topic_id", "traffic", "unopened")

    def __init__(self, name: str, topic_id: Uuid) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions: dict[int, Partition] = {}
        self.unopened: set[int] = set()
        self.traffic = TopicTraffic()


class DirectoryReports(NamedTuple):
    """What is told of log directories. assign: called with (partition, topic id, directory id)
    where a replica is in another directory than the metadata says. failed: called with the path of
    a failed directory once its partitions are offline.
    """

    assign: AssignDirectory
    failed: Callable[[Path], None]


class Hosting:
    """See the module's docstring.

    knows: whether the metadata has a partition of this topic (name or id) and index; decides
    between "unknown" and "not here". orders, looks: the turns of the loop in which orders are
    carried out, and in which lagging members of ISRs are looked for. lag_max_ms:
    replica.lag.time.max.ms. isr_ports: None if this broker is the only one. reports: None: what
    happens to directories is not reported. on_role: called with a partition after each order for
    it, and once it is offline or no longer hosted.
    """

    def __init__(
        self,
        node_id: int,
        logs: LogManager,
        timers: Timers,
        *,
        knows: Callable[[TopicKey, int], bool],
        orders: TimeSlices,
        looks: TimeSlices,
        lag_max_ms: int,
        isr_ports: IsrPorts | None = None,
        reports: DirectoryReports | None = None,
    ) -> None:
        self.node_id = node_id
        self.logs = logs
        self.knows = knows
        self._timers = timers
        self._orders = orders
        self._looks = looks
        self._lag_max_ms = lag_max_ms
        self._isr_ports = isr_ports
        self._reports = reports
        self._shrinking: TimerHandle | None = None
        self._topics: dict[str, HostedTopic] = {}
        self._topics_by_id: dict[Uuid, HostedTopic] = {}
        self._leadership_callbacks: list[LeadershipCallback] = []
        self._watermarks: dict[TopicPartition, int] | None = None
        self._log_starts: dict[TopicPartition, int] = {}
        self.former_traffic = TopicTraffic()
        """The counts of topics that are no longer here, so that the broker's totals never decrease.
        """
        self.on_role: Callable[[Partition], object] = lambda partition: None
        logs.on_offline = self._directory_offline
        logs.on_damaged = self._log_damaged

    # look-up

    def topic(self, name: str) -> HostedTopic | None:
        """A topic with replicas here."""
        return self._topics.get(name)

    def topic_by_id(self, topic_id: Uuid) -> HostedTopic | None:
        return self._topics_by_id.get(topic_id)

    def topics(self) -> list[HostedTopic]:
        """Every topic with replicas here."""
        return list(self._topics.values())

    def partition(self, topic_partition: TopicPartition) -> Partition | None:
        """A replica here, offline ones too."""
        topic = self._topics.get(topic_partition.topic)
        return None if topic is None else topic.partitions.get(topic_partition.partition)

    def partitions(self) -> Iterable[Partition]:
        """Every replica here."""
        for topic in self._topics.values():
            yield from topic.partitions.values()

    def find(self, topic: TopicKey, index: int) -> Partition | ErrorCode:
        """The replica of (name or id, index), or why there is none here."""
        by_name = isinstance(topic, str)
        hosted = self._topics.get(topic) if by_name else self._topics_by_id.get(topic)  # type: ignore[arg-type]  # told apart by by_name
        if hosted is not None:
            partition = hosted.partitions.get(index)
            if partition is not None:
                return partition
            if index in hosted.unopened:
                return ErrorCode.KAFKA_STORAGE_ERROR
        if self.knows(topic, index):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if by_name or hosted is not None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.UNKNOWN_TOPIC_ID

    def led(self, topic_partition: TopicPartition) -> tuple[Partition, PartitionLog]:
        """A partition led here, with its log. Raises KafkaError."""
        found = self.find(topic_partition.topic, topic_partition.partition)
        error = found if isinstance(found, ErrorCode) else found.check_leader()
        if error or isinstance(found, ErrorCode):
            raise KafkaError(error)
        log: PartitionLog = found.log  # type: ignore[assignment]  # the manager hosts PartitionLogs
        return found, log

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """The high watermark of every replica here that is not offline."""
        return {
            partition.topic_partition: partition.high_watermark
            for partition in self.partitions()
            if partition.role
        }

    def on_leadership(self, callback: LeadershipCallback) -> None:
        """Call back at every change of leadership of a partition here; if it is called by such a
        callback, beginning with the present change.
        """
        self._leadership_callbacks.append(callback)

    # orders from the metadata

    def apply(self, orders: Iterable[Order]) -> None:
        """Carry out the orders that an image change contains for this broker, in order, and after
        those of earlier changes.

        Many orders take several turns of the loop; see `when_applied`. Until its order is carried
        out a new partition is not here (NOT_LEADER_OR_FOLLOWER), a removed one is.
        """
        self._orders.add(map(self._carry_out, orders))

    def when_applied(self) -> Deferred[None]:
        """A Deferred that resolves once all orders so far are carried out; it fails if
        `drop_orders` drops them.
        """
        return self._orders.when_done()

    def finish_orders(self) -> None:
        """Carry out the remaining orders now, and later ones immediately. Blocks."""
        self._orders.finish()

    def drop_orders(self) -> None:
        """Carry out no further order, since the logs are about to close. Each Deferred that waits
        for one fails with BROKER_NOT_AVAILABLE.
        """
        self._orders.close()

    def start_shrinking_isrs(self) -> None:
        """Begin to look for members of ISRs that lag, every half of replica.lag.time.max.ms, which
        may be 0 or negative.
        """
        delay_ms = max(self._lag_max_ms // 2, MIN_SHRINK_PERIOD_MS)
        self._shrinking = self._timers.call_later(delay_ms, self._shrink_isrs)

    def _shrink_isrs(self) -> None:
        self._looks.add(self._shrink_in_steps(), self.start_shrinking_isrs)

    def _shrink_in_steps(self) -> Iterator[None]:
        for number, partition in enumerate(list(self.partitions())):
            if number % STEP_ITEMS == 0:
                yield
                now_ms = self._timers.monotonic_ms()
            partition.shrink_isr(now_ms)

    def close(self) -> None:
        """Answer the requests that wait in a partition (NOT_LEADER_OR_FOLLOWER): the broker stops.
        They end in the purgatory's next turn.
        """
        if self._shrinking is not None:
            self._shrinking.cancel()
        self._looks.close()
        for partition in self.partitions():
            partition.remove()

    def _carry_out(self, order: Order) -> None:
        try:
            self._apply_order(order)
        except LogDirectoryError as error:
            self.logs.directory_failed(error)
        except InvariantError:
            raise
        except Exception as error:  # noqa: BLE001 - of this partition: the other orders are carried out
            owner = order.topic if isinstance(order, UpdateTopicConfig) else order.topic_partition
            self.logs.faults.report(owner, f"carrying out {type(order).__name__}", error)
            if isinstance(order, HostPartition):
                self._mark_unopened(order)

    def _apply_order(self, order: Order) -> None:
        if isinstance(order, HostPartition):
            self._host(order)
            partition = self.partition(order.topic_partition)
            if partition is not None:
                self.on_role(partition)
        elif isinstance(order, RemovePartition):
            self._remove(order)
        else:
            self._update_config(order)

    def _host(self, order: HostPartition) -> None:
        key = order.topic_partition
        partition = self.partition(key)
        if partition is not None and partition.topic_id != order.topic_id:
            self._remove(RemovePartition(key))
            partition = None
        if partition is not None and not partition.role and key in self.logs.offline_partitions:
            if self.logs.is_damaged(key):
                self._report_lost(order)
            return  # until the next start
        if partition is None or not partition.role:
            partition = self._open(order)
            if partition is None:
                return
        log = self.logs.get(key)
        if order.leader == self.node_id and log is not None:
            log.thaw()  # a leader has to know where its log ends
            if self.logs.get(key) is not log:
                return  # it was found damaged
        self._report_directory(order)
        was_leader = partition.is_leader
        if order.leader == self.node_id:
            is_new = partition.become_leader(
                leader_epoch=order.leader_epoch,
                partition_epoch=order.partition_epoch,
                replicas=order.replicas,
                isr=order.isr,
                min_isr=order.config.min_insync_replicas,
                now_ms=self._timers.monotonic_ms(),
            )
            if is_new:
                self._assign_epoch(partition)
                logger.debug("node %d leads %s, epoch %d", self.node_id, key, order.leader_epoch)
                self._tell_leadership(key, order.leader_epoch)
        else:
            partition.become_follower(
                leader=order.leader,
                leader_epoch=order.leader_epoch,
                partition_epoch=order.partition_epoch,
                replicas=order.replicas,
                isr=order.isr,
            )
            if was_leader and not partition.is_leader:
                self._tell_leadership(key, None)

    def _report_directory(self, order: HostPartition) -> None:
        """Report a replica's directory if the metadata have another one."""
        key = order.topic_partition
        here = self.logs.directory_id_of(key)
        if (
            self._reports is not None
            and here is not None
            and here not in (ZERO_UUID, order.directory_id)
            and self.logs.moves.future_directory_id(key) != order.directory_id
        ):
            self._reports.assign(key, order.topic_id, here)

    def _report_lost(self, order: HostPartition) -> None:
        """Report to the controller that this broker's replica cannot lead."""
        if self._reports is not None and order.directory_id != LOST_DIRECTORY:
            self._reports.assign(order.topic_partition, order.topic_id, LOST_DIRECTORY)

    def _open(self, order: HostPartition) -> Partition | None:
        """Open the log and make the replica; None if its directory is offline."""
        key = order.topic_partition
        try:
            log = self.logs.get_or_create(
                key,
                order.topic_id,
                order.config,
                directory_id=order.directory_id,
                is_new=order.partition_epoch == 0,
            )
        except KafkaError as error:
            if self.logs.is_damaged(key):  # which was said when it was found
                self._report_lost(order)
            else:
                logger.error("node %d cannot host %s: %s", self.node_id, key, error)
            self._mark_unopened(order)
            return None
        if self._watermarks is None:
            self._watermarks = self.logs.checkpoints.read_high_watermarks()
        topic = self._topic_for(key.topic, order.topic_id)
        partition = Partition(
            key,
            order.topic_id,
            self.node_id,
            log,
            high_watermark=self._watermarks.pop(key, 0),
            lag_max_ms=self._lag_max_ms,
            isr_ports=self._isr_ports,
            traffic=topic.traffic,
        )
        self._log_starts[key] = log.log_start_offset
        topic.partitions[key.partition] = partition
        topic.unopened.discard(key.partition)
        return partition

    def _mark_unopened(self, order: HostPartition) -> None:
        """The replica belongs here and cannot be used (KAFKA_STORAGE_ERROR)."""
        key = order.topic_partition
        topic = self._topic_for(key.topic, order.topic_id)
        topic.partitions.pop(key.partition, None)
        topic.unopened.add(key.partition)

    def _topic_for(self, name: str, topic_id: Uuid) -> HostedTopic:
        topic = self._topics.get(name)
        if topic is None or topic.topic_id != topic_id:
            if topic is not None:
                self.former_traffic.add(topic.traffic)
            topic = self._topics[name] = HostedTopic(name, topic_id)
            self._topics_by_id[topic_id] = topic
        return topic

    def _assign_epoch(self, partition: Partition) -> None:
        log = self.logs.get(partition.topic_partition)
        if log is None:
            return
        try:
            log.leader_epochs.assign(partition.leader_epoch, log.log_end_offset)
        except LogDirectoryError as error:
            self.logs.directory_failed(error)

    def _remove(self, order: RemovePartition) -> None:
        key = order.topic_partition
        topic = self._topics.get(key.topic)
        if topic is not None:
            partition = topic.partitions.pop(key.partition, None)
            topic.unopened.discard(key.partition)
            if not topic.partitions and not topic.unopened:
                del self._topics[key.topic]
                self.former_traffic.add(topic.traffic)
                self._topics_by_id.pop(topic.topic_id, None)
            self._log_starts.pop(key, None)
            if partition is not None:
                was_leader = partition.is_leader
                partition.remove()
                self.on_role(partition)
                if was_leader:
                    self._tell_leadership(key, None)
        if self._watermarks is not None:
            self._watermarks.pop(key, None)
        if order.delete:
            self.logs.delete(key)

    def _update_config(self, order: UpdateTopicConfig) -> None:
        topic = self._topics.get(order.topic)
        if topic is None:
            return
        for partition in topic.partitions.values():
            log = self.logs.get(partition.topic_partition)
            if log is not None:
                log.update_config(order.config)
            partition.set_min_isr(order.config.min_insync_replicas)
            partition.advance(self._timers.monotonic_ms())

    def _tell_leadership(self, key: TopicPartition, leader_epoch: int | None) -> None:
        for callback in self._leadership_callbacks:
            callback(key, leader_epoch)

    # faults

    def read_failed(self, partition: Partition, error: OSError) -> None:
        """A log could not be read or written: the directory of the file is offline, and with it
        the partition if its log is there.
        """
        if isinstance(error, LogDirectoryError):
            self.logs.directory_failed(error)
            if self.logs.directory_of(partition.topic_partition) is not None:  # it is online
                logger.error("%s met a fault of another disk: %s", partition.topic_partition, error)
                return
        self._take_offline(partition)

    def _directory_offline(self, directory: Path, partitions: Sequence[TopicPartition]) -> None:
        for key in partitions:
            partition = self.partition(key)
            if partition is not None:
                self._take_offline(partition)
        if self._reports is not None:
            self._reports.failed(directory)

    def _log_damaged(self, key: TopicPartition) -> None:
        """One log is offline: the controller has to know, since its directory is online."""
        partition = self.partition(key)
        if partition is None:
            return
        self._take_offline(partition)
        if self._reports is not None:
            self._reports.assign(key, partition.topic_id, LOST_DIRECTORY)

    def _take_offline(self, partition: Partition) -> None:
        if not partition.role:
            return
        was_leader = partition.is_leader
        partition.go_offline()
        self.on_role(partition)
        if was_leader:
            self._tell_leadership(partition.topic_partition, None)

    # log start offsets and the checkpoint

    def log_starts_moved(self) -> None:
        """Called after retention: tells the partitions whose log start offset moved."""
        for partition in self.partitions():
            self.log_start_moved(partition)

    def log_start_moved(self, partition: Partition) -> None:
        start = partition.log.log_start_offset
        if self._log_starts.get(partition.topic_partition) != start:
            self._log_starts[partition.topic_partition] = start
            partition.log_start_moved()

    def checkpoint_high_watermarks(self) -> None:
        """Write replication-offset-checkpoint. Blocks."""
        watermarks: Mapping[TopicPartition, int] = self.high_watermarks()
        if self._watermarks is None:  # a start that ended before any partition was hosted
            self._watermarks = self.logs.checkpoints.read_high_watermarks()
        if self._watermarks:
            watermarks = {**self._watermarks, **watermarks}
        self.logs.checkpoints.write_high_watermarks(watermarks)
