"""Topics that are not what they were."""

from __future__ import annotations

import pytest

from spark_jobs.cluster import TopicFacts
from spark_jobs.topic_checks import check_topics, counted

KNOWN = {"t": TopicFacts("id-1", {0: 0, 1: 0}, {0: 100, 1: 50})}
POSITION = {"t": {0: 100, 1: 50}}


def found(now: TopicFacts | None) -> list[tuple[str, int]]:
    topics = {} if now is None else {"t": now}
    return [(finding.kind, finding.records) for finding in check_topics(KNOWN, POSITION, topics)]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param(TopicFacts("id-1", {0: 0, 1: 0}, {0: 100, 1: 50}), [], id="same"),
        pytest.param(TopicFacts("id-1", {0: 100, 1: 50}, {0: 900, 1: 50}), [], id="all read"),
        pytest.param(TopicFacts("id-1", {0: 0, 1: 0, 2: 0}, {0: 100, 1: 50, 2: 9}), [], id="grown"),
        pytest.param(TopicFacts("", {0: 0, 1: 0}, {0: 100, 1: 50}), [], id="no ids"),
        pytest.param(None, [("not read", 0)], id="not read"),
        pytest.param(
            TopicFacts("id-1", {0: 130, 1: 50}, {0: 200, 1: 50}),
            [("truncated", 30)],
            id="truncated",
        ),
        pytest.param(
            # longer than the checkpoint, so that no offset tells
            TopicFacts("id-2", {0: 0, 1: 0}, {0: 500, 1: 20}),
            [("recreated", 120)],
            id="created again",
        ),
        pytest.param(TopicFacts("", {0: 0}, {0: 500}), [("shrunk", 0)], id="shrunk"),
        pytest.param(
            TopicFacts("", {0: 0, 1: 0}, {0: 40, 1: 50}), [("recreated", 40)], id="ends before"
        ),
    ],
)
def test_findings(now: TopicFacts | None, expected: list[tuple[str, int]]) -> None:
    assert found(now) == expected


def test_a_topic_that_was_never_read_may_go() -> None:
    assert check_topics(KNOWN, {}, {}) == []


def test_counted() -> None:
    assert [counted(n, "record") for n in (0, 1, 2000)] == [
        "0 records",
        "1 record",
        "2,000 records",
    ]
    assert counted(1, "batch") + counted(2, "batch") == "1 batch2 batches"
