"""Shards of an internal topic: load, write, replay, timers. What every coordinator runs on.

One shape for all (docs/adr/0005): a core decides and returns effects; `CoordinatorRuntime` appends
their records as one batch, replays them into the shard, and lets answers out once they are
committed. A shard exists for each partition of the topic that this broker leads. Loading is replay
from the log in small steps, so the loop is not stopped; if a write fails in a way that leaves the
log's end unknown, the shard is thrown away and replayed again.

A record is replayed when it is in the log, an answer leaves when it is committed; reads wait for
what was appended before them, so nobody is shown what might still be taken back. The group
coordinator on top of it is in `runtime`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from kbroker.coordinator.runtime.effects import (
    Append,
    Effect,
    MarkerResults,
    Reply,
    TakeProducerId,
    WriteMarkers,
)
from kbroker.coordinator.runtime.records import CoordinatorRecord, encode_batch
from kbroker.log_lines import shown
from kbroker.model import InvariantError, TopicPartition
from kbroker.ports import Deferred, TimerHandle, Timers
from kbroker.protocol.compression import Compression
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    BatchHeader,
    ControlType,
    build_end_transaction_marker,
    control_type,
    iter_batches,
    iter_records,
)

logger = logging.getLogger(__name__)

LOAD_STEP_BYTES: Final = 256 * 1024
"""How much of the log is replayed in one turn of the loop, at most."""

_IN_LOG_ANYWAY: Final = frozenset(
    {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
)
"""The records were written; only whether they are committed is not known."""
_REFUSED: Final = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)
"""Said at once, these mean that nothing was written."""

_CLIENT_ERRORS: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class Transactional(NamedTuple):
    """The producer whose transaction a write belongs to."""

    producer_id: int
    producer_epoch: int


class AppendOutcome(Protocol):
    """What became of a batch; NONE is: committed. Replication's PartitionAppendResult is one."""

    @property
    def error(self) -> ErrorCode: ...


class CoordinatorLog(Protocol):
    """The port to the logs of the internal topic; `node/node.py` binds it to the replica
    manager.
    """

    def append(
        self, topic_partition: TopicPartition, batch: bytearray, *, transaction_version: int = 0
    ) -> AppendOutcome | Deferred[AppendOutcome]:
        """Write one batch with acks=all. A Deferred means: written, not yet committed.

        transaction_version: of the transaction that a marker ends.
        """
        ...

    def read(self, topic_partition: TopicPartition, offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that holds offset on, at least one; b"" at the log's end.

        Up to the log's end, not the high watermark: a leader never takes back what its log holds,
        and a tail that was left out would be missing when it is committed. An offset before the
        log's start reads from its start. Raises KafkaError.
        """
        ...


class MarkerWriter(Protocol):
    """The port to the partitions of a transaction, wherever they are."""

    def write_markers(
        self, effect: WriteMarkers, *, coordinator_epoch: int
    ) -> MarkerResults | Deferred[MarkerResults]:
        """Write the effect's marker into each of its partitions; what became of each."""
        ...


class Shard(Protocol):
    """The state of one partition of an internal topic, as the runtime sees it."""

    def decode(self, key: bytes | None, value: bytes | None) -> CoordinatorRecord | None: ...
    def replay(self, record: CoordinatorRecord) -> None: ...
    def replay_transactional(self, producer_id: int, record: CoordinatorRecord) -> None: ...
    def end_transaction(self, producer_id: int, *, commit: bool) -> None: ...
    def on_loaded(self, now_ms: int) -> list[Effect]: ...
    def unload(self, error: ErrorCode) -> list[Effect]: ...
    def next_deadline_ms(self) -> int | None: ...
    def on_deadline(self, now_ms: int) -> list[Effect]: ...
    def news(self, record: CoordinatorRecord) -> str | None:
        """What an operator would want to know of a record that was just written, if anything."""
        ...


S = TypeVar("S", bound=Shard)


class HostStatus(Enum):
    """LOADING until the log was replayed; FAILED until the next leadership if it could not be."""

    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    CLOSED = "closed"


class Host(Generic[S]):
    """One shard at work, and what it waits for. pending: writes in the log that are not committed
    yet.
    """

    __slots__ = (
        "epoch",
        "load_offset",
        "load_started_ms",
        "pending",
        "record_count",
        "shard",
        "status",
        "timer",
        "timer_ms",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition, epoch: int, shard: S, now_ms: int) -> None:
        self.topic_partition = topic_partition
        self.epoch = epoch
        self.shard = shard
        self.status = HostStatus.LOADING
        self.load_offset = 0
        self.load_started_ms = now_ms
        self.record_count = 0
        self.pending: deque[Deferred[ErrorCode]] = deque()
        self.timer: TimerHandle | None = None
        self.timer_ms = 0


class CoordinatorRuntime(Generic[S]):
    """The shards of one internal topic on this broker."""

    def __init__(
        self,
        topic: str,
        *,
        log: CoordinatorLog,
        timers: Timers,
        make_shard: Callable[[], S],
        compression: Compression = Compression.NONE,
        load_step_bytes: int = LOAD_STEP_BYTES,
        base_sequence: int = 0,
        markers: MarkerWriter | None = None,
        next_producer_id: Callable[[], int | Deferred[int]] | None = None,
    ) -> None:
        self._topic = topic
        self._log = log
        self._timers = timers
        self._make_shard = make_shard
        self._compression = compression
        self._load_step_bytes = load_step_bytes
        self._base_sequence = base_sequence
        self._markers = markers
        self._next_producer_id = next_producer_id
        self._hosts: dict[int, Host[S]] = {}
        self._replies: deque[Reply] = deque()
        self._is_replying = False

    # -- leadership --------------------------------------------------------------------------

    def on_leadership(self, partition: int, epoch: int | None) -> None:
        """This broker leads the partition from epoch on, or (None) no longer does."""
        host = self._hosts.get(partition)
        if epoch is None:
            if host is not None:
                self._unload(host)
            return
        if host is not None:
            if epoch < host.epoch:
                return
            host.epoch = epoch
            if host.status is not HostStatus.FAILED:
                return
            self._unload(host)
        self._load(partition, epoch)

    def host(self, partition: int) -> Host[S]:
        """The shard's host. Raises KafkaError(NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS)."""
        host = self._hosts.get(partition)
        if host is None or host.status is HostStatus.FAILED:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if host.status is not HostStatus.ACTIVE:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return host

    def hosts(self) -> Iterator[Host[S]]:
        """All hosts, by partition, whatever their status."""
        for partition in sorted(self._hosts):
            yield self._hosts[partition]

    def close(self) -> None:
        """Unload everything: the broker stops. Who waits is sent elsewhere."""
        for host in list(self._hosts.values()):
            self._unload(host)

    def _load(self, partition: int, epoch: int) -> None:
        topic_partition = TopicPartition(self._topic, partition)
        now_ms = self._timers.monotonic_ms()
        host = self._hosts[partition] = Host(topic_partition, epoch, self._make_shard(), now_ms)
        self._load_step(host)

    def _load_step(self, host: Host[S]) -> None:
        """Read the next piece; an empty log is loaded at once, anything else in turns of its
        own.
        """
        if host.status is not HostStatus.LOADING:
            return
        try:
            data = self._log.read(host.topic_partition, host.load_offset, self._load_step_bytes)
        except KafkaError as error:
            self._load_failed(host, error)
            return
        if data:
            self._timers.call_later(0, lambda: self._replay_step(host, data))
            return
        host.status = HostStatus.ACTIVE
        now_ms = self._timers.monotonic_ms()
        if host.record_count:
            logger.info(
                "Loaded %s epoch %d: %d records in %d ms",
                host.topic_partition,
                host.epoch,
                host.record_count,
                now_ms - host.load_started_ms,
            )
        self.carry_out(host, host.shard.on_loaded(now_ms))

    def _replay_step(self, host: Host[S], data: bytes) -> None:
        """Replay what was read, up to as many bytes unpacked as a turn may read; what is left is
        read again in the next turn.
        """
        if host.status is not HostStatus.LOADING:
            return
        replayed_bytes = 0
        try:
            for position, header in iter_batches(data):
                if replayed_bytes >= self._load_step_bytes:
                    break
                if header.last_offset >= host.load_offset:
                    batch = memoryview(data)[position : position + header.size_bytes]
                    replayed_bytes += self._replay_batch(host, batch, header)
                    host.load_offset = header.next_offset
        except KafkaError as error:
            self._load_failed(host, error)
            return
        self._load_step(host)

    def _replay_batch(self, host: Host[S], batch: memoryview, header: BatchHeader) -> int:
        """Returns the bytes of its keys and values."""
        shard = host.shard
        size = 0
        host.record_count += header.record_count
        records = iter_records(batch, header)
        if header.is_control:
            for record in records:
                kind = control_type(record)
                if kind in (ControlType.COMMIT, ControlType.ABORT):
                    commit = kind is ControlType.COMMIT
                    shard.end_transaction(header.producer_id, commit=commit)
            return 0
        decode, replay = shard.decode, shard.replay
        if header.is_transactional:
            replay = partial(shard.replay_transactional, header.producer_id)
        for record in records:
            size += len(record.key or b"") + len(record.value or b"")
            try:
                decoded = decode(record.key, record.value)
            except KafkaError as error:
                logger.error(
                    "%s offset %d skipped: %s", host.topic_partition, record.offset, shown(error)
                )
                continue
            if decoded is not None:
                replay(decoded)
        return size

    def _load_failed(self, host: Host[S], error: KafkaError) -> None:
        logger.error(
            "%s epoch %d cannot be loaded: %s", host.topic_partition, host.epoch, shown(error)
        )
        host.status = HostStatus.FAILED

    def _unload(self, host: Host[S]) -> None:
        """Forget the shard; everybody who waits for it is told to look for the coordinator
        again.
        """
        if self._hosts.get(host.topic_partition.partition) is host:
            del self._hosts[host.topic_partition.partition]
        host.status = HostStatus.CLOSED
        if host.timer is not None:
            host.timer.cancel()
            host.timer = None
        pending, host.pending = host.pending, deque()
        replies = host.shard.unload(ErrorCode.NOT_COORDINATOR)
        for deferred in pending:
            deferred.resolve(ErrorCode.NOT_COORDINATOR)
        self.carry_out(host, replies)

    def _reload(self, host: Host[S]) -> None:
        """What the log ends with is not known: replay it."""
        if host.status is HostStatus.CLOSED:
            return
        logger.warning("%s epoch %d is loaded again", host.topic_partition, host.epoch)
        self._unload(host)
        self._load(host.topic_partition.partition, host.epoch)

    # -- operations --------------------------------------------------------------------------

    def carry_out(self, host: Host[S], effects: list[Effect]) -> None:
        """Do what a core asked for: appends in order, then the answers.

        An answer may make its connection send the next request into this very call: that request's
        own answers queue up behind the present ones, so a core never sees half of another
        operation.
        """
        todo = deque(effects)
        while todo:
            effect = todo.popleft()
            if isinstance(effect, Reply):
                self._replies.append(effect)
            elif isinstance(effect, Append):
                todo.extend(self._append(host, effect))
            elif isinstance(effect, TakeProducerId):
                todo.extend(self._take_producer_id(host, effect))
            else:
                todo.extend(self._write_markers(host, effect))
        self._arm(host)
        self._reply()

    def _append(self, host: Host[S], effect: Append) -> list[Effect]:
        """Write; what follows, if that is known already."""
        outcome = self.submit(host, effect.records)
        now_ms = self._timers.monotonic_ms()
        effects: list[Effect] = []
        if effect.written is not None and is_in_log(outcome):
            effects = effect.written(now_ms)
        if effect.then is None:
            return effects
        if isinstance(outcome, ErrorCode):
            return effects + effect.then(client_error(outcome), now_ms)
        outcome.on_done(partial(self._continue, host, effect))
        return effects

    def _write_markers(self, host: Host[S], effect: WriteMarkers) -> list[Effect]:
        if self._markers is None:
            raise InvariantError(f"{self._topic} has no transactions to end")
        if host.status is not HostStatus.ACTIVE:
            return []
        results = self._markers.write_markers(effect, coordinator_epoch=host.epoch)
        if isinstance(results, Deferred):
            results.on_done(partial(self._markers_done, host, effect))
            return []
        return effect.then(results, self._timers.monotonic_ms())

    def _markers_done(self, host: Host[S], effect: WriteMarkers, results: MarkerResults) -> None:
        if host.status is HostStatus.ACTIVE:
            self.carry_out(host, effect.then(results, self._timers.monotonic_ms()))

    def _take_producer_id(self, host: Host[S], effect: TakeProducerId) -> list[Effect]:
        if self._next_producer_id is None:
            raise InvariantError(f"{self._topic} gives out no producer ids")
        try:
            fresh = self._next_producer_id()
        except KafkaError as error:
            logger.warning("%s: no producer id: %s", host.topic_partition, error)
            return []
        if isinstance(fresh, Deferred):
            fresh.on_done(partial(self._on_producer_id, host, effect))
            return []
        return effect.then(fresh, self._timers.monotonic_ms())

    def _on_producer_id(self, host: Host[S], effect: TakeProducerId, producer_id: int) -> None:
        if host.status is HostStatus.ACTIVE:
            self.carry_out(host, effect.then(producer_id, self._timers.monotonic_ms()))

    def write(
        self,
        host: Host[S],
        records: Sequence[CoordinatorRecord],
        transaction: Transactional | None = None,
    ) -> ErrorCode | Deferred[ErrorCode]:
        """Append records as one batch and replay them. NONE: committed; a Deferred: in the log, not
        yet committed.

        transaction: what they belong to, and wait for. Any other error is the log's own: see
        `client_error` and `commit_error`.
        """
        if host.status is not HostStatus.ACTIVE:
            return ErrorCode.NOT_COORDINATOR
        producer_id, producer_epoch = transaction or (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        try:
            batch = encode_batch(
                records,
                self._timers.now_ms(),
                self._compression,
                base_sequence=self._base_sequence,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
            )
        except ValueError as error:
            logger.warning("%s: a record cannot be written: %s", host.topic_partition, shown(error))
            return ErrorCode.MESSAGE_TOO_LARGE
        replay = partial(self._replay_written, host, records, transaction)
        return self._write_batch(host, batch, replay)

    def write_marker(
        self,
        partition: int,
        transaction: Transactional,
        *,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> ErrorCode | Deferred[ErrorCode]:
        """End a transaction in one partition of this topic; as `write`. What it wrote there counts
        from now on, or is forgotten.
        """
        try:
            host = self.host(partition)
        except KafkaError as error:
            return error.code
        batch = build_end_transaction_marker(
            commit=commit,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=self._timers.now_ms(),
        )

        def replay() -> None:
            host.shard.end_transaction(transaction.producer_id, commit=commit)

        return self._write_batch(host, batch, replay, transaction_version)

    def _write_batch(
        self,
        host: Host[S],
        batch: bytearray,
        replay: Callable[[], None],
        transaction_version: int = 0,
    ) -> ErrorCode | Deferred[ErrorCode]:
        try:
            outcome = self._log.append(
                host.topic_partition, batch, transaction_version=transaction_version
            )
        except KafkaError as error:
            return self._refused(host, error.code)
        if isinstance(outcome, Deferred):
            if not outcome.done:
                replay()
                deferred: Deferred[ErrorCode] = Deferred()
                host.pending.append(deferred)
                outcome.on_done(lambda result: self._on_outcome(host, deferred, result.error))
                return deferred
            outcome = outcome.value
        error_code = outcome.error
        if error_code is not ErrorCode.NONE and error_code not in _IN_LOG_ANYWAY:
            return self._refused(host, error_code)
        replay()
        return error_code

    def submit(
        self, host: Host[S], records: Sequence[CoordinatorRecord]
    ) -> ErrorCode | Deferred[ErrorCode]:
        """`write`, and log what is news. Without records: when all before is committed."""
        if not records:
            return self.after_pending(host) or ErrorCode.NONE
        outcome = self.write(host, records)
        if is_in_log(outcome):
            self._log_news(host, records)
        return outcome

    def after_pending(self, host: Host[S]) -> Deferred[ErrorCode] | None:
        """Resolves when all that is in the log now is committed; None if it is."""
        return host.pending[-1] if host.pending else None

    @staticmethod
    def _replay_written(
        host: Host[S], records: Sequence[CoordinatorRecord], transaction: Transactional | None
    ) -> None:
        shard = host.shard
        for record in records:
            if transaction is None:
                shard.replay(record)
            else:
                shard.replay_transactional(transaction.producer_id, record)

    def _log_news(self, host: Host[S], records: Sequence[CoordinatorRecord]) -> None:
        for record in records:
            news = host.shard.news(record)
            if news is not None:
                logger.info("%s: %s", host.topic_partition, shown(news))

    def _refused(self, host: Host[S], error: ErrorCode) -> ErrorCode:
        if error not in _REFUSED:
            self._timers.call_later(0, lambda: self._reload(host))
        return error

    def _on_outcome(self, host: Host[S], deferred: Deferred[ErrorCode], error: ErrorCode) -> None:
        if deferred.done:
            return  # unloaded meanwhile, and answered then
        host.pending.remove(deferred)
        if error is not ErrorCode.NONE and error not in _IN_LOG_ANYWAY:
            self._timers.call_later(0, lambda: self._reload(host))
        deferred.resolve(error)

    def _continue(self, host: Host[S], effect: Append, error: ErrorCode) -> None:
        if host.status is HostStatus.ACTIVE:
            if effect.then is not None:
                effects = effect.then(client_error(error), self._timers.monotonic_ms())
                self.carry_out(host, effects)
        elif effect.lost is not None:
            self._replies.append(effect.lost(client_error(error)))
            self._reply()

    def _reply(self) -> None:
        if self._is_replying:
            return
        self._is_replying = True
        try:
            while self._replies:
                reply = self._replies.popleft()
                reply.waiter.resolve(reply.response)
        finally:
            self._is_replying = False

    # -- timers ------------------------------------------------------------------------------

    def _arm(self, host: Host[S]) -> None:
        """Let the timer ring at the shard's next deadline, or before."""
        if host.status is not HostStatus.ACTIVE:
            return
        due_ms = host.shard.next_deadline_ms()
        if due_ms is None:
            return
        if host.timer is not None:
            if host.timer_ms <= due_ms:
                return
            host.timer.cancel()
        host.timer_ms = due_ms
        delay_ms = max(due_ms - self._timers.monotonic_ms(), 0)
        host.timer = self._timers.call_later(delay_ms, lambda: self._on_timer(host))

    def _on_timer(self, host: Host[S]) -> None:
        host.timer = None
        if host.status is not HostStatus.ACTIVE:
            return
        try:
            self.carry_out(host, host.shard.on_deadline(self._timers.monotonic_ms()))
        except InvariantError:
            raise
        except Exception:  # of one group: the deadlines of the shard's others go on
            logger.exception("%s: a deadline failed", host.topic_partition)
            self._arm(host)


def is_in_log(outcome: ErrorCode | Deferred[ErrorCode]) -> bool:
    """Whether a write of this outcome was replayed, also if it will be told to have failed."""
    if isinstance(outcome, Deferred):
        return True
    return outcome is ErrorCode.NONE or outcome in _IN_LOG_ANYWAY


def client_error(error: ErrorCode) -> ErrorCode:
    """What a client is told when the group's record could not be written for this reason. As
    Kafka.
    """
    return _CLIENT_ERRORS.get(error, error)


def commit_error(error: ErrorCode) -> ErrorCode:
    """The same for committed offsets."""
    return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if error in _TOO_LARGE else client_error(error)
