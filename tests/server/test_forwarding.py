"""A broker forwards what the active controller answers: the bytes in an Envelope, the response
relayed, each failure in its own form; versions; memory; a client that disconnects.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.client.node_api_versions import NodeApiVersions
from kbroker.model import ClientIdentity
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode, KafkaError, MalformedRequest
from kbroker.protocol.forwarded_client import client_of
from kbroker.protocol.framing import (
    decode_response_header,
    encode_request_frame,
    encode_response_frame,
)
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kbroker.protocol.messages.api_versions import ApiVersionsResponse
from kbroker.protocol.messages.cluster import EnvelopeRequest, EnvelopeResponse
from kbroker.protocol.messages.coordinators.groups import HeartbeatRequest, HeartbeatResponse
from kbroker.protocol.messages.quorum import DescribeQuorumRequest, DescribeQuorumResponse
from kbroker.server.api_handler import ApiHandler
from kbroker.server.api_policy import (
    EVERY_LISTENER,
    NO_AUTHORISATION,
    ApiPolicy,
    Forward,
    MemoryClass,
    Versions,
)
from kbroker.server.dispatch import Dispatcher
from kbroker.server.forwarding import ENVELOPE_BYTES, Forwarder, LocalForwarder, RequestForwarder
from kbroker.server.handlers.topics.topics import create_topics_error
from kbroker.server.request_errors import RequestErrors
from kbroker.server.requests import (
    LARGE_REQUEST_BYTES,
    CloseConnection,
    LargePendingResponse,
    Outcome,
    PendingResponse,
    RequestContext,
)
from kbroker.server.services import NodeServices, Services
from kbroker.server.session import Session
from kbroker.settings.views.network import NetworkConfig
from tests.server.garbage import found_by_collector
from tests.server.slices import Sliced

CLIENT = Session("c-1", "PLAINTEXT", "10.0.0.9", "User:alice")
CORRELATION_ID = 4711
NAMES = [f"a-topic-with-a-name-{number}" for number in range(2_000)]

_Created = CreateTopicsResponse.CreatableTopicResult


class Sent(Deferred[EnvelopeResponse]):
    """The response of the active controller to come."""

    __slots__ = ("is_cancelled",)

    def __init__(self) -> None:
        super().__init__()
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Channel:
    """To the active controller. Each request waits until a test answers it, unless outcome is
    set.
    """

    def __init__(self) -> None:
        self.envelopes: list[EnvelopeRequest] = []
        self.answers: list[Sent] = []
        self.outcome: Deferred[EnvelopeResponse] | None = None
        self.versions: NodeApiVersions | None = None

    def send(self, request: Any, response_type: Any) -> Deferred[Any]:
        assert response_type is EnvelopeResponse
        self.envelopes.append(request)
        self.answers.append(Sent())
        return self.answers[-1] if self.outcome is None else self.outcome

    def controller_api_versions(self) -> NodeApiVersions | None:
        return self.versions

    def serves(self, ranges: Mapping[ApiKey, tuple[int, int]]) -> None:
        kind = ApiVersionsResponse.ApiVersion
        keys = [
            kind(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in ranges.items()
        ]
        self.versions = NodeApiVersions("controller", ApiVersionsResponse(api_keys=keys))


class Broker:
    """A broker's dispatcher, with handlers that note what they are given. is_whole_cluster: whether
    its node is the only controller.
    """

    def __init__(self, *, is_whole_cluster: bool = False) -> None:
        self.sliced = Sliced()
        self.channel = Channel()
        self.here: list[tuple[ApiKey, Session]] = []
        self.at_controller: list[tuple[ApiKey, Session]] = []
        services = cast(Services, self.sliced)
        create = ApiHandler(
            ApiKey.CREATE_TOPICS,
            self.noting(self.here, CreateTopicsResponse()),
            create_topics_error,
            policy(2, 7, Forward.TO_CONTROLLER),
        )
        describe = ApiHandler(
            ApiKey.DESCRIBE_QUORUM,
            self.noting(self.at_controller, DescribeQuorumResponse(error_code=3)),
            _quorum_error,
            policy(0, 2, Forward.TO_CONTROLLER, MemoryClass.SMALL_RESPONSE),
        )
        heartbeat = ApiHandler(
            ApiKey.HEARTBEAT,
            self.noting(self.here, HeartbeatResponse()),
            lambda request, code, message: HeartbeatResponse(error_code=code),
            policy(0, 4, Forward.NEVER),
        )
        controller = Dispatcher((describe,), cast(NodeServices, self.sliced))
        self.errors = RequestErrors()
        forwarder: Forwarder = RequestForwarder(
            (create, describe), services, self.channel, self.errors
        )
        if is_whole_cluster:
            forwarder = LocalForwarder((describe,), lambda: controller, listener_name="CONTROLLER")
        self.dispatcher = Dispatcher((create, heartbeat), services, forwarder=forwarder)

    def noting(self, noted: list[tuple[ApiKey, Session]], response: Message) -> Any:
        def handle(services: Any, context: RequestContext, request: Any) -> Outcome:
            noted.append((context.api_key, context.session))
            return response

        return handle

    def begin(self, frame: bytearray) -> PendingResponse:
        """As the connection does with a frame of that size."""
        take = self.dispatcher.dispatch
        if len(frame) > LARGE_REQUEST_BYTES:
            take = self.dispatcher.dispatch_in_slices
        pending = take(CLIENT, memoryview(frame), 5)
        frame[:] = bytes(len(frame))  # the receive buffer is used again
        assert pending is not None
        if pending.deferred is not None:
            pending.deferred.on_done(lambda message: setattr(pending, "message", message))
        return pending

    def answer(self, *responses: EnvelopeResponse | KafkaError) -> None:
        for sent, response in zip(self.channel.answers, responses, strict=True):
            if isinstance(response, KafkaError):
                sent.fail(response)
            else:
                sent.resolve(response)
        while self.sliced.turns.due:
            self.sliced.turns.turn()

    def frame(self, pending: PendingResponse) -> bytes:
        return b"".join(cast(list[bytes], self.dispatcher.render(pending)))[4:]

    def created(self, pending: PendingResponse, version: int = 7) -> CreateTopicsResponse:
        frame = self.frame(pending)
        correlation_id, position = decode_response_header(frame, ApiKey.CREATE_TOPICS, version)
        response, end = decode(CreateTopicsResponse, frame, version, position)
        assert (correlation_id, end) == (CORRELATION_ID, len(frame))
        return response

    def codes(self, pending: PendingResponse) -> set[int]:
        return {each.error_code for each in self.created(pending).topics}


def policy(
    low: int, high: int, forward: Forward, memory_class: MemoryClass = MemoryClass.LARGE_RESPONSE
) -> ApiPolicy:
    return ApiPolicy(
        Versions(low, high),
        NO_AUTHORISATION,
        listeners=EVERY_LISTENER,
        forward=forward,
        memory_class=memory_class,
    )


def _quorum_error(request: Any, error: ErrorCode, message: str) -> Message:
    return DescribeQuorumResponse(error_code=error)


def frame_of(request: Message, version: int) -> bytearray:
    parts = encode_request_frame(request, version, CORRELATION_ID, "client")
    return bytearray(b"".join(cast(list[bytes], parts))[4:])


def create(*names: str, version: int = 7) -> bytearray:
    kind = CreateTopicsRequest.CreatableTopic
    topics = [kind(name=name, num_partitions=1, replication_factor=1) for name in names]
    return frame_of(CreateTopicsRequest(topics=topics), version)


def response_of(
    message: Message, version: int = 7, *, correlation_id: int = CORRELATION_ID
) -> EnvelopeResponse:
    parts = encode_response_frame(int(message.API_KEY), version, correlation_id, message)
    return EnvelopeResponse(response_data=b"".join(cast(list[bytes], parts))[4:])


# The request and its response


@pytest.mark.parametrize("names", [["t"], NAMES], ids=["small", "large"])
@pytest.mark.parametrize("version", [2, 4, 5, 7])
def test_the_bytes_go_there_and_back(names: list[str], version: int) -> None:
    broker = Broker()
    frame = create(*names, version=version)
    sent = bytes(frame)
    pending = broker.begin(frame)
    (envelope,) = broker.channel.envelopes
    assert bytes(envelope.request_data) == sent
    assert client_of(envelope) == ClientIdentity("User:alice", "10.0.0.9")
    assert pending.message is None and not broker.here
    answer = response_of(CreateTopicsResponse(topics=[_Created(name="t")]), version)
    broker.answer(answer)
    assert answer.response_data is not None
    assert broker.frame(pending) == bytes(answer.response_data)
    assert broker.dispatcher.requests == {ApiKey.CREATE_TOPICS: 1}


def test_a_token_is_told() -> None:
    broker = Broker()
    session = Session("c", principal="User:a", is_token_authenticated=True)
    broker.dispatcher.dispatch(session, memoryview(create("t")), 0)
    assert client_of(broker.channel.envelopes[0]).is_token_authenticated


def test_a_large_request_holds_its_connection_up() -> None:
    """No other request of the connection is begun meanwhile, as with one that is handled here."""
    assert type(Broker().begin(create(*NAMES))) is LargePendingResponse
    assert type(Broker().begin(create("t"))) is PendingResponse


def test_other_apis_stay_here() -> None:
    broker = Broker()
    pending = broker.begin(frame_of(HeartbeatRequest(group_id="g"), 4))
    assert pending.message == HeartbeatResponse() and not broker.channel.envelopes


@pytest.mark.parametrize(("version", "key"), [(1, 19), (8, 19), (0, 20), (0, 58)])
def test_what_is_not_served_ends_the_connection(version: int, key: int) -> None:
    broker = Broker()
    head = key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(20)
    for size in (0, LARGE_REQUEST_BYTES):
        with pytest.raises(MalformedRequest):
            broker.begin(bytearray(head + bytes(size)))
    assert not broker.channel.envelopes


def test_a_request_for_which_the_controller_may_have_no_room_is_not_forwarded() -> None:
    broker = Broker()
    network = NetworkConfig.from_broker(broker.sliced.config)
    most = min(network.max_frame_bytes, network.max_list_bytes) - ENVELOPE_BYTES
    broker.begin(create("t") + bytes(most - len(create("t"))))
    with pytest.raises(MalformedRequest, match="bytes"):
        broker.begin(create("t") + bytes(most - len(create("t")) + 1))
    assert len(broker.channel.envelopes) == 1


# Failures


@pytest.mark.parametrize("names", [["t"], NAMES], ids=["small", "large"])
@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        pytest.param(
            KafkaError(ErrorCode.REQUEST_TIMED_OUT), ErrorCode.REQUEST_TIMED_OUT, id="too late"
        ),
        pytest.param(
            KafkaError(ErrorCode.BROKER_NOT_AVAILABLE), ErrorCode.BROKER_NOT_AVAILABLE, id="stop"
        ),
        *[
            pytest.param(outcome, ErrorCode.UNKNOWN_SERVER_ERROR, id=name)
            for name, outcome in {
                "no Envelope": KafkaError(ErrorCode.UNSUPPORTED_VERSION),
                "unauthorised": EnvelopeResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
                "principal": EnvelopeResponse(
                    error_code=ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE
                ),
                "no response inside": EnvelopeResponse(),
                "half a header": EnvelopeResponse(response_data=b"\x00\x00"),
                "another response": response_of(CreateTopicsResponse(), correlation_id=1),
            }.items()
        ],
    ],
)
def test_failures_are_answered_in_the_apis_own_form(
    names: list[str], outcome: EnvelopeResponse | KafkaError, code: ErrorCode
) -> None:
    broker = Broker()
    pending = broker.begin(create(*names))
    broker.answer(outcome)
    assert [each.name for each in broker.created(pending).topics] == names
    assert broker.codes(pending) == {code}
    assert broker.errors.counts == {(ApiKey.CREATE_TOPICS, code): 1}
    assert not broker.sliced.memory.used


def test_a_failure_at_once() -> None:
    broker = Broker()
    broker.channel.outcome = Deferred.failed(KafkaError(ErrorCode.REQUEST_TIMED_OUT))
    pending = broker.begin(create("t"))
    assert pending.deferred is None
    assert broker.codes(pending) == {ErrorCode.REQUEST_TIMED_OUT}
    assert not broker.sliced.memory.used


@pytest.mark.parametrize("names", [["t"], NAMES], ids=["small", "large"])
def test_a_version_that_the_controller_lacks_ends_the_connection(names: list[str]) -> None:
    broker = Broker()
    pending = broker.begin(create(*names))
    broker.answer(EnvelopeResponse(error_code=ErrorCode.UNSUPPORTED_VERSION))
    with pytest.raises(CloseConnection, match="CREATE_TOPICS v7"):
        broker.dispatcher.render(pending)


@pytest.mark.parametrize("names", [["t"], NAMES], ids=["small", "large"])
def test_a_body_that_cannot_be_read_ends_the_connection_if_it_has_to_be(names: list[str]) -> None:
    broker = Broker()
    pending = broker.begin(create(*names)[:-8])
    broker.answer(KafkaError(ErrorCode.REQUEST_TIMED_OUT))
    with pytest.raises(CloseConnection):
        broker.dispatcher.render(pending)
    assert not broker.sliced.memory.used


@pytest.mark.parametrize("names", [["t"], NAMES], ids=["small", "large"])
def test_a_client_that_disconnects_cancels(names: list[str]) -> None:
    broker = Broker()
    frame = create(*names)
    with found_by_collector() as found:
        pending = broker.begin(frame)
        assert broker.sliced.memory.used == len(frame)
        assert pending.deferred is not None
        pending.deferred.cancel()
        assert broker.channel.answers[0].is_cancelled
        assert not broker.sliced.memory.used
        broker.answer(response_of(CreateTopicsResponse()))
        assert pending.message is None and not broker.sliced.memory.used
        del pending
    assert not found


def test_the_memory_of_a_request_is_charged_until_it_is_answered() -> None:
    broker = Broker()
    frames = [create("t"), create(*NAMES)]
    sizes = [len(frame) for frame in frames]
    for frame in frames:
        broker.begin(frame)
    assert broker.sliced.memory.used == sum(sizes)
    broker.answer(*[response_of(CreateTopicsResponse()) for _ in frames])
    assert not broker.sliced.memory.used


# Versions


@pytest.mark.parametrize(
    ("controllers", "announced"),
    [
        pytest.param(None, [(12, 0, 4), (19, 2, 7), (55, 0, 2)], id="unknown"),
        pytest.param(
            {
                ApiKey.CREATE_TOPICS: (5, 9),
                ApiKey.DESCRIBE_QUORUM: (0, 1),
                ApiKey.HEARTBEAT: (0, 1),
            },
            [(12, 0, 4), (19, 5, 7), (55, 0, 1)],
            id="the versions that both serve",
        ),
        pytest.param(
            {ApiKey.CREATE_TOPICS: (8, 9)}, [(12, 0, 4)], id="no common version, and no such API"
        ),
    ],
)
def test_forwarded_versions_are_those_of_both(
    controllers: dict[ApiKey, tuple[int, int]] | None, announced: list[tuple[int, int, int]]
) -> None:
    broker = Broker()
    if controllers is not None:
        broker.channel.serves(controllers)
    assert broker.dispatcher.api_versions() == announced


def test_the_classes_of_forwarded_responses_are_known() -> None:
    assert broker_small() == {ApiKey.DESCRIBE_QUORUM}


def broker_small() -> frozenset[int]:
    return Broker().dispatcher.small_responses


# A node that is its whole cluster


def test_it_answers_by_itself_what_its_broker_has_a_handler_for() -> None:
    broker = Broker(is_whole_cluster=True)
    assert broker.begin(create("t")).message == CreateTopicsResponse()
    assert broker.here == [(ApiKey.CREATE_TOPICS, CLIENT)]
    assert broker.dispatcher.requests == {ApiKey.CREATE_TOPICS: 1}
    assert broker.dispatcher.api_versions() == [(12, 0, 4), (19, 2, 7), (55, 0, 2)]


def test_what_only_its_controller_serves_is_handed_to_that() -> None:
    broker = Broker(is_whole_cluster=True)
    small = broker.begin(frame_of(DescribeQuorumRequest(), 2))
    assert small.message == DescribeQuorumResponse(error_code=3)
    large = broker.begin(frame_of(DescribeQuorumRequest(), 2) + bytes(LARGE_REQUEST_BYTES))
    broker.answer()
    for pending in (small, large):
        frame = broker.frame(pending)
        _, position = decode_response_header(frame, ApiKey.DESCRIBE_QUORUM, 2)
        response, _ = decode(DescribeQuorumResponse, frame, 2, position)
        assert response.error_code == 3
    assert broker.dispatcher.requests == {ApiKey.DESCRIBE_QUORUM: 2}
    for key, session in broker.at_controller:
        assert (key, session.listener_name) == (ApiKey.DESCRIBE_QUORUM, "CONTROLLER")
        assert (session.connection_id, session.principal) == ("c-1", "User:alice")


def test_a_dispatcher_without_a_forwarder_handles_what_it_has() -> None:
    services = cast(Services, SimpleNamespace(node_id=1, memory=None))
    handler = ApiHandler(
        ApiKey.CREATE_TOPICS,
        lambda services, context, request: CreateTopicsResponse(),
        create_topics_error,
        policy(2, 7, Forward.TO_CONTROLLER),
    )
    pending = Dispatcher((handler,), services).dispatch(CLIENT, memoryview(create("t")), 0)
    assert pending is not None and pending.message == CreateTopicsResponse()
