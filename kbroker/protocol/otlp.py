"""Decodes metrics of OpenTelemetry (OTLP's MetricsData, protobuf) that clients push: the values of
gauges and sums, which Kafka's clients send; histograms and summaries are skipped.

Nothing is allocated from a length before that many bytes are available, and at most `MAX_FIELDS`
fields are read: a tenth of a second of work, for a thread.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from kbroker.protocol.errors import MalformedRequest

_DOUBLE: Final = struct.Struct("<d")
_FIXED64: Final = struct.Struct("<q")
MAX_VARINT_BYTES: Final = 10
MAX_FIELDS: Final = 100_000
"""The maximum number of fields read. A point of Kafka's clients has about twelve."""

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf; groups (3 and 4) are no longer used."""

RESOURCE_METRICS, SCOPE_METRICS, METRICS = 1, 2, 2
NAME, GAUGE, SUM = 1, 5, 7
DATA_POINTS, TEMPORALITY = 1, 2
AS_DOUBLE, AS_INT, ATTRIBUTES = 4, 6, 7
KEY, VALUE, STRING_VALUE = 1, 2, 1
DELTA: Final = 1
"""The temporality of a sum that has the change since the last push."""

ProtobufValue = int | memoryview
ProtobufField = tuple[int, int, ProtobufValue]


class MetricPoint(NamedTuple):
    """attributes: those with a string value. is_delta: the value is the change since the last
    push.
    """

    name: str
    attributes: tuple[tuple[str, str], ...]
    value: float
    is_delta: bool


def read_points(data: bytes | bytearray | memoryview) -> Iterator[MetricPoint]:
    """The points of a MetricsData message. Raises MalformedRequest for bytes that are not protobuf,
    and for too many fields.
    """
    return _Reader().points(memoryview(data))


class _Reader:
    """Reads one message. left: how many more fields may be read."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MAX_FIELDS

    def points(self, data: memoryview) -> Iterator[MetricPoint]:
        for resource in self._messages(data, RESOURCE_METRICS):
            for scope in self._messages(resource, SCOPE_METRICS):
                for metric in self._messages(scope, METRICS):
                    yield from self._points_of(metric)

    def _points_of(self, metric: memoryview) -> Iterator[MetricPoint]:
        name = ""
        for number, wire_type, value in self._fields(metric):
            if not isinstance(value, memoryview) or wire_type != BYTES:
                continue
            if number == NAME:
                name = _text(value)
            elif number in (GAUGE, SUM):
                is_delta = number == SUM and self._temporality(value) == DELTA
                for point in self._messages(value, DATA_POINTS):
                    yield self._point(name, point, is_delta)

    def _temporality(self, metric: memoryview) -> int:
        for number, wire_type, value in self._fields(metric):
            if number == TEMPORALITY and wire_type == VARINT and isinstance(value, int):
                return value
        return 0

    def _point(self, name: str, point: memoryview, is_delta: bool) -> MetricPoint:
        number_value = 0.0
        attributes: list[tuple[str, str]] = []
        for number, wire_type, value in self._fields(point):
            if not isinstance(value, memoryview):
                continue
            if number == AS_DOUBLE and wire_type == FIXED64:
                (number_value,) = _DOUBLE.unpack(value)
            elif number == AS_INT and wire_type == FIXED64:
                (whole,) = _FIXED64.unpack(value)
                number_value = float(whole)
            elif number == ATTRIBUTES and wire_type == BYTES:
                attributes.append(self._attribute(value))
        return MetricPoint(name, tuple(attributes), number_value, is_delta)

    def _attribute(self, pair: memoryview) -> tuple[str, str]:
        key = text = ""
        for number, wire_type, value in self._fields(pair):
            if wire_type != BYTES or not isinstance(value, memoryview):
                continue
            if number == KEY:
                key = _text(value)
            elif number == VALUE:
                for inner in self._messages(value, STRING_VALUE):
                    text = _text(inner)
        return key, text

    def _messages(self, data: memoryview, wanted: int) -> Iterator[memoryview]:
        """The embedded messages with that field number."""
        for number, wire_type, value in self._fields(data):
            if number == wanted and wire_type == BYTES and isinstance(value, memoryview):
                yield value

    def _fields(self, data: memoryview) -> Iterator[ProtobufField]:
        for field in _fields(data):
            self._left -= 1
            if self._left < 0:
                raise MalformedRequest(f"more than {MAX_FIELDS} fields in the metrics of a client")
            yield field


def _text(data: memoryview) -> str:
    return str(data, "utf-8", "replace")


def _fields(data: memoryview) -> Iterator[ProtobufField]:
    """Field number, wire type and value: an int for a varint, else the bytes."""
    position, end = 0, len(data)
    while position < end:
        tag, position = _varint(data, position)
        wire_type = tag & 7
        if wire_type == VARINT:
            number, position = _varint(data, position)
            yield tag >> 3, wire_type, number
            continue
        if wire_type == BYTES:
            size, position = _varint(data, position)
        elif wire_type == FIXED64:
            size = 8
        elif wire_type == FIXED32:
            size = 4
        else:
            raise MalformedRequest(f"wire type {wire_type} in metrics of a client")
        if size > end - position:
            raise MalformedRequest("the metrics of a client end inside of a field")
        yield tag >> 3, wire_type, data[position : position + size]
        position += size


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """The number and the position after it."""
    number = shift = 0
    for index in range(position, min(position + MAX_VARINT_BYTES, len(data))):
        byte = data[index]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, index + 1
        shift += 7
    raise MalformedRequest("no whole varint in the metrics of a client")
