"""The driver's states over a scripted cluster: requests lost before or after they had their effect,
task failures, replays, a second driver, timeouts.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace

import pytest

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.codecs.schema import Request
from kbroker.protocol.errors import ErrorCode
from spark_jobs.exactly_once.driver import QueryDriver, TaskReport, first_line
from spark_jobs.exactly_once.errors import (
    AttemptRefused,
    BatchTooLong,
    Failure,
    SecondDriver,
    SinkError,
)
from spark_jobs.exactly_once.grant import Grant
from spark_jobs.exactly_once.tokens import Token
from tests.spark.exactly_once.conftest import (
    QUERY,
    expected,
    tasks_of,
    values_of,
    write_task,
)
from tests.spark.exactly_once.scripted_cluster import ScriptedCluster

STEPS = (
    ApiKey.METADATA,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.CREATE_TOPICS,
    ApiKey.FIND_COORDINATOR,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.LIST_OFFSETS,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.END_TXN,
)


def newest_token(cluster: ScriptedCluster) -> Token:
    values = [
        record.value
        for log in cluster.topics["__spark_batches"]
        for record in log.committed_records()
        if record.key == b"spark-q" and record.value is not None
    ]
    return Token.decode(values[-1])


def test_batches_in_a_row(cluster: ScriptedCluster, driver: QueryDriver) -> None:
    for batch_id in range(4):
        report = driver.write_batch(batch_id, tasks_of(cluster, batch_id), query_id="id")
        assert (report.batch_id, report.records, report.attempts) == (batch_id, 6, 1)
    assert cluster.committed("out") == expected(0, 1, 2, 3)
    assert newest_token(cluster) == Token("id", 3, 6)
    assert cluster.transactions["spark-q"].epoch == 3
    assert cluster.requests.count(ApiKey.END_TXN) == 4
    assert cluster.configs["__spark_batches"]["cleanup.policy"] == "compact"


def test_a_batch_without_records(cluster: ScriptedCluster, driver: QueryDriver) -> None:
    report = driver.write_batch(0, tasks_of(cluster, 0, count=0))
    assert (report.records, report.attempts) == (0, 1)
    assert newest_token(cluster).batch_id == 0


@pytest.mark.parametrize("is_new_driver", [False, True])
def test_a_replayed_batch_is_skipped(
    cluster: ScriptedCluster, driver: QueryDriver, is_new_driver: bool
) -> None:
    """Spark crashed between the commit and its own commit log."""
    driver.write_batch(0, tasks_of(cluster, 0), query_id="id")
    driver.write_batch(1, tasks_of(cluster, 1), query_id="id")
    if is_new_driver:
        driver = QueryDriver(cluster.client(), QUERY)
    report = driver.write_batch(1, tasks_of(cluster, 1), query_id="id")
    assert (report.records, report.attempts) == (0, 0)
    driver.write_batch(2, tasks_of(cluster, 2), query_id="id")
    assert cluster.committed("out") == expected(0, 1, 2)


def write_batches(cluster: ScriptedCluster, ends: list[int], query_id: str = "id") -> None:
    """Batches 0, 1, ... with these end offsets."""
    driver = QueryDriver(cluster.client(), QUERY)
    for batch_id, end in enumerate(ends):
        write = tasks_of(cluster, batch_id)
        driver.write_batch(batch_id, write, query_id=query_id, end_offsets={"in": {0: end}})


@pytest.mark.parametrize("batch_id", [5, 6])
def test_a_checkpoint_that_came_back_older(cluster: ScriptedCluster, batch_id: int) -> None:
    """Spark plans the batch again, up to the end of now: to skip it would lose records."""
    write_batches(cluster, [100, 200, 300, 400, 500, 600, 700])
    ends = {"in": {0: 1500}}
    driver = QueryDriver(cluster.client(), QUERY)
    with pytest.raises(SinkError, match="would leave records out"):
        driver.write_batch(batch_id, tasks_of(cluster, 8), query_id="id", end_offsets=ends)
    assert cluster.committed("out") == expected(*range(7))

    adopting = QueryDriver(cluster.client(), replace(QUERY, adopt_checkpoint=True))
    attempts = []

    def write(grant: Grant) -> list[TaskReport]:
        attempts.append(grant)
        if len(attempts) == 1:
            raise RuntimeError("an executor was lost")
        return tasks_of(cluster, 8)(grant)

    report = adopting.write_batch(batch_id, write, query_id="id", end_offsets=ends)
    assert (report.records, report.attempts) == (6, 2)
    again = adopting.write_batch(batch_id, write, query_id="id", end_offsets=ends)
    assert (again.records, again.attempts) == (0, 0)
    assert cluster.committed("out") == expected(*range(7), 8)


def test_a_driver_that_adopts_no_longer_does_after_its_first_batch(
    cluster: ScriptedCluster,
) -> None:
    """Else one that was overtaken would write its batch again behind those of the other."""
    adopting = QueryDriver(cluster.client(), replace(QUERY, adopt_checkpoint=True))
    adopting.write_batch(0, tasks_of(cluster, 0), query_id="id")
    other = QueryDriver(cluster.client(), QUERY)
    for batch_id in (1, 2):
        other.write_batch(batch_id, tasks_of(cluster, batch_id), query_id="id")
    cluster.lose(ApiKey.INIT_PRODUCER_ID, "request")  # who was first cannot be told
    with pytest.raises(SinkError, match="q wrote up to batch 2"):
        adopting.write_batch(1, tasks_of(cluster, 1), query_id="id")
    assert cluster.committed("out") == expected(0, 1, 2)


def test_a_new_checkpoint_without_a_query_id(cluster: ScriptedCluster) -> None:
    """Spark Connect tells none."""
    driver = QueryDriver(cluster.client(), QUERY)
    driver.write_batch(0, tasks_of(cluster, 0))
    again = QueryDriver(cluster.client(), QUERY)
    with pytest.raises(SinkError, match="nothing says whether this checkpoint wrote it"):
        again.write_batch(0, tasks_of(cluster, 1))
    assert again.write_batch(0, tasks_of(cluster, 1), query_id="own").attempts == 0
    driver = QueryDriver(cluster.client(), QUERY)
    driver.write_batch(1, tasks_of(cluster, 1))
    with pytest.raises(SinkError, match="q wrote up to batch 1: the checkpoint is new"):
        QueryDriver(cluster.client(), QUERY).write_batch(0, tasks_of(cluster, 0))
    assert cluster.committed("out") == expected(0, 1)


def test_numbers_of_the_user(cluster: ScriptedCluster) -> None:
    """Of batch writes: they may leave some out, and what is not above the newest is written."""
    settings = replace(QUERY, has_own_numbers=True)
    written = []
    for batch_id in (0, 0, 7, 3, 7, 8):
        driver = QueryDriver(cluster.client(), settings)
        if driver.write_batch(batch_id, tasks_of(cluster, batch_id)).attempts:
            written.append(batch_id)
    assert written == [0, 7, 8]
    assert cluster.committed("out") == expected(0, 7, 8)


@pytest.mark.parametrize("what", ["request", "response"])
@pytest.mark.parametrize("api_key", STEPS, ids=lambda key: key.name)
def test_a_lost_connection_changes_nothing(
    cluster: ScriptedCluster, driver: QueryDriver, api_key: ApiKey, what: str
) -> None:
    driver._client.partition_count("out")  # a broker was reached: its failures are retried
    cluster.lose(api_key, what)
    driver.write_batch(0, tasks_of(cluster, 0), query_id="id")
    cluster.lose(api_key, what)
    driver.write_batch(1, tasks_of(cluster, 1), query_id="id")
    assert cluster.committed("out") == expected(0, 1)


class Killed(BaseException):
    """The driver's process ends here."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("api_key", STEPS[4:], ids=lambda key: key.name)
def test_a_driver_that_is_killed(
    cluster: ScriptedCluster, driver: QueryDriver, api_key: ApiKey, when: str
) -> None:
    """At each request of a batch, before or after it has its effect; a new driver writes the batch
    again or skips it.
    """
    driver.write_batch(0, tasks_of(cluster, 0), query_id="id")
    for batch_id in range(1, 20):
        left = [batch_id]

        def kill(request: Request, left: list[int] = left) -> None:
            left[0] -= api_key == request.API_KEY
            if api_key == request.API_KEY and left[0] == 0:
                raise Killed

        setattr(cluster, when, kill)
        with suppress(Killed):
            killed = QueryDriver(cluster.client(), QUERY)
            killed.write_batch(batch_id, tasks_of(cluster, batch_id), query_id="id")
        cluster.before = cluster.after = None
        again = QueryDriver(cluster.client(), QUERY)
        again.write_batch(batch_id, tasks_of(cluster, batch_id), query_id="id")
        assert cluster.committed("out") == expected(*range(batch_id + 1))
        if left[0] > 0:
            break
    assert left[0] > 0, "the driver was killed at each of its requests"
    assert batch_id > 1


def test_a_task_that_raises(cluster: ScriptedCluster, driver: QueryDriver) -> None:
    """Its records are aborted; the batch begins again under a new epoch, in the same call."""
    epochs = []

    def write(grant: Grant) -> list[TaskReport]:
        epochs.append(grant.producer_epoch)
        if len(epochs) < 3:
            write_task(cluster, grant, 0, [b"of an attempt that failed"])
            raise RuntimeError("an executor was lost")
        return tasks_of(cluster, 0)(grant)

    report = driver.write_batch(0, write)
    assert (report.records, report.attempts) == (6, 3)
    assert epochs == sorted(set(epochs))
    assert cluster.committed("out") == expected(0)
    assert len(cluster.log("out", 0).all_records()) == 4


def test_two_tasks_that_wrote_to_one_partition(
    cluster: ScriptedCluster, driver: QueryDriver
) -> None:
    def write(grant: Grant) -> list[TaskReport]:
        reports = tasks_of(cluster, 0)(grant)
        return [*reports, reports[0]]

    with pytest.raises(SinkError, match="two tasks wrote to out-0"):
        driver.write_batch(0, write)
    assert cluster.committed("out") == [[], [], []]


def test_refused_attempts_begin_the_batch_again(
    cluster: ScriptedCluster, driver: QueryDriver
) -> None:
    attempts = []

    def write(grant: Grant) -> list[TaskReport]:
        attempts.append(grant.producer_epoch)
        if len(attempts) == 1:
            write_task(cluster, grant, 0, values_of(0)[::3], "first")
            write_task(cluster, grant, 0, values_of(0)[::3], "second")
        return tasks_of(cluster, 0)(grant)

    report = driver.write_batch(0, write)
    assert (report.attempts, len(attempts)) == (2, 2)
    assert cluster.committed("out") == expected(0)


def test_an_attempt_of_an_earlier_epoch_cannot_write(
    cluster: ScriptedCluster, driver: QueryDriver
) -> None:
    """A task that outlives its aborted transaction, also before the next one has written."""
    grants: list[Grant] = []
    refused: list[ErrorCode] = []

    def late_record(grant: Grant) -> None:
        batch = build_batch(
            [(0, None, b"late", ())],
            producer_id=grant.producer_id,
            producer_epoch=grant.producer_epoch,
            base_sequence=0,
            is_transactional=True,
        )
        refused.extend(log.append(bytes(batch), 10_000)[0] for log in cluster.topics["out"])

    def write(grant: Grant) -> list[TaskReport]:
        grants.append(grant)
        if len(grants) == 1:
            raise RuntimeError("an executor was lost")
        late_record(grants[0])
        return tasks_of(cluster, 0)(grant)

    driver.write_batch(0, write)
    late_record(grants[0])
    assert set(refused) == {ErrorCode.INVALID_PRODUCER_EPOCH}
    assert cluster.committed("out") == expected(0)


def test_failures_that_do_not_end(
    cluster: ScriptedCluster, driver: QueryDriver, caplog: pytest.LogCaptureFixture
) -> None:
    def write(grant: Grant) -> list[TaskReport]:
        raise RuntimeError("Job aborted\nmore\n  at java")

    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(SinkError, match=r"batch 0 failed 4 times.*the last time: Job aborted$"),
    ):
        driver.write_batch(0, write)
    assert "batch 0 begins again (attempt 4): Job aborted" in caplog.text
    assert [log.last_stable_offset == log.end for log in cluster.topics["out"]] == [True] * 3


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (Failure.FATAL, "cannot be written: too large"),
        (Failure.FENCED, "another driver writes as query q"),
    ],
)
def test_failures_that_a_repetition_does_not_mend(
    cluster: ScriptedCluster, driver: QueryDriver, failure: Failure, error: str
) -> None:
    calls = []

    def write(grant: Grant) -> list[TaskReport]:
        calls.append(grant)
        restart = TaskReport(failure=Failure.RESTART, message="lost")
        return [
            *tasks_of(cluster, 0)(grant),
            restart,
            TaskReport(failure=failure, message="too large"),
        ]

    with pytest.raises(SinkError, match=error):
        driver.write_batch(0, write)
    assert len(calls) == 1
    assert cluster.committed("out") == [[], [], []]


def test_executors_without_the_package(cluster: ScriptedCluster, driver: QueryDriver) -> None:
    def write(grant: Grant) -> list[TaskReport]:
        traceback = 'Traceback (most recent call last):\n  File "x"\n'
        raise RuntimeError(f"Job aborted: {traceback}ModuleNotFoundError: No module named 'lz4'\n")

    with pytest.raises(SinkError, match=r"^batch 0 cannot be .*'lz4': install .*PYSPARK_PYTHON$"):
        driver.write_batch(0, write)


def test_a_second_driver_fences_the_first(cluster: ScriptedCluster, driver: QueryDriver) -> None:
    other = QueryDriver(cluster.client(), QUERY)

    def overtaken(grant: Grant) -> list[TaskReport]:
        reports = tasks_of(cluster, 0)(grant)
        other.write_batch(0, tasks_of(cluster, 0))
        return reports

    with pytest.raises(
        SecondDriver, match=r"another driver writes as query q.*stop one of the two"
    ):
        driver.write_batch(0, overtaken)
    assert cluster.committed("out") == expected(0)


def test_a_second_driver_between_two_batches(cluster: ScriptedCluster, driver: QueryDriver) -> None:
    driver.write_batch(0, tasks_of(cluster, 0))
    QueryDriver(cluster.client(), QUERY).write_batch(1, tasks_of(cluster, 1))
    with pytest.raises(SecondDriver):
        driver.write_batch(1, tasks_of(cluster, 1))
    assert cluster.committed("out") == expected(0, 1)


def test_a_coordinator_that_dies_with_the_answer_of_a_new_epoch(
    cluster: ScriptedCluster, driver: QueryDriver
) -> None:
    """Its successor has the epoch, and does not know that this driver had asked for it."""
    driver.write_batch(0, tasks_of(cluster, 0))
    cluster.lose(ApiKey.INIT_PRODUCER_ID, "response")

    def elect(request: Request) -> None:
        for transaction in cluster.transactions.values():
            transaction.previous_epoch = -1

    cluster.after = elect
    assert driver.write_batch(1, tasks_of(cluster, 1)).attempts == 1
    assert cluster.committed("out") == expected(0, 1)


def test_a_second_driver_while_the_coordinator_moves(
    cluster: ScriptedCluster, driver: QueryDriver
) -> None:
    """Who was first cannot be told: the second one is fenced, and its batch is not repeated."""
    driver.write_batch(0, tasks_of(cluster, 0))
    other = QueryDriver(cluster.client(), QUERY)
    other.write_batch(1, tasks_of(cluster, 1))
    cluster.lose(ApiKey.INIT_PRODUCER_ID, "request")
    assert driver.write_batch(1, tasks_of(cluster, 1)).attempts == 0
    with pytest.raises(SecondDriver):
        other.write_batch(2, tasks_of(cluster, 2))
    assert cluster.committed("out") == expected(0, 1)


def test_a_second_driver_whose_markers_are_being_written(
    cluster: ScriptedCluster, driver: QueryDriver
) -> None:
    """The first driver is refused twice: while the markers are written, then for its epoch. It was
    given none in between, so there is no doubt that another one has been.
    """
    driver.write_batch(0, tasks_of(cluster, 0))
    QueryDriver(cluster.client(), QUERY).write_batch(1, tasks_of(cluster, 1))
    cluster.fail(ApiKey.INIT_PRODUCER_ID, ErrorCode.CONCURRENT_TRANSACTIONS)
    with pytest.raises(SecondDriver):
        driver.write_batch(1, tasks_of(cluster, 1))
    assert cluster.committed("out") == expected(0, 1)


KAFKA_0_11 = {
    ApiKey.PRODUCE: 3,
    ApiKey.FETCH: 5,
    ApiKey.LIST_OFFSETS: 2,
    ApiKey.METADATA: 4,
    ApiKey.FIND_COORDINATOR: 1,
    ApiKey.CREATE_TOPICS: 2,
    ApiKey.INIT_PRODUCER_ID: 0,
    ApiKey.ADD_PARTITIONS_TO_TXN: 0,
    ApiKey.ADD_OFFSETS_TO_TXN: 0,
    ApiKey.END_TXN: 0,
    ApiKey.TXN_OFFSET_COMMIT: 0,
    ApiKey.DESCRIBE_CONFIGS: 0,
}
"""The highest versions that Apache Kafka 0.11.0 serves."""


def test_a_broker_of_kafka_0_11(cluster: ScriptedCluster) -> None:
    cluster.max_version.update(KAFKA_0_11)
    driver = QueryDriver(cluster.client(), replace(QUERY, commit_group="readers"))
    for batch_id in (0, 1):
        driver.write_batch(batch_id, tasks_of(cluster, batch_id), end_offsets={"in": {0: 7}})
    assert cluster.committed("out") == expected(0, 1)


def test_a_broker_before_kip_360_names_no_producers(
    cluster: ScriptedCluster, driver: QueryDriver
) -> None:
    cluster.max_version[ApiKey.INIT_PRODUCER_ID] = 1
    driver.write_batch(0, tasks_of(cluster, 0))
    QueryDriver(cluster.client(), QUERY).write_batch(1, tasks_of(cluster, 1))
    assert driver.write_batch(1, tasks_of(cluster, 1)).attempts == 0
    assert cluster.committed("out") == expected(0, 1)


def test_a_transactional_id_that_the_coordinator_forgot(
    cluster: ScriptedCluster, driver: QueryDriver
) -> None:
    driver.write_batch(0, tasks_of(cluster, 0))
    cluster.fail(ApiKey.INIT_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    driver.write_batch(1, tasks_of(cluster, 1))
    assert cluster.committed("out") == expected(0, 1)


@pytest.mark.parametrize("is_noticed_by_tasks", [False, True])
def test_a_batch_longer_than_the_transaction_timeout(
    cluster: ScriptedCluster, driver: QueryDriver, is_noticed_by_tasks: bool
) -> None:
    def slow(grant: Grant) -> list[TaskReport]:
        reports = tasks_of(cluster, 0)(grant)
        cluster.clock.sleep(61)
        cluster.time_out_transactions()
        return reports + [TaskReport(failure=Failure.FENCED)] * is_noticed_by_tasks

    with pytest.raises(BatchTooLong, match=r"transaction_timeout_ms=60000.*maxOffsetsPerTrigger"):
        driver.write_batch(0, slow)
    assert cluster.committed("out") == [[], [], []]


def test_half_of_the_transaction_timeout_is_a_warning(
    cluster: ScriptedCluster, driver: QueryDriver, caplog: pytest.LogCaptureFixture
) -> None:
    def slow(grant: Grant) -> list[TaskReport]:
        cluster.clock.sleep(31)
        return tasks_of(cluster, 0)(grant)

    with caplog.at_level(logging.WARNING):
        driver.write_batch(0, slow)
        driver.write_batch(1, tasks_of(cluster, 1))
    assert [record.getMessage()[:20] for record in caplog.records] == ["batch 0 took 31 s, m"]


def test_a_commit_whose_answer_never_comes(cluster: ScriptedCluster) -> None:
    """The broker has committed; the driver learns it from the token of the next transaction."""
    driver = QueryDriver(cluster.client(retry_timeout_s=0.0), QUERY)
    driver._client.partition_count("out")
    cluster.lose(ApiKey.END_TXN, "response")
    report = driver.write_batch(0, tasks_of(cluster, 0))
    assert (report.records, report.attempts) == (0, 1)
    assert cluster.committed("out") == expected(0)


def test_a_commit_that_never_arrives(cluster: ScriptedCluster) -> None:
    driver = QueryDriver(cluster.client(retry_timeout_s=0.5), QUERY)
    driver._client.partition_count("out")
    for _ in range(10):
        cluster.lose(ApiKey.END_TXN, "request")
    report = driver.write_batch(0, tasks_of(cluster, 0))
    assert report.records == 6
    assert report.attempts > 1
    assert cluster.committed("out") == expected(0)


def test_offsets_of_a_group_are_committed_with_the_batch(cluster: ScriptedCluster) -> None:
    driver = QueryDriver(cluster.client(), replace(QUERY, commit_group="readers"))
    cluster.fail(ApiKey.TXN_OFFSET_COMMIT, ErrorCode.NOT_COORDINATOR)
    driver.write_batch(0, tasks_of(cluster, 0), end_offsets={"in": {0: 17, 3: 4}})
    assert cluster.group_offsets == {("readers", "in", 0): 17, ("readers", "in", 3): 4}
    assert newest_token(cluster).end_offsets == {"in": {0: 17, 3: 4}}


def test_the_offsets_of_topics_that_are_no_longer_read_stay(cluster: ScriptedCluster) -> None:
    for batch_id, topics in enumerate((("in", "also"), ("in",), ("in",), ("in", "also"))):
        driver = QueryDriver(cluster.client(), QUERY)
        ends = {topic: {0: 10 + batch_id} for topic in topics}
        driver.write_batch(batch_id, tasks_of(cluster, batch_id), end_offsets=ends)
        token = newest_token(cluster)
        assert token.end_offsets == ends
        assert token.left == ({} if "also" in topics else {"also": {0: 10}})


def test_a_commit_that_is_refused_leaves_no_transaction_open(cluster: ScriptedCluster) -> None:
    driver = QueryDriver(cluster.client(), replace(QUERY, commit_group="readers"))
    cluster.fail(ApiKey.ADD_OFFSETS_TO_TXN, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(SinkError, match=r"^committing batch 0: .*grant Read on the group"):
        driver.write_batch(0, tasks_of(cluster, 0), end_offsets={"in": {0: 17}})
    assert cluster.committed("out") == [[], [], []]
    assert [log.last_stable_offset == log.end for log in cluster.topics["out"]] == [True] * 3


def test_a_missing_topic(cluster: ScriptedCluster) -> None:
    driver = QueryDriver(cluster.client(), replace(QUERY, topics=("out", "absent")))
    with pytest.raises(SinkError, match=r"^topic absent does not exist: create it"):
        driver.write_batch(0, tasks_of(cluster, 0))
    assert ApiKey.INIT_PRODUCER_ID not in cluster.requests


def test_a_topic_that_was_just_created(cluster: ScriptedCluster, driver: QueryDriver) -> None:
    """The broker that is asked does not know it yet."""
    logs = cluster.topics.pop("out")
    asked = []

    def learn(request: Request) -> None:
        asked.append(request)
        if len(asked) == 3:
            cluster.topics["out"] = logs

    cluster.before = learn
    driver.write_batch(0, tasks_of(cluster, 0))
    assert cluster.committed("out") == expected(0)


def test_a_topic_of_tokens_that_would_expire(cluster: ScriptedCluster, driver: QueryDriver) -> None:
    cluster.create("__spark_batches", 1)
    with pytest.raises(SinkError, match=r"cleanup.policy=delete.*set cleanup.policy=compact"):
        driver.write_batch(0, tasks_of(cluster, 0))


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (ErrorCode.INVALID_TRANSACTION_TIMEOUT, "lower transaction_timeout_ms"),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "grant Write and Describe on the trans"),
    ],
)
def test_refusals_say_what_to_do(
    cluster: ScriptedCluster, driver: QueryDriver, code: ErrorCode, advice: str
) -> None:
    cluster.fail(ApiKey.INIT_PRODUCER_ID, code)
    with pytest.raises(SinkError, match=f"^beginning batch 0: {code.name}.*{advice}"):
        driver.write_batch(0, tasks_of(cluster, 0))


def test_no_coordinator(cluster: ScriptedCluster, driver: QueryDriver) -> None:
    cluster.fail(ApiKey.FIND_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, times=1000)
    with pytest.raises(SinkError, match=r"transaction.state.log.replication.factor"):
        driver.write_batch(0, tasks_of(cluster, 0))
    assert 55 < cluster.clock.now - 100 < 65


def test_the_line_that_says_most() -> None:
    text = (
        "Job aborted due to stage failure: Task 0 failed, Traceback (most recent call last):\n"
        '  File "worker.py", line 1, in main\n    process()\n'
        "spark_jobs.exactly_once.errors.AttemptRefused: attempt refused: an earlier one\n\n"
        "\tat org.apache.spark.api.python.BasePythonRunner\n"
    )
    assert first_line(RuntimeError(text)).startswith("spark_jobs.exactly_once.errors.AttemptRef")
    assert first_line(RuntimeError("\n one \n two")) == "one"
    assert first_line(AttemptRefused()) == "AttemptRefused"
