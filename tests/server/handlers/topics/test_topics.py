"""CreateTopics and DeleteTopics as the dispatcher calls them."""

from __future__ import annotations

from itertools import chain
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.controller.result import ChargePartitions
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs import codec
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kbroker.server.api_handler import ApiHandler
from kbroker.server.handlers.topics.topics import HANDLERS
from kbroker.server.quotas.client_quotas import ClientQuotas
from kbroker.server.requests import RequestContext
from kbroker.server.services import Services
from tests.server.slices import Sliced
from tests.sim.timers import SimTimers

CREATE, DELETE, GROW = HANDLERS


class FakeController:
    """Gives out Deferreds that the test resolves."""

    def __init__(self) -> None:
        self.deferred: Deferred[Any] = Deferred()
        self.asked: list[object] = []

    def create_topics(
        self, request: CreateTopicsRequest, *, charge: ChargePartitions
    ) -> Deferred[CreateTopicsResponse]:
        self.asked.append(request)
        return self.deferred

    def delete_topics(
        self, request: DeleteTopicsRequest, *, api_version: int, charge: ChargePartitions
    ) -> Deferred[DeleteTopicsResponse]:
        self.asked.append((request, api_version))
        return self.deferred

    def create_partitions(
        self, request: CreatePartitionsRequest, *, charge: ChargePartitions
    ) -> Deferred[CreatePartitionsResponse]:
        self.asked.append(request)
        return self.deferred


def services(controller: FakeController) -> Services:
    return cast(
        Services,
        SimpleNamespace(controller=controller, quotas=ClientQuotas(), timers=SimTimers()),
    )


def test_registrations() -> None:
    assert [(h.api_key, h.min_version, h.max_version) for h in HANDLERS] == [
        (ApiKey.CREATE_TOPICS, 0, 7),
        (ApiKey.DELETE_TOPICS, 0, 6),
        (ApiKey.CREATE_PARTITIONS, 0, 3),
    ]


def test_creation_is_answered_when_the_controller_does() -> None:
    controller = FakeController()
    request = CreateTopicsRequest()
    context = RequestContext(ApiKey.CREATE_TOPICS, 7)
    outcome = CREATE.handle(services(controller), context, request)
    assert isinstance(outcome, Deferred)
    assert not outcome.done
    response = CreateTopicsResponse()
    controller.deferred.resolve(response)
    assert outcome.value is response
    assert controller.asked == [request]


def test_the_request_fails_with_the_controller() -> None:
    controller = FakeController()
    context = RequestContext(ApiKey.CREATE_TOPICS, 7)
    outcome = CREATE.handle(services(controller), context, CreateTopicsRequest())
    assert isinstance(outcome, Deferred)
    controller.deferred.fail(KafkaError(ErrorCode.NOT_CONTROLLER))
    assert outcome.error is not None and outcome.error.code is ErrorCode.NOT_CONTROLLER


def test_what_is_known_at_once_is_answered_at_once() -> None:
    controller = FakeController()
    response = DeleteTopicsResponse()
    controller.deferred.resolve(response)
    request = DeleteTopicsRequest()
    context = RequestContext(ApiKey.DELETE_TOPICS, 3)
    assert DELETE.handle(services(controller), context, request) is response
    assert controller.asked == [(request, 3)]


@pytest.mark.parametrize("version", range(8))
def test_a_creation_given_up(version: int) -> None:
    topic = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(topics=[topic(name="a"), topic(name="b"), topic(name="a")])
    response = CREATE.error_response(request, ErrorCode.NOT_CONTROLLER, "not now")
    decoded, _ = codec.decode(CreateTopicsResponse, codec.encode(response, version), version)
    assert [(t.name, t.error_code, t.error_message) for t in decoded.topics] == [
        ("a", 41, "not now" if version else ""),
        ("b", 41, "not now" if version else ""),
    ]


@pytest.mark.parametrize("version", range(7))
def test_a_deletion_given_up(version: int) -> None:
    request = DeleteTopicsRequest(topic_names=["a"])
    if version == 6:
        state = DeleteTopicsRequest.DeleteTopicState
        request = DeleteTopicsRequest(topics=[state(name="a"), state(topic_id=b"i" * 16)])
    response = DELETE.error_response(request, ErrorCode.TOPIC_DELETION_DISABLED, "off")
    decoded, _ = codec.decode(DeleteTopicsResponse, codec.encode(response, version), version)
    assert {r.error_code for r in decoded.responses} == {73}
    assert decoded.responses[0].name == "a"
    if version == 6:
        assert decoded.responses[1].topic_id == b"i" * 16
    assert {r.error_message for r in decoded.responses} == {"off" if version >= 5 else None}


def more(*names: str) -> CreatePartitionsRequest:
    kind = CreatePartitionsRequest
    return kind(topics=[kind.CreatePartitionsTopic(name=name, count=2) for name in names])


def test_partitions_are_created_by_the_controller() -> None:
    controller = FakeController()
    context = RequestContext(ApiKey.CREATE_PARTITIONS, 3)
    outcome = GROW.handle(services(controller), context, more("t"))
    assert isinstance(outcome, Deferred) and not outcome.done
    controller.deferred.fail(KafkaError(ErrorCode.NOT_CONTROLLER))
    assert outcome.error is not None and outcome.error.code is ErrorCode.NOT_CONTROLLER
    assert controller.asked == [more("t")]


def test_a_request_for_partitions_of_no_topic_is_answered_without_the_controller() -> None:
    controller = FakeController()
    context = RequestContext(ApiKey.CREATE_PARTITIONS, 3)
    assert GROW.handle(services(controller), context, more()) == CreatePartitionsResponse()
    assert controller.asked == []


@pytest.mark.parametrize("version", range(4))
def test_more_partitions_given_up(version: int) -> None:
    response = GROW.error_response(more("a", "b"), ErrorCode.NOT_CONTROLLER, "")
    decoded, _ = codec.decode(CreatePartitionsResponse, codec.encode(response, version), version)
    assert [(each.name, each.error_code, each.error_message) for each in decoded.results] == [
        ("a", 41, None),
        ("b", 41, None),
    ]


# The quota of controller mutations (KIP-599)


class ChargingController(FakeController):
    """Charges each topic five partitions, as the controller does."""

    def create_topics(
        self, request: CreateTopicsRequest, *, charge: ChargePartitions
    ) -> Deferred[CreateTopicsResponse]:
        for topic in request.topics:
            try:
                charge(5)
            except KafkaError:
                self.asked.append(topic.name)
        return Deferred.of(CreateTopicsResponse())

    def delete_topics(
        self, request: DeleteTopicsRequest, *, api_version: int, charge: ChargePartitions
    ) -> Deferred[DeleteTopicsResponse]:
        self.create_topics(
            CreateTopicsRequest(topics=[creatable(name) for name in request.topic_names]),
            charge=charge,
        )
        return Deferred.of(DeleteTopicsResponse())

    def create_partitions(
        self, request: CreatePartitionsRequest, *, charge: ChargePartitions
    ) -> Deferred[CreatePartitionsResponse]:
        self.create_topics(
            CreateTopicsRequest(topics=[creatable(topic.name) for topic in request.topics]),
            charge=charge,
        )
        return Deferred.of(CreatePartitionsResponse())


@pytest.mark.parametrize("count", [4, 40])
@pytest.mark.parametrize(
    ("handler", "version", "is_strict"),
    [
        (CREATE, 6, True),
        (CREATE, 5, False),
        (DELETE, 5, True),
        (DELETE, 4, False),
        (GROW, 3, True),
        (GROW, 2, False),
    ],
)
def test_partitions_are_charged_and_the_client_is_told(
    handler: ApiHandler, version: int, is_strict: bool, count: int
) -> None:
    """Strictly from a version on, permissively before; also in a request that is divided."""
    controller = ChargingController()
    names = [f"t{number}" for number in range(count)]
    request: CreateTopicsRequest | DeleteTopicsRequest | CreatePartitionsRequest
    if handler is GROW:
        request = more(*names)
    elif handler is CREATE:
        request = CreateTopicsRequest(topics=[creatable(name) for name in names])
    else:
        request = DeleteTopicsRequest(topic_names=names)
    sliced = Sliced(controller=controller, image=SimpleNamespace(topics={}))
    sliced.quotas.change({(("user", "ANONYMOUS"),): {"controller_mutation_rate": 1.0}})
    context = RequestContext(handler.api_key, version)
    response = sliced.answer(handler.handle(sliced.services, context, request))
    if is_strict:
        assert controller.asked == names[3:], "eleven permits at first"
        assert response.throttle_time_ms == 4000
    else:
        assert controller.asked == []
        assert response.throttle_time_ms == (5 * count - 11) * 1000


# Very many topics


class CountingController:
    """Does in each call what the controller does to the names: all of them are fine."""

    def __init__(self) -> None:
        self.created: list[list[str]] = []
        self.deleted: list[list[str]] = []

    def create_topics(
        self, request: CreateTopicsRequest, *, charge: ChargePartitions
    ) -> Deferred[CreateTopicsResponse]:
        self.created.append([topic.name for topic in request.topics])
        result = CreateTopicsResponse.CreatableTopicResult
        return Deferred.of(
            CreateTopicsResponse(topics=[result(name=topic.name) for topic in request.topics])
        )

    def delete_topics(
        self, request: DeleteTopicsRequest, *, api_version: int, charge: ChargePartitions
    ) -> Deferred[DeleteTopicsResponse]:
        names = [*request.topic_names, *(topic.name or "?" for topic in request.topics)]
        self.deleted.append(names)
        result = DeleteTopicsResponse.DeletableTopicResult
        return Deferred.of(DeleteTopicsResponse(responses=[result(name=name) for name in names]))


def creatable(name: str, partitions: int = 1) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1
    )


def ask_for_many(
    handler: ApiHandler, request: object, version: int, *, topics: object = MappingProxyType({})
) -> tuple[Any, Any]:
    """topics: of the image, by name."""
    controller = CountingController()
    image = SimpleNamespace(topics=topics)
    sliced = Sliced(controller=controller, image=image)
    context = RequestContext(handler.api_key, version)
    outcome = handler.handle(sliced.services, context, request)
    try:
        return controller, sliced.answer(outcome)
    except KafkaError as error:  # as `dispatch` answers it
        return controller, handler.error_response(request, error.code, error.message)


def test_many_topics_are_created_in_parts() -> None:
    names = [f"t{index}" for index in range(1000)]
    request = CreateTopicsRequest(
        topics=[
            *map(creatable, names),
            creatable("twice"),
            creatable("wide", 500),
            creatable("twice"),
        ]
    )
    controller, response = ask_for_many(CREATE, request, 7)
    assert max(map(len, controller.created)) <= 32
    assert ["wide"] in controller.created
    assert list(chain(*controller.created)) == [*names, "wide"]
    *made, last = response.topics
    assert [topic.name for topic in made] == [*names, "wide"]
    assert (last.name, last.error_code) == ("twice", ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize(
    ("topics", "message"),
    [
        pytest.param(
            [creatable(f"t{index}", 100) for index in range(101)],
            "Excessively large number of partitions per request.",
            id="partitions",
        ),
        pytest.param(
            [creatable(f"t{index}") for index in range(5001)],
            "Unable to perform excessively large batch operation.",
            id="records",
        ),
    ],
)
def test_kafkas_bounds_are_those_of_the_whole_request(
    topics: list[CreateTopicsRequest.CreatableTopic], message: str
) -> None:
    controller, response = ask_for_many(CREATE, CreateTopicsRequest(topics=topics), 7)
    assert controller.created == []
    assert len(response.topics) == len(topics)
    assert {(topic.error_code, topic.error_message) for topic in response.topics} == {
        (ErrorCode.POLICY_VIOLATION, message)
    }


@pytest.mark.parametrize("version", [5, 6])
def test_many_topics_are_deleted_in_parts(version: int) -> None:
    """A name that comes again and again is decided on once, with its duplicate."""
    names = [f"t{index}" for index in range(1000)]
    asked = [*names, *["twice"] * 1000]
    request = DeleteTopicsRequest(topic_names=asked)
    if version == 6:
        state = DeleteTopicsRequest.DeleteTopicState
        request = DeleteTopicsRequest(topics=[state(name=name) for name in asked])
    controller, response = ask_for_many(DELETE, request, version)
    assert max(map(len, controller.deleted)) <= 32
    assert list(chain(*controller.deleted)) == [*names, "twice", "twice"]
    assert len(response.responses) == 1002


def test_entries_with_a_name_and_an_id_are_decided_in_parts() -> None:
    """None of them concerns another, although they name the same topic."""
    state = DeleteTopicsRequest.DeleteTopicState
    ids = [number.to_bytes(16, "big") for number in range(1, 1001)]
    request = DeleteTopicsRequest(topics=[state(name="known", topic_id=each) for each in ids])
    known = SimpleNamespace(topic_id=ids[0])
    controller, response = ask_for_many(DELETE, request, 6, topics={"known": known})
    assert max(map(len, controller.deleted)) <= 32
    assert len(response.responses) == 1000


def test_no_more_topics_are_looked_at_than_may_be_deleted() -> None:
    count = 100_000
    request = DeleteTopicsRequest(topic_names=[f"t{index}" for index in range(count)])
    looked_at: list[str] = []
    topics = SimpleNamespace(get=looked_at.append)
    ask_for_many(DELETE, request, 5, topics=topics)
    assert len(looked_at) == 10_001


def test_no_more_topics_are_deleted_than_kafka_does() -> None:
    request = DeleteTopicsRequest(topic_names=[f"t{index}" for index in range(10_001)])
    controller, response = ask_for_many(DELETE, request, 5)
    assert controller.deleted == []
    assert {each.error_code for each in response.responses} == {ErrorCode.POLICY_VIOLATION}
