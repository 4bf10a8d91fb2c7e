"""The shards of one internal topic on this broker: the common runtime of all coordinators. Groups,
transactions and share states are shards in separate rooms.

All follow one pattern (docs/adr/0005): a shard decides and returns `CoordinatorResult`s; the
runtime appends their records, replays them into the shard (`writer`), and sends the responses once
they are committed. A shard exists for each partition of the topic that this broker leads. It is
loaded by replay of its log (`loader`); if a write fails and the log end is unknown, the shard is
discarded and loaded again.

A record is replayed when it is in the log; the response is sent when the record is committed. The
response to a read includes the whole log, and is sent when all of that is committed
(`uncommitted`), so no client sees state that may still be lost. The same applies to records above
the high watermark at a load.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from kbroker.coordinator.runtime.coordinator_log import (
    CoordinatorLog,
    Transactional,
    client_error,
    is_in_log,
)
from kbroker.coordinator.runtime.host import Host, HostStatus, S
from kbroker.coordinator.runtime.loader import LOAD_STEP_BYTES, ShardLoader
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.runtime.result import CoordinatorResult, OutgoingRequest, Reply, Results
from kbroker.coordinator.runtime.uncommitted import Uncommitted
from kbroker.coordinator.runtime.writer import ShardWriter
from kbroker.model import InvariantError, TopicPartition
from kbroker.ports import Deferred, Timers
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

_NONE: Final = ErrorCode.NONE
_ACTIVE: Final = HostStatus.ACTIVE
_FAILED: Final = HostStatus.FAILED
"""Looking up an enum member costs ten times as much."""
WRITE_TIMEOUT_MS: Final = 5_000
"""The default of offsets.commit.timeout.ms."""
R = TypeVar("R")


class RequestSender(Protocol):
    """Sends the `OutgoingRequest`s of shards."""

    def send(
        self, request: OutgoingRequest, *, coordinator_epoch: int
    ) -> Deferred[Callable[[int], Results]]:
        """Send a request. The result returns further decisions, given now_ms; a failure has none.

        coordinator_epoch: the leader epoch of the shard's partition.
        """
        ...


class CoordinatorRuntime(Generic[S]):
    """The shards of one internal topic on this broker.

    base_sequence: that of written batches (see `encode_batch`). sender: for shards that send
    requests. write_timeout_ms: how long a response waits for the high watermark.
    """

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
        sender: RequestSender | None = None,
        write_timeout_ms: int = WRITE_TIMEOUT_MS,
    ) -> None:
        self._topic = topic
        self._timers = timers
        self._make_shard = make_shard
        self._sender = sender
        self._write_timeout_ms = write_timeout_ms
        self._hosts: dict[int, Host[S]] = {}
        self._answers: deque[Callable[[], None]] = deque()
        self._is_answering = False
        self._committed = Deferred.of(_NONE)
        self._loader: ShardLoader[S] = ShardLoader(
            log, timers, step_bytes=load_step_bytes, on_loaded=self._on_loaded
        )
        self._writer: ShardWriter[S] = ShardWriter(
            log, timers, compression=compression, base_sequence=base_sequence, reload=self._reload
        )

    # -- leadership --------------------------------------------------------------------------

    def on_leadership(self, partition: int, epoch: int | None) -> None:
        """This broker leads the partition from epoch on, or (None) does not lead it any more.

        An epoch older than the shard's is ignored. In a newer epoch the shard continues, since the
        log of a leader is not truncated, and its uncommitted writes go on waiting. If they fail,
        the shard is loaded again.
        """
        host = self._hosts.get(partition)
        if epoch is None:
            if host is not None:
                self._unload(host)
            return
        if host is not None:
            if epoch < host.epoch:
                return
            host.epoch = epoch
            if host.status is not _FAILED:
                return
            self._unload(host)
        self._load(partition, epoch)

    def host(self, partition: int) -> Host[S]:
        """The shard's host. Raises KafkaError(NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS)."""
        host = self._hosts.get(partition)
        if host is None or host.status is _FAILED:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if host.status is not _ACTIVE:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return host

    def hosts(self) -> Iterator[Host[S]]:
        """All hosts, by partition, with any status."""
        for partition in sorted(self._hosts):
            yield self._hosts[partition]

    def close(self) -> None:
        """Unload every shard, since the broker stops. Waiting requests get NOT_COORDINATOR."""
        for host in list(self._hosts.values()):
            self._unload(host)

    def _load(self, partition: int, epoch: int) -> None:
        topic_partition = TopicPartition(self._topic, partition)
        now_ms = self._timers.monotonic_ms()
        uncommitted = Uncommitted(self._timers, self._write_timeout_ms)
        host = Host(topic_partition, epoch, self._make_shard(), uncommitted, now_ms)
        self._hosts[partition] = host
        self._loader.load(host)

    def _on_loaded(self, host: Host[S]) -> None:
        self._writer.await_tail(host)
        self.carry_out(host, host.shard.on_loaded(self._timers.monotonic_ms()))

    def _unload(self, host: Host[S]) -> None:
        """Discard the shard. Waiting requests fail with NOT_COORDINATOR, so that clients look up
        the coordinator again.
        """
        if self._hosts.get(host.topic_partition.partition) is host:
            del self._hosts[host.topic_partition.partition]
        host.status = HostStatus.CLOSED
        if host.timer is not None:
            host.timer.cancel()
            host.timer = None
        replies = host.shard.unload(ErrorCode.NOT_COORDINATOR)
        host.uncommitted.close(ErrorCode.NOT_COORDINATOR)
        self.carry_out(host, replies)

    def _reload(self, host: Host[S]) -> None:
        """Load the shard again because the end of its log is unknown."""
        if host.status is HostStatus.CLOSED:
            return
        logger.warning(
            "%s epoch %d: the log end is unknown, loading the shard again",
            host.topic_partition,
            host.epoch,
        )
        self._unload(host)
        self._load(host.topic_partition.partition, host.epoch)

    # -- decisions ---------------------------------------------------------------------------

    def decide(
        self, partition: int, decide: Callable[[S, int], CoordinatorResult[R]]
    ) -> Deferred[R]:
        """`handle` the decision of the partition's shard, made with (shard, now_ms). Also fails
        with the KafkaError that decide raises, and as `host` does.
        """
        try:
            host = self.host(partition)
            result = decide(host.shard, self._timers.monotonic_ms())
        except KafkaError as error:
            return Deferred.failed(error)
        return self.handle(host, result)

    def handle(
        self,
        host: Host[S],
        result: CoordinatorResult[R],
        *,
        transaction: Transactional | None = None,
        error_of: Callable[[ErrorCode], ErrorCode] = client_error,
    ) -> Deferred[R]:
        """Execute a decision; returns its response, once its records are committed.

        Fails with KafkaError: error_of(the log's error) if the records are rejected,
        NOT_COORDINATOR if the shard is unloaded first. transaction: the records belong to it and
        are pending until its end.
        """
        response = result.response
        outcome = self._submit(host, result.records, transaction)
        if isinstance(response, Deferred):
            answer, complete = response, None
        elif not outcome.done:
            answer = Deferred()
            complete = partial(_complete, answer, response, error_of)
        else:
            complete = None
            error = outcome.value
            if error is _NONE:
                answer = Deferred.of(response)
            else:
                answer = Deferred.failed(KafkaError(error_of(error)))
        self.carry_out(host, self._follow(host, result, outcome, complete))
        return answer

    def carry_out(self, host: Host[S], results: Results) -> None:
        """Execute decisions without a request of their own: appends in order, then the replies to
        waiting requests.

        A reply may make its connection send the next request within this call. The replies of that
        request are queued behind the current ones, so no shard sees a partly executed operation.
        """
        if results:
            todo = deque(results)
            while todo:
                result = todo.popleft()
                if isinstance(result, Reply):
                    self._answers.append(result.deliver)
                else:
                    outcome = self._submit(host, result.records)
                    todo.extend(self._follow(host, result, outcome))
        self._arm(host)
        if self._answers:
            self._send_answers()

    def _follow(
        self,
        host: Host[S],
        result: CoordinatorResult[object],
        outcome: Deferred[ErrorCode],
        complete: Callable[[ErrorCode], None] | None = None,
    ) -> Results:
        """The decisions that directly follow one whose records were submitted. complete: called
        with a pending outcome once it is known.
        """
        is_pending = not outcome.done  # read first, since the callbacks below may complete it
        following: list[CoordinatorResult[object] | Reply] = []
        if result.replies:
            self._answers.extend(reply.deliver for reply in result.replies)
        if result.on_written is not None and (not result.records or is_in_log(outcome)):
            following += result.on_written(self._timers.monotonic_ms())
        for request in result.requests:
            following += self._send(host, request, self._timers.monotonic_ms())
        if is_pending:
            if complete is not None or result.on_completion is not None:
                outcome.on_done(partial(self._on_outcome, host, result, complete))
        elif result.on_completion is not None:
            error = client_error(outcome.value)
            following += result.on_completion(error, self._timers.monotonic_ms())
        return following

    def _submit(
        self,
        host: Host[S],
        records: Sequence[CoordinatorRecord],
        transaction: Transactional | None = None,
    ) -> Deferred[ErrorCode]:
        if records:
            return self._writer.write(host, records, transaction)
        if not host.uncommitted.writes:
            return self._committed
        return host.uncommitted.wait()

    def _on_outcome(
        self,
        host: Host[S],
        result: CoordinatorResult[object],
        complete: Callable[[ErrorCode], None] | None,
        error: ErrorCode,
    ) -> None:
        """A write is committed or failed, or its host was closed."""
        if complete is not None:
            self._answers.append(partial(complete, error))
        following: Results = []
        if host.status is _ACTIVE and result.on_completion is not None:
            following = result.on_completion(client_error(error), self._timers.monotonic_ms())
        self.carry_out(host, following)

    def _send(self, host: Host[S], request: OutgoingRequest, now_ms: int) -> Results:
        """Send a request; returns the following decisions if its result is already known."""
        if self._sender is None:
            raise InvariantError(f"the shards of {self._topic} send no requests")
        if host.status is not _ACTIVE:
            return []
        sent = self._sender.send(request, coordinator_epoch=host.epoch)
        if sent.done and sent.error is None:
            return sent.value(now_ms)
        sent.on_done(partial(self._on_sent, host), partial(self._on_send_failed, host, request))
        return []

    def _on_sent(self, host: Host[S], follow: Callable[[int], Results]) -> None:
        if host.status is _ACTIVE:
            self.carry_out(host, follow(self._timers.monotonic_ms()))

    @staticmethod
    def _on_send_failed(host: Host[S], request: OutgoingRequest, error: KafkaError) -> None:
        logger.warning("%s: request %r failed: %s", host.topic_partition, request, error)

    def _send_answers(self) -> None:
        if self._is_answering:
            return
        self._is_answering = True
        try:
            while self._answers:
                self._answers.popleft()()
        finally:
            self._is_answering = False

    # -- transactions and reads --------------------------------------------------------------

    def write_marker(
        self,
        partition: int,
        transaction: Transactional,
        *,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> Deferred[ErrorCode]:
        """End a transaction in one partition of this topic: see `ShardWriter.write_marker`."""
        try:
            host = self.host(partition)
        except KafkaError as error:
            return Deferred.of(error.code)
        return self._writer.write_marker(
            host,
            transaction,
            commit=commit,
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction_version,
        )

    def when_committed(self, host: Host[S]) -> Deferred[ErrorCode]:
        """For a response that was built from the host's shard without a decision: NONE once all
        records that are in the log now are committed; otherwise the client's error. Never fails.
        """
        if not host.uncommitted.writes:
            return self._committed
        return host.uncommitted.wait().then(client_error)

    # -- timers ------------------------------------------------------------------------------

    def _arm(self, host: Host[S]) -> None:
        """Set the host's timer to the shard's next deadline, or earlier."""
        if host.status is not _ACTIVE:
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
        if host.status is not _ACTIVE:
            return
        try:
            self.carry_out(host, host.shard.on_deadline(self._timers.monotonic_ms()))
        except InvariantError:
            raise
        except Exception:  # an error of one group: the other deadlines of the shard still fire
            logger.exception("%s: unexpected error in a deadline", host.topic_partition)
            self._arm(host)


def _complete(
    answer: Deferred[R], response: R, error_of: Callable[[ErrorCode], ErrorCode], error: ErrorCode
) -> None:
    if error is _NONE:
        answer.resolve(response)
    else:
        answer.fail(KafkaError(error_of(error)))
