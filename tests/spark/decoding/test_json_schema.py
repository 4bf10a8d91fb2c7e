"""JSON values against schemas of Spark."""

from __future__ import annotations

from typing import Any

import pytest

from spark_jobs.decoding.json_schema import schema_problem, unknown_type


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
