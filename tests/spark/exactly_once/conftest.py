"""A cluster in memory with one target topic, and what writes batches to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from kbroker.model import TopicPartition
from spark_jobs.exactly_once.blocks import block_of
from spark_jobs.exactly_once.claims import Claims
from spark_jobs.exactly_once.driver import QueryDriver, QuerySettings, TaskReport
from spark_jobs.exactly_once.grant import Grant
from spark_jobs.exactly_once.writer import TaskWriter
from tests.spark.exactly_once.scripted_cluster import ScriptedCluster

PARTITIONS = 3
QUERY = QuerySettings("q", ("out",), transaction_timeout_ms=60_000)


@pytest.fixture
def cluster() -> ScriptedCluster:
    return ScriptedCluster(out=PARTITIONS)


@pytest.fixture
def driver(cluster: ScriptedCluster) -> QueryDriver:
    return QueryDriver(cluster.client(), QUERY)


def values_of(batch_id: int, count: int = 6) -> list[bytes]:
    """The rows of a batch; row i goes to partition i % PARTITIONS."""
    return [b"%d-%d" % (batch_id, i) for i in range(count)]


def write_task(
    cluster: ScriptedCluster,
    grant: Grant,
    task: int,
    values: Sequence[bytes],
    attempt: str = "first",
) -> TaskReport:
    """One task attempt: the rows of the partition with the task's number."""
    client = cluster.client()
    writer = TaskWriter(grant, client, Claims(client, grant, task=task, attempt=attempt))
    for value in values:
        writer.write(TopicPartition("out", task), block_of([(0, None, value, ())]))
    return TaskReport(writer.finish())


def tasks_of(
    cluster: ScriptedCluster, batch_id: int, count: int = 6
) -> Callable[[Grant], list[TaskReport]]:
    """What Spark does with a batch: one task per partition."""
    values = values_of(batch_id, count)

    def write(grant: Grant) -> list[TaskReport]:
        return [
            write_task(cluster, grant, task, values[task::PARTITIONS]) for task in range(PARTITIONS)
        ]

    return write


def expected(*batch_ids: int) -> list[list[bytes]]:
    """By partition: what a reader of committed records sees of these batches."""
    return [
        [value for batch_id in batch_ids for value in values_of(batch_id)[partition::PARTITIONS]]
        for partition in range(PARTITIONS)
    ]
