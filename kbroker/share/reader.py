"""ShareFetch and ShareAcknowledge at work (KIP-932): sessions, acknowledgements, reading, waiting.

A request's acknowledgements are kept first, then it reads: from each share partition of its session
the batches that hold what may be delivered next, as file ranges; of what they hold the acquired
offsets say what is meant. A fetch that finds nothing waits on its share partitions, woken by
appends, releases and locks that end; one whose records were all skipped reads on at once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from kbroker.log.storage.files import FileSlice
from kbroker.ports import (
    Chained,
    Deferred,
    Memory,
    Timers,
    UnlimitedMemory,
    as_kafka_error,
    gather_by_key,
)
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.share_groups import ShareFetchResponse
from kbroker.protocol.records import BATCH_OVERHEAD, BatchHeader, read_batch_header
from kbroker.protocol.schema import Records
from kbroker.protocol.share_partition_state import SharePlace
from kbroker.replication.fetch import FREE_BYTES, SHORT_WAIT_MS, size_of
from kbroker.replication.manager import ReplicaManager
from kbroker.replication.purgatory import Waiter
from kbroker.replication.time_slices import Pace, SlicedSteps
from kbroker.settings.share_groups import ShareGroupConfig
from kbroker.share.partition import Acknowledgement, Acquired, AcquireLimits
from kbroker.share.partitions import OpenSharePartition, Outcome, SharePartitions
from kbroker.share.session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    Place,
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
"""Errors that do not hurry an answer."""
_MAGIC_2: Final = 2

STEP_PLACES: Final = 512
"""Partitions that a request adds to its session in one step."""

WATCH_BYTES: Final = 128
"""Memory of one share partition that a fetch waits on."""

PartitionData = ShareFetchResponse.PartitionData
Acknowledgements = Mapping[Place, Sequence[Acknowledgement]]
Outcomes = Mapping[Place, Outcome]
Answer = Mapping[Place, PartitionData]
Failures = dict[Place, PartitionData]
Opened = OpenSharePartition | ErrorCode


class ReadLimits(NamedTuple):
    """What a ShareFetch asks for at most. is_strict: max_records exactly."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    is_strict: bool


class Readable(NamedTuple):
    """Batches that hold what is next for a share partition. size_bytes: all of them."""

    place: Place
    found: OpenSharePartition
    offset: int
    records: Records
    end_offset: int
    size_bytes: int


class ShareReader:
    """The entry points. config_of: a group's settings."""

    def __init__(
        self,
        replicas: ReplicaManager,
        partitions: SharePartitions,
        timers: Timers,
        config_of: Callable[[str], ShareGroupConfig],
        *,
        max_sessions: int,
        memory: Memory | None = None,
    ) -> None:
        self._replicas = replicas
        self._partitions = partitions
        self._timers = timers
        self.config_of = config_of
        self.sessions = ShareSessions(max_sessions, memory)
        self.memory = memory or UnlimitedMemory()
        self.heavy: set[_Wait] = set()
        """Waits that are charged for."""
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
        self, session: ShareSession, added: Iterable[Place], forgotten: Iterable[Place]
    ) -> Generator[None, None, None]:
        """What a request says of the partitions to read, in steps. Raises
        KafkaError(SHARE_SESSION_LIMIT_REACHED) where memory has no room for them; the session has
        ended then.
        """
        was_alive = self.sessions.is_alive(session)  # not with its last request
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
        """A connection is gone, and with it its sessions."""
        for session in self.sessions.of_connection(connection_id):
            self.sessions.end(session.key)
            self.release(session)

    def release(self, session: ShareSession) -> Deferred[None]:
        """A session has ended: what its member had acquired is available again."""
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
        """What became of each partition's, once it is kept; passed on in steps."""
        group_id, member_id = session.key
        may_renew = may_renew and self.config_of(group_id).may_renew
        outcomes: dict[Place, Outcome] = {}
        waiting: dict[Place, Deferred[Outcome]] = {}
        pace = Pace()
        for place, items in acknowledgements.items():
            if pace.is_due():
                yield
            kept = self._partitions.acknowledge(
                SharePlace(group_id, place), member_id, items, may_renew=may_renew
            )
            if kept.done:
                outcomes[place] = kept.value
            else:
                waiting[place] = kept
        return gather_by_key(waiting).then(lambda later: {**outcomes, **later})

    # -- reading -----------------------------------------------------------------------------

    def fetch(self, session: ShareSession, limits: ReadLimits) -> Deferred[Answer]:
        """Records, or errors, of the session's partitions; waits if there are none."""
        pending = PendingFetch(self, session, limits)
        pending.begin()
        return pending.answer

    def open(
        self, session: ShareSession
    ) -> Generator[None, None, Deferred[Mapping[Place, Opened]]]:
        """Open the session's partitions, in steps. Returns those that are still being opened."""
        group_id = session.key[0]
        opening: dict[Place, Deferred[Opened]] = {}
        pace = Pace()
        for place in tuple(session.partitions):
            if pace.is_due():
                yield
            opened = self._partitions.open(SharePlace(group_id, place))
            if not opened.done:
                opening[place] = opened
        return gather_by_key(opening)

    def look(
        self, session: ShareSession, limits: ReadLimits
    ) -> Generator[None, None, tuple[list[Readable], Failures]]:
        """What can be delivered now, and what is wrong; in steps. What was found before a pause is
        read again after the last one, since another member may have acquired it.
        """
        config = self.config_of(session.key[0])
        found: list[Readable] = []
        failed: Failures = {}
        left = limits.max_bytes
        pace, has_paused = Pace(), False
        for place in tuple(session.partitions):
            if left <= 0 and found:
                break
            if pace.is_due():
                has_paused = True
                yield
            readable = self._look_at(session, place, config, left, not found, failed)
            if readable is not None:
                found.append(readable)
                left -= readable.size_bytes
        if has_paused:
            again = [
                self._look_at(session, former.place, config, former.size_bytes, True, failed)
                for former in found
            ]
            found = [readable for readable in again if readable is not None]
        return found, failed

    def _look_at(
        self,
        session: ShareSession,
        place: Place,
        config: ShareGroupConfig,
        max_bytes: int,
        min_one_batch: bool,
        failed: Failures,
    ) -> Readable | None:
        try:
            return self._readable(session.key[0], place, config, max_bytes, min_one_batch)
        except KafkaError as error:
            failed[place] = PartitionData(
                partition_index=place[1], error_code=error.code, records=b""
            )
            return None

    def _readable(
        self,
        group_id: str,
        place: Place,
        config: ShareGroupConfig,
        max_bytes: int,
        min_one_batch: bool,
    ) -> Readable | None:
        key = SharePlace(group_id, place)
        found = self._partitions.find(key)
        if found is None:
            opened = self._partitions.open(key)
            if not opened.done:
                return None
            if isinstance(opened.value, ErrorCode):
                raise KafkaError(opened.value)
            found = opened.value
        replica, core = found.replica, found.core
        error = replica.check_leader()
        if error:
            raise KafkaError(error)
        core.log_start_moved(replica.log.log_start_offset)
        offset = core.next_fetch_offset(config.group_share_partition_max_record_locks)
        found.reads_committed = config.reads_committed
        upper = replica.last_stable_offset if config.reads_committed else replica.high_watermark
        if offset is None or offset >= upper:
            return None
        read = self._replicas.read_records(
            replica,
            offset,
            max_bytes=max_bytes,
            upper_offset=upper,
            min_one_batch=min_one_batch,
        )
        if not read.records:
            return None
        records = read.records
        return Readable(place, found, offset, records, read.end_offset, size_of(records))

    def acquire(
        self, session: ShareSession, readable: Readable, limits: ReadLimits, max_records: int
    ) -> PartitionData | None:
        """Deliver of what can be; None if there was nothing for this session after all."""
        group_id, member_id = session.key
        config = self.config_of(group_id)
        found = readable.found
        aborted: list[tuple[int, int]] = []
        if config.reads_committed:
            aborted = [
                (transaction.first_offset, transaction.producer_id)
                for transaction in found.replica.log.aborted_transactions(
                    readable.offset, readable.end_offset
                )
            ]
        batches = _Batches(readable, aborted)
        acquired = self._partitions.acquire(
            found,
            member_id,
            batches.wanted(),
            AcquireLimits(
                max_records=max_records,
                batch_size=limits.batch_size,
                is_strict=limits.is_strict,
                max_locks=config.group_share_partition_max_record_locks,
                delivery_limit=config.group_share_delivery_count_limit,
                lock_ms=config.group_share_record_lock_duration_ms,
            ),
        )
        if not acquired:
            return None
        return PartitionData(
            partition_index=readable.place[1],
            records=batches.around(acquired),
            acquired_records=[
                ShareFetchResponse.AcquiredRecords(
                    first_offset=piece.first,
                    last_offset=piece.last,
                    delivery_count=piece.deliveries,
                )
                for piece in acquired
            ],
        )

    def has_skipped(self, session: ShareSession, found: Iterable[Readable]) -> bool:
        """Whether one of these share partitions now reads elsewhere, though nothing was acquired:
        the records that were read are of aborted transactions, or compacted away.
        """
        max_locks = self.config_of(session.key[0]).group_share_partition_max_record_locks
        next_offsets = [
            (readable.found.core.next_fetch_offset(max_locks), readable.offset)
            for readable in found
        ]
        return any(offset not in (None, former) for offset, former in next_offsets)

    def wait_on(self, session: ShareSession) -> list[OpenSharePartition]:
        """What a fetch of this session waits for."""
        group_id = session.key[0]
        return [
            found
            for place in session.partitions
            if (found := self._partitions.find(SharePlace(group_id, place))) is not None
        ]

    # Any: only its failure is set here
    def in_slices(self, steps: SlicedSteps, answer: Deferred[Any]) -> None:
        """Take these steps, the first ones at once. answer: fails if a step raises; of a Chained,
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
        """One turn of waiting for a fetch."""
        return _Wait(self._replicas, fetch)


class _Batches:
    """The batches that were read, as they are asked for: their headers only."""

    def __init__(self, readable: Readable, aborted: list[tuple[int, int]]) -> None:
        self._readable = readable
        self._aborted = sorted(aborted)
        self._seen: list[tuple[int, int, int]] = []
        """(last offset, position, end position) of each."""

    def wanted(self) -> Iterator[tuple[int, int]]:
        """(first, last) of each that a reader is to have. Offsets between them, of aborted
        transactions too, are passed over for good.
        """
        readable = self._readable
        core = readable.found.core
        expected = readable.offset
        ended: set[int] = set()
        for header, first, last in self._headers():
            if first > expected:
                core.skip(expected, first - 1)
            expected = last + 1
            if header is not None and self._is_aborted(header, last, ended):
                core.skip(max(first, readable.offset), last)
            else:
                yield max(first, readable.offset), last

    def _is_aborted(self, header: BatchHeader, last: int, ended: set[int]) -> bool:
        """ended: starts of aborted transactions whose marker has come."""
        if not self._aborted or not header.is_transactional:
            return False
        for start, producer_id in self._aborted:
            if start > last:
                break
            if producer_id == header.producer_id and start not in ended:
                if header.is_control:
                    ended.add(start)
                return True
        return False

    def _headers(self) -> Iterator[tuple[BatchHeader | None, int, int]]:
        """(header, first, last) in order; an older format is one batch without header."""
        records, position = self._readable.records, 0
        size = self._readable.size_bytes
        while position + BATCH_OVERHEAD <= size:
            header = read_batch_header(_bytes_of(records, position, BATCH_OVERHEAD))
            if header.magic != _MAGIC_2:
                self._seen.append((self._readable.end_offset - 1, position, size))
                yield None, self._readable.offset, self._readable.end_offset - 1
                return
            end = position + header.size_bytes
            self._seen.append((header.last_offset, position, end))
            yield header, header.base_offset, header.last_offset
            position = end

    def around(self, acquired: Sequence[Acquired]) -> Records:
        """The batches from that of the first acquired record to that of the last."""
        first, last = acquired[0].first, acquired[-1].last
        begin = next((start for end, start, _ in self._seen if end >= first), 0)
        stop = next((end for until, _, end in self._seen if until >= last), self._seen[-1][2])
        records = self._readable.records
        if isinstance(records, FileSlice):
            return FileSlice(records.file, records.position + begin, stop - begin)
        return memoryview(records)[begin:stop] if isinstance(records, bytes) else records


def _bytes_of(records: Records, position: int, count: int) -> bytes:
    if isinstance(records, FileSlice):
        return records.read(position, count)
    if isinstance(records, bytes | bytearray | memoryview):
        return bytes(records[position : position + count])
    raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)


class PendingFetch:
    """One ShareFetch from its first look to its answer."""

    def __init__(self, reader: ShareReader, session: ShareSession, limits: ReadLimits) -> None:
        self._reader = reader
        self.session = session
        self.limits = limits
        self._deadline_ms = reader.monotonic_ms() + limits.max_wait_ms
        self.answer: Chained[Answer] = Chained()

    def begin(self) -> None:
        """Open the partitions, then look."""
        self._reader.in_slices(self._open(), self.answer)

    def look(self) -> None:
        """Answer if there is enough, something is wrong, or there is no memory to wait; else wait.
        Nothing once the answer is cancelled.
        """
        if not self.answer.is_cancelled:
            self._reader.in_slices(self._look(), self.answer)

    def _open(self) -> SlicedSteps:
        opened = yield from self._reader.open(self.session)
        opened.on_done(lambda _: self.look(), self.answer.fail)

    def _look(self) -> SlicedSteps:
        if not self._reader.sessions.is_alive(self.session):
            self.answer.resolve({})
            return
        found, failed = yield from self._reader.look(self.session, self.limits)
        if not self._reader.sessions.is_alive(self.session):  # it ended during a pause
            self.answer.resolve({})
            return
        is_urgent = any(data.error_code not in PASSING for data in failed.values())
        size_bytes = sum(readable.size_bytes for readable in found)
        left_ms = self._deadline_ms - self._reader.monotonic_ms()
        if is_urgent or left_ms <= 0 or size_bytes >= max(self.limits.min_bytes, 1):
            answer = self._acquired(found)
            has_skipped = not answer and self._reader.has_skipped(self.session, found)
            if has_skipped and left_ms > 0 and not is_urgent:
                # What was read is passed over, and more may be readable: read on in the next turn.
                again = self._reader.waiter(self)
                self.answer.waits_for = again
                again.ready()
                return
            if answer or failed or left_ms <= 0:
                self.answer.resolve({**failed, **answer})
                return
        wait = self._reader.waiter(self)
        if wait.begin(left_ms, self.limits.min_bytes - size_bytes):
            self.answer.waits_for = wait
        else:
            self.answer.resolve({**failed, **self._acquired(found)})

    def hurry(self) -> int:
        """Memory is short: answer within SHORT_WAIT_MS. Returns the ms that are left."""
        now_ms = self._reader.monotonic_ms()
        self._deadline_ms = min(self._deadline_ms, now_ms + SHORT_WAIT_MS)
        return self._deadline_ms - now_ms

    def _acquired(self, found: Sequence[Readable]) -> dict[Place, PartitionData]:
        answer: dict[Place, PartitionData] = {}
        left = self.limits.max_records
        for readable in found:
            if left <= 0:
                break
            data = self._reader.acquire(self.session, readable, self.limits, left)
            if data is not None:
                answer[readable.place] = data
                self.session.served(readable.place)
                left -= sum(
                    piece.last_offset - piece.first_offset + 1 for piece in data.acquired_records
                )
        return answer


class _Wait(Waiter):
    """One turn of waiting for a fetch's share partitions. On many of them it is charged for."""

    __slots__ = ("_charged_bytes", "_fetch", "_missing_bytes", "_watched")

    def __init__(self, replicas: ReplicaManager, fetch: PendingFetch) -> None:
        super().__init__(replicas.purgatory)
        self._fetch = fetch
        self._charged_bytes = 0
        self._missing_bytes = 0
        self._watched: list[OpenSharePartition] = []

    def begin(self, wait_ms: int, missing_bytes: int) -> bool:
        """Wait, for so many bytes more. Returns False if memory has no room for it."""
        reader = self._fetch._reader
        self._missing_bytes = missing_bytes
        watched = reader.wait_on(self._fetch.session)
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
        """Memory is short: wait no longer than SHORT_WAIT_MS."""
        self.set_deadline(self._fetch.hurry())

    def more(self, size_bytes: int) -> None:
        """See `partitions.Waiting`."""
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0:
            self.ready()

    def wake(self) -> None:
        """See `partitions.Waiting`."""
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
