"""The producer states of a partition, for duplicate detection, fencing and open transactions.

Per producer id: the last five batches (a client has at most five requests in flight), its epoch,
and the first offset of its open transaction. The state is a replay of the log; a snapshot file
shortens the replay. Sources: KIP-98, KIP-890. `snapshots` names, writes and deletes the snapshot
files.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from kbroker.log.validator import AppendOrigin
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_header import (
    CONTROL_FLAG,
    NO_SEQUENCE,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from kbroker.protocol.batches.checksum import crc32c
from kbroker.protocol.batches.control_records import ControlType
from kbroker.protocol.errors import ErrorCode, KafkaError

REMEMBERED_BATCHES: Final = 5
MAX_SEQUENCE: Final = 0x7FFFFFFF
MAX_OFFSET: Final = 0x7FFFFFFFFFFFFFFF
MAX_EPOCH: Final = 0x7FFF
NO_EPOCH: Final = -1
SNAPSHOT_VERSION: Final = 1

_PREFIX: Final = struct.Struct(">hIi")
_CRC_END: Final = 6
_ENTRY: Final = struct.Struct(">qhiqiqiq")


class DuplicateBatch(NamedTuple):
    """The offsets of the original of a retried batch, both inclusive."""

    base_offset: int
    last_offset: int
    timestamp: int


class CompletedTransaction(NamedTuple):
    """A transaction completed by a marker. last_offset is the marker's own."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class BatchMetadata(NamedTuple):
    """One remembered batch: its last sequence, last offset, offset delta and max timestamp."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & MAX_SEQUENCE

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


RememberedBatch = tuple[int, int, int, int]
"""The fields of a `BatchMetadata`. Each append makes one, and a named tuple takes three times as
many machine instructions.
"""


class ProducerState:
    """One producer id. remembered: its last batches, oldest first. transaction_first_offset: None
    without an open transaction. marker_offset: that of its last marker, -1 if unknown; not in
    snapshots.
    """

    __slots__ = (
        "coordinator_epoch",
        "last_timestamp",
        "marker_offset",
        "producer_epoch",
        "producer_id",
        "remembered",
        "transaction_first_offset",
    )

    def __init__(
        self,
        producer_id: int,
        *,
        producer_epoch: int = NO_EPOCH,
        coordinator_epoch: int = NO_EPOCH,
        last_timestamp: int = -1,
        transaction_first_offset: int | None = None,
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = last_timestamp
        self.transaction_first_offset = transaction_first_offset
        self.marker_offset = -1
        self.remembered: list[RememberedBatch] = []

    @property
    def batches(self) -> list[BatchMetadata]:
        """The remembered batches, oldest first."""
        return [BatchMetadata(*batch) for batch in self.remembered]

    @property
    def last_sequence(self) -> int:
        return self.remembered[-1][0] if self.remembered else NO_SEQUENCE

    @property
    def next_sequence(self) -> int:
        """The expected base sequence of the next batch in this epoch."""
        if not self.remembered:
            return 0
        last = self.last_sequence
        return 0 if last == MAX_SEQUENCE else last + 1

    @property
    def last_offset(self) -> int:
        """The last offset of its data batches; -1 if none is remembered."""
        return self.remembered[-1][1] if self.remembered else -1

    @property
    def first_sequence(self) -> int:
        return BatchMetadata(*self.remembered[0]).first_sequence if self.remembered else NO_SEQUENCE

    def move_to_epoch(self, producer_epoch: int) -> None:
        """Move to another epoch. Its sequence numbers start at 0, so the old batches are
        forgotten.
        """
        if self.producer_epoch != producer_epoch:
            self.producer_epoch = producer_epoch
            self.remembered.clear()

    def add_batch(self, batch: RememberedBatch) -> None:
        if len(self.remembered) == REMEMBERED_BATCHES:
            del self.remembered[0]
        self.remembered.append(batch)


class ProducerStateManager:
    """The producers of one partition. `check` decides; `update` and `update_marker` change the
    state.

    expiration_ms: producer.id.expiration.ms, counted from the producer's last batch timestamp.
    active_producers: by producer id. ongoing: first offset -> producer id of open transactions.
    unreplicated: first offset -> last offset of completed ones whose marker is not yet below the
    high watermark. The attributes may be read from outside.
    """

    def __init__(self, topic_partition: TopicPartition, *, expiration_ms: int) -> None:
        self.topic_partition = topic_partition
        self.expiration_ms = expiration_ms
        self.map_end_offset = 0
        self.active_producers: dict[int, ProducerState] = {}
        self.ongoing: dict[int, int] = {}
        self.unreplicated: dict[int, int] = {}

    @property
    def is_empty(self) -> bool:
        return not self.active_producers and not self.unreplicated

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest transaction that is open, or whose marker is not
        replicated.
        """
        if not self.ongoing and not self.unreplicated:
            return None
        return min(
            min(self.ongoing, default=MAX_OFFSET), min(self.unreplicated, default=MAX_OFFSET)
        )

    def check(
        self, header: BatchHeader, *, origin: AppendOrigin, transaction_version: int = 0
    ) -> DuplicateBatch | None:
        """Check a batch against the state of its producer; changes nothing.

        Returns the original if the batch is a duplicate. transaction_version: of the coordinator
        that writes a marker or of the producer; from 2 on a marker's epoch is above its
        transaction's, and a producer that is not known begins with sequence 0. Raises
        KafkaError(INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_TXN_STATE).
        """
        producer_id = header.producer_id
        if producer_id < 0:
            return None
        state = self.active_producers.get(producer_id)
        if state is None:
            if transaction_version >= 2 and origin is AppendOrigin.CLIENT:
                self._check_first_sequence(header)
            return None
        if header.attributes & CONTROL_FLAG:
            self._check_marker_epoch(state, header, transaction_version)
            return None
        if (
            header.producer_epoch == state.producer_epoch
            and header.base_sequence == state.next_sequence
            and state.transaction_first_offset is None
        ):
            return None  # nearly every batch is the next one in sequence
        if origin is AppendOrigin.CLIENT:
            duplicate = self._find_duplicate(state, header)
            if duplicate is not None:
                return duplicate
        if header.producer_epoch < state.producer_epoch:
            raise self._stale_epoch(state, header)
        if origin is AppendOrigin.CLIENT:
            self._check_sequence(state, header)
        if state.transaction_first_offset is not None and not header.is_transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id} has a transaction open in {self.topic_partition} and sent "
                "a batch outside of it",
            )
        return None

    def _find_duplicate(self, state: ProducerState, header: BatchHeader) -> DuplicateBatch | None:
        if header.producer_epoch != state.producer_epoch:
            return None
        last_sequence = header.last_sequence
        for batch in state.batches:
            if (
                batch.last_sequence == last_sequence
                and batch.first_sequence == header.base_sequence
            ):
                return DuplicateBatch(batch.first_offset, batch.last_offset, batch.timestamp)
        return None

    def _check_first_sequence(self, header: BatchHeader) -> None:
        """Reject a batch that arrives before the producer's first one, which will be retried
        (KIP-890).
        """
        if header.is_transactional and header.base_sequence != 0:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} is new in {self.topic_partition} and begins with "
                f"sequence {header.base_sequence} instead of 0",
            )

    def _check_sequence(self, state: ProducerState, header: BatchHeader) -> None:
        if state.producer_epoch == NO_EPOCH:
            return
        if header.producer_epoch != state.producer_epoch:
            if header.base_sequence != 0:
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {state.producer_id} in {self.topic_partition}: epoch "
                    f"{header.producer_epoch} is new (was {state.producer_epoch}) and begins with "
                    f"sequence {header.base_sequence} instead of 0",
                )
            return
        expected = state.next_sequence
        if header.base_sequence != expected:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {state.producer_id} in {self.topic_partition}: sequence "
                f"{header.base_sequence} came, {expected} was due",
            )

    def _check_marker_epoch(
        self, state: ProducerState, header: BatchHeader, transaction_version: int
    ) -> None:
        epoch = header.producer_epoch
        if transaction_version < 2:
            if epoch < state.producer_epoch:
                raise self._stale_epoch(state, header)
            return
        if epoch > state.producer_epoch:
            return
        ended = state.transaction_first_offset is None
        if epoch == state.producer_epoch and (ended or epoch == MAX_EPOCH):
            return  # the same marker written again
        raise self._stale_epoch(state, header)

    def _stale_epoch(self, state: ProducerState, header: BatchHeader) -> KafkaError:
        return KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {state.producer_id} in {self.topic_partition}: epoch "
            f"{header.producer_epoch}, the last one seen is {state.producer_epoch}",
        )

    def check_coordinator_epoch(self, producer_id: int, coordinator_epoch: int) -> None:
        """Check before a leader appends a marker. Raises
        KafkaError(TRANSACTION_COORDINATOR_FENCED).
        """
        state = self.active_producers.get(producer_id)
        if state is not None and coordinator_epoch < state.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"producer {producer_id} in {self.topic_partition}: coordinator epoch "
                f"{coordinator_epoch}, the last one seen is {state.coordinator_epoch}",
            )

    def update(self, header: BatchHeader) -> None:
        """Apply an appended data batch with its final offsets. For markers see `update_marker`."""
        last_offset = header.base_offset + header.last_offset_delta
        self.map_end_offset = last_offset + 1
        producer_id = header.producer_id
        attributes = header.attributes
        if producer_id < 0 or attributes & CONTROL_FLAG:
            return
        state = self.active_producers.get(producer_id)
        if state is None:
            state = self.active_producers[producer_id] = ProducerState(producer_id)
        if state.producer_epoch != header.producer_epoch:
            state.move_to_epoch(header.producer_epoch)
        timestamp = header.max_timestamp
        state.add_batch((header.last_sequence, last_offset, header.last_offset_delta, timestamp))
        state.last_timestamp = timestamp
        if attributes & TRANSACTIONAL_FLAG and state.transaction_first_offset is None:
            state.transaction_first_offset = header.base_offset
            self.ongoing[header.base_offset] = producer_id

    def update_marker(
        self, header: BatchHeader, marker_type: ControlType, coordinator_epoch: int
    ) -> CompletedTransaction | None:
        """Apply an appended abort or commit marker.

        Returns the transaction that it completes, None if there was none. The transaction counts
        for the first unstable offset until `complete_transaction` and then `on_high_watermark` are
        called. Control batches that compaction emptied, or of another type, are passed to `update`.
        """
        self.map_end_offset = header.next_offset
        producer_id = header.producer_id
        state = self.active_producers.get(producer_id)
        if state is None:
            state = self.active_producers[producer_id] = ProducerState(producer_id)
        first_offset = state.transaction_first_offset
        state.move_to_epoch(header.producer_epoch)
        state.coordinator_epoch = coordinator_epoch
        state.last_timestamp = header.max_timestamp
        state.marker_offset = header.base_offset
        state.transaction_first_offset = None
        if first_offset is None:
            return None
        return CompletedTransaction(
            producer_id, first_offset, header.base_offset, marker_type is ControlType.ABORT
        )

    def last_stable_offset(self, completed: CompletedTransaction) -> int:
        """The last stable offset once `completed` is replicated, for the transaction index."""
        others = (
            first for first, producer in self.ongoing.items() if producer != completed.producer_id
        )
        return min(others, default=completed.last_offset + 1)

    def complete_transaction(self, completed: CompletedTransaction) -> None:
        """Move a transaction from open to completed but not replicated. KeyError if it is not
        open.
        """
        del self.ongoing[completed.first_offset]
        self.unreplicated[completed.first_offset] = completed.last_offset

    def on_high_watermark(self, high_watermark: int) -> None:
        """Forget completed transactions whose marker lies below high_watermark (exclusive)."""
        if self.unreplicated:
            self.unreplicated = {
                first: last for first, last in self.unreplicated.items() if last >= high_watermark
            }

    def on_log_start_offset(self, log_start_offset: int) -> None:
        """Records below log_start_offset were deleted; producers are kept until they expire."""
        self.on_high_watermark(log_start_offset)
        self.map_end_offset = max(self.map_end_offset, log_start_offset)

    def expire(self, now_ms: int) -> int:
        """Remove producers without a batch for expiration_ms and without an open transaction.
        Returns how many.
        """
        expired = [
            producer_id
            for producer_id, state in self.active_producers.items()
            if self._is_expired(state, now_ms)
        ]
        for producer_id in expired:
            del self.active_producers[producer_id]
        return len(expired)

    def _is_expired(self, state: ProducerState, now_ms: int) -> bool:
        return (
            state.transaction_first_offset is None
            and now_ms - state.last_timestamp >= self.expiration_ms
        )

    def clear(self, map_end_offset: int = 0) -> None:
        """Remove all producers: the log was truncated, and a snapshot or a replay follows."""
        self.active_producers.clear()
        self.ongoing.clear()
        self.unreplicated.clear()
        self.map_end_offset = map_end_offset

    def to_snapshot(self) -> bytes:
        """The content of a `.snapshot` file that holds up to map_end_offset."""
        entries = bytearray()
        for state in self.active_producers.values():
            remembered = state.remembered
            last = BatchMetadata(*(remembered[-1] if remembered else (NO_SEQUENCE, -1, 0, -1)))
            first_offset = state.transaction_first_offset
            entries += _ENTRY.pack(
                state.producer_id,
                state.producer_epoch,
                last.last_sequence,
                last.last_offset,
                last.offset_delta,
                state.last_timestamp,
                state.coordinator_epoch,
                -1 if first_offset is None else first_offset,
            )
        content = bytearray(_PREFIX.pack(SNAPSHOT_VERSION, 0, len(self.active_producers)))
        content += entries
        checksum = crc32c(memoryview(content)[_CRC_END:])
        _PREFIX.pack_into(content, 0, SNAPSHOT_VERSION, checksum, len(self.active_producers))
        return bytes(content)

    def load_snapshot(self, data: bytes, *, map_end_offset: int, now_ms: int) -> None:
        """Replace the state by a snapshot, without the producers that have expired by now_ms.

        map_end_offset: the offset in the file's name. Raises KafkaError(CORRUPT_MESSAGE) for an
        invalid file; the state is then empty.
        """
        self.clear()
        for state in read_snapshot(data):
            if self._is_expired(state, now_ms):
                continue
            self.active_producers[state.producer_id] = state
            if state.transaction_first_offset is not None:
                self.ongoing[state.transaction_first_offset] = state.producer_id
        self.map_end_offset = map_end_offset


def read_snapshot(data: bytes) -> list[ProducerState]:
    """The entries of a `.snapshot` file in its order. Raises KafkaError(CORRUPT_MESSAGE)."""
    if len(data) < _PREFIX.size:
        raise _corrupt_snapshot(f"{len(data)} bytes")
    version, checksum, count = _PREFIX.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise _corrupt_snapshot(f"version {version}")
    if crc32c(memoryview(data)[_CRC_END:]) != checksum:
        raise _corrupt_snapshot("its CRC is wrong")
    if len(data) != _PREFIX.size + count * _ENTRY.size:
        raise _corrupt_snapshot(f"{len(data)} bytes for {count} entries")
    states = []
    for (
        producer_id,
        producer_epoch,
        last_sequence,
        last_offset,
        offset_delta,
        timestamp,
        coordinator_epoch,
        first_offset,
    ) in _ENTRY.iter_unpack(memoryview(data)[_PREFIX.size :]):
        state = ProducerState(
            producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            last_timestamp=timestamp,
            transaction_first_offset=first_offset if first_offset >= 0 else None,
        )
        if last_offset >= 0:
            state.add_batch(BatchMetadata(last_sequence, last_offset, offset_delta, timestamp))
        states.append(state)
    return states


def _corrupt_snapshot(why: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"not a producer snapshot: {why}")
