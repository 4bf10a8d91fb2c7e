"""The queries of an image."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kbroker.metadata.image import (
    BROKER_RESOURCE,
    ELIGIBLE_LEADER_REPLICAS,
    GROUP_RESOURCE,
    METADATA_VERSION,
    TOPIC_RESOURCE,
    BrokerRegistration,
    MetadataImage,
    PartitionImage,
    TopicImage,
    has_online_directory,
    metric_name,
)
from kbroker.metadata.layered_map import LayeredMap
from kbroker.model import LOST_DIRECTORY, MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY

D1, D2, OTHER = (bytes(15) + bytes([number]) for number in (11, 12, 13))


@pytest.mark.parametrize(
    ("directory", "online"),
    [
        (D1, True),
        (OTHER, False),
        (UNASSIGNED_DIRECTORY, True),
        (MIGRATING_DIRECTORY, True),
        (LOST_DIRECTORY, False),
    ],
)
def test_which_directories_count_as_online(directory: bytes, online: bool) -> None:
    broker = BrokerRegistration(1, 1, bytes(16), {}, log_dirs=(D1, D2))
    assert has_online_directory(broker, directory) is online
    unknown = replace(broker, log_dirs=())
    assert has_online_directory(unknown, directory) is (directory != LOST_DIRECTORY)


def test_the_racks_of_partitions() -> None:
    """The racks of replicas whose broker has one; empty if no broker has a rack."""
    partitions = {
        0: PartitionImage(replicas=(2, 1, 3), directories=(), isr=()),
        1: PartitionImage(replicas=(3, 9), directories=(), isr=()),
    }
    topics = LayeredMap({"t": TopicImage("t", bytes(16), partitions)})
    racks = {1: "east", 2: "west", 3: None}
    brokers = {
        key: BrokerRegistration(key, 0, bytes(16), {}, rack=rack) for key, rack in racks.items()
    }
    image = MetadataImage(brokers=brokers, topics=topics)
    assert image.partition_racks("t") == (("west", "east"), ())
    assert image.partition_racks("no such topic") == ()
    assert MetadataImage(brokers={3: brokers[3]}, topics=topics).partition_racks("t") == ()


def test_settings_of_one_name_are_apart_by_kind() -> None:
    configs = {
        (TOPIC_RESOURCE, "1"): {"of": "topic"},
        (GROUP_RESOURCE, "1"): {"of": "group"},
        (BROKER_RESOURCE, "1"): {"of": "broker"},
        (BROKER_RESOURCE, ""): {"of": "all brokers"},
    }
    image = MetadataImage(configs=LayeredMap(configs))
    assert image.topic_configs("1") == {"of": "topic"}
    assert image.group_configs("1") == {"of": "group"}
    assert image.broker_configs(1) == {"of": "broker"}
    assert image.broker_configs(None) == {"of": "all brokers"}
    assert image.topic_configs("2") == image.group_configs("2") == image.broker_configs(2) == {}


def test_a_partition_or_none() -> None:
    partition = PartitionImage(replicas=(1,), directories=(D1,), isr=(1,))
    topics = LayeredMap({"t": TopicImage("t", bytes(16), {0: partition})})
    image = MetadataImage(topics=topics)
    assert image.partition("t", 0) is partition
    assert image.partition("t", 1) is None
    assert image.partition("u", 0) is None


def test_levels_of_features() -> None:
    image = MetadataImage()
    assert (image.metadata_version, image.elr_enabled) == (7, False)
    image = replace(image, features={METADATA_VERSION: 30, ELIGIBLE_LEADER_REPLICAS: 1})
    assert (image.metadata_version, image.elr_enabled) == (30, True)


def test_usable_brokers_are_in_order_and_not_fenced() -> None:
    brokers = {key: BrokerRegistration(key, 0, bytes(16), {}, fenced=key == 2) for key in (3, 1, 2)}
    image = MetadataImage(brokers=brokers)
    assert [broker.id for broker in image.usable_brokers()] == [1, 3]


def test_two_names_with_the_same_metrics() -> None:
    assert metric_name("a.b_c") == metric_name("a_b.c") == "a_b_c"


def test_what_a_partition_says_of_itself() -> None:
    partition = PartitionImage(replicas=(2, 1), directories=(D1, D2), isr=(1,), leader=1)
    assert partition.has_leader and not partition.has_preferred_leader
    assert replace(partition, leader=2).has_preferred_leader
    assert not replace(partition, leader=-1).has_leader
    assert not partition.is_reassigning
    assert replace(partition, adding=(2,)).is_reassigning
    assert replace(partition, removing=(2,)).is_reassigning
    assert [partition.directory(each) for each in (1, 2, 3)] == [D2, D1, MIGRATING_DIRECTORY]


def test_an_active_broker_is_neither_fenced_nor_shutting_down() -> None:
    broker = BrokerRegistration(1, 1, bytes(16), {}, fenced=False)
    image = MetadataImage(brokers={1: broker})
    assert image.is_active(1) and not image.is_active(2)
    for change in ({"fenced": True}, {"in_controlled_shutdown": True}):
        assert not MetadataImage(brokers={1: replace(broker, **change)}).is_active(1)
