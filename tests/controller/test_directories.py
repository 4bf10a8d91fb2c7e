"""Directories of replicas: assignments, failed disks, and who may lead then (KIP-858)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbroker.controller.directories import Assignment, assign, directories_failed
from kbroker.metadata.delta import MetadataDelta
from kbroker.metadata.image import (
    ELIGIBLE_LEADER_REPLICAS,
    METADATA_VERSION,
    BrokerRegistration,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from kbroker.metadata.layered_map import LayeredMap
from kbroker.model import UNASSIGNED_DIRECTORY
from kbroker.protocol.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
)
from kbroker.protocol.schema import Message

D1, D2, OTHER = (bytes(15) + bytes([number]) for number in (11, 12, 13))
TOPIC_ID = bytes(15) + b"\x07"


def one(topic: str) -> int:
    return 1


def cluster(*directories: bytes, brokers: int = 1, level: int = 30) -> MetadataImage:
    """A topic with a partition per directory of broker 1; every other broker has one of its own."""
    registered = {
        number: BrokerRegistration(
            number,
            number,
            bytes(16),
            {},
            fenced=False,
            log_dirs=(D1, D2) if number == 1 else (OTHER,),
        )
        for number in range(1, brokers + 1)
    }
    replicas = tuple(registered)
    partitions = {
        index: PartitionImage(
            replicas, (directory, *(OTHER,) * (brokers - 1)), isr=replicas, leader=1
        )
        for index, directory in enumerate(directories)
    }
    topic = TopicImage("t", TOPIC_ID, partitions)
    nothing: LayeredMap[str, TopicImage] = LayeredMap()
    by_id: LayeredMap[bytes, TopicImage] = LayeredMap()
    return MetadataImage(
        offset=5,
        brokers=registered,
        topics=nothing.changed({"t": topic}),
        topics_by_id=by_id.changed({TOPIC_ID: topic}),
        features={METADATA_VERSION: level, ELIGIBLE_LEADER_REPLICAS: 1},
    )


def after(image: MetadataImage, records: list[Message]) -> MetadataImage:
    delta = MetadataDelta(image)
    for record in records:
        delta.replay(record)
    return delta.apply(offset=9, epoch=1)


def test_an_assignment_is_one_record_without_a_new_leader_epoch() -> None:
    image = cluster(UNASSIGNED_DIRECTORY, D1)
    wanted = [Assignment(TOPIC_ID, 0, D2), Assignment(TOPIC_ID, 1, D1)]
    records = assign(image, image.brokers[1], wanted, one)
    assert records == [PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, directories=[D2])]
    partition = after(image, records).topics["t"].partitions[0]
    assert (partition.directories, partition.leader_epoch, partition.partition_epoch) == (
        (D2,), 0, 1
    )  # fmt: skip
    assert assign(after(image, records), image.brokers[1], wanted, one) == []


def test_other_replicas_keep_their_directories() -> None:
    image = cluster(UNASSIGNED_DIRECTORY, brokers=3)
    records = assign(image, image.brokers[1], [Assignment(TOPIC_ID, 0, D1)], one)
    assert after(image, records).topics["t"].partitions[0].directories == (D1, OTHER, OTHER)


@pytest.mark.parametrize(
    "assignment",
    [
        pytest.param(Assignment(bytes(16), 0, D1), id="unknown topic"),
        pytest.param(Assignment(TOPIC_ID, 9, D1), id="unknown partition"),
    ],
)
def test_what_is_unknown_is_passed_over(assignment: Assignment) -> None:
    image = cluster(UNASSIGNED_DIRECTORY)
    assert assign(image, image.brokers[1], [assignment], one) == []
    stranger = replace(image.brokers[1], id=8)
    assert assign(image, stranger, [Assignment(TOPIC_ID, 0, D1)], one) == []


def test_an_old_metadata_version_has_no_directories() -> None:
    image = cluster(UNASSIGNED_DIRECTORY, level=16)
    assert assign(image, image.brokers[1], [Assignment(TOPIC_ID, 0, D1)], one) == []


def test_a_failed_directory_costs_the_leadership_of_what_is_in_it() -> None:
    image = cluster(D1, D2, UNASSIGNED_DIRECTORY)
    records = directories_failed(image, image.brokers[1], [D2], one)
    assert records[-1] == BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, log_dirs=[D1])
    now = after(image, records)
    assert [p.leader for p in now.topics["t"].partitions.values()] == [1, -1, 1]
    assert now.topics["t"].partitions[1].elr == (1,)
    assert now.brokers[1].log_dirs == (D1,)
    assert directories_failed(now, now.brokers[1], [D2], one) == []


def test_another_broker_takes_over() -> None:
    image = cluster(D1, D2, brokers=3)
    now = after(image, directories_failed(image, image.brokers[1], [D1], one))
    moved, kept = now.topics["t"].partitions.values()
    assert (moved.leader, moved.isr) == (2, (2, 3))
    assert (kept.leader, kept.isr) == (1, (1, 2, 3))


def test_a_replica_reported_in_an_offline_directory_does_not_lead() -> None:
    image = cluster(D1)
    records = assign(image, image.brokers[1], [Assignment(TOPIC_ID, 0, OTHER)], one)
    partition = after(image, records).topics["t"].partitions[0]
    assert (partition.leader, partition.directories) == (-1, (OTHER,))


def test_a_replica_found_in_a_directory_that_is_online_leads_again() -> None:
    image = cluster(D1, D2)
    image = after(image, directories_failed(image, image.brokers[1], [D2], one))
    records = assign(image, image.brokers[1], [Assignment(TOPIC_ID, 1, D1)], one)
    (record,) = records
    assert isinstance(record, PartitionChangeRecord)
    assert (record.leader, record.directories) == (1, [D1])
    partition = after(image, records).topics["t"].partitions[1]
    assert (partition.leader, partition.isr, partition.elr) == (1, (1,), ())
