"""What a new image means for this broker, and when its clients see it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from kbroker.broker.metadata_cache import MetadataCache
from kbroker.broker.metadata_listener import MOVE_LIMIT, MetadataListener, move_limit
from kbroker.coordinator.topics import DeletedTopic
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.layered_map import LayeredMap
from kbroker.metadata.publisher import HostPartition, Order, Publisher, RemovePartition
from kbroker.ports import Deferred, broker_stopping
from kbroker.protocol.messages.admin.topics import DeleteTopicsRequest
from kbroker.replication.mover import UNLIMITED
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.log_config import LogConfig
from tests.controller.cluster import Cluster, topic

CONFIG = LogConfig.from_configs(BrokerConfig.from_properties({}), {})


class Parts:
    """Replica manager, mover and coordinators in one; records calls in order."""

    def __init__(self, cache: MetadataCache) -> None:
        self.cache = cache
        self.orders: list[Order] = []
        self.deleted: list[DeletedTopic] = []
        self.share_saw: list[list[str]] = []
        self.bytes_per_second = UNLIMITED
        self._waiting: list[Deferred[None]] = []

    def apply(self, orders: Iterable[Order]) -> None:
        self.orders += orders

    def when_applied(self) -> Deferred[None]:
        applied: Deferred[None] = Deferred()
        self._waiting.append(applied)
        return applied

    def applied(self) -> None:
        waiting, self._waiting = self._waiting, []
        for applied in waiting:
            applied.resolve(None)

    def stop(self) -> None:
        waiting, self._waiting = self._waiting, []
        for applied in waiting:
            applied.fail(broker_stopping())


class Groups:
    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def on_topics_deleted(self, topics: Sequence[DeletedTopic]) -> None:
        self.parts.deleted += topics


class Share:
    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def on_topics_deleted(self) -> None:
        self.parts.share_saw.append(sorted(self.parts.cache.image.topics))


class World:
    def __init__(self) -> None:
        self.cluster = Cluster()
        self.cache = MetadataCache("cluster", lambda: 1)
        self.parts = Parts(self.cache)
        self.listener = MetadataListener(
            1,
            Publisher(1, lambda image, overrides: CONFIG),
            self.cache,
            replicas=self.parts,
            mover=self.parts,
            groups=Groups(self.parts),
            share=Share(self.parts),
        )
        self.seen = MetadataImage(cluster_id="cluster")

    def publish(self) -> MetadataImage:
        old, self.seen = self.seen, self.cluster.image
        self.listener.on_image(old, self.seen)
        return self.seen

    def delete(self, name: str) -> None:
        request = DeleteTopicsRequest(topic_names=[name])
        self.cluster.run(self.cluster.controller.delete_topics(request, api_version=5))


def test_clients_see_an_image_when_its_orders_are_carried_out() -> None:
    world = World()
    world.cluster.create(topic("t", 2))
    image = world.publish()
    assert [type(order) for order in world.parts.orders] == [HostPartition] * 2
    assert world.cache.image.offset == -1
    world.parts.applied()
    assert world.cache.image is image
    assert world.cache.finalized_features()["kraft.version"] == 1


def test_clients_do_not_see_an_image_whose_orders_a_stopping_broker_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.cluster.create(topic("t", 2))
    world.publish()
    world.parts.stop()
    assert world.cache.image.offset == -1
    assert not caplog.records


def test_images_that_come_meanwhile_are_seen_in_order() -> None:
    world = World()
    world.cluster.create(topic("a"))
    world.publish()
    world.cluster.create(topic("b"))
    last = world.publish()
    world.parts.applied()
    assert world.cache.image is last


def test_deleted_topics_reach_the_coordinators() -> None:
    world = World()
    world.cluster.create(topic("a"), topic("b"))
    topic_id = world.publish().topics["a"].topic_id
    world.parts.applied()
    world.parts.orders.clear()
    world.delete("a")
    world.publish()
    assert world.parts.deleted == [DeletedTopic("a", topic_id)]
    assert [type(order) for order in world.parts.orders] == [RemovePartition]
    world.parts.applied()
    assert world.parts.share_saw == [["b"]]  # it looks for deleted topics in the cache


def test_a_topic_made_anew_under_its_name_was_deleted_too() -> None:
    world = World()
    world.cluster.create(topic("a"))
    topic_id = world.publish().topics["a"].topic_id
    world.delete("a")
    world.cluster.create(topic("a"))
    world.publish()
    world.parts.applied()
    assert world.parts.deleted == [DeletedTopic("a", topic_id)]


def test_without_deleted_topics_no_coordinator_is_told() -> None:
    world = World()
    world.cluster.create(topic("a"))
    world.publish()
    world.cluster.create(topic("b"))
    world.publish()
    world.parts.applied()
    assert world.parts.deleted == [] and world.parts.share_saw == []


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({}, UNLIMITED),
        ({(4, ""): {MOVE_LIMIT: "5"}}, 5),
        ({(4, ""): {MOVE_LIMIT: "5"}, (4, "1"): {MOVE_LIMIT: "7"}}, 7),
        ({(4, "2"): {MOVE_LIMIT: "7"}}, UNLIMITED),
        ({(4, ""): {MOVE_LIMIT: "soon"}}, UNLIMITED),
    ],
)
def test_the_limit_of_moves(configs: dict[tuple[int, str], dict[str, str]], expected: int) -> None:
    image = MetadataImage(configs=LayeredMap(configs))
    assert move_limit(image, 1) == expected
