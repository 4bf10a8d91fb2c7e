"""DescribeTopicPartitions over a hand-made image."""

from __future__ import annotations

import pytest

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.metadata import (
    DescribeTopicPartitionsRequest,
)
from kbroker.server.handlers.topics import topic_partitions
from kbroker.server.requests import RequestContext
from tests.server.handlers.metadata_world import (
    answer,
    services,
)

# DescribeTopicPartitions

Cursor = DescribeTopicPartitionsRequest.Cursor


def describe(
    names: list[str], limit: int, cursor: tuple[str, int] | None = None
) -> tuple[list[tuple[str | None, int, list[int]]], tuple[str, int] | None]:
    request = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=Cursor(topic_name=cursor[0], partition_index=cursor[1]) if cursor else None,
    )
    context = RequestContext(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0)
    of = services()
    response = answer(of, topic_partitions.handle_describe_topic_partitions(of, context, request))
    after = response.next_cursor
    topics = response.topics
    return (
        [(t.name, t.error_code, [p.partition_index for p in t.partitions]) for t in topics],
        (after.topic_name, after.partition_index) if after else None,
    )


@pytest.mark.parametrize(
    ("names", "limit", "cursor", "topics", "after"),
    [
        pytest.param(
            [], 100, None,
            [("__consumer_offsets", 0, [0]), ("events", 0, [0, 1, 2])], None, id="all topics",
        ),
        pytest.param([], 1, None, [("__consumer_offsets", 0, [0])], ("events", 0), id="limit"),
        pytest.param([], 2, None,
            [("__consumer_offsets", 0, [0]), ("events", 0, [0])], ("events", 1), id="inside"),
        pytest.param([], 0, ("events", 1), [("events", 0, [1])], ("events", 2), id="at least one"),
        pytest.param([], 9, ("events", 2), [("events", 0, [2])], None, id="the rest"),
        pytest.param(["events"], 3, None, [("events", 0, [0, 1, 2])], None, id="by name, exactly"),
        pytest.param(["nope"], 9, None, [("nope", 3, [])], None, id="unknown"),
        pytest.param(["b d"], 9, None, [("b d", 17, [])], None, id="bad name"),
        pytest.param([], 9, ("nope", 0), [], None, id="cursor behind all"),
    ],
)  # fmt: skip
def test_describe_topic_partitions(
    names: list[str],
    limit: int,
    cursor: tuple[str, int] | None,
    topics: list[tuple[str, int, list[int]]],
    after: tuple[str, int] | None,
) -> None:
    assert describe(names, limit, cursor) == (topics, after)


@pytest.mark.parametrize(("names", "cursor"), [([], ("events", -1)), (["events"], ("other", 0))])
def test_bad_cursors(names: list[str], cursor: tuple[str, int]) -> None:
    with pytest.raises(KafkaError) as error:
        describe(names, 10, cursor)
    assert error.value.code == ErrorCode.INVALID_REQUEST
