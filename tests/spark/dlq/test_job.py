"""`dlq` and `dlq retry` with Spark on a real broker: every record in one of two topics."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_jobs.decoding.options import DecodeOptions
from spark_jobs.decoding.spark_schema import schema_of
from spark_jobs.dlq.job import describe_check, dlq
from spark_jobs.dlq.options import DlqOptions
from spark_jobs.errors import JobError
from tests.clients.adapters import ConfluentAdapter, Sent
from tests.spark.copying.records import records_of
from tests.spark.exactly_once.committed import Row, read_committed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long_spark,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(600),
]

PARTITIONS = 2
SCHEMA = "id long NOT NULL, name string"
BASE_MS = 1_700_000_000_000


def value(number: int) -> bytes | None:
    """Every third cannot be used."""
    good = json.dumps({"id": number, "name": "x"}).encode()
    bad = (b"{", b"\xff", b'{"name": "x"}', b"v" * 2000)[number // 3 % 4]
    return bad if number % 3 == 0 else None if number % 10 == 1 else good


def produce(bootstrap: str, topic: str, numbers: range) -> None:
    records = [
        Sent(b"k%d" % n, value(n), (("n", b"%d" % n),), BASE_MS + n, n % PARTITIONS)
        for n in numbers
    ]
    ConfluentAdapter(bootstrap).produce(topic, records, codec="lz4", idempotent=True)


def rows(bootstrap: str, topic: str) -> list[Row]:
    found = [row for each in read_committed(bootstrap, topic, PARTITIONS) for row in each]
    return sorted(found, key=lambda row: row.timestamp_ms)


def own(row: Row) -> Row:
    """Without what `dlq` has added."""
    return row._replace(headers=row.headers[:1])


def expected(numbers: range, *, good: bool) -> list[Row]:
    return [
        Row(b"k%d" % n, value(n), (("n", b"%d" % n),), BASE_MS + n)
        for n in numbers
        if (n % 3 != 0) is good
    ]


def test_records_that_cannot_be_used_and_their_way_back(
    spark: SparkSession, bootstrap: str, new_topic: Callable[[int], str], tmp_path: Path
) -> None:
    topic = new_topic(PARTITIONS)
    good, dead = f"{topic}-good", f"{topic}.dlq"
    options = DlqOptions(
        topic,
        good,
        str(tmp_path / "cp"),
        max_record_bytes=1000,
        decoding=DecodeOptions("json", SCHEMA),
        bootstrap_servers=bootstrap,
        source_options={"maxOffsetsPerTrigger": "250"},
    )
    produce(bootstrap, topic, range(400))
    assert f"topic {dead} is created" in describe_check(options)
    report = dlq(spark, options)
    assert (report.used, report.dead, report.totals.batches) == (266, 134, 2)
    assert rows(bootstrap, good) == expected(range(400), good=True)
    letters = rows(bootstrap, dead)
    assert [own(row) for row in letters] == expected(range(400), good=False)
    stages = {
        row.timestamp_ms - BASE_MS: dict(row.headers)["__connect.errors.stage"] for row in letters
    }
    assert stages[0] == stages[3] == stages[6] == b"VALUE_CONVERTER"
    assert stages[9] == b"TASK_PUT"
    named = dict(letters[2].headers)
    assert named["__connect.errors.exception.message"] == b"id is missing"
    assert (named["__connect.errors.topic"], named["__connect.errors.offset"]) == (
        topic.encode(),
        b"3",
    )

    produce(bootstrap, topic, range(400, 430))
    assert dlq(spark, options).dead == 10
    letters = rows(bootstrap, dead)

    # The checks are corrected: values need not be JSON, but still be UTF-8.
    retry = replace(
        options,
        topic=dead,
        is_retry=True,
        checkpoint=str(tmp_path / "retry"),
        max_record_bytes=None,
        decoding=DecodeOptions("string"),
    )
    still = [n for n in range(0, 430, 3) if n // 3 % 4 == 1]
    report = dlq(spark, retry)
    assert (report.used, report.dead) == (144 - len(still), len(still))
    assert rows(bootstrap, good) == sorted(
        [
            *expected(range(430), good=True),
            *(row for row in expected(range(430), good=False) if row.value != b"\xff"),
        ],
        key=lambda row: row.timestamp_ms,
    )
    again = rows(bootstrap, dead)
    assert len(again) == len(letters) + len(still)
    retried = [row for row in again if "kbroker.dlq.retries" in dict(row.headers)]
    assert [row.timestamp_ms - BASE_MS for row in retried] == still
    assert {dict(row.headers)["__connect.errors.topic"] for row in retried} == {topic.encode()}


def test_ten_thousand_records_that_cannot_be_decoded(
    spark: SparkSession, bootstrap: str, new_topic: Callable[[int], str], tmp_path: Path
) -> None:
    topic = new_topic(PARTITIONS)
    records = [Sent(None, b"\xff", (), BASE_MS, n % PARTITIONS) for n in range(10_000)]
    ConfluentAdapter(bootstrap).produce(topic, records, codec="none", idempotent=True)
    options = DlqOptions(
        topic,
        new_topic(PARTITIONS),
        str(tmp_path),
        decoding=DecodeOptions("json"),
        bootstrap_servers=bootstrap,
    )
    report = dlq(spark, options)
    assert (report.used, report.dead) == (0, 10_000)
    letters = records_of(bootstrap, options.dead_letters, PARTITIONS)
    assert [len(each) for each in letters] == [5_000, 5_000]
    assert {record.value for each in letters for record in each} == {b"\xff"}


def test_schemas(spark: SparkSession) -> None:
    schema = schema_of(spark, SCHEMA)
    assert [field["nullable"] for field in schema["fields"]] == [False, True]
    for ddl, why in (("id nonsense", "--schema id nonsense: "), ("a binary", "JSON has no binary")):
        with pytest.raises(JobError, match=why):
            schema_of(spark, ddl)
