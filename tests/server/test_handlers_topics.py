"""CreateTopics and DeleteTopics as the dispatcher calls them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.model import Deferred
from kbroker.protocol import codec
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kbroker.server.dispatch import RequestContext
from kbroker.server.handlers.topics import HANDLERS
from kbroker.server.services import Services

CREATE, DELETE = HANDLERS


class FakeController:
    """Gives out Deferreds that the test resolves."""

    def __init__(self) -> None:
        self.deferred: Deferred[Any] = Deferred()
        self.asked: list[object] = []

    def create_topics(self, request: CreateTopicsRequest) -> Deferred[CreateTopicsResponse]:
        self.asked.append(request)
        return self.deferred

    def delete_topics(
        self, request: DeleteTopicsRequest, *, api_version: int
    ) -> Deferred[DeleteTopicsResponse]:
        self.asked.append((request, api_version))
        return self.deferred


def services(controller: FakeController) -> Services:
    return cast(Services, SimpleNamespace(controller=controller))


def test_registrations() -> None:
    assert [(h.api_key, h.min_version, h.max_version) for h in HANDLERS] == [
        (ApiKey.CREATE_TOPICS, 0, 7),
        (ApiKey.DELETE_TOPICS, 0, 6),
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
