"""The controller's service on a log whose commits the test decides."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from random import Random
from typing import Any

import pytest

from kbroker.broker.controller_channel import BrokerRegistrationData
from kbroker.controller import partition_index, service
from kbroker.controller.broker_heartbeat import HeartbeatReply
from kbroker.controller.controller import RECORDS_PER_STEP, Controller, ControllerResult
from kbroker.controller.partition_index import PartitionIndex
from kbroker.controller.result import CHANGES_PER_STEP
from kbroker.controller.service import ControllerService, Operation, Slices
from kbroker.controller.topics import PARTITIONS_PER_STEP
from kbroker.metadata.image import Endpoint
from kbroker.metadata.loader import MetadataLoader
from kbroker.metadata.records import decode_record, encode_record
from kbroker.model import InvariantError
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import BrokerHeartbeatRequest, UpdateFeaturesRequest
from kbroker.protocol.messages.metadata_records import (
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
)
from kbroker.protocol.messages.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
)
from kbroker.quorum.bootstrap import default_bootstrap_records
from kbroker.replication.time_slices import TimeSlices
from kbroker.settings.broker import BrokerConfig
from tests.controller.cluster import heartbeat
from tests.replication.test_time_slices import Ticks, Turns
from tests.sim.timers import SimTimers

REGISTRATION = BrokerRegistrationData(
    incarnation_id=b"i" * 16,
    endpoints={"PLAINTEXT": Endpoint("PLAINTEXT", "localhost", 9092)},
    log_dirs=(b"d" * 16,),
)
EPOCH = 1


class HeldLog:
    """A metadata log that commits its batches when the test says so."""

    epoch = EPOCH

    def __init__(self) -> None:
        self.kraft_version = 1
        self.next_offset = 0
        self.batches: list[tuple[int, Sequence[bytes]]] = []

    def append(self, records: Sequence[bytes], *, atomic: bool = True) -> None:
        self.batches.append((self.next_offset, records))
        self.next_offset += len(records)

    def check_kraft_upgrade(self, level: int) -> None:
        """Every voter supports it."""

    def upgrade_kraft_version(self, level: int) -> None:
        """Two control records."""
        if level != self.kraft_version:
            self.kraft_version = level
            self.batches.append((self.next_offset + 1, []))
            self.next_offset += 2


class Node:
    """The service with the metadata loader of its node, one broker registered and unfenced."""

    def __init__(self, *, is_active: bool = True, slices: Slices | None = None) -> None:
        config = BrokerConfig.from_properties({"node.id": "1"})
        self.log = HeldLog()
        self.timers = SimTimers()
        self.loader = MetadataLoader("cluster", node_id=1)
        self.controller = Controller(config, random=Random(7), node_id=1)
        self.service = ControllerService(
            self.controller,
            self.log,
            slices=slices or TimeSlices(None),
            committed_image=lambda: self.loader.image,
            timers=self.timers,
            config=config,
        )
        self.loader.caught_up()
        if not is_active:
            return
        self.service.activate(open_transaction=False)
        bootstrap = [decode_record(data) for data in default_bootstrap_records()]
        self.service.submit(lambda controller, _: controller.bootstrap(bootstrap))
        self.service.submit(
            lambda controller, _: controller.register_broker(
                REGISTRATION.request(broker_id=1, cluster_id=controller.image.cluster_id),
                kraft_version=1,
                has_valid_session=False,
            )
        )
        self.commit()
        self.service.submit(lambda controller, _: heartbeat(controller, 1))
        self.commit()

    def commit(self, batches: int | None = None) -> None:
        """Commit the next batches, all by default: first the loader's, then the service's turn."""
        count = len(self.log.batches) if batches is None else batches
        committed, self.log.batches = self.log.batches[:count], self.log.batches[count:]
        for base_offset, records in committed:
            deque(self.loader.committed(base_offset, EPOCH, records), maxlen=0)
            self.service.committed(base_offset, EPOCH, records)

    def create(self, name: str, partitions: int = 1) -> Deferred[CreateTopicsResponse]:
        topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions)
        topic.replication_factor = 1
        request = CreateTopicsRequest(topics=[topic])
        return self.service.submit(lambda controller, _: controller.create_topics(request))


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


def beat(node: Node, broker_id: int) -> Deferred[HeartbeatReply]:
    """A heartbeat of a broker that has read all the metadata."""
    image = node.controller.image
    return node.service.heartbeat(
        BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=image.brokers[broker_id].epoch,
            current_metadata_offset=image.offset,
            want_fence=False,
            want_shut_down=False,
        )
    )


def register(node: Node, broker_id: int, incarnation: int) -> Deferred[int]:
    registration = BrokerRegistrationData(
        incarnation_id=bytes([incarnation]) * 16,
        endpoints=REGISTRATION.endpoints,
        log_dirs=(bytes([broker_id]) * 16,),
    )
    return node.service.register_broker(
        registration.request(broker_id=broker_id, cluster_id="cluster")
    )


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
