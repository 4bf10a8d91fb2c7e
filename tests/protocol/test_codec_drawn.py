"""Random messages survive a round trip through the compiled codecs, and random bytes raise only the
documented errors.
"""

from __future__ import annotations

import struct as layout
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.codecs.codec import decode, encode
from kbroker.protocol.codecs.codec_decode import FIXED
from kbroker.protocol.codecs.schema import Field, Message, Struct
from kbroker.protocol.errors import MalformedRequest
from tests.protocol.declarations import ALL

NAMES = ["", "a", "orders", "é" * 70, "x" * 200]


def draw_value(random: Random, field: Field, type_name: str, version: int) -> Any:
    """A value the field can carry in that version."""
    if type_name == "struct":
        return draw_struct(random, field.struct, version)
    if type_name == "array":
        count = random.choice((0, 0, 1, 2, 5))
        return [draw_value(random, field, field.element, version) for _ in range(count)]
    if type_name == "string":
        return random.choice(NAMES)
    if type_name in ("bytes", "records"):
        return random.randbytes(random.choice((0, 1, 126, 127, 300)))
    if type_name == "float64":
        return random.uniform(-1e9, 1e9)
    code, width = FIXED[type_name]
    return layout.unpack(">" + code, random.randbytes(width))[0]


def draw_struct(random: Random, struct: type[Struct], version: int) -> Any:
    """A struct whose fields are set only where the version has them, often to their default."""
    values: dict[str, Any] = {}
    for field in struct.FIELDS:
        if version not in field.versions:
            continue
        if version in field.nullable and random.random() < 0.25:
            values[field.name] = None
        elif version not in field.tagged or random.random() < 0.6:
            values[field.name] = draw_value(random, field, field.type_name, version)
        if values.get(field.name) is None and version not in field.nullable:
            values[field.name] = draw_value(random, field, field.type_name, version)
    return struct(**values)


def check_round_trip(random: Random, message: type[Message], version: int) -> None:
    value = draw_struct(random, message, version)
    raw = encode(value, version)
    again, end = decode(message, raw, version)
    assert (again, end) == (value, len(raw))
    assert encode(again, version) == raw
    cut = random.randrange(len(raw)) if raw else 0
    if cut < len(raw):
        with pytest.raises(MalformedRequest):
            decode(message, memoryview(raw)[:cut], version)


def test_every_message_and_version_comes_back(declared: dict[str, type[Message]]) -> None:
    random = Random(4)
    for message in [*ALL, *declared.values()]:
        for version in range(message.VERSIONS.low, message.VERSIONS.high + 1):
            check_round_trip(random, message, version)


@given(st.integers(0, 2**32), st.data())
def test_drawn_messages_come_back(
    declared: dict[str, type[Message]], seed: int, data: st.DataObject
) -> None:
    message = declared[data.draw(st.sampled_from(sorted(declared)))]
    version = data.draw(st.integers(message.VERSIONS.low, message.VERSIONS.high))
    check_round_trip(Random(seed), message, version)


@given(st.sampled_from(ALL), st.integers(0, 2), st.binary(max_size=64))
def test_arbitrary_bytes(message: type[Message], version: int, raw: bytes) -> None:
    try:
        value, end = decode(message, raw, min(version, message.VERSIONS.high))
    except MalformedRequest:
        return
    assert isinstance(value, message)
    assert end <= len(raw)


@pytest.mark.slow
@given(st.binary(max_size=300), st.data())
def test_arbitrary_bytes_for_every_message(
    declared: dict[str, type[Message]], raw: bytes, data: st.DataObject
) -> None:
    message = declared[data.draw(st.sampled_from(sorted(declared)))]
    version = data.draw(st.integers(message.VERSIONS.low, message.VERSIONS.high))
    try:
        decode(message, raw, version)
    except MalformedRequest:
        return
