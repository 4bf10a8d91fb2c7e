"""One connection on a real socket: versions, order of responses, and every way it can break."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.framing import decode_request_header, encode_response_frame
from kbroker.protocol.messages.api_versions import ApiVersionsResponse
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kbroker.testing import EmbeddedBroker
from spark_jobs.wire.client import BlockingClient, ClusterAddress, NoBroker
from spark_jobs.wire.connection import BrokerSocket, open_plain_socket, reason

Answer = Callable[[int, int, int], bytes | None]
"""(API key, version, correlation id) -> bytes of the response, None to close the connection."""


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], int]]:
    """Listen, and answer each request of one connection with a function; gives the port."""
    threads: list[threading.Thread] = []
    sockets: list[socket.socket] = []

    def run(listener: socket.socket, answer: Answer) -> None:
        with suppress(OSError), listener.accept()[0] as connection:
            while True:
                head = connection.recv(4, socket.MSG_WAITALL)
                if len(head) < 4:
                    return
                frame = connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
                header = decode_request_header(frame)
                response = answer(header.api_key, header.api_version, header.correlation_id)
                if response is None:
                    return
                connection.sendall(response)

    def start(answer: Answer) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        sockets.append(listener)
        threads.append(threading.Thread(target=run, args=[listener, answer], daemon=True))
        threads[-1].start()
        return int(listener.getsockname()[1])

    yield start
    for listener in sockets:
        listener.close()
    for thread in threads:
        thread.join(10)


def connect(port: int, timeout_s: float = 5.0) -> BrokerSocket:
    return BrokerSocket.connect(
        "127.0.0.1", port, "tests", connect_timeout_s=timeout_s, request_timeout_s=timeout_s
    )


def versions(highest: int) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        api_keys=[
            ApiVersionsResponse.ApiVersion(api_key=ApiKey.API_VERSIONS, max_version=highest),
            ApiVersionsResponse.ApiVersion(api_key=ApiKey.METADATA, max_version=9),
        ]
    )


def framed(api_key: int, version: int, correlation_id: int, message: object) -> bytes:
    parts = encode_response_frame(api_key, version, correlation_id, message)  # type: ignore[arg-type]
    return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]


def older_broker(api_key: int, version: int, correlation_id: int) -> bytes | None:
    """One whose highest version of ApiVersions is 2."""
    if api_key == ApiKey.METADATA:
        return framed(api_key, version, correlation_id, MetadataResponse(cluster_id="old"))
    if version > 2:
        refusal = versions(2)
        refusal.error_code = ErrorCode.UNSUPPORTED_VERSION
        return framed(api_key, 0, correlation_id, refusal)
    return framed(api_key, version, correlation_id, versions(2))


def ask(connection: BrokerSocket) -> MetadataResponse:
    version = connection.version_of(ApiKey.METADATA, 12)
    return connection.receive(connection.send(MetadataRequest(), version), MetadataResponse)


def test_a_real_broker(kafka_broker: EmbeddedBroker, kafka_topic: str) -> None:
    with closing(connect(kafka_broker.port)) as connection:
        assert connection.version_of(ApiKey.METADATA, 12) == 12
        topic = MetadataRequest.MetadataRequestTopic(name=kafka_topic)
        ids = [connection.send(MetadataRequest(topics=[topic]), version) for version in (5, 9, 12)]
        for correlation_id in reversed(ids):
            response = connection.receive(correlation_id, MetadataResponse)
            assert [found.name for found in response.topics] == [kafka_topic]
    connection.close()
    with pytest.raises(KafkaError) as caught:
        ask(connection)
    assert caught.value.code is ErrorCode.NETWORK_EXCEPTION


def test_an_older_broker_is_asked_again(serve: Callable[[Answer], int]) -> None:
    with closing(connect(serve(older_broker))) as connection:
        assert connection.version_of(ApiKey.METADATA, 12) == 9
        assert ask(connection).cluster_id == "old"
        with pytest.raises(KafkaError) as caught:
            connection.version_of(ApiKey.INIT_PRODUCER_ID)
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda *_: None, "the broker closed the connection"),
        (lambda *_: (100).to_bytes(4, "big") + b"short", "the broker closed the connection"),
        (lambda *_: (-1).to_bytes(4, "big", signed=True), "a response of -1 bytes"),
        (lambda *_: (2**30).to_bytes(4, "big"), "a response of 1073741824 bytes"),
        (lambda *_: (8).to_bytes(4, "big") + bytes(8), "malformed response"),
        (lambda key, version, _: framed(key, version, 77, versions(4)), "correlation id 77"),
        (lambda *_: b"HTTP/1.1 400 Bad Request\r\n\r\n", "a response of 1213486160 bytes"),
    ],
    ids=["closed", "cut", "negative", "huge", "garbage", "other id", "http"],
)
def test_what_is_no_broker(serve: Callable[[Answer], int], answer: Answer, why: str) -> None:
    once = [True]

    def first_only(key: int, version: int, correlation_id: int) -> bytes | None:
        is_first, once[0] = once[0], False
        return answer(key, version, correlation_id) if is_first else None

    port = serve(first_only)
    with pytest.raises(KafkaError) as caught:
        connect(port, timeout_s=0.5)
    assert caught.value.code in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT)
    if caught.value.code is ErrorCode.NETWORK_EXCEPTION:
        assert why in caught.value.message


def test_silence(serve: Callable[[Answer], int]) -> None:
    port = serve(lambda *_: b"")
    with pytest.raises(KafkaError) as caught:
        connect(port, timeout_s=0.2)
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert caught.value.message == f"127.0.0.1:{port}: no response to API_VERSIONS within 0.2 s"


def test_nothing_listens() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        with pytest.raises(KafkaError) as caught:
            connect(port)
    assert caught.value.message == f"127.0.0.1:{port}: Connection refused"


@pytest.mark.parametrize("host", ["kafka..svc", "k" * 64 + ".svc"])
def test_what_is_no_host_name(host: str) -> None:
    address = ClusterAddress(f"{host}:9092")
    with pytest.raises(NoBroker) as caught:
        BlockingClient(address).partition_count("t")
    assert str(caught.value).startswith(
        f"no broker answers: {host}:9092: this is no host name (encoding with 'idna' codec failed"
    )
    assert "\n" not in str(caught.value)


def test_a_request_that_cannot_be_sent(serve: Callable[[Answer], int]) -> None:
    with closing(connect(serve(older_broker))) as connection:
        connection._socket.shutdown(socket.SHUT_RDWR)
        with pytest.raises(KafkaError) as caught:
            ask(connection)
        assert caught.value.code is ErrorCode.NETWORK_EXCEPTION
        assert connection.is_closed


def test_a_socket_of_ones_own(kafka_broker: EmbeddedBroker) -> None:
    """Where TLS and SASL have their place."""
    opened: list[tuple[str, int]] = []

    def open_socket(host: str, port: int, timeout_s: float) -> socket.socket:
        opened.append((host, port))
        return open_plain_socket("127.0.0.1", kafka_broker.port, timeout_s)

    connection = BrokerSocket.connect(
        "secured",
        9093,
        "tests",
        open_socket=open_socket,
        connect_timeout_s=5,
        request_timeout_s=5,
    )
    with closing(connection):
        assert opened == [("secured", 9093)]


def test_reasons() -> None:
    assert reason(TimeoutError()) == "no answer in time"
    assert reason(ConnectionRefusedError(111, "x")) == "Connection refused"
    assert reason(socket.gaierror(-2, "Name or service not known")) == "Name or service not known"
    assert reason(OSError("odd")) == "odd"
