"""Metrics of OpenTelemetry as clients push them. Other tests of telemetry use `metrics`."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

import pytest

from kbroker.protocol.errors import MalformedRequest
from kbroker.protocol.otlp import MAX_FIELDS, MetricPoint, read_points

CUMULATIVE, DELTA = 2, 1


def varint(number: int) -> bytes:
    out = b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def point(value: float | int, attributes: Mapping[str, str]) -> bytes:
    pairs = b"".join(
        field(7, field(1, key.encode()) + field(2, field(1, text.encode())))
        for key, text in attributes.items()
    )
    if isinstance(value, int):
        return pairs + varint(6 << 3 | 1) + struct.pack("<q", value)
    return pairs + varint(4 << 3 | 1) + struct.pack("<d", value)


def gauge(name: str, value: float, **attributes: str) -> bytes:
    return field(2, field(1, name.encode()) + field(5, field(1, point(value, attributes))))


def total(name: str, value: int, temporality: int = CUMULATIVE, **attributes: str) -> bytes:
    data = field(1, point(value, attributes)) + varint(2 << 3) + varint(temporality)
    return field(2, field(1, name.encode()) + field(2, b"help") + field(7, data))


def metrics(parts: Iterable[bytes]) -> bytes:
    """MetricsData."""
    return field(1, field(1, b"") + field(2, field(1, b"") + b"".join(parts)))


def test_gauges_and_sums() -> None:
    data = metrics(
        [gauge("a.b", 2.5, topic="t"), total("c", -7), total("d", 3, DELTA, topic="t", x="y")]
    )
    assert list(read_points(data)) == [
        MetricPoint("a.b", (("topic", "t"),), 2.5, False),
        MetricPoint("c", (), -7.0, False),
        MetricPoint("d", (("topic", "t"), ("x", "y")), 3.0, True),
    ]


def test_what_is_not_known_is_skipped() -> None:
    fixed32 = varint(15 << 3 | 5) + bytes(4)
    fixed64 = varint(15 << 3 | 1) + bytes(8)
    histogram = field(2, field(1, b"h") + field(9, field(1, b"")))
    data = fixed32 + fixed64 + metrics([histogram, gauge("a", 1.0)]) + varint(15 << 3) + b"\x05"
    assert [each.name for each in read_points(data)] == ["a"]


def test_every_cut_is_refused_or_shorter() -> None:
    data = metrics([gauge("a.b", 2.5, topic="t"), total("c", 5)])
    for size in range(1, len(data)):
        with pytest.raises(MalformedRequest):
            list(read_points(data[:size]))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x0b\x01", id="a group"),
        pytest.param(b"\xff" * 11, id="an endless varint"),
        pytest.param(b"\x0a\xff\xff\xff\xff\x0f", id="a length beyond the end"),
    ],
)
def test_what_is_no_protobuf_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedRequest):
        list(read_points(data))


def test_no_more_fields_are_looked_at_than_a_client_has() -> None:
    with pytest.raises(MalformedRequest, match="fields"):
        list(read_points(b"\x08\x01" * (MAX_FIELDS + 1)))
