"""Reads for Fetch: one pass over the partitions that may have new records, then a response or one
waiter.

KIP-74 (at least one whole batch for the first partition that has any, however small the limits),
KIP-98 (read_committed: up to the last stable offset, with the aborted transactions), KIP-320
(epochs, diverging epoch). The records in a response are file ranges by reference. Which partitions
are read is decided in `fetch_session`; waiters are woken in `purgatory`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from kbroker.model import TopicPartition
from kbroker.ports import Deferred, Memory, Timers, UnlimitedMemory
from kbroker.protocol.codecs.pieces import merge
from kbroker.protocol.codecs.schema import size_of
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.replication.partition import Partition
from kbroker.replication.purgatory import DelayedResponse, Purgatory, Waiter
from kbroker.replication.reads.fetch_session import FetchContext
from kbroker.replication.reads.fetch_set import (
    FetchLimits,
    FetchPartition,
    FetchSet,
    ReadingSteps,
    TopicKey,
)
from kbroker.replication.reads.partition_read import (
    NO_EPOCH,
    NOT_FOUND,
    PartitionData,
    is_settled,
    read_elsewhere,
    read_partition,
    read_throttled,
    readable_end,
    refused,
    tell_diverged_again,
)
from kbroker.replication.throttle import ReplicationThrottle

logger = logging.getLogger(__name__)

ANSWER_BYTES: Final = 384
"""Memory of a partition's part of a response that is not sent yet, without the records."""

FREE_BYTES: Final = 4096
"""A waiting fetch that holds less memory than this is not charged."""

STEP_PARTITIONS: Final = 64
"""Partitions that are read in one step of a large request."""

STEP_ANSWERS: Final = 256
"""Partitions that are added to the response in one step."""

SHORT_WAIT_MS: Final = 100
"""The longest wait of a charged fetch while memory is short."""


class _Progress:
    """The results of a pass over the partitions so far."""

    __slots__ = ("outgoing", "size_bytes", "urgent")

    def __init__(self) -> None:
        self.outgoing: dict[FetchPartition, PartitionData] = {}
        self.size_bytes = 0
        self.urgent = False
        """Whether an error, a diverging epoch or another replica ends the wait."""


class FetchReader:
    """The fetch entry point.

    find: the hosted partition of (topic name or id, index), or the error to answer.
    on_storage_error: called when a log cannot be read; the partition is offline afterwards.
    throttle: of this broker's followers. memory: charged for large fetches while they wait.
    """

    __slots__ = (
        "_damages",
        "_find",
        "_heavy",
        "_on_storage_error",
        "_purgatory",
        "_throttle",
        "_timers",
        "memory",
    )

    def __init__(
        self,
        *,
        find: Callable[[TopicKey, int], Partition | ErrorCode],
        on_storage_error: Callable[[Partition, OSError], None],
        purgatory: Purgatory,
        timers: Timers,
        throttle: ReplicationThrottle,
        memory: Memory | None = None,
    ) -> None:
        self._throttle = throttle
        self.memory = memory or UnlimitedMemory()
        self._heavy: set[_PendingFetch] = set()
        self._find = find
        self._on_storage_error = on_storage_error
        self._purgatory = purgatory
        self._timers = timers
        self._damages: dict[TopicPartition, str] = {}

    def fetch(
        self, context: FetchContext, limits: FetchLimits
    ) -> FetchResponse | DelayedResponse[FetchResponse]:
        """Respond at once if min_bytes are there, max_wait is 0, a partition has what ends the
        wait (`_Progress.urgent`), or none can have records; otherwise wait.
        """
        fetch_set = context.fetch_set
        progress = _Progress()
        if fetch_set.dirty:
            self._read(fetch_set, tuple(fetch_set.dirty), context.full, limits, progress)
        if (
            progress.urgent
            or progress.size_bytes >= limits.min_bytes
            or limits.max_wait_ms <= 0
            or not self._is_interesting(fetch_set)
        ):
            return self._answer(context, progress)
        held_bytes = _held_bytes(fetch_set, progress)
        if held_bytes and not self.memory.has_room(held_bytes):
            return self._answer(context, progress)
        return _PendingFetch(self, context, limits, progress).start(held_bytes)

    def fetch_in_steps(
        self, context: FetchContext, limits: FetchLimits
    ) -> Generator[Deferred[Any] | None, None, FetchResponse]:
        """As `fetch`, for a set of perhaps very many partitions: a step for each few of them.

        Another request of the session in between, the end of the session, or the loss of a
        partition makes this one respond as soon as all its steps are taken.
        """
        fetch_set = context.fetch_set
        progress = _Progress()
        reading = ReadingSteps()
        fetch_set.waiter = reading
        try:
            yield None
            yield from self._read_in_steps(context, limits, progress)
            if not (
                reading.is_ready
                or progress.urgent
                or progress.size_bytes >= limits.min_bytes
                or limits.max_wait_ms <= 0
                or not self._is_interesting(fetch_set)
            ):
                held_bytes = _held_bytes(fetch_set, progress)
                if not held_bytes or self.memory.has_room(held_bytes):
                    pending = _PendingSteps(self, context, limits, progress)
                    yield from self._wait(pending, held_bytes, reading.added_bytes)
                    yield from self._read_in_steps(context, limits, progress)
            yield None
            response = yield from self._respond_in_steps(context, progress)
            if not fetch_set.lasts:
                progress.outgoing.clear()  # so that the set frees its partitions in steps
                fetch_set.waiter = None
                yield from fetch_set.close_in_steps()
            return response
        finally:
            if fetch_set.waiter is reading:
                fetch_set.waiter = None
            if not fetch_set.lasts:
                fetch_set.close()
            if fetch_set.closed:
                fetch_set.clear()

    def _wait(
        self, pending: _PendingSteps, held_bytes: int, added_bytes: int
    ) -> Generator[Deferred[Any] | None, None, None]:
        """Wait for the next read. added_bytes: appended while other partitions were read."""
        response = pending.start(held_bytes)
        pending.more(added_bytes)
        try:
            yield response
        finally:
            response.cancel()  # harmless once it is resolved

    def _read_in_steps(
        self, context: FetchContext, limits: FetchLimits, progress: _Progress
    ) -> Generator[None, None, None]:
        """`_read` all dirty partitions, in steps. Those already read are watched."""
        dirty = context.fetch_set.dirty
        progress.size_bytes = 0
        wanted = tuple(dirty)
        for begin in range(0, len(wanted), STEP_PARTITIONS):
            some = [each for each in wanted[begin : begin + STEP_PARTITIONS] if each in dirty]
            self._read(
                context.fetch_set,
                some,
                context.full,
                FetchLimits(
                    max_wait_ms=limits.max_wait_ms,
                    min_bytes=limits.min_bytes,
                    max_bytes=limits.max_bytes - progress.size_bytes,
                ),
                progress,
                progress.size_bytes,
            )
            for each in some:
                each.watch()
            yield None

    def _answer(self, context: FetchContext, progress: _Progress) -> FetchResponse:
        response = self._respond(context, progress)
        if not context.fetch_set.lasts:
            context.fetch_set.clear()
        return response

    def give_back_memory(self) -> None:
        """Called when memory pressure begins: large fetches wait only a little longer."""
        for fetch in self._heavy:
            fetch.hurry()

    def _is_interesting(self, fetch_set: FetchSet) -> bool:
        """Whether any partition may still have records; a wait for unknown partitions alone would
        be pointless.
        """
        return len(fetch_set.dirty) < fetch_set.size or any(
            partition.partition is not None for partition in fetch_set.dirty
        )

    def _read(
        self,
        fetch_set: FetchSet,
        asked: Sequence[FetchPartition],
        full: bool,
        limits: FetchLimits,
        progress: _Progress,
        size_bytes: int = 0,
        *,
        is_woken: bool = False,
    ) -> None:
        """One pass over dirty partitions. Those read to their end are clean and watched afterwards.
        asked: not `dirty` itself, which changes. size_bytes: read in earlier steps of this pass.
        is_woken: a follower's fetch was counted before the wait, as in Kafka.
        """
        dirty = fetch_set.dirty
        lasts = fetch_set.lasts
        follows = fetch_set.replica_id >= 0
        read = read_partition
        now_ms = self._timers.monotonic_ms() if follows else 0
        if follows and self._throttle.is_active:
            read = partial(read_throttled, self._throttle, now_ms=now_ms)
        counted_ms = now_ms if follows and not is_woken else None
        outgoing = progress.outgoing
        left = limits.max_bytes
        for wanted in asked:
            if left <= 0 and size_bytes and not full:
                break
            partition = wanted.partition or self._look_up(wanted, progress)
            if partition is None:
                continue
            try:
                if fetch_set.closest is not None and (
                    data := read_elsewhere(partition, wanted, fetch_set.closest, self._timers)
                ):
                    outgoing[wanted] = data
                    progress.urgent = True
                    continue
                data = read(partition, wanted, left, not size_bytes, counted_ms)
            except (KafkaError, OSError) as error:
                self._read_failed(partition, wanted, error, progress)
                continue
            records = data.records
            if records:
                size = size_of(records)
                size_bytes += size
                left -= size
                del dirty[wanted]
                dirty[wanted] = None  # at the end: the others come first next time
                outgoing[wanted] = data
            else:
                if data.diverging_epoch is not NO_EPOCH:
                    progress.urgent = True
                    outgoing[wanted] = data
                elif wanted.fetch_offset >= readable_end(partition, fetch_set) and (
                    not follows or is_settled(wanted, partition)
                ):
                    del dirty[wanted]
                    wanted.dirty = False
                    if lasts and not wanted.watching:
                        wanted.watch()
                if (
                    full
                    or wanted in outgoing
                    or data.high_watermark != wanted.sent_high_watermark
                    or data.log_start_offset != wanted.sent_log_start_offset
                ):
                    outgoing[wanted] = data
        progress.size_bytes = size_bytes

    def _look_up(self, wanted: FetchPartition, progress: _Progress) -> Partition | None:
        """The hosted partition; None if there is none: the response then has the error."""
        found = self._find(wanted.topic, wanted.index)
        if isinstance(found, ErrorCode):
            self._failed(wanted, found, progress)
            progress.urgent |= found not in NOT_FOUND
            return None
        wanted.partition = found
        return found

    def _read_failed(
        self,
        partition: Partition,
        wanted: FetchPartition,
        error: KafkaError | OSError,
        progress: _Progress,
    ) -> None:
        name = partition.topic_partition
        if isinstance(error, OSError):
            self._on_storage_error(partition, error)
            code = ErrorCode.KAFKA_STORAGE_ERROR
            partition.traffic.failed_fetches += 1
        else:
            code = error.code
            partition.traffic.failed_fetches += code == ErrorCode.CORRUPT_MESSAGE
            if code == ErrorCode.CORRUPT_MESSAGE and self._damages.get(name) != error.message:
                self._damages[name] = error.message  # it is asked for again and again
                logger.error("%s cannot be read: %s", name, error.message)
        self._failed(wanted, code, progress)
        progress.urgent = True

    def _failed(self, wanted: FetchPartition, error: ErrorCode, progress: _Progress) -> None:
        """Answer an error. The partition stays dirty and is looked up again next time."""
        wanted.unwatch()
        wanted.partition = None
        progress.outgoing[wanted] = refused(wanted, error)

    def _respond(self, context: FetchContext, progress: _Progress) -> FetchResponse:
        """The response, grouped by topic in the order read; a full one in the request's order."""
        follows = context.fetch_set.replica_id >= 0
        if follows and self._throttle.is_active:
            sent = (
                (wanted.partition.topic_partition, data.records or b"")
                for wanted, data in progress.outgoing.items()
                if wanted.partition is not None
            )
            self._throttle.count(sent, self._timers.monotonic_ms())
        responses: list[FetchResponse.FetchableTopicResponse] = []
        topic: TopicKey | None = None
        partitions: list[PartitionData] = []
        for wanted, data in progress.outgoing.items():
            if wanted.topic != topic:
                topic = wanted.topic
                partitions = []
                responses.append(
                    FetchResponse.FetchableTopicResponse(topic=topic, partitions=partitions)
                    if isinstance(topic, str)
                    else FetchResponse.FetchableTopicResponse(topic_id=topic, partitions=partitions)
                )
            partitions.append(data)
            records = data.records
            if records and wanted.partition is not None:
                if follows:
                    wanted.partition.traffic.replication_bytes_out += size_of(records)
                else:
                    wanted.partition.traffic.bytes_out += size_of(records)
            wanted.sent_high_watermark = data.high_watermark
            wanted.sent_log_start_offset = data.log_start_offset
        if progress.urgent:
            tell_diverged_again(progress.outgoing)
        return FetchResponse(session_id=context.session_id, responses=responses)

    def _respond_in_steps(
        self, context: FetchContext, progress: _Progress
    ) -> Generator[None, None, FetchResponse]:
        response = FetchResponse(session_id=context.session_id, responses=[])
        outgoing = iter(progress.outgoing.items())
        piece = _Progress()
        piece.urgent = progress.urgent
        while some := dict(islice(outgoing, STEP_ANSWERS)):
            piece.outgoing = some
            merge(response, self._respond(context, piece), ("responses", "partitions"), 1)
            yield None
        return response


def _held_bytes(fetch_set: FetchSet, progress: _Progress) -> int:
    """Bytes that a fetch holds until its response; 0 if they are few. A session has its own
    account.
    """
    held_bytes = len(progress.outgoing) * ANSWER_BYTES
    if not fetch_set.lasts:
        held_bytes += fetch_set.held_bytes
    return held_bytes if held_bytes > FREE_BYTES else 0


class _PendingFetch(Waiter):
    """A fetch that waits for min_bytes on all partitions of its set."""

    __slots__ = (
        "_charged_bytes",
        "_context",
        "_limits",
        "_missing_bytes",
        "_progress",
        "_reader",
        "response",
    )

    def __init__(
        self, reader: FetchReader, context: FetchContext, limits: FetchLimits, progress: _Progress
    ) -> None:
        super().__init__(reader._purgatory)
        self._reader = reader
        self._context = context
        self._limits = limits
        self._progress = progress
        self._missing_bytes = limits.min_bytes - progress.size_bytes
        self._charged_bytes = 0
        self.response: DelayedResponse[FetchResponse] = DelayedResponse(self)

    def start(self, held_bytes: int) -> DelayedResponse[FetchResponse]:
        """Watch the partitions that are not watched yet. held_bytes: charged during the wait."""
        fetch_set = self._context.fetch_set
        fetch_set.waiter = self
        for partition in fetch_set.dirty if fetch_set.lasts else fetch_set:
            partition.watch()
        wait_ms = self._limits.max_wait_ms
        if held_bytes:
            self._charged_bytes = held_bytes
            self._reader._heavy.add(self)
            self._reader.memory.charge(held_bytes)
            if self._reader.memory.is_short:
                wait_ms = min(wait_ms, SHORT_WAIT_MS)
        self.set_deadline(wait_ms)
        return self.response

    def hurry(self) -> None:
        """Called when memory is short: shortens the wait to `SHORT_WAIT_MS`."""
        if self._limits.max_wait_ms > SHORT_WAIT_MS:
            self.set_deadline(SHORT_WAIT_MS)

    def more(self, added_bytes: int) -> None:
        """A partition of the set has so many more bytes to read."""
        self._missing_bytes -= added_bytes
        if self._missing_bytes <= 0:
            self.ready()

    def withdraw(self) -> None:
        if self._charged_bytes:
            self._reader._heavy.discard(self)
            self._reader.memory.release(self._charged_bytes)
        fetch_set = self._context.fetch_set
        if fetch_set.waiter is self:
            fetch_set.waiter = None
        if not fetch_set.lasts:
            fetch_set.close()

    def cancel(self) -> None:
        super().cancel()
        if self._context.fetch_set.closed:
            self._context.fetch_set.clear()

    def complete(self) -> None:
        """Read the partitions that moved, and those that had records in the first pass."""
        context = self._context
        fetch_set = context.fetch_set
        self.forget_what_moved()
        self._reader._read(
            fetch_set,
            tuple(fetch_set.dirty),
            context.full,
            self._limits,
            self._progress,
            is_woken=True,
        )
        self.response.resolve(self._reader._respond(context, self._progress))
        if fetch_set.closed:
            fetch_set.clear()

    def forget_what_moved(self) -> None:
        """Drop the results of partitions that moved, since they are read again."""
        if not self._context.full:
            for partition in self._context.fetch_set.dirty:
                self._progress.outgoing.pop(partition, None)


class _PendingSteps(_PendingFetch):
    """A waiting fetch whose further steps are taken after the wait."""

    __slots__ = ()

    def complete(self) -> None:
        """The response is made in steps."""
        self.forget_what_moved()
        self.response.resolve(FetchResponse())
