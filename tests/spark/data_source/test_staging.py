"""Rows that tasks leave for the commit."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from spark_jobs.data_source.staging import StagedRows, read_staged, record_batch, stage
from spark_jobs.storage import Folder, absolute

pa = pytest.importorskip("pyarrow")

SCHEMA = pa.schema(
    [
        ("ignored", pa.int64()),
        ("value", pa.string()),
        ("partition", pa.int16()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)
COLUMNS = [(1, "value"), (2, "partition"), (3, "timestamp")]


def batch(*values: str) -> pa.RecordBatch:
    time = datetime(2026, 5, 1, 12, 0, 0, 999_999, tzinfo=UTC)
    rows = [
        {"ignored": 7, "value": value, "partition": 1, "timestamp": time if value else None}
        for value in values
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def test_columns_become_those_of_records() -> None:
    found = record_batch(batch("ü", ""), COLUMNS)
    assert found.schema.names == ["value", "partition", "timestamp_ms"]
    assert found.to_pylist() == [
        {"value": "ü".encode(), "partition": 1, "timestamp_ms": 1_777_636_800_999},
        {"value": b"", "partition": 1, "timestamp_ms": None},
    ]


def test_times_before_1970_are_rounded_down() -> None:
    schema = pa.schema([("value", pa.binary()), ("timestamp", pa.timestamp("us", "UTC"))])
    rows = pa.RecordBatch.from_arrays(
        [pa.array([b"a"]), pa.array([-1], pa.timestamp("us", "UTC"))], schema=schema
    )
    found = record_batch(rows, [(0, "value"), (1, "timestamp")])
    assert found.column("timestamp_ms").to_pylist() == [-1]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "GMT+02:00", "UTC+02:00", "Z", "UTC"])
def test_times_of_any_zone(zone: str) -> None:
    """The first three are in the hour that comes twice in Berlin, the fourth is before 1970."""
    times = [1_729_990_800_123_456, 1_729_987_200_123_999, 1_729_994_399_999_999, -1_500, None]
    kind = pa.timestamp("us", zone)
    rows = pa.RecordBatch.from_arrays([pa.array(times, kind)], names=["timestamp"])
    found = record_batch(rows, [(0, "timestamp")]).column("timestamp_ms").to_pylist()
    assert found == [1_729_990_800_123, 1_729_987_200_123, 1_729_994_399_999, -2, None]


def test_rows_are_read_in_the_order_of_their_tasks(tmp_path: Path) -> None:
    folder = Folder(absolute(str(tmp_path / "staged")))
    second = stage(iter([batch("c"), batch(), batch("d")]), COLUMNS, folder, 1)
    first = stage(iter([batch("a", "b")]), COLUMNS, folder, 0)
    nothing = stage(iter([batch()]), COLUMNS, folder, 2)
    assert (first.rows, second.rows, nothing) == (2, 2, StagedRows(2))
    found = list(read_staged(folder, [second, nothing, first]))
    assert [value for each in found for value in each.column("value").to_pylist()] == [
        b"a",
        b"b",
        b"c",
        b"d",
    ]
    folder.delete(first.name)
    with pytest.raises(FileNotFoundError):
        list(read_staged(folder, [first]))


def test_a_task_that_fails_leaves_a_file_that_can_be_removed(tmp_path: Path) -> None:
    folder = Folder(absolute(str(tmp_path)))

    def broken() -> object:
        yield batch("a")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        stage(broken(), COLUMNS, folder, 0)  # type: ignore[arg-type]
    assert len(folder.names()) == 1
