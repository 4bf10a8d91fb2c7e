"""Arrow batches to Parquet files: rows, folders, ranges, sizes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jobs.archive import files
from spark_jobs.archive.commits import StagedFile, Staging
from spark_jobs.archive.files import SCHEMA, count_records, empty_file, write_files
from spark_jobs.archive.layout import FileRange, parse_file
from spark_jobs.storage import Folder, absolute

DAY_MS = 86_400_000
FROM_SPARK = SCHEMA.set(
    SCHEMA.get_field_index("timestamp"), pa.field("timestamp", pa.timestamp("us", "Europe/Berlin"))
)


def record(
    offset: int, *, topic: str = "t", partition: int = 0, time_ms: int = 0
) -> dict[str, object]:
    return {
        "key": b"key-%d" % offset,
        "value": None if offset % 3 == 0 else b"\x00\xff-%d" % offset,
        "headers": None
        if offset % 2
        else [{"key": "n", "value": b""}, {"key": "n", "value": None}],
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": time_ms * 1000,
        "timestampType": offset % 2,
    }


def batch(records: Iterable[dict[str, object]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(records), schema=FROM_SPARK)


def staging(folder: Path, layout: tuple[str, ...] = ("topic", "date"), **more: object) -> Staging:
    return Staging(absolute(str(folder)), "_archive/staging/1", layout, **more)  # type: ignore[arg-type]


def ranges(written: list[StagedFile]) -> list[FileRange | None]:
    return [parse_file(file.path) for file in written]


def test_rows_are_the_records(tmp_path: Path) -> None:
    records = [record(n, time_ms=n) for n in range(10)]
    (file,) = write_files([batch(records[:4]), batch([]), batch(records[4:])], staging(tmp_path))
    assert file.path == "topic=t/date=1970-01-01/p00000-000000000000-000000000009.parquet"
    assert (file.records, file.size_bytes) == (10, (tmp_path / file.staged).stat().st_size)
    table = pq.read_table(tmp_path / file.staged, partitioning=None)
    assert table.schema.names == [name for name in SCHEMA.names if name != "topic"]
    assert table.schema.field("timestamp").type == pa.timestamp("ms", "UTC")
    for row, sent in zip(table.to_pylist(), records, strict=True):
        assert round(row.pop("timestamp").timestamp() * 1_000_000) == sent.pop("timestamp")
        assert row == {name: value for name, value in sent.items() if name != "topic"}


def test_a_file_says_what_it_holds(tmp_path: Path) -> None:
    target = staging(tmp_path, origin={"batch_id": 7}, generations={"t": 2})
    (file,) = write_files([batch(record(n) for n in (5, 6, 9))], target)
    described = json.loads(pq.read_metadata(tmp_path / file.staged).metadata[b"kbroker.archive"])
    assert described == {
        "topic": "t",
        "partition": 0,
        "first_offset": 5,
        "last_offset": 9,
        "records": 3,
        "generation": 2,
        "batch_id": 7,
    }
    assert file.path.endswith("p00000-000000000005-000000000009.g2.parquet")


def test_partitions_topics_and_days_are_files_of_their_own(tmp_path: Path) -> None:
    records = [
        record(0, time_ms=DAY_MS),
        record(1, time_ms=5),
        record(2, time_ms=DAY_MS + 5),
        record(0, partition=1, time_ms=-1),
        record(7, topic="u", time_ms=DAY_MS),
    ]
    written = write_files([batch(records)], staging(tmp_path))
    assert sorted((file.path, file.records) for file in written) == [
        ("topic=t/date=1969-12-31/p00001-000000000000-000000000000.parquet", 1),
        ("topic=t/date=1970-01-01/p00000-000000000001-000000000001.parquet", 1),
        ("topic=t/date=1970-01-02/p00000-000000000000-000000000002.parquet", 2),
        ("topic=u/date=1970-01-02/p00000-000000000007-000000000007.parquet", 1),
    ]


@pytest.mark.parametrize(
    ("layout", "folders"),
    [
        ((), {""}),
        (("partition",), {"partition=0", "partition=1"}),
        (("date", "hour"), {"date=1970-01-01/hour=00", "date=1970-01-01/hour=02"}),
        (("topic",), {"topic=t"}),
    ],
)
def test_layouts(tmp_path: Path, layout: tuple[str, ...], folders: set[str]) -> None:
    records = [record(n, partition=n % 2, time_ms=n % 2 * 7_200_000) for n in range(8)]
    written = write_files([batch(records)], staging(tmp_path, layout))
    assert {file.path.rpartition("/")[0] for file in written} == folders
    columns = set(pq.read_schema(tmp_path / written[0].staged).names)
    assert columns == set(SCHEMA.names) - set(layout)


def test_times_beyond_the_calendar_are_in_its_last_folder(tmp_path: Path) -> None:
    far = 253_402_300_800_000  # the year 10000
    records = [record(0, time_ms=far), record(1, time_ms=far + DAY_MS)]
    (file,) = write_files([batch(records)], staging(tmp_path, ("date",)))
    assert (file.path.partition("/")[0], file.records) == ("date=9999-12-31", 2)


def test_files_are_closed_at_the_target_size(tmp_path: Path) -> None:
    batches = [batch(record(n) for n in range(start, start + 100)) for start in range(0, 1000, 100)]
    written = write_files(batches, staging(tmp_path, target_file_bytes=4000))
    assert len(written) > 1
    found = ranges(written)
    assert found[0] is not None and found[0].first_offset == 0
    for earlier, later in itertools.pairwise(found):
        assert earlier is not None and later is not None
        assert later.first_offset == earlier.last_offset + 1
    assert sum(file.records for file in written) == 1000


def test_what_is_buffered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BUFFERED_BYTES", 10_000)
    batches = [
        batch(record(n, time_ms=n % 4 * DAY_MS) for n in range(start, start + 100))
        for start in range(0, 2000, 100)
    ]
    written = write_files(batches, staging(tmp_path))
    assert [file.records for file in written] == [500] * 4
    groups = [pq.read_metadata(tmp_path / file.staged).num_row_groups for file in written]
    assert max(groups) > 1


def test_few_files_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "OPEN_FILES", 2)
    days = [0, 1, 2, 0, 1, 2]
    batches = [batch([record(n, time_ms=day * DAY_MS)]) for n, day in enumerate(days)]
    written = write_files(batches, staging(tmp_path))
    assert sum(file.records for file in written) == 6
    assert len({file.path for file in written}) == len(written) == 6


def test_no_records_no_files(tmp_path: Path) -> None:
    assert write_files([batch([])], staging(tmp_path)) == []
    assert not (tmp_path / "_archive").exists()


def test_an_empty_file_has_the_layouts_columns(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(empty_file(("topic", "partition")))
    table = pq.read_table(tmp_path / "x.parquet")
    assert table.num_rows == 0
    assert set(table.schema.names) == set(SCHEMA.names) - {"topic", "partition"}


def test_records_are_counted_by_their_files(tmp_path: Path) -> None:
    written = write_files([batch(record(n) for n in range(5))], staging(tmp_path))
    output = Folder(absolute(str(tmp_path)))
    assert count_records(output, [file.staged for file in written]) == 5
