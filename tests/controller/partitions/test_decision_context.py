"""Settings and rules that decisions about partitions rest on."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest
from msgspec.structs import replace

from kbroker.controller.partitions.decision_context import DecisionContext
from kbroker.controller.partitions.partition_change import Election
from kbroker.controller.partitions.partition_index import PartitionIndex
from kbroker.metadata.configs import TopicSettings
from kbroker.metadata.image import (
    TOPIC_RESOURCE,
    BrokerRegistration,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from kbroker.metadata.layered_map import LayeredMap
from kbroker.model import InvariantError
from kbroker.ports import at_once
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.broker import BrokerConfig

D1, D2 = b"1" * 16, b"2" * 16
TOPIC_ID = b"t" * 16


def broker(number: int, *, fenced: bool = False) -> BrokerRegistration:
    return BrokerRegistration(number, 10 + number, bytes(16), {}, fenced=fenced, log_dirs=(D1,))


def context(
    partition: PartitionImage,
    *brokers: BrokerRegistration,
    file: Mapping[str, str] = MappingProxyType({}),
    **configs: str,
) -> DecisionContext:
    topic = TopicImage("t", TOPIC_ID, {0: partition})
    values = {name.replace("_", "."): value for name, value in configs.items()}
    image = MetadataImage(
        brokers={each.id: each for each in brokers},
        topics=LayeredMap({"t": topic}),
        topics_by_id=LayeredMap({TOPIC_ID: topic}),
        configs=LayeredMap({(TOPIC_RESOURCE, "t"): values}),
        features={"metadata.version": 30, "eligible.leader.replicas.version": 1},
    )
    settings = TopicSettings(BrokerConfig.from_properties({"node.id": "1", **file}), 1)
    return DecisionContext(image, PartitionIndex(image), settings)


TWO = PartitionImage(replicas=(1, 2), directories=(D1, D1), isr=(1, 2), leader=1)


@pytest.mark.parametrize(("configured", "expected"), [("1", 1), ("2", 2), ("3", 2)])
def test_min_insync_replicas_is_at_most_the_replication_factor(
    configured: str, expected: int
) -> None:
    decision = context(TWO, min_insync_replicas=configured)
    assert decision.min_insync_replicas(decision.image.topics["t"]) == expected


def test_a_topic_without_settings_has_the_brokers() -> None:
    file = {"min.insync.replicas": "2", "unclean.leader.election.enable": "true"}
    decision = context(TWO, file=file)
    assert decision.min_insync_replicas(decision.image.topics["t"]) == 2
    assert decision.is_unclean_election_enabled("t")
    own = {"min_insync_replicas": "1", "unclean_leader_election_enable": "false"}
    decision = context(TWO, file=file, **own)
    assert decision.min_insync_replicas(decision.image.topics["t"]) == 1
    assert not decision.is_unclean_election_enabled("t")


@pytest.mark.parametrize("allowed", ["true", "false"])
def test_an_election_is_unclean_where_the_topic_allows_it(allowed: str) -> None:
    decision = context(TWO, unclean_leader_election_enable=allowed)
    topic = decision.image.topics["t"]
    assert decision.change(topic, 0).election is Election.ONLINE
    expected = Election.UNCLEAN if allowed == "true" else Election.ONLINE
    assert decision.change(topic, 0, configured_election=True).election is expected


@pytest.mark.parametrize(
    ("registered", "leader"),
    [
        pytest.param(broker(2), 2, id="active"),
        pytest.param(broker(2, fenced=True), -1, id="fenced"),
        pytest.param(replace(broker(2), in_controlled_shutdown=True), -1, id="shutting down"),
        pytest.param(replace(broker(2), log_dirs=(D2,)), -1, id="its directory is offline"),
        pytest.param(broker(3), -1, id="not registered"),
    ],
)
def test_which_broker_may_lead(registered: BrokerRegistration, leader: int) -> None:
    decision = context(TWO, broker(1), registered)
    (record,) = at_once(decision.leader_and_isr_updates([(TOPIC_ID, 0)], leaving=1))
    assert (record.leader, record.isr) == (leader, [2])


def test_a_broker_that_joins_may_lead_while_the_image_has_it_fenced() -> None:
    decision = context(replace(TWO, leader=-1), broker(1, fenced=True))
    assert at_once(decision.leader_and_isr_updates([(TOPIC_ID, 0)])) == []
    (record,) = at_once(decision.leader_and_isr_updates([(TOPIC_ID, 0)], joining=1))
    assert record.leader == 1


def test_a_last_known_leader_that_is_no_replica_does_not_lead() -> None:
    left = PartitionImage(replicas=(2,), directories=(D1,), isr=(), leader=-1, last_known_elr=(1,))
    decision = context(left, broker(1))
    assert at_once(decision.leader_and_isr_updates([(TOPIC_ID, 0)])) == []


def test_a_broker_that_is_not_registered_with_that_epoch() -> None:
    decision = context(TWO, broker(1))
    assert decision.registered(1, 11).id == 1
    for number, epoch in ((1, 12), (2, 12)):
        with pytest.raises(KafkaError) as caught:
            decision.registered(number, epoch)
        assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_a_partition_that_only_an_index_has() -> None:
    with pytest.raises(InvariantError):
        at_once(context(TWO).leader_and_isr_updates([(b"u" * 16, 0)]))
