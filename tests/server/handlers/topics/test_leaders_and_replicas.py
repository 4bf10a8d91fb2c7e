"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments as the dispatcher calls
them.
"""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs import codec
from kbroker.protocol.codecs.schema import Request, Response
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from kbroker.server.api_handler import ApiHandler
from kbroker.server.api_policy import ListenerType
from kbroker.server.handlers import all_handlers, controller_handlers
from kbroker.server.handlers.topics.leaders_and_replicas import HANDLERS, RESULT_BYTES
from kbroker.server.requests import RequestContext
from kbroker.server.slicing.sliced import CHEAP_ITEMS, TOO_LARGE
from tests.server.slices import Sliced

ELECT, ALTER, LIST = HANDLERS


def elections(*topics: tuple[str, list[int]]) -> ElectLeadersRequest:
    kind = ElectLeadersRequest
    return kind(
        topic_partitions=[
            kind.TopicPartitions(topic=name, partitions=indexes) for name, indexes in topics
        ]
    )


def reassignments(*topics: tuple[str, list[int]]) -> AlterPartitionReassignmentsRequest:
    kind = AlterPartitionReassignmentsRequest
    return kind(
        topics=[
            kind.ReassignableTopic(
                name=name,
                partitions=[
                    kind.ReassignablePartition(partition_index=index, replicas=[2])
                    for index in indexes
                ],
            )
            for name, indexes in topics
        ]
    )


def listing(*topics: tuple[str, list[int]]) -> ListPartitionReassignmentsRequest:
    kind = ListPartitionReassignmentsRequest
    return kind(
        topics=[
            kind.ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)
            for name, indexes in topics
        ]
    )


EACH = [
    pytest.param(ELECT, elections, ElectLeadersResponse, id="ElectLeaders"),
    pytest.param(ALTER, reassignments, AlterPartitionReassignmentsResponse, id="Alter"),
    pytest.param(LIST, listing, ListPartitionReassignmentsResponse, id="List"),
]


class FakeController:
    """Gives out one Deferred that the test resolves."""

    def __init__(self) -> None:
        self.deferred: Deferred[Any] = Deferred()
        self.asked: list[Request] = []

    def _ask(self, request: Request) -> Deferred[Any]:
        self.asked.append(request)
        return self.deferred

    elect_leaders = alter_reassignments = list_reassignments = _ask


def ask(handler: ApiHandler[Any], request: Request, sliced: Sliced) -> Any:
    context = RequestContext(handler.api_key, handler.max_version)
    return handler.handle(sliced.services, context, request)


def test_registrations() -> None:
    assert [(h.api_key, h.min_version, h.max_version) for h in HANDLERS] == [
        (ApiKey.ELECT_LEADERS, 0, 2),
        (ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1),
        (ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0),
    ]
    for handler in HANDLERS:
        assert handler in all_handlers() and handler in controller_handlers()
        assert handler.policy.listeners == ListenerType.BROKER | ListenerType.CONTROLLER


@pytest.mark.parametrize(("handler", "make", "response_type"), EACH)
def test_the_controller_answers(
    handler: ApiHandler[Any], make: Any, response_type: type[Response]
) -> None:
    controller = FakeController()
    sliced = Sliced(controller=controller)
    request = make(("t", [0]))
    outcome = ask(handler, request, sliced)
    assert isinstance(outcome, Deferred) and not outcome.done
    response = response_type()
    controller.deferred.resolve(response)
    assert sliced.answer(outcome) is response
    assert controller.asked == [request]
    assert sliced.memory.used == 0


@pytest.mark.parametrize(("handler", "make", "response_type"), EACH)
def test_the_request_fails_with_the_controller(
    handler: ApiHandler[Any], make: Any, response_type: type[Response]
) -> None:
    controller = FakeController()
    sliced = Sliced(controller=controller)
    outcome = ask(handler, make(("t", [0])), sliced)
    controller.deferred.fail(KafkaError(ErrorCode.NOT_CONTROLLER))
    with pytest.raises(KafkaError, match="NOT_CONTROLLER"):
        sliced.answer(outcome)
    assert sliced.memory.used == 0


@pytest.mark.parametrize(("handler", "make", "response_type"), EACH)
def test_a_request_that_names_nothing_is_answered_without_the_controller(
    handler: ApiHandler[Any], make: Any, response_type: type[Response]
) -> None:
    controller = FakeController()
    response = Sliced(controller=controller).answer(
        ask(handler, make(), Sliced(controller=controller))
    )
    assert response.error_code == ErrorCode.NONE
    assert controller.asked == []


@pytest.mark.parametrize(
    ("handler", "request_"),
    [
        pytest.param(ELECT, ElectLeadersRequest(topic_partitions=None), id="ElectLeaders"),
        pytest.param(LIST, ListPartitionReassignmentsRequest(topics=None), id="List"),
    ],
)
def test_null_stands_for_all(handler: ApiHandler[Any], request_: Request) -> None:
    controller = FakeController()
    ask(handler, request_, Sliced(controller=controller))
    assert controller.asked == [request_]


@pytest.mark.parametrize(("handler", "make"), [(ELECT, elections), (ALTER, reassignments)])
def test_an_answer_that_would_be_too_large_is_refused_before_it_is_made(
    handler: ApiHandler[Any], make: Any
) -> None:
    """A long name in the message for each of many partitions."""
    controller = FakeController()
    name, count = "n" * 1000, 100
    limit = count * RESULT_BYTES
    sliced = Sliced(controller=controller, limit=limit)
    with pytest.raises(KafkaError, match=TOO_LARGE) as caught:
        sliced.answer(ask(handler, make((name, list(range(count)))), sliced))
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    assert controller.asked == []
    assert sliced.memory.used == 0
    ask(handler, make(("n", list(range(count // 2)))), sliced)
    assert len(controller.asked) == 1


@pytest.mark.parametrize(("handler", "make"), [(ELECT, elections), (ALTER, reassignments)])
def test_very_many_topics_are_counted_in_slices(handler: ApiHandler[Any], make: Any) -> None:
    controller = FakeController()
    sliced = Sliced(controller=controller, limit=1 << 30)
    outcome = ask(handler, make(*(("t", []) for _ in range(10 * CHEAP_ITEMS))), sliced)
    assert controller.asked == []
    assert isinstance(outcome, Deferred)
    controller.deferred.resolve(ElectLeadersResponse())
    sliced.answer(outcome)
    assert len(controller.asked) == 1


@pytest.mark.parametrize("version", range(3))
def test_elections_given_up(version: int) -> None:
    """v0 has no error of the whole response."""
    request = elections(("a", [0, 1]), ("b", [2]))
    response = ELECT.error_response(request, ErrorCode.NOT_CONTROLLER, "not now")
    decoded, _ = codec.decode(ElectLeadersResponse, codec.encode(response, version), version)
    assert decoded.error_code == (ErrorCode.NOT_CONTROLLER if version else ErrorCode.NONE)
    assert [
        (topic.topic, each.partition_id, each.error_code, each.error_message)
        for topic in decoded.replica_election_results
        for each in topic.partition_result
    ] == [("a", 0, 41, "not now"), ("a", 1, 41, "not now"), ("b", 2, 41, "not now")]
    everything = ElectLeadersRequest(topic_partitions=None)
    response = ELECT.error_response(everything, ErrorCode.NOT_CONTROLLER, "")
    decoded, _ = codec.decode(ElectLeadersResponse, codec.encode(response, version), version)
    assert decoded.replica_election_results == []


@pytest.mark.parametrize("version", range(2))
def test_reassignments_given_up(version: int) -> None:
    request = reassignments(("a", [0, 1]))
    request.allow_replication_factor_change = version == 0
    response = ALTER.error_response(request, ErrorCode.NOT_CONTROLLER, "")
    kind = AlterPartitionReassignmentsResponse
    decoded, _ = codec.decode(kind, codec.encode(response, version), version)
    assert (decoded.error_code, decoded.error_message) == (ErrorCode.NOT_CONTROLLER, None)
    assert decoded.allow_replication_factor_change == (version == 0)
    (topic,) = decoded.responses
    assert [(each.partition_index, each.error_code) for each in topic.partitions] == [
        (0, ErrorCode.NOT_CONTROLLER),
        (1, ErrorCode.NOT_CONTROLLER),
    ]


def test_a_list_given_up() -> None:
    response = LIST.error_response(listing(("a", [3])), ErrorCode.NOT_CONTROLLER, "why")
    kind = ListPartitionReassignmentsResponse
    decoded, _ = codec.decode(kind, codec.encode(response, 0), 0)
    assert (decoded.error_code, decoded.error_message) == (ErrorCode.NOT_CONTROLLER, "why")
    assert [each.partition_index for each in decoded.topics[0].partitions] == [3]
    everything = ListPartitionReassignmentsRequest(topics=None)
    assert LIST.error_response(everything, ErrorCode.NOT_CONTROLLER, "").topics == []
