"""Rows of Arrow batches: nulls, empty values, slices, large and small offsets, headers."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.model import TopicPartition
from spark_jobs.exactly_once.rows import binary_values, header_lists, rows

pa = pytest.importorskip("pyarrow")

VALUES = [b"one", None, b"", b"two" * 100, None, b"\x00\xff"]
HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADERS = [
    [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
    None,
    [],
    [{"key": "", "value": b""}],
    [{"key": "über", "value": b"x" * 50}],
    None,
]
HEADER_BYTES = [
    [(b"a", b"1"), (b"a", None)],
    [],
    [],
    [(b"", b"")],
    [("über".encode(), b"x" * 50)],
    [],
]


def slices(array: Any) -> list[tuple[Any, slice]]:
    spans = [slice(0, None), slice(1, 4), slice(3, None), slice(2, 2), slice(1, 2)]
    return [(array[span], span) for span in spans]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_binary_values(kind: Any) -> None:
    for array, span in slices(pa.array(VALUES, kind)):
        assert binary_values(array) == VALUES[span]
    assert binary_values(pa.array(["ä", None], pa.string())) == ["ä".encode(), None]
    assert binary_values(pa.array(["ä", None], pa.large_string())) == ["ä".encode(), None]
    assert binary_values(pa.nulls(3, kind)) == [None] * 3
    assert binary_values(pa.array([b"", b""], kind)) == [b"", b""]


@pytest.mark.parametrize("kind", [pa.list_(HEADER), pa.large_list(HEADER)])
def test_headers(kind: Any) -> None:
    for array, span in slices(pa.array(HEADERS, kind)):
        assert [list(headers) for headers in header_lists(array)] == HEADER_BYTES[span]
    assert [list(headers) for headers in header_lists(pa.array([[], None], kind))] == [[], []]


def test_a_header_without_a_key() -> None:
    with pytest.raises(ValueError, match="a header has no key"):
        header_lists(pa.array([[{"key": None, "value": b"x"}]], pa.list_(HEADER)))


def batch(**columns: Any) -> Any:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def test_all_columns() -> None:
    found = rows(
        batch(
            topic=pa.array(["t", "u", "t"]),
            partition=pa.array([0, 1, 0], pa.int32()),
            timestamp_ms=pa.array([5, None, -7], pa.int64()),
            key=pa.array([b"k", None, b""], pa.binary()),
            value=pa.array([b"v", b"", None], pa.binary()),
            headers=pa.array(HEADERS[:3], pa.list_(HEADER)),
        ),
        topic=None,
        now_ms=99,
    )
    assert [(target, (*record[:3], list(record[3]))) for target, record in found] == [
        (TopicPartition("t", 0), (5, b"k", b"v", HEADER_BYTES[0])),
        (TopicPartition("u", 1), (99, None, b"", [])),
        (TopicPartition("t", 0), (-7, b"", None, [])),
    ]


def test_fewest_columns() -> None:
    columns = {"partition": pa.array([2], pa.int32()), "value": pa.array([b"v"], pa.binary())}
    found = list(rows(batch(**columns), topic="t", now_ms=99))
    assert found == [(TopicPartition("t", 2), (99, None, b"v", ()))]
    assert list(rows(batch(**columns).slice(1), topic="t", now_ms=99)) == []


def test_rows_without_a_target() -> None:
    value = pa.array([b"v"], pa.binary())
    with pytest.raises(ValueError, match="a row has no partition"):
        list(rows(batch(partition=pa.array([None], pa.int32()), value=value), topic="t", now_ms=0))
    with pytest.raises(ValueError, match="a row has no topic"):
        partition, topic = pa.array([0], pa.int32()), pa.array([None], pa.string())
        list(rows(batch(partition=partition, value=value, topic=topic), topic=None, now_ms=0))
