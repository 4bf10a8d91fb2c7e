"""Requests in pieces: the responses to the pieces make the response to the whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks import attack_bodies
from benchmarks.attack_values import Names
from benchmarks.attack_world import PROPERTIES, World
from kbroker.node.node import Broker
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey, request_class, response_class
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.codecs.schema import Struct
from kbroker.protocol.framing import decode_response_header
from kbroker.server.handlers import all_handlers
from kbroker.server.requests import LargePendingResponse, PendingResponse
from kbroker.server.session import Session
from kbroker.testing import EmbeddedBroker

CONNECTION = Session("c", "PLAINTEXT", "127.0.0.1")
DIVIDED = [
    pytest.param(handler, version, id=f"{handler.api_key.name}-v{version}")
    for handler in sorted(all_handlers(), key=lambda handler: handler.api_key)
    for version in range(handler.min_version, handler.max_version + 1)
    if handler.division is not None
]
CHANGING = {
    ApiKey.PRODUCE, ApiKey.DELETE_GROUPS,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE, ApiKey.WRITE_SHARE_GROUP_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE,
}  # fmt: skip
"""Asked a second time these may rightly answer something else; here only of what is unknown."""


@pytest.mark.parametrize(("handler", "version"), DIVIDED)
def test_every_division_names_lists_that_exist(handler: Any, version: int) -> None:
    division = handler.division
    assert division is not None
    for kind, path in (
        (request_class(handler.api_key), division.request),
        (response_class(handler.api_key), division.response),
    ):
        owner: type[Struct] = kind
        for place, name in enumerate(path):
            (field,) = [each for each in owner.FIELDS if each.name == name]
            assert field.type_name == "array"
            if place + 1 < len(path):
                owner = field.struct


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(PROPERTIES) as embedded:
        world = World(embedded.host, embedded.port, wide_partitions=10)
        world.prepare()
        world.close()
        yield embedded


def answer(embedded: EmbeddedBroker, frame: bytes, *, in_slices: bool) -> Any:
    """The decoded response."""

    def dispatch(running: Broker) -> Deferred[bytes]:
        done: Deferred[bytes] = Deferred()
        dispatcher = running.dispatcher
        method = dispatcher.dispatch_in_slices if in_slices else dispatcher.dispatch
        pending = method(CONNECTION, memoryview(bytearray(frame))[4:], 0)
        assert isinstance(pending, LargePendingResponse if in_slices else PendingResponse)

        def finish(message: Any) -> None:
            pending.message = message
            done.resolve(b"".join(bytes(part) for part in dispatcher.render(pending)))  # type: ignore[arg-type]  # no file ranges

        if pending.deferred is not None:
            pending.deferred.on_done(finish)
        else:
            finish(pending.message)
        return done

    reply = memoryview(embedded.wait(dispatch))
    api_key, version = (int.from_bytes(frame[at : at + 2], "big") for at in (4, 6))
    assert int.from_bytes(reply[:4], "big") == len(reply) - 4
    _, position = decode_response_header(reply[4:], api_key, version)
    response, _ = decode(response_class(api_key), reply[4:], version, position)
    return response


def said(response: Any) -> Any:
    """The handlers of share states answer by topic id, so a topic that is named in two pieces comes
    twice; what is said of its partitions is the same.
    """
    results = getattr(response, "results", [])
    if not results or not hasattr(results[0], "topic_id"):
        return response
    by_topic: dict[bytes, list[Any]] = {}
    for result in results:
        by_topic.setdefault(result.topic_id, []).extend(result.partitions)
    return by_topic


@pytest.mark.parametrize(("handler", "version"), DIVIDED)
def test_in_slices_the_response_is_the_same(
    broker: EmbeddedBroker, handler: Any, version: int
) -> None:
    """Of several hundred things named: distinct ones, and the same one again and again."""
    names = [Names("plain", partitions=10)]
    generator = attack_bodies.Generator(handler.api_key, version, names, 1500)
    compared = 0
    for attack in generator.attacks():
        is_safe = handler.api_key not in CHANGING or attack.detail.endswith(", names")
        if attack.kind not in ("repeated", "distinct") or not is_safe:
            continue
        frame = attack.frame(7)
        whole = said(answer(broker, frame, in_slices=False))
        assert said(answer(broker, frame, in_slices=True)) == whole, attack.detail
        compared += 1
    assert compared
