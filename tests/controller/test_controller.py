"""The controller's own rules: how a cluster begins, what a heartbeat leads to, whose epoch holds,
internal topics, and the bound of one request's records.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbroker.controller.controller import Controller
from kbroker.controller.result import MAX_RECORDS_PER_OPERATION, DecisionSteps
from kbroker.ports import at_once
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import (
    AlterPartitionRequest,
    AssignReplicasToDirsRequest,
    BrokerHeartbeatRequest,
)
from kbroker.protocol.messages.stored.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    NoOpRecord,
)
from tests.controller.cluster import Cluster, topic

OFFSETS = "__consumer_offsets"


def test_a_decision_changes_nothing() -> None:
    cluster = Cluster()
    before = cluster.image
    result = cluster.controller.ensure_topic("t")
    assert result.records and cluster.image is before
    cluster.run(result)
    assert "t" in cluster.image.topics


def test_replay_moves_the_image_to_the_last_record() -> None:
    controller = Cluster().controller
    image = controller.replay([NoOpRecord(), NoOpRecord()], offset=77, epoch=3)
    assert image is controller.image
    assert (image.offset, image.epoch) == (77, 3)


@pytest.mark.parametrize(
    ("level", "has_config"),
    [
        pytest.param(1, True, id="ELR needs the cluster's min.insync.replicas"),
        pytest.param(0, False, id="without ELR"),
    ],
)
def test_a_cluster_begins_with_one_metadata_transaction(level: int, has_config: bool) -> None:
    record = FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=level)
    records = Cluster(min_insync_replicas="2").controller.bootstrap([record]).records
    assert isinstance(records[0], BeginTransactionRecord) and records[1] is record
    assert isinstance(records[-1], EndTransactionRecord)
    values = [(each.name, each.value) for each in records if isinstance(each, ConfigRecord)]
    assert values == ([("min.insync.replicas", "2")] if has_config else [])


def test_the_end_of_a_transaction_that_a_predecessor_left_open() -> None:
    assert isinstance(Cluster().controller.abort_transaction(), AbortTransactionRecord)


Step = Callable[[Controller, int, int], DecisionSteps[object]]


@pytest.mark.parametrize(
    "step",
    [
        lambda controller, number, epoch: controller.broker_heartbeat(
            BrokerHeartbeatRequest(
                broker_id=number,
                broker_epoch=epoch,
                current_metadata_offset=0,
                want_fence=False,
                want_shut_down=False,
            )
        ),
        lambda controller, number, epoch: controller.alter_partition(
            AlterPartitionRequest(broker_id=number, broker_epoch=epoch)
        ),
        lambda controller, number, epoch: controller.assign_replicas_to_directories(
            AssignReplicasToDirsRequest(broker_id=number, broker_epoch=epoch)
        ),
        lambda controller, number, epoch: controller.assign_directories(number, epoch, []),
        lambda controller, number, epoch: controller.directories_failed(number, epoch, []),
    ],
    ids=["heartbeat", "alter partition", "assign replicas", "assign", "failed directories"],
)
def test_the_epoch_of_the_registration_holds(step: Step) -> None:
    cluster = Cluster()
    epoch = cluster.epoch_of(1)
    at_once(step(cluster.controller, 1, epoch))
    for number, wrong in ((1, epoch - 1), (1, epoch + 1), (1, -1), (2, epoch)):
        with pytest.raises(KafkaError) as caught:
            at_once(step(cluster.controller, number, wrong))
        assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_a_topic_is_made_once() -> None:
    cluster = Cluster(num_partitions="3")
    assert cluster.run(cluster.controller.ensure_topic("t")) is ErrorCode.NONE
    assert len(cluster.image.topics["t"].partitions) == 3
    again = cluster.controller.ensure_topic("t")
    assert (list(again.records), again.response) == ([], ErrorCode.NONE)
    refused = cluster.controller.ensure_topic("a/b")
    assert (list(refused.records), refused.response) == ([], ErrorCode.INVALID_TOPIC_EXCEPTION)


@pytest.mark.parametrize(
    ("brokers", "settings", "replicas"),
    [
        pytest.param((1,), {}, 1, id="one broker"),
        pytest.param((1, 2), {}, 1, id="kbroker's default is one"),
        pytest.param((1, 2, 3), {"offsets_topic_replication_factor": "2"}, 2, id="configured"),
    ],
)
def test_replicas_of_an_internal_topic(
    brokers: tuple[int, ...], settings: dict[str, str], replicas: int
) -> None:
    cluster = Cluster(brokers=brokers, offsets_topic_num_partitions="2", **settings)
    assert cluster.run(cluster.controller.ensure_internal_topic(OFFSETS)) is ErrorCode.NONE
    partitions = cluster.image.topics[OFFSETS].partitions
    assert [len(each.replicas) for each in partitions.values()] == [replicas] * 2
    assert cluster.image.topic_configs(OFFSETS)["cleanup.policy"] == "compact"


def test_a_configured_number_of_replicas_is_not_lowered() -> None:
    cluster = Cluster(offsets_topic_replication_factor="2")
    result = cluster.controller.ensure_internal_topic(OFFSETS)
    assert result.response is ErrorCode.INVALID_REPLICATION_FACTOR
    assert not result.records


def test_a_name_that_is_no_internal_topics() -> None:
    result = Cluster().controller.ensure_internal_topic("__no_such")
    assert (list(result.records), result.response) == ([], ErrorCode.INVALID_TOPIC_EXCEPTION)


def test_no_request_writes_more_records_than_kafkas_bound() -> None:
    cluster = Cluster()
    # One record for the topic, one for each partition.
    most = topic("t", MAX_RECORDS_PER_OPERATION - 1)
    assert cluster.create(most, validate_only=False).topics[0].error_code == 0
    with pytest.raises(KafkaError) as caught:
        cluster.create(topic("u", MAX_RECORDS_PER_OPERATION))
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
