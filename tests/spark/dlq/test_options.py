"""Options of `dlq` and `dlq retry`."""

from __future__ import annotations

import threading

import pytest

from spark_jobs.dlq.job import RowCount, check_balance
from spark_jobs.dlq.options import dlq_options
from spark_jobs.errors import JobError
from spark_jobs.exactly_once.errors import SinkError

VALUES = {"topic": "orders", "toTopic": "good", "checkpointLocation": "cp"}


def test_values() -> None:
    options = dlq_options({**VALUES, "schema": "id long", "maxRecordBytes": "1k"}, is_retry=False)
    assert (options.decoding.decode, options.dead_letters, options.max_record_bytes) == (
        "json",
        "orders.dlq",
        1024,
    )
    assert options.stream.query_name == "dlq-orders"
    assert options.stream.target == "good and orders.dlq"


def test_a_retry_writes_to_the_topic_that_it_reads() -> None:
    options = dlq_options({**VALUES, "topic": "orders.dlq", "queryName": "again"}, is_retry=True)
    assert (options.dead_letters, options.stream.query_name) == ("orders.dlq", "again")
    assert options.stream.job == "dlq-retry"
    with pytest.raises(JobError, match="dlq retry runs once"):
        dlq_options({**VALUES, "trigger": "10 seconds"}, is_retry=True)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"topic": ""}, "give --topic"),
        ({"toTopic": "orders"}, "--to is orders, which is read"),
        ({"toTopic": "orders.dlq"}, "or has the dead letters"),
        ({"dlqTopic": "orders"}, "--dlqTopic is orders, which is read"),
        ({"schema": "id long", "decode": "string"}, "--schema is one of json values"),
    ],
)
def test_mistakes(changes: dict[str, str], why: str) -> None:
    with pytest.raises(JobError, match=why):
        dlq_options({**VALUES, **changes}, is_retry=False)


class Frame:
    """A frame whose observation never gets its count."""

    def observe(self, observation: object, *columns: object) -> Frame:
        return self

    def count(self) -> int:
        return 7


def test_a_count_that_does_not_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the rows are counted by another job, and no batch waits for ever."""
    monkeypatch.setattr("pyspark.sql.functions.count", lambda column: Column())
    monkeypatch.setattr("pyspark.sql.functions.lit", lambda value: None)
    for get in (lambda self: threading.Event().wait(), lambda self: {}["rows"]):
        monkeypatch.setattr("pyspark.sql.Observation.get", property(get))
        monkeypatch.setattr("spark_jobs.dlq.job.COUNT_S", 0.05)
        assert RowCount(Frame()).value() == 7  # type: ignore[arg-type]
    monkeypatch.setattr("pyspark.sql.Observation.get", property(lambda self: {"rows": 3}))
    assert RowCount(Frame()).value() == 3  # type: ignore[arg-type]


class Column:
    def alias(self, name: str) -> Column:
        return self


def test_the_balance() -> None:
    check_balance(5, {"good": 3, "bad": 2})
    check_balance(0, {})
    with pytest.raises(SinkError, match=r"6 records were read and 5 written \(2 to bad, 3 to good"):
        check_balance(6, {"good": 3, "bad": 2})
