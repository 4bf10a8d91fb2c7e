"""Error responses to large requests: each API whose error response has a result for each item of
the request makes it in steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.ports import Deferred, at_once
from kbroker.protocol.apis import ApiKey, request_class
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.codecs.schema import Field, Message, Struct
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.framing import decode_response_header, encode_request_frame
from kbroker.protocol.messages.admin.configs import DescribeConfigsRequest
from kbroker.protocol.messages.admin.log_dirs import AlterReplicaLogDirsRequest
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kbroker.replication.time_slices import FairSlices
from kbroker.server.api_handler import REFUSED_ITEMS, ApiHandler
from kbroker.server.api_policy import NO_AUTHORISATION, ApiPolicy, Versions
from kbroker.server.dispatch import Dispatcher
from kbroker.server.handlers import all_handlers
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.requests import Outcome
from kbroker.server.services import Services
from kbroker.server.session import Session
from kbroker.settings.broker import BrokerConfig
from tests.replication.test_time_slices import Ticks, Turns

HANDLER_OF = {handler.api_key: handler for handler in all_handlers()}
ITEMS = 3
MANY = 5 * REFUSED_ITEMS

ENDS = [
    pytest.param(handler, version, id=f"{handler.api_key.name}-v{version}")
    for handler in all_handlers()
    for version in {handler.min_version, handler.max_version}
]


def primitive(kind: str, number: int) -> Any:
    if kind == "string":
        return f"name-{number}"
    return number.to_bytes(16, "big") if kind == "uuid" else number


def items_of(field: Field, count: int, depth: int = 0) -> list[Any]:
    """Distinct ones; lists within them have fewer items the deeper they are."""
    if field.element != "struct":
        return [primitive(field.element, number) for number in range(count)]
    items = []
    for number in range(count):
        item = field.struct()
        for each in field.struct.FIELDS:
            if each.type_name == "string":
                setattr(item, each.name, f"name-{number}")
            elif each.type_name == "array":
                setattr(item, each.name, items_of(each, ITEMS if depth < 2 else 1, depth + 1))
        items.append(item)
    return items


def request_of(handler: ApiHandler, count: int, version: int) -> Message:
    """It has so many items in each list of this version."""
    request = request_class(handler.api_key)()
    for field in type(request).FIELDS:
        if field.type_name == "array" and version in field.versions:
            setattr(request, field.name, items_of(field, count))
    if handler.api_key == ApiKey.PRODUCE:
        request.acks = 1  # type: ignore[attr-defined]  # a ProduceRequest
    return request


def structs(value: Any) -> int:
    """How many a message consists of."""
    if isinstance(value, Struct):
        return 1 + sum(structs(getattr(value, field.name)) for field in type(value).FIELDS)
    return sum(map(structs, value)) if isinstance(value, list) else 0


def grows(handler: ApiHandler, version: int) -> bool:
    """Whether an error response has more results for a larger request."""
    few, more = (
        handler.error_response(request_of(handler, count, version), ErrorCode.NOT_CONTROLLER, "")
        for count in (2, 4)
    )
    return structs(more) > structs(few)


def test_each_error_response_that_grows_with_the_request_is_cut() -> None:
    growing = {
        handler.api_key
        for handler in all_handlers()
        for version in (handler.min_version, handler.max_version)
        if grows(handler, version)
    }
    cut = {handler.api_key for handler in all_handlers() if handler.refusal is not None}
    divided = {handler.api_key for handler in all_handlers() if handler.division is not None}
    assert growing - divided == cut
    assert not cut & divided


@pytest.mark.parametrize(("handler", "version"), ENDS)
def test_it_says_the_same_in_steps(handler: ApiHandler, version: int) -> None:
    """And no step makes more than a bounded number of results."""
    request = request_of(handler, MANY, version)
    steps = handler.refused_in_steps(request, ErrorCode.NOT_CONTROLLER, "why")
    total, pauses = None, 0
    try:
        while True:
            next(steps)
            pauses += 1
    except StopIteration as end:
        total = end.value
    if handler.division is None and grows(handler, version):
        assert pauses + 1 >= MANY // REFUSED_ITEMS
    assert total == handler.error_response(request, ErrorCode.NOT_CONTROLLER, "why")


def test_items_that_are_named_again_have_one_result_in_steps_too() -> None:
    created = CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.CreatableTopic(name=f"t-{number % 3}") for number in range(MANY)
        ]
    )
    described = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=2, resource_name=f"t-{number % 3}"
            )
            for number in range(MANY)
        ]
    )
    moves = AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDirsRequest.AlterReplicaLogDir(
                path=f"/{number}",
                topics=[
                    AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(
                        name="t", partitions=[number]
                    )
                ],
            )
            for number in range(MANY)
        ]
    )
    for api_key, request, field, count in (
        (ApiKey.CREATE_TOPICS, created, "topics", 3),
        (ApiKey.DESCRIBE_CONFIGS, described, "results", 3),
        (ApiKey.ALTER_REPLICA_LOG_DIRS, moves, "results", 1),
    ):
        steps = HANDLER_OF[api_key].refused_in_steps(request, ErrorCode.NOT_CONTROLLER, "")
        assert len(getattr(at_once(steps), field)) == count


def frame_of(request: Message, version: int) -> memoryview:
    parts = cast(list[bytes], encode_request_frame(request, version, 7, "c"))
    return memoryview(bytearray(b"".join(parts)[4:]))


def raises(services: Any, context: Any, request: Any) -> Outcome:
    raise KafkaError(ErrorCode.INVALID_REQUEST, "why")


def fails(services: Any, context: Any, request: Any) -> Outcome:
    return Deferred.failed(KafkaError(ErrorCode.INVALID_REQUEST, "why"))


def raises_in_steps(services: Any, context: Any, request: Any) -> Iterator[None]:
    yield
    raise KafkaError(ErrorCode.INVALID_REQUEST, "why")


@pytest.mark.parametrize("version", [11, 13])
@pytest.mark.parametrize("refuse", [raises, fails, raises_in_steps])
def test_a_large_request_is_refused_in_several_turns(version: int, refuse: Any) -> None:
    kind = MetadataRequest.MetadataRequestTopic
    request = MetadataRequest(topics=[kind(name=f"t-{number}") for number in range(MANY)])
    own = HANDLER_OF[ApiKey.METADATA]
    refused: list[int] = []

    def error_response(request: Any, code: ErrorCode, message: str) -> Message:
        refused.append(len(request.topics))
        return own.error_response(request, code, message)

    is_steps = refuse is raises_in_steps
    handler = ApiHandler(
        ApiKey.METADATA,
        raises if is_steps else refuse,
        error_response,
        ApiPolicy(Versions(0, 13), NO_AUTHORISATION),
        steps=refuse if is_steps else None,
        refusal=own.refusal,
    )
    turns = Turns()
    services: Any = SimpleNamespace(
        node_id=1,
        memory=MemoryPool(),
        slices=FairSlices(turns, seconds=0.001, clock=Ticks()),
        config=BrokerConfig.from_properties({}),
    )
    dispatcher = Dispatcher((handler,), cast(Services, services))
    pending = dispatcher.dispatch_in_slices(Session(), frame_of(request, version), 0)
    assert pending is not None and pending.deferred is not None
    pending.deferred.on_done(lambda message: setattr(pending, "message", message))
    while turns.due:
        before = len(refused)
        turns.turn()
        assert len(refused) - before <= 2
    assert refused == [REFUSED_ITEMS] * (MANY // REFUSED_ITEMS)
    frame = b"".join(cast(list[bytes], dispatcher.render(pending)))[4:]
    _, position = decode_response_header(frame, ApiKey.METADATA, version)
    response, _ = decode(MetadataResponse, memoryview(frame), version, position)
    if version >= 13:
        assert response.error_code == ErrorCode.INVALID_REQUEST
    assert len(response.topics) == MANY
    assert {topic.error_code for topic in response.topics} == {ErrorCode.INVALID_REQUEST}
