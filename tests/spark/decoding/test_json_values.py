"""JSON as values of a schema of Spark; what does not fit is in test_json_schema."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from spark_jobs.decoding.errors import Undecodable
from spark_jobs.decoding.json_values import checked_json, shaped
from spark_jobs.decoding.types import array, arrow_type, string_map, struct

pa = pytest.importorskip("pyarrow")


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ("long", "3", 3),
        ("double", "3", 3.0),
        ("decimal(10,2)", "1.1", Decimal("1.1")),
        ("date", '"1970-01-03"', 2),
        ("timestamp", '"1970-01-01T00:00:01+00:00"', 1_000_000),
        ("timestamp", '"1970-01-01T02:00:00+02:00"', 0),
        ("timestamp", '"1970-01-01T00:00:00.000001"', 1),
        ("timestamp_ntz", '"1970-01-01T02:00:00+02:00"', 7_200_000_000),
        (array("long"), "[1, null]", [1, None]),
        (string_map("string"), '{"a": "b"}', [("a", "b")]),
        (struct([("a", "string"), ("b", "long")]), '{"a": "x", "c": 1}', {"a": "x", "b": None}),
    ],
)
def test_values(schema: Any, text: str, value: object) -> None:
    found = shaped(checked_json(text.encode(), schema), schema)
    assert found == value
    assert len(pa.array([found], arrow_type(schema))) == 1


def test_without_a_schema_anything_is_a_value() -> None:
    assert checked_json(b'{"a": [1.5]}', None) == {"a": [1.5]}
    with pytest.raises(Undecodable, match="value is string, not long"):
        checked_json(b'"a"', "long")
