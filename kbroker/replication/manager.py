"""The entry points of append, fetch and offset look-up, and the objects that serve them.

This is the shell around the cores: `hosting` has the replicas, `partition` decides, `log` stores,
`purgatory` holds the requests that wait, `maintenance` does the periodic work. Everything runs on
the loop thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from random import Random
from threading import Lock
from typing import Any, Final

from kbroker.log.append_request import AppendRequest
from kbroker.log.manager import LogManager
from kbroker.log.partition_log import PartitionLog
from kbroker.log.producer.producer_state import ProducerState
from kbroker.log.results import Refused
from kbroker.log.storage.files import FileSlice, LogDirectoryError
from kbroker.log.validator import AppendOrigin
from kbroker.log_lines import LogThrottle, shown
from kbroker.metrics import IsrUpdates
from kbroker.model import TopicPartition
from kbroker.ports import Deferred, Memory, OffloadFactory, Timers, as_kafka_error
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.replication.appends.append import Appender, PartitionAppendResult
from kbroker.replication.appends.preparation import Preparation
from kbroker.replication.hosting import DirectoryReports, Hosting
from kbroker.replication.leaders.isr import IsrPorts
from kbroker.replication.leaders.replica_log import ReadResult
from kbroker.replication.maintenance import Maintenance
from kbroker.replication.mover import LogMover
from kbroker.replication.partition import Partition
from kbroker.replication.purgatory import DelayedResponse, Purgatory
from kbroker.replication.reads import offsets
from kbroker.replication.reads.batch_search import BatchSearcher
from kbroker.replication.reads.fetch import FetchReader
from kbroker.replication.reads.fetch_session import FetchSessionCache
from kbroker.replication.reads.fetch_set import FetchLimits, FetchSet, TopicKey
from kbroker.replication.reads.low_watermark import LowWatermark, await_low_watermark
from kbroker.replication.reads.offsets import ListedOffset
from kbroker.replication.reads.replica_selector import ClosestReplica, RackAwareSelector
from kbroker.replication.throttle import ReplicationThrottles
from kbroker.replication.time_slices import FairSlices, Steps, TimeSlices
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.network import SEARCH_LIMIT

logger = logging.getLogger(__name__)

RACK_SINCE_FETCH_VERSION: Final = 11
"""Consumers that send it may read from followers."""

HIGH_WATERMARK: Final = -1
"""The offset that stands for the high watermark in DeleteRecords."""


class ReplicaManager:
    """See the module's docstring.

    knows, isr_ports, reports: see `Hosting`. offloads: makes the Offloads for blocking work.
    slices: makes the `TimeSlices` of long work on the loop. fair_slices: runs long requests in
    steps; None: slices of real time, on timers. selector: from which replica consumers read; None:
    from the leader. isr_updates: what the controller answered to proposals of ISRs; None on a
    broker that makes none.
    """

    def __init__(
        self,
        node_id: int,
        logs: LogManager,
        timers: Timers,
        config: BrokerConfig,
        *,
        knows: Callable[[TopicKey, int], bool] = lambda topic, index: False,
        isr_ports: IsrPorts | None = None,
        reports: DirectoryReports | None = None,
        offloads: OffloadFactory,
        random: Random,
        memory: Memory | None = None,
        slices: Callable[[], TimeSlices] = lambda: TimeSlices(None),
        fair_slices: FairSlices | None = None,
        selector: RackAwareSelector | None = None,
        isr_updates: IsrUpdates | None = None,
    ) -> None:
        self.logs = logs
        self._timers = timers
        self.hosting = Hosting(
            node_id, logs, timers, knows=knows, orders=slices(), looks=slices(), reports=reports,
            lag_max_ms=config.get_int("replica.lag.time.max.ms"), isr_ports=isr_ports,
        )  # fmt: skip
        self.find = self.hosting.find
        self.topic = self.hosting.topic
        self.topic_by_id = self.hosting.topic_by_id
        self.partition = self.hosting.partition
        self.partitions = self.hosting.partitions
        self.on_leadership = self.hosting.on_leadership
        self.apply = self.hosting.apply
        self.when_applied = self.hosting.when_applied
        self.finish_orders = self.hosting.finish_orders
        self.drop_orders = self.hosting.drop_orders
        self._selector = selector
        self._fetch_max_bytes = config.get_int("fetch.max.bytes")
        self.unpacking = Lock()  # one worker at a time unpacks: docs/adr/0016
        self.purgatory = Purgatory(timers)
        self.isr_updates = isr_updates or IsrUpdates()
        slots = config.get_int("max.incremental.fetch.session.cache.slots")
        self.sessions = FetchSessionCache(slots, random, memory, close=self._take_steps)
        self.throttles = ReplicationThrottles.from_broker(config)
        self._reader = FetchReader(
            find=self.find, on_storage_error=self.hosting.read_failed, purgatory=self.purgatory,
            timers=timers, throttle=self.throttles.leader, memory=memory,
        )  # fmt: skip
        self._maintenance = Maintenance(
            node_id, logs, timers, config, offloads=offloads,
            high_watermarks=self.hosting.high_watermarks,
            on_retention=self.hosting.log_starts_moved, slices=slices(), memory=memory,
            unpacking=self.unpacking,
        )  # fmt: skip
        self.fair_slices = fair_slices or FairSlices(timers)
        self._searcher = BatchSearcher(offloads("search", 1), memory, self.unpacking)
        self._max_searched_bytes = config.get_int(SEARCH_LIMIT)
        self._appender = self._make_appender(offloads, memory)
        self.append_to = self._appender.append
        self.when_flushed = self._maintenance.when_flushed
        self.mover = LogMover(
            logs,
            timers,
            offload=offloads("move", 1),
            find=self.partition,
            assign=None if reports is None else reports.assign,
            on_replaced=self._maintenance.log_replaced,
        )
        self._refused_moves = LogThrottle(logger)
        self._closed = False

    def _make_appender(self, offloads: OffloadFactory, memory: Memory | None) -> Appender:
        return Appender(
            self._timers,
            self.purgatory,
            Preparation(
                offloads("check", 1),
                offloads("roll", 1),
                self._timers,
                memory,
                self.unpacking,
            ),
            when_flushed=self._maintenance.when_flushed,
            on_storage_error=self.hosting.read_failed,
        )

    def _take_steps(self, steps: Iterator[None]) -> None:
        """Close a fetch session in steps. A stop takes all steps that are left."""
        self.fair_slices.begin(steps, lambda failure: None)

    def give_back_memory(self) -> None:
        """Called when memory pressure begins."""
        self._reader.give_back_memory()
        self.sessions.give_back_memory()

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
        """Append whole batches to a partition led here, in place. See `Appender.append`."""
        found = self.find(topic_partition.topic, topic_partition.partition)
        if isinstance(found, ErrorCode):
            return Refused(found)
        now_ms = self._timers.now_ms()
        if origin is AppendOrigin.CLIENT:
            request = AppendRequest(acks, timeout_ms, now_ms, produce_version, transaction_version)
        else:
            request = AppendRequest.of_origin(origin, acks, timeout_ms, now_ms, transaction_version)
        return self.append_to(found, batches, request)

    # fetch

    def fetch(
        self, request: FetchRequest, *, api_version: int, now_ms: int, listener_name: str = ""
    ) -> FetchResponse | DelayedResponse[FetchResponse]:
        """Answer a Fetch request: sessions, limits, waiting. The caller adds `current_leader` and
        the endpoints. listener_name: by which the client came.
        """
        by_id = api_version >= 13
        replica_id = request.replica_id if api_version < 15 else request.replica_state.replica_id
        context = self.sessions.context(request, by_id=by_id, replica_id=replica_id, now_ms=now_ms)
        if context.full:
            if context.error:
                return FetchResponse(error_code=int(context.error))
            if api_version >= RACK_SINCE_FETCH_VERSION:
                self._choose_replicas(context.fetch_set, request.rack_id, listener_name)
        if replica_id >= 0:
            context.fetch_set.replica_epoch = request.replica_state.replica_epoch
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

    def _choose_replicas(self, fetch_set: FetchSet, rack: str, listener_name: str) -> None:
        """Let a consumer read from followers, the closest one if there is a choice (KIP-392)."""
        if fetch_set.replica_id >= 0:
            return
        fetch_set.from_followers = True
        if self._selector is not None and rack:
            fetch_set.closest = ClosestReplica(self._selector, rack, listener_name)

    def fetch_in_steps(
        self, request: FetchRequest, *, api_version: int, now_ms: int, listener_name: str = ""
    ) -> Generator[Deferred[Any] | None, None, FetchResponse]:
        """As `fetch`, for a request of perhaps very many partitions (`FairSlices`)."""
        by_id = api_version >= 13
        replica_id = request.replica_id if api_version < 15 else request.replica_state.replica_id
        context = yield from self.sessions.context_in_steps(
            request, by_id=by_id, replica_id=replica_id, now_ms=now_ms
        )
        if context.full:
            if context.error:
                return FetchResponse(error_code=int(context.error))
            if api_version >= RACK_SINCE_FETCH_VERSION:
                self._choose_replicas(context.fetch_set, request.rack_id, listener_name)
        if replica_id >= 0:
            context.fetch_set.replica_epoch = request.replica_state.replica_epoch
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
    ) -> Steps[ListedOffset]:
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
            self.hosting.read_failed(found, error)
            return ListedOffset(ErrorCode.KAFKA_STORAGE_ERROR)

    def offset_of(self, topic_partition: TopicPartition, timestamp: int) -> Deferred[ListedOffset]:
        """As `list_offset`, for other parts of the broker: done on return unless timestamp is a
        time. Never fails: the result has the error.
        """
        answer: Deferred[ListedOffset] = Deferred()

        def steps() -> Iterator[Deferred[Any] | None]:
            answer.resolve((yield from self.list_offset(topic_partition, timestamp)))

        def done(failure: Exception | None) -> None:
            if failure is not None:
                answer.resolve(ListedOffset(as_kafka_error(failure).code))

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
        partition, _ = self.hosting.led(topic_partition)
        try:
            return offsets.segment_offsets(
                partition, timestamp, max_count=max_count, now_ms=now_ms, replica_id=replica_id
            )
        except OSError as failure:
            self.hosting.read_failed(partition, failure)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure)) from failure

    # the coordinators' port

    def read_led_log(self, topic_partition: TopicPartition, offset: int, max_bytes: int) -> bytes:
        """Whole batches of an internal topic led here, from offset (or the log's start) on, at
        least one; b"" at the log end. Raises KafkaError.

        A coordinator replays what is above the high watermark, too, and answers nothing from it
        until it is committed (`commit_wait`).
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
            self.hosting.read_failed(found, failure)
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
            self.hosting.read_failed(partition, failure)
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

    # periodic work and stop

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply settings that may change while the broker runs: those of the cleaner."""
        self._maintenance.cleaner.reconfigure(config)

    def start(self) -> None:
        """Begin the periodic work: retention, flushing, checkpoints, shrinking ISRs."""
        self._maintenance.start()
        self.mover.start()
        self.hosting.start_shrinking_isrs()

    def delete_records(self, topic_partition: TopicPartition, offset: int) -> int:
        """Move the start of a log led here up to offset (DeleteRecords), -1 for the high watermark.

        Returns where the log begins now. Raises KafkaError.
        """
        partition, log = self.hosting.led(topic_partition)
        if log.config.compact and not log.config.delete:
            raise KafkaError(ErrorCode.POLICY_VIOLATION)
        if offset == HIGH_WATERMARK:
            offset = partition.high_watermark
        if not 0 <= offset <= partition.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        try:
            if log.delete_records_before(offset):
                self.hosting.log_start_moved(partition)
        except LogDirectoryError as failure:
            self.hosting.read_failed(partition, failure)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure)) from failure
        return log.log_start_offset

    def await_low_watermark(
        self, topic_partition: TopicPartition, required_offset: int, timeout_ms: int
    ) -> LowWatermark | DelayedResponse[LowWatermark]:
        """See `low_watermark.await_low_watermark`. Raises KafkaError."""
        partition, _ = self.hosting.led(topic_partition)
        return await_low_watermark(partition, required_offset, timeout_ms, self.purgatory)

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
        return list(self.hosting.led(topic_partition)[1].producers.active_producers.values())

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

    def verification_guard(
        self, topic_partition: TopicPartition, producer_id: int
    ) -> tuple[int, int] | None:
        """(leader epoch, offset of the producer's last marker) of a partition led here: it changes
        when its transaction ends there (KIP-890: VerificationGuard). None: it is not led here.
        """
        partition = self.partition(topic_partition)
        if partition is None or not partition.is_leader:
            return None
        log: PartitionLog = partition.log  # type: ignore[assignment]  # the manager hosts PartitionLogs
        state = log.producers.active_producers.get(producer_id)
        return partition.leader_epoch, -1 if state is None else state.marker_offset

    def checkpoint_high_watermarks(self) -> None:
        """Write replication-offset-checkpoint. Blocks."""
        self.hosting.checkpoint_high_watermarks()

    def close(self) -> None:
        """Stop the periodic work, write the high watermarks, answer every request that waits.
        Blocks. Can be called twice.
        """
        if self._closed:
            return
        self._closed = True
        self.drop_orders()
        self.mover.stop()
        self.fair_slices.close()
        self._searcher.close()
        self._appender.close()
        self._maintenance.stop()
        self.sessions.close()
        self.checkpoint_high_watermarks()
        self.hosting.close()
        self.purgatory.run()
