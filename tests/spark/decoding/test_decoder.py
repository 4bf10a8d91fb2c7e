"""Bytes to values, as tasks get their decoders."""

from __future__ import annotations

import pickle

import pytest

from spark_jobs.decoding.decoder import (
    AvroDecoder,
    Decoder,
    FramedDecoder,
    GivenSchemas,
    JsonDecoder,
    ProtobufDecoder,
    TextDecoder,
)
from spark_jobs.decoding.errors import SchemaProblem, Undecodable
from spark_jobs.decoding.registry import Texts
from spark_jobs.decoding.types import struct
from tests.spark.decoding.protobuf_bytes import content, shop

RECORD = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'


DEEP = '{"type": "array", "items": ' * 600 + '"int"' + "}" * 600


class Known:
    """A registry with four schemas."""

    def texts(self, number: int) -> Texts:
        known = {1: '"string"', 2: "no schema", 4: DEEP, 5: '"bytes"'}
        if number not in known:
            raise Undecodable(f"no schema {number}")
        return (known[number],)

    def check(self) -> None:
        """It is always there."""


FRAMED = (
    FramedDecoder(Known()),
    GivenSchemas({1: ('"string"',), 4: (DEEP,), 5: ('"bytes"',)}, {2: "schema 2 is none"}),
)


@pytest.mark.parametrize(
    ("decoder", "data", "value"),
    [
        (TextDecoder(), "ü".encode(), "ü"),
        (JsonDecoder(), b' {"a":1}', ' {"a":1}'),
        (JsonDecoder(struct([("a", "long")])), b'{"a":1,"b":2}', {"a": 1}),
        (AvroDecoder((RECORD,)), b"\x06", {"a": 3}),
        (AvroDecoder((RECORD, '["null", "R"]')), b"\x02\x06", {"a": 3}),
        (ProtobufDecoder(shop(), "Item"), content(1, "x"), {"sku": "x"}),
        (AvroDecoder(('"bytes"',)), b"\x02a", b"a"),
        *((each, b"\x00\x00\x00\x00\x01\x02a", "a") for each in FRAMED),
        *((each, b"\x00\x00\x00\x00\x05\x02a", b"\x02a") for each in FRAMED),
    ],
)
def test_values_here_and_in_a_task(decoder: Decoder, data: bytes, value: object) -> None:
    assert decoder.value(data) == value
    assert pickle.loads(pickle.dumps(decoder)).value(data) == value


@pytest.mark.parametrize(
    ("decoder", "data", "why"),
    [
        (TextDecoder(), b"a\xff", "the value is no UTF-8: byte 1 is 0xff"),
        (JsonDecoder(), b"{", "the value is no JSON: "),
        (JsonDecoder(struct([("a", "long")])), b'{"a":"1"}', "a is string, not long"),
        (AvroDecoder((RECORD,)), b"", "the value is no Avro of its schema: it ends within"),
        (ProtobufDecoder(shop(), "Item"), b"\x08", "the value is no message Item: it ends within"),
        (FRAMED[0], b"\x00\x00\x00\x00\x02", "schema 2: it is no schema of Avro"),
        (FRAMED[1], b"\x00\x00\x00\x00\x02", "schema 2 is none"),
        (FRAMED[0], b"\x00\x00\x00\x00\x03", "no schema 3"),
        (FRAMED[1], b"\x00\x00\x00\x00\x03", "schema 3 was not looked up"),
        *((each, b"\x00\x00\x00\x00\x01\x04a", "no Avro of its schema") for each in FRAMED),
        *((each, b"\x00\x00\x00\x00\x04\x00", "schema 4: the schema ") for each in FRAMED),
        *((each, b"", "does not begin with a byte 0") for each in FRAMED),
    ],
)
def test_what_is_no_value(decoder: Decoder, data: bytes, why: str) -> None:
    for _ in range(2):  # what is remembered says the same
        with pytest.raises(Undecodable, match=why):
            decoder.value(data)


def test_schemas_that_cannot_be_used() -> None:
    for make in (
        lambda: AvroDecoder(("[]",)),
        lambda: AvroDecoder((DEEP,)),
        lambda: ProtobufDecoder(b"x", "Item"),
        lambda: ProtobufDecoder(shop(), "Bill"),
    ):
        with pytest.raises(SchemaProblem):
            make()
