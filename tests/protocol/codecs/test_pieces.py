"""Messages in pieces: the pieces make the whole."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.protocol.codecs.pieces import merge, pieces
from kbroker.protocol.messages.coordinators.offsets import OffsetFetchRequest, OffsetFetchResponse
from kbroker.protocol.messages.list_offsets import OffsetForLeaderEpochRequest
from kbroker.server.slicing.divided_requests import count_items


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
