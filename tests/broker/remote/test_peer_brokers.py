"""Requests to other brokers: where they go, and what becomes of them when a broker is fenced."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kbroker.broker.remote.peer_brokers import PeerBrokers, address_of
from kbroker.client.cluster_view import BrokerAddress
from kbroker.metadata.image import BrokerRegistration, Endpoint, MetadataImage
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.client.channel.peers import SILENT, SimWorld, channel_of

BROKERS = {
    number: BrokerRegistration(
        id=number,
        epoch=number,
        incarnation_id=bytes(16),
        endpoints={"INTERNAL": Endpoint("INTERNAL", f"host{number}", 9000 + number)},
        fenced=False,
    )
    for number in (2, 3)
}
IMAGE = MetadataImage(brokers=BROKERS)


class ChannelLog:
    """sent: (address, purpose, timeout)."""

    def __init__(self) -> None:
        self.sent: list[tuple[BrokerAddress, str, int]] = []
        self.disconnected: list[int] = []

    def send(
        self, node: BrokerAddress, purpose: str, request: object, kind: object, *, timeout_ms: int
    ) -> Deferred[MetadataResponse]:
        self.sent.append((node, purpose, timeout_ms))
        return Deferred.of(MetadataResponse())

    def disconnect(self, node_id: int) -> None:
        self.disconnected.append(node_id)


def peers_of(image: MetadataImage, listener_name: str = "INTERNAL") -> tuple[PeerBrokers, Any]:
    channel: Any = ChannelLog()
    peers = PeerBrokers(channel, lambda: image, listener_name=listener_name, timeout_ms=7)
    return peers, channel


def test_a_request_goes_to_the_brokers_own_listener() -> None:
    peers, channel = peers_of(IMAGE)
    assert peers.send(3, "purpose", MetadataRequest(), MetadataResponse).value
    assert channel.sent == [(BrokerAddress(3, "host3", 9003), "purpose", 7)]
    assert address_of(IMAGE, 2, "INTERNAL") == BrokerAddress(2, "host2", 9002)


def test_a_request_to_a_stopped_process_fails_when_the_broker_is_fenced() -> None:
    """Its connections stay open, and nothing is answered on them."""
    world = SimWorld()
    world.peer(3).script(ApiKey.METADATA, SILENT)
    endpoint = Endpoint("INTERNAL", "sim", 3)
    broker = replace(BROKERS[3], endpoints={"INTERNAL": endpoint})
    images = [MetadataImage(brokers={3: broker})]
    peers = PeerBrokers(
        channel_of(world), lambda: images[-1], listener_name="INTERNAL", timeout_ms=30_000
    )

    def send() -> Deferred[MetadataResponse]:
        return peers.send(3, "purpose", MetadataRequest(), MetadataResponse)

    sent = send()
    world.heap.advance(5_000)
    assert not sent.done
    images.append(MetadataImage(brokers={3: replace(broker, fenced=True)}))
    peers.on_image(*images)
    assert sent.error is not None and sent.error.code is ErrorCode.NETWORK_EXCEPTION
    again = send()
    assert again.error is not None and again.error.code is ErrorCode.BROKER_NOT_AVAILABLE


FENCED = replace(IMAGE, brokers={**BROKERS, 3: replace(BROKERS[3], fenced=True)})
GONE = replace(IMAGE, brokers={2: BROKERS[2]})


@pytest.mark.parametrize(
    ("image", "listener_name"),
    [
        pytest.param(FENCED, "INTERNAL", id="fenced"),
        pytest.param(GONE, "INTERNAL", id="unregistered"),
        pytest.param(IMAGE, "OTHER", id="without that listener"),
    ],
)
def test_a_broker_that_cannot_be_asked(image: MetadataImage, listener_name: str) -> None:
    peers, channel = peers_of(image, listener_name)
    sent = peers.send(3, "purpose", MetadataRequest(), MetadataResponse)
    assert sent.error is not None and sent.error.code is ErrorCode.BROKER_NOT_AVAILABLE
    assert not channel.sent


@pytest.mark.parametrize(
    ("old", "new", "disconnected"),
    [
        pytest.param(IMAGE, FENCED, [3], id="fenced"),
        pytest.param(IMAGE, GONE, [3], id="unregistered"),
        pytest.param(FENCED, FENCED, [], id="unchanged"),
        pytest.param(FENCED, GONE, [], id="was fenced before"),
        pytest.param(FENCED, IMAGE, [], id="unfenced"),
        pytest.param(MetadataImage(), IMAGE, [], id="first image"),
    ],
)
def test_requests_to_a_fenced_broker_do_not_wait(
    old: MetadataImage, new: MetadataImage, disconnected: list[int]
) -> None:
    peers, channel = peers_of(new)
    peers.on_image(old, new)
    assert channel.disconnected == disconnected
