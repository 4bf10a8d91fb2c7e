"""The codec in steps reads and writes what the codec does at once, and yields often enough."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

import pytest

from benchmarks import attack_bodies
from benchmarks.attack_values import Names
from kbroker.protocol.apis import request_class
from kbroker.protocol.codecs.codec import (
    decode,
    decode_in_steps,
    encode,
    encode_in_steps,
    encode_parts,
)
from kbroker.protocol.codecs.codec_decode import STEP_ITEMS
from kbroker.protocol.codecs.primitives import MAX_TAGGED_FIELDS, unsigned_varint
from kbroker.protocol.errors import KafkaError, MalformedRequest
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.server.handlers import all_handlers

T = TypeVar("T")
ITEMS = 10 * STEP_ITEMS


def run(steps: Generator[None, None, T]) -> tuple[T, int]:
    """The result, and how many steps there were before it."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


def outcome(function: Any, *arguments: Any) -> Any:
    """What it returns or raises, to compare."""
    try:
        result = function(*arguments)
        return run(result)[0] if isinstance(result, Generator) else result
    except (KafkaError, MalformedRequest, ValueError) as error:
        return type(error), str(error)


@pytest.mark.parametrize(
    "handler", all_handlers(), ids=lambda handler: attack_bodies.name_of(handler.api_key)
)
def test_the_same_as_at_once(handler: Any) -> None:
    """For bodies of all kinds, honest and lying ones, of every API."""
    kind = request_class(handler.api_key)
    for version in sorted({handler.min_version, handler.max_version}):
        generator = attack_bodies.Generator(handler.api_key, version, [Names("plain")], 700)
        for attack in generator.attacks():
            body = memoryview(attack.write())
            whole = outcome(decode, kind, body, version)
            assert outcome(decode_in_steps, kind, body, version) == whole, attack.detail
            if not isinstance(whole[0], type):
                written = outcome(encode_parts, whole[0], version)
                assert outcome(encode_in_steps, whole[0], version) == written, attack.detail


def list_offsets() -> ListOffsetsRequest:
    kind = ListOffsetsRequest.ListOffsetsPartition
    partitions = [kind(partition_index=index, timestamp=-1) for index in range(ITEMS)]
    topic = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=partitions)
    return ListOffsetsRequest(topics=[topic])


@pytest.mark.parametrize("version", [1, 11])
def test_steps_grow_with_the_items(version: int) -> None:
    parts, steps = run(encode_in_steps(list_offsets(), version))
    assert steps >= ITEMS // STEP_ITEMS
    body = b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]  # no file ranges
    (message, end), steps = run(decode_in_steps(ListOffsetsRequest, memoryview(body), version))
    assert (message, end) == (list_offsets(), len(body))
    assert steps >= ITEMS // STEP_ITEMS


@pytest.mark.parametrize("count", [MAX_TAGGED_FIELDS, MAX_TAGGED_FIELDS + 1, 500_000, 2**31 - 1])
def test_a_section_has_no_more_than_so_many_unknown_tags(count: int) -> None:
    """500,000 of them in 1 MB took 110 ms, in a Produce request twice."""
    body = bytes(encode(ListOffsetsRequest(), 11))[:-1]
    section = unsigned_varint(count) + b"\x7f\0" * min(count, 1000)
    buffer = memoryview(body + section)
    if count == MAX_TAGGED_FIELDS:
        (message, end), _ = run(decode_in_steps(ListOffsetsRequest, buffer, 11))
        assert message == ListOffsetsRequest() and end == len(buffer)
        assert decode(ListOffsetsRequest, buffer, 11) == (message, end)
        return
    with pytest.raises(MalformedRequest, match="tagged fields in one section"):
        run(decode_in_steps(ListOffsetsRequest, buffer, 11))
    with pytest.raises(MalformedRequest, match="tagged fields in one section"):
        decode(ListOffsetsRequest, buffer, 11)


def test_records_go_by_reference() -> None:
    records = bytes(100_000)
    data = ProduceRequest.PartitionProduceData(index=0, records=records)
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[data])
    parts, _ = run(encode_in_steps(ProduceRequest(topic_data=[topic]), 9))
    assert any(part is records for part in parts)
