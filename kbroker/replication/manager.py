"""The partitions this broker hosts: the entry points of append, fetch and offset look-up, and
orders from the metadata.

The shell round the cores: `partition` decides, `log` keeps, `purgatory` holds who waits,
`maintenance` does what is periodic. Everything runs on the loop thread. A log directory whose disk
fails takes its partitions offline (KAFKA_STORAGE_ERROR); all others go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any, Final

from kbroker.log.manager import LogManager
from kbroker.log.partition_log import PartitionLog
from kbroker.log.producer.producer_state import ProducerState
from kbroker.log.storage.files import FileSlice, LogDirectoryError
from kbroker.log.validator import AppendOrigin
from kbroker.log_lines import LogThrottle, shown
from kbroker.metadata.publisher import HostPartition, Order, RemovePartition, UpdateTopicConfig
from kbroker.metrics import TopicTraffic
from kbroker.model import LOST_DIRECTORY, ZERO_UUID, InvariantError, TopicPartition, Uuid
from kbroker.ports import Deferred, Memory, OffloadFactory, Timers
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.replication import offsets
from kbroker.replication.append import Appender, PartitionAppendResult
from kbroker.replication.batch_search import BatchSearcher
from kbroker.replication.fetch import FetchLimits, FetchReader
from kbroker.replication.fetch_session import FetchSessionCache, TopicKey
from kbroker.replication.maintenance import Maintenance
from kbroker.replication.mover import LogMover
from kbroker.replication.offsets import ListedOffset
from kbroker.replication.partition import Partition, ReadResult
from kbroker.replication.preparation import Preparation
from kbroker.replication.purgatory import PendingResponse, Purgatory
from kbroker.replication.time_slices import FairSlices, TimeSlices
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.network import SEARCH_LIMIT

logger = logging.getLogger(__name__)

LeadershipCallback = Callable[[TopicPartition, int | None], None]
"""Called with the leader epoch once this broker leads a partition, with None when it no longer
does.
"""

HIGH_WATERMARK: Final = -1
"""The offset that stands for the high watermark in DeleteRecords."""


class HostedTopic:
    """A topic with replicas on this broker; partitions by index.

    unopened: indexes of replicas that belong here but whose log directory is offline.
    """

    __slots__ = ("name", "partitions", "topic_id", "unopened")

    def __init__(self, name: str, topic_id: Uuid) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions: dict[int, Partition] = {}
        self.unopened: set[int] = set()


class ReplicaManager:
    """See the module's docstring.

    on_directory: told which directory id a replica (partition, topic id) is in where the metadata
    says otherwise. on_directory_failed: told of a failed disk once its partitions are offline.
    knows: whether the metadata has a partition of this topic (name or id) and index; decides
    between "unknown" and "not here". offloads: makes the threads that blocking work is given
    to. slices: makes what long work on the loop is cut into.
    """

    def __init__(
        self,
        node_id: int,
        logs: LogManager,
        timers: Timers,
        config: BrokerConfig,
        *,
        knows: Callable[[TopicKey, int], bool] = lambda topic, index: False,
        offloads: OffloadFactory,
        random: Random,
        memory: Memory | None = None,
        slices: Callable[[], TimeSlices] = lambda: TimeSlices(None),
    ) -> None:
        self.node_id = node_id
        self.logs = logs
        self.knows = knows
        self._timers = timers
        self._topics: dict[str, HostedTopic] = {}
        self._topics_by_id: dict[Uuid, HostedTopic] = {}
        self._leadership_callbacks: list[LeadershipCallback] = []
        self._watermarks: dict[TopicPartition, int] | None = None
        self._fetch_max_bytes = config.get_int("fetch.max.bytes")
        self._lag_max_ms = config.get_int("replica.lag.time.max.ms")
        self.unpacking = Lock()  # one worker at a time unpacks: docs/adr/0016
        self.purgatory = Purgatory(timers)
        self.traffic = TopicTraffic()
        self.sessions = FetchSessionCache(
            config.get_int("max.incremental.fetch.session.cache.slots"), random, memory
        )
        self._reader = FetchReader(
            find=self.find,
            on_storage_error=self._read_failed,
            purgatory=self.purgatory,
            timers=timers,
            traffic=self.traffic,
            memory=memory,
        )
        self._maintenance = Maintenance(
            node_id, logs, timers, config, offloads=offloads, high_watermarks=self.high_watermarks,
            on_retention=self._log_starts_moved, slices=slices(), memory=memory,
            unpacking=self.unpacking,
        )  # fmt: skip
        self._orders = slices()
        self.fair_slices = FairSlices(timers)
        """What requests that take long are cut into."""
        self._searcher = BatchSearcher(offloads("search", 1), memory, self.unpacking)
        self._max_searched_bytes = config.get_int(SEARCH_LIMIT)
        self._appender = Appender(
            timers,
            self.purgatory,
            Preparation(
                offloads("check", 1),
                offloads("roll", 1),
                timers,
                memory,
                self.unpacking,
            ),
            when_flushed=self._maintenance.when_flushed,
            on_storage_error=self._read_failed,
            traffic=self.traffic,
        )
        self.append_to = self._appender.append_to
        self.append_next = self._appender.append_next
        self.mover = LogMover(
            logs,
            timers,
            offload=offloads("move", 1),
            find=self.partition,
            on_replaced=self._maintenance.log_replaced,
        )
        self._refused_moves = LogThrottle(logger)
        self._log_starts: dict[TopicPartition, int] = {}
        logs.on_offline = self._directory_offline
        self.on_directory: Callable[[TopicPartition, Uuid, Uuid], object] | None = None
        self.on_directory_failed: Callable[[Path], None] | None = None

    def give_back_memory(self) -> None:
        """Somebody begins to wait for memory."""
        self._reader.give_back_memory()
        self.sessions.give_back_memory()

    # what there is

    def topic(self, name: str) -> HostedTopic | None:
        """A topic with replicas here."""
        return self._topics.get(name)

    def topic_by_id(self, topic_id: Uuid) -> HostedTopic | None:
        return self._topics_by_id.get(topic_id)

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

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Of every replica here that is not offline."""
        return {
            partition.topic_partition: partition.high_watermark
            for partition in self.partitions()
            if partition.role
        }

    def on_leadership(self, callback: LeadershipCallback) -> None:
        """Call back at every change of leadership of a partition here."""
        self._leadership_callbacks.append(callback)

    # orders from the metadata

    def apply(self, orders: Iterable[Order]) -> None:
        """Carry out what an image change means for this broker, in order, and after what earlier
        changes meant.

        Many orders take several turns of the loop; see `when_applied`. Until its order is carried
        out a new partition is not here (NOT_LEADER_OR_FOLLOWER), a removed one is.
        """
        self._orders.add(map(self._carry_out, orders))

    def when_applied(self, then: Callable[[], None]) -> None:
        """Call back once all orders so far are carried out."""
        self._orders.when_done(then)

    def finish_orders(self) -> None:
        """Carry out what is left of the orders now, and all later ones at once. Blocks."""
        self._orders.finish()

    def drop_orders(self) -> None:
        """Host and let go nothing more: the logs are about to close."""
        self._orders.close()

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
            return  # until the next start
        if partition is None or not partition.role:
            partition = self._open(order)
            if partition is None:
                return
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
        """The metadata has to know which of several directories a replica is in."""
        key = order.topic_partition
        here = self.logs.directory_id_of(key)
        if (
            self.on_directory is not None
            and here is not None
            and here not in (ZERO_UUID, order.directory_id)
            and self.logs.moves.future_directory_id(key) != order.directory_id
        ):
            self.on_directory(key, order.topic_id, here)

    def _report_lost(self, order: HostPartition) -> None:
        """The metadata has to know that nobody can lead the replica that is here."""
        if self.on_directory is not None and order.directory_id != LOST_DIRECTORY:
            self.on_directory(order.topic_partition, order.topic_id, LOST_DIRECTORY)

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
        partition = Partition(
            key,
            order.topic_id,
            self.node_id,
            log,
            high_watermark=self._watermarks.pop(key, 0),
            lag_max_ms=self._lag_max_ms,
        )
        self._log_starts[key] = log.log_start_offset
        topic = self._topic_for(key.topic, order.topic_id)
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
                self._topics_by_id.pop(topic.topic_id, None)
            self._log_starts.pop(key, None)
            if partition is not None:
                was_leader = partition.is_leader
                partition.remove()
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

    # append

    def append(
        self,
        topic_partition: TopicPartition,
        batches: bytearray | memoryview,
        *,
        acks: int,
        timeout_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        produce_version: int | None = None,
        transaction_version: int = 0,
    ) -> PartitionAppendResult | Deferred[PartitionAppendResult]:
        """Append whole batches to a partition led here, in place. See `append_to`."""
        found = self.find(topic_partition.topic, topic_partition.partition)
        if isinstance(found, ErrorCode):
            return PartitionAppendResult(found)
        return self.append_to(
            found,
            batches,
            acks=acks,
            timeout_ms=timeout_ms,
            origin=origin,
            produce_version=produce_version,
            transaction_version=transaction_version,
        )

    # fetch

    def fetch(
        self, request: FetchRequest, *, api_version: int, now_ms: int
    ) -> FetchResponse | PendingResponse[FetchResponse]:
        """Answer a Fetch request: sessions, limits, waiting. Only `current_leader` and endpoints
        are left to do.
        """
        by_id = api_version >= 13
        replica_id = request.replica_id if api_version < 15 else request.replica_state.replica_id
        context = self.sessions.context(request, by_id=by_id, replica_id=replica_id, now_ms=now_ms)
        if context.error:
            return FetchResponse(error_code=int(context.error))
        context.fetch_set.set_isolation(read_committed=request.isolation_level == 1)
        max_bytes = min(request.max_bytes, self._fetch_max_bytes)
        return self._reader.fetch(
            context,
            FetchLimits(
                max_wait_ms=request.max_wait_ms,
                min_bytes=min(request.min_bytes, max_bytes),
                max_bytes=max_bytes,
            ),
        )

    def fetch_in_steps(
        self, request: FetchRequest, *, api_version: int, now_ms: int
    ) -> Generator[Deferred[Any] | None, None, FetchResponse]:
        """As `fetch`, for a request of perhaps very many partitions (`FairSlices`)."""
        by_id = api_version >= 13
        replica_id = request.replica_id if api_version < 15 else request.replica_state.replica_id
        context = yield from self.sessions.context_in_steps(
            request, by_id=by_id, replica_id=replica_id, now_ms=now_ms
        )
        if context.error:
            return FetchResponse(error_code=int(context.error))
        context.fetch_set.set_isolation(read_committed=request.isolation_level == 1)
        max_bytes = min(request.max_bytes, self._fetch_max_bytes)
        limits = FetchLimits(
            max_wait_ms=request.max_wait_ms,
            min_bytes=min(request.min_bytes, max_bytes),
            max_bytes=max_bytes,
        )
        return (yield from self._reader.fetch_in_steps(context, limits))

    # offsets

    def list_offset(
        self,
        topic_partition: TopicPartition,
        timestamp: int,
        *,
        read_committed: bool = False,
        current_leader_epoch: int = -1,
        replica_id: int = -1,
    ) -> offsets.Steps:
        """One partition of ListOffsets; timestamp in ms, or a special value of `offsets`. Where
        that is a time it may take a while; see `offsets.list_offset`.
        """
        found = self.find(topic_partition.topic, topic_partition.partition)
        if isinstance(found, ErrorCode):
            return ListedOffset(found)
        try:
            return (
                yield from offsets.list_offset(
                    found,
                    timestamp,
                    self._searcher,
                    read_committed=read_committed,
                    current_leader_epoch=current_leader_epoch,
                    replica_id=replica_id,
                    max_unpacked_bytes=self._max_searched_bytes,
                )
            )
        except OSError as error:
            self._read_failed(found, error)
            return ListedOffset(ErrorCode.KAFKA_STORAGE_ERROR)

    def offset_of(self, topic_partition: TopicPartition, timestamp: int) -> Deferred[ListedOffset]:
        """The same for a part of the broker. There at once unless timestamp is a time."""
        answer: Deferred[ListedOffset] = Deferred()

        def steps() -> Iterator[Deferred[Any] | None]:
            answer.resolve((yield from self.list_offset(topic_partition, timestamp)))

        def done(failure: Exception | None) -> None:
            if failure is not None:
                logger.error("%s: no offset for a time", topic_partition, exc_info=failure)
                answer.resolve(ListedOffset(ErrorCode.UNKNOWN_SERVER_ERROR))

        self.fair_slices.begin(steps(), done)
        return answer

    def segment_offsets(
        self,
        topic_partition: TopicPartition,
        timestamp: int,
        *,
        max_count: int,
        now_ms: int,
        replica_id: int = -1,
    ) -> list[int]:
        """One partition of ListOffsets v0; see `offsets.segment_offsets`. Raises KafkaError."""
        partition, _ = self._led(topic_partition)
        try:
            return offsets.segment_offsets(
                partition, timestamp, max_count=max_count, now_ms=now_ms, replica_id=replica_id
            )
        except OSError as failure:
            self._read_failed(partition, failure)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure)) from failure

    # the coordinators' port

    def read_committed_log(
        self, topic_partition: TopicPartition, offset: int, max_bytes: int
    ) -> bytes:
        """Whole batches of an internal topic from offset (or the log's start) on, at least one; b""
        at the end.

        A coordinator replays up to the log's end: it leads the partition, so what is there will be
        committed or was. Raises KafkaError.
        """
        found = self.find(topic_partition.topic, topic_partition.partition)
        if isinstance(found, ErrorCode):
            raise KafkaError(found)
        error = found.check_leader()
        if error:
            raise KafkaError(error)
        log = found.log
        try:
            records = log.read(
                max(offset, log.log_start_offset),
                max_bytes=max_bytes,
                upper_offset=log.log_end_offset,
            ).records
            return records.read() if isinstance(records, FileSlice) else bytes(records)  # type: ignore[arg-type]  # bytes
        except OSError as failure:
            self._read_failed(found, failure)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure)) from failure

    # share groups

    def read_records(
        self,
        partition: Partition,
        offset: int,
        *,
        max_bytes: int,
        upper_offset: int,
        min_one_batch: bool,
    ) -> ReadResult:
        """Whole batches from the one that holds offset on. Raises KafkaError."""
        try:
            return partition.log.read(
                offset,
                max_bytes=max_bytes,
                upper_offset=upper_offset,
                min_one_batch=min_one_batch,
            )
        except OSError as failure:
            self._read_failed(partition, failure)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure)) from failure

    # log directories

    def move_log(self, topic_partition: TopicPartition, path: str) -> ErrorCode:
        """Begin to move a replica to the log directory with that path (AlterReplicaLogDirs)."""
        try:
            if self.logs.directory(path).is_cordoned:
                return ErrorCode.INVALID_REPLICA_ASSIGNMENT
            found = self.find(topic_partition.topic, topic_partition.partition)
            if found == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                self.logs.moves.prefer(topic_partition, path)
                return ErrorCode.REPLICA_NOT_AVAILABLE
            if isinstance(found, ErrorCode):
                return found
            if not found.role:
                return ErrorCode.KAFKA_STORAGE_ERROR
            if self.logs.moves.create_future(topic_partition, path):
                self.mover.begin(topic_partition)
        except KafkaError as error:
            self._refused_moves.log(
                self._timers.monotonic_ms(),
                "%s cannot be moved to %s: %s",
                shown(topic_partition),
                shown(path),
                shown(error),
            )
            return error.code
        return ErrorCode.NONE

    # faults

    def _read_failed(self, partition: Partition, error: OSError) -> None:
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
        if self.on_directory_failed is not None:
            self.on_directory_failed(directory)

    def _take_offline(self, partition: Partition) -> None:
        if not partition.role:
            return
        was_leader = partition.is_leader
        partition.go_offline()
        if was_leader:
            self._tell_leadership(partition.topic_partition, None)

    # periodic work and the end

    def start(self) -> None:
        """Begin the periodic work: retention, flushing, checkpoints."""
        self._maintenance.start()
        self.mover.start()

    def _log_starts_moved(self) -> None:
        """Retention ran: tell the partitions whose log begins later now."""
        for partition in self.partitions():
            self._log_start_moved(partition)

    def _log_start_moved(self, partition: Partition) -> None:
        start = partition.log.log_start_offset
        if self._log_starts.get(partition.topic_partition) != start:
            self._log_starts[partition.topic_partition] = start
            partition.log_start_moved()

    def delete_records(self, topic_partition: TopicPartition, offset: int) -> int:
        """Move the start of a log led here up to offset (DeleteRecords), -1 for the high watermark.

        Returns where the log begins now. Raises KafkaError.
        """
        partition, log = self._led(topic_partition)
        if not log.config.delete:
            raise KafkaError(ErrorCode.POLICY_VIOLATION)
        if offset == HIGH_WATERMARK:
            offset = partition.high_watermark
        if not 0 <= offset <= partition.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        try:
            if log.delete_records_before(offset):
                self._log_start_moved(partition)
        except LogDirectoryError as failure:
            self._read_failed(partition, failure)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure)) from failure
        return log.log_start_offset

    def epoch_end(
        self, topic_partition: TopicPartition, leader_epoch: int, *, current_leader_epoch: int = -1
    ) -> tuple[ErrorCode, int, int]:
        """(error, epoch, its end offset, exclusive): see LeaderEpochCache.end_offset_for."""
        found = self.find(topic_partition.topic, topic_partition.partition)
        if isinstance(found, ErrorCode):
            return found, -1, -1
        error = found.check_leader(current_leader_epoch)
        if error:
            return error, -1, -1
        return ErrorCode.NONE, *found.log.leader_epochs.end_offset_for(
            leader_epoch, found.log.log_end_offset
        )

    def producers_of(self, topic_partition: TopicPartition) -> list[ProducerState]:
        """The producers a partition led here remembers (DescribeProducers). Raises KafkaError."""
        return list(self._led(topic_partition)[1].producers.active_producers.values())

    def has_open_transaction(
        self, topic_partition: TopicPartition, producer_id: int, producer_epoch: int
    ) -> bool:
        """Whether this producer, in this epoch, has a transaction open in a partition led here."""
        partition = self.partition(topic_partition)
        if partition is None or not partition.is_leader:
            return False
        log: PartitionLog = partition.log  # type: ignore[assignment]  # the manager hosts PartitionLogs
        state = log.producers.active_producers.get(producer_id)
        return (
            state is not None
            and state.producer_epoch == producer_epoch
            and state.transaction_first_offset is not None
        )

    def _led(self, topic_partition: TopicPartition) -> tuple[Partition, PartitionLog]:
        """A partition led here, with its log. Raises KafkaError."""
        found = self.find(topic_partition.topic, topic_partition.partition)
        error = found if isinstance(found, ErrorCode) else found.check_leader()
        if error or isinstance(found, ErrorCode):
            raise KafkaError(error)
        log: PartitionLog = found.log  # type: ignore[assignment]  # the manager hosts PartitionLogs
        return found, log

    def checkpoint_high_watermarks(self) -> None:
        """Write replication-offset-checkpoint. Blocks."""
        watermarks: Mapping[TopicPartition, int] = self.high_watermarks()
        if self._watermarks is None:  # a start that ended before any partition was hosted
            self._watermarks = self.logs.checkpoints.read_high_watermarks()
        if self._watermarks:
            watermarks = {**self._watermarks, **watermarks}
        self.logs.checkpoints.write_high_watermarks(watermarks)

    def close(self) -> None:
        """Stop the periodic work, answer who waits with what there is, write the high watermarks.
        Blocks.
        """
        self.drop_orders()
        self.mover.stop()
        self.fair_slices.close()
        self._searcher.close()
        self._appender.close()
        self._maintenance.stop()
        self.sessions.close()
        self.purgatory.run()
        self.checkpoint_high_watermarks()
