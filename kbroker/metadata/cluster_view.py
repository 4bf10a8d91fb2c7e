"""The cluster as clients of one listener see it: brokers, leaders and replicas that are reachable
through it.

Metadata, DescribeTopicPartitions and DescribeCluster use it. The endpoints of a listener are those
that brokers have registered.
"""

from __future__ import annotations

from kbroker.metadata.image import MetadataImage, PartitionImage, has_online_directory
from kbroker.protocol.errors import ErrorCode


class ClusterView:
    """The view of an image for the clients of one listener. reachable: brokers that are not fenced
    and have an endpoint on the listener, by id.
    """

    __slots__ = ("_offline_dirs", "image", "listener_name", "reachable")

    def __init__(self, image: MetadataImage, listener_name: str) -> None:
        self.image = image
        self.listener_name = listener_name
        self.reachable = {
            broker.id: broker
            for broker in image.usable_brokers()
            if listener_name in broker.endpoints
        }

    def has_endpoint(self, broker_id: int) -> bool:
        """Whether the broker, fenced or not, is registered with this listener."""
        broker = self.image.brokers.get(broker_id)
        return broker is not None and self.listener_name in broker.endpoints

    def leader_error(self, leader: int, *, listener_errors: bool) -> ErrorCode:
        """NONE if the leader can be returned to the client. listener_errors: whether the client
        knows LISTENER_NOT_FOUND (Metadata v6).
        """
        if self.has_endpoint(leader):
            return ErrorCode.NONE
        if leader in self.image.brokers and listener_errors:
            return ErrorCode.LISTENER_NOT_FOUND
        return ErrorCode.LEADER_NOT_AVAILABLE

    def offline_replicas(self, partition: PartitionImage) -> list[int]:
        """Replicas on brokers that are not reachable, or in a log directory that is offline."""
        offline = []
        for replica, directory in zip(partition.replicas, partition.directories, strict=False):
            broker = self.reachable.get(replica)
            if broker is None or not has_online_directory(broker, directory):
                offline.append(replica)
        return offline
