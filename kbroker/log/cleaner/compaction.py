"""Which records of a batch compaction keeps, and the batch that remains. KIP-534, KIP-98, and the
default strategy (by offset) of KIP-280.

A record is kept if the dirty part of the log has no later record of its key; a record without a
value (a tombstone) is kept until the delete horizon of its batch has passed. The horizon is set
when the tombstone is first seen as the last record of its key: now + delete.retention.ms, stored in
the base timestamp (attribute bit 6). Records of aborted transactions are removed at once; a
transaction marker is removed when no record of its transaction remains and its own horizon has
passed. The last batch of a producer, and the last batch of the round, are kept even if empty, to
preserve sequence numbers and offsets.

This module reads no files and no clock. `round` supplies the bytes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from itertools import compress
from typing import Final, NamedTuple

from kbroker.log.cleaner.offset_map import OffsetMap
from kbroker.log.producer.producer_state import ProducerStateManager
from kbroker.log.storage.index_entries import AbortedTransaction
from kbroker.protocol.batches.batch_builder import build_batch, replace_records
from kbroker.protocol.batches.batch_header import BATCH_OVERHEAD, BatchHeader
from kbroker.protocol.batches.compression import Buffer, Compression, decompress
from kbroker.protocol.batches.control_records import ControlType, control_type
from kbroker.protocol.batches.records import StoredRecord, append_varint, iter_records, scan_records
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.views.log_config import MAX_UNPACKED_BYTES

LISTED_RECORDS: Final = 10_000
"""For a batch with more records the list of record positions is not kept, but computed a second
time: such a list may take 35 times the memory of the records.
"""


class BatchTooLarge(Exception):
    """A batch decompresses to more than is allowed: it is kept unchanged and its keys are not
    indexed.
    """


def unpack_records(header: BatchHeader, batch: Buffer, max_bytes: int) -> bytes:
    """The decompressed records of a whole batch. Raises KafkaError as `iter_records` does, and
    BatchTooLarge.
    """
    body = memoryview(batch)[BATCH_OVERHEAD : header.size_bytes]
    if header.codec is Compression.NONE:
        return bytes(body)
    try:
        return bytes(decompress(header.codec, body, max_bytes=max_bytes))
    except KafkaError as error:
        if error.code == ErrorCode.MESSAGE_TOO_LARGE:
            raise BatchTooLarge from None
        raise


class _Scan:
    """The records of a batch; can be iterated repeatedly."""

    __slots__ = ("_count", "_data")

    def __init__(self, data: bytes, count: int) -> None:
        self._data = data
        self._count = count

    def __iter__(self) -> Iterator[StoredRecord]:
        return scan_records(self._data, self._count)


def _records(data: bytes, count: int) -> Iterable[StoredRecord]:
    scan = _Scan(data, count)
    return list(scan) if count <= LISTED_RECORDS else scan


class _OpenAborted:
    """An aborted transaction whose marker has not been reached yet. seen: one of its batches is
    still in the log.
    """

    __slots__ = ("seen", "transaction")

    def __init__(self, transaction: AbortedTransaction) -> None:
        self.transaction = transaction
        self.seen = False


class TransactionView:
    """Tracks which transactions are open, and whether they will abort, while batches are passed in
    offset order.

    kept: aborted transactions whose marker must stay, in order; the caller copies them into the new
    transaction index.
    """

    __slots__ = ("_aborted", "_committed", "_open", "kept")

    def __init__(self) -> None:
        self._aborted: list[tuple[int, AbortedTransaction]] = []
        self._open: dict[int, _OpenAborted] = {}
        self._committed: set[int] = set()
        self.kept: list[AbortedTransaction] = []

    def add_aborted(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Add the entries of the next segment's transaction index; duplicates do no harm."""
        for transaction in transactions:
            heapq.heappush(self._aborted, (transaction.first_offset, transaction))

    def _move_to(self, header: BatchHeader) -> None:
        """Open the transactions that begin within or before this batch. Transactions that ended
        before it are skipped: a missing marker must not remove the records of a later transaction.
        """
        while self._aborted and self._aborted[0][0] <= header.last_offset:
            _, transaction = heapq.heappop(self._aborted)
            if transaction.last_offset >= header.base_offset:
                self._open.setdefault(transaction.producer_id, _OpenAborted(transaction))
        aborted = self._open.get(header.producer_id)
        if aborted is not None and aborted.transaction.last_offset < header.base_offset:
            del self._open[header.producer_id]

    def on_data(self, header: BatchHeader) -> bool:
        """Returns whether the batch belongs to an aborted transaction, so that all of it can be
        removed.
        """
        self._move_to(header)
        if not header.is_transactional:
            return False
        aborted = self._open.get(header.producer_id)
        if aborted is None:
            self._committed.add(header.producer_id)
            return False
        aborted.seen = True
        return True

    def on_control(self, header: BatchHeader, batch: Buffer) -> bool:
        """Returns whether a control batch can be removed: it is empty, or no batch of the
        transaction that it ends remains.
        """
        self._move_to(header)
        for record in iter_records(batch, header):
            kind = control_type(record)
            if kind is ControlType.ABORT:
                aborted = self._open.pop(header.producer_id, None)
                if aborted is not None and aborted.seen:
                    self.kept.append(aborted.transaction)
                    return False
                return True
            if kind is ControlType.COMMIT:
                was_there = header.producer_id in self._committed
                self._committed.discard(header.producer_id)
                return not was_there
            return False
        return True


class LastRecord(NamedTuple):
    """The last record of one producer in the producer state. data_offset: -1 for none."""

    data_offset: int
    producer_epoch: int


def last_records(producers: ProducerStateManager) -> dict[int, LastRecord]:
    """By producer id; expired producers are left out."""
    return {
        producer_id: LastRecord(state.last_offset, state.producer_epoch)
        for producer_id, state in producers.active_producers.items()
    }


class BatchFilter:
    """Decides for each batch in turn. Batches are given in offset order, across segments."""

    __slots__ = (
        "_delete_retention_ms",
        "_max_unpacked_bytes",
        "_now_ms",
        "_offsets",
        "_producers",
        "_upper_offset",
        "transactions",
    )

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: TransactionView,
        producers: Mapping[int, LastRecord],
        *,
        now_ms: int,
        delete_retention_ms: int,
        upper_offset: int,
        max_unpacked_bytes: int = MAX_UNPACKED_BYTES,
    ) -> None:
        """upper_offset: end of the round (exclusive). The batch that ends there is kept, emptied if
        necessary.
        """
        self._max_unpacked_bytes = max_unpacked_bytes
        self._offsets = offsets
        self.transactions = transactions
        self._producers = producers
        self._now_ms = now_ms
        self._delete_retention_ms = delete_retention_ms
        self._upper_offset = upper_offset

    def apply(self, header: BatchHeader, batch: Buffer) -> Buffer | None:
        """What remains of a whole batch: the batch itself, a smaller one, an empty one, or None.

        Raises KafkaError for records that cannot be read.
        """
        if header.is_control:
            discardable = self.transactions.on_control(header, batch)
            horizon_passed = header.has_delete_horizon and header.base_timestamp <= self._now_ms
            if (discardable and horizon_passed) or not header.record_count:
                return self._without_records(header)
            if not discardable or header.has_delete_horizon:
                return batch
            data = unpack_records(header, batch, self._max_unpacked_bytes)
            records = list(scan_records(data, header.record_count))
            return self._rebuild(header, data, records, b"\1" * len(records), set_horizon=True)
        if self.transactions.on_data(header) or not header.record_count:
            return self._without_records(header)
        try:
            return self._filter(header, batch)
        except BatchTooLarge:
            return batch

    def _filter(self, header: BatchHeader, batch: Buffer) -> Buffer | None:
        data = unpack_records(header, batch, self._max_unpacked_bytes)
        base_offset = header.base_offset
        latest_offset = self._offsets.latest_offset
        last_offset_of = self._offsets.get
        tombstones_stay = not header.has_delete_horizon or self._now_ms < header.base_timestamp
        records = _records(data, header.record_count)
        kept = bytearray()
        has_tombstone = False
        for record in records:
            offset = base_offset + record[5]
            # the value's length is a zigzag varint: its lowest bit is the sign, -1 means null
            has_value = not data[record[2]] & 1
            if offset <= latest_offset:
                key = record[6]
                if key is None or offset < last_offset_of(key):
                    kept.append(0)
                    continue
                if not has_value and not tombstones_stay:
                    kept.append(0)
                    continue
            kept.append(1)
            if not has_value:
                has_tombstone = True
        if 1 not in kept:
            return self._without_records(header)
        set_horizon = has_tombstone and not header.has_delete_horizon
        if 0 not in kept and not set_horizon:
            return batch
        return self._rebuild(header, data, records, kept, set_horizon=set_horizon)

    def _without_records(self, header: BatchHeader) -> Buffer | None:
        is_needed = (
            header.has_producer_id and self._is_last_of_producer(header)
        ) or header.next_offset == self._upper_offset
        return empty_batch(header) if is_needed else None

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._producers.get(header.producer_id)
        if last is None:
            return False
        if last.data_offset >= 0:
            return header.last_offset == last.data_offset
        return header.is_control and header.producer_epoch == last.producer_epoch

    def _horizon_ms(self, header: BatchHeader, records: Iterable[StoredRecord]) -> int:
        """delete.retention.ms from now, which becomes the base timestamp, limited so that the
        timestamp deltas of the records fit into 64 bits. (Kafka's overflow, and the tombstones are
        removed at once.)
        """
        horizon_ms = self._now_ms + self._delete_retention_ms
        oldest_ms = header.base_timestamp + min(record[4] for record in records)
        return min(horizon_ms, MAX_TIMESTAMP + min(oldest_ms, 0))

    def _rebuild(
        self,
        header: BatchHeader,
        data: bytes,
        records: Iterable[StoredRecord],
        kept: bytes | bytearray,
        *,
        set_horizon: bool,
    ) -> bytearray:
        """The batch of the kept records. Its base timestamp is the horizon, or the timestamp of the
        first record.

        kept: 1 or 0 for each of records.
        """
        has_horizon = set_horizon or header.has_delete_horizon
        if set_horizon:
            base_timestamp = self._horizon_ms(header, compress(records, kept))
        elif has_horizon:
            base_timestamp = header.base_timestamp
        elif header.is_log_append_time:
            base_timestamp = header.max_timestamp
        else:
            base_timestamp = header.base_timestamp + next(compress(records, kept))[4]
        body = bytearray()
        if header.is_log_append_time:
            max_timestamp = header.max_timestamp
            for record in compress(records, kept):
                _append_moved(body, data, record, max_timestamp - base_timestamp)
        else:
            shift = header.base_timestamp - base_timestamp
            largest_delta = _NO_DELTA
            for record in compress(records, kept):
                largest_delta = max(largest_delta, record[4])
                if shift:
                    _append_moved(body, data, record, record[4] + shift)
                else:
                    body += data[record[0] : record[3]]
            max_timestamp = header.base_timestamp + largest_delta
        return replace_records(
            header,
            body,
            record_count=kept.count(1),
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            delete_horizon=has_horizon,
        )


def _append_moved(body: bytearray, data: bytes, record: StoredRecord, delta: int) -> None:
    """Append a record with another timestamp delta."""
    _, timestamp_end, _, end, *_ = record
    moved = bytearray(_NO_ATTRIBUTES)
    append_varint(moved, delta)
    append_varint(body, len(moved) + end - timestamp_end)
    body += moved
    body += data[timestamp_end:end]


MAX_TIMESTAMP: Final = (1 << 63) - 1
_NO_ATTRIBUTES: Final = b"\0"
_NO_DELTA: Final = -(1 << 63)


def empty_batch(header: BatchHeader) -> bytearray:
    """The batch without its records: offsets, producer, sequence and max timestamp are kept."""
    return build_batch(
        [],
        base_offset=header.base_offset,
        partition_leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
        log_append_time_ms=header.max_timestamp if header.is_log_append_time else None,
        last_offset_delta=header.last_offset_delta,
        max_timestamp=header.max_timestamp,
    )


def index_batch(
    offsets: OffsetMap,
    transactions: TransactionView,
    header: BatchHeader,
    batch: Buffer,
    *,
    first_dirty_offset: int,
    max_unpacked_bytes: int = MAX_UNPACKED_BYTES,
) -> bool:
    """Add the keys of a batch of the dirty part to the map. Returns False if the map was full
    before all keys were added: the map then ends before the first record whose key is missing, and
    the next round begins there, within the batch, as in Kafka. A tombstone that was not indexed
    must not count as clean: it would be removed after its horizon, while earlier records of its
    key stay. The keys of a batch that decompresses to more than max_unpacked_bytes are not added,
    so earlier records of its keys stay, and the batch stays too.

    An empty map always takes one key, or a round could make no progress.
    """
    if header.is_control:
        transactions.on_control(header, batch)
    elif not transactions.on_data(header) and header.record_count:
        try:
            data = unpack_records(header, batch, max_unpacked_bytes)
            records = scan_records(data, header.record_count)
        except BatchTooLarge:
            records = iter(())
        for _, _, _, _, _, delta, key in records:
            offset = header.base_offset + delta
            if key is not None and offset >= first_dirty_offset:
                if offsets.is_full and len(offsets):
                    offsets.latest_offset = max(offsets.latest_offset, offset - 1)
                    return False
                offsets.put(key, offset)
    if header.last_offset >= first_dirty_offset:
        offsets.latest_offset = max(offsets.latest_offset, header.last_offset)
    return True
