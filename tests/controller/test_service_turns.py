"""Operations that the controller's service divides into turns of the loop, or into batches."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from kbroker.controller import service
from kbroker.controller.controller import RECORDS_PER_STEP, Controller, ControllerResult
from kbroker.controller.partitions import partition_index
from kbroker.controller.partitions.partition_index import PartitionIndex
from kbroker.controller.partitions.topics import PARTITIONS_PER_STEP
from kbroker.controller.result import CHANGES_PER_STEP
from kbroker.metadata.records import decode_record
from kbroker.model import InvariantError
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kbroker.protocol.messages.cluster import BrokerHeartbeatRequest, UpdateFeaturesRequest
from kbroker.protocol.messages.stored.metadata_records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
)
from kbroker.replication.time_slices import TimeSlices
from tests.controller.cluster import heartbeat
from tests.controller.held_log import Node, beat, register
from tests.replication.test_time_slices import Ticks, Turns

PARTITIONS = 20 * RECORDS_PER_STEP


class SlicedNode(Node):
    """Its operations take a turn for every few steps."""

    def __init__(self) -> None:
        self.turns = Turns()
        super().__init__(slices=TimeSlices(self.turns, seconds=0.004, clock=Ticks()))

    def finish(self) -> int:
        count = 0
        while self.turns.due:
            self.turns.turn()
            count += 1
        return count


def code(created: Deferred[CreateTopicsResponse]) -> int:
    return created.value.topics[0].error_code


def test_a_large_operation_takes_turns_and_the_next_one_sees_it() -> None:
    node = SlicedNode()
    before = node.controller.image
    big, again, small = node.create("big", PARTITIONS), node.create("big"), node.create("small")
    assert node.controller.image is before and not node.log.batches
    assert node.finish() >= 2 * PARTITIONS / RECORDS_PER_STEP / 5
    assert [len(records) for _, records in node.log.batches] == [PARTITIONS + 1, 2]
    assert not big.done and not again.done and not small.done
    node.commit()
    assert (code(big), code(small)) == (ErrorCode.NONE, ErrorCode.NONE)
    assert code(again) == ErrorCode.TOPIC_ALREADY_EXISTS
    assert node.controller.image is node.loader.image
    assert len(node.loader.image.topics["big"].partitions) == PARTITIONS


def test_what_is_submitted_when_the_service_closes_is_appended() -> None:
    node = SlicedNode()
    big, small = node.create("big", PARTITIONS), node.create("small")
    node.turns.turn()
    node.service.close()
    node.commit()
    assert (code(big), code(small)) == (ErrorCode.NONE, ErrorCode.NONE)
    with pytest.raises(KafkaError):
        node.create("more")


@pytest.mark.parametrize("turns", range(12))
def test_what_is_under_way_fails_when_leadership_is_lost(turns: int) -> None:
    """And is not half in the image of the next epoch."""
    node = SlicedNode()
    topics = set(node.loader.image.topics)
    big, small = node.create("big", PARTITIONS), node.create("small")
    for _ in range(turns):
        if node.turns.due:
            node.turns.turn()
    node.log.batches.clear()  # they are not committed
    node.log.next_offset = node.loader.image.offset + 1
    node.service.resign()
    node.finish()
    assert not node.log.batches
    for failed in (big, small):
        assert failed.error is not None and failed.error.code is ErrorCode.NOT_CONTROLLER
    node.service.activate(open_transaction=False)
    created = node.create("new")
    node.finish()
    node.commit()
    assert code(created) == ErrorCode.NONE
    assert set(node.loader.image.topics) == topics | {"new"}


def test_a_leader_that_has_resigned_is_not_the_controller_before_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It keeps its epoch, and is told once the batches before are replayed."""
    node = SlicedNode()

    def check(level: int) -> None:
        raise InvariantError("only a leader changes the voters")

    monkeypatch.setattr(node.log, "check_kraft_upgrade", check)
    big = node.create("big", PARTITIONS)
    node.turns.turn()
    node.log.is_leader = False
    node.finish()
    assert not node.log.batches
    assert big.error is not None and big.error.code is ErrorCode.NOT_CONTROLLER
    update = UpdateFeaturesRequest.FeatureUpdateKey(
        feature="kraft.version", max_version_level=0, upgrade_type=2
    )
    request = UpdateFeaturesRequest(feature_updates=[update])
    operations: list[Callable[[], Deferred[Any]]] = [
        lambda: node.service.update_features(request, api_version=2),
        lambda: beat(node, 1),
    ]
    for operation in operations:
        with pytest.raises(KafkaError) as caught:
            operation()
        assert caught.value.code is ErrorCode.NOT_CONTROLLER


def test_an_operation_that_fails_later_fails_its_answer() -> None:
    node = SlicedNode()
    node.create("big", PARTITIONS)

    def fail(controller: Controller, now_ms: int) -> Any:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "no")

    failed: Deferred[None] = node.service.submit(fail)
    assert not failed.done
    node.finish()
    assert failed.error is not None and failed.error.code is ErrorCode.INVALID_REQUEST
    with pytest.raises(KafkaError, match="no"):
        node.service.submit(fail)


def test_an_operation_that_waits_too_long_is_not_carried_out() -> None:
    node = SlicedNode()
    big = node.create("big", PARTITIONS)
    decided: list[int] = []

    def decide(controller: Controller, now_ms: int) -> ControllerResult[None]:
        decided.append(len(decided))
        return ControllerResult([], None)

    late = node.service.submit(decide, timeout_ms=99)
    node.timers.advance(100)
    patient = node.service.submit(decide, timeout_ms=0)
    node.finish()
    node.commit()
    assert code(big) == ErrorCode.NONE
    assert late.error is not None and late.error.code is ErrorCode.REQUEST_TIMED_OUT
    assert patient.value is None and decided == [0]


def test_who_waits_too_long_is_answered_before_its_turn() -> None:
    """A broker whose heartbeat waits sends no other one, and its session runs out."""
    node = SlicedNode()
    big = node.create("big", PARTITIONS)
    late = beat(node, 1)
    node.timers.advance(999)
    assert not late.done
    node.timers.advance(1)
    assert late.error is not None and late.error.code is ErrorCode.REQUEST_TIMED_OUT
    assert not big.done and node.turns.due
    in_time = beat(node, 1)
    offset = node.log.next_offset
    node.finish()
    node.timers.advance(60_000)
    node.commit()
    assert code(big) == ErrorCode.NONE and not in_time.value.is_fenced
    assert node.log.next_offset == offset + PARTITIONS + 1


def test_a_heartbeat_that_waited_too_long_changes_nothing() -> None:
    """The broker has asked for something else since."""
    node = SlicedNode()
    node.create("big", PARTITIONS)
    image = node.controller.image
    request = BrokerHeartbeatRequest(
        broker_id=1,
        broker_epoch=image.brokers[1].epoch,
        current_metadata_offset=image.offset,
        want_fence=True,
    )
    late = node.service.heartbeat(request)
    node.timers.time_ms += 1001  # the loop was stalled: no timer has fired
    node.finish()
    node.commit()
    assert late.error is not None and late.error.code is ErrorCode.REQUEST_TIMED_OUT
    assert not node.loader.image.brokers[1].fenced


def test_a_topic_of_very_many_partitions_is_decided_in_steps() -> None:
    """9,990 partitions took 48 ms in one turn. No other operation is carried out between."""
    turns = Turns()
    node = Node(slices=TimeSlices(turns, seconds=0.0, clock=Ticks()))
    while turns.due:
        turns.turn()
    topic = CreateTopicsRequest.CreatableTopic(
        name="wide", num_partitions=10 * PARTITIONS_PER_STEP, replication_factor=1
    )
    request = CreateTopicsRequest(topics=[topic])
    decided: list[str] = []

    def create(
        controller: Controller, now_ms: int
    ) -> Generator[None, None, ControllerResult[CreateTopicsResponse]]:
        result = yield from controller.create_topics_in_steps(request)
        decided.append("wide")
        return result

    def other(controller: Controller, now_ms: int) -> ControllerResult[None]:
        decided.append("other")
        return ControllerResult([], None)

    node.service.submit(create)
    node.service.submit(other)
    steps = 0
    while not decided:
        turns.turn()
        steps += 1
    assert steps >= 9
    while turns.due:
        turns.turn()
    assert decided == ["wide", "other"]
    assert len(node.controller.image.topics["wide"].partitions) == 10 * PARTITIONS_PER_STEP


def test_leadership_that_is_lost_while_a_topic_is_decided() -> None:
    turns = Turns()
    node = Node(slices=TimeSlices(turns, seconds=0.0, clock=Ticks()))
    while turns.due:
        turns.turn()
    topic = CreateTopicsRequest.CreatableTopic(
        name="wide", num_partitions=10 * PARTITIONS_PER_STEP, replication_factor=1
    )
    request = CreateTopicsRequest(topics=[topic])
    answer = node.service.submit(
        lambda controller, now_ms: controller.create_topics_in_steps(request)
    )
    turns.turn()
    written = len(node.log.batches)
    node.service.resign()
    while turns.due:
        turns.turn()
    assert answer.error is not None
    assert answer.error.code is ErrorCode.NOT_CONTROLLER
    assert len(node.log.batches) == written


FENCED_PARTITIONS = 10 * CHANGES_PER_STEP


def led_by_one_broker() -> tuple[Node, Turns]:
    """A node whose operations take a turn for each step, with two brokers and many partitions of
    the first.
    """
    turns = Turns()
    node = Node(slices=TimeSlices(turns, seconds=0.0, clock=Ticks()))

    def finish() -> None:
        while turns.due:
            turns.turn()
        node.commit()

    register(node, 2, 1)
    finish()
    beat(node, 1)
    beat(node, 2)
    finish()
    assignment = CreateTopicsRequest.CreatableReplicaAssignment
    topic = CreateTopicsRequest.CreatableTopic(
        name="wide",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            assignment(partition_index=index, broker_ids=[1, 2])
            for index in range(FENCED_PARTITIONS)
        ],
    )
    node.service.submit(
        lambda controller, _: controller.create_topics(CreateTopicsRequest(topics=[topic]))
    )
    finish()
    return node, turns


def test_a_broker_with_many_partitions_is_fenced_in_steps() -> None:
    """No other operation is carried out between, and the records are those of one decision."""
    node, turns = led_by_one_broker()
    before = node.controller.image
    node.service.submit(lambda controller, _: heartbeat(controller, 1, fence=True))
    later = node.create("later")
    pauses = 0
    while not node.log.batches:
        assert node.controller.image is before
        turns.turn()
        pauses += 1
    assert pauses >= FENCED_PARTITIONS // CHANGES_PER_STEP
    (_, records), *_ = node.log.batches
    kinds = [type(decode_record(each)) for each in records]
    assert kinds == [PartitionChangeRecord] * FENCED_PARTITIONS + [BrokerRegistrationChangeRecord]
    while turns.due:
        turns.turn()
    node.commit()
    assert later.value.topics[0].error_code == ErrorCode.NONE
    partitions = node.loader.image.topics["wide"].partitions.values()
    assert {(each.leader, each.isr) for each in partitions} == {(2, (2,))}


def test_leadership_that_is_lost_while_a_broker_is_fenced() -> None:
    node, turns = led_by_one_broker()
    answer = node.service.submit(lambda controller, _: heartbeat(controller, 1, fence=True))
    turns.turn()
    node.service.resign()
    while turns.due:
        turns.turn()
    assert answer.error is not None and answer.error.code is ErrorCode.NOT_CONTROLLER
    assert not node.log.batches
    assert not node.controller.image.brokers[1].fenced


def test_a_large_decision_that_is_not_atomic_is_several_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its response waits for the last one."""
    monkeypatch.setattr(service, "RECORDS_PER_BATCH", 50)
    node, turns = led_by_one_broker()
    answer = node.service.submit(lambda controller, _: heartbeat(controller, 1, fence=True))
    while turns.due:
        turns.turn()
    assert [len(records) for _, records in node.log.batches] == [50, 50, 50, 11]
    node.commit(3)
    assert not answer.done and not node.loader.image.brokers[1].fenced
    node.commit()
    assert answer.value.is_fenced and node.loader.image.brokers[1].fenced
    assert node.controller.image is node.loader.image


def test_leadership_that_is_lost_between_two_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "RECORDS_PER_BATCH", 50)
    node, turns = led_by_one_broker()
    answer = node.service.submit(lambda controller, _: heartbeat(controller, 1, fence=True))
    while len(node.log.batches) < 2:
        turns.turn()
    node.service.resign()
    while turns.due:
        turns.turn()
    assert answer.error is not None and answer.error.code is ErrorCode.NOT_CONTROLLER
    assert len(node.log.batches) == 2
    node.log.batches.clear()
    node.service.activate(open_transaction=False)
    assert node.controller.image is node.loader.image


@pytest.mark.parametrize("pauses", range(0, 60, 3))
def test_a_commit_during_a_replay_leaves_the_indexes_as_they_are(
    pauses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The committed image does not replace the one that the replay began with."""
    monkeypatch.setattr(partition_index, "PARTITIONS_PER_STEP", 10)
    node, turns = led_by_one_broker()
    node.create("before")
    while turns.due:
        turns.turn()
    node.service.submit(lambda controller, _: heartbeat(controller, 1, fence=True))
    for _ in range(pauses):
        turns.turn()
    node.commit()
    while turns.due:
        turns.turn()
    node.service.submit(lambda controller, _: heartbeat(controller, 1))
    node.service.submit(lambda controller, _: heartbeat(controller, 2, fence=True))
    while turns.due:
        turns.turn()
    node.commit()
    found, made = node.controller._partitions, PartitionIndex(node.controller.image)
    for broker in (1, 2):
        assert sorted(found.in_isr(broker)) == sorted(made.in_isr(broker))
    assert sorted(found.leaderless()) == sorted(made.leaderless())
