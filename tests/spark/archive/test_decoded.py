"""Record batches with decoded values, dead letters, and the files of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_jobs.archive.commits import Staging
from spark_jobs.archive.decoded import ValueDecoder
from spark_jobs.archive.files import DEAD_LETTERS, SCHEMA, dead_files, write_parts
from spark_jobs.archive.tables import TopicTable
from spark_jobs.decoding.decoder import GivenSchemas, JsonDecoder, TextDecoder
from spark_jobs.decoding.types import struct
from spark_jobs.storage import Folder, absolute

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ORDER = struct([("id", "long"), ("at", "timestamp")])
GROWN = struct([("id", "long"), ("at", "timestamp"), ("x", "date")])
TABLES = {
    "orders": TopicTable(GROWN, JsonDecoder(ORDER)),
    "texts": TopicTable("string", TextDecoder()),
    "empty": TopicTable(None, GivenSchemas({}, {3: "schema 3 is none"})),
}


def batch(*rows: tuple[str, int, bytes | None]) -> pa.RecordBatch:
    """Of topic, offset and value."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "key": b"k",
                "value": value,
                "headers": [{"key": "h", "value": None}] if offset % 2 else None,
                "topic": topic,
                "partition": 0,
                "offset": offset,
                "timestamp": offset,
                "timestampType": 0,
            }
            for topic, offset, value in rows
        ],
        SCHEMA,
    )


ROWS = batch(
    ("orders", 0, b'{"id": 1, "at": "1970-01-01"}'),
    ("texts", 5, b"a"),
    ("orders", 1, b'{"id": "no"}'),
    ("orders", 2, None),
    ("texts", 6, b"\xff"),
    ("orders", 3, b'{"id": 4}'),
    ("empty", 7, b"\x00\x00\x00\x00\x03"),
    ("empty", 8, None),
)


@pytest.fixture
def decoder() -> ValueDecoder:
    return ValueDecoder.from_text(ValueDecoder(TABLES, "q").to_text())


def test_files_of_values_and_of_dead_letters(decoder: ValueDecoder, tmp_path: Path) -> None:
    staging = Staging(absolute(str(tmp_path)), "_archive/staging/1", ("topic",))
    written = {
        file.path: pq.read_table(tmp_path / file.staged, partitioning=None)
        for file in write_parts(decoder.parts(ROWS, 4), staging)
    }
    assert sorted(written) == [
        "_dlq/topic=empty/p00000-000000000007-000000000007.parquet",
        "_dlq/topic=orders/p00000-000000000001-000000000001.parquet",
        "_dlq/topic=texts/p00000-000000000006-000000000006.parquet",
        "topic=empty/p00000-000000000008-000000000008.parquet",
        "topic=orders/p00000-000000000000-000000000003.parquet",
        "topic=texts/p00000-000000000005-000000000005.parquet",
    ]
    orders = written["topic=orders/p00000-000000000000-000000000003.parquet"]
    assert orders.column("offset").to_pylist() == [0, 2, 3]
    values = orders.column("value").to_pylist()
    shown = [None if v is None else (v["id"], v["at"] is None, v["x"]) for v in values]
    assert shown == [(1, False, None), None, (4, True, None)]
    texts = written["topic=texts/p00000-000000000005-000000000005.parquet"]
    assert texts.column("value").to_pylist() == ["a"]
    # There is no column yet that a later value would have.
    empty = written["topic=empty/p00000-000000000008-000000000008.parquet"]
    assert "value" not in empty.column_names
    dead = written["_dlq/topic=orders/p00000-000000000001-000000000001.parquet"]
    (row,) = dead.to_pylist()
    assert (row["value"], row["offset"]) == (b'{"id": "no"}', 1)
    headers = {each["key"]: each["value"] for each in row["headers"]}
    prefix = "__connect.errors."
    assert headers["h"] is None
    assert headers[f"{prefix}exception.message"] == b"id is string, not long"
    assert (headers[f"{prefix}topic"], headers[f"{prefix}task.id"]) == (b"orders", b"4")
    assert headers[f"{prefix}class.name"] == b"spark_jobs.decoding.decoder.JsonDecoder"


def test_all_good_and_all_bad(decoder: ValueDecoder) -> None:
    (good,) = decoder.parts(batch(("texts", 0, b"a"), ("texts", 1, b"b")), 0)
    assert (good.folder, good.rows.column("value").to_pylist()) == ("", ["a", "b"])
    (bad,) = decoder.parts(batch(("texts", 0, b"\xff"), ("texts", 1, b"\x80")), 0)
    assert (bad.folder, bad.rows.num_rows, bad.value_type) == (DEAD_LETTERS, 2, pa.binary())


class Odd:
    """Decodes to what Arrow does not take for a number."""

    def value(self, content: bytes) -> Any:
        return {b"large": 1 << 70, b"text": "text"}.get(content, 7)


def test_values_that_cannot_be_stored() -> None:
    found = ValueDecoder({"t": TopicTable("long", Odd())}, "q")
    rows = batch(("t", 0, b"a"), ("t", 1, b"large"), ("t", 2, b"b"), ("t", 3, b"text"))
    good, bad = found.parts(rows, 0)
    assert good.rows.column("value").to_pylist() == [7, 7]
    assert bad.rows.column("offset").to_pylist() == [1, 3]


def test_only_a_decoder_is_one() -> None:
    import base64
    import pickle

    with pytest.raises(TypeError, match="a dict is no ValueDecoder"):
        ValueDecoder.from_text(base64.b64encode(pickle.dumps({})).decode())


def test_dead_files(tmp_path: Path) -> None:
    (tmp_path / DEAD_LETTERS / "topic=t").mkdir(parents=True)
    (tmp_path / DEAD_LETTERS / "topic=t" / "p00000-000000000000-000000000001.parquet").touch()
    output = Folder(absolute(str(tmp_path)))
    assert dead_files(output) == ["_dlq/topic=t/p00000-000000000000-000000000001.parquet"]
    assert output.files() == []
    assert dead_files(output.child("absent")) == []
