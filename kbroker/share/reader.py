"""The entry points of ShareFetch and ShareAcknowledge (KIP-932).

A request's acknowledgements are written first, then the request reads: from each share partition of
its session the batches with deliverable records, as file ranges (`delivery`). The acquired offsets
in the response tell the client which records of these batches are delivered. A partition that
cannot be read has an error in the response, and the others are delivered. A fetch that finds
nothing waits on its share partitions until an append, a release or an expired lock wakes it; a
fetch whose records were all skipped reads again in the next turn of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from kbroker.model import TopicIdPartition
from kbroker.ports import (
    Chained,
    Deferred,
    Memory,
    Offload,
    Timers,
    UnlimitedMemory,
    as_kafka_error,
    gather_by_key,
)
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.share_partition_state import SharePlace
from kbroker.replication.manager import ReplicaManager
from kbroker.replication.purgatory import Waiter
from kbroker.replication.reads.fetch import FREE_BYTES, SHORT_WAIT_MS
from kbroker.replication.time_slices import Pace, SlicedSteps, Steps
from kbroker.settings.views.share_groups import ShareGroupConfig
from kbroker.share.acknowledgement import Acknowledgement
from kbroker.share.delivery import Delivery, Failures, PartitionData, ReadLimits
from kbroker.share.open_partitions import OpenSharePartition
from kbroker.share.partitions import AcknowledgeOutcome, SharePartitions
from kbroker.share.read_batches import Readable
from kbroker.share.session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    SessionKey,
    ShareSession,
    ShareSessions,
)

PASSING: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""Errors for which a fetch keeps waiting."""

STEP_PLACES: Final = 512
"""How many partitions a request adds to its session in one step."""

WATCH_BYTES: Final = 128
"""Memory of one share partition on which a fetch waits."""

Acknowledgements = Mapping[TopicIdPartition, Sequence[Acknowledgement]]
Outcomes = Mapping[TopicIdPartition, AcknowledgeOutcome]
Answer = Mapping[TopicIdPartition, PartitionData]


class ShareReader:
    """The entry points. config_of: a group's settings. offload: see `Delivery`."""

    def __init__(
        self,
        replicas: ReplicaManager,
        partitions: SharePartitions,
        timers: Timers,
        config_of: Callable[[str], ShareGroupConfig],
        *,
        offload: Offload,
        max_sessions: int,
        memory: Memory | None = None,
    ) -> None:
        self._replicas = replicas
        self._partitions = partitions
        self._timers = timers
        self.config_of = config_of
        self.delivery = Delivery(replicas, partitions, config_of, offload)
        self.sessions = ShareSessions(max_sessions, memory)
        self.memory = memory or UnlimitedMemory()
        self.heavy: set[_Wait] = set()
        """Waits that are charged to the memory limit."""
        partitions.is_read = self.sessions.has_group

    # -- sessions ----------------------------------------------------------------------------

    def session(self, key: SessionKey, epoch: int, connection_id: str) -> ShareSession:
        """The session of a request. Raises KafkaError."""
        if epoch == INITIAL_EPOCH:
            return self.sessions.begin(key, connection_id)
        if epoch == FINAL_EPOCH:
            return self.sessions.end(key)
        return self.sessions.go_on(key, epoch)

    def update(
        self,
        session: ShareSession,
        added: Iterable[TopicIdPartition],
        forgotten: Iterable[TopicIdPartition],
    ) -> Generator[None, None, None]:
        """Update the session's partitions from a request, in steps. Raises
        KafkaError(SHARE_SESSION_LIMIT_REACHED) if they exceed the memory limit; the session has
        then ended.
        """
        was_alive = self.sessions.is_alive(session)  # false for its last request
        leaving, coming = iter(forgotten), iter(added)
        while places := list(islice(leaving, STEP_PLACES)):
            session.update((), places)
            yield
        while places := list(islice(coming, STEP_PLACES)):
            session.update(places, ())
            yield
        if was_alive and not self.sessions.is_alive(session):  # it ended during a pause
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        if not self.sessions.account(session):
            self.sessions.end(session.key)
            self.release(session)
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)

    def disconnected(self, connection_id: str) -> None:
        """End the sessions of a closed connection."""
        for session in self.sessions.of_connection(connection_id):
            self.sessions.end(session.key)
            self.release(session)

    def release(self, session: ShareSession) -> Deferred[None]:
        """Release the records acquired by the member of a session that has ended."""
        group_id = session.key[0]

        def released(_: object) -> None:
            if not self.sessions.has_group(group_id):
                self._partitions.close_group(group_id)

        return self._partitions.release(group_id, session.member_id).then(released)

    def give_back_memory(self) -> None:
        """Called when memory pressure begins: charged fetches wait only a little longer."""
        for wait in self.heavy:
            wait.hurry()

    # -- acknowledgements --------------------------------------------------------------------

    def acknowledge(
        self, session: ShareSession, acknowledgements: Acknowledgements, *, may_renew: bool
    ) -> Generator[None, None, Deferred[Outcomes]]:
        """Apply acknowledgements; resolves with the outcome of each partition once it is written.
        Runs in steps.
        """
        group_id, member_id = session.key
        may_renew = may_renew and self.config_of(group_id).may_renew
        outcomes: dict[TopicIdPartition, AcknowledgeOutcome] = {}
        waiting: dict[TopicIdPartition, Deferred[AcknowledgeOutcome]] = {}
        pace = Pace()
        for place, items in acknowledgements.items():
            if pace.is_due():
                yield
            kept = yield from self._partitions.acknowledge(
                SharePlace(group_id, place), member_id, items, may_renew=may_renew
            )
            if kept.done:
                outcomes[place] = kept.value
            else:
                waiting[place] = kept
        return gather_by_key(waiting).then(lambda later: {**outcomes, **later})

    # -- reading -----------------------------------------------------------------------------

    def fetch(self, session: ShareSession, limits: ReadLimits) -> Deferred[Answer]:
        """Fetch records, or errors, of the session's partitions; waits if there are none."""
        pending = PendingFetch(self, session, limits)
        pending.begin()
        return pending.answer

    # Any: only a failure is set here
    def in_slices(self, steps: SlicedSteps, answer: Deferred[Any]) -> None:
        """Run these steps in slices, the first slice at once. answer: fails if a step raises; its
        `cancel` ends the steps.
        """

        def done(failure: Exception | None) -> None:
            if failure is not None:
                answer.fail(as_kafka_error(failure))

        work = self._replicas.fair_slices.begin(steps, done)
        if isinstance(answer, Chained) and not work.is_over:
            answer.waits_for = work

    def monotonic_ms(self) -> int:
        return self._timers.monotonic_ms()

    def waiter(self, fetch: PendingFetch) -> _Wait:
        """Create a wait for a fetch."""
        return _Wait(self._replicas, fetch)


class PendingFetch:
    """One ShareFetch from its first read to its response."""

    def __init__(self, reader: ShareReader, session: ShareSession, limits: ReadLimits) -> None:
        self._reader = reader
        self.session = session
        self.limits = limits
        self._deadline_ms = reader.monotonic_ms() + limits.max_wait_ms
        self.answer: Chained[Answer] = Chained()

    def begin(self) -> None:
        """Open the partitions, then read."""
        self._reader.in_slices(self._open(), self.answer)

    def look(self) -> None:
        """Respond if min_bytes are reached, there is an error, or there is no memory to wait;
        otherwise wait. No effect once the response is cancelled.
        """
        if not self.answer.is_cancelled:
            self._reader.in_slices(self._look(), self.answer)

    def _open(self) -> SlicedSteps:
        opened = yield from self._reader.delivery.open(self.session)
        opened.on_done(lambda _: self.look(), self.answer.fail)

    def _look(self) -> SlicedSteps:
        delivery = self._reader.delivery
        if self._has_ended():
            return
        found, failed = yield from delivery.look(self.session, self.limits)
        if self._has_ended():  # during a pause
            return
        size_bytes = sum(readable.size_bytes for readable in found)
        if self._is_urgent(failed) or size_bytes >= max(self.limits.min_bytes, 1):
            answer = yield from self._acquired(found, failed)
            if self._has_ended():
                return
            has_skipped = not answer and delivery.has_skipped(self.session, found)
            if has_skipped and not self._is_urgent(failed):
                # These records are skipped; more may be readable: read again in the next turn.
                again = self._reader.waiter(self)
                self.answer.waits_for = again
                again.ready()
                return
            if answer or failed or self._left_ms() <= 0:
                self.answer.resolve({**failed, **answer})
                return
        wait = self._reader.waiter(self)
        if wait.begin(self._left_ms(), self.limits.min_bytes - size_bytes):
            self.answer.waits_for = wait
            return
        answer = yield from self._acquired(found, failed)
        if not self._has_ended():
            self.answer.resolve({**failed, **answer})

    def _has_ended(self) -> bool:
        """Whether the session has ended. The response is then empty."""
        if self._reader.sessions.is_alive(self.session):
            return False
        self.answer.resolve({})
        return True

    def _left_ms(self) -> int:
        return self._deadline_ms - self._reader.monotonic_ms()

    def _is_urgent(self, failed: Failures) -> bool:
        """Whether to respond now: the time is up, or there is an error."""
        return self._left_ms() <= 0 or any(
            data.error_code not in PASSING for data in failed.values()
        )

    def hurry(self) -> int:
        """Under memory pressure: respond within SHORT_WAIT_MS. Returns the remaining ms."""
        now_ms = self._reader.monotonic_ms()
        self._deadline_ms = min(self._deadline_ms, now_ms + SHORT_WAIT_MS)
        return self._deadline_ms - now_ms

    def _acquired(
        self, found: Sequence[Readable], failed: Failures
    ) -> Steps[dict[TopicIdPartition, PartitionData]]:
        """Acquire records, in steps. Partitions that cannot be read are added to failed."""
        reader = self._reader
        answer: dict[TopicIdPartition, PartitionData] = {}
        left = self.limits.max_records
        for readable in found:
            if left <= 0:
                break
            batches = yield from reader.delivery.read(self.session, readable, left, failed)
            if not reader.sessions.is_alive(self.session):
                break  # what its member had acquired was released
            if batches is None:
                continue
            data = reader.delivery.acquire(self.session, batches, self.limits, left)
            if data is not None:
                answer[readable.place] = data
                self.session.served(readable.place)
                left -= sum(
                    piece.last_offset - piece.first_offset + 1 for piece in data.acquired_records
                )
        return answer


class _Wait(Waiter):
    """One wait of a fetch on its share partitions. It is charged to the memory limit if they are
    many.
    """

    __slots__ = ("_charged_bytes", "_fetch", "_missing_bytes", "_watched")

    def __init__(self, replicas: ReplicaManager, fetch: PendingFetch) -> None:
        super().__init__(replicas.purgatory)
        self._fetch = fetch
        self._charged_bytes = 0
        self._missing_bytes = 0
        self._watched: list[OpenSharePartition] = []

    def begin(self, wait_ms: int, missing_bytes: int) -> bool:
        """Wait for more bytes. Returns False if the memory limit does not allow the wait."""
        reader = self._fetch._reader
        self._missing_bytes = missing_bytes
        watched = reader.delivery.wait_on(self._fetch.session)
        held_bytes = len(watched) * WATCH_BYTES
        if held_bytes > FREE_BYTES:
            if not reader.memory.has_room(held_bytes):
                return False
            self._charged_bytes = held_bytes
            reader.memory.charge(held_bytes)
            reader.heavy.add(self)
            if reader.memory.is_short:
                wait_ms = self._fetch.hurry()
        self._watched = watched
        for found in watched:
            found.wait(self)
        self.set_deadline(wait_ms)
        return True

    def hurry(self) -> None:
        """Under memory pressure: wait no longer than SHORT_WAIT_MS."""
        self.set_deadline(self._fetch.hurry())

    def more(self, size_bytes: int) -> None:
        """See `open_partitions.Waiting`."""
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0:
            self.ready()

    def wake(self) -> None:
        """See `open_partitions.Waiting`."""
        self.ready()

    def withdraw(self) -> None:
        for found in self._watched:
            found.leave(self)
        self._watched = []
        if self._charged_bytes:
            self._fetch._reader.heavy.discard(self)
            self._fetch._reader.memory.release(self._charged_bytes)

    def complete(self) -> None:
        self._fetch.look()
