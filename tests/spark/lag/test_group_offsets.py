"""`GroupOffsets` without Spark: events of a query, the thread that commits, the end."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from spark_jobs.errors import JobError, StartRefused
from spark_jobs.lag import group_offsets as module
from spark_jobs.lag.group_offsets import GroupOffsets
from tests.spark.lag.group_cluster import GroupCluster

pytest.importorskip("pyspark")


class Streams:
    """The listeners of a session."""

    def __init__(self) -> None:
        self.listeners: list[Any] = []

    def addListener(self, listener: Any) -> None:
        self.listeners.append(listener)

    def removeListener(self, listener: Any) -> None:
        self.listeners.remove(listener)


class Query:
    """A query that has reported batches; tell: whether its session's listeners hear of them."""

    def __init__(self, streams: Streams, run_id: str = "run-1") -> None:
        self.runId = run_id
        self.lastProgress: Any = None
        self._streams = streams

    def batch(self, batch_id: int, *, tell: bool = True, **topics: dict[int, int]) -> Any:
        event = SimpleNamespace(progress=progress(self.runId, batch_id, topics))
        self.lastProgress = event.progress
        if tell:
            self.tell(event)
        return event

    def tell(self, event: Any) -> None:
        for listener in self._streams.listeners:
            listener.onQueryProgress(event)

    def idle(self) -> None:
        for listener in self._streams.listeners:
            listener.onQueryIdle(SimpleNamespace(runId=self.runId))


def progress(run_id: str, batch_id: int, topics: dict[str, dict[int, int]]) -> SimpleNamespace:
    sources = [{"description": "Rate", "endOffset": 7}]
    sources.append({"description": "KafkaV2[Subscribe[t]]", "endOffset": topics})  # type: ignore[dict-item]
    text = json.dumps({"batchId": batch_id, "numInputRows": 1, "sources": sources})
    return SimpleNamespace(runId=run_id, json=text)


@pytest.fixture
def streams() -> Streams:
    return Streams()


@pytest.fixture
def session(streams: Streams) -> Any:
    return SimpleNamespace(streams=streams)


@pytest.fixture
def group(cluster: GroupCluster, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes `GroupOffsets` of the cluster in memory, closed at the end."""
    made: list[GroupOffsets] = []
    timeout_s = module.ATTEMPT_S
    monkeypatch.setattr(
        module, "BlockingClient", lambda address: cluster.client(retry_timeout_s=timeout_s)
    )

    def make(name: str = "g", **options: Any) -> GroupOffsets:
        made.append(GroupOffsets(name, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_query_from_its_start_to_its_end(
    cluster: GroupCluster, streams: Streams, session: Any, group: Any
) -> None:
    query = Query(streams)
    offsets = group().follow(session, query)
    query.batch(0, t={0: 4, 1: 1})
    query.batch(1, t={0: 9, 1: 2})
    assert offsets.close()
    assert cluster.offsets == {"g": {"t": {0: 9, 1: 2}}}
    assert streams.listeners == []
    assert offsets.close()


def test_events_that_are_missed(
    cluster: GroupCluster, streams: Streams, session: Any, group: Any
) -> None:
    """A query that has ended before it is followed, and a last event that is on its way."""
    query = Query(streams)
    query.batch(0, t={0: 4})
    with group() as offsets:
        offsets.follow(session, query)
        query.batch(1, tell=False, t={0: 9})
    assert cluster.offsets == {"g": {"t": {0: 9}}}
    with group("ended") as offsets:
        offsets.follow(session, query)
    assert cluster.offsets["ended"] == {"t": {0: 9}}


def test_an_event_that_is_late_does_not_count(
    cluster: GroupCluster,
    streams: Streams,
    session: Any,
    group: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    query = Query(streams)
    late = query.batch(0, tell=False, t={0: 4})
    query.batch(1, tell=False, t={0: 9})
    offsets = group().follow(session, query)
    query.tell(late)
    assert offsets.close()
    assert cluster.offsets == {"g": {"t": {0: 9}}}
    assert caplog.records == []


def test_other_queries_and_other_topics_are_left_out(
    cluster: GroupCluster, streams: Streams, session: Any, group: Any
) -> None:
    query = Query(streams)
    with group(topics=["t"]) as offsets:
        offsets.follow(session, query)
        Query(streams, "run-2").batch(9, t={0: 99})
        query.batch(0, t={0: 4}, elsewhere={0: 5})
        query.batch(1, elsewhere={0: 6})
    assert cluster.offsets == {"g": {"t": {0: 4}}}


def test_a_query_that_is_started_again_is_followed_again(
    cluster: GroupCluster, streams: Streams, session: Any, group: Any
) -> None:
    first = Query(streams)
    with group() as offsets:
        offsets.follow(session, first)
        first.batch(7, t={0: 4})
        second = Query(streams, "run-2")
        offsets.follow(session, second)
        assert len(streams.listeners) == 1
        second.batch(0, t={0: 8})
    assert cluster.offsets == {"g": {"t": {0: 8}}}


def test_idle_queries_renew_their_offsets(
    cluster: GroupCluster, streams: Streams, session: Any, group: Any
) -> None:
    query = Query(streams)
    offsets = group().follow(session, query)
    query.idle()
    query.batch(0, t={0: 4})
    for _ in range(5):
        query.idle()
    assert offsets.close()
    assert cluster.requests.count(ApiKey.OFFSET_COMMIT) == 1


def test_a_cluster_that_fails_is_no_failure_of_the_query(
    cluster: GroupCluster,
    streams: Streams,
    session: Any,
    group: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster.fail(ApiKey.DESCRIBE_GROUPS, ErrorCode.COORDINATOR_NOT_AVAILABLE, 10_000)
    cluster.fail(ApiKey.OFFSET_FETCH, ErrorCode.COORDINATOR_NOT_AVAILABLE, 10_000)
    query = Query(streams)
    offsets = group().follow(session, query)
    query.batch(0, t={0: 4})
    assert not offsets.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert cluster.offsets == {}


def test_a_surprise_is_no_failure_of_the_query(
    streams: Streams, session: Any, group: Any, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = group()

    def fail(ends: object) -> bool:
        raise ValueError("a surprise")

    offsets._committer.commit = fail
    query = Query(streams)
    offsets.follow(session, query)
    query.batch(0, t={0: 4})
    assert not offsets.close()
    assert "a surprise" in caplog.text


def test_a_group_with_members_is_refused_before_anything_is_followed(
    cluster: GroupCluster, streams: Streams, session: Any, group: Any
) -> None:
    cluster.members["g"] = ["app"]
    with pytest.raises(StartRefused, match=r"group g has live members \(app at host\)"):
        group().follow(session, Query(streams))
    assert streams.listeners == []


def test_what_cannot_be(streams: Streams, session: Any) -> None:
    with pytest.raises(JobError, match="the name of the group is empty"):
        GroupOffsets("")
    with pytest.raises(JobError, match="is no broker address"):
        GroupOffsets("g", "a:b:c")


def test_after_the_end(streams: Streams, session: Any, group: Any) -> None:
    offsets = group()
    assert offsets.close()
    with pytest.raises(JobError, match="the offsets of group g were closed: make new ones"):
        offsets.follow(session, Query(streams))
