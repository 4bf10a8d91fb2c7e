"""The newest committed token, whatever else is in the log: aborted ones, markers without records,
transactions of other queries that are open.
"""

from __future__ import annotations

import pytest

from kbroker.model import TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.errors import ErrorCode
from spark_jobs.exactly_once.errors import SinkError
from spark_jobs.exactly_once.token_log import TokenLog, read_uncommitted, tokens_partition
from spark_jobs.exactly_once.tokens import Token
from tests.spark.exactly_once.scripted_cluster import PartitionLog, ScriptedCluster

TOKENS = TopicPartition("tokens", 0)


@pytest.fixture
def cluster() -> ScriptedCluster:
    return ScriptedCluster(tokens=1)


@pytest.fixture
def log(cluster: ScriptedCluster) -> PartitionLog:
    return cluster.log("tokens", 0)


@pytest.fixture
def reader(cluster: ScriptedCluster) -> TokenLog:
    return TokenLog(cluster.client(), TOKENS, "spark-q")


def append(
    log: PartitionLog, batch_id: int, *, producer: int, epoch: int, name: str = "spark-q"
) -> None:
    """A token in a transaction that is not ended."""
    batch = build_batch(
        [(0, name.encode(), Token("id", batch_id, 1).encode(), ())],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=0,
        is_transactional=True,
    )
    error, _ = log.append(bytes(batch), 10_000)
    assert not error


def newest(reader: TokenLog) -> int | None:
    token, _ = reader.read()
    return None if token is None else token.batch_id


def test_an_empty_log(reader: TokenLog) -> None:
    assert reader.read() == (None, 0)


def test_commits_and_aborts(log: PartitionLog, reader: TokenLog) -> None:
    for epoch, commit in enumerate([True, True, False, True, False, False]):
        append(log, epoch, producer=1, epoch=epoch)
        log.mark(1, epoch, commit=commit)
        assert newest(reader) == [0, 1, 1, 3, 3, 3][epoch]
    log.mark(1, 7, commit=False)  # of a transaction that wrote no token
    assert newest(reader) == 3
    assert newest(TokenLog(reader._client, TOKENS, "spark-q")) == 3
    assert reader.read()[1] == log.end


def test_a_commit_marker_that_compaction_removed(log: PartitionLog, reader: TokenLog) -> None:
    append(log, 5, producer=1, epoch=5)
    log.mark(1, 5, commit=True)
    del log.batches[-1]
    log.mark(1, 6, commit=False)
    assert newest(reader) == 5


def test_tokens_of_other_queries(log: PartitionLog, reader: TokenLog) -> None:
    append(log, 1, producer=1, epoch=0)
    append(log, 9, producer=2, epoch=0, name="spark-r")
    log.mark(2, 0, commit=True)
    log.mark(1, 0, commit=True)
    assert newest(reader) == 1


@pytest.mark.parametrize("commit", [True, False])
def test_an_open_transaction_of_another_query_hides_nothing(
    log: PartitionLog, reader: TokenLog, commit: bool
) -> None:
    """It holds back the last stable offset, below which alone a consumer reads."""
    append(log, 0, producer=1, epoch=0)
    log.mark(1, 0, commit=True)
    assert newest(reader) == 0
    append(log, 1, producer=1, epoch=1)
    append(log, 9, producer=2, epoch=0, name="spark-r")
    log.mark(1, 1, commit=commit)
    append(log, 2, producer=1, epoch=2)
    log.mark(1, 2, commit=commit)
    assert log.last_stable_offset < log.end - 2
    assert newest(reader) == (2 if commit else 0)
    log.mark(2, 0, commit=False)
    append(log, 3, producer=1, epoch=3)
    log.mark(1, 3, commit=True)
    assert newest(reader) == 3


def test_an_undecided_transaction_of_the_query_is_waited_for(
    cluster: ScriptedCluster, log: PartitionLog, reader: TokenLog
) -> None:
    append(log, 0, producer=1, epoch=0)
    rounds = []

    def decide(request: object) -> None:
        rounds.append(request)
        if len(rounds) == 12:
            log.mark(1, 0, commit=True)

    cluster.before = decide
    assert newest(reader) == 0


def test_a_log_without_its_records_ends_the_wait(
    cluster: ScriptedCluster, log: PartitionLog, reader: TokenLog
) -> None:
    append(log, 0, producer=1, epoch=0)
    log.mark(1, 0, commit=True)
    log.batches.clear()
    with pytest.raises(SinkError, match="reading tokens from tokens-0: OFFSET_NOT_AVAILABLE"):
        reader.read()


def test_records_of_a_range(cluster: ScriptedCluster, log: PartitionLog) -> None:
    rows = [(0, b"%d" % number, b"v", ()) for number in range(4)]
    for _ in range(3):
        log.append(bytes(build_batch(rows)), 10_000)
    found = [record.offset for _, record in read_uncommitted(cluster.client(), TOKENS, 2, 9)]
    assert found == list(range(2, 9))


def test_errors_are_retried(cluster: ScriptedCluster, log: PartitionLog, reader: TokenLog) -> None:
    append(log, 0, producer=1, epoch=0)
    log.mark(1, 0, commit=True)
    for api_key in (ApiKey.LIST_OFFSETS, ApiKey.FETCH):
        cluster.fail(api_key, ErrorCode.NOT_LEADER_OR_FOLLOWER, times=3)
    assert newest(reader) == 0
    cluster.fail(ApiKey.FETCH, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    append(log, 1, producer=1, epoch=1)
    log.mark(1, 1, commit=True)
    with pytest.raises(SinkError, match="grant"):
        reader.read()


def test_the_partition_of_an_id_is_stable() -> None:
    assert {tokens_partition(f"spark-{number}", 4) for number in range(50)} == {0, 1, 2, 3}
    assert tokens_partition("21", 50) == (-973932308 & 0x7FFFFFFF) % 50
