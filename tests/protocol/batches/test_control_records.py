"""Control records: markers, invalid keys and values, types of later releases."""

from __future__ import annotations

import pytest

from kbroker.protocol.batches.batch_header import (
    read_batch_header,
)
from kbroker.protocol.batches.control_records import (
    ControlType,
    build_end_transaction_marker,
    control_type,
    marker_coordinator_epoch,
)
from kbroker.protocol.batches.records import Record, iter_records
from kbroker.protocol.errors import ErrorCode, KafkaError


def test_markers() -> None:
    batch = build_end_transaction_marker(
        commit=False, producer_id=9, producer_epoch=2, coordinator_epoch=5, timestamp_ms=77
    )
    header = read_batch_header(batch)
    assert header.is_control and header.is_transactional and header.base_sequence == -1
    (record,) = iter_records(batch)
    assert control_type(record) is ControlType.ABORT
    assert marker_coordinator_epoch(record) == 5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param(None, b"", id="no key"),
        pytest.param(b"\0\0\0", b"", id="short key"),
        pytest.param(b"\xff\xff\0\0", b"", id="negative version"),
        pytest.param(b"\0\0\0\1", b"\0\0\0", id="short value"),
        pytest.param(b"\0\0\0\1", None, id="no value"),
    ],
)
def test_control_records_that_are_none(key: bytes | None, value: bytes | None) -> None:
    record = Record(0, 0, key, value)
    with pytest.raises(KafkaError) as caught:
        if control_type(record) is ControlType.COMMIT:
            marker_coordinator_epoch(record)
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_control_type_of_the_future() -> None:
    assert control_type(Record(0, 0, b"\0\0\0\x63", None)) is ControlType.UNKNOWN
