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
from kbroker.protocol.codec import decode
from kbroker.protocol.framing import decode_response_header
from kbroker.protocol.messages.list_offsets import OffsetForLeaderEpochRequest
from kbroker.protocol.messages.offsets import OffsetFetchRequest, OffsetFetchResponse
from kbroker.protocol.pieces import merge, pieces
from kbroker.protocol.schema import Struct
from kbroker.server.handlers import all_handlers
from kbroker.server.requests import LargePendingResponse, PendingResponse
from kbroker.server.session import Session
from kbroker.server.slicing.divided_requests import count_items
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


def topic(name: str, *partitions: int) -> OffsetForLeaderEpochRequest.OffsetForLeaderTopic:
    kind = OffsetForLeaderEpochRequest
    items = [kind.OffsetForLeaderPartition(partition=index) for index in partitions]
    return kind.OffsetForLeaderTopic(topic=name, partitions=items)


def named(value: Any) -> list[tuple[str, list[int]]]:
    return [(each.topic, [item.partition for item in each.partitions]) for each in value.topics]


def test_pieces_hold_no_more_than_their_size_and_say_what_they_continue() -> None:
    request = OffsetForLeaderEpochRequest(
        replica_id=7, topics=[topic("a", 0), topic("b", *range(5)), topic("c"), topic("d", 0)]
    )
    found = list(pieces(request, ("topics", "partitions"), 2))
    assert [(named(piece), continued) for piece, continued in found] == [
        ([("a", [0])], 0),
        ([("b", [0, 1])], 0),
        ([("b", [2, 3])], 1),
        ([("b", [4])], 1),
        ([("c", []), ("d", [0])], 0),
    ]
    assert all(piece.replica_id == 7 for piece, _ in found)
    assert len(request.topics) == 4 and len(request.topics[1].partitions) == 5


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_the_pieces_make_the_whole(size: int) -> None:
    """With a topic that the client itself names twice in a row, which stays two."""
    path = ("topics", "partitions")
    request = OffsetForLeaderEpochRequest(
        topics=[topic("a", 1, 2, 3), topic("a", 4, 5, 6), topic("b"), topic("c", *range(7))]
    )
    total: Any = None
    for piece, continued in pieces(request, path, size):
        if total is None:
            total = piece
        else:
            merge(total, piece, path, continued)
    assert named(total) == named(request)
    assert count_items(total, path) == 14


def test_three_levels_and_null_for_all() -> None:
    path = ("groups", "topics", "partition_indexes")
    kind = OffsetFetchRequest
    topics = [
        kind.OffsetFetchRequestTopics(name=name, partition_indexes=[0, 1, 2]) for name in "ab"
    ]
    request = kind(
        groups=[
            kind.OffsetFetchRequestGroup(group_id="all", topics=None),
            kind.OffsetFetchRequestGroup(group_id="some", topics=topics),
        ]
    )
    found = list(pieces(request, path, 2))
    assert [
        (
            [
                (group.group_id, group.topics and [
                    (each.name, each.partition_indexes) for each in group.topics
                ])
                for group in piece.groups
            ],
            continued,
        )
        for piece, continued in found
    ] == [
        ([("all", None)], 0),
        ([("some", [("a", [0, 1])])], 0),
        ([("some", [("a", [2])])], 2),
        ([("some", [("b", [0, 1])])], 1),
        ([("some", [("b", [2])])], 2),
    ]  # fmt: skip
    answer = OffsetFetchResponse()
    for piece, continued in found:
        groups = [
            OffsetFetchResponse.OffsetFetchResponseGroup(
                group_id=group.group_id,
                topics=[
                    OffsetFetchResponse.OffsetFetchResponseTopics(
                        name=each.name,
                        partitions=[
                            OffsetFetchResponse.OffsetFetchResponsePartitions(partition_index=index)
                            for index in each.partition_indexes
                        ],
                    )
                    for each in group.topics or []
                ],
            )
            for group in piece.groups
        ]
        merge(
            answer,
            OffsetFetchResponse(groups=groups),
            ("groups", "topics", "partitions"),
            continued,
        )
    assert [
        (group.group_id, [(each.name, len(each.partitions)) for each in group.topics])
        for group in answer.groups
    ] == [("all", []), ("some", [("a", 3), ("b", 3)])]


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
