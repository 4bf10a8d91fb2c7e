"""Which batches end a transaction, and how."""

from __future__ import annotations

import pytest

from kbroker.log.producer.markers import NO_MARKER, Marker, marker_of, markers_of
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import read_batch_header
from kbroker.protocol.batches.control_records import ControlType, build_end_transaction_marker

NOW_MS = 1_700_000_000_000


def marker(*, commit: bool, coordinator_epoch: int = 0) -> bytearray:
    return build_end_transaction_marker(
        commit=commit,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=coordinator_epoch,
        timestamp_ms=NOW_MS,
    )


def data(**options: object) -> bytearray:
    return build_batch([(NOW_MS, None, b"v", [])], **options)  # type: ignore[arg-type]  # the keywords of build_batch


def control(kind: int, **options: int) -> bytearray:
    """A control batch of that type: version 0, type."""
    key = b"\x00\x00" + kind.to_bytes(2, "big")
    return build_batch([(NOW_MS, key, bytes(6), [])], is_control=True, **options)


PRODUCER = {"producer_id": 7, "producer_epoch": 0}


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        pytest.param(
            marker(commit=True, coordinator_epoch=5), (ControlType.COMMIT, 5), id="commit"
        ),
        pytest.param(marker(commit=False), (ControlType.ABORT, 0), id="abort"),
        pytest.param(data(), None, id="data"),
        pytest.param(data(is_transactional=True, **PRODUCER), None, id="transactional data"),
        pytest.param(control(1), None, id="a control batch without a producer"),
        pytest.param(
            control(ControlType.LEADER_CHANGE, **PRODUCER), None, id="another control record"
        ),
    ],
)
def test_what_a_batch_ends(batch: bytearray, expected: Marker | None) -> None:
    assert marker_of(read_batch_header(batch), batch) == expected


def test_an_empty_control_batch_ends_nothing() -> None:
    """What compaction leaves of a marker whose record it removed."""
    empty = build_batch([], is_control=True, last_offset_delta=0, **PRODUCER)
    assert marker_of(read_batch_header(empty), empty) is None


def test_each_batch_of_an_append_is_looked_at_in_its_place() -> None:
    batches = [data(), marker(commit=True), data(), marker(commit=False, coordinator_epoch=3)]
    headers = [read_batch_header(batch) for batch in batches]
    assert list(markers_of(memoryview(b"".join(batches)), headers)) == [
        None,
        (ControlType.COMMIT, 0),
        None,
        (ControlType.ABORT, 3),
    ]
    assert markers_of(memoryview(batches[0]), headers[:1]) is NO_MARKER
    assert list(markers_of(memoryview(batches[1]), headers[1:2])) == [(ControlType.COMMIT, 0)]
