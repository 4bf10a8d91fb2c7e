"""Indexes of partitions: what they hold follows from the image alone, however it came about."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from random import Random

import pytest

from kbroker.controller.partitions.partition_index import PARTITIONS_PER_STEP, PartitionIndex
from kbroker.metadata.delta import MetadataDelta
from kbroker.metadata.image import MetadataImage, PartitionImage
from kbroker.model import MIGRATING_DIRECTORY, TopicIdPartition, Uuid
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.stored.metadata_records import (
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)

BROKERS = (1, 2, 3, 4)
DIRECTORIES = {broker: bytes([broker]) * 16 for broker in BROKERS}


def topic_id(number: int) -> Uuid:
    return bytes([200 + number]) * 16


def after(image: MetadataImage, records: Iterable[Message]) -> MetadataImage:
    delta = MetadataDelta(image)
    for record in records:
        delta.replay(record)
    return delta.apply(offset=image.offset + 1, epoch=1)


def follow(index: PartitionIndex, image: MetadataImage) -> int:
    """Take all steps; how many there were."""
    return len(deque(index.follow(image)))


def found(image: MetadataImage, holds: object) -> set[TopicIdPartition]:
    """Every partition for which holds(partition), by a look at all of them."""
    assert callable(holds)
    return {
        (each.topic_id, number)
        for each in image.topics.values()
        for number, partition in each.partitions.items()
        if holds(partition)
    }


def check(index: PartitionIndex, image: MetadataImage) -> None:
    for broker in BROKERS:
        assert set(index.in_isr(broker)) == found(image, lambda p, b=broker: b in p.isr)
        assert set(index.in_elr(broker)) == found(image, lambda p, b=broker: b in p.elr)
        leads = found(image, lambda p, b=broker: p.leader == b and b in p.isr)
        assert index.has_leaderships(broker) == bool(leads)
        directory = DIRECTORIES[broker]
        assert set(index.in_directory(directory)) == found(
            image, lambda p, d=directory: d in p.directories
        )
    assert set(index.leaderless()) == found(image, lambda p: p.leader == -1)
    assert set(index.imbalanced()) == found(image, lambda p: p.leader != p.replicas[0])
    assert set(index.reassigning()) == found(image, lambda p: p.adding or p.removing)
    assert index.in_directory(MIGRATING_DIRECTORY) == []


def new_partition(random: Random, topic: int, number: int) -> PartitionRecord:
    replicas = random.sample(BROKERS, random.randint(1, 4))
    isr = random.sample(replicas, random.randint(1, len(replicas)))
    return PartitionRecord(
        topic_id=topic_id(topic),
        partition_id=number,
        replicas=replicas,
        isr=isr,
        leader=random.choice([*isr, -1]),
        leader_epoch=0,
        partition_epoch=0,
        directories=[random.choice([DIRECTORIES[r], MIGRATING_DIRECTORY]) for r in replicas],
    )


def change(random: Random, topic: int, number: int, old: PartitionImage) -> PartitionChangeRecord:
    record = PartitionChangeRecord(topic_id=topic_id(topic), partition_id=number)
    replicas = list(old.replicas)
    match random.randrange(4):
        case 0:
            record.isr = random.sample(replicas, random.randint(0, len(replicas)))
            record.eligible_leader_replicas = [r for r in replicas if r not in record.isr]
        case 1:
            record.leader = random.choice([*replicas, -1])
        case 2:
            record.adding_replicas = random.sample(replicas, random.randint(0, 1))
        case _:
            record.directories = [DIRECTORIES[replica] for replica in replicas]
    return record


def some_records(random: Random, image: MetadataImage) -> list[Message]:
    """A batch over up to five topics: made, changed, grown, deleted."""
    number = random.randrange(5)
    topic = image.topics_by_id.get(topic_id(number))
    if topic is None:
        created = [new_partition(random, number, each) for each in range(random.randint(1, 20))]
        return [TopicRecord(name=f"t{number}", topic_id=topic_id(number)), *created]
    if random.random() < 0.1:
        return [RemoveTopicRecord(topic_id=topic_id(number))]
    if random.random() < 0.2:
        return [new_partition(random, number, len(topic.partitions))]
    chosen = random.sample(list(topic.partitions), random.randint(1, len(topic.partitions)))
    return [change(random, number, each, topic.partitions[each]) for each in chosen]


@pytest.mark.parametrize("seed", range(10))
def test_an_index_that_follows_equals_one_that_is_made_anew(seed: int) -> None:
    random = Random(seed)
    image = MetadataImage()
    index = PartitionIndex(image)
    made_late = PartitionIndex(image)
    check(index, image)
    for step in range(60):
        image = after(image, some_records(random, image))
        follow(index, image)
        follow(made_late, image)
        check(index, image)
        check(PartitionIndex(image), image)
        if step == 30:
            check(made_late, image)
    check(made_late, image)


def test_the_partitions_of_a_topic_are_in_order() -> None:
    random = Random(1)
    records = [new_partition(random, 0, number) for number in range(300)]
    image = after(MetadataImage(), [TopicRecord(name="t", topic_id=topic_id(0)), *records])
    expected = [(topic_id(0), each.partition_id) for each in records if 2 in each.isr]
    assert PartitionIndex(image).in_isr(2) == expected


def test_a_large_topic_is_followed_in_steps() -> None:
    random = Random(1)
    index = PartitionIndex(MetadataImage())
    index.in_isr(1)
    count = 3 * PARTITIONS_PER_STEP
    records = [new_partition(random, 0, number) for number in range(count)]
    image = after(MetadataImage(), [TopicRecord(name="t", topic_id=topic_id(0)), *records])
    assert follow(index, image) == 3
    assert len(index.in_isr(1)) == sum(1 in each.isr for each in records)


def test_an_image_that_is_equal_is_adopted() -> None:
    """The index stays, and what is made later is made of the adopted one."""
    random = Random(3)
    records = [TopicRecord(name="t", topic_id=topic_id(0)), new_partition(random, 0, 0)]
    ours, same = after(MetadataImage(), records), after(MetadataImage(), records)
    index = PartitionIndex(MetadataImage())
    index.in_isr(1)
    follow(index, ours)
    index.adopt(same)
    check(index, same)
    grown = after(same, [new_partition(random, 0, 1)])
    follow(index, grown)
    check(index, grown)
