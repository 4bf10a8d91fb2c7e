"""Records of `__transaction_state`: Kafka's bytes, the older format, and damaged bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbroker.coordinator.runtime.records import encode_key, encode_value
from kbroker.coordinator.transaction.records import (
    Transaction,
    TransactionRecord,
    decode_transaction_record,
)
from kbroker.coordinator.transaction.state import TransactionState
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.errors import KafkaError
from tests.coordinator.transaction.world import OUT

S = TransactionState
LOG = Path(__file__).parents[2] / "data" / "coordinator" / "transaction_state.log"


def test_kafkas_records_come_out_as_they_went_in() -> None:
    """The bytes that Kafka 4.3.1 left, decoded and encoded again."""
    count = 0
    data = LOG.read_bytes()
    for position, header in iter_batches(data):
        assert header.base_sequence == -1
        for record in iter_records(data[position : position + header.size_bytes], header):
            decoded = decode_transaction_record(record.key, record.value)
            assert decoded is not None
            transaction = decoded.transaction if isinstance(decoded, TransactionRecord) else None
            assert transaction is not None
            again = TransactionRecord.of(transaction, decoded.version)
            assert encode_key(again.key) == record.key
            if len(transaction.partitions) < 2:  # Kafka's order of topics is that of a hash map
                assert encode_value(again.value, again.version) == record.value
            count += 1
    assert count > 100


def test_bytes_that_are_no_record() -> None:
    assert decode_transaction_record(b"\x00\x09\x00\x01x", None) is None
    for key, value in [(None, b""), (b"\x00", None), (b"\x00\x00\x00\x09x", None)]:
        with pytest.raises(KafkaError):
            decode_transaction_record(key, value)


def test_the_old_log_format_under_transaction_version_0() -> None:
    transaction = Transaction("tx", 7, 5, 60_000, S.ONGOING, frozenset({OUT}), client_version=2)
    record = TransactionRecord.of(transaction, 0)
    value = encode_value(record.value, 0)
    decoded = decode_transaction_record(encode_key(record.key), value)
    assert decoded is not None
    assert isinstance(decoded, TransactionRecord)
    found = decoded.transaction
    assert found is not None
    assert (found.client_version, found.partitions) == (0, frozenset({OUT}))


def test_wrong_state_number_is_corrupt() -> None:
    record = TransactionRecord.of(Transaction("tx", 7, 5, 60_000), 1)
    value: Any = record.value
    value.transaction_status = 77
    with pytest.raises(KafkaError):
        decode_transaction_record(encode_key(record.key), encode_value(value, 1))
