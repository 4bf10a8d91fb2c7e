"""Bytes written by Kafka 4.3.1's own classes, and by 3.9.0's the versions that 4 dropped: every
schema, every version, three styles.

Also truncated and modified bytes.
"""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from kbroker.protocol.apis import response_header_version
from kbroker.protocol.codecs.codec import decode, encode, encode_parts, part_size
from kbroker.protocol.codecs.schema import Field, Message, Struct
from kbroker.protocol.errors import ErrorCode, MalformedRequest
from kbroker.protocol.framing import (
    decode_request_header,
    decode_response_header,
    encode_request_frame,
    encode_response_frame,
)
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

WIRE = Path(__file__).parents[1] / "data" / "wire"
WHOLE_PREFIX_BYTES = 300
SPOTS = 40


class Sample(NamedTuple):
    message: type[Message]
    version: int
    style: str
    value: Message
    raw: bytes

    def __str__(self) -> str:
        return f"{self.message.__name__} v{self.version} {self.style}"


def json_name(field: Field) -> str:
    return field.name.replace("_", "")


def from_json(struct: type[Struct], value: dict[str, Any]) -> Any:
    """Build a message from a sample's value; an absent key is a tagged field that was not taken."""
    given = {key.lower(): item for key, item in value.items()}
    fields = {
        field.name: from_json_value(field, field.type_name, given.pop(json_name(field)))
        for field in struct.FIELDS
        if json_name(field) in given
    }
    assert not given, f"{struct.__qualname__} does not know {given}"
    return struct(**fields)


def from_json_value(field: Field, type_name: str, value: Any) -> Any:
    if value is None:
        return None
    match type_name:
        case "array":
            return [from_json_value(field, field.element, item) for item in value]
        case "struct":
            return from_json(field.struct, value)
        case "bytes" | "records":
            return base64.b64decode(value)
        case "uuid":
            return base64.urlsafe_b64decode(value + "==")
        case _:
            return value


@pytest.fixture(scope="module")
def samples(declared: dict[str, type[Message]]) -> list[Sample]:
    found = []
    for name in ("samples.jsonl.gz", "samples-3.9.0.jsonl.gz"):
        for line in gzip.decompress((WIRE / name).read_bytes()).decode().splitlines():
            entry = json.loads(line)
            message = declared[entry["message"]]
            value = from_json(message, entry["value"])
            raw = bytes.fromhex(entry["hex"])
            found.append(Sample(message, entry["version"], entry["style"], value, raw))
    return found


def test_the_samples_cover_every_message_and_version(
    samples: list[Sample], declared: dict[str, type[Message]]
) -> None:
    assert len(samples) == 2193 + 156
    wanted = {
        (message, version)
        for message in declared.values()
        if not message.__module__.endswith(
            ".storage_records"
        )  # Kafka's jars of these were not at hand
        for version in range(message.VERSIONS.low, message.VERSIONS.high + 1)
    }
    assert {(sample.message, sample.version) for sample in samples} == wanted


def test_decode_gives_the_value_kafka_wrote(samples: list[Sample]) -> None:
    for sample in samples:
        value, end = decode(sample.message, sample.raw, sample.version)
        assert end == len(sample.raw), str(sample)
        assert value == sample.value, str(sample)


def test_decode_stops_where_the_message_ends(samples: list[Sample]) -> None:
    for sample in samples:
        raw = b"\xff\xff\xff" + sample.raw + b"\xff\xff"
        value, end = decode(sample.message, bytearray(raw), sample.version, 3)
        assert end == len(raw) - 2, str(sample)
        assert value == sample.value, str(sample)


def test_encode_gives_kafkas_bytes(samples: list[Sample]) -> None:
    for sample in samples:
        assert encode(sample.value, sample.version) == sample.raw, str(sample)
        parts = encode_parts(sample.value, sample.version)
        assert sum(map(part_size, parts)) == len(sample.raw), str(sample)
        assert b"".join(parts) == sample.raw, str(sample)  # type: ignore[arg-type]  # no payloads


def test_a_decoded_message_is_encoded_to_the_same_bytes(samples: list[Sample]) -> None:
    for sample in samples:
        value, _ = decode(sample.message, memoryview(sample.raw), sample.version)
        assert encode(value, sample.version) == sample.raw, str(sample)


def test_every_truncation_is_malformed(samples: list[Sample]) -> None:
    random = Random(1)
    for sample in samples:
        view = memoryview(sample.raw)
        lengths: Any = range(len(view))
        if len(view) > WHOLE_PREFIX_BYTES:
            lengths = sorted(random.sample(lengths, SPOTS))
        for length in lengths:
            with pytest.raises(MalformedRequest):
                decode(sample.message, view[:length], sample.version)


def alter(random: Random, raw: bytes) -> bytes:
    """One to three changes: a bit, an extreme byte, a run of 0xff, or bytes put in or cut out."""
    altered = bytearray(raw)
    for _ in range(random.randint(1, 3)):
        position = random.randrange(len(altered) + 1)
        match random.randrange(5):
            case 0 if position < len(altered):
                altered[position] ^= 1 << random.randrange(8)
            case 1 if position < len(altered):
                altered[position] = random.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                altered[position : position + 4] = b"\xff\xff\xff\xff"
            case 3:
                altered[position:position] = random.randbytes(random.randint(1, 5))
            case _:
                del altered[position : position + random.randint(1, 5)]
    return bytes(altered)


def decode_hostile(sample: Sample, raw: bytes) -> None:
    """Decoding gives a message that can be written again, or MalformedRequest; nothing else."""
    try:
        value, end = decode(sample.message, raw, sample.version)
    except MalformedRequest:
        return
    assert 0 <= end <= len(raw), str(sample)
    again, _ = decode(sample.message, encode(value, sample.version), sample.version)
    assert repr(again) == repr(value) or again == value, str(sample)


def test_altered_bytes_raise_nothing_but_malformed(samples: list[Sample]) -> None:
    random = Random(2)
    for sample in samples:
        if len(sample.raw) < 3000:
            for _ in range(4):
                decode_hostile(sample, alter(random, sample.raw))


@pytest.mark.slow
def test_200_000_altered_samples(samples: list[Sample]) -> None:
    random = Random(3)
    small = [sample for sample in samples if len(sample.raw) < 3000]
    for _ in range(200_000):
        sample = random.choice(small)
        decode_hostile(sample, alter(random, sample.raw))


def conversations() -> list[tuple[str, bytes, bytes]]:
    """(title, request frame, response frame) of a talk with a running Kafka, without lengths."""
    talks = []
    title, request = "", b""
    for line in (WIRE / "apiversions.hex.txt").read_text().splitlines():
        word, _, rest = line.partition(" ")
        if word == "#":
            title = rest
        elif word == "request":
            request = bytes.fromhex(rest)
        elif word == "response":
            talks.append((title, request, bytes.fromhex(rest)))
    return talks


@pytest.mark.parametrize("talk", conversations(), ids=lambda talk: talk[0].partition(":")[0])
def test_a_conversation_with_kafka(talk: tuple[str, bytes, bytes]) -> None:
    title, request_frame, response_frame = talk
    header = decode_request_header(request_frame)
    assert (header.api_key, header.correlation_id, header.client_id) == (18, 77, "fact")
    version = header.api_version
    if version <= ApiVersionsRequest.VERSIONS.high:
        request, end = decode(ApiVersionsRequest, request_frame, version, header.body_position)
        assert end == len(request_frame)
        [frame] = encode_request_frame(request, version, 77, "fact")
        assert frame == len(request_frame).to_bytes(4, "big") + request_frame
    assert response_header_version(18, version) == 0

    answered_version = min(version, 0 if version > 4 else version)
    correlation_id, body = decode_response_header(response_frame, 18, version)
    response, end = decode(ApiVersionsResponse, response_frame, answered_version, body)
    assert (correlation_id, end) == (77, len(response_frame))
    assert f"error {response.error_code}, {len(response.api_keys)} APIs" in title
    names = sorted(feature.name for feature in response.supported_features)
    assert title.endswith(f"supported {names}")
    if version > 4:
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    [frame] = encode_response_frame(18, answered_version, 77, response)
    assert frame == len(response_frame).to_bytes(4, "big") + response_frame
