"""Where a new query begins, to go on where a group is."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from spark_jobs.checkpoint import Offsets
from spark_jobs.cluster import TopicFacts
from spark_jobs.errors import JobError, StartRefused
from spark_jobs.lag import starting_offsets as module
from spark_jobs.lag.starting_offsets import start_of, starting_offsets
from tests.spark.lag.group_cluster import GroupCluster

FACTS = {"t": TopicFacts("", {0: 10, 1: 0}, {0: 50, 1: 60})}


@pytest.mark.parametrize(
    ("committed", "offsets", "found"),
    [
        pytest.param({"t": {0: 20, 1: 60}}, {0: 20, 1: 60}, None, id="as committed"),
        pytest.param({"t": {0: 10}}, {0: 10, 1: -2}, None, id="a partition that is new"),
        pytest.param({}, {0: -2, 1: -2}, None, id="a topic that is new"),
        pytest.param({"u": {0: 1}}, {0: -2, 1: -2}, None, id="another topic"),
        pytest.param({"t": {0: 7, 1: 5}}, {0: -2, 1: 5}, ("truncated", 3), id="deleted records"),
        pytest.param({"t": {0: 20, 1: 61}}, {0: -2, 1: -2}, ("recreated", 60), id="a shorter log"),
        pytest.param({"t": {0: 20, 2: 5}}, {0: -2, 1: -2}, ("shrunk", 0), id="fewer partitions"),
    ],
)
def test_starts(committed: Offsets, offsets: dict[int, int], found: tuple[str, int] | None) -> None:
    start = start_of(committed, FACTS)
    assert start.offsets == {"t": offsets}
    findings = [(finding.kind, finding.records) for finding in start.findings]
    assert findings == ([] if found is None else [found])


@pytest.fixture
def start(cluster: GroupCluster, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Offsets]:
    monkeypatch.setattr(module, "BlockingClient", lambda address: cluster.client())

    def call(**options: object) -> Offsets:
        found = json.loads(starting_offsets("g", **options))  # type: ignore[arg-type]
        return {topic: {int(p): o for p, o in each.items()} for topic, each in found.items()}

    return call


def test_all_topics_of_the_group_or_those_that_are_named(
    cluster: GroupCluster, start: Callable[..., Offsets]
) -> None:
    cluster.create("u", 1)
    cluster.create("v", 1)
    cluster.offsets["g"] = {"t": {0: 5}, "u": {0: 0}}
    assert start() == {"t": {0: 5, 1: -2}, "u": {0: 0}}
    assert start(topics=["u", "v"]) == {"u": {0: 0}, "v": {0: -2}}


def test_what_would_be_lost_is_said(
    cluster: GroupCluster, start: Callable[..., Offsets], caplog: pytest.LogCaptureFixture
) -> None:
    cluster.offsets["g"] = {"t": {0: 5, 1: 7}}
    cluster.set_starts("t", 12, 0)
    with pytest.raises(StartRefused) as caught:
        start()
    assert str(caught.value) == (
        "group g: topic t was truncated: 7 offsets were deleted unread. "
        "fail_on_data_loss=False begins at the first offset that is there"
    )
    assert start(fail_on_data_loss=False) == {"t": {0: -2, 1: 7}}
    (said,) = caplog.records
    assert (said.levelno, "7 offsets were deleted" in said.message) == (
        logging.WARNING,
        True,
    )


def test_a_group_that_is_in_use(
    cluster: GroupCluster, start: Callable[..., Offsets], caplog: pytest.LogCaptureFixture
) -> None:
    cluster.offsets["g"] = {"t": {0: 5, 1: 7}}
    cluster.members["g"] = ["app"]
    assert start() == {"t": {0: 5, 1: 7}}
    assert "group g has 1 live members, which read on" in caplog.text


def test_what_cannot_be(cluster: GroupCluster, start: Callable[..., Offsets]) -> None:
    with pytest.raises(JobError, match=r"^group g has committed no offsets$"):
        start()
    cluster.offsets["g"] = {"gone": {0: 5}, "t": {0: 1}}
    with pytest.raises(JobError, match=r"^group g has committed no offsets of u, v$"):
        start(topics=["u", "v"])
    with pytest.raises(JobError, match=r"^topic gone does not exist$"):
        start()
    cluster.fail(ApiKey.OFFSET_FETCH, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(JobError, match=r"^group g: GROUP_AUTHORIZATION_FAILED"):
        start()
