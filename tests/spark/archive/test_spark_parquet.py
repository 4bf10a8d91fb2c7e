"""Files that Spark writes itself: rows, order, names, columns and metadata, beside those that pass
through Python.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from spark_jobs.archive import spark_parquet
from spark_jobs.archive.commits import StagedFile, Staging
from spark_jobs.archive.files import COLUMNS, SCHEMA, file_schema, write_files
from spark_jobs.archive.layout import parse_file
from spark_jobs.archive.options import ArchiveOptions
from spark_jobs.archive.spark_parquet import SETTINGS, staged_files, write_by_spark
from spark_jobs.archive.stores import parquet_store, rows_per_file
from spark_jobs.compact.merging import merge
from spark_jobs.errors import JobError
from spark_jobs.java import java_problem
from spark_jobs.storage import Folder, absolute
from tests.spark.archive.readers import seen_by_duckdb, seen_by_pyarrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

needs_spark = [
    pytest.mark.spark,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY_MS = 86_400_000
FROM_KAFKA = (
    "key binary, value binary, headers array<struct<key: string, value: binary>>, topic string, "
    "partition int, offset long, timestamp timestamp, timestampType int"
)
Record = dict[str, Any]


def record(offset: int, *, topic: str = "t", partition: int = 0, time_ms: int = 0) -> Record:
    headers = [None, [], [("n", b""), ("n", None)], [("m", b"\x00\xff")]][offset % 4]
    return {
        "key": None if offset % 5 == 0 else b"key-%d" % offset,
        "value": None if offset % 3 == 0 else b"\x00\xff-%d" % offset,
        "headers": headers,
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": EPOCH + timedelta(milliseconds=time_ms),
        "timestampType": offset % 2,
    }


def frame_of(spark: SparkSession, records: Iterable[Record], tasks: int = 1) -> DataFrame:
    rows = [tuple(each[name] for name in COLUMNS) for each in records]
    return spark.createDataFrame(rows, FROM_KAFKA).coalesce(tasks)


def staging(folder: Path, layout: tuple[str, ...] = ("topic", "date"), **more: object) -> Staging:
    return Staging(absolute(str(folder)), "_archive/staging/1", layout, **more)  # type: ignore[arg-type]


def publish(folder: Path, files: Iterable[StagedFile]) -> None:
    for file in files:
        Folder(absolute(str(folder))).move(file.staged, file.path)


def read(path: Path) -> list[Record]:
    rows = pq.read_table(path, partitioning=None).to_pylist()
    for row in rows:
        if row["headers"] is not None:
            row["headers"] = [(header["key"], header["value"]) for header in row["headers"]]
    return rows


class TestWritten:
    pytestmark = needs_spark

    def test_rows_are_the_records(self, spark: SparkSession, tmp_path: Path) -> None:
        records = [record(n, time_ms=n) for n in range(40)]
        (file,) = write_by_spark(frame_of(spark, records), staging(tmp_path))
        assert file.path == "topic=t/date=1970-01-01/p00000-000000000000-000000000039.parquet"
        assert (file.records, file.size_bytes) == (40, (tmp_path / file.staged).stat().st_size)
        sent = [{name: each[name] for name in COLUMNS if name != "topic"} for each in records]
        assert read(tmp_path / file.staged) == sent
        schema = pq.read_schema(tmp_path / file.staged).remove_metadata()
        assert schema == file_schema(("topic", "date"))

    def test_every_file_has_one_place_and_the_order_of_offsets(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        """Also where records of other topics, partitions and many days pass through one task."""
        records = [
            record(
                n, topic=f"2024{n % 2}", partition=n % 3, time_ms=(n * 7919) % 49 * DAY_MS - DAY_MS
            )
            for n in range(3000)
        ]
        written = write_by_spark(frame_of(spark, records), staging(tmp_path))
        assert len(written) == 2 * 3 * 49
        publish(tmp_path, written)
        for file in written:
            content = parse_file(file.path)
            assert content is not None
            rows = read(tmp_path / file.path)
            offsets = [row["offset"] for row in rows]
            assert offsets == sorted(set(offsets))
            assert (offsets[0], offsets[-1]) == (content.first_offset, content.last_offset)
            assert {row["partition"] for row in rows} == {content.partition}
            days = {f"{row['timestamp']:%Y-%m-%d}" for row in rows}
            assert file.path.split("/")[:2] == [f"topic={content.topic}", f"date={days.pop()}"]
            assert not days
        seen = sorted(
            (r["topic"], r["partition"], r["offset"], r["key"], r["value"]) for r in records
        )
        by_number = [(int(place[0]), *place[1:]) for place in seen_by_duckdb(tmp_path)]
        assert by_number == [(int(place[0]), *place[1:]) for place in seen]

    @pytest.mark.parametrize(
        "layout", [(), ("partition",), ("date", "hour"), ("topic", "date", "hour", "partition")]
    )
    def test_names_are_those_of_files_that_pass_through_python(
        self, spark: SparkSession, tmp_path: Path, layout: tuple[str, ...]
    ) -> None:
        """Also of records without a time, and with one that no folder can name."""
        times = [-1, 0, 3_599_999, 3_600_000, DAY_MS, 253_402_300_800_000]
        records = [
            record(n, partition=n % 2, time_ms=min(time, 253_402_300_799_999))
            for n, time in enumerate(times * 2)
        ]
        batch = pa.RecordBatch.from_pylist(
            [
                {
                    **each,
                    "headers": each["headers"]
                    and [
                        dict(zip(("key", "value"), pair, strict=True)) for pair in each["headers"]
                    ],
                }
                for each in records
            ],
            schema=SCHEMA,
        )
        where = staging(tmp_path, layout, generations={"t": 2})
        one, other = write_by_spark(frame_of(spark, records), where), write_files([batch], where)
        names = [
            sorted((file.path, file.topic, file.records) for file in files)
            for files in (one, other)
        ]
        assert names[0] == names[1]
        schemas = [pq.read_schema(tmp_path / files[0].staged) for files in (one, other)]
        assert schemas[0].remove_metadata() == schemas[1].remove_metadata()

    def test_files_end_at_a_number_of_rows(self, spark: SparkSession, tmp_path: Path) -> None:
        records = [record(n) for n in range(1000)]
        written = write_by_spark(frame_of(spark, records), staging(tmp_path, rows_per_file=300))
        found = sorted(written, key=lambda file: file.path)
        assert [file.records for file in found] == [300, 300, 300, 100]
        ranges = [parse_file(file.path) for file in found]
        for earlier, later in itertools.pairwise(ranges):
            assert earlier is not None and later is not None
            assert later.first_offset == earlier.last_offset + 1

    @pytest.mark.parametrize(
        ("compression", "said"),
        [
            ("zstd", "ZSTD"),
            ("snappy", "SNAPPY"),
            ("gzip", "GZIP"),
            ("lz4", "LZ4"),
            ("none", "UNCOMPRESSED"),
        ],
    )
    def test_codecs(self, spark: SparkSession, tmp_path: Path, compression: str, said: str) -> None:
        (file,) = write_by_spark(
            frame_of(spark, [record(1)]), staging(tmp_path, compression=compression)
        )
        column = pq.read_metadata(tmp_path / file.staged).row_group(0).column(1)
        assert (column.path_in_schema, column.compression) == ("value", said)
        assert (column.statistics, column.has_dictionary_page) == (None, False)
        assert read(tmp_path / file.staged)[0]["offset"] == 1

    def test_a_file_says_which_batch_it_is_of(self, spark: SparkSession, tmp_path: Path) -> None:
        where = staging(tmp_path, origin={"checkpoint_id": "c", "query": 1, "batch_id": 7})
        (file,) = write_by_spark(frame_of(spark, [record(1)]), where)
        metadata = pq.read_metadata(tmp_path / file.staged).metadata
        fields = json.loads(metadata[b"org.apache.spark.sql.parquet.row.metadata"])["fields"]
        (described,) = (each["metadata"] for each in fields if each["name"] == "offset")
        assert described == {"kbroker.archive": where.origin}

    def test_nothing_is_written_and_settings_stay(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        before = {name: spark.conf.get(name) for name in SETTINGS}
        assert write_by_spark(frame_of(spark, []), staging(tmp_path)) == []
        assert {name: spark.conf.get(name) for name in SETTINGS} == before

    def test_what_an_interrupted_write_left_is_no_file_of_the_next(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        write_by_spark(frame_of(spark, [record(1)]), staging(tmp_path))
        (file,) = write_by_spark(frame_of(spark, [record(2)]), staging(tmp_path))
        assert read(tmp_path / file.staged)[0]["offset"] == 2

    def test_settings_that_another_query_changes(
        self, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(SETTINGS, "spark.sql.parquet.outputTimestampType", "INT96")
        with pytest.raises(JobError, match="another query of this session") as raised:
            write_by_spark(frame_of(spark, [record(1)]), staging(tmp_path))
        assert "\n" not in str(raised.value)

    def test_a_count_that_does_not_come(
        self, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(spark_parquet, "COUNT_TIMEOUT_S", 0.0)
        with pytest.raises(JobError, match="did not say how many records"):
            write_by_spark(frame_of(spark, [record(1)]), staging(tmp_path))

    def test_files_of_both_kinds_become_one(self, spark: SparkSession, tmp_path: Path) -> None:
        where = staging(tmp_path)
        old = write_files(
            [pa.RecordBatch.from_pylist([{**record(0), "headers": None}], schema=SCHEMA)], where
        )
        new = write_by_spark(frame_of(spark, [record(n) for n in (1, 2, 3)]), where)
        sources = [tmp_path / file.staged for file in (*old, *new)]
        for name, order in (("one", sources), ("other", sources[::-1])):
            merge(order, tmp_path / f"{name}.parquet", {})
            assert sorted(row["offset"] for row in read(tmp_path / f"{name}.parquet")) == [
                0,
                1,
                2,
                3,
            ]
        publish(tmp_path, [*old, *new])
        expected = [("t", 0, n, record(n)["key"], record(n)["value"]) for n in range(4)]
        (tmp_path / "one.parquet").unlink()
        (tmp_path / "other.parquet").unlink()
        assert seen_by_pyarrow(tmp_path) == seen_by_duckdb(tmp_path) == expected
        assert spark.read.parquet(str(tmp_path)).count() == 4
        assert ds.dataset(tmp_path, partitioning="hive").count_rows() == 4


def test_files_that_the_driver_does_not_see(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="not the driver's: on a cluster --output must be a place"):
        staged_files(Folder(absolute(str(tmp_path))), "staged", staging(tmp_path), 3)


@pytest.mark.parametrize(
    ("sizes", "record_bytes", "rows"),
    [
        pytest.param([], None, None, id="nothing is known"),
        pytest.param([], 100.0, 10_000, id="as brokers store them"),
        pytest.param([(4000, 100_000), (1000, 150_000)], 100.0, 20_000, id="of the batch before"),
        pytest.param([(10, 30_000)], 100.0, 10_000, id="too few to tell"),
        pytest.param([], 1e9, 1, id="a record larger than a file"),
    ],
)
def test_rows_of_a_file(
    sizes: list[tuple[int, int]], record_bytes: float | None, rows: int | None
) -> None:
    before = [StagedFile("", "", "t", records, size) for records, size in sizes]
    assert rows_per_file(1_000_000, before, record_bytes) == rows


@pytest.mark.parametrize(
    ("output", "checkpoint", "is_spark"),
    [
        ("out", "", True),
        ("out", "s3a://bucket/checkpoint", True),
        ("s3://bucket/out?region=eu-west-1", "", True),
        ("s3a://bucket/out", "s3a://bucket/checkpoint", True),
        ("s3://bucket/out", "/checkpoints/out", False),
        ("s3://bucket/out", "s3a://bucket/out", False),
    ],
)
def test_who_writes(output: str, checkpoint: str, *, is_spark: bool) -> None:
    """pyarrow's file systems work where Spark has none, which the checkpoint shows."""
    options = ArchiveOptions(output, subscribe="t", checkpoint=checkpoint)
    assert options.spark_has_output is is_spark
    assert parquet_store(options).has_python_tasks is not is_spark
    assert replace(options, checkpoint="").spark_has_output
