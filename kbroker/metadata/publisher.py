"""Turns a change of the image into orders for this broker: which replicas to host, with which
leader and settings, and which to remove. `broker/metadata_listener` executes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from kbroker.metadata.image import TOPIC_RESOURCE, MetadataImage, PartitionImage, TopicImage
from kbroker.model import ZERO_UUID, TopicPartition, Uuid
from kbroker.settings.views.log_config import LogConfig


class HostPartition(msgspec.Struct, frozen=True):
    """Host a replica of this partition: lead it if leader is this broker, else follow. leader: -1
    if the partition has no leader.
    """

    topic_partition: TopicPartition
    topic_id: Uuid
    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    config: LogConfig
    directory_id: Uuid = ZERO_UUID
    """The replica's log directory in the metadata; zero: not assigned yet."""


class RemovePartition(msgspec.Struct, frozen=True):
    """Stop hosting this replica; delete: delete its data too."""

    topic_partition: TopicPartition
    delete: bool = True


class UpdateTopicConfig(msgspec.Struct, frozen=True):
    """The settings of a topic that has replicas on this broker have changed."""

    topic: str
    config: LogConfig


Order = HostPartition | RemovePartition | UpdateTopicConfig


class Publisher:
    """Turns image changes into orders for one broker.

    make_config: gets the image and a topic's overrides. Removals come first, because a topic that
    was deleted and created again under the same name has new replicas.
    """

    __slots__ = ("_make_config", "_node_id")

    def __init__(
        self, node_id: int, make_config: Callable[[MetadataImage, Mapping[str, str]], LogConfig]
    ) -> None:
        self._node_id = node_id
        self._make_config = make_config

    def orders(self, old: MetadataImage, new: MetadataImage) -> Iterator[Order]:
        """Yield the orders for the difference between two images. The cost grows with the number of
        changed topics, not with the number of topics.
        """
        changed = new.topics.changed_keys(old.topics)
        for name in changed:
            yield from self._removals(old.topics.get(name), new.topics.get(name))
        for name in changed:
            yield from self._hosted(old.topics.get(name), new.topics.get(name), new)
        if new.configs is not old.configs:
            yield from self._config_changes(old, new)

    def _removals(self, before: TopicImage | None, now: TopicImage | None) -> Iterator[Order]:
        if before is None:
            return
        kept = now.partitions if now is not None and now.topic_id == before.topic_id else {}
        for index, partition in before.partitions.items():
            replica = kept.get(index)
            if self._node_id in partition.replicas and (
                replica is None or self._node_id not in replica.replicas
            ):
                yield RemovePartition(TopicPartition(before.name, index))

    def _hosted(
        self, before: TopicImage | None, topic: TopicImage | None, new: MetadataImage
    ) -> Iterator[Order]:
        if topic is None:
            return
        changed = [
            (index, partition)
            for index, partition in topic.partitions.items()
            if self._node_id in partition.replicas and not _same(before, topic, index, partition)
        ]
        if changed:
            config = self._make_config(new, new.topic_configs(topic.name))
            for index, partition in changed:
                yield _host(self._node_id, topic, index, partition, config)

    def _config_changes(self, old: MetadataImage, new: MetadataImage) -> Iterator[Order]:
        brokers = (None, self._node_id)
        defaults_changed = any(old.broker_configs(b) != new.broker_configs(b) for b in brokers)
        names = set(new.topics) if defaults_changed else set()
        names.update(
            name
            for resource_type, name in new.configs.changed_keys(old.configs)
            if resource_type == TOPIC_RESOURCE
        )
        for name in sorted(names):
            topic, before = new.topics.get(name), old.topics.get(name)
            if topic is None or before is None or topic.topic_id != before.topic_id:
                continue  # deleted, or new and hosted with these settings
            if any(self._node_id in partition.replicas for partition in topic.partitions.values()):
                yield UpdateTopicConfig(name, self._make_config(new, new.topic_configs(name)))


def _same(
    before: TopicImage | None, topic: TopicImage, index: int, partition: PartitionImage
) -> bool:
    return (
        before is not None
        and before.topic_id == topic.topic_id
        and before.partitions.get(index) == partition
    )


def _host(
    node_id: int, topic: TopicImage, index: int, partition: PartitionImage, config: LogConfig
) -> HostPartition:
    return HostPartition(
        topic_partition=TopicPartition(topic.name, index),
        topic_id=topic.topic_id,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        replicas=partition.replicas,
        isr=partition.isr,
        config=config,
        directory_id=partition.directory(node_id),
    )
