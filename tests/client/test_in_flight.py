"""Responses out of the bytes of a connection, however they arrive."""

from __future__ import annotations

import pytest

from kbroker.client.in_flight import InFlightRequests
from kbroker.ports import Deferred
from kbroker.protocol.errors import MalformedRequest
from kbroker.protocol.framing import encode_response_frame
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse

VERSION = 17


def answer(correlation_id: int, records: bytes) -> bytes:
    """A whole frame."""
    data = FetchResponse.PartitionData(records=records)
    topic = FetchResponse.FetchableTopicResponse(topic_id=bytes(16), partitions=[data])
    response = FetchResponse(responses=[topic])
    parts = encode_response_frame(FetchRequest.API_KEY, VERSION, correlation_id, response)
    return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]  # no file ranges


def asked(count: int) -> tuple[InFlightRequests, list[Deferred[FetchResponse]]]:
    requests = InFlightRequests("test")
    return requests, [requests.add(FetchRequest(), VERSION)[1] for _ in range(count)]  # type: ignore[misc]


def records_of(response: Deferred[FetchResponse]) -> bytes:
    return bytes(response.value.responses[0].partitions[0].records)  # type: ignore[arg-type]


@pytest.mark.parametrize("piece_bytes", [1, 3, 7, 64, 10_000])
def test_responses_are_whole_however_their_bytes_arrive(piece_bytes: int) -> None:
    requests, responses = asked(4)
    expected = [bytes([number]) * (30 * number) for number in range(4)]
    stream = b"".join(answer(number, records) for number, records in enumerate(expected))
    for begin in range(0, len(stream), piece_bytes):
        requests.receive(stream[begin : begin + piece_bytes])
    assert [records_of(response) for response in responses] == expected
    assert not len(requests)


def test_records_stay_as_they_were_when_the_callers_buffer_is_used_again() -> None:
    requests, responses = asked(3)
    frames = [answer(number, b"%d" % number * 50) for number in range(3)]
    buffer = bytearray(frames[0] + frames[1][:9])
    requests.receive(buffer)
    buffer[:] = bytes(len(buffer))
    requests.receive(memoryview(frames[1])[9:])
    requests.receive(frames[2])
    assert [records_of(each) for each in responses] == [b"0" * 50, b"1" * 50, b"2" * 50]


def test_records_of_bytes_are_no_copy() -> None:
    requests, (response,) = asked(1)
    frame = answer(0, b"r" * 50)
    requests.receive(frame)
    records = response.value.responses[0].partitions[0].records
    assert isinstance(records, memoryview) and records.obj is frame


def test_what_came_before_malformed_bytes_counts() -> None:
    requests, responses = asked(2)
    with pytest.raises(MalformedRequest, match="a response of 1 bytes"):
        requests.receive(answer(0, b"r") + b"\0\0\0\1")
    assert records_of(responses[0]) == b"r"
    assert not responses[1].done


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n", "speaks HTTP, not Kafka's", id="http"),
        pytest.param(b"SSH-2.0-OpenSSH\r\n", "speaks SSH, not Kafka's", id="ssh"),
        pytest.param(b"\xff\xff\xff\xffxyz", "a response of -1 bytes$", id="anything"),
    ],
)
def test_a_server_that_is_no_broker(sent: bytes, says: str) -> None:
    requests, _ = asked(1)
    with pytest.raises(MalformedRequest, match=says):
        requests.receive(sent)
