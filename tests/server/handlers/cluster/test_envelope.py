"""Forwarded requests at the controller: unwrapped, handled as the client's own, and wrapped again;
the errors of Kafka in their order; large ones in slices; hostile bytes.
"""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from kbroker.model import ClientIdentity
from kbroker.ports import Deferred
from kbroker.protocol.apis import APIS, ApiKey, response_class
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode, KafkaError, MalformedRequest
from kbroker.protocol.forwarded_client import envelope
from kbroker.protocol.framing import decode_response_header, encode_request_frame
from kbroker.protocol.messages.admin.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kbroker.protocol.messages.cluster import EnvelopeRequest, EnvelopeResponse
from kbroker.protocol.messages.quorum import DescribeQuorumRequest, DescribeQuorumResponse
from kbroker.server.api_handler import ApiHandler
from kbroker.server.api_policy import (
    NO_AUTHORISATION,
    AclOperation,
    AclResource,
    ApiPolicy,
    ListenerType,
    Versions,
)
from kbroker.server.dispatch import Dispatcher
from kbroker.server.handlers.cluster.envelope import _refuses_as_standby, envelope_handler
from kbroker.server.requests import LARGE_REQUEST_BYTES, Outcome, PendingResponse, RequestContext
from kbroker.server.services import ControllerServices
from kbroker.server.session import Session
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.sliced import CHEAP_ITEMS
from tests.server.garbage import found_by_collector
from tests.server.slices import Sliced

CLIENT = ClientIdentity("User:alice", "10.0.0.9", is_token_authenticated=True)
BROKER = Session("broker-7", "CONTROLLER", "10.0.0.1", "User:broker")
CORRELATION_ID = 4711
MANY = 2_000

_Created = CreateTopicsResponse.CreatableTopicResult
_Partitions = CreatePartitionsRequest.CreatePartitionsTopic


class Waiting(Deferred[Message]):
    """An outcome that tells whether it was cancelled."""

    __slots__ = ("is_cancelled",)

    def __init__(self) -> None:
        super().__init__()
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Controller:
    """The dispatcher of a controller's listener, with handlers that a test scripts."""

    def __init__(self, authorizer: Any = None) -> None:
        self.sliced = Sliced()
        self.outcome: Outcome | Exception = None
        """None: the API's own response, without an error."""
        self.contexts: list[RequestContext] = []
        self.requests: list[Any] = []
        services = cast(ControllerServices, self.sliced)
        self.embedded = Dispatcher(
            (
                self.api(ApiKey.CREATE_TOPICS, Versions(2, 7)),
                self.api(ApiKey.DESCRIBE_QUORUM, Versions(0, 2)),
                ApiHandler(
                    ApiKey.CREATE_PARTITIONS,
                    self.handle,
                    _no_partitions,
                    ApiPolicy(Versions(0, 3), NO_AUTHORISATION, listeners=ListenerType.CONTROLLER),
                    division=Division(("topics",), ("results",)),
                ),
            ),
            services,
            listener=ListenerType.CONTROLLER,
        )
        self.dispatcher = Dispatcher(
            (envelope_handler(self.embedded), self.api(ApiKey.DELETE_TOPICS, Versions(1, 6))),
            services,
            listener=ListenerType.CONTROLLER,
            authorizer=authorizer,
        )

    def api(self, key: ApiKey, versions: Versions) -> ApiHandler[ControllerServices]:
        return ApiHandler(
            key,
            self.handle,
            _error_of(key),
            ApiPolicy(versions, NO_AUTHORISATION, listeners=ListenerType.CONTROLLER),
        )

    def handle(self, services: Any, context: RequestContext, request: Any) -> Outcome:
        self.contexts.append(context)
        self.requests.append(request)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        if self.outcome is None:
            return cast(Message, _error_of(context.api_key)(request, ErrorCode.NONE, ""))
        return self.outcome

    def begin(self, request: EnvelopeRequest) -> PendingResponse:
        """As the connection does with a frame of that size."""
        frame = frame_of(request, 0, correlation_id=1)
        take = self.dispatcher.dispatch
        if len(frame) > LARGE_REQUEST_BYTES:
            take = self.dispatcher.dispatch_in_slices
        pending = take(BROKER, memoryview(frame), 123)
        assert pending is not None
        if pending.deferred is not None:
            pending.deferred.on_done(
                lambda message: setattr(pending, "message", message),
                lambda error: setattr(pending, "message", pending.error_response(error)),
            )
        return pending

    def finish(self) -> int:
        turns = 0
        while self.sliced.turns.due:
            self.sliced.turns.turn()
            turns += 1
        return turns

    def answer(self, pending: PendingResponse) -> EnvelopeResponse:
        frame = b"".join(cast(list[bytes], self.dispatcher.render(pending)))[4:]
        correlation_id, position = decode_response_header(frame, ApiKey.ENVELOPE, 0)
        response, end = decode(EnvelopeResponse, frame, 0, position)
        assert (correlation_id, end) == (1, len(frame))
        return response

    def send(self, request: EnvelopeRequest) -> EnvelopeResponse:
        pending = self.begin(request)
        self.finish()
        return self.answer(pending)

    def code(self, request: EnvelopeRequest) -> ErrorCode:
        response = self.send(request)
        assert response.response_data is None
        return ErrorCode(response.error_code)


def _error_of(key: ApiKey) -> Any:
    def error_response(request: Any, error: ErrorCode, message: str) -> Message:
        if key is ApiKey.CREATE_TOPICS:
            return CreateTopicsResponse(
                topics=[_Created(name=each.name, error_code=error) for each in request.topics]
            )
        if key is ApiKey.DELETE_TOPICS:
            return DeleteTopicsResponse()
        if key is ApiKey.CREATE_PARTITIONS:
            return _no_partitions(request, error, message)
        return DescribeQuorumResponse(error_code=error)

    return error_response


def _no_partitions(request: Any, error: ErrorCode, message: str) -> CreatePartitionsResponse:
    kind = CreatePartitionsResponse.CreatePartitionsTopicResult
    return CreatePartitionsResponse(
        results=[kind(name=each.name, error_code=error) for each in request.topics]
    )


def frame_of(request: Message, version: int, *, correlation_id: int = CORRELATION_ID) -> bytearray:
    parts = encode_request_frame(request, version, correlation_id, "client")
    return bytearray(b"".join(cast(list[bytes], parts))[4:])


def wrapped(request: Message, version: int, client: ClientIdentity = CLIENT) -> EnvelopeRequest:
    return envelope(frame_of(request, version), client)


def create(*names: str) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic
    return CreateTopicsRequest(
        topics=[topic(name=name, num_partitions=1, replication_factor=1) for name in names]
    )


def many_names() -> list[str]:
    return [f"a-topic-with-a-name-{number}" for number in range(MANY)]


def inside(response: EnvelopeResponse, key: ApiKey, version: int) -> Any:
    """The response to the request inside, whose header is that of its own version."""
    assert response.error_code == 0 and response.response_data is not None
    data = bytes(response.response_data)
    correlation_id, position = decode_response_header(data, key, version)
    message, end = decode(response_class(key), data, version, position)
    assert (correlation_id, end) == (CORRELATION_ID, len(data))
    return message


@pytest.mark.parametrize("version", range(2, 8))
def test_a_request_is_handled_as_the_clients_own(version: int) -> None:
    controller = Controller()
    controller.outcome = CreateTopicsResponse(topics=[_Created(name="t")])
    response = controller.send(wrapped(create("t"), version))
    assert inside(response, ApiKey.CREATE_TOPICS, version).topics[0].name == "t"
    (context,) = controller.contexts
    assert (context.api_key, context.api_version) == (ApiKey.CREATE_TOPICS, version)
    assert (context.correlation_id, context.client_id) == (CORRELATION_ID, "client")
    assert context.arrived_ms == 123
    assert context.session == Session(
        "broker-7",
        "CONTROLLER",
        "10.0.0.9",
        "User:alice",
        is_token_authenticated=True,
        is_forwarded=True,
    )
    assert controller.dispatcher.requests == {ApiKey.ENVELOPE: 1}
    assert controller.embedded.requests == {ApiKey.CREATE_TOPICS: 1}


def test_a_response_that_comes_later() -> None:
    controller = Controller()
    controller.outcome = later = Deferred[Message]()
    pending = controller.begin(wrapped(create("t"), 7))
    assert pending.message is None
    later.resolve(CreateTopicsResponse(topics=[_Created(name="t")]))
    assert inside(controller.answer(pending), ApiKey.CREATE_TOPICS, 7) == CreateTopicsResponse(
        topics=[_Created(name="t", configs=[])]
    )


@pytest.mark.parametrize("is_later", [False, True])
def test_a_request_that_fails_is_answered_inside(is_later: bool) -> None:
    controller = Controller()
    error = KafkaError(ErrorCode.POLICY_VIOLATION, "no")
    controller.outcome = Deferred.failed(error) if is_later else error
    response = inside(controller.send(wrapped(create("t"), 7)), ApiKey.CREATE_TOPICS, 7)
    assert response.topics[0].error_code == ErrorCode.POLICY_VIOLATION


def test_a_surprise_is_answered_inside_and_counted() -> None:
    controller = Controller()
    controller.outcome = ValueError("a bug")
    response = inside(controller.send(wrapped(create("t"), 7)), ApiKey.CREATE_TOPICS, 7)
    assert response.topics[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert controller.embedded.surprises == 1


@pytest.mark.parametrize("is_later", [False, True])
@pytest.mark.parametrize("is_large", [False, True])
def test_a_response_that_cannot_be_encoded_ends_no_connection(
    *, is_later: bool, is_large: bool
) -> None:
    """It is that of all clients of the broker."""
    controller = Controller()
    broken = CreateTopicsResponse(topics=[_Created(name="t", num_partitions=1 << 40)])
    controller.outcome = Deferred.of(broken) if is_later else broken
    request = create(*many_names()) if is_large else create("t")
    assert controller.code(wrapped(request, 7)) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_the_end_of_the_connection_cancels_the_request() -> None:
    controller = Controller()
    controller.outcome = waiting = Waiting()
    pending = controller.begin(wrapped(create("t"), 7))
    assert pending.deferred is not None
    pending.deferred.cancel()
    assert waiting.is_cancelled
    waiting.resolve(CreateTopicsResponse())
    assert pending.message is None


# A controller that is not the active one


def _described(top: int, partition: int) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(
        error_code=top,
        topics=[
            DescribeQuorumResponse.TopicData(
                topic_name="t",
                partitions=[DescribeQuorumResponse.PartitionData(error_code=partition)],
            )
        ],
    )


def _topics(*codes: int) -> CreateTopicsResponse:
    return CreateTopicsResponse(topics=[_Created(name="t", error_code=code) for code in codes])


@pytest.mark.parametrize(
    ("request_", "response", "code"),
    [
        pytest.param(create("t"), _topics(0, 41), 41, id="an item is NOT_CONTROLLER"),
        pytest.param(create("t"), _topics(0, 6), 0, id="an item is NOT_LEADER_OR_FOLLOWER"),
        pytest.param(DescribeQuorumRequest(), _described(6, 0), 41, id="quorum, no leader"),
        pytest.param(DescribeQuorumRequest(), _described(0, 6), 41, id="quorum, in a partition"),
        pytest.param(DescribeQuorumRequest(), _described(41, 0), 0, id="quorum, NOT_CONTROLLER"),
    ],
)
def test_what_a_standby_answers_is_an_error_of_the_envelope(
    request_: Message, response: Message, code: int
) -> None:
    controller = Controller()
    controller.outcome = response
    answer = controller.send(wrapped(request_, 2))
    assert (answer.error_code, answer.response_data is None) == (code, code != 0)


@pytest.mark.parametrize("is_later", [False, True])
@pytest.mark.parametrize("is_large", [False, True])
def test_lost_leadership_is_an_error_of_the_envelope(*, is_later: bool, is_large: bool) -> None:
    controller = Controller()
    error = KafkaError(ErrorCode.NOT_CONTROLLER)
    controller.outcome = Deferred.failed(error) if is_later else error
    request = create(*many_names()) if is_large else create("t")
    assert controller.code(wrapped(request, 7)) is ErrorCode.NOT_CONTROLLER


# Errors of the Envelope, in Kafka's order


class Denies:
    """Denies CLUSTER_ACTION to everyone."""

    def allows(
        self, session: Session, operation: AclOperation, resource: AclResource, name: str
    ) -> bool:
        return (operation, resource) != (AclOperation.CLUSTER_ACTION, AclResource.CLUSTER)


BAD_PRINCIPAL = {"request_principal": b"\x00\x00\x05Us"}
BAD_ADDRESS = {"client_host_address": b"\x7f\x00\x01"}
NO_HEADER = {"request_data": b"\x00\x13\x00"}


def changed(request: EnvelopeRequest, **fields: Any) -> EnvelopeRequest:
    for name, value in fields.items():
        setattr(request, name, value)
    return request


def test_a_broker_without_cluster_action_is_refused_first() -> None:
    controller = Controller(authorizer=Denies())
    request = changed(wrapped(create("t"), 7), **BAD_PRINCIPAL)
    assert controller.code(request) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        pytest.param(
            BAD_PRINCIPAL | BAD_ADDRESS | NO_HEADER,
            ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE,
            id="principal before address",
        ),
        pytest.param(
            BAD_ADDRESS | NO_HEADER, ErrorCode.INVALID_REQUEST, id="address before header"
        ),
        pytest.param(NO_HEADER, ErrorCode.UNSUPPORTED_VERSION, id="no header"),
        pytest.param({"request_data": b""}, ErrorCode.UNSUPPORTED_VERSION, id="no request"),
        pytest.param(
            {"request_data": b"\x7f\xff" + bytes(8)},
            ErrorCode.UNSUPPORTED_VERSION,
            id="no such API",
        ),
    ],
)
def test_errors_come_in_kafkas_order(fields: dict[str, Any], code: ErrorCode) -> None:
    controller = Controller()
    assert controller.code(changed(wrapped(create("t"), 7), **fields)) is code
    assert not controller.requests


@pytest.mark.parametrize("key", [key for key, info in APIS.items() if not info.forwardable])
def test_apis_that_are_not_forwarded(key: int) -> None:
    head = key.to_bytes(2, "big") + bytes(9)  # version 0, without tagged fields
    request = changed(wrapped(create("t"), 7), request_data=head)
    assert Controller().code(request) is ErrorCode.INVALID_REQUEST, "also where it has no body"


def test_an_envelope_in_an_envelope() -> None:
    nested = wrapped(wrapped(create("t"), 7), 0)
    assert Controller().code(nested) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(wrapped(create("t"), 0), id="an old version"),
        pytest.param(wrapped(DeleteTopicsRequest(), 6), id="an API that is only served directly"),
    ],
)
def test_what_is_not_served_is_an_unsupported_version(request_: EnvelopeRequest) -> None:
    controller = Controller()
    assert controller.code(request_) is ErrorCode.UNSUPPORTED_VERSION
    assert not controller.requests


def test_a_version_from_the_future() -> None:
    frame = frame_of(create("t"), 7)
    frame[2:4] = (8).to_bytes(2, "big")
    request = changed(wrapped(create("t"), 7), request_data=frame)
    assert Controller().code(request) is ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("is_large", [False, True])
def test_every_cut_of_a_body_is_an_unsupported_version(*, is_large: bool) -> None:
    frame = frame_of(create(*many_names()) if is_large else create("t", "u"), 7)
    smallest = LARGE_REQUEST_BYTES if is_large else 0
    cuts = range(smallest + 1, len(frame), 97) if is_large else range(len(frame))
    for end in cuts:
        request = changed(wrapped(create("t"), 7), request_data=frame[:end])
        assert Controller().code(request) is ErrorCode.UNSUPPORTED_VERSION


def test_hostile_bytes_end_the_envelope_or_the_connection_and_nothing_else() -> None:
    draws = random.Random(58)
    whole = frame_of(wrapped(create("t", "u"), 7), 0, correlation_id=1)
    controller = Controller()
    for _ in range(2_000):
        frame = bytearray(whole)
        for _ in range(draws.randint(1, 4)):
            frame[draws.randrange(10, len(frame))] = draws.randrange(256)
        try:
            pending = controller.dispatcher.dispatch(BROKER, memoryview(frame), 0)
        except MalformedRequest:
            continue
        assert pending is not None
        controller.answer(pending)
    assert not controller.dispatcher.surprises and not controller.embedded.surprises
    assert not controller.sliced.memory.used


# Large requests


def test_a_large_request_takes_many_turns_and_no_second_copy() -> None:
    controller = Controller()
    names = many_names()
    controller.outcome = CreateTopicsResponse(topics=[_Created(name=name) for name in names])
    request = wrapped(create(*names), 7)
    pending = controller.begin(request)
    assert pending.message is None and not controller.requests
    assert controller.sliced.memory.used == len(frame_of(request, 0))
    assert controller.finish() > 4
    response = inside(controller.answer(pending), ApiKey.CREATE_TOPICS, 7)
    assert [each.name for each in response.topics] == names
    assert [each.name for each in controller.requests[0].topics] == names
    assert not controller.sliced.memory.used


def test_a_large_request_is_divided_as_by_itself() -> None:
    controller = Controller()
    controller.outcome = KafkaError(ErrorCode.INVALID_PARTITIONS)
    names = many_names()
    request = CreatePartitionsRequest(topics=[_Partitions(name=name, count=1) for name in names])
    response = inside(controller.send(wrapped(request, 3)), ApiKey.CREATE_PARTITIONS, 3)
    assert [each.name for each in response.results] == names
    assert len(controller.requests) > 10


def test_a_large_request_that_waits_is_cancelled_with_its_connection() -> None:
    controller = Controller()
    controller.outcome = waiting = Waiting()
    with found_by_collector() as found:
        pending = controller.begin(wrapped(create(*many_names()), 7))
        controller.finish()
        assert controller.requests and pending.message is None and pending.deferred is not None
        pending.deferred.cancel()
        pending.deferred = None  # it leads back here by the callback of this test
        controller.finish()
        assert waiting.is_cancelled and not controller.sliced.memory.used
        del pending
        controller.requests.clear()
        controller.contexts.clear()
        waiting = controller.outcome = None  # type: ignore[assignment]
    assert not found


def test_a_response_of_many_empty_lists_is_looked_through_in_steps() -> None:
    """For the error of a standby."""
    topics = [DescribeQuorumResponse.TopicData(topic_name="t") for _ in range(20 * CHEAP_ITEMS)]
    walk = _refuses_as_standby(DescribeQuorumResponse(topics=topics))
    assert sum(1 for _ in walk) == 20
