"""Fields of messages without their meaning; what cannot be read is in test_protobuf."""

from __future__ import annotations

from spark_jobs.decoding.wire import BYTES, FIXED32, VARINT, Field, fields
from tests.spark.decoding.protobuf_bytes import content, fixed32, number


def test_fields_in_their_order() -> None:
    data = number(1, 300) + content(2, b"ab") + b"\x0b\x08\x01\x0c" + fixed32(3, 1)
    assert list(fields(data)) == [
        Field(1, VARINT, 300),
        Field(2, BYTES, b"ab"),
        Field(3, FIXED32, b"\x01\x00\x00\x00"),
    ]
