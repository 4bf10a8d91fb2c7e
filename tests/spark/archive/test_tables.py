"""The tables of decoded values: they grow by columns, and say what they are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.archive import tables as tables_module
from spark_jobs.archive.commits import Commit
from spark_jobs.archive.options import ArchiveOptions
from spark_jobs.archive.stores import store_of
from spark_jobs.archive.tables import FORM, TABLES, Tables, check_form, form_of, refuse_decoded
from spark_jobs.decoding.decoder import GivenSchemas
from spark_jobs.decoding.errors import Undecodable
from spark_jobs.decoding.options import DecodeOptions
from spark_jobs.decoding.types import struct
from spark_jobs.errors import JobError, StartRefused
from spark_jobs.storage import Folder, absolute

COMMIT = Commit(1, "c", 1, 0, ("topic",), {"t": {0: 1}}, records=1)


def record(**fields: str) -> str:
    shown = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "R", "fields": shown})


@pytest.fixture
def output(tmp_path: Path) -> Folder:
    return Folder(absolute(str(tmp_path / "out")))


@pytest.fixture
def framed(
    output: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """The tables behind a batch with values of these ids."""
    folder = tmp_path / "schemas"
    folder.mkdir()
    for number, text in {
        1: record(a="int"),
        2: record(a="int", b="string"),
        3: record(b="string"),
        4: record(a="string"),
        5: record(a="long"),
        6: "nonsense",
    }.items():
        (folder / f"{number}.avsc").write_text(text)

    made = Tables(output, DecodeOptions("confluent-avro", registry=str(folder)), None)

    def run(**numbers: tuple[int, ...]) -> dict[str, Any]:
        counted = {topic: Counter(each) for topic, each in numbers.items()}
        monkeypatch.setattr(tables_module, "schema_ids", lambda _: counted)
        return made.of_batch(None, numbers)  # type: ignore[arg-type]

    return run


def why(decoder: object, number: int) -> str:
    assert isinstance(decoder, GivenSchemas)
    with pytest.raises(Undecodable) as raised:
        decoder.value(b"\x00" + number.to_bytes(4, "big"))
    return str(raised.value)


def test_columns_are_added_and_stay(framed: Callable[..., dict[str, Any]], output: Folder) -> None:
    first = framed(t=(1,))["t"]
    assert first.type == struct([("a", "integer")])
    grown = framed(t=(4, 3, 2, 6, 9), u=(4,), none=())
    table = grown["t"]
    assert table.type == struct([("a", "integer"), ("b", "string")])
    assert why(table.decoder, 4).startswith("schema 4 does not fit the table: value.a is string")
    assert why(table.decoder, 6).startswith("schema 6: it is no schema of Avro")
    assert "has no schema 9" in why(table.decoder, 9)
    assert why(table.decoder, 5) == "schema 5 was not looked up"
    assert table.decoder.value(b"\x00\x00\x00\x00\x03\x02x") == {"b": "x"}
    assert grown["u"].type == struct([("a", "string")])
    assert grown["none"].type is None
    assert output.names(TABLES) == ["t.json", "u.json"]
    # The order of ids is that in which they were registered, whatever order they come in.
    assert framed(v=(5, 1))["v"].type == struct([("a", "integer")])
    assert framed(t=(3,))["t"].type == table.type


def test_a_schema_of_the_options_that_does_not_fit(output: Folder) -> None:
    first = Tables(output, DecodeOptions("json", "x"), struct([("a", "long")]))
    found = first.of_batch(None, ["t"])["t"]  # type: ignore[arg-type]
    assert found.decoder.value(b'{"a": 1}') == {"a": 1}
    wider = Tables(output, DecodeOptions("json", "x"), struct([("b", "string")]))
    assert wider.of_batch(None, ["t"])["t"].type == struct(  # type: ignore[arg-type]
        [("a", "long"), ("b", "string")]
    )
    other = Tables(output, DecodeOptions("json", "x"), struct([("a", "string")]))
    with pytest.raises(JobError, match=r"the table of topic t: value\.a is string, and long"):
        other.of_batch(None, ["t"])  # type: ignore[arg-type]


def test_too_many_schemas_are_not_all_looked_up(
    framed: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables_module, "MAX_SCHEMAS", 2)
    assert "was not looked up" in why(framed(t=(7, 8, 2))["t"].decoder, 8)


def test_schemas_of_many_records_are_looked_up_first(
    framed: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids that values have by chance may be smaller. One that was used before is not counted."""
    monkeypatch.setattr(tables_module, "MAX_SCHEMAS", 2)
    value = b"\x00\x00\x00\x00\x05\x02"
    table = framed(t=(0, 3, 4, 5, 5))["t"]
    assert table.decoder.value(value) == {"a": 1}
    assert "was not looked up" in why(table.decoder, 3)
    table = framed(t=(0, 0, 7, 7, 5))["t"]
    assert table.decoder.value(value) == {"a": 1}
    assert [why(table.decoder, n).partition(" has ")[2][:11] for n in (0, 7)] == [
        "no schema 0",
        "no schema 7",
    ]


def test_the_form_of_values_stays(output: Folder) -> None:
    check_form(output, None, "json")
    check_form(output, COMMIT, "none")
    assert form_of(output) == "none"
    refuse_decoded(output, "restored")
    with pytest.raises(StartRefused, match="with --decode none, and this is json"):
        check_form(output, COMMIT, "json")
    Tables(output, DecodeOptions("json"), None).keep_form()
    assert form_of(output) == "json"
    with pytest.raises(JobError, match="with --decode json: its values are data, not the bytes"):
        refuse_decoded(output, "restored")
    check_form(output, COMMIT, "json")
    with pytest.raises(StartRefused, match="with --decode json, and this is none"):
        check_form(output, COMMIT, "none")
    output.write(FORM, b"{")
    with pytest.raises(JobError, match="is damaged"):
        form_of(output)


def test_a_table_of_a_lake_keeps_bytes(tmp_path: Path) -> None:
    options = ArchiveOptions(
        str(tmp_path), subscribe="t", format="iceberg", decoding=DecodeOptions("json")
    )
    with pytest.raises(JobError, match="a table of Iceberg keeps values as bytes"):
        store_of(options)


def test_a_damaged_table(output: Folder) -> None:
    output.write(f"{TABLES}/t.json", b"[]")
    with pytest.raises(JobError, match=r"t\.json is damaged"):
        Tables(output, DecodeOptions("string"), None).of_batch(None, ["t"])  # type: ignore[arg-type]
