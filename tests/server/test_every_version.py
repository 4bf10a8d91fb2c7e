"""Every announced version of every API answers, also an error: it fills in what that version has.

One broker, one partition with a record in it, requests straight to the dispatcher: no sockets.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, cast

import pytest

from kbroker.node.node import Broker
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey, response_class
from kbroker.protocol.codecs.codec import decode, encode, part_size
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.framing import decode_response_header, encode_request_frame
from kbroker.server.handlers import all_handlers
from kbroker.server.session import Session
from kbroker.testing import EmbeddedBroker
from tests.server.every_request import REQUESTS, TOPIC

CONNECTION = Session("c", "PLAINTEXT", "127.0.0.1")


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as embedded:
        embedded.create_topic(TOPIC)
        embedded.wait(
            lambda running: running.services.channel.ensure_internal_topic("__consumer_offsets")
        )
        embedded.wait(
            lambda running: running.services.channel.ensure_internal_topic("__share_group_state")
        )
        yield embedded


HANDLERS = {handler.api_key: handler for handler in all_handlers()}
CASES = [
    pytest.param(handler.api_key, version, id=f"{handler.api_key.name}-v{version}")
    for handler in HANDLERS.values()
    for version in range(handler.min_version, handler.max_version + 1)
]


def answer(embedded: EmbeddedBroker, request: Message, version: int) -> Message:
    """The decoded response. A file range in it counts as that many zeros."""
    frame = b"".join(cast(list[bytes], encode_request_frame(request, version, 7, "sweep")))[4:]

    def dispatch(running: Broker) -> Deferred[bytes]:
        done: Deferred[bytes] = Deferred()
        pending = running.dispatcher.dispatch(CONNECTION, memoryview(bytearray(frame)), 0)
        assert pending is not None

        def finish(message: Any) -> None:
            pending.message = message
            parts = running.dispatcher.render(pending)
            raw = [
                p if isinstance(p, bytes | bytearray | memoryview) else bytes(p.size) for p in parts
            ]
            assert part_size(parts[0]) >= 8
            done.resolve(b"".join(raw))

        if pending.message is not None:
            finish(pending.message)
        else:
            assert pending.deferred is not None
            pending.deferred.on_done(finish)
        return done

    reply = embedded.wait(dispatch)
    assert struct.unpack_from(">i", reply)[0] == len(reply) - 4
    correlation_id, position = decode_response_header(reply[4:], request.API_KEY, version)
    assert correlation_id == 7
    response, end = decode(response_class(request.API_KEY), reply[4:], version, position)
    assert end == len(reply) - 4
    return response


def test_every_served_api_has_a_request_here() -> None:
    assert set(REQUESTS) == set(HANDLERS)


@pytest.mark.parametrize(("api_key", "version"), CASES)
def test_every_version_answers(broker: EmbeddedBroker, api_key: ApiKey, version: int) -> None:
    topic_id = broker.call(lambda running: running.services.image.topics[TOPIC].topic_id)
    before = broker.call(lambda running: running.dispatcher.surprises)
    response = answer(broker, REQUESTS[api_key](version, topic_id), version)
    assert broker.call(lambda running: running.dispatcher.surprises) == before
    assert getattr(response, "error_code", 0) != ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(("api_key", "version"), CASES)
def test_every_version_can_say_an_error(api_key: ApiKey, version: int) -> None:
    request = REQUESTS[api_key](version, bytes([5] * 16))
    for code in (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NOT_CONTROLLER):
        encode(HANDLERS[api_key].error_response(request, code, "a reason"), version)
