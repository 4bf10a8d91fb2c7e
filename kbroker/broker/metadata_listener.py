"""Turns each new image of the metadata loader into work for this broker (Kafka's
BrokerMetadataPublisher): orders for the replica manager, deleted topics for the coordinators.

Which partitions change is found by `metadata/publisher`. Orders are carried out in several turns of
the loop if they are many; the image reaches `metadata_cache`, and so the clients, afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, Protocol

from kbroker.broker.metadata_cache import MetadataCache
from kbroker.coordinator.topics import DeletedTopic
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.publisher import Order, Publisher
from kbroker.ports import Deferred
from kbroker.protocol.errors import KafkaError
from kbroker.replication.mover import UNLIMITED
from kbroker.settings.dynamic import stored_configs

logger = logging.getLogger(__name__)

MOVE_LIMIT: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
"""A setting that Kafka has only dynamically, for one broker or for all."""


class ReplicaOrders(Protocol):
    """The part of the replica manager that carries out orders of the metadata."""

    def apply(self, orders: Iterable[Order]) -> None: ...

    def when_applied(self) -> Deferred[None]: ...


class MoveLimit(Protocol):
    """The mover of logs between directories."""

    bytes_per_second: int


class GroupListener(Protocol):
    """The group coordinator."""

    def on_topics_deleted(self, topics: Sequence[DeletedTopic]) -> None: ...


class ShareListener(Protocol):
    """The share coordinator: it looks for deleted topics in the metadata cache."""

    def on_topics_deleted(self) -> None: ...


class MetadataListener:
    """See the module."""

    def __init__(
        self,
        node_id: int,
        publisher: Publisher,
        cache: MetadataCache,
        *,
        replicas: ReplicaOrders,
        mover: MoveLimit,
        groups: GroupListener,
        share: ShareListener,
    ) -> None:
        self._node_id = node_id
        self._publisher = publisher
        self._cache = cache
        self._replicas = replicas
        self._mover = mover
        self._groups = groups
        self._share = share

    def on_image(self, old: MetadataImage, new: MetadataImage) -> None:
        """Carry out the difference, then let the clients see `new`."""
        self._replicas.apply(self._publisher.orders(old, new))
        if new.configs is not old.configs:
            self._mover.bytes_per_second = move_limit(new, self._node_id)
        deleted: Sequence[DeletedTopic] = ()
        if new.topics is not old.topics and len(old.topics):
            deleted = _deleted_topics(old, new)
        if deleted:
            self._groups.on_topics_deleted(deleted)
        applied = partial(self._applied, new, has_deleted_topics=bool(deleted))
        self._replicas.when_applied().on_done(applied, self._not_applied)

    def _not_applied(self, error: KafkaError) -> None:
        logger.debug("node %d: an image was not carried out: %s", self._node_id, error)

    def _applied(self, image: MetadataImage, _: None, *, has_deleted_topics: bool) -> None:
        self._cache.image = image
        if has_deleted_topics:
            self._share.on_topics_deleted()


def move_limit(image: MetadataImage, node_id: int) -> int:
    """Bytes per second that moves between log directories may copy."""
    return int(stored_configs(image, node_id).merged.get(MOVE_LIMIT, UNLIMITED))


def _deleted_topics(old: MetadataImage, new: MetadataImage) -> list[DeletedTopic]:
    former = (old.topics.get(name) for name in new.topics.changed_keys(old.topics))
    return [
        DeletedTopic(topic.name, topic.topic_id)
        for topic in former
        if topic is not None and topic.topic_id not in new.topics_by_id
    ]
