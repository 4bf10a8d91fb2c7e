"""The controller's service on a log whose commits the test decides."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest

from kbroker.controller.controller import ControllerResult
from kbroker.controller.service import Operation
from kbroker.metadata.records import decode_record, encode_record
from kbroker.model import InvariantError
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.topics import DeleteTopicsRequest
from kbroker.protocol.messages.cluster import UpdateFeaturesRequest
from kbroker.protocol.messages.stored.metadata_records import (
    BeginTransactionRecord,
    ConfigRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
)
from kbroker.replication.time_slices import TimeSlices
from tests.controller.cluster import heartbeat
from tests.controller.held_log import Node, beat, register
from tests.replication.test_time_slices import Ticks, Turns


def test_a_proposal_is_answered_once_it_is_committed_and_in_the_image() -> None:
    node = Node()
    first, second = node.create("a"), node.create("b")
    assert not first.done and "a" not in node.loader.image.topics
    node.commit(1)
    assert first.done and not second.done
    assert "a" in node.loader.image.topics and "b" not in node.loader.image.topics
    node.commit(1)
    assert second.value.topics[0].error_code == ErrorCode.NONE


def test_a_decision_sees_the_proposals_before_it() -> None:
    node = Node()
    node.create("t")
    again = node.create("t")
    assert not again.done
    node.commit()
    assert again.value.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_an_operation_without_records_is_answered_after_the_proposals_before_it() -> None:
    node = Node()
    order: list[str] = []
    node.create("t").on_done(lambda _: order.append("created"))
    there = node.service.submit(lambda controller, _: controller.ensure_topic("t"))
    there.on_done(lambda _: order.append("exists"))
    assert order == []
    node.commit()
    assert order == ["created", "exists"]
    assert node.service.submit(lambda controller, _: controller.ensure_topic("t")).done


def test_proposals_fail_with_not_controller_when_leadership_is_lost() -> None:
    node = Node()
    committed = node.create("committed")
    node.commit()
    outcomes: list[tuple[str, ErrorCode]] = []
    for name in ("a", "b"):
        node.create(name).on_done(
            lambda _: pytest.fail("answered"),
            lambda error, name=name: outcomes.append((name, error.code)),  # type: ignore[misc]  # bound now
        )
    unchanged = node.service.submit(lambda controller, _: controller.ensure_topic("a"))
    node.service.resign()
    assert outcomes == [("a", ErrorCode.NOT_CONTROLLER), ("b", ErrorCode.NOT_CONTROLLER)]
    assert unchanged.error is not None and unchanged.error.code is ErrorCode.NOT_CONTROLLER
    assert committed.value.topics[0].error_code == ErrorCode.NONE
    node.commit()  # by the next leader: too late for the answer, which was given
    assert "a" in node.loader.image.topics
    with pytest.raises(KafkaError) as caught:
        node.create("c")
    assert caught.value.code is ErrorCode.NOT_CONTROLLER


def test_a_failure_callback_may_submit_and_is_refused() -> None:
    node = Node()
    refused: list[ErrorCode] = []

    def again(_: KafkaError) -> None:
        try:
            node.create("again")
        except KafkaError as error:
            refused.append(error.code)

    node.create("t").on_done(lambda _: None, again)
    node.service.resign()
    assert refused == [ErrorCode.NOT_CONTROLLER]
    assert len(node.log.batches) == 1


def test_leadership_that_returns_starts_from_what_was_committed() -> None:
    node = Node()
    lost = node.create("lost")
    node.log.batches.clear()  # the next leader's log does not have it
    node.service.resign()
    assert lost.error is not None
    node.log.next_offset = node.loader.image.offset + 1
    node.service.activate(open_transaction=False)
    assert "lost" not in node.controller.image.topics
    made = node.create("lost")
    node.commit()
    assert made.value.topics[0].error_code == ErrorCode.NONE


def test_after_close_what_was_proposed_is_still_answered() -> None:
    node = Node()
    proposed = node.create("t")
    node.service.close()
    with pytest.raises(KafkaError):
        node.create("u")
    node.commit()
    assert proposed.value.topics[0].error_code == ErrorCode.NONE


def test_the_proposed_image_is_the_loaders_once_all_is_committed() -> None:
    node = Node()
    node.create("a")
    node.create("b")
    node.commit(1)
    assert node.controller.image is not node.loader.image
    assert "b" in node.controller.image.topics
    node.commit(1)
    assert node.controller.image is node.loader.image


def test_the_loader_replays_to_the_image_that_was_proposed() -> None:
    node = Node()
    operations: list[Operation[object]] = [
        lambda controller, _: controller.ensure_topic("a"),
        lambda controller, _: controller.ensure_internal_topic("__consumer_offsets"),
        lambda controller, _: controller.allocate_producer_ids(1, epoch),
        lambda controller, _: heartbeat(controller, 1, stop=True),
        lambda controller, _: controller.delete_topics(
            DeleteTopicsRequest(topic_names=["a"]), api_version=5
        ),
        lambda controller, _: heartbeat(controller, 1, stop=True),
    ]
    epoch = node.loader.image.brokers[1].epoch
    for operation in operations:
        node.service.submit(operation)
        proposed = node.controller.image
        assert proposed is not node.loader.image
        node.commit()
        assert node.loader.image == proposed


def test_a_proposal_in_several_batches_is_answered_with_the_last() -> None:
    node = Node()
    names = ("a", "b", "c")
    records = [FeatureLevelRecord(name=name, feature_level=1) for name in names]
    answer = node.service.submit(lambda controller, _: ControllerResult(records, "done"))
    ((base_offset, encoded),) = node.log.batches
    node.log.batches = [(base_offset + i, [record]) for i, record in enumerate(encoded)]
    node.commit(2)
    assert not answer.done
    node.commit(1)
    assert answer.value == "done"


def test_an_open_transaction_is_aborted_by_the_next_controller() -> None:
    node = Node()
    node.service.resign()
    begun = [
        BeginTransactionRecord(name="x"),
        FeatureLevelRecord(name="group.version", feature_level=0),
    ]
    node.log.append([encode_record(record, 30) for record in begun])
    node.commit()
    assert node.loader.in_transaction
    node.service.activate(open_transaction=node.loader.in_transaction)
    made = node.create("t")
    node.commit()
    assert not node.loader.in_transaction
    assert made.value.topics[0].error_code == ErrorCode.NONE
    assert node.loader.image.features["group.version"] == 1
    assert "t" in node.loader.image.topics


def test_nothing_is_taken_before_activation() -> None:
    with pytest.raises(KafkaError) as caught:
        Node(is_active=False).create("t")
    assert caught.value.code is ErrorCode.NOT_CONTROLLER


def test_a_broker_is_not_replaced_while_it_has_a_session() -> None:
    node = Node()
    register(node, 2, 1)
    node.commit()
    beat(node, 2)
    node.commit()
    with pytest.raises(KafkaError) as refused:
        register(node, 2, 2)
    assert refused.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert not register(node, 2, 1).done  # the same incarnation
    node.timers.advance(5000)
    beat(node, 2)
    node.timers.advance(5000)
    with pytest.raises(KafkaError):
        register(node, 2, 2)
    node.timers.advance(4001)
    assert not register(node, 2, 2).done


class BusySlices:
    """Takes steps at once, and none any more while it is busy."""

    def __init__(self) -> None:
        self.is_busy = False

    def add(self, steps: Iterator[object]) -> None:
        if not self.is_busy:
            deque(steps, maxlen=0)

    def finish(self) -> None:
        """Nothing waits."""


def test_a_heartbeat_counts_on_arrival() -> None:
    slices = BusySlices()
    node = Node(slices=slices)
    register(node, 2, 1)
    node.commit()
    slices.is_busy = True
    assert not beat(node, 2).done
    slices.is_busy = False
    with pytest.raises(KafkaError) as refused:
        register(node, 2, 2)
    assert refused.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_records_that_no_batch_holds_are_refused() -> None:
    node = Node()
    beat(node, 1)
    node.commit()
    some = ConfigRecord(resource_type=4, resource_name="", name="k", value="v" * (1 << 14))
    with pytest.raises(KafkaError) as refused:
        node.service.submit(lambda controller, _: ControllerResult([some] * 512, None))
    assert refused.value.code is ErrorCode.RECORD_LIST_TOO_LARGE
    assert not node.log.batches
    split = node.service.submit(
        lambda controller, _: ControllerResult([some] * 512, None, atomic=False)
    )
    node.commit()
    assert split.done


def test_a_record_that_cannot_be_encoded_fails_its_operation() -> None:
    node = Node()
    broken = ConfigRecord(resource_type=1 << 20, resource_name="", name="k", value="v")
    with pytest.raises(KafkaError) as refused:
        node.service.submit(lambda controller, _: ControllerResult([broken], None))
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert not node.create("t").done
    node.commit()
    assert "t" in node.loader.image.topics


def test_a_record_that_cannot_be_replayed_breaks_an_invariant() -> None:
    node = Node()
    unknown = PartitionChangeRecord(partition_id=0, topic_id=b"u" * 16)
    with pytest.raises(InvariantError, match="unknown topic id"):
        node.service.submit(lambda controller, _: ControllerResult([unknown], None))


def test_control_records_may_come_between_a_decision_and_its_records() -> None:
    turns = Turns()
    node = Node(slices=TimeSlices(turns, seconds=0.0, clock=Ticks()))
    while turns.due:
        turns.turn()
    node.commit()
    created = node.create("t", partitions=1000)
    pauses = 0
    while turns.due:
        turns.turn()
        pauses += 1
        if pauses == 5:
            node.log.next_offset += 2  # the quorum appends a control batch
    node.commit()
    assert created.value.topics[0].error_code == ErrorCode.NONE
    assert node.controller.image is node.loader.image


def test_silent_brokers_are_fenced_while_this_node_is_active() -> None:
    node = Node()
    beat(node, 1)
    node.commit()
    node.timers.advance(9000)
    assert not node.log.batches
    node.timers.advance(1200)
    node.commit()
    assert node.loader.image.brokers[1].fenced


def test_nothing_is_written_without_leadership() -> None:
    node = Node()
    register(node, 2, 1)
    node.commit()
    node.service.resign()
    node.timers.advance(400_000)
    assert not node.log.batches
    node.service.activate(open_transaction=False)
    node.timers.advance(600)
    assert len(node.log.batches) == 1
    node.service.close()
    node.timers.advance(400_000)
    assert len(node.log.batches) == 1


def test_an_idle_log_has_records_if_another_node_reads_it() -> None:
    node = Node()
    beat(node, 1)
    node.commit()
    node.timers.advance(3000)
    assert not node.log.batches
    register(node, 2, 1)
    node.commit()
    node.timers.advance(1500)
    records = [decode_record(data) for _, batch in node.log.batches for data in batch]
    assert records == [NoOpRecord()] * 3


def test_the_quorums_upgrade_precedes_the_records_of_the_same_request() -> None:
    """The answer comes with the NoOpRecord behind the quorum's control records."""
    node = Node()
    node.log.kraft_version = 0
    offset = node.log.next_offset
    request = UpdateFeaturesRequest(
        feature_updates=[
            UpdateFeaturesRequest.FeatureUpdateKey(
                feature="kraft.version", max_version_level=1, upgrade_type=1
            )
        ]
    )
    answer = node.service.update_features(request, api_version=2)
    (control, none), (noop, records) = node.log.batches
    assert (control, list(none), noop) == (offset + 1, [], offset + 2)
    assert [type(decode_record(each)) for each in records] == [NoOpRecord]
    node.commit(1)
    assert not answer.done
    node.commit()
    assert answer.value.error_code == ErrorCode.NONE
    assert node.controller.image is node.loader.image
    again = node.service.update_features(request, api_version=2)
    assert [base for base, _ in node.log.batches] == [offset + 3]
    node.commit()
    assert again.value.error_code == ErrorCode.NONE
