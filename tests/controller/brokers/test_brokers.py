"""Registration, fencing and restarts: the very records Apache Kafka 4.3.1 wrote in the fixtures."""

from __future__ import annotations

from typing import cast

import pytest
from msgspec.structs import replace

from kbroker.controller.brokers.brokers import clean_up_incarnation, fence, unregister
from kbroker.controller.partitions.decision_context import DecisionContext
from kbroker.controller.partitions.partition_index import PartitionIndex
from kbroker.metadata.configs import TopicSettings
from kbroker.metadata.image import NO_LEADER, PartitionImage, TopicImage
from kbroker.metadata.layered_map import LayeredMap
from kbroker.metadata.records import decode_record
from kbroker.ports import at_once
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.stored.metadata_records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
)
from kbroker.settings.broker import BrokerConfig
from tests.controller.cluster import Cluster, topic
from tests.controller.decisions import (
    Case,
    compare,
    decision_context,
    expected_records,
    record_fields,
)


def partition(cluster: Cluster, name: str = "t", index: int = 0) -> PartitionImage:
    found = cluster.image.partition(name, index)
    assert found is not None
    return found


def written(cluster: Cluster, since: int) -> list[object]:
    return [decode_record(data) for data in cluster.log[since:]]


def test_controlled_shutdown_then_clean_restart() -> None:
    """Offsets 154-177 and 180-203 of the fixture: the leader epoch goes from 0 to 2."""
    cluster = Cluster()
    cluster.create(topic("t"))
    topic_id = cluster.image.topics["t"].topic_id
    epoch, since = cluster.epoch_of(1), len(cluster.log)
    cluster.shut_down(1)
    assert written(cluster, since) == [
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=epoch, in_controlled_shutdown=1),
        PartitionChangeRecord(
            partition_id=0,
            topic_id=topic_id,
            isr=[],
            leader=-1,
            eligible_leader_replicas=[1],
            last_known_elr=[1],
        ),
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=epoch, fenced=1),
    ]
    assert (partition(cluster).leader, partition(cluster).leader_epoch) == (NO_LEADER, 1)
    since = len(cluster.log)
    again = cluster.register(1, previous=epoch)
    cluster.beat(1)
    assert written(cluster, since)[1:] == [
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=again, fenced=-1),
        PartitionChangeRecord(
            partition_id=0,
            topic_id=topic_id,
            isr=[1],
            leader=1,
            eligible_leader_replicas=[],
            last_known_elr=[],
        ),
    ]
    assert (partition(cluster).leader, partition(cluster).leader_epoch) == (1, 2)
    assert partition(cluster).leader_recovery_state == 0


def test_unclean_restart() -> None:
    """Offsets 271-315 of the recovered fixture: out of the ISR first, then back, recovering."""
    cluster = Cluster()
    cluster.create(topic("t"))
    topic_id = cluster.image.topics["t"].topic_id
    since = len(cluster.log)
    epoch = cluster.register(1)
    assert epoch == since  # of the batch, not of the record in it
    cluster.beat(1)
    records = written(cluster, since)
    assert records[0] == PartitionChangeRecord(
        partition_id=0, topic_id=topic_id, isr=[], leader=-1, last_known_elr=[1]
    )
    assert isinstance(records[1], RegisterBrokerRecord)
    assert records[3] == PartitionChangeRecord(
        partition_id=0,
        topic_id=topic_id,
        isr=[1],
        leader=1,
        leader_recovery_state=1,
        last_known_elr=[],
    )
    assert partition(cluster).leader_epoch == 2


def test_without_elr_the_last_replica_stays_in_the_isr() -> None:
    cluster = Cluster(elr=False)
    cluster.create(topic("t"))
    cluster.shut_down(1)
    assert (partition(cluster).isr, partition(cluster).leader) == ((1,), NO_LEADER)
    cluster.register(1)
    cluster.beat(1)
    assert (partition(cluster).isr, partition(cluster).leader) == ((1,), 1)
    assert partition(cluster).leader_epoch == 2


def test_another_replica_takes_over() -> None:
    cluster = Cluster(brokers=(1, 2, 3))
    cluster.create(
        topic("t", assignments=[[1, 2, 3], [2, 1, 3]], configs={"min.insync.replicas": "2"})
    )
    cluster.shut_down(1)
    assert (partition(cluster).leader, partition(cluster).isr) == (2, (2, 3))
    assert partition(cluster, index=1).leader == 2
    assert partition(cluster, index=1).isr == (2, 3)
    assert partition(cluster).elr == ()
    cluster.shut_down(2)
    assert (partition(cluster).leader, partition(cluster).isr) == (3, (3,))
    assert partition(cluster).elr == (2,)
    cluster.shut_down(3)
    assert (partition(cluster).leader, partition(cluster).isr) == (NO_LEADER, ())
    assert set(partition(cluster).elr) == {2, 3}
    cluster.register(2, previous=cluster.epoch_of(2))
    cluster.beat(2)
    assert (partition(cluster).leader, partition(cluster).isr) == (2, (2,))
    assert partition(cluster).leader_recovery_state == 0


def test_an_isr_member_that_lost_its_tail_leads_only_as_the_last_known_leader() -> None:
    cluster = Cluster(brokers=(1, 2))
    cluster.create(topic("t", assignments=[[1, 2]], configs={"min.insync.replicas": "2"}))
    cluster.shut_down(2)
    cluster.shut_down(1)
    assert set(partition(cluster).elr) == {1, 2}
    cluster.register(2)  # uncleanly
    cluster.beat(2)
    assert partition(cluster).elr == (1,)
    assert partition(cluster).leader == NO_LEADER


def test_an_old_epoch_is_refused() -> None:
    with pytest.raises(KafkaError) as caught:
        Cluster().controller.allocate_producer_ids(1, 0)
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_kafkas_clean_up_of_an_incarnation() -> None:
    def decide(case: Case) -> object:
        fields, context = case["request"], decision_context(case["state"])
        clean = fields["cleanShutdown"]
        steps = clean_up_incarnation(context, fields["brokerId"], clean=clean)
        return record_fields(at_once(steps))

    compare(
        "controller",
        250,
        decide,
        expected_records,
        select=lambda case: case["api"] == "uncleanShutdown",
    )


def test_kafkas_unregistrations() -> None:
    def decide(case: Case) -> object:
        context = decision_context(case["state"])
        try:
            return record_fields(at_once(unregister(context, case["request"]["brokerId"])))
        except KafkaError as error:
            return error.code.name

    compare(
        "controller",
        150,
        decide,
        lambda case: case["exception"] if "exception" in case else expected_records(case),
        select=lambda case: case["api"] == "UnregisterBroker",
    )


def test_an_unregistered_broker_keeps_its_replicas() -> None:
    cluster = Cluster(brokers=(1, 2))
    cluster.create(topic("t", assignments=[[1, 2]]))
    cluster.run(cluster.controller.unregister_broker(1))
    assert list(cluster.image.brokers) == [2]
    assert (partition(cluster).replicas, partition(cluster).isr) == ((1, 2), (2,))
    assert partition(cluster).leader == 2


class CountedTopics(dict[bytes, TopicImage]):
    """Topics by id that count how many are looked up."""

    looked_up = 0

    def get(self, key: bytes, default: TopicImage | None = None) -> TopicImage | None:  # type: ignore[override]  # as a dict's get
        self.looked_up += 1
        return super().get(key, default)


def test_fencing_looks_at_the_brokers_own_partitions_only() -> None:
    cluster = Cluster(brokers=(1, 2, 3))
    cluster.create(*(topic(f"t{i}", assignments=[[1, 2]]) for i in range(50)))
    cluster.create(*(topic(f"u{i}", assignments=[[3, 2]]) for i in range(3)))
    image = cluster.image
    counted = CountedTopics(image.topics_by_id)
    index = PartitionIndex(image)
    index.in_isr(3)
    settings = TopicSettings(BrokerConfig.from_properties({"node.id": "1"}), 1)
    counting = replace(image, topics_by_id=cast(LayeredMap[bytes, TopicImage], counted))
    context = DecisionContext(counting, index, settings)
    assert len(at_once(fence(context, image.brokers[3]))) == 4
    assert counted.looked_up == 3
