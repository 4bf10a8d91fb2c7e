"""The offset map: written in the batch's transaction, read back by query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kbroker.model import TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.errors import ErrorCode
from spark_jobs.exactly_once import map_log
from spark_jobs.exactly_once.driver import QueryDriver, TaskReport
from spark_jobs.exactly_once.errors import Failure, SinkError
from spark_jobs.exactly_once.grant import Grant
from spark_jobs.exactly_once.map_log import map_records, parse_map_record, read_offset_map
from spark_jobs.exactly_once.runs import Run
from spark_jobs.exactly_once.token_log import tokens_partition
from spark_jobs.exactly_once.topics import MAP_TOPIC
from tests.spark.exactly_once.conftest import QUERY, write_task
from tests.spark.exactly_once.scripted_cluster import PartitionLog, ScriptedCluster

PLACE = TopicPartition("out", 1)


def decoded(values: Sequence[bytes]) -> list[tuple[TopicPartition, Run]]:
    return [pair for value in values for pair in parse_map_record(value)]


def test_records_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_log, "RUNS_PER_RECORD", 4)
    runs = {
        TopicPartition("a", 0): [Run(i, i * 2, 1) for i in range(10)],
        TopicPartition("b", 3): [Run(0, 0, 7)],
    }
    values = list(map_records(5, runs))
    assert [len(list(parse_map_record(value))) for value in values] == [4, 4, 3]
    assert decoded(values) == [(place, run) for place, each in runs.items() for run in each]
    assert list(map_records(5, {})) == []


@pytest.mark.parametrize("value", [b"", b"[]", b'{"version":2,"runs":{}}', b'{"version":1}'])
def test_a_record_of_another_program(value: bytes) -> None:
    with pytest.raises(SinkError, match="topic of offset maps is none"):
        list(parse_map_record(value))


def runs_of(client_cluster: ScriptedCluster, transactional_id: str) -> list[Run]:
    count = len(client_cluster.topics[MAP_TOPIC])
    place = TopicPartition(MAP_TOPIC, tokens_partition(transactional_id, count))
    return read_offset_map(client_cluster.client(), place, transactional_id).get(PLACE, [])


def test_only_committed_batches_are_in_the_map(cluster: ScriptedCluster) -> None:
    """A batch that failed, and was written again at other offsets, is there once."""
    settings = replace(QUERY, map_topic=MAP_TOPIC)
    driver = QueryDriver(cluster.client(), settings)
    attempts = []

    def write(grant: Grant) -> list[TaskReport]:
        report = write_task(cluster, grant, 1, [b"a", b"b"])
        attempts.append(cluster.log("out", 1).end)
        base = cluster.log("out", 1).end - 2
        if len(attempts) == 1:
            return [TaskReport(failure=Failure.RESTART, message="lost")]
        return [replace(report, runs={PLACE: [Run(10, base, 2)]})]

    driver.write_batch(0, write)
    ((run,), target) = runs_of(cluster, settings.transactional_id), cluster.log("out", 1)
    assert [record.offset for record in target.committed_records()] == [run.target, run.target + 1]
    assert run == Run(10, attempts[1] - 2, 2)
    driver.write_batch(1, lambda grant: [TaskReport(runs={PLACE: [Run(12, 99, 1)]})])
    assert runs_of(cluster, settings.transactional_id) == [run, Run(12, 99, 1)]
    assert runs_of(cluster, "spark-another") == []


def test_the_newest_copy_of_an_offset_counts(cluster: ScriptedCluster) -> None:
    """A copy that begins again, as `mirror --resume-from earliest` does."""
    settings = replace(QUERY, map_topic=MAP_TOPIC)
    driver = QueryDriver(cluster.client(), settings)
    first = TaskReport(runs={PLACE: [Run(0, 0, 5), Run(7, 6, 3)]})
    driver.write_batch(0, lambda grant: [first], query_id="first")
    driver = QueryDriver(cluster.client(), replace(settings, adopt_checkpoint=True))
    batches = [[Run(0, 20, 2), Run(2, 22, 2)], [Run(4, 30, 2)]]
    for batch_id, runs in enumerate(batches):

        def write(grant: Grant, runs: list[Run] = runs) -> list[TaskReport]:
            return [TaskReport(runs={PLACE: runs})]

        driver.write_batch(batch_id, write, query_id="again")
    assert runs_of(cluster, settings.transactional_id) == [Run(0, 20, 4), Run(4, 30, 2)]


def open_other(cluster: ScriptedCluster, transactional_id: str) -> PartitionLog:
    """Another query's transaction, open in the same partition of the map; gives that partition."""
    count = len(cluster.topics[MAP_TOPIC])
    log = cluster.log(MAP_TOPIC, tokens_partition(transactional_id, count))
    (value,) = map_records(0, {PLACE: [Run(0, 0, 1)]})
    batch = build_batch(
        [(0, b"spark-r", value, ())],
        producer_id=9999,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    error, _ = log.append(bytes(batch), 10_000)
    assert not error
    return log


def test_an_open_transaction_of_another_query_hides_nothing(cluster: ScriptedCluster) -> None:
    """It holds back the last stable offset, and the token beyond it is read all the same."""
    settings = replace(QUERY, map_topic=MAP_TOPIC)
    driver = QueryDriver(cluster.client(), settings)
    driver.write_batch(0, lambda grant: [TaskReport(runs={PLACE: [Run(0, 0, 10)]})])
    log = open_other(cluster, settings.transactional_id)
    attempts = []

    def write(grant: Grant) -> list[TaskReport]:
        attempts.append(grant)
        if len(attempts) == 1:
            cluster.fail(ApiKey.END_TXN, ErrorCode.INVALID_TXN_STATE)  # aborted, with its record
        return [TaskReport(runs={PLACE: [Run(10, 20 * len(attempts), 10)]})]

    driver.write_batch(1, write)
    assert len(attempts) == 2
    assert log.last_stable_offset < log.end - 2
    runs = [Run(0, 0, 10), Run(10, 40, 10)]
    assert runs_of(cluster, settings.transactional_id) == runs
    log.mark(9999, 0, commit=False)
    assert runs_of(cluster, settings.transactional_id) == runs


def test_a_transaction_of_the_query_that_is_being_ended_is_waited_for(
    cluster: ScriptedCluster,
) -> None:
    """Its marker may be in the partition of the token already, and not yet in that of the map."""
    settings = replace(QUERY, map_topic=MAP_TOPIC)
    driver = QueryDriver(cluster.client(), settings)
    driver.write_batch(0, lambda grant: [TaskReport(runs={PLACE: [Run(0, 0, 10)]})])
    count = len(cluster.topics[MAP_TOPIC])
    log = cluster.log(MAP_TOPIC, tokens_partition(settings.transactional_id, count))
    producer_id = cluster.transactions[settings.transactional_id].producer_id
    (value,) = map_records(1, {PLACE: [Run(10, 11, 5)]})
    batch = build_batch(
        [(0, settings.transactional_id.encode(), value, ())],
        producer_id=producer_id,
        producer_epoch=1,
        base_sequence=0,
        is_transactional=True,
    )
    log.append(bytes(batch), 10_000)
    asked = []

    def decide(request: object) -> None:
        asked.append(request)
        if len(asked) == 12:
            log.mark(producer_id, 1, commit=True)

    cluster.before = decide
    assert runs_of(cluster, settings.transactional_id) == [Run(0, 0, 10), Run(10, 11, 5)]


def test_without_a_map_no_topic_is_made(cluster: ScriptedCluster, driver: QueryDriver) -> None:
    driver.write_batch(0, lambda grant: [])
    assert MAP_TOPIC not in cluster.topics
