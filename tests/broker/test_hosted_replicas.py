"""What the newest image says of this broker's replicas."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kbroker.broker.hosted_replicas import HostedReplicas
from kbroker.metadata.image import MetadataImage
from kbroker.model import TopicPartition
from kbroker.protocol.messages.admin.topics import DeleteTopicsRequest
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.log_config import LogConfigs
from tests.controller.cluster import DIRECTORY, Cluster, topic

OTHER_ID = b"o" * 16
LOCAL = TopicPartition("t", 0)
"""Its replicas: brokers 1 and 2."""
REMOTE = TopicPartition("t", 1)
"""Its replicas: brokers 2 and 3."""


class World:
    """Broker 1 of a cluster of three."""

    def __init__(self) -> None:
        self.cluster = Cluster(brokers=(1, 2, 3))
        settings = {"cleanup.policy": "compact"}
        asked = topic("t", assignments=[[2, 1], [2, 3]], configs=dict(settings))
        assert self.cluster.create(asked).topics[0].error_code == 0
        self.image = self.cluster.image
        configs = LogConfigs(BrokerConfig.from_properties({}))
        self.hosted = HostedReplicas(1, self.newest, configs)

    def newest(self) -> MetadataImage:
        return self.image

    @property
    def topic_id(self) -> bytes:
        return self.cluster.image.topics["t"].topic_id


@pytest.mark.parametrize(
    ("topic_partition", "expected"),
    [
        pytest.param(LOCAL, True, id="replica here"),
        pytest.param(REMOTE, False, id="replicas elsewhere"),
        pytest.param(TopicPartition("t", 2), False, id="no such partition"),
        pytest.param(TopicPartition("u", 0), False, id="no such topic"),
    ],
)
def test_assigned_replicas(topic_partition: TopicPartition, expected: bool) -> None:
    world = World()
    assert world.hosted.is_assigned(topic_partition, None) is expected
    assert world.hosted.is_assigned(topic_partition, world.topic_id) is expected
    assert not world.hosted.is_assigned(topic_partition, OTHER_ID)


def test_a_replica_of_a_deleted_topic_of_the_same_name_is_not_assigned() -> None:
    world = World()
    old_id, cluster = world.topic_id, world.cluster
    request = DeleteTopicsRequest(topic_names=["t"])
    cluster.run(cluster.controller.delete_topics(request, api_version=5))
    cluster.create(topic("t", assignments=[[1]]))
    assert world.hosted.is_assigned(LOCAL, old_id), "the image is the one of before"
    world.image = cluster.image
    assert not world.hosted.is_assigned(LOCAL, old_id)
    assert world.hosted.is_assigned(LOCAL, world.topic_id)


def test_the_directory_is_that_of_this_brokers_replica() -> None:
    world = World()
    old = world.image.topics["t"]
    partition = replace(old.partitions[0], directories=(OTHER_ID, DIRECTORY))
    changed = replace(old, partitions={**old.partitions, 0: partition})
    world.image = replace(world.image, topics=world.image.topics.changed({"t": changed}))
    assert world.hosted.directory(LOCAL) == DIRECTORY
    assert world.hosted.directory(REMOTE) is None
    assert world.hosted.directory(TopicPartition("t", 2)) is None
    assert world.hosted.directory(TopicPartition("u", 0)) is None


def test_a_partition_exists_on_whichever_brokers() -> None:
    world = World()
    for name in ("t", world.topic_id):
        assert [world.hosted.exists(name, index) for index in range(3)] == [True, True, False]
    assert not world.hosted.exists("u", 0)
    assert not world.hosted.exists(OTHER_ID, 0)


def test_settings_of_a_topic_and_of_an_unknown_one() -> None:
    hosted = World().hosted
    assert hosted.topic_config("t").cleanup_policy == {"compact"}
    assert hosted.topic_config("u").cleanup_policy == {"delete"}
