"""JSON values against schemas of Spark."""

from __future__ import annotations

from typing import Any

import pytest

from spark_jobs.decoding.json_schema import schema_problem, unknown_type
from spark_jobs.decoding.types import array, string_map, struct


def field(name: str, kind: Any, *, nullable: bool = True) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": {}}


ORDER = {
    "type": "struct",
    "fields": [
        field("id", "long", nullable=False),
        field("paid", "boolean"),
        field("tags", {"type": "array", "elementType": "string", "containsNull": False}),
        field(
            "sizes",
            {
                "type": "map",
                "keyType": "string",
                "valueType": "byte",
                "valueContainsNull": False,
            },
        ),
        field("total", "decimal(10,2)"),
        field("at", "timestamp"),
        field("address", {"type": "struct", "fields": [field("city", "string", nullable=False)]}),
    ],
}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"id": 1}, None),
        ({"id": 1, "unknown": [1], "paid": None}, None),
        ({"id": 1, "tags": ["a"], "sizes": {"x": -128}, "total": 1.5}, None),
        ({"id": 1, "at": "2026-05-01T10:00:00Z", "address": {"city": "Bern"}}, None),
        ([], "value is array, not object"),
        (None, "value is null, not object"),
        ({}, "id is missing"),
        ({"id": None}, "id is null"),
        ({"id": True}, "id is boolean, not long"),
        ({"id": "1"}, "id is string, not long"),
        ({"id": 1.5}, "id is number, not long"),
        ({"id": 2**63}, "id is out of the range of long"),
        ({"id": -(2**63)}, None),
        ({"id": 1, "tags": ["a", 2]}, "tags[1] is number, not string"),
        ({"id": 1, "tags": [None]}, "tags[0] is null"),
        ({"id": 1, "tags": "a"}, "tags is string, not array"),
        ({"id": 1, "sizes": {"x": 128}}, "sizes['x'] is out of the range of byte"),
        ({"id": 1, "sizes": {"x": None}}, "sizes['x'] is null"),
        ({"id": 1, "sizes": [1]}, "sizes is array, not object"),
        ({"id": 1, "total": "1"}, "total is string, not decimal(10,2)"),
        ({"id": 1, "at": "yesterday"}, "at is string, not timestamp"),
        ({"id": 1, "at": 5}, "at is number, not timestamp"),
        ({"id": 1, "address": {}}, "address.city is missing"),
    ],
)
def test_orders(value: object, problem: str | None) -> None:
    assert schema_problem(value, ORDER) == problem


class Name(str):
    """A name that counts how often it is written. The time for a path of every value would grow
    with the square of the size where names are long.
    """

    written = 0

    def __format__(self, form: str) -> str:
        Name.written += 1
        return str(self)

    def __repr__(self) -> str:
        Name.written += 1
        return super().__repr__()


def test_a_path_is_made_where_a_value_does_not_fit_only() -> None:
    items = array(struct([(Name("id"), string_map("long"))]))
    value: list[object] = [{"id": {Name("a"): 1}} for _ in range(1000)]
    assert schema_problem(value, items) is None
    assert Name.written == 0
    assert schema_problem([*value, {"id": {Name("a"): "x"}}], items) == (
        "[1000].id['a'] is string, not long"
    )
    assert Name.written == 2


@pytest.mark.parametrize(
    ("schema", "unknown"),
    [
        (ORDER, None),
        ("double", None),
        ("binary", "binary"),
        ({"type": "array", "elementType": "interval day to second"}, "interval day to second"),
        ({"type": "map", "keyType": "long", "valueType": "long"}, "map with keys of long"),
        ({"type": "udt", "class": "x"}, "udt"),
        ({"type": "struct", "fields": [field("a", "variant")]}, "variant"),
    ],
)
def test_types_that_json_does_not_have(schema: Any, unknown: str | None) -> None:
    assert unknown_type(schema) == unknown
