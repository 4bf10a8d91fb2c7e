"""Avro's binary encoding. The bytes are those of the examples of its specification, and what an
encoder written for these tests makes of any value.
"""

from __future__ import annotations

import json
import math
import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.decoding.avro import Reader, decimal_of, parse_schema
from spark_jobs.decoding.errors import SchemaProblem, Undecodable


def reader(schema: object) -> Reader:
    return Reader(parse_schema(json.dumps(schema)))


def record(*fields: tuple[str, object]) -> dict[str, object]:
    shown = [{"name": name, "type": kind} for name, kind in fields]
    return {"type": "record", "name": "a.R", "fields": shown}


@pytest.mark.parametrize(
    ("schema", "content", "value"),
    [
        ("long", "00", 0),
        ("long", "01", -1),
        ("long", "8001", 64),
        ("int", "7f", -64),
        ("string", "06666f6f", "foo"),
        ("bytes", "06ff0061", b"\xff\x00a"),
        ("null", "", None),
        ("boolean", "01", True),
        (record(("a", "long"), ("b", "string")), "3606666f6f", {"a": 27, "b": "foo"}),
        ({"type": "array", "items": "long"}, "04063600", [3, 27]),
        ({"type": "array", "items": "long"}, "0304063600", [3, 27]),
        ({"type": "array", "items": "long"}, "0206023600", [3, 27]),
        ({"type": "map", "values": "long"}, "0202610600", [("a", 3)]),
        (["null", "string"], "00", None),
        (["null", "string"], "020261", "a"),
        (["null", "string", "long"], "0406", {"member1": 3}),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "02", "B"),
        ({"type": "fixed", "name": "F", "size": 2}, "0102", b"\x01\x02"),
        ({"type": "int", "logicalType": "date"}, "04", 2),
        ({"type": "long", "logicalType": "timestamp-millis"}, "04", 2000),
        ({"type": "long", "logicalType": "timestamp-micros"}, "04", 2),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, "03", -2000),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            "04ff85",
            Decimal("-1.23"),
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 0}, "0201", b"\x01"),
        ({"type": {"type": "string", "avro.java.string": "String"}}, "0261", "a"),
    ],
)
def test_values(schema: object, content: str, value: object) -> None:
    assert reader(schema).value(bytes.fromhex(content)) == value
    assert reader(schema).value(b"12345" + bytes.fromhex(content), 5) == value


def test_a_decimal_keeps_all_its_digits() -> None:
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 3}
    unscaled = 10**38 - 1
    content = unscaled.to_bytes(17, "big", signed=True)
    found = reader(schema).value(bytes([2 * len(content)]) + content)
    assert str(found) == f"{str(unscaled)[:-3]}.{str(unscaled)[-3:]}"


@pytest.mark.parametrize(
    ("schema", "content", "why"),
    [
        ("string", "06666f", "ends within a value"),
        ("string", "01", "a length is -1"),
        ("string", "0480ff", "no UTF-8"),
        ("long", "80", "ends within a value"),
        ("long", "ffffffffffffffffffff01", "more than 10 bytes"),
        ("long", "ffffffffffffffffff7f", "out of the range of long"),
        ("int", "8080808010", "out of the range of int"),
        ("long", "0000", "1 bytes are left"),
        ("boolean", "02", "a boolean is 2"),
        ("float", "000000", "ends within a value"),
        (["null"], "02", "1 is none of the 1 types of a union"),
        (["null"], "01", "-1 is none of the 1 types of a union"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "02", "none of the 1 symbols"),
        ({"type": "array", "items": "null"}, "feffffffffffffffff01", "a block of"),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            "feffffffffffffffff01",
            "out of the range",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2},
            "0464ff",
            "more than 2 digits",
        ),
    ],
)
def test_what_is_no_value(schema: object, content: str, why: str) -> None:
    with pytest.raises(Undecodable, match=why):
        reader(schema).value(bytes.fromhex(content))


def test_a_value_that_is_nested_too_deeply() -> None:
    itself = {"type": "record", "name": "L", "fields": [{"name": "n", "type": ["null", "L"]}]}
    assert reader(itself).value(b"\x02\x02\x00") == {"n": {"n": {"n": None}}}
    with pytest.raises(Undecodable, match="nested too deeply"):
        reader(itself).value(b"\x02" * 100_000)


@pytest.mark.parametrize(
    ("schema", "content", "value"),
    [
        ("bytes", "", b""),
        ("bytes", "0a 61", b"\x0aa"),
        ({"type": "bytes"}, "02", b"\x02"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            "ff 85",
            Decimal("-1.23"),
        ),
        (["null", "bytes"], "02 02 61", b"a"),
        (record(("a", "bytes")), "02 61", {"a": b"a"}),
        ("string", "02 61", "a"),
    ],
)
def test_bytes_as_confluent_writes_them(schema: object, content: str, value: object) -> None:
    """As a whole value they have no length."""
    framed = Reader(parse_schema(json.dumps(schema)), is_framed=True)
    assert framed.value(b"frame" + bytes.fromhex(content), 5) == value


def test_names_are_found_in_their_namespaces_and_in_references() -> None:
    other = '{"type": "enum", "name": "b.E", "symbols": ["X", "Y"]}'
    text = json.dumps(record(("one", "b.E"), ("two", {"type": "fixed", "name": "F", "size": 1}),
                             ("three", "F"), ("four", ["null", "a.F"])))  # fmt: skip
    found = Reader(parse_schema(text, [other])).value(b"\x02ab\x02c")
    assert found == {"one": "Y", "two": b"a", "three": b"b", "four": b"c"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "7",
        '"nothing"',
        '{"type": "record", "name": "R"}',
        '{"type": "record", "name": "1", "fields": []}',
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "x"}]}',
        json.dumps(record(("a", "int"), ("a", "int"))),
        '{"type": "fixed", "name": "F", "size": -1}',
        '{"type": "fixed", "name": "F", "size": "x"}',
        '{"type": "fixed", "name": "F", "size": 1e999}',
        "[" * 100_000,
        '{"type":' * 900 + '"int"' + "}" * 900,
    ],
)
def test_what_is_no_schema(text: str) -> None:
    try:
        parse_schema(text)
    except SchemaProblem as error:
        assert str(error)
    else:
        assert text.startswith('{"type":{"type":')


def test_decimals_by_the_rules() -> None:
    for node, expected in (
        ({"type": "bytes", "logicalType": "decimal", "precision": 5}, (5, 0)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 6}, None),
        ({"type": "bytes", "logicalType": "decimal", "precision": 39}, None),
        ({"type": "bytes", "logicalType": "decimal"}, None),
        ({"type": "string", "logicalType": "decimal", "precision": 5}, None),
    ):
        assert decimal_of(node) == expected


# An encoder, for any value of any schema.


def zigzag(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def encoded(schema: Any, value: Any) -> bytes:
    if isinstance(schema, list):
        place = 0 if value is None else 1
        return zigzag(place) + encoded(schema[place], value)
    match schema if isinstance(schema, str) else schema["type"]:
        case "null":
            return b""
        case "boolean":
            return bytes([value])
        case "int" | "long":
            return zigzag(value)
        case "double":
            return struct.pack("<d", value)
        case "string":
            return zigzag(len(value.encode())) + value.encode()
        case "bytes":
            return zigzag(len(value)) + value
        case "array":
            items = b"".join(encoded(schema["items"], each) for each in value)
            return (zigzag(len(value)) + items if value else b"") + b"\x00"
        case "map":
            pairs = [encoded("string", k) + encoded(schema["values"], v) for k, v in value]
            return (zigzag(len(pairs)) + b"".join(pairs) if pairs else b"") + b"\x00"
    return b"".join(encoded(each["type"], value[each["name"]]) for each in schema["fields"])


PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=5),
    "bytes": st.binary(max_size=5),
}


@st.composite
def typed_values(draw: st.DrawFn, depth: int = 3) -> tuple[Any, Any]:
    kinds = [*PLAIN, *(["array", "map", "union", "record"] if depth else [])]
    kind = draw(st.sampled_from(kinds))
    if kind in PLAIN:
        return kind, draw(PLAIN[kind])
    schema, value = draw(typed_values(depth - 1))
    match kind:
        case "array":
            return {"type": "array", "items": schema}, draw(st.sampled_from([[], [value] * 3]))
        case "map":
            return {"type": "map", "values": schema}, [("k", value), ("", value)]
        case "union":
            if isinstance(schema, list):
                return schema, value
            return ["null", schema], draw(st.sampled_from([None, value]))
    name = f"R{draw(st.integers(0, 1 << 60))}"
    fields = [{"name": "a", "type": schema}, {"name": "b", "type": "long"}]
    return {"type": "record", "name": name, "fields": fields}, {"a": value, "b": 7}


@given(typed_values())
def test_any_value(pair: tuple[Any, Any]) -> None:
    schema, value = pair
    try:
        parsed = parse_schema(json.dumps(schema))
    except SchemaProblem:
        return  # a name twice, with other fields
    content = encoded(schema, value)
    found = Reader(parsed).value(content)
    assert found == value or (isinstance(found, float) and math.isnan(found))
    for end in range(len(content)):
        try:
            Reader(parsed).value(content[:end])
        except Undecodable:
            continue


@given(typed_values(), st.binary(max_size=40))
def test_any_bytes(pair: tuple[Any, Any], content: bytes) -> None:
    made = reader(pair[0])
    try:
        made.value(content)
    except Undecodable as error:
        assert str(error)
