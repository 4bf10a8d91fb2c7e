"""FindCoordinator: who is named, when, and in which shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from msgspec.structs import replace

from kbroker.broker.topic_creation import AutomaticTopicCreator, InternalTopics
from kbroker.coordinator.group.service import GROUP_TOPIC
from kbroker.coordinator.share_state.topic import SHARE_TOPIC, is_coordinator_key
from kbroker.coordinator.transaction.service import TRANSACTION_TOPIC
from kbroker.metadata.image import BrokerRegistration, Endpoint, MetadataImage, PartitionImage
from kbroker.metadata.image import TopicImage as Topic
from kbroker.metadata.layered_map import LayeredMap
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.codec import decode, encode
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kbroker.server.handlers.groups.find_coordinator import HANDLERS
from kbroker.server.requests import RequestContext
from tests.server.slices import Sliced

(HANDLER,) = HANDLERS


def image(
    topic_name: str = GROUP_TOPIC,
    *,
    leader: int = 1,
    fenced: bool = False,
    listener: str = "PLAINTEXT",
) -> MetadataImage:
    broker = BrokerRegistration(
        id=1,
        epoch=1,
        incarnation_id=bytes(16),
        endpoints={listener: Endpoint(listener, "broker.example", 9092)},
        fenced=fenced,
    )
    partition = PartitionImage(replicas=(1,), directories=(bytes(16),), isr=(1,), leader=leader)
    topic = Topic(topic_name, b"o" * 16, {0: partition})
    empty = MetadataImage(brokers={1: broker})
    return replace(empty, topics=LayeredMap({topic_name: topic}))


@dataclass
class FakeController:
    after: MetadataImage
    image: MetadataImage = field(default_factory=MetadataImage)
    created: Deferred[ErrorCode] = field(default_factory=Deferred)
    asked: list[str] = field(default_factory=list)
    refuses: bool = False
    is_alone: bool = True
    internal_topics: InternalTopics = field(default_factory=InternalTopics)
    services: FakeServices = field(init=False)

    def ensure_internal_topic(self, name: str) -> Deferred[ErrorCode]:
        self.asked.append(name)
        if self.refuses:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        return self.created

    def request_internal_topic(self, name: str) -> Deferred[ErrorCode]:
        """As the channel of a node that is its whole cluster, or of a broker among several."""
        if self.is_alone:
            return self.ensure_internal_topic(name)
        self.internal_topics.create(name, cast(AutomaticTopicCreator, self), node_id=1)
        return Deferred.of(ErrorCode.NONE)

    def finish(self, error: ErrorCode = ErrorCode.NONE) -> None:
        if error is ErrorCode.NONE:
            self.image = self.after
        self.created.resolve(error)
        while self.services.turns.due:
            self.services.turns.turn()


class FakeGroups:
    def partition_for(self, group_id: str) -> int:
        return 0


class FakeServices(Sliced):
    def __init__(self, controller: FakeController) -> None:
        groups = FakeGroups()
        super().__init__(
            channel=controller,
            groups=groups,
            transactions=groups,
            share_coordinator=groups,
        )
        self.controller = controller
        controller.services = self

    @property
    def image(self) -> MetadataImage:
        return self.controller.image


def ask(controller: FakeController, request: FindCoordinatorRequest, version: int) -> Any:
    context = RequestContext(ApiKey.FIND_COORDINATOR, version)
    return HANDLER.handle(FakeServices(controller).services, context, request)


def request(version: int, *keys: str, key_type: int = 0) -> FindCoordinatorRequest:
    if version >= 4:
        return FindCoordinatorRequest(key_type=key_type, coordinator_keys=list(keys))
    return FindCoordinatorRequest(key_type=key_type, key=keys[0])


def coordinators(
    response: FindCoordinatorResponse, version: int
) -> list[tuple[ErrorCode, int, str, int]]:
    again, _ = decode(FindCoordinatorResponse, encode(response, version), version)
    entries = again.coordinators if version >= 4 else [again]
    return [(ErrorCode(e.error_code), e.node_id, e.host, e.port) for e in entries]


FOUND = (ErrorCode.NONE, 1, "broker.example", 9092)
NOT_THERE = (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "", -1)


@pytest.mark.parametrize("version", range(7))
def test_every_version(version: int) -> None:
    controller = FakeController(image(), image=image())
    response = ask(controller, request(version, "g"), version)
    assert coordinators(response, version) == [FOUND]
    assert controller.asked == []


def test_several_keys() -> None:
    controller = FakeController(image(), image=image())
    response = ask(controller, request(4, "g", "h"), 4)
    assert [entry.key for entry in response.coordinators] == ["g", "h"]


@pytest.mark.parametrize("version", [0, 3, 4, 6])
def test_a_broker_among_several_answers_at_once_and_has_the_topic_created(version: int) -> None:
    """Its controller may be away for long, and its own metadata have the topic later still."""
    controller = FakeController(image(), is_alone=False)
    services = FakeServices(controller).services
    context = RequestContext(ApiKey.FIND_COORDINATOR, version)
    for _ in range(3):
        response = HANDLER.handle(services, context, request(version, "g"))
        assert coordinators(response, version) == [NOT_THERE]  # type: ignore[arg-type]  # no Deferred
    assert controller.asked == [GROUP_TOPIC]
    response = HANDLER.handle(services, context, request(version, "t", key_type=9))
    assert controller.asked == [GROUP_TOPIC]
    controller.finish()
    response = HANDLER.handle(services, context, request(version, "g"))
    assert coordinators(response, version) == [FOUND]  # type: ignore[arg-type]  # no Deferred
    assert controller.asked == [GROUP_TOPIC]


@pytest.mark.parametrize("version", [0, 3, 4, 6])
def test_first_request_creates_the_topic_and_waits_for_it(version: int) -> None:
    controller = FakeController(image())
    outcome = ask(controller, request(version, "g"), version)
    assert controller.asked == [GROUP_TOPIC]
    assert not outcome.done
    controller.finish()
    assert coordinators(outcome.value, version) == [FOUND]


def test_topic_that_cannot_be_created() -> None:
    controller = FakeController(image())
    outcome = ask(controller, request(4, "g"), 4)
    controller.finish(ErrorCode.INVALID_REPLICATION_FACTOR)
    assert coordinators(outcome.value, 4) == [NOT_THERE]


def test_a_controller_that_loses_leadership_before_the_topic_is_created() -> None:
    controller = FakeController(image())
    outcome = ask(controller, request(4, "g"), 4)
    controller.created.fail(KafkaError(ErrorCode.NOT_CONTROLLER))
    while controller.services.turns.due:
        controller.services.turns.turn()
    assert coordinators(outcome.value, 4) == [NOT_THERE]


def test_controller_that_cannot_create_anything_now() -> None:
    controller = FakeController(image(), refuses=True)
    assert coordinators(ask(controller, request(4, "g"), 4), 4) == [NOT_THERE]


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(image(leader=-1), id="no leader"),
        pytest.param(image(leader=7), id="leader that is not registered"),
        pytest.param(image(fenced=True), id="fenced leader"),
        pytest.param(image(listener="OTHER"), id="leader not on this listener"),
    ],
)
def test_never_names_a_broker_that_metadata_does_not_list(now: MetadataImage) -> None:
    response = ask(FakeController(now, image=now), request(4, "g"), 4)
    assert coordinators(response, 4) == [NOT_THERE]


@pytest.mark.parametrize("version", [1, 4, 6])
def test_transactional_ids_have_a_topic_of_their_own(version: int) -> None:
    controller = FakeController(image(TRANSACTION_TOPIC))
    outcome = ask(controller, request(version, "t", key_type=1), version)
    assert controller.asked == [TRANSACTION_TOPIC]
    controller.finish()
    assert coordinators(outcome.value, version) == [FOUND]


def test_states_of_share_partitions_have_a_topic_of_their_own() -> None:
    controller = FakeController(image(SHARE_TOPIC))
    key = "a:group:AAAAAAAAAAAAAAAAAAAAAQ:0"
    outcome = ask(controller, request(6, key, key_type=2), 6)
    assert controller.asked == [SHARE_TOPIC]
    controller.finish()
    assert coordinators(outcome.value, 6) == [FOUND]


@pytest.mark.parametrize(("key_type", "version"), [(2, 1), (2, 5), (2, 6), (9, 1), (9, 4), (9, 6)])
def test_coordinators_that_are_not_served_are_an_error_clients_do_not_retry(
    key_type: int, version: int
) -> None:
    response = ask(FakeController(image()), request(version, "t", key_type=key_type), version)
    ((error, node_id, _, _),) = coordinators(response, version)
    assert error is ErrorCode.INVALID_REQUEST
    assert not error.retriable
    assert node_id == -1


def test_no_keys_of_a_kind_that_is_not_served_are_no_coordinators() -> None:
    response = ask(FakeController(image()), request(4, key_type=9), 4)
    assert coordinators(response, 4) == []


def test_many_keys_are_looked_up_in_slices() -> None:
    controller = FakeController(image(), image=image())
    keys = [f"g{index}" for index in range(1000)]
    outcome = ask(controller, request(6, *keys), 6)
    assert isinstance(outcome, Deferred)
    response = controller.services.answer(outcome)
    assert [each.key for each in response.coordinators] == keys


def test_a_step_looks_up_no_more_than_one_very_long_key() -> None:
    """Computing the hash code of 32 KiB takes half a millisecond."""
    controller = FakeController(image(), image=image())
    keys = [f"{index:032766}" for index in range(30)]
    outcome = ask(controller, request(6, *keys), 6)
    assert isinstance(outcome, Deferred)
    turns = 0
    while not outcome.done:
        controller.services.turns.turn()
        turns += 1
    assert turns > 30 / 5  # a slice has four steps
    assert [each.key for each in outcome.value.coordinators] == keys


def test_the_topic_is_created_once_for_many_keys() -> None:
    controller = FakeController(image())
    outcome = ask(controller, request(6, *(f"g{index}" for index in range(100))), 6)
    controller.finish()
    assert controller.asked == [GROUP_TOPIC]
    assert coordinators(outcome.value, 6) == [FOUND] * 100


@pytest.mark.parametrize(
    ("key", "is_one"),
    [
        ("g:gtb2stGYRk-vWZ2zAozmoA:0", True),
        ("a:b:gtb2stGYRk-vWZ2zAozmoA==:-2147483648", True),
        ("g:gtb2stGYRk+vWZ2zAozmoA:0", False),
        ("g:gtb2stGYRk/vWZ2zAozmoA==:0", False),
        ("g:gtb2stGYRk-vWZ2zAozmoA:2147483648", False),
        ("g:gtb2stGYRk-vWZ2zAozmoA:1_0", False),
        ("g:gtb2stGYRk-vWZ2zAozmoA: 1", False),
        ("g:gtb2stGYRk-vWZ2zAozmoA:", False),
        (" \t:gtb2stGYRk-vWZ2zAozmoA:0", False),
        ("gtb2stGYRk-vWZ2zAozmoA:0", False),
    ],
)
def test_keys_of_share_coordinators_are_kafkas(key: str, is_one: bool) -> None:
    """As SharePartitionKey reads them."""
    assert is_coordinator_key(key) == is_one
