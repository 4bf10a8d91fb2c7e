"""The local controller channel: whose answers wait for this broker, and whose do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbroker.broker.controller_channel import LocalControllerChannel
from kbroker.controller.configs.configs import Alteration, Alterations, AlteredResource
from kbroker.controller.partitions.directories import Assignment
from kbroker.model import ClientIdentity
from kbroker.ports import Deferred, broker_stopping
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from kbroker.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    UpdateFeaturesRequest,
)
from kbroker.settings.tables.keys import ResourceType
from tests.controller.held_log import Node
from tests.controller.test_service_turns import PARTITIONS, SlicedNode


class World(Node):
    """A node whose broker carries out images when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self._hosting: list[Deferred[None]] = []
        self.channel = LocalControllerChannel(self.service, when_applied=self._applied)
        self.epoch = self.loader.image.brokers[1].epoch

    def _applied(self) -> Deferred[None]:
        applied: Deferred[None] = Deferred()
        self._hosting.append(applied)
        return applied

    def host(self) -> None:
        """The broker has carried out every image so far."""
        hosting, self._hosting = self._hosting, []
        for applied in hosting:
            applied.resolve(None)

    def stop_hosting(self) -> None:
        """The broker stops before it has carried out the images."""
        hosting, self._hosting = self._hosting, []
        for applied in hosting:
            applied.fail(broker_stopping())


def creation(name: str) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    return CreateTopicsRequest(topics=[topic])


CLIENT = ClientIdentity("User:alice", "10.0.0.1")
ALTERED = AlteredResource(ResourceType.TOPIC, "there", (Alteration("retention.ms", 0, "5"),))
MORE = CreatePartitionsRequest(
    topics=[CreatePartitionsRequest.CreatePartitionsTopic(name="there", count=2, assignments=None)]
)
UPDATE = UpdateFeaturesRequest(
    feature_updates=[
        UpdateFeaturesRequest.FeatureUpdateKey(
            feature="group.version", max_version_level=0, upgrade_type=2
        )
    ]
)


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda channel: channel.create_topics(creation("t")), id="CreateTopics"),
        pytest.param(
            lambda channel: channel.delete_topics(
                DeleteTopicsRequest(topic_names=["there"]), api_version=5
            ),
            id="DeleteTopics",
        ),
        pytest.param(lambda channel: channel.create_partitions(MORE), id="CreatePartitions"),
        pytest.param(lambda channel: channel.ensure_topic("t"), id="automatic topic"),
        pytest.param(
            lambda channel: channel.ensure_internal_topic("__consumer_offsets"),
            id="internal topic",
        ),
        pytest.param(
            lambda channel: channel.request_internal_topic("__consumer_offsets"),
            id="internal topic that a client needs",
        ),
        pytest.param(
            lambda channel: channel.alter_configs(Alterations([ALTERED], incremental=True), CLIENT),
            id="IncrementalAlterConfigs",
        ),
        pytest.param(
            lambda channel: channel.update_features(UPDATE, api_version=1), id="UpdateFeatures"
        ),
    ],
)
def test_clients_are_answered_when_this_broker_has_carried_out_the_change(
    ask: Callable[[LocalControllerChannel], Deferred[object]],
) -> None:
    world = World()
    world.create("there")
    world.commit()
    before = world.loader.image
    answer = ask(world.channel)
    world.host()
    assert not answer.done
    world.commit()
    assert world.loader.image is not before
    assert not answer.done
    world.host()
    assert answer.done


def test_the_controllers_answer_waits_for_no_broker() -> None:
    world = World()
    by_controller = world.create("t")
    by_broker = world.channel.ensure_topic("t")
    world.commit()
    assert by_controller.value.topics[0].error_code == ErrorCode.NONE
    assert not by_broker.done
    world.host()
    assert by_broker.value is ErrorCode.NONE


def test_an_answer_without_a_change_waits_for_what_this_broker_has_still_to_do() -> None:
    world = World()
    world.create("t")
    world.commit()
    there = world.channel.ensure_topic("t")
    assert not there.done
    world.host()
    assert there.value is ErrorCode.NONE


def test_a_brokers_own_requests_do_not_wait_for_its_hosting() -> None:
    world = World()
    block = world.channel.allocate_producer_ids(world.epoch)
    assigned = world.channel.assign_directories(world.epoch, [])
    beat = world.channel.heartbeat(world.epoch, want_fence=False, want_shut_down=False)
    request = AlterPartitionRequest(broker_id=1, broker_epoch=world.epoch)
    altered = world.channel.alter_partition(request)
    world.commit()
    assert (block.value.first_id, block.value.count) == (0, 1000)
    assert assigned.done
    assert not beat.value.is_fenced
    assert altered.value.topics == []


def test_each_directory_has_its_own_outcome() -> None:
    world = World()
    world.create("t")
    world.commit()
    topic_id = world.loader.image.topics["t"].topic_id
    assignments = [Assignment(b"u" * 16, 0, b"d" * 16), Assignment(topic_id, 0, b"d" * 16)]
    assigned = world.channel.assign_directories(world.epoch, assignments)
    world.commit()
    assert assigned.value == [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.NONE]


def test_an_answer_that_waits_for_this_broker_fails_when_it_stops() -> None:
    world = World()
    created = world.channel.create_topics(creation("t"))
    world.commit()
    assert not created.done
    world.stop_hosting()
    assert created.error is not None and created.error.code is ErrorCode.BROKER_NOT_AVAILABLE


def test_what_waits_fails_when_the_controller_loses_leadership() -> None:
    world = World()
    created = world.channel.create_topics(creation("t"))
    block = world.channel.allocate_producer_ids(world.epoch)
    world.service.resign()
    for waiting in (created, block):
        assert waiting.error is not None and waiting.error.code is ErrorCode.NOT_CONTROLLER
    world.host()
    with pytest.raises(KafkaError):
        world.channel.create_topics(creation("t"))


def test_elections_and_reassignments_on_a_cluster_of_one_broker() -> None:
    """Nothing can change there: the answers say why, and the list, which changes nothing, does not
    wait for this broker.
    """
    world = World()
    world.create("there")
    world.commit()
    named = ElectLeadersRequest.TopicPartitions(topic="there", partitions=[0])
    elected = world.channel.elect_leaders(ElectLeadersRequest(topic_partitions=[named]))
    kind = AlterPartitionReassignmentsRequest
    moved = kind.ReassignablePartition(partition_index=0, replicas=[2])
    reassigned = world.channel.alter_reassignments(
        kind(topics=[kind.ReassignableTopic(name="there", partitions=[moved])])
    )
    assert not elected.done and not reassigned.done
    listed = world.channel.list_reassignments(ListPartitionReassignmentsRequest())
    assert listed.value.topics == []
    world.host()
    (topic,) = elected.value.replica_election_results
    assert topic.partition_result[0].error_code == ErrorCode.ELECTION_NOT_NEEDED
    (answered,) = reassigned.value.responses
    assert answered.partitions[0].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize(
    "ask",
    [
        lambda channel: channel.create_topics(CreateTopicsRequest(timeout_ms=50)),
        lambda channel: channel.delete_topics(DeleteTopicsRequest(timeout_ms=50), api_version=6),
        lambda channel: channel.create_partitions(CreatePartitionsRequest(timeout_ms=50)),
        lambda channel: channel.elect_leaders(ElectLeadersRequest(timeout_ms=50)),
        lambda channel: channel.alter_reassignments(
            AlterPartitionReassignmentsRequest(timeout_ms=50)
        ),
    ],
)
def test_what_waited_longer_than_its_client_is_not_carried_out(
    ask: Callable[[LocalControllerChannel], Deferred[object]],
) -> None:
    node = SlicedNode()
    channel = LocalControllerChannel(node.service, when_applied=Deferred)
    node.create("big", PARTITIONS)  # takes turns
    late = ask(channel)
    node.timers.advance(51)
    node.finish()
    assert late.error is not None and late.error.code is ErrorCode.REQUEST_TIMED_OUT
