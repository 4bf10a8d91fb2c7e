"""What a start of a query with `kafka_sink` would do, without a change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from spark_jobs.checkpoint import Offsets
from spark_jobs.errors import JobError, StartRefused
from spark_jobs.exactly_once import check as module
from spark_jobs.exactly_once.check import decided, describe_sink_check
from spark_jobs.exactly_once.driver import QueryDriver
from spark_jobs.exactly_once.errors import SinkError
from spark_jobs.exactly_once.options import SinkCheck, sink_check
from spark_jobs.exactly_once.tokens import Token
from spark_jobs.exactly_once.topics import TOKENS_TOPIC
from spark_jobs.lag.queries import Position
from tests.spark.exactly_once.conftest import PARTITIONS, tasks_of
from tests.spark.lag.group_cluster import GroupCluster

Checked = Callable[..., str]
CHECK = SinkCheck("q", ("out",))


@pytest.fixture
def cluster() -> GroupCluster:
    return GroupCluster(out=PARTITIONS)


@pytest.fixture
def checked(cluster: GroupCluster, monkeypatch: pytest.MonkeyPatch) -> Checked:
    monkeypatch.setattr(
        module,
        "BlockingClient",
        lambda address: cluster.client(retry_timeout_s=address.retry_timeout_s),
    )

    def call(**changes: object) -> str:
        return describe_sink_check(replace(CHECK, **changes))  # type: ignore[arg-type]

    return call


def test_before_the_first_batch_nothing_is_created(cluster: GroupCluster, checked: Checked) -> None:
    assert checked() == "query q: topic out with 3 partitions; no batch was written yet"
    assert TOKENS_TOPIC not in cluster.topics
    assert cluster.transactions == {}


def test_after_batches(cluster: GroupCluster, checked: Checked, driver: QueryDriver) -> None:
    for batch_id in range(3):
        driver.write_batch(batch_id, tasks_of(cluster, batch_id), query_id="5f3a")
    before = cluster.requests.copy()
    assert checked() == "query q: topic out with 3 partitions; batch 2 is written"
    assert ApiKey.INIT_PRODUCER_ID not in cluster.requests[len(before) :]


def test_a_batch_that_is_being_written(
    cluster: GroupCluster, checked: Checked, driver: QueryDriver
) -> None:
    said = []

    def look(request: object) -> None:
        if cluster.requests[-1] is ApiKey.END_TXN:
            cluster.before = None
            said.append(checked())

    cluster.before = look
    driver.write_batch(0, tasks_of(cluster, 0), query_id="5f3a")
    assert said == [
        "query q: topic out with 3 partitions; a batch of it is being written now, by this query "
        "or another driver"
    ]


def at(batch_id: int, query_id: str = "5f3a", planned: Offsets | None = None) -> Position:
    return Position("checkpoint", "/cp", {}, query_id, batch_id, planned=planned)


@pytest.mark.parametrize(
    ("position", "said"),
    [
        (None, "batch 4 is written"),
        (at(4), "batch 4 is written; a start goes on at batch 5, which is written"),
        (
            at(3, planned={}),
            "batch 4 is written; a start goes on at batch 4, which is skipped, since the topic has "
            "it",
        ),
    ],
)
def test_where_a_start_goes_on(position: Position | None, said: str) -> None:
    assert decided("q", Token("5f3a", 4, 10, {}), position) == said


@pytest.mark.parametrize(
    ("token", "position", "why"),
    [
        (Token("5f3a", 4, 10, {}), at(4, "other"), "wrote up to batch 4 with another checkpoint"),
        (Token("5f3a", 4, 10, {}), at(9), "the newest batch of query q in the topic is 4"),
        (None, at(9), "no batch of query q was ever written"),
        (Token("5f3a", 4, 10, {}), at(2), "q wrote up to batch 4: the checkpoint is new or an ol"),
        (Token("5f3a", 4, 10, {}), at(3), "/cp has not planned it: the checkpoint is an older"),
        (
            Token("5f3a", 4, 10, {"t": {0: 9}}),
            at(3, planned={"t": {0: 12}}),
            "batch 4 of query q is in the topic with other end offsets",
        ),
    ],
)
def test_what_contradicts_itself(token: Token | None, position: Position, why: str) -> None:
    with pytest.raises(StartRefused, match=why):
        decided("q", token, position)


def test_a_checkpoint_and_a_group(cluster: GroupCluster, checked: Checked, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(JobError, match="is no checkpoint"):
        checked(checkpoint=str(tmp_path))
    for name in ("a", "b"):
        (tmp_path / name / "offsets").mkdir(parents=True)
        (tmp_path / name / "metadata").write_text('{"id":"5f3a"}')
    with pytest.raises(JobError, match="has 2 checkpoints in it: name one of them"):
        checked(checkpoint=str(tmp_path))
    said = checked(checkpoint=str(tmp_path / "a"), commit_group="g")
    assert said.endswith("no batch was written yet; a start goes on at batch 0, which is written")
    cluster.members["g"] = ["app"]
    with pytest.raises(StartRefused, match="group g has live members"):
        checked(commit_group="g")


def test_what_is_missing(cluster: GroupCluster, checked: Checked) -> None:
    with pytest.raises(SinkError, match="topic absent does not exist: create it"):
        checked(topics=("out", "absent"))
    cluster.create(TOKENS_TOPIC, 4)
    with pytest.raises(SinkError, match=r"cleanup.policy=delete"):
        checked()
    cluster.configs[TOKENS_TOPIC]["cleanup.policy"] = "compact"
    cluster.fail(ApiKey.FETCH, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    cluster.fail(ApiKey.LIST_OFFSETS, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(SinkError, match="checking query q: TOPIC_AUTHORIZATION_FAILED"):
        checked()


def test_values() -> None:
    assert sink_check({"topic": "a, b", "queryName": "q", "commitGroup": "g"}) == SinkCheck(
        "q", ("a", "b"), commit_group="g"
    )
    for values in ({"topic": "a"}, {"queryName": "q"}, {"topic": ",", "queryName": "q"}):
        with pytest.raises(JobError, match="give --topic and --queryName"):
            sink_check(values)
    with pytest.raises(JobError, match="connects without TLS and SASL"):
        sink_check({"topic": "a", "queryName": "q", "kafka.security.protocol": "SSL"})
