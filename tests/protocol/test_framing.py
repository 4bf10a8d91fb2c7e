from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.apis import APIS, ApiKey, request_header_version, response_header_version
from kbroker.protocol.codecs.codec import decode, encode, part_size
from kbroker.protocol.errors import MalformedRequest
from kbroker.protocol.framing import (
    decode_request_header,
    decode_response_header,
    encode_request_frame,
    encode_response_frame,
)
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.protocol.messages.header import RequestHeader, ResponseHeader
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse

EVERY_VERSION = [
    (key, version)
    for key, info in APIS.items()
    for version in range(info.oldest_version, info.unstable_max_version + 1)
]


class Payload:
    """Stands for a range of a log file."""

    def __init__(self, size: int) -> None:
        self.size = size


@given(st.sampled_from(EVERY_VERSION), st.integers(-(2**31), 2**31 - 1), st.none() | st.text("é4"))
def test_request_headers_agree_with_their_declaration(
    api: tuple[int, int], correlation_id: int, client_id: str | None
) -> None:
    key, version = api
    declared = RequestHeader(
        request_api_key=key,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    raw = encode(declared, request_header_version(key, version))
    header = decode_request_header(memoryview(raw + b"body"))
    assert header == (key, version, correlation_id, client_id, len(raw))
    for length in range(len(raw)):
        with pytest.raises(MalformedRequest):
            decode_request_header(raw[:length])


@given(st.sampled_from(EVERY_VERSION), st.integers(-(2**31), 2**31 - 1))
def test_response_headers_agree_with_their_declaration(
    api: tuple[int, int], correlation_id: int
) -> None:
    key, version = api
    declared = ResponseHeader(correlation_id=correlation_id)
    raw = encode(declared, response_header_version(key, version))
    assert decode_response_header(raw + b"body", key, version) == (correlation_id, len(raw))
    for length in range(len(raw)):
        with pytest.raises(MalformedRequest):
            decode_response_header(raw[:length], key, version)


@pytest.mark.parametrize("version", [8, 9])
def test_a_request_frame_comes_back(version: int) -> None:
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="orders")])
    frame = b"".join(encode_request_frame(request, version, 7, "client"))  # type: ignore[arg-type]  # no file ranges
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header = decode_request_header(frame[4:])
    assert (header.api_key, header.correlation_id) == (ApiKey.METADATA, 7)
    assert decode(MetadataRequest, frame[4:], version, header.body_position)[0] == request


def test_a_request_frame_without_client_id() -> None:
    [frame] = encode_request_frame(MetadataRequest(), 1, 7, None)
    assert isinstance(frame, bytearray)
    assert frame.hex() == "0000000e" + "00030001" + "00000007" + "ffff" + "00000000"


@pytest.mark.parametrize("version", [8, 9])
def test_a_response_frame_comes_back_in_one_piece(version: int) -> None:
    response = MetadataResponse(cluster_id="c", controller_id=1)
    [frame] = encode_response_frame(ApiKey.METADATA, version, 7, response)
    assert isinstance(frame, bytearray)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    correlation_id, body = decode_response_header(frame[4:], ApiKey.METADATA, version)
    assert correlation_id == 7
    assert decode(MetadataResponse, frame[4:], version, body)[0] == response


@pytest.mark.parametrize("version", [11, 12])
def test_records_by_reference_are_counted_in_the_length(version: int) -> None:
    payload = Payload(5000)
    partition = FetchResponse.PartitionData(records=payload)
    topic = FetchResponse.FetchableTopicResponse(topic="orders", partitions=[partition])
    frame = encode_response_frame(1, version, 7, FetchResponse(responses=[topic]))
    head, middle, *tail = frame
    assert middle is payload
    assert isinstance(head, bytearray)
    assert (version == 12) == bool(tail)
    assert int.from_bytes(head[:4], "big") == sum(map(part_size, frame)) - 4


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param("", id="empty"),
        pytest.param("16030100d0010000", id="TLS client hello"),
        pytest.param("0004000000000007ffff", id="API whose versions are gone"),
        pytest.param("7fff000000000007ffff", id="unknown API"),
        pytest.param("0003ffff00000007ffff", id="negative version"),
        pytest.param("0003000100000007fffe", id="negative length"),
        pytest.param("00030001000000077fff6161", id="client id beyond the frame"),
        pytest.param("00030001000000070002ff80", id="client id is not UTF-8"),
        pytest.param("00030009000000070001610105", id="tagged field beyond the frame"),
        pytest.param("000300090000000700016101ffffffffff", id="tag of more than 32 bits"),
    ],
)
def test_bytes_that_are_no_request_header(raw: str) -> None:
    with pytest.raises(MalformedRequest):
        decode_request_header(bytes.fromhex(raw))


def test_a_header_keeps_a_version_that_does_not_exist() -> None:
    """ApiVersions answers it in v0, so the header has to be readable."""
    header = decode_request_header(bytes.fromhex("0012007f0000004d0004666163740000"))
    assert header == (ApiKey.API_VERSIONS, 127, 77, "fact", 15)
