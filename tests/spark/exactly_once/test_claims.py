"""One task attempt per target partition and transaction: the first claim in the log decides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbroker.model import TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from spark_jobs.exactly_once.claims import Claims
from spark_jobs.exactly_once.errors import AttemptRefused, Failure, TaskFailure
from spark_jobs.exactly_once.grant import Grant
from spark_jobs.exactly_once.topics import TargetTopic
from spark_jobs.wire.client import ClusterAddress
from tests.spark.exactly_once.scripted_cluster import ScriptedCluster

P0, P1 = TopicPartition("out", 0), TopicPartition("out", 1)
TOKENS = TopicPartition("tokens", 0)
GRANT = Grant(
    address=ClusterAddress("broker:9092"),
    transactional_id="spark-q",
    producer_id=1000,
    producer_epoch=4,
    tokens=TOKENS,
    claims_from=0,
    topics={"out": TargetTopic("out", 2, None)},
)


@pytest.fixture
def cluster() -> ScriptedCluster:
    return ScriptedCluster(out=2, tokens=1)


def claims(cluster: ScriptedCluster, task: int, attempt: str, grant: Grant = GRANT) -> Claims:
    return Claims(cluster.client(), grant, task=task, attempt=attempt)


def test_the_first_attempt_owns_the_partition(cluster: ScriptedCluster) -> None:
    first, second = claims(cluster, 0, "a"), claims(cluster, 0, "b")
    first.ensure([P0])
    with pytest.raises(AttemptRefused, match="an earlier attempt of task 0 may have written"):
        second.ensure([P0])
    first.ensure([P0])
    first.ensure([P0, P1])
    with pytest.raises(AttemptRefused):
        claims(cluster, 0, "c").ensure([P1])


def test_an_attempt_that_claims_later_than_it_began_is_refused(cluster: ScriptedCluster) -> None:
    """Both append their claims before either reads."""
    late, early = claims(cluster, 0, "late"), claims(cluster, 0, "early")
    key = b"spark-q/claim/out-0"
    ends = [early._append([key]), late._append([key])]
    for one, end in zip((late, early), reversed(ends), strict=True):
        one._read_up_to(end)
    early._check(early._first[key], P0)
    with pytest.raises(AttemptRefused):
        late._check(late._first[key], P0)


def test_two_tasks_with_rows_of_one_partition(cluster: ScriptedCluster) -> None:
    claims(cluster, 0, "a").ensure([P0])
    with pytest.raises(TaskFailure, match="tasks 0 and 1 both have rows for out-0") as caught:
        claims(cluster, 1, "b").ensure([P1, P0])
    assert caught.value.failure is Failure.FATAL
    assert "arrangement='shuffle'" in caught.value.message


def test_claims_of_other_epochs_and_queries_do_not_count(cluster: ScriptedCluster) -> None:
    claims(cluster, 0, "a").ensure([P0])
    for grant in (
        replace(GRANT, producer_epoch=5),
        replace(GRANT, producer_id=1001, producer_epoch=0),
        replace(GRANT, transactional_id="spark-r"),
        replace(GRANT, claims_from=cluster.log("tokens", 0).end),
    ):
        claims(cluster, 0, "b", grant).ensure([P0])


def test_a_claim_whose_response_is_lost_is_appended_again(cluster: ScriptedCluster) -> None:
    cluster.lose(ApiKey.PRODUCE, "response")
    claims(cluster, 0, "a").ensure([P0])
    assert len(cluster.log("tokens", 0).all_records()) == 2
    with pytest.raises(AttemptRefused):
        claims(cluster, 0, "b").ensure([P0])


def test_records_that_are_no_claims_are_passed_over(cluster: ScriptedCluster) -> None:
    from kbroker.protocol.batches.batch_builder import build_batch

    rows = [(0, None, b"x", ()), (0, b"spark-q", b"{}", ()), (0, b"spark-q/claim/out-0", None, ())]
    cluster.log("tokens", 0).append(bytes(build_batch(rows)), 10_000)
    claims(cluster, 0, "a").ensure([P0])


def test_a_topic_of_tokens_that_may_not_be_written(cluster: ScriptedCluster) -> None:
    cluster.fail(ApiKey.PRODUCE, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(
        TaskFailure, match=r"claiming partitions in tokens-0.*grant Write"
    ) as caught:
        claims(cluster, 0, "a").ensure([P0])
    assert caught.value.failure is Failure.FATAL
