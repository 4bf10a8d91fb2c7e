"""Bootstrap, metadata, retries: what a client does when a cluster is not at its best."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.client import cluster
from kbroker.client.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, Client
from kbroker.model import StartupError, TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.groups import (
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
)
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse

Run = Callable[[Callable[[Any], Any]], None]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "FIRST_BACKOFF_S", 0.0)
    monkeypatch.setattr(cluster, "MAX_BACKOFF_S", 0.0)


def test_no_broker_answers_in_one_line() -> None:
    async def test() -> None:
        with socket.socket() as reserved:
            reserved.bind(("127.0.0.1", 0))
            port = reserved.getsockname()[1]
            with pytest.raises(StartupError) as caught:
                async with Client(f"127.0.0.1:{port}"):
                    pass
        assert str(port) in str(caught.value) and "\n" not in str(caught.value)

    asyncio.run(test())


def test_the_next_bootstrap_address_is_tried(run: Run) -> None:
    async def test(broker: Any) -> None:
        with socket.socket() as reserved:
            reserved.bind(("127.0.0.1", 0))
            port = reserved.getsockname()[1]
            async with Client(f"127.0.0.1:{port},{broker.address}") as client:
                await client.metadata()
                assert client.topics["events"].partitions.keys() == {0, 1}
                assert client.cluster_id == "fake"

    run(test)


def test_one_connection_however_many_ask(run: Run) -> None:
    async def test(broker: Any) -> None:
        async with Client(broker.address) as client:
            await asyncio.gather(
                *(client.any(MetadataRequest(topics=[]), MetadataResponse) for _ in range(10))
            )
            own = await client.connection(broker.host, broker.port, "own")
            assert own is not await client.any_connection()
            client.close_channel("own")
            assert own.is_closed
        assert len(broker.asked(ApiKey.API_VERSIONS)) == 2

    run(test)


def test_a_lost_connection_is_opened_again(run: Run) -> None:
    async def test(broker: Any) -> None:
        async with Client(broker.address) as client:
            broker.script(ApiKey.METADATA, lambda request, version: broker.drop_connections())
            await client.retry(lambda: client.metadata([]))
            assert len(broker.asked(ApiKey.API_VERSIONS)) == 2

    run(test)


def test_a_leader_that_is_not_there_yet(run: Run) -> None:
    async def test(broker: Any) -> None:
        def leaderless(request: Any, version: int) -> Any:
            return broker.on_metadata(request, version, leader_id=-1)

        broker.script(ApiKey.METADATA, leaderless, leaderless)
        async with Client(broker.address) as client:
            with pytest.raises(KafkaError) as caught:
                await client.leader(TopicPartition("events", 0))
            assert caught.value.code is ErrorCode.LEADER_NOT_AVAILABLE
            leader = await client.retry(lambda: client.leader(TopicPartition("events", 0)))
            assert leader == 1

    run(test)


@pytest.mark.parametrize("topic_partition", [("events", 7), ("nothing", 0)])
def test_partitions_that_do_not_exist(run: Run, topic_partition: tuple[str, int]) -> None:
    async def test(broker: Any) -> None:
        async with Client(broker.address) as client:
            with pytest.raises(KafkaError) as caught:
                await client.retry(
                    lambda: client.leader(TopicPartition(*topic_partition)), timeout_s=0.0
                )
            assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(test)


def test_only_what_may_pass_is_tried_again() -> None:
    attempts: list[int] = []

    async def attempt() -> None:
        attempts.append(1)
        code = ErrorCode.NOT_COORDINATOR if len(attempts) < 3 else ErrorCode.INVALID_CONFIG
        raise KafkaError(code)

    with pytest.raises(KafkaError) as caught:
        asyncio.run(Client("unused:1").retry(attempt))
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert len(attempts) == 3


def test_offsets_of_both_ends(run: Run) -> None:
    async def test(broker: Any) -> None:
        broker.end_offsets = {0: 5, 1: 6}
        async with Client(broker.address) as client:
            found = await client.list_offsets(
                {
                    TopicPartition("events", 0): LATEST_TIMESTAMP,
                    TopicPartition("events", 1): EARLIEST_TIMESTAMP,
                }
            )
        assert {tp.partition: answer.offset for tp, answer in found.items()} == {0: 5, 1: 0}

    run(test)


def test_a_coordinator_is_remembered_until_it_is_lost(run: Run) -> None:
    async def test(broker: Any) -> None:
        heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        broker.script(
            ApiKey.FIND_COORDINATOR,
            FindCoordinatorResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE),
        )
        broker.script(ApiKey.HEARTBEAT, *[HeartbeatResponse()] * 2)
        async with Client(broker.address) as client:
            for _ in range(2):
                await client.retry(lambda: client.to_coordinator("g", heartbeat, HeartbeatResponse))
            assert len(broker.asked(ApiKey.FIND_COORDINATOR)) == 2
            broker.script(ApiKey.HEARTBEAT, lambda request, version: broker.drop_connections())
            broker.script(ApiKey.HEARTBEAT, HeartbeatResponse())
            await client.retry(lambda: client.to_coordinator("g", heartbeat, HeartbeatResponse))
            assert len(broker.asked(ApiKey.FIND_COORDINATOR)) == 3

    run(test)


@pytest.mark.parametrize(
    ("code", "given", "message"),
    [
        pytest.param(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            None,
            "COORDINATOR_NOT_AVAILABLE: group g has no coordinator: __consumer_offsets cannot be",
            id="brokers-give-no-reason",
        ),
        pytest.param(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            "The coordinator is not available.",
            "COORDINATOR_NOT_AVAILABLE: group g has no coordinator: __consumer_offsets cannot be",
            id="kafka-says-it-again",
        ),
        pytest.param(
            ErrorCode.GROUP_AUTHORIZATION_FAILED,
            "Not yours.",
            "GROUP_AUTHORIZATION_FAILED: Not yours.",
            id="a-reason",
        ),
    ],
)
def test_why_there_is_no_coordinator(
    run: Run, code: ErrorCode, given: str | None, message: str
) -> None:
    async def test(broker: Any) -> None:
        failed = FindCoordinatorResponse(error_code=code, error_message=given)
        broker.script(ApiKey.FIND_COORDINATOR, failed)
        async with Client(broker.address) as client:
            with pytest.raises(KafkaError) as raised:
                await client.coordinator("g")
        assert str(raised.value).startswith(message)

    run(test)


def test_the_controller_is_the_one_metadata_names(run: Run) -> None:
    async def test(broker: Any) -> None:
        async with Client(broker.address) as client:
            request = MetadataRequest(topics=[])
            response = await client.to_controller(request, MetadataResponse)
            assert response.controller_id == client.controller_id == 1

    run(test)
