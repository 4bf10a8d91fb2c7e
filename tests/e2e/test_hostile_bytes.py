"""Malformed bytes are sent to a whole broker: only that connection or partition suffers."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, cast

import pytest

from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import ATTRIBUTES_POSITION, CRC_POSITION
from kbroker.protocol.batches.checksum import crc32c
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.server.network.receive_buffer import INITIAL_BYTES
from kbroker.testing import BrokerProcess, EmbeddedBroker
from tests.e2e.wire import call, frame_of, receive_frame

TOPIC = "witness"
MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    overrides = {"message.max.bytes": "2000000", "socket.request.max.bytes": "8000000"}
    with EmbeddedBroker(overrides) as embedded:
        embedded.create_topic(TOPIC)
        yield embedded


@pytest.fixture
def bystander(broker: EmbeddedBroker) -> Iterator[socket.socket]:
    """A connection that must still be served after the test."""
    with connect(broker) as connection:
        assert produce(connection, batch()) == ErrorCode.NONE
        yield connection
        assert produce(connection, batch()) == ErrorCode.NONE


def connect(broker: EmbeddedBroker | BrokerProcess) -> socket.socket:
    return socket.create_connection((broker.host, broker.port), timeout=10)


def batch(value: bytes = b"value", **options: Any) -> bytearray:
    return build_batch([(1_700_000_000_000, b"key", value, [])], **options)


def produce(connection: socket.socket, records: bytes | bytearray, acks: int = 1) -> int:
    """Send to the one partition; the error code in the answer."""
    response = cast(ProduceResponse, call(connection, produce_request(records, acks), 9))
    return response.responses[0].partition_responses[0].error_code


def produce_request(records: bytes | bytearray, acks: int = 1) -> ProduceRequest:
    partition = ProduceRequest.PartitionProduceData(index=0, records=records)
    topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[partition])
    return ProduceRequest(acks=acks, timeout_ms=5000, topic_data=[topic])


def ends(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def header(api_key: int, version: int, client_id: bytes = b"x") -> bytes:
    return struct.pack(">hhih", api_key, version, 1, len(client_id)) + client_id


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


PRODUCE = header(0, 3) + struct.pack(">hhii", -1, 1, 1000, 1)
"""A Produce request up to the name of its one topic."""


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\xff\xff\xff\xff", id="length -1"),
        pytest.param(b"\x7f\xff\xff\xff", id="length 2 GiB"),
        pytest.param(struct.pack(">i", 8_000_001), id="one more than allowed"),
        pytest.param(framed(b""), id="empty frame"),
        pytest.param(framed(b"\0\3\0"), id="three bytes"),
        pytest.param(bytes.fromhex("160301020001000001fc0303"), id="TLS"),
        pytest.param(b"GET /metrics HTTP/1.1\r\nHost: kafka\r\n\r\n", id="HTTP"),
        pytest.param(b"SSH-2.0-OpenSSH_9.6\r\n", id="SSH"),
        pytest.param(framed(header(999, 0)), id="unknown API"),
        pytest.param(framed(header(52, 0) + bytes(50)), id="an API of the controller"),
        pytest.param(framed(header(3, 99)), id="version too new"),
        pytest.param(framed(header(3, -1)), id="negative version"),
        pytest.param(framed(struct.pack(">hhih", 3, 1, 1, -2)), id="client id of length -2"),
        pytest.param(framed(struct.pack(">hhih", 3, 1, 1, 9999)), id="client id beyond the frame"),
        pytest.param(framed(header(3, 1, b"\xff\xfe")), id="client id not UTF-8"),
        pytest.param(framed(header(3, 1) + struct.pack(">i", 2**31 - 1)), id="2 billion topics"),
        pytest.param(framed(header(3, 1) + struct.pack(">i", -5)), id="-5 topics"),
        pytest.param(framed(header(3, 9) + b"\0\xff\xff\xff\xff\x7f"), id="varint beyond 32 bits"),
        pytest.param(framed(header(3, 9) + b"\0" + b"\x80" * 20), id="varint without end"),
        pytest.param(framed(header(3, 9) + b"\xff\xff\xff\xff\x0f"), id="4 billion tags"),
        pytest.param(framed(b"\xff" * 1000), id="ones"),
        pytest.param(bytes(1000), id="zeros, each four of them a length"),
        pytest.param(framed(header(0, 3) + b"\xff" * 50), id="Produce without topics"),
        pytest.param(framed(PRODUCE + struct.pack(">h", -2)), id="topic name of length -2"),
        pytest.param(framed(PRODUCE + struct.pack(">h", 9999)), id="topic name beyond the frame"),
        pytest.param(framed(PRODUCE + struct.pack(">h7si", 7, b"witness", -2)), id="-2 partitions"),
        pytest.param(
            framed(PRODUCE + struct.pack(">h7siii", 7, b"witness", 1, 0, 2**31 - 1)),
            id="records beyond the frame",
        ),
        pytest.param(
            framed(header(1, 4) + struct.pack(">iiiibi", -1, 0, 0, 1, 0, 2**31 - 1)),
            id="Fetch of 2 billion topics",
        ),
        pytest.param(
            framed(
                header(1, 13) + struct.pack(">biiiibiiB7s", 0, -1, 0, 0, 1, 0, 0, -1, 2, b"7 bytes")
            ),
            id="half a topic id",
        ),
    ],
)
def test_what_is_no_request_ends_the_connection(
    broker: EmbeddedBroker, bystander: socket.socket, data: bytes
) -> None:
    with connect(broker) as connection:
        connection.sendall(data)
        assert ends(connection)


def test_bytes_after_a_request_may_be_malformed(
    broker: EmbeddedBroker, bystander: socket.socket
) -> None:
    with connect(broker) as connection:
        connection.sendall(framed(header(18, 0)) + bytes.fromhex("160301020001000001fc0303"))
        assert receive_frame(connection)[:4] == struct.pack(">i", 1), "the request is answered"
        assert ends(connection)


@pytest.mark.parametrize("half", [2, 4, 20, -1])
def test_half_a_request_goes_with_its_connection(
    broker: EmbeddedBroker, bystander: socket.socket, half: int
) -> None:
    request = frame_of(produce_request(batch()), 9)
    with connect(broker) as connection:
        connection.sendall(request[:half])
        connection.shutdown(socket.SHUT_WR)
        assert ends(connection), "no answer either"


def flip(records: bytearray, position: int) -> bytearray:
    records[position] ^= 0x40
    return records


def put(place: str, position: int, value: int, *, seal: bool = True) -> bytearray:
    """A batch with another value at that position, and with a CRC that is right again."""
    records = batch()
    struct.pack_into(place, records, position, value)
    if seal:
        covered = memoryview(records)[ATTRIBUTES_POSITION:]
        struct.pack_into(">I", records, CRC_POSITION, crc32c(covered))
    return records


@pytest.mark.parametrize(
    ("records", "error"),
    [
        pytest.param(flip(batch(), 70), ErrorCode.CORRUPT_MESSAGE, id="wrong CRC"),
        pytest.param(batch()[:-1], ErrorCode.INVALID_RECORD, id="a byte is missing"),
        pytest.param(batch()[:40], ErrorCode.INVALID_RECORD, id="half a header"),
        pytest.param(batch(bytes(2_000_000)), ErrorCode.MESSAGE_TOO_LARGE, id="too large"),
        pytest.param(b"", ErrorCode.INVALID_RECORD, id="nothing"),
        pytest.param(batch() + batch(), ErrorCode.INVALID_RECORD, id="two batches"),
        pytest.param(put(">i", 8, -1, seal=False), ErrorCode.CORRUPT_MESSAGE, id="length -1"),
        pytest.param(put(">i", 8, 0, seal=False), ErrorCode.CORRUPT_MESSAGE, id="length 0"),
        pytest.param(put(">i", 8, 2**31 - 1, seal=False), ErrorCode.INVALID_RECORD, id="2 GiB"),
        pytest.param(put(">b", 16, 3, seal=False), ErrorCode.CORRUPT_MESSAGE, id="magic 3"),
        pytest.param(put(">b", 16, -1, seal=False), ErrorCode.CORRUPT_MESSAGE, id="magic -1"),
        pytest.param(put(">b", 16, 1, seal=False), ErrorCode.INVALID_RECORD, id="magic 1"),
        pytest.param(
            put(">h", ATTRIBUTES_POSITION, 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, id="codec 5"
        ),
        pytest.param(put(">h", ATTRIBUTES_POSITION, 32), ErrorCode.INVALID_RECORD, id="control"),
        pytest.param(put(">i", 23, -1), ErrorCode.INVALID_RECORD, id="last offset before first"),
        pytest.param(put(">i", 23, 7), ErrorCode.INVALID_RECORD, id="last offset without record"),
        pytest.param(put(">i", 57, -1), ErrorCode.INVALID_RECORD, id="-1 records"),
        pytest.param(put(">i", 57, 0), ErrorCode.INVALID_RECORD, id="no records"),
        pytest.param(put(">i", 57, 2**31 - 1), ErrorCode.INVALID_RECORD, id="2 billion records"),
    ],
)
def test_bad_batches_get_kafkas_error(
    broker: EmbeddedBroker, bystander: socket.socket, records: bytearray, error: ErrorCode
) -> None:
    """Save for two, which Kafka 4.3.1 answers with UNKNOWN_SERVER_ERROR: a client would send them
    again and again. They are the unknown codec and the length of 2 GiB.
    """
    with connect(broker) as connection:
        assert produce(connection, records) == error
        assert produce(connection, batch()) == ErrorCode.NONE, "the connection goes on"


def test_a_bomb_stays_packed(broker: EmbeddedBroker, bystander: socket.socket) -> None:
    """A few kilobytes of zstd that unpack to 64 MiB: stored as they are, or refused."""
    value = bytes(64 * MEBIBYTE)
    bomb = batch(value, compression=Compression.ZSTD)
    assert len(bomb) < 100_000
    with connect(broker) as connection:
        assert produce(connection, bomb) in (
            ErrorCode.NONE, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.INVALID_RECORD,
        )  # fmt: skip


def test_a_failed_produce_without_acks_ends_the_connection(
    broker: EmbeddedBroker, bystander: socket.socket
) -> None:
    with connect(broker) as connection:
        connection.sendall(frame_of(produce_request(flip(batch(), 70), acks=0), 9))
        assert ends(connection)


def test_promised_frames_cost_what_was_sent(
    broker: EmbeddedBroker, bystander: socket.socket
) -> None:
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(broker)) for _ in range(100)]
        for connection in connections:
            connection.sendall(struct.pack(">i", 7_999_999) + bytes(1000))
        held: list[int] = []
        for _ in range(1000):  # each call is a turn for what earlier tests left, and for the new
            call(bystander, MetadataRequest(), 1)
            held = broker.call(
                lambda running: [c.buffered_bytes for c in running.connections],
            )
            if len(held) == 101:
                break
        assert len(held) == 101
        assert sum(held) <= len(held) * 2 * INITIAL_BYTES


def test_readers_that_do_not_read_cost_little(tmp_path: Any) -> None:
    """A hundred connections ask for 50 MB each, five times over, and read none of it."""
    with BrokerProcess(tmp_path / "data") as process, ExitStack() as stack:
        with connect(process) as connection:
            call(
                connection,
                MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=TOPIC)]),
                4,
            )
            while produce(connection, batch()) != ErrorCode.NONE:
                pass
            for _ in range(60):
                assert produce(connection, batch(bytes(900_000))) == ErrorCode.NONE
        before = process.resident_bytes()
        partition = FetchRequest.FetchPartition(partition=0, partition_max_bytes=50_000_000)
        topic = FetchRequest.FetchTopic(topic=TOPIC, partitions=[partition])
        fetch = frame_of(FetchRequest(max_wait_ms=0, max_bytes=50_000_000, topics=[topic]), 12)
        for _ in range(100):
            stack.enter_context(connect(process)).sendall(fetch * 5)
        with connect(process) as connection:
            assert produce(connection, batch()) == ErrorCode.NONE
        assert process.resident_bytes() - before < 50_000_000
