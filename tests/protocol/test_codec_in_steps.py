"""The codec in steps reads and writes what the codec does at once, and yields often enough."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

import pytest

from benchmarks import attack_bodies
from benchmarks.attack_values import Names
from kbroker.protocol.apis import request_class
from kbroker.protocol.codec import decode, decode_in_steps, encode_in_steps, encode_parts
from kbroker.protocol.codec_decode import STEP_ITEMS
from kbroker.protocol.errors import BufferUnderflow, KafkaError, MalformedRequest
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.primitives import TAGS_PER_STEP, unsigned_varint
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


def test_a_claim_of_many_tags_is_looked_at_in_steps() -> None:
    honest, _ = run(encode_in_steps(ListOffsetsRequest(), 11))
    body = bytes(honest[0])[:-1]  # type: ignore[arg-type, index]  # bytes
    count = 10 * TAGS_PER_STEP
    tags = unsigned_varint(count) + b"\x7f\0" * count
    (message, end), steps = run(decode_in_steps(ListOffsetsRequest, memoryview(body + tags), 11))
    assert message == ListOffsetsRequest() and end == len(body + tags)
    assert steps >= 9
    with pytest.raises(BufferUnderflow):
        run(
            decode_in_steps(
                ListOffsetsRequest, memoryview(body + b"\xff\xff\xff\xff\x07" + tags), 11
            )
        )


def test_records_go_by_reference() -> None:
    records = bytes(100_000)
    data = ProduceRequest.PartitionProduceData(index=0, records=records)
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[data])
    parts, _ = run(encode_in_steps(ProduceRequest(topic_data=[topic]), 9))
    assert any(part is records for part in parts)
