"""Requests to other brokers by their ids, on the listener `inter.broker.listener.name` that each
advertises in the metadata.

Used by the coordinators of a broker among several. The fetchers of followers have connections of
their own (`node/broker/replication`), requests for the active controller too
(`node_to_controller`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from kbroker.client.cluster_view import BrokerAddress
from kbroker.metadata.image import MetadataImage
from kbroker.ports import Deferred
from kbroker.protocol.codecs.schema import Request, Response
from kbroker.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kbroker.client.channel.channel import Channel

R = TypeVar("R", bound=Response)


def address_of(image: MetadataImage, broker_id: int, listener_name: str) -> BrokerAddress | None:
    """Where a broker listens, as the metadata have it; None if they do not."""
    broker = image.brokers.get(broker_id)
    endpoint = None if broker is None else broker.endpoints.get(listener_name)
    return None if endpoint is None else BrokerAddress(broker_id, endpoint.host, endpoint.port)


class PeerBrokers:
    """image: gives the newest metadata. timeout_ms: how long a response may take
    (request.timeout.ms).
    """

    __slots__ = ("_channel", "_image", "_listener_name", "_timeout_ms")

    def __init__(
        self,
        channel: Channel,
        image: Callable[[], MetadataImage],
        *,
        listener_name: str,
        timeout_ms: int,
    ) -> None:
        self._channel = channel
        self._image = image
        self._listener_name = listener_name
        self._timeout_ms = timeout_ms

    def send(
        self, broker_id: int, purpose: str, request: Request, response_type: type[R]
    ) -> Deferred[R]:
        """As `Channel.send`. Fails with BROKER_NOT_AVAILABLE if the broker is fenced, or the
        metadata have no address of it.
        """
        image = self._image()
        address = address_of(image, broker_id, self._listener_name)
        if address is None or image.brokers[broker_id].fenced:
            message = f"broker {broker_id} is fenced or has no listener {self._listener_name}"
            return Deferred.failed(KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, message))
        return self._channel.send(
            address, purpose, request, response_type, timeout_ms=self._timeout_ms
        )

    def on_image(self, old: MetadataImage, new: MetadataImage) -> None:
        """Disconnect from brokers that the controller has fenced: a process that is stopped keeps
        its connections, and requests to it would wait for their timeout while new leaders can
        answer them.
        """
        if new.brokers is old.brokers:
            return
        for broker_id, broker in old.brokers.items():
            present = new.brokers.get(broker_id)
            if not broker.fenced and (present is None or present.fenced):
                self._channel.disconnect(broker_id)
