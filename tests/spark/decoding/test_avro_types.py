"""Avro's types as Spark has them."""

from __future__ import annotations

import json
import pickle

import pytest

from spark_jobs.decoding.avro import Reader, parse_schema
from spark_jobs.decoding.avro_types import spark_type
from spark_jobs.decoding.errors import SchemaProblem
from spark_jobs.decoding.types import Schema, array, string_map, struct

FIXED = {"type": "fixed", "name": "F", "size": 5}


def of(schema: object) -> Schema:
    return spark_type(parse_schema(json.dumps(schema)))


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ("int", "integer"),
        ("bytes", "binary"),
        (FIXED, "binary"),
        ({**FIXED, "logicalType": "decimal", "precision": 9, "scale": 2}, "decimal(9,2)"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
        ({"type": "int", "logicalType": "date"}, "date"),
        ({"type": "int", "logicalType": "time-millis"}, "integer"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp"),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, "timestamp_ntz"),
        ({"type": "string", "logicalType": "uuid"}, "string"),
        (["null", "long"], "long"),
        (["string"], "string"),
        (["int", "null", "string"], struct([("member0", "integer"), ("member1", "string")])),
        ({"type": "array", "items": ["null", "float"]}, array("float")),
        ({"type": "map", "values": "double"}, string_map("double")),
    ],
)
def test_types(schema: object, expected: Schema) -> None:
    assert of(schema) == expected
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": schema}]}
    assert of(record) == struct([("a", expected)])


def test_types_that_spark_has_not() -> None:
    doubling: object = "int"
    for number in range(20):
        fields = [{"name": "a", "type": doubling}, {"name": "b", "type": f"R{number - 1}"}]
        doubling = {"type": "record", "name": f"R{number}", "fields": fields[: 2 if number else 1]}
    itself = {"type": "record", "name": "L", "fields": [{"name": "n", "type": ["null", "L"]}]}
    for schema, why in (
        (itself, "L has itself as a part"),
        (doubling, "more than 10000 types"),
        ({"type": "record", "name": "R", "fields": []}, "R has no fields"),
        (["null"], "no type but null"),
        ({"type": "array", "items": "null"}, "always null"),
    ):
        with pytest.raises(SchemaProblem, match=why):
            of(schema)


def test_types_in_each_other() -> None:
    """Of any schema that is taken, a reader can be made and the type can be pickled."""
    nested: object = "int"
    for _ in range(100):
        nested = {"type": "array", "items": nested}
    node = parse_schema(json.dumps(nested))
    assert pickle.loads(pickle.dumps(spark_type(node))) == spark_type(node)
    assert Reader(node).value(b"\x02" * 100 + b"\x06" + b"\x00" * 100)
    for deeper in (["null", nested], {"type": "map", "values": nested}):
        with pytest.raises(SchemaProblem, match="more than 100 types in each other"):
            of(deeper)
    # Each record is named in the next one, so that the JSON is not deep.
    references = [
        json.dumps(
            {
                "type": "record",
                "name": f"R{number}",
                "fields": [{"name": "a", "type": f"R{number - 1}" if number else "int"}],
            }
        )
        for number in range(900)
    ]
    with pytest.raises(SchemaProblem, match="more than 100 types in each other"):
        spark_type(parse_schema('"R899"', references))
