"""The channel on sockets, against a real broker, and streams that are given up while they connect.
What a peer can do wrong is in `test_channel`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random

import pytest

from kbroker.client.channel.asyncio_streams import AsyncioStreams
from kbroker.client.channel.channel import Channel
from kbroker.client.cluster_view import BrokerAddress
from kbroker.node.loop.timers import LoopTimers
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kbroker.testing.embedded import EmbeddedBroker
from tests.client.channel.peers import LoopWorld


@pytest.fixture
def world() -> Iterator[LoopWorld]:
    made = LoopWorld()
    yield made
    made.close()


def test_a_real_broker_answers_is_stopped_and_answers_again(world: LoopWorld) -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic("events", partitions=3)
        node = BrokerAddress(1, broker.host, broker.port)
        channel = Channel(world.opener, world.timers, Random(1), client_id="node-9")

        def metadata() -> Deferred[MetadataResponse]:
            return channel.send(
                node, "metadata", MetadataRequest(topics=None), MetadataResponse, timeout_ms=9_000
            )

        answers = [metadata() for _ in range(20)]
        fetch = FetchRequest(max_wait_ms=60_000, min_bytes=1, topics=[])
        parked = channel.send(node, "fetch", fetch, FetchResponse, timeout_ms=9_000)
        world.until(lambda: all(answer.done for answer in answers))
        for answer in answers:
            assert "events" in {topic.name for topic in answer.value.topics}
        broker.stop()
        world.until(lambda: parked.done)
        refused = metadata()
        world.until(lambda: refused.done)
        assert refused.error is not None and refused.error.code is ErrorCode.NETWORK_EXCEPTION
        broker.start()
        world.until(lambda: not channel.backoff_ms(1))
        again = metadata()
        world.until(lambda: again.done)
        assert again.value.cluster_id
        channel.close()


class Told:
    """A receiver that must not be told of anything."""

    def connected(self) -> None:
        raise AssertionError("connected")

    def data_received(self, data: bytes) -> None:
        raise AssertionError("data")

    def connection_lost(self, reason: str) -> None:
        raise AssertionError(reason)


def test_a_stream_that_is_closed_while_it_connects_tells_nothing(world: LoopWorld) -> None:
    peer = world.peer(1)
    address = world.address(1)
    for passes in range(6):
        stream = world.opener(address.host, address.port, Told())
        stream.write(b"before it is connected")
        if passes < 2:
            world.loop.run_until_complete(asyncio.sleep(0))
        stream.close()
        world.loop.run_until_complete(asyncio.sleep(0.002))
    assert all(connection.lost is not None for connection in peer.connections)


@pytest.mark.parametrize(("host", "port"), [("no..host", 9), ("127.0.0.1", 70_000)])
def test_an_address_that_is_none_is_a_lost_connection(host: str, port: int) -> None:
    async def test() -> ErrorCode:
        loop = asyncio.get_running_loop()
        channel = Channel(AsyncioStreams(loop), LoopTimers(loop), Random(1), client_id="node-9")
        done = asyncio.Event()
        answer = channel.send(
            BrokerAddress(1, host, port), "x", MetadataRequest(), MetadataResponse,
            timeout_ms=9_000,
        )  # fmt: skip
        answer.on_done(lambda value: done.set(), lambda error: done.set())
        await done.wait()
        channel.close()
        assert answer.error is not None
        return answer.error.code

    assert asyncio.run(test()) is ErrorCode.NETWORK_EXCEPTION
