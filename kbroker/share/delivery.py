"""Delivery of records to the members of share groups (KIP-932): opens the share partitions of a
session, reads deliverable records, and acquires them for the member.

Finding batches and acquiring their records are two steps, because a ShareFetch that finds less than
its min_bytes waits and acquires nothing. Between them the headers of the batches are read, which
may take a while. Waiting is in `reader`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import NamedTuple

from kbroker.model import TopicIdPartition
from kbroker.ports import Deferred, Offload, gather_by_key
from kbroker.protocol.codecs.schema import size_of
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.share_groups import ShareFetchResponse
from kbroker.protocol.share_partition_state import SharePlace
from kbroker.replication.leaders.replica_log import AbortedRange
from kbroker.replication.manager import ReplicaManager
from kbroker.replication.time_slices import Pace, Steps
from kbroker.settings.views.share_groups import ShareGroupConfig
from kbroker.share.acquisition import AcquireLimits
from kbroker.share.open_partitions import OpenSharePartition
from kbroker.share.partitions import SharePartitions
from kbroker.share.read_batches import Readable, ReadBatches
from kbroker.share.session import ShareSession

PartitionData = ShareFetchResponse.PartitionData
Failures = dict[TopicIdPartition, PartitionData]
Opened = OpenSharePartition | ErrorCode


class ReadLimits(NamedTuple):
    """The limits of a ShareFetch. is_strict: max_records is exact, not rounded to whole batches."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    is_strict: bool


class Delivery:
    """See the module's docstring. config_of: a group's settings. offload: for batch headers that
    are not in the page cache.
    """

    def __init__(
        self,
        replicas: ReplicaManager,
        partitions: SharePartitions,
        config_of: Callable[[str], ShareGroupConfig],
        offload: Offload,
    ) -> None:
        self._replicas = replicas
        self._partitions = partitions
        self._config_of = config_of
        self._offload = offload

    def open(
        self, session: ShareSession
    ) -> Generator[None, None, Deferred[Mapping[TopicIdPartition, Opened]]]:
        """Open the session's partitions, in steps. Returns those that are still being opened."""
        group_id = session.key[0]
        opening: dict[TopicIdPartition, Deferred[Opened]] = {}
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
        """The batches that can be delivered now, and the errors; in steps. Batches found before a
        pause are read again after the last pause, since another member may have acquired them.
        """
        config = self._config_of(session.key[0])
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
        place: TopicIdPartition,
        config: ShareGroupConfig,
        max_bytes: int,
        min_one_batch: bool,
        failed: Failures,
    ) -> Readable | None:
        try:
            return self._readable(session.key[0], place, config, max_bytes, min_one_batch)
        except KafkaError as error:
            failed[place] = _failure(place, error)
            return None

    def _readable(
        self,
        group_id: str,
        place: TopicIdPartition,
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
        replica = found.replica
        error = replica.check_leader()
        if error:
            raise KafkaError(error)
        found.reads_committed = config.reads_committed
        offset = found.readable_offset(config.group_share_partition_max_record_locks)
        if offset is None:
            return None
        read = self._replicas.read_records(
            replica,
            offset,
            max_bytes=max_bytes,
            upper_offset=found.upper_offset,
            min_one_batch=min_one_batch,
        )
        if not read.records:
            return None
        records = read.records
        return Readable(place, found, offset, records, read.end_offset, size_of(records))

    def read(
        self, session: ShareSession, readable: Readable, max_records: int, failed: Failures
    ) -> Steps[ReadBatches | None]:
        """Read the headers of as many of these batches as `acquire` can need, in steps; acquires
        nothing. Returns None after an error, which is added to failed.
        """
        config = self._config_of(session.key[0])
        try:
            return (yield from self._read(readable, config, max_records))
        except KafkaError as error:
            failed[readable.place] = _failure(readable.place, error)
            return None

    def _read(
        self, readable: Readable, config: ShareGroupConfig, max_records: int
    ) -> Steps[ReadBatches]:
        replica, core = readable.found.replica, readable.found.core
        max_locks = config.group_share_partition_max_record_locks
        aborted: Sequence[AbortedRange] = ()
        try:
            if config.reads_committed:
                aborted = replica.log.aborted_transactions(readable.offset, readable.end_offset)
            batches = ReadBatches(readable, aborted)
            # `acquire` takes new records up to max_locks in flight, and any that are in flight
            most = max(max_locks, core.end_offset - core.start_offset)
            yield from batches.read(min(max_records, most), self._offload)
        except OSError as failure:
            self._replicas.hosting.read_failed(replica, failure)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure)) from failure
        return batches

    def acquire(
        self, session: ShareSession, batches: ReadBatches, limits: ReadLimits, max_records: int
    ) -> PartitionData | None:
        """Acquire records from these batches and return them; None if none could be acquired, or
        the share partition was closed while headers were read.
        """
        group_id, member_id = session.key
        config = self._config_of(group_id)
        place, found = batches.readable.place, batches.readable.found
        if self._partitions.find(found.key) is not found:
            return None
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
            partition_index=place[1],
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
        """Whether to look again although nothing was acquired. Either the batches held only records
        of aborted transactions or compacted offsets, so that the next fetch offset has advanced; or
        the share partition was changed by other requests, or closed, while headers were read.
        """
        max_locks = self._config_of(session.key[0]).group_share_partition_max_record_locks
        return any(
            self._partitions.find(readable.found.key) is not readable.found
            or readable.found.core.next_fetch_offset(max_locks) != readable.offset
            for readable in found
        )

    def wait_on(self, session: ShareSession) -> list[OpenSharePartition]:
        """The share partitions on which a fetch of this session waits."""
        group_id = session.key[0]
        return [
            found
            for place in session.partitions
            if (found := self._partitions.find(SharePlace(group_id, place))) is not None
        ]


def _failure(place: TopicIdPartition, error: KafkaError) -> PartitionData:
    return PartitionData(partition_index=place[1], error_code=error.code, records=b"")
