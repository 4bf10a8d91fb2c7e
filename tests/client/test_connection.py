"""One connection: versions, responses to their requests, and every way it can fail."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from errno import ECONNREFUSED
from typing import Any

import pytest

from kbroker.client.connection import BrokerConnection
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kbroker.protocol.messages.produce import ProduceResponse

Run = Callable[[Callable[[Any], Any]], None]


async def connect(broker: Any) -> BrokerConnection:
    return await BrokerConnection.connect(broker.host, broker.port, "tests", timeout_s=5)


def test_versions_are_the_highest_both_have(run: Run) -> None:
    async def test(broker: Any) -> None:
        broker.versions[ApiKey.METADATA] = (0, 9)
        async with await connect(broker) as connection:
            assert connection.version_of(ApiKey.METADATA) == 9
            assert connection.version_of(ApiKey.METADATA, max_version=5) == 5
            response = await connection.request(MetadataRequest(topics=[]), MetadataResponse)
            assert response.cluster_id == "fake"
        assert [version for key, version, _ in broker.requests] == [4, 9]

    run(test)


@pytest.mark.parametrize("highest", [0, 2, 3])
def test_an_older_broker_is_asked_again_in_its_own_version(run: Run, highest: int) -> None:
    async def test(broker: Any) -> None:
        broker.versions[ApiKey.API_VERSIONS] = (0, highest)
        async with await connect(broker) as connection:
            assert connection.version_of(ApiKey.METADATA) == 13
        assert [version for _, version, _ in broker.requests] == [highest]

    run(test)


@pytest.mark.parametrize("theirs", [(0, 2), (14, 20)])
def test_no_version_in_common(run: Run, theirs: tuple[int, int]) -> None:
    async def test(broker: Any) -> None:
        broker.versions[ApiKey.PRODUCE] = theirs
        async with await connect(broker) as connection:
            with pytest.raises(KafkaError) as caught:
                connection.version_of(ApiKey.PRODUCE)
            assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
            with pytest.raises(KafkaError):
                connection.version_of(ApiKey.CREATE_TOPICS)

    run(test)


def test_many_requests_at_once(run: Run) -> None:
    async def test(broker: Any) -> None:
        async with await connect(broker) as connection:
            answers = await asyncio.gather(
                *(
                    connection.request(MetadataRequest(topics=None), MetadataResponse)
                    for _ in range(50)
                )
            )
            assert {answer.topics[0].name for answer in answers} == {"events"}

    run(test)


def test_responses_may_come_byte_by_byte(run: Run) -> None:
    async def test(broker: Any) -> None:
        connection = await connect(broker)
        receive = connection._frames.data_received

        def trickle(data: bytes) -> None:
            for index in range(len(data)):
                receive(data[index : index + 1])

        connection._frames.data_received = trickle  # type: ignore[method-assign]  # splits reads
        response = await connection.request(MetadataRequest(topics=None), MetadataResponse)
        assert response.topics[0].name == "events"
        connection.close()

    run(test)


FAULTS = [
    pytest.param(b"\x7f\xff\xff\xff", id="a response of 2 GB"),
    pytest.param(b"\xff\xff\xff\xff", id="a negative length"),
    pytest.param(b"\x00\x00\x00\x04\x00\x00\x03\xe7", id="nobody's correlation id"),
    pytest.param(b"\x00\x00\x00\x04\x00\x00\x00\x01", id="a response cut short"),
    pytest.param(b"HTTP/1.1 400 Bad Request\r\n", id="no Kafka broker"),
]


@pytest.mark.parametrize("answer", FAULTS)
def test_bytes_that_are_no_response_end_the_connection(run: Run, answer: bytes) -> None:
    async def test(broker: Any) -> None:
        connection = await connect(broker)
        broker.script(ApiKey.METADATA, answer)
        with pytest.raises(KafkaError) as caught:
            await connection.request(MetadataRequest(topics=[]), MetadataResponse, timeout_s=5)
        assert caught.value.code is ErrorCode.NETWORK_EXCEPTION
        assert connection.is_closed
        with pytest.raises(KafkaError):
            await connection.request(MetadataRequest(topics=[]), MetadataResponse)

    run(test)


def test_a_broker_that_hangs_up(run: Run) -> None:
    async def test(broker: Any) -> None:
        connection = await connect(broker)
        broker.script(ApiKey.METADATA, lambda request, version: broker.drop_connections())
        with pytest.raises(KafkaError) as caught:
            await connection.request(MetadataRequest(topics=[]), MetadataResponse)
        assert caught.value.code is ErrorCode.NETWORK_EXCEPTION
        assert f"{broker.host}:{broker.port}" in caught.value.message

    run(test)


def test_a_broker_that_is_silent(run: Run) -> None:
    async def test(broker: Any) -> None:
        async with await connect(broker) as connection:
            broker.script(ApiKey.METADATA, None)
            request = MetadataRequest(topics=[])
            with pytest.raises(KafkaError) as caught:
                await connection.request(request, MetadataResponse, timeout_s=0.01)
            assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT

    run(test)


def test_the_wrong_response_type_is_a_mistake_of_the_caller(run: Run) -> None:
    async def test(broker: Any) -> None:
        async with await connect(broker) as connection:
            with pytest.raises(TypeError):
                await connection.request(MetadataRequest(topics=[]), ProduceResponse)

    run(test)


def test_connection_refused() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        with pytest.raises(KafkaError) as caught:
            asyncio.run(BrokerConnection.connect("127.0.0.1", port))
    assert caught.value.code is ErrorCode.NETWORK_EXCEPTION
    assert str(port) in caught.value.message


def test_a_server_that_does_not_respond() -> None:
    async def test() -> None:
        gone = asyncio.Event()

        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            await writer.wait_closed()
            gone.set()

        server = await asyncio.start_server(mute, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(KafkaError) as caught:
            await BrokerConnection.connect("127.0.0.1", port, timeout_s=0.02)
        assert "no answer" in caught.value.message
        await gone.wait()
        server.close()
        await server.wait_closed()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(ECONNREFUSED, "Connect call failed ('127.0.0.1', 9)"), "Connection refused"),
        (
            OSError(
                f"Multiple exceptions: [Errno {ECONNREFUSED}] Connect call failed ('::1', 9, 0, 0),"
                f" [Errno {ECONNREFUSED}] Connect call failed ('127.0.0.1', 9)"
            ),
            "Connection refused",
        ),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (OSError("anything else"), "anything else"),
    ],
)
def test_why_there_is_no_connection(
    monkeypatch: pytest.MonkeyPatch, error: OSError, said: str
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise error

    async def test() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", refuse)
        with pytest.raises(KafkaError) as caught:
            await BrokerConnection.connect("broker", 9)
        assert caught.value.message == f"broker:9: {said}"

    asyncio.run(test())
