"""What the committed metadata says of this broker's replicas, for the log manager while it opens
logs and for the replica manager.

It is read from the metadata loader's image, which may be ahead of what this broker has carried out
(`metadata_cache`). The image is immutable, so worker threads may call these methods.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker.metadata.image import MetadataImage
from kbroker.model import TopicPartition, Uuid
from kbroker.settings.views.log_config import LogConfig, LogConfigs


class HostedReplicas:
    """image: gives the newest committed image."""

    __slots__ = ("_image", "_log_configs", "_node_id")

    def __init__(
        self, node_id: int, image: Callable[[], MetadataImage], log_configs: LogConfigs
    ) -> None:
        self._node_id = node_id
        self._image = image
        self._log_configs = log_configs

    def topic_config(self, topic: str) -> LogConfig:
        """The settings of a topic's logs, also of an unknown topic."""
        return self._log_configs.of(self._image().topic_configs(topic))

    def is_assigned(self, topic_partition: TopicPartition, topic_id: Uuid | None) -> bool:
        """Whether a replica is assigned to this broker. topic_id: of the topic that is meant, since
        another one may have had the name before; None for the present one.
        """
        topic = self._image().topics.get(topic_partition.topic)
        if topic is None or (topic_id is not None and topic.topic_id != topic_id):
            return False
        partition = topic.partitions.get(topic_partition.partition)
        return partition is not None and self._node_id in partition.replicas

    def directory(self, topic_partition: TopicPartition) -> Uuid | None:
        """The log directory the metadata has for this broker's replica; None without a replica."""
        partition = self._image().partition(*topic_partition)
        if partition is None or self._node_id not in partition.replicas:
            return None
        return partition.directory(self._node_id)

    def exists(self, topic: str | Uuid, partition: int) -> bool:
        """Whether the cluster has this partition of a topic (name or id), on whichever brokers."""
        image = self._image()
        found = image.topics.get(topic) if isinstance(topic, str) else image.topics_by_id.get(topic)
        return found is not None and partition in found.partitions
