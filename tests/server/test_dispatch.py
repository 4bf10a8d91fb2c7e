"""From frame to response without a socket: versions, errors, surprises, interceptors."""

from __future__ import annotations

import logging
import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.model import InvariantError
from kbroker.ports import Deferred, Surprise
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode, KafkaError, MalformedRequest
from kbroker.protocol.framing import encode_request_frame
from kbroker.protocol.messages.coordinators.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
)
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.server.api_handler import ApiHandler
from kbroker.server.api_policy import (
    NO_AUTHORISATION,
    READ_GROUP,
    ApiPolicy,
    ListenerType,
    Versions,
)
from kbroker.server.dispatch import Dispatcher
from kbroker.server.handlers.cluster import api_versions
from kbroker.server.requests import CloseConnection, Outcome, RequestContext
from kbroker.server.services import Services
from kbroker.server.session import Session


def heartbeat_error(request: Any, error: ErrorCode, message: str) -> Message:
    return HeartbeatResponse(error_code=error)


def policy(min_version: int, max_version: int) -> ApiPolicy:
    return ApiPolicy(Versions(min_version, max_version), NO_AUTHORISATION)


PRODUCE_POLICY = ApiPolicy(Versions(3, 13), NO_AUTHORISATION, mostly_records=True)


class Harness:
    """A dispatcher with ApiVersions and a Heartbeat whose behaviour a test sets."""

    def __init__(self) -> None:
        self.outcome: Outcome | Exception = HeartbeatResponse()
        self.contexts: list[RequestContext] = []
        self.connection = Session("c-1", "PLAINTEXT", "127.0.0.1")
        metadata = SimpleNamespace(
            image=SimpleNamespace(offset=7),
            finalized_features=lambda: {"metadata.version": 30, "group.version": 1},
        )
        services = cast(
            Services,
            SimpleNamespace(node_id=1, metadata=metadata, image=metadata.image),
        )
        handlers = (
            *api_versions.HANDLERS,
            ApiHandler(ApiKey.HEARTBEAT, self.handle, heartbeat_error, policy(1, 4)),
            ApiHandler(ApiKey.PRODUCE, self.handle, heartbeat_error, PRODUCE_POLICY),
        )
        self.dispatcher = Dispatcher(handlers, services)

    def handle(
        self, services: Services, context: RequestContext, request: HeartbeatRequest
    ) -> Outcome:
        self.contexts.append(context)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def send(self, message: Message, version: int, tail: bytes = b"") -> Message | None:
        pending = self.dispatcher.dispatch(self.connection, body(message, version, tail), 123)
        return None if pending is None else pending.message


def body(message: Message, version: int, tail: bytes = b"") -> memoryview:
    parts = encode_request_frame(message, version, 77, "tester")
    return memoryview(bytearray(b"".join(cast(list[bytes], parts))[4:] + tail))


def test_a_handler_gets_request_and_context() -> None:
    harness = Harness()
    assert harness.send(HeartbeatRequest(group_id="g"), 4) == HeartbeatResponse()
    (context,) = harness.contexts
    assert context.api_key is ApiKey.HEARTBEAT
    assert (context.api_version, context.correlation_id, context.client_id) == (4, 77, "tester")
    assert (context.arrived_ms, context.session.connection_id) == (123, "c-1")
    assert harness.dispatcher.requests == {ApiKey.HEARTBEAT: 1}


def test_outcomes() -> None:
    harness = Harness()
    harness.outcome = None
    assert harness.dispatcher.dispatch(harness.connection, body(HeartbeatRequest(), 4), 0) is None
    harness.outcome = Deferred.of(HeartbeatResponse(throttle_time_ms=5))
    assert harness.send(HeartbeatRequest(), 4) == HeartbeatResponse(throttle_time_ms=5)
    later: Deferred[Message] = Deferred()
    harness.outcome = later
    pending = harness.dispatcher.dispatch(harness.connection, body(HeartbeatRequest(), 4), 0)
    assert pending is not None and pending.deferred is later and pending.message is None


def test_a_kafka_error_becomes_the_apis_response() -> None:
    harness = Harness()
    harness.outcome = KafkaError(ErrorCode.NOT_COORDINATOR, "elsewhere")
    assert harness.send(HeartbeatRequest(), 4) == HeartbeatResponse(
        error_code=ErrorCode.NOT_COORDINATOR
    )
    assert harness.dispatcher.surprises == 0


def test_a_surprise_is_logged_once_and_answered(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness()
    harness.outcome = ZeroDivisionError("oops")
    assert harness.send(HeartbeatRequest(), 4) == HeartbeatResponse(
        error_code=ErrorCode.UNKNOWN_SERVER_ERROR
    )
    assert harness.dispatcher.surprises == 1
    (record,) = caplog.records
    assert record.levelno == logging.ERROR and record.exc_info is not None
    for part in ("HEARTBEAT v4", "tester", "127.0.0.1"):
        assert part in record.getMessage()


def failed(harness: Harness, *, is_early: bool, error: KafkaError) -> Message | None:
    """The response when the handler's Deferred fails before or after it is returned."""
    deferred: Deferred[Message] = Deferred()
    harness.outcome = deferred
    if is_early:
        deferred.fail(error)
        return harness.send(HeartbeatRequest(), 4)
    pending = harness.dispatcher.dispatch(harness.connection, body(HeartbeatRequest(), 4), 0)
    assert pending is not None
    responses: list[Any] = []
    deferred.on_done(
        responses.append, lambda error: responses.append(pending.error_response(error))
    )
    deferred.fail(error)
    (response,) = responses
    return cast(Message, response)


@pytest.mark.parametrize("is_early", [True, False])
def test_a_failed_deferred_becomes_the_apis_response(is_early: bool) -> None:
    harness = Harness()
    error = KafkaError(ErrorCode.NOT_COORDINATOR, "elsewhere")
    assert failed(harness, is_early=is_early, error=error) == HeartbeatResponse(
        error_code=ErrorCode.NOT_COORDINATOR
    )
    assert harness.dispatcher.surprises == 0


@pytest.mark.parametrize("is_early", [True, False])
def test_the_request_of_a_surprise_in_a_deferred_is_logged_and_answered(
    caplog: pytest.LogCaptureFixture, is_early: bool
) -> None:
    harness = Harness()
    assert failed(harness, is_early=is_early, error=Surprise()) == HeartbeatResponse(
        error_code=ErrorCode.UNKNOWN_SERVER_ERROR
    )
    assert harness.dispatcher.surprises == 1
    (record,) = caplog.records
    assert record.exc_info is None, "logged where it was raised"
    assert "HEARTBEAT v4" in record.getMessage()


def test_a_request_that_waits_keeps_no_view_on_the_receive_buffer() -> None:
    requests: list[Any] = []

    def failed_join(request: Any, error: ErrorCode, message: str) -> Message:
        requests.append(request)
        return JoinGroupResponse(error_code=error)

    later: Deferred[Message] = Deferred()
    services = cast(Services, SimpleNamespace(node_id=1))
    handler = ApiHandler(ApiKey.JOIN_GROUP, lambda *_: later, failed_join, policy(0, 9))
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"topics")
    frame = body(JoinGroupRequest(group_id="g", member_id="m", protocols=[protocol]), 9)
    pending = Dispatcher((handler,), services).dispatch(
        Session("c-1", "PLAINTEXT", "127.0.0.1"), frame, 0
    )
    assert pending is not None
    assert pending.error_response(KafkaError(ErrorCode.NOT_COORDINATOR)) == JoinGroupResponse(
        error_code=ErrorCode.NOT_COORDINATOR
    )
    assert requests == [JoinGroupRequest(group_id="g", member_id="m")]


def test_a_produce_request_that_fails_as_a_whole_closes_its_connection() -> None:
    harness = Harness()
    later: Deferred[Message] = Deferred()
    harness.outcome = later
    frame = body(ProduceRequest(topic_data=[]), 9)
    pending = harness.dispatcher.dispatch(harness.connection, frame, 0)
    assert pending is not None
    refusal = pending.error_response(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    pending.message = cast(Message, refusal)
    with pytest.raises(CloseConnection, match="NOT_LEADER_OR_FOLLOWER"):
        harness.dispatcher.render(pending)


@pytest.mark.parametrize(
    "error", [InvariantError("x"), CloseConnection("x"), MalformedRequest("x")]
)
def test_what_is_not_the_requests_fault_goes_up(error: Exception) -> None:
    harness = Harness()
    harness.outcome = error
    with pytest.raises(type(error)):
        harness.send(HeartbeatRequest(), 4)


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        pytest.param(b"", "too short", id="empty"),
        pytest.param(bytes(7), "too short", id="seven bytes"),
        pytest.param(struct.pack(">hhih", 999, 0, 1, -1), "999", id="unknown API"),
        pytest.param(struct.pack(">hhih", -1, 0, 1, -1), "-1", id="negative API"),
        pytest.param(struct.pack(">hhih", 3, 0, 1, -1), "3 is not served", id="unserved API"),
        pytest.param(struct.pack(">hhih", 12, 5, 1, -1), "HEARTBEAT v5", id="version above"),
        pytest.param(struct.pack(">hhih", 12, 0, 1, -1), "HEARTBEAT v0", id="version below"),
        pytest.param(struct.pack(">hhih", 12, -1, 1, -1), "HEARTBEAT v-1", id="negative version"),
        pytest.param(struct.pack(">hhih", 0, 0, 1, -1), "PRODUCE v0", id="announced, not served"),
        pytest.param(struct.pack(">hhih", 12, 1, 1, 500), "", id="client id beyond the frame"),
        pytest.param(struct.pack(">hhih", 12, 1, 1, -7), "", id="client id of length -7"),
        pytest.param(struct.pack(">hhih", 12, 1, 1, -1), "", id="no body"),
    ],
)
def test_bytes_that_are_no_request(frame: bytes, why: str) -> None:
    harness = Harness()
    with pytest.raises(MalformedRequest, match=why or None):
        harness.dispatcher.dispatch(harness.connection, memoryview(bytearray(frame)), 0)
    assert not harness.contexts


def test_bytes_behind_the_body_are_ignored() -> None:
    """librdkafka 2.16 sends three with a Metadata v13 request; Kafka does not mind."""
    assert Harness().send(HeartbeatRequest(), 4, tail=b"\1\0\0") == HeartbeatResponse()


def test_every_truncated_request_is_malformed() -> None:
    frame = body(HeartbeatRequest(group_id="group", member_id="member"), 4)
    for end in range(len(frame)):
        with pytest.raises(MalformedRequest):
            harness = Harness()
            harness.dispatcher.dispatch(harness.connection, frame[:end], 0)


def test_an_interceptor_comes_first() -> None:
    harness = Harness()
    answers: list[Message | None] = [HeartbeatResponse(throttle_time_ms=1), None]
    harness.dispatcher.interceptors[ApiKey.HEARTBEAT] = lambda context, request: answers.pop(0)
    assert harness.send(HeartbeatRequest(), 4) == HeartbeatResponse(throttle_time_ms=1)
    assert not harness.contexts
    assert harness.send(HeartbeatRequest(), 4) == HeartbeatResponse()
    assert len(harness.contexts) == 1


def test_a_response_that_cannot_be_encoded_ends_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = Harness()
    harness.outcome = HeartbeatResponse(error_code=1 << 20)
    pending = harness.dispatcher.dispatch(harness.connection, body(HeartbeatRequest(), 4), 0)
    assert pending is not None
    with pytest.raises(CloseConnection):
        harness.dispatcher.render(pending)
    assert harness.dispatcher.surprises == 1
    assert "HEARTBEAT v4" in caplog.text


class DeniesAll:
    """An authorizer."""

    def allows(self, *_: object) -> bool:
        return False


def test_a_request_that_is_not_authorised_does_not_reach_its_handler() -> None:
    harness = Harness()
    needs_group = ApiPolicy(Versions(0, 4), (READ_GROUP,))
    harness.dispatcher = Dispatcher(
        [ApiHandler(ApiKey.HEARTBEAT, harness.handle, heartbeat_error, needs_group)],
        harness.dispatcher._services,
        authorizer=DeniesAll(),
    )
    assert harness.send(HeartbeatRequest(group_id="g"), 4) == HeartbeatResponse(
        error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED
    )
    assert not harness.contexts and harness.dispatcher.surprises == 0


def test_a_listener_serves_the_apis_that_name_its_type() -> None:
    harness = Harness()
    dispatcher = Dispatcher(
        [
            *api_versions.HANDLERS,
            ApiHandler(ApiKey.HEARTBEAT, harness.handle, heartbeat_error, policy(0, 4)),
        ],
        harness.dispatcher._services,
        listener=ListenerType.CONTROLLER,
    )
    assert dispatcher.api_versions() == [(18, 0, 4)]
    assert 12 in [entry.api_key for entry in harness.dispatcher.api_versions()], "each has its own"
    with pytest.raises(MalformedRequest, match="12 is not served"):
        dispatcher.dispatch(harness.connection, body(HeartbeatRequest(), 4), 0)
