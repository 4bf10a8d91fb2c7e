"""The leaders that Produce and Fetch responses name beside an error of leadership (KIP-951).

A client that asked the wrong broker finds the leader and its address in the response, without a
Metadata request.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from kbroker.metadata.image import MetadataImage, PartitionImage, TopicImage

LeaderT = TypeVar("LeaderT", covariant=True)
EndpointT = TypeVar("EndpointT")
EndpointOf = TypeVar("EndpointOf", covariant=True)


class LeaderType(Protocol[LeaderT]):
    """`LeaderIdAndEpoch` of a response class."""

    def __call__(self, *, leader_id: int, leader_epoch: int) -> LeaderT: ...


class EndpointType(Protocol[EndpointOf]):
    """`NodeEndpoint` of a response class."""

    def __call__(self, *, node_id: int, host: str, port: int, rack: str | None) -> EndpointOf: ...


class LeaderHints(Generic[LeaderT, EndpointT]):
    """Leaders for one response. endpoints: the response's list, which gets each leader that the
    client can reach on the listener once.
    """

    __slots__ = ("_endpoint", "_endpoints", "_image", "_leader", "_listener_name", "_named")

    def __init__(
        self,
        image: MetadataImage,
        listener_name: str,
        endpoints: list[EndpointT],
        leader: LeaderType[LeaderT],
        endpoint: EndpointType[EndpointT],
    ) -> None:
        self._image = image
        self._listener_name = listener_name
        self._endpoints = endpoints
        self._leader = leader
        self._endpoint = endpoint
        self._named: set[int] = set()

    def leader_of(self, topic: TopicImage | None, index: int) -> LeaderT | None:
        """The leader of a partition; None if there is no such partition."""
        partition = None if topic is None else topic.partitions.get(index)
        if partition is None:
            return None
        self._add_endpoint(partition)
        return self._leader(leader_id=partition.leader, leader_epoch=partition.leader_epoch)

    def _add_endpoint(self, partition: PartitionImage) -> None:
        broker = self._image.brokers.get(partition.leader)
        if broker is None or broker.id in self._named:
            return
        endpoint = broker.endpoints.get(self._listener_name)
        if endpoint is not None:
            self._named.add(broker.id)
            self._endpoints.append(
                self._endpoint(
                    node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack
                )
            )
