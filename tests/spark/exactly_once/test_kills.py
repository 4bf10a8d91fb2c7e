"""Processes killed at each step of a batch, on a real broker: what a reader with read_committed
sees is each row once, in order. On Apache Kafka too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from kbroker.model import TopicPartition
from kbroker.testing.process import BrokerProcess
from scripts.apache_kafka import ApacheKafka
from spark_jobs.exactly_once.blocks import block_of
from spark_jobs.exactly_once.claims import Claims
from spark_jobs.exactly_once.driver import QueryDriver, TaskReport
from spark_jobs.exactly_once.errors import (
    AttemptRefused,
    BatchTooLong,
    Failure,
    SecondDriver,
    SinkError,
    TaskFailure,
)
from spark_jobs.exactly_once.grant import Grant
from spark_jobs.exactly_once.writer import TaskWriter
from spark_jobs.java import java_problem
from spark_jobs.wire.client import ClusterAddress
from tests.clients.adapters import wait_until
from tests.spark.exactly_once.batch_worker import (
    NO_KILL,
    PARTITIONS,
    client_of,
    close_clients,
    rows,
    settings,
    start,
    write_batch,
    write_in_processes,
    write_task,
)
from tests.spark.exactly_once.committed import read_committed

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

OVERRIDES = {
    "log.retention.ms": "-1",  # the records are old
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "log.cleaner.backoff.ms": "500",
}
_numbers = count()


@pytest.fixture(
    scope="module",
    params=[
        "kbroker",
        pytest.param(
            "kafka",
            marks=[
                pytest.mark.reference,
                pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
            ],
        ),
    ],
)
def bootstrap(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A broker in a process of its own: kbroker, and Apache Kafka under the marker `reference`."""
    data: Path = tmp_path_factory.mktemp("sink") / "data"
    broker = BrokerProcess if request.param == "kbroker" else ApacheKafka
    with broker(data, overrides=OVERRIDES) as running:
        yield running.bootstrap_servers


@pytest.fixture(autouse=True)
def closed_clients() -> Iterator[None]:
    yield
    close_clients()


@pytest.fixture
def topic(bootstrap: str) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    name = f"out-{os.getpid()}-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(60)
    wait_until(lambda: name in admin.list_topics(timeout=30).topics, 60, "the topic is known")
    return name


def driver_of(bootstrap: str, topic: str) -> QueryDriver:
    return QueryDriver(client_of(ClusterAddress(bootstrap)), settings(topic))


def committed(bootstrap: str, topic: str) -> list[list[bytes | None]]:
    """Values by partition, in order."""
    rows_of = read_committed(bootstrap, topic, PARTITIONS)
    return [[row.value for row in partition] for partition in rows_of]


def expected(*batch_ids: int) -> list[list[bytes]]:
    return [
        [value for batch_id in batch_ids for value in rows(batch_id, partition)]
        for partition in range(PARTITIONS)
    ]


DRIVER_KILLS = [
    "INIT_PRODUCER_ID:1:sent",
    "INIT_PRODUCER_ID:1:answered",
    "FETCH:1:answered",
    "ADD_PARTITIONS_TO_TXN:1:before",
    "ADD_PARTITIONS_TO_TXN:1:answered",
    "PRODUCE:1:before",  # the token
    "PRODUCE:1:answered",
    "END_TXN:1:before",
    "END_TXN:1:sent",
    "END_TXN:1:answered",
    NO_KILL,  # after the batch, before Spark's commit log
]
TASK_KILLS = ["PRODUCE:1:answered", "PRODUCE:2:sent", "PRODUCE:3:answered"]


@pytest.mark.long_spark
def test_a_driver_killed_at_each_step(bootstrap: str, topic: str) -> None:
    """In process, so that the tasks are killed with it; a new driver goes on."""
    kills = [(kill, NO_KILL) for kill in DRIVER_KILLS] + [(NO_KILL, kill) for kill in TASK_KILLS]
    for batch_id, (kill, task_kill) in enumerate(kills):
        run = start("driver", bootstrap, topic, str(batch_id), kill, task_kill)
        assert run.returncode == -9, (kill, task_kill, run.stderr)
        driver_of(bootstrap, topic).write_batch(batch_id, write_batch(batch_id), query_id="id")
    assert committed(bootstrap, topic) == expected(*range(len(kills)))


@pytest.mark.long_spark
def test_a_task_killed_while_it_writes(bootstrap: str, topic: str) -> None:
    """The second attempt is refused if the first one had claimed; the batch begins again."""
    driver = driver_of(bootstrap, topic)
    driver.write_batch(0, write_batch(0))
    ends: list[int] = []
    report = driver.write_batch(1, write_in_processes(1, ["PRODUCE:1:before"], ends))
    assert (report.attempts, ends) == (1, [-9, 0])
    ends.clear()
    report = driver.write_batch(2, write_in_processes(2, ["PRODUCE:3:answered"], ends))
    assert (report.attempts, ends) == (2, [-9, 1, 0])
    assert committed(bootstrap, topic) == expected(0, 1, 2)


def test_two_attempts_of_a_task(bootstrap: str, topic: str) -> None:
    """Speculation: the second one is refused, the first one's records count."""

    def write(grant: Grant) -> list[TaskReport]:
        client = client_of(grant.address)
        slow = TaskWriter(grant, client, Claims(client, grant, task=0, attempt="slow"))
        for value in rows(0, 0)[:50]:
            slow.write(TopicPartition(topic, 0), block_of([(0, None, value, ())]))
        with pytest.raises(AttemptRefused):
            write_task(grant, 0, 0)
        for value in rows(0, 0)[50:]:
            slow.write(TopicPartition(topic, 0), block_of([(0, None, value, ())]))
        return [TaskReport(slow.finish()), *(write_task(grant, 0, task) for task in (1, 2))]

    assert driver_of(bootstrap, topic).write_batch(0, write).attempts == 1
    assert committed(bootstrap, topic) == expected(0)


def test_a_task_that_outlives_its_transaction(bootstrap: str, topic: str) -> None:
    """Its epoch is fenced in every partition, also before the next attempt has written there."""
    outlived: list[Failure] = []

    def write(grant: Grant) -> list[TaskReport]:
        grants.append(grant)
        if len(grants) == 1:
            write_task(grant, 0, 0)
            raise RuntimeError("an executor was lost")
        client = client_of(grants[0].address)
        zombie = TaskWriter(grants[0], client, Claims(client, grants[0], task=1, attempt="late"))
        zombie.write(TopicPartition(topic, 1), block_of([(0, None, b"late", ())]))
        with pytest.raises(TaskFailure) as caught:
            zombie.finish()
        outlived.append(caught.value.failure)
        return list(write_batch(0)(grant))

    grants: list[Grant] = []
    assert driver_of(bootstrap, topic).write_batch(0, write).attempts == 2
    assert outlived == [Failure.FENCED]
    assert committed(bootstrap, topic) == expected(0)


def test_two_drivers_at_once(bootstrap: str, topic: str) -> None:
    first, second = driver_of(bootstrap, topic), driver_of(bootstrap, topic)

    def overtaken(grant: Grant) -> list[TaskReport]:
        reports = list(write_batch(0)(grant))
        second.write_batch(0, write_batch(0))
        return reports

    with pytest.raises(SecondDriver, match="another driver writes as query"):
        first.write_batch(0, overtaken)
    second.write_batch(1, write_batch(1))
    driver_of(bootstrap, topic).write_batch(2, write_batch(2))
    with pytest.raises(SecondDriver):
        second.write_batch(2, write_batch(2))
    assert committed(bootstrap, topic) == expected(0, 1, 2)


def test_a_batch_longer_than_the_transaction_timeout(bootstrap: str, topic: str) -> None:
    driver = QueryDriver(
        client_of(ClusterAddress(bootstrap)), replace(settings(topic), transaction_timeout_ms=500)
    )

    def write_until_refused(grant: Grant) -> list[TaskReport]:
        client = client_of(grant.address)
        writer = TaskWriter(grant, client, Claims(client, grant, task=0, attempt="a"))
        failure: list[TaskFailure] = []

        def is_refused() -> bool:
            try:
                writer.write(TopicPartition(topic, 0), block_of([(0, None, b"x" * 2000, ())]))
            except TaskFailure as refused:
                failure.append(refused)
            return bool(failure)

        wait_until(is_refused, 60, "the broker aborts the transaction")
        return [TaskReport(failure=failure[0].failure, message=failure[0].message)]

    with pytest.raises(BatchTooLong, match="took longer than transaction_timeout_ms=500"):
        driver.write_batch(0, write_until_refused)
    driver_of(bootstrap, topic).write_batch(0, write_batch(0))
    assert committed(bootstrap, topic) == expected(0)


def test_a_record_that_is_too_large(bootstrap: str, topic: str) -> None:
    def write(grant: Grant) -> list[TaskReport]:
        client = client_of(grant.address)
        writer = TaskWriter(grant, client, Claims(client, grant, task=0, attempt="a"))
        try:
            writer.write(TopicPartition(topic, 0), block_of([(0, b"k", os.urandom(2_000_000), ())]))
            writer.finish()
        except TaskFailure as failure:
            return [TaskReport(failure=failure.failure, message=failure.message)]
        return []

    with pytest.raises(SinkError, match=r"batch 0 cannot be written: a record with key b'k'.*"):
        driver_of(bootstrap, topic).write_batch(0, write)
    assert committed(bootstrap, topic) == expected()


def test_offsets_of_a_group_are_committed_with_the_batch(bootstrap: str, topic: str) -> None:
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Place

    group = f"group-{topic}"
    client = client_of(ClusterAddress(bootstrap))
    driver = QueryDriver(client, replace(settings(topic), commit_group=group))
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        for batch_id in range(2):
            ends = {topic: {0: 10 * batch_id + 7, 2: 3}}
            driver.write_batch(batch_id, write_batch(batch_id), end_offsets=ends)

            def committed_offsets() -> list[int]:
                places = [Place(topic, index) for index in range(PARTITIONS)]
                return [place.offset for place in reader.committed(places, timeout=30)]

            wanted = [10 * batch_id + 7, -1001, 3]
            wait_until(lambda wanted=wanted: committed_offsets() == wanted, 60, "the offsets")
    finally:
        reader.close()
