"""A broker that is down, and one that advertises an address which this machine cannot reach."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.client import advertised, cluster
from kbroker.client.cluster import LATEST_TIMESTAMP, Client
from kbroker.model import TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.groups import (
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
)
from kbroker.protocol.messages.metadata import MetadataResponse

Run = Callable[[Callable[[Any], Any]], None]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "FIRST_BACKOFF_S", 0.0)
    monkeypatch.setattr(cluster, "MAX_BACKOFF_S", 0.0)


@pytest.mark.parametrize(
    ("grace_s", "code"),
    [(1e9, ErrorCode.NETWORK_EXCEPTION), (0.0, ErrorCode.BROKER_NOT_AVAILABLE)],
)
def test_an_advertised_address_that_cannot_be_reached(
    run: Run, monkeypatch: pytest.MonkeyPatch, grace_s: float, code: ErrorCode
) -> None:
    """At first it may be a broker that restarts, which is retriable."""
    monkeypatch.setattr(advertised, "ADVERTISED_GRACE_S", grace_s)

    async def test(broker: Any) -> None:
        with socket.socket() as reserved:
            reserved.bind(("127.0.0.1", 0))
            port = reserved.getsockname()[1]
            real, broker.port = broker.port, port
            async with Client(f"{broker.host}:{real}") as client:
                with pytest.raises(KafkaError) as caught:
                    await client.list_offsets({TopicPartition("events", 0): LATEST_TIMESTAMP})
                assert caught.value.code is code
                assert f"broker 1 advertises 127.0.0.1:{port}, which" in caught.value.message
                await client.metadata([])  # over the connection that is open
            assert len(broker.asked(ApiKey.API_VERSIONS)) == 1

    run(test)


def test_a_broker_that_is_down_does_not_advertise_a_wrong_address(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first broker that is asked for has died, and no advertised address was reached yet,
    because the bootstrap address is another one: it is retried until another broker leads.
    """
    monkeypatch.setattr(advertised, "ADVERTISED_GRACE_S", 0.0)

    async def test(broker: Any) -> None:
        with socket.socket() as reserved:
            reserved.bind(("127.0.0.1", 0))
            elections = [2, 2, 2, 1]

            def metadata(request: Any, version: int) -> MetadataResponse:
                response = broker.on_metadata(request, version, leader_id=elections.pop(0))
                dead = MetadataResponse.MetadataResponseBroker(
                    node_id=2, host=broker.host, port=reserved.getsockname()[1]
                )
                response.brokers.append(dead)
                return response

            broker.script(ApiKey.METADATA, *[metadata] * 4)
            async with Client(f"localhost:{broker.port}") as client:
                place = TopicPartition("events", 0)
                found = await client.retry(lambda: client.list_offsets({place: LATEST_TIMESTAMP}))
                assert found.keys() == {place}
            assert elections == []

    run(test)


def test_an_address_that_was_reached_before_may_come_back(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advertised, "ADVERTISED_GRACE_S", 0.0)

    async def test(broker: Any) -> None:
        async with Client(broker.address) as client:
            await client.metadata()
            await broker.__aexit__(None, None, None)
            await asyncio.sleep(0)
            with pytest.raises(KafkaError) as caught:
                await client.list_offsets({TopicPartition("events", 0): LATEST_TIMESTAMP})
            assert caught.value.code is ErrorCode.NETWORK_EXCEPTION
            assert "advertise" not in caught.value.message

    run(test)


def test_a_coordinator_that_is_down(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the first that the client asks for, so it does not know the brokers yet."""
    monkeypatch.setattr(advertised, "ADVERTISED_GRACE_S", 0.0)

    async def test(broker: Any) -> None:
        with socket.socket() as reserved:
            reserved.bind(("127.0.0.1", 0))
            port = reserved.getsockname()[1]
            dead = FindCoordinatorResponse(node_id=2, host=broker.host, port=port)
            broker.script(ApiKey.FIND_COORDINATOR, dead, dead)
            broker.script(ApiKey.HEARTBEAT, HeartbeatResponse())
            async with Client(broker.address) as client:
                await client.retry(
                    lambda: client.to_coordinator("g", HeartbeatRequest(), HeartbeatResponse)
                )
            assert len(broker.asked(ApiKey.FIND_COORDINATOR)) == 3

    run(test)
