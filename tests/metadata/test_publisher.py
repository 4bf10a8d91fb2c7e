"""The orders for a change of the image."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.metadata.image import MetadataImage
from kbroker.metadata.publisher import (
    HostPartition,
    Order,
    Publisher,
    RemovePartition,
    UpdateTopicConfig,
)
from kbroker.model import TopicPartition
from kbroker.protocol.messages.admin.topics import DeleteTopicsRequest
from kbroker.protocol.messages.stored.metadata_records import ConfigRecord
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.log_config import LogConfig
from tests.controller.cluster import Cluster, topic

CONFIG = BrokerConfig.from_properties({})


def make_config(image: MetadataImage, overrides: Mapping[str, str]) -> LogConfig:
    defaults = {k: v for k, v in image.broker_configs(None).items() if k == "retention.ms"}
    return LogConfig.from_configs(CONFIG, {**defaults, **overrides})


def orders(old: MetadataImage, new: MetadataImage, node_id: int = 1) -> list[Order]:
    return list(Publisher(node_id, make_config).orders(old, new))


def test_only_own_partitions_are_hosted() -> None:
    cluster = Cluster(brokers=(1, 2))
    old = cluster.image
    cluster.create(topic("t", assignments=[[1], [2], [1]], configs={"retention.ms": "5"}))
    hosted = orders(old, cluster.image)
    assert [o.topic_partition for o in hosted if isinstance(o, HostPartition)] == [
        TopicPartition("t", 0),
        TopicPartition("t", 2),
    ]
    first = hosted[0]
    assert isinstance(first, HostPartition)
    assert first.config.retention_ms == 5
    assert (first.leader, first.leader_epoch, first.isr) == (1, 0, (1,))
    assert first.topic_id == cluster.image.topics["t"].topic_id


def test_the_whole_image_is_hosted_from_nothing() -> None:
    cluster = Cluster()
    cluster.create(topic("a", 2), topic("b"))
    assert len(orders(MetadataImage(), cluster.image)) == 3


def test_a_leader_change_hosts_anew_and_nothing_else() -> None:
    cluster = Cluster(brokers=(1, 2, 3))
    cluster.create(topic("t", assignments=[[1, 2], [2, 1], [2, 3]]))
    old = cluster.image
    cluster.beat(2, stop=True)
    changed = orders(old, cluster.image)
    assert [
        (o.topic_partition.partition, o.leader) for o in changed if isinstance(o, HostPartition)
    ] == [
        (0, 1),
        (1, 1),
    ]


def test_a_deleted_topic_is_removed() -> None:
    cluster = Cluster()
    cluster.create(topic("t", 2), topic("u"))
    old = cluster.image
    request = DeleteTopicsRequest(topic_names=["t"])
    cluster.run(cluster.controller.delete_topics(request, api_version=5))
    gone = [RemovePartition(TopicPartition("t", index)) for index in (0, 1)]
    assert orders(old, cluster.image) == gone
    cluster.create(topic("t"))
    renewed = orders(old, cluster.image)
    assert renewed[:2] == gone
    assert [o.topic_partition for o in renewed[2:] if isinstance(o, HostPartition)] == [
        TopicPartition("t", 0)
    ]


def config_change(cluster: Cluster, resource_type: int, name: str, value: str | None) -> None:
    record = ConfigRecord(
        resource_type=resource_type, resource_name=name, name="retention.ms", value=value
    )
    cluster.controller.replay([record], offset=cluster.image.offset + 1, epoch=1)


def test_config_changes() -> None:
    cluster = Cluster()
    cluster.create(topic("t"), topic("u"))
    for resource, value, changed in (
        ((2, "t"), "7", ["t"]),
        ((2, "t"), None, ["t"]),
        ((4, ""), "9", ["t", "u"]),
        ((2, "not here"), "9", []),
    ):
        old = cluster.image
        config_change(cluster, *resource, value)
        updates = orders(old, cluster.image)
        assert [o.topic for o in updates if isinstance(o, UpdateTopicConfig)] == changed
        assert len(updates) == len(changed)


def test_an_unrelated_change_gives_no_orders() -> None:
    cluster = Cluster()
    cluster.create(topic("t"))
    old = cluster.image
    cluster.run(cluster.controller.allocate_producer_ids(1, cluster.epoch_of(1)))
    assert orders(old, cluster.image) == []
