"""How the schema of a table grows, and its types of Arrow."""

from __future__ import annotations

from typing import Any

import pytest

from spark_jobs.decoding.errors import SchemaProblem
from spark_jobs.decoding.types import array, arrow_type, merged, string_map, struct

pa = pytest.importorskip("pyarrow")

TABLE = struct([("id", "long"), ("name", "string"), ("tags", array("integer"))])


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (TABLE, TABLE),
        (struct([("id", "integer")]), TABLE),
        (
            struct([("new", "date"), ("id", "long")]),
            struct([*((f["name"], f["type"]) for f in TABLE["fields"]), ("new", "date")]),
        ),
    ],
    ids=["the same", "fewer and narrower", "more"],
)
def test_columns_are_added_and_none_is_dropped(found: Any, expected: Any) -> None:
    assert merged(TABLE, found) == expected
    assert merged(expected, found) == expected


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (struct([("id", "string")]), "value.id is string, and long in the table"),
        (struct([("tags", "integer")]), "value.tags is integer, and array in the table"),
        (struct([("tags", array("long"))]), r"value.tags\[\] is long, and integer in the table"),
        (struct([("tags", string_map("long"))]), "value.tags is map, and array"),
        (struct([("ID", "long")]), "value has ID, which differs from id only by its case"),
        (struct([("a", "long"), ("A", "long")]), "value has A, which differs from a only"),
        ("long", "value is long, and struct in the table"),
    ],
)
def test_columns_do_not_change(found: Any, why: str) -> None:
    with pytest.raises(SchemaProblem, match=why):
        merged(TABLE, found)


def test_wider_types_hold_narrower_ones() -> None:
    maps = merged(string_map("double"), string_map("float"))
    assert maps == string_map("double")
    for table, found in (("float", "integer"), ("double", "long"), ("integer", "long")):
        with pytest.raises(SchemaProblem):
            merged(table, found)
    keys = {**string_map("long"), "keyType": "integer"}
    with pytest.raises(SchemaProblem, match="has keys of string, not integer"):
        merged(keys, string_map("long"))


def test_types_of_arrow() -> None:
    found = arrow_type(
        struct([("a", array("decimal(10, 2)")), ("b", string_map("timestamp")), ("c", "byte")])
    )
    assert found == pa.struct(
        [
            ("a", pa.list_(pa.decimal128(10, 2))),
            ("b", pa.map_(pa.string(), pa.timestamp("us", "UTC"))),
            ("c", pa.int8()),
        ]
    )
    for schema, why in (("interval", "there is no type interval"), (struct([]), "without fields")):
        with pytest.raises(SchemaProblem, match=why):
            arrow_type(schema)
