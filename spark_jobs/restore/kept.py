"""Records at the offsets that they have in the source, each once, without transactions: the markers
of a transaction take offsets.

All runs of a copy write with one producer id, kept in the copy's first token, and the sequence of a
record is its offset (modulo 2^31). A broker appends a batch only behind the sequence before it, so
whatever is repeated (a request, a task attempt, a run, a forgotten task of an earlier run) is
appended once and at its place, and the end of the partition says how far it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from kbroker.client.cluster import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    READ_UNCOMMITTED,
    TopicPartition,
)
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import BatchHeader
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.transactions import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)

from ..errors import JobError
from ..exactly_once.driver import TaskReport
from ..exactly_once.errors import Failure, TaskFailure, task_failure
from ..exactly_once.grant import DEFAULT_LIMITS, WriterLimits
from ..exactly_once.produce import produce
from ..exactly_once.records import MAX_SEQUENCE, RecordFields, estimate, record_too_large
from ..exactly_once.rows import rows, source_offsets
from ..exactly_once.tasks import report_rows
from ..exactly_once.topics import TargetTopic
from ..wire.client import BlockingClient, ClusterAddress
from ..wire.fetch import batches_of, fetch
from ..wire.offsets import list_offset

if TYPE_CHECKING:
    import pyarrow as pa

EPOCH: Final = 0
"""Of a producer id without a transactional id."""

OVERTAKEN_S: Final = 10.0
"""How long the end of a partition may take to show what another attempt has written."""

_OVERTAKEN: Final = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.DUPLICATE_SEQUENCE_NUMBER}
)

KeptRecord = tuple[int, RecordFields]
"""With its offset."""


def new_producer_id(client: BlockingClient) -> int:
    """A producer id of its own, without a transactional id. Raises KafkaError."""

    def init() -> int:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        response = client.any(request, InitProducerIdResponse, max_version=4)
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code), "InitProducerId")
        return response.producer_id

    return client.retry(init)


def ends_foreign(client: BlockingClient, place: TopicPartition, end: int, producer_id: int) -> bool:
    """Whether the record before `end`, the end of a partition, is not one that a copy with this
    producer id has written there. False where that record was deleted.

    A broker forgets the sequences of a producer id that has not written for a day
    (producer.id.expiration.ms) and takes any then, also behind a record of another producer.
    Raises KafkaError.
    """
    start = client.retry(partial(list_offset, client, place, EARLIEST_TIMESTAMP))
    if start >= end:
        return False

    def last_batch() -> BatchHeader | None:
        data = fetch(client, place, end - 1, READ_UNCOMMITTED, 1)
        for header, _ in batches_of(data):
            if header.base_offset <= end - 1 <= header.last_offset:
                return header
        return None

    deadline = client.clock.monotonic() + OVERTAKEN_S
    while (header := client.retry(last_batch)) is None:  # a new leader, or the cleaner removed it
        if client.clock.monotonic() > deadline:
            return False
        client.clock.sleep(0.1)
    is_own = header.producer_id == producer_id and not header.is_control
    return not is_own or header.base_sequence != header.base_offset & MAX_SEQUENCE


@dataclass(frozen=True, slots=True)
class KeptGrant:
    """What a task needs to write; picklable. producer_id: of the whole copy."""

    address: ClusterAddress
    topic: TargetTopic
    producer_id: int
    compression: Compression = Compression.LZ4
    limits: WriterLimits = DEFAULT_LIMITS


class KeptPartition:
    """Writes one partition in the order of its offsets. Raises TaskFailure."""

    def __init__(self, grant: KeptGrant, client: BlockingClient, place: TopicPartition) -> None:
        self._grant = grant
        self._client = client
        self._place = place
        self._open: list[KeptRecord] = []
        self._size_bytes = 0
        self._next = self._end()
        self._refuse_foreign()
        self.written = 0

    def write(self, offset: int, record: RecordFields) -> None:
        """Take a record; one that is in the target already is left out."""
        if offset < self._next:
            return
        if offset != self._next:
            raise TaskFailure(
                Failure.FATAL,
                f"the source has no record for {self._place} at offset {self._next}, the next one "
                f"is {offset}: offsets cannot be kept; restore to another topic with --offsets map",
            )
        self._open.append((offset, record))
        self._next = offset + 1
        self._size_bytes += estimate(record)
        if self._size_bytes >= self._grant.limits.batch_bytes:
            self.flush()

    def flush(self) -> None:
        """Send what was taken, until it is acknowledged."""
        records, self._open, self._size_bytes = self._open, [], 0
        if records:
            self._send(records)

    def _send(self, records: Sequence[KeptRecord]) -> None:
        first = records[0][0]
        data = self._batch(records)
        limit = self._grant.topic.max_message_bytes
        if limit is not None and len(data) > limit:
            self._send_halves(records, len(data))
            return
        try:
            base_offset = produce(
                self._client,
                self._place,
                data,
                timeout_ms=self._grant.limits.produce_timeout_ms,
            )
        except KafkaError as error:
            if error.code is ErrorCode.MESSAGE_TOO_LARGE:
                self._send_halves(records, len(data))
                return
            if error.code not in _OVERTAKEN:
                raise task_failure(error, f"writing to {self._place}") from error
            self._send_rest(records)
            return
        if base_offset != first:
            raise TaskFailure(
                Failure.FATAL,
                f"offset {first} of the source is offset {base_offset} of {self._place}: another "
                "producer writes to it, so offsets cannot be kept; restore to an empty topic",
            )
        self.written += len(records)

    def _batch(self, records: Sequence[KeptRecord]) -> bytearray:
        return build_batch(
            (record for _, record in records),
            compression=self._grant.compression,
            producer_id=self._grant.producer_id,
            producer_epoch=EPOCH,
            base_sequence=records[0][0] & MAX_SEQUENCE,
        )

    def _send_halves(self, records: Sequence[KeptRecord], size_bytes: int) -> None:
        if len(records) == 1:
            limit = self._grant.topic.max_message_bytes
            raise record_too_large(self._place, records[0][1], size_bytes, limit)
        half = len(records) // 2
        self._send(records[:half])
        self._send(records[half:])

    def _send_rest(self, records: Sequence[KeptRecord]) -> None:
        """Send what another attempt, whose batches were cut otherwise, has not written."""
        first = records[0][0]
        clock = self._client.clock
        deadline = clock.monotonic() + OVERTAKEN_S
        while (end := self._end()) <= first:
            if clock.monotonic() > deadline:
                raise TaskFailure(
                    Failure.RESTART,
                    f"{self._place} ends at {end} and does not take offset {first}",
                )
            clock.sleep(0.1)
        rest = [record for record in records if record[0] >= end]
        if rest:
            self._send(rest)

    def _refuse_foreign(self) -> None:
        """A record of another producer before the end counts as one that is written, so that the
        source's would be left out.
        """
        try:
            is_foreign = ends_foreign(
                self._client, self._place, self._next, self._grant.producer_id
            )
        except KafkaError as error:
            raise task_failure(error, f"reading the last record of {self._place}") from error
        if is_foreign:
            raise TaskFailure(
                Failure.FATAL,
                f"another producer wrote to {self._place} before offset {self._next}, so offsets "
                "cannot be kept any more; restore to an empty topic",
            )

    def _end(self) -> int:
        try:
            return self._client.retry(
                partial(list_offset, self._client, self._place, LATEST_TIMESTAMP)
            )
        except KafkaError as error:
            raise task_failure(error, f"reading the end of {self._place}") from error


@dataclass(frozen=True, slots=True)
class KeepTask:
    """Writes the rows of a task and yields its report, for `mapInArrow`."""

    grant: KeptGrant

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields one record batch in REPORT_SCHEMA."""
        yield report_rows(write_kept(self.grant, batches))


def write_kept(grant: KeptGrant, batches: Iterable[pa.RecordBatch]) -> TaskReport:
    """Write rows, which are in the order of their offsets in each partition, and wait until all of
    them are acknowledged. The report counts what this attempt has written.
    """
    client = BlockingClient(grant.address)
    partitions: dict[TopicPartition, KeptPartition] = {}
    try:
        for batch in batches:
            offsets = source_offsets(batch)
            pairs = rows(batch, topic=grant.topic.name, now_ms=-1)
            for offset, (place, record) in zip(offsets, pairs, strict=True):
                partition = partitions.get(place)
                if partition is None:
                    partition = partitions[place] = KeptPartition(grant, client, place)
                partition.write(offset, record)
        for partition in partitions.values():
            partition.flush()
        return TaskReport({place: each.written for place, each in partitions.items()})
    except TaskFailure as failure:
        return TaskReport(failure=failure.failure, message=failure.message)
    except JobError as error:  # no broker answers
        return TaskReport(failure=Failure.RESTART, message=str(error))
    finally:
        client.close()
