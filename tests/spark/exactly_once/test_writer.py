"""The writer of a task: each row once and in order, through lost connections and errors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbroker.model import TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from spark_jobs.exactly_once.blocks import block_of
from spark_jobs.exactly_once.claims import Claims
from spark_jobs.exactly_once.errors import Failure, TaskFailure
from spark_jobs.exactly_once.grant import Grant, WriterLimits
from spark_jobs.exactly_once.topics import TargetTopic
from spark_jobs.exactly_once.writer import TaskWriter, _groups
from spark_jobs.wire.client import ClusterAddress
from tests.spark.exactly_once.scripted_cluster import ScriptedCluster

GRANT = Grant(
    address=ClusterAddress("broker:9092"),
    transactional_id="spark-q",
    producer_id=1000,
    producer_epoch=4,
    tokens=TopicPartition("tokens", 0),
    claims_from=0,
    topics={"out": TargetTopic("out", 3, None)},
    limits=WriterLimits(batch_bytes=300, buffer_bytes=2000),
)
ROWS = [(number % 3, b"row-%03d" % number) for number in range(200)]


@pytest.fixture
def cluster() -> ScriptedCluster:
    return ScriptedCluster(out=3, tokens=1)


def write(cluster: ScriptedCluster, grant: Grant = GRANT) -> dict[TopicPartition, int]:
    client = cluster.client()
    client.partition_count("out")
    writer = TaskWriter(grant, client, Claims(client, grant, task=0, attempt="a"))
    for partition, value in ROWS:
        writer.write(TopicPartition("out", partition), block_of([(0, None, value, ())]))
    counts = writer.finish()
    check_target_offsets(cluster, writer)
    return counts


def check_target_offsets(cluster: ScriptedCluster, writer: TaskWriter) -> None:
    """They say where the n-th row of each partition is."""
    for (topic, partition), spans in writer.target_offsets().items():
        there = {
            record.offset: record.value for record in cluster.log(topic, partition).all_records()
        }
        offsets = [span.offset + index for span in spans for index in range(span.length)]
        assert [there[offset] for offset in offsets] == WANTED[partition]


def written(cluster: ScriptedCluster) -> list[list[bytes | None]]:
    return [[record.value for record in log.all_records()] for log in cluster.topics["out"]]


WANTED = [[value for partition, value in ROWS if partition == wanted] for wanted in range(3)]


def test_each_row_once_and_in_order(cluster: ScriptedCluster) -> None:
    counts = write(cluster)
    assert counts == {TopicPartition("out", index): len(WANTED[index]) for index in range(3)}
    assert written(cluster) == WANTED


@pytest.mark.parametrize("what", ["request", "response"])
@pytest.mark.parametrize("number", [1, 2, 5, 9])
def test_lost_connections(cluster: ScriptedCluster, what: str, number: int) -> None:
    for _ in range(number):
        cluster.lose(ApiKey.PRODUCE, what, topic="out")
    write(cluster)
    assert written(cluster) == WANTED


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.REQUEST_TIMED_OUT,
    ],
)
def test_errors_that_pass(cluster: ScriptedCluster, code: ErrorCode) -> None:
    cluster.fail(ApiKey.PRODUCE, code, times=7, topic="out")
    write(cluster)
    assert written(cluster) == WANTED


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        (ErrorCode.INVALID_PRODUCER_EPOCH, Failure.FENCED),
        (ErrorCode.PRODUCER_FENCED, Failure.FENCED),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, Failure.RESTART),
        (ErrorCode.INVALID_TXN_STATE, Failure.RESTART),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, Failure.FATAL),
        (ErrorCode.INVALID_TIMESTAMP, Failure.FATAL),
    ],
)
def test_errors_that_end_the_task(
    cluster: ScriptedCluster, code: ErrorCode, failure: Failure
) -> None:
    cluster.fail(ApiKey.PRODUCE, code, topic="out")
    with pytest.raises(TaskFailure, match=f"writing to out-[012]: {code.name}") as caught:
        write(cluster)
    assert caught.value.failure is failure
    assert "\n" not in caught.value.message


def test_an_error_that_does_not_pass(cluster: ScriptedCluster) -> None:
    cluster.fail(ApiKey.PRODUCE, ErrorCode.NOT_ENOUGH_REPLICAS, times=10_000, topic="out")
    with pytest.raises(TaskFailure, match=r"min.insync.replicas") as caught:
        write(cluster)
    assert caught.value.failure is Failure.RESTART
    assert 55 < cluster.clock.now - 100 < 70


def test_batches_that_only_the_broker_knows_to_be_too_large(cluster: ScriptedCluster) -> None:
    cluster.configs["out"]["max.message.bytes"] = "200"
    write(cluster)
    assert written(cluster) == WANTED


def test_a_record_that_only_the_broker_knows_to_be_too_large(cluster: ScriptedCluster) -> None:
    cluster.configs["out"]["max.message.bytes"] = "70"
    with pytest.raises(TaskFailure, match=r"a record without a key.*too large for out-") as caught:
        write(cluster)
    assert caught.value.failure is Failure.FATAL


def test_nothing_is_sent_for_no_rows(cluster: ScriptedCluster) -> None:
    client = cluster.client()
    writer = TaskWriter(GRANT, client, Claims(client, GRANT, task=0, attempt="a"))
    assert writer.finish() == {}
    assert cluster.requests == []


def test_small_batches_share_requests(cluster: ScriptedCluster) -> None:
    write(cluster, replace(GRANT, limits=WriterLimits(batch_bytes=10**6, buffer_bytes=10**7)))
    assert written(cluster) == WANTED
    assert cluster.requests.count(ApiKey.PRODUCE) == 2  # the claims, the rows


def test_groups_have_one_batch_of_a_partition() -> None:
    from tests.spark.exactly_once.test_batches import GRANT as BATCHES
    from tests.spark.exactly_once.test_batches import P0, P1, BatchBuffer, fill

    buffer = BatchBuffer(BATCHES)
    first, second = [
        batch for _ in range(2) for batch in [*fill(buffer, P0, [b"a"]), *buffer.seal_all()]
    ]
    (other,) = [*fill(buffer, P1, [b"b"]), *buffer.seal_all()]
    assert list(_groups([first, other, second])) == [[first, other], [second]]
    assert list(_groups([])) == []
