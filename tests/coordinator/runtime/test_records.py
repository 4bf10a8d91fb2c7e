"""Records of internal topics: their framing, and the batch that holds them."""

from __future__ import annotations

import pytest

from kbroker.coordinator.group.records import decode_record
from kbroker.coordinator.runtime.records import (
    CoordinatorRecord,
    encode_batch,
    encode_key,
    encode_value,
)
from kbroker.protocol.batches.batch_header import read_batch_header
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.messages.stored.group_records import OffsetCommitKey, OffsetCommitValue

KEY = OffsetCommitKey(group="g", topic="t", partition=3)
VALUE = OffsetCommitValue(offset=7, metadata="m")


def test_a_key_begins_with_its_type_and_a_value_with_its_version() -> None:
    assert encode_key(KEY) == b"\0\1\0\1g\0\1t\0\0\0\3"
    for version in (3, 4):
        data = encode_value(VALUE, version)
        assert data is not None and data[:2] == version.to_bytes(2, "big")
    assert encode_value(None, 3) is None


def test_records_are_compared_by_key_and_value() -> None:
    record = CoordinatorRecord(KEY, VALUE, 3)
    assert record == CoordinatorRecord(KEY, VALUE, 4)
    assert record != CoordinatorRecord(KEY, None, 3)
    assert record != (KEY, VALUE)
    with pytest.raises(TypeError):
        hash(record)


def test_a_batch_of_records_and_tombstones() -> None:
    records = [CoordinatorRecord(KEY, VALUE, 3), CoordinatorRecord(KEY, None)]
    batch = encode_batch(records, 99)
    header = read_batch_header(batch)
    assert (header.record_count, header.base_timestamp, header.base_sequence) == (2, 99, 0)
    assert (header.producer_id, header.is_transactional) == (-1, False)
    found = [decode_record(record.key, record.value) for record in iter_records(batch)]
    assert found == records


def test_a_batch_of_a_transaction() -> None:
    batch = encode_batch([CoordinatorRecord(KEY, VALUE, 3)], 99, producer_id=7, producer_epoch=2)
    header = read_batch_header(batch)
    assert (header.producer_id, header.producer_epoch) == (7, 2)
    assert header.is_transactional and not header.is_control
