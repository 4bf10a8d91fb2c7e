"""Requests in a client's name: what is in the Envelope, and what becomes of the response."""

from __future__ import annotations

from typing import cast

import pytest

from kbroker.broker.node_to_controller import ActiveController, NodeToController
from kbroker.broker.principal_requests import CORRELATION_ID, send_with_principal
from kbroker.model import ClientIdentity
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey, valid_versions
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.forwarded_client import client_of
from kbroker.protocol.framing import decode_request_header, encode_response_frame
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kbroker.protocol.messages.cluster import EnvelopeRequest, EnvelopeResponse
from tests.client.channel.peers import SimWorld, channel_of

CLIENT = ClientIdentity("User:alice", "10.0.0.9", is_token_authenticated=True, client_id="app")
CREATED = CreateTopicsResponse(
    topics=[CreateTopicsResponse.CreatableTopicResult(name="t", error_code=36, configs=[])]
)
NEWEST = valid_versions(ApiKey.CREATE_TOPICS)[1]


class World:
    """A broker and the active controller. newest: of its CreateTopics."""

    def __init__(self, newest: int = NEWEST) -> None:
        self.world = SimWorld()
        self.peer = self.world.peer(1)
        self.peer.versions[int(ApiKey.ENVELOPE)] = (0, 0)
        self.peer.versions[int(ApiKey.CREATE_TOPICS)] = (2, newest)
        self.requests = NodeToController(
            lambda: channel_of(self.world),
            lambda: ActiveController(1, self.world.address(1)),
            self.world.timers,
            request_timeout_ms=1_000,
        )

    def start(self, *answers: EnvelopeResponse) -> Deferred[CreateTopicsResponse]:
        self.peer.script(ApiKey.ENVELOPE, *answers)
        topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1)
        request = CreateTopicsRequest(topics=[topic])
        answer = send_with_principal(self.requests, CLIENT, request, CreateTopicsResponse)
        self.world.until(lambda: answer.done)
        return answer

    def envelopes(self) -> list[EnvelopeRequest]:
        found = [request for _, _, request in self.peer.requests]
        return [each for each in found if isinstance(each, EnvelopeRequest)]


def wrapped(version: int, correlation_id: int = CORRELATION_ID) -> EnvelopeResponse:
    parts = encode_response_frame(ApiKey.CREATE_TOPICS, version, correlation_id, CREATED)
    return EnvelopeResponse(response_data=b"".join(cast(list[bytes], parts))[4:])


def test_the_controller_is_told_of_the_client() -> None:
    world = World()
    assert world.start(wrapped(NEWEST)).value == CREATED
    (envelope,) = world.envelopes()
    assert client_of(envelope) == CLIENT._replace(client_id=None)
    frame = memoryview(envelope.request_data)
    header = decode_request_header(frame)
    assert (header.api_key, header.api_version) == (ApiKey.CREATE_TOPICS, NEWEST)
    assert header.client_id == "app"
    request, end = decode(CreateTopicsRequest, frame, NEWEST, header.body_position)
    assert (request.topics[0].name, end) == ("t", len(frame))


def test_the_version_is_one_that_the_controller_serves() -> None:
    world = World(newest=5)
    world.start(wrapped(NEWEST))  # before its versions are known
    assert world.start(wrapped(5)).value == CREATED
    versions = [decode_request_header(each.request_data).api_version for each in world.envelopes()]
    assert versions == [NEWEST, 5]


def test_a_controller_that_is_no_longer_active_is_left() -> None:
    world = World()
    standby = EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    assert world.start(standby, wrapped(NEWEST)).value == CREATED
    assert len(world.envelopes()) == 2


@pytest.mark.parametrize(
    ("response", "code"),
    [
        pytest.param(
            EnvelopeResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            id="refused",
        ),
        pytest.param(EnvelopeResponse(), ErrorCode.UNKNOWN_SERVER_ERROR, id="empty"),
        pytest.param(
            EnvelopeResponse(response_data=b"\x00"), ErrorCode.UNKNOWN_SERVER_ERROR, id="no header"
        ),
        pytest.param(
            EnvelopeResponse(response_data=bytes(5)), ErrorCode.UNKNOWN_SERVER_ERROR, id="no body"
        ),
        pytest.param(wrapped(NEWEST, 5), ErrorCode.UNKNOWN_SERVER_ERROR, id="to another request"),
    ],
)
def test_failures(response: EnvelopeResponse, code: ErrorCode) -> None:
    failed = World().start(response)
    assert failed.error is not None and failed.error.code is code


def test_no_common_version() -> None:
    world = World()
    world.start(wrapped(NEWEST))
    world.peer.versions[int(ApiKey.CREATE_TOPICS)] = (NEWEST + 1, NEWEST + 2)
    world.peer.connections[0].stream.close()
    world.start(wrapped(NEWEST))  # on a new connection
    failed = world.start()
    assert failed.error is not None
    assert failed.error.code is ErrorCode.UNSUPPORTED_VERSION
