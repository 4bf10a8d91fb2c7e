"""A transactional id as a value, and its record in `__transaction_state` as Kafka 4.3.1 writes it.

Declarations: protocol/messages/stored/transaction_records. Value version 0 belongs to
transaction.version 0, value version 1 to all later ones.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.transaction.state import TransactionState
from kbroker.model import TopicPartition
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.errors import ErrorCode, KafkaError, MalformedRequest
from kbroker.protocol.messages.stored.transaction_records import (
    TransactionLogKey,
    TransactionLogValue,
)

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
MAX_EPOCH: Final = 0x7FFF
LAST_CLIENT_EPOCH: Final = MAX_EPOCH - 1
"""The last epoch of a client; MAX_EPOCH is reserved for fencing."""

_INT16: Final = struct.Struct(">h")


class Transaction(NamedTuple):
    """The state of one transactional id.

    last_producer_epoch: the epoch before the producer's own request raised it, which identifies a
    retry of that request; not in the log, as in Kafka, and -1 after a reload. client_version: 2 if
    the producer uses transaction.version 2, else 0. start_ms: that of the last transaction, -1
    without one. A NamedTuple, because its `_replace` takes a tenth of the time of
    `dataclasses.replace`.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = -1
    last_update_ms: int = -1
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    client_version: int = 0

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether the next epoch for a client needs a new producer id."""
        return self.producer_epoch >= LAST_CLIENT_EPOCH

    @property
    def next_epoch(self) -> int:
        """The epoch that ends a transaction or fences its producer. A transaction that began with
        MAX_EPOCH, which earlier versions of kbroker allowed, ends with that epoch.
        """
        return min(self.producer_epoch + 1, MAX_EPOCH)


class TransactionRecord(CoordinatorRecord):
    """A record together with its Transaction. The Transaction of a record created here has the
    fields that are not in the log; that of a record read from the log is converted once.
    """

    __slots__ = ("transaction",)

    def __init__(
        self,
        key: TransactionLogKey,
        value: TransactionLogValue,
        version: int,
        transaction: Transaction,
    ) -> None:
        super().__init__(key, value, version)
        self.transaction = transaction

    @classmethod
    def of(cls, transaction: Transaction, version: int) -> TransactionRecord:
        """The record of a new state."""
        key = TransactionLogKey(transactional_id=transaction.transactional_id)
        return cls(key, _log_value(transaction, version), version, transaction)


def transaction_tombstone(transactional_id: str) -> CoordinatorRecord:
    """The record that deletes a transactional id."""
    return CoordinatorRecord(TransactionLogKey(transactional_id=transactional_id), None)


def _log_value(transaction: Transaction, version: int) -> TransactionLogValue:
    partitions = None
    if transaction.state is not TransactionState.EMPTY:
        partitions = [
            TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=indexes)
            for topic, indexes in by_topic(transaction.partitions).items()
        ]
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=int(transaction.state),
        transaction_partitions=partitions,
        transaction_last_update_timestamp_ms=transaction.last_update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
    )
    if version > 0:
        value.previous_producer_id = transaction.previous_producer_id
        value.next_producer_id = transaction.next_producer_id
        value.client_transaction_version = transaction.client_version
    return value


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition indexes by topic, both sorted."""
    found: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        found.setdefault(topic, []).append(index)
    return found


def _read_transaction(key: TransactionLogKey, value: TransactionLogValue) -> Transaction:
    """The Transaction of a record. Raises KafkaError(CORRUPT_MESSAGE)."""
    try:
        state = TransactionState(value.transaction_status)
    except ValueError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    return Transaction(
        transactional_id=key.transactional_id,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=state,
        partitions=frozenset(
            TopicPartition(topic.topic, index)
            for topic in value.transaction_partitions or ()
            for index in topic.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        last_update_ms=value.transaction_last_update_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        client_version=value.client_transaction_version,
    )


def decode_transaction_record(key: bytes | None, value: bytes | None) -> CoordinatorRecord | None:
    """The record of a key and a value, or None for an unknown type or version.

    Raises KafkaError(CORRUPT_MESSAGE) for undecodable bytes.
    """
    try:
        if key is None or len(key) < 2 or (value is not None and len(value) < 2):
            raise MalformedRequest("no key, or too short")
        if _INT16.unpack_from(key)[0] != TransactionLogKey.API_KEY:
            return None
        decoded_key, _ = decode(TransactionLogKey, key, 0, 2)
        if value is None:
            return CoordinatorRecord(decoded_key, None)
        version = int(_INT16.unpack_from(value)[0])
        if version not in TransactionLogValue.VERSIONS:
            return None
        decoded_value, _ = decode(TransactionLogValue, value, version, 2)
        transaction = _read_transaction(decoded_key, decoded_value)
        return TransactionRecord(decoded_key, decoded_value, version, transaction)
    except MalformedRequest as error:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"not a record of __transaction_state: {error}"
        ) from error
