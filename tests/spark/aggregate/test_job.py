"""`aggregate` with Spark on a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_jobs.aggregate.job import (
    SOURCE_SCHEMA,
    aggregate,
    check_expressions,
    describe_check,
)
from spark_jobs.aggregate.measures import parse_groups, parse_measures
from spark_jobs.aggregate.options import AggregateOptions
from spark_jobs.aggregate.rule import AggregateRule
from spark_jobs.errors import JobError
from spark_jobs.stateful.options import StatefulOptions
from tests.clients.adapters import ConfluentAdapter, Sent
from tests.spark.copying.records import records_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long_spark,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(600),
]

BASE_MS = 1_700_000_040_000
"""The beginning of a minute."""


def produce(bootstrap: str, topic: str, *rows: tuple[str, float, int]) -> None:
    """Rows of country, amount, and seconds behind the first."""
    records = [
        Sent(
            country.encode(),
            json.dumps({"country": country, "amount": amount}).encode(),
            (),
            BASE_MS + at * 1000,
            0,
        )
        for country, amount, at in rows
    ]
    ConfluentAdapter(bootstrap).produce(topic, records, codec="none", idempotent=True)


def results(bootstrap: str, topic: str) -> list[tuple[Any, Any, int]]:
    return [
        (json.loads(bytes(r.key or b"")), json.loads(bytes(r.value or b"")), r.timestamp)
        for r in records_of(bootstrap, topic, 1)[0]
    ]


def test_windows_and_late_records(
    spark: SparkSession, bootstrap: str, new_topic: Callable[[int], str], tmp_path: Path
) -> None:
    topic = new_topic(1)
    target, late = f"{topic}-totals", f"{topic}-late"
    stateful = StatefulOptions(
        "aggregate",
        topic,
        target,
        str(tmp_path / "cp"),
        30_000,
        late,
        bootstrap,
        source_options={"maxOffsetsPerTrigger": "3"},
    )
    options = AggregateOptions(
        stateful,
        parse_groups("value.country"),
        parse_measures("orders=count(*), total=sum(value.amount), mean=avg(value.amount)"),
        "country string, amount double",
        60_000,
    )
    produce(bootstrap, topic, ("de", 1, 0), ("fr", 2, 10), ("de", 3, 70))
    produce(bootstrap, topic, ("de", 5, 59), ("de", 7, 80), ("fr", 4, 100))
    assert f"topic {late} is created" in describe_check(options)
    report = aggregate(spark, options)
    # The watermark is at 70 s: the first minute is over, with the record of the second batch.
    start = {"window_start": BASE_MS, "window_end": BASE_MS + 60_000}
    expected = [
        ({"country": "de", **start}, {"orders": 2, "total": 6.0, "mean": 3.0}),
        ({"country": "fr", **start}, {"orders": 1, "total": 2.0, "mean": 2.0}),
    ]
    found = sorted(results(bootstrap, target), key=lambda row: str(row[0]))
    assert found == [(key, key | totals, BASE_MS + 59_999) for key, totals in expected]
    assert (report.counts.read, report.written, report.counts.late) == (6, 2, 0)

    produce(bootstrap, topic, ("de", 9, 30), ("fr", 1, 119), ("it", 1, 150))
    report = aggregate(spark, options)
    assert (report.written, report.counts.late) == (2, 1)
    found = results(bootstrap, target)[2:]
    assert {row[1]["country"]: row[1]["total"] for row in found} == {"de": 10.0, "fr": 5.0}
    (dropped,) = records_of(bootstrap, late, 1)[0]
    assert dropped.timestamp == BASE_MS + 30_000
    assert dict(dropped.headers)[b"kbroker.late.offset"] == b"6"


def test_running_totals(
    spark: SparkSession, bootstrap: str, new_topic: Callable[[int], str], tmp_path: Path
) -> None:
    topic = new_topic(1)
    target = f"{topic}-totals"
    stateful = StatefulOptions(
        "aggregate", topic, target, str(tmp_path / "cp"), bootstrap_servers=bootstrap
    )
    options = AggregateOptions(stateful)
    produce(bootstrap, topic, ("de", 1, 0), ("fr", 1, 5), ("de", 1, 7))
    aggregate(spark, options)
    # As a kill behind the commit leaves it: Spark does not know that the batch is written.
    (tmp_path / "cp" / "query-1" / "commits" / "0").unlink()
    (tmp_path / "cp" / "query-1" / "commits" / ".0.crc").unlink(missing_ok=True)
    produce(bootstrap, topic, ("de", 1, 3))
    report = aggregate(spark, options)
    found = results(bootstrap, target)
    assert [(row[1]["key"], row[1]["count"], row[2] - BASE_MS) for row in found[:2]] == [
        ("fr", 1, 5_000),
        ("de", 2, 7_000),
    ]
    assert found[2:] == [({"key": "de"}, {"key": "de", "count": 3}, BASE_MS + 7_000)]
    assert (report.counts.read, report.written) == (1, 1)


def test_keys_that_are_not_utf_8_are_no_groups(
    spark: SparkSession, bootstrap: str, new_topic: Callable[[int], str], tmp_path: Path
) -> None:
    """Longs as Java serializes them: 127 is UTF-8, 128 and 129 would be one key in JSON."""
    topic = new_topic(1)
    target = f"{topic}-totals"
    stateful = StatefulOptions(
        "aggregate", topic, target, str(tmp_path / "cp"), bootstrap_servers=bootstrap
    )
    keys = [number.to_bytes(8) for number in (127, 128, 129, 129)]
    records = [Sent(key, b"v", (), BASE_MS, 0) for key in keys]
    ConfluentAdapter(bootstrap).produce(topic, records, codec="none", idempotent=True)
    with pytest.raises(JobError, match=f"group key of {topic}-0 at offset 1 is not") as raised:
        aggregate(spark, AggregateOptions(stateful))
    assert '--groupBy "id=hex(key)"' in str(raised.value)
    assert "\n" not in str(raised.value)
    # The advice holds for the same checkpoint: nothing was written yet.
    aggregate(spark, AggregateOptions(stateful, parse_groups("id=hex(key)")))
    assert {row[1]["id"]: row[1]["count"] for row in results(bootstrap, target)} == {
        keys[0].hex().upper(): 1,
        keys[1].hex().upper(): 1,
        keys[2].hex().upper(): 2,
    }


@pytest.mark.parametrize(
    ("groups", "schema", "is_refused"),
    [
        ("value", "", True),
        ("x=substr(value, 2, 1)", "", False),
        ("x=substr(value, 1, 1)", "", True),
        ("x=array(named_struct('n', 1, 'v', value))", "", True),
        ("x=array(named_struct('n', 1, 'v', topic))", "", False),
        ("x=cast(value as binary)", "", False),  # base64 in JSON
        ("x=length(value)", "", False),
        ("x=headers[0]", "", False),
        ("value.a", "a string", False),
        ("none", "", False),
    ],
)
def test_texts_that_are_not_utf_8(
    spark: SparkSession, groups: str, schema: str, is_refused: bool
) -> None:
    headers = [("h", bytearray(b"\xff"))]
    row = (None, bytearray(b"\x80b"), "t", 3, 7, None, headers, BASE_MS)
    batch = spark.createDataFrame([row], SOURCE_SCHEMA)
    parsed = () if groups == "none" else parse_groups(groups)
    rule = AggregateRule(parsed, parse_measures("n=count(*)"), schema)
    if is_refused:
        with pytest.raises(JobError, match="of t-3 at offset 7 is not UTF-8"):
            rule.count(batch, 0)
    else:
        counts, newest_ms = rule.count(batch, 0)
        assert (counts.read, counts.late, newest_ms) == (1, 0, BASE_MS)


def test_late_records_and_fields_of_json_may_be_anything(spark: SparkSession) -> None:
    rows = [
        (None, bytearray(value), "t", 0, at, None, None, BASE_MS)
        for at, value in enumerate((b'{"a":"\x80"}', b'{"a":"\x81"}', b'{"\xff'))
    ]
    batch = spark.createDataFrame(rows, SOURCE_SCHEMA)
    late = AggregateRule(parse_groups("value"), parse_measures("n=count(*)"), window_ms=60_000)
    assert late.count(batch, BASE_MS + 60_000)[0].late == 3
    # What `_is_decoded` relies on.
    fields = batch.selectExpr("from_json(cast(value as string), 'a string').a as a")
    assert fields.where("not is_valid_utf8(a)").count() == 0


@pytest.mark.parametrize(
    ("groups", "measures", "schema"),
    [
        ("value.country", "n=count(*)", ""),
        ("nonsense", "n=count(*)", ""),
        ("key", "n=sum(value.a)", "a nonsense"),
        ("x=f f", "n=count(*)", ""),
    ],
)
def test_expressions_that_spark_does_not_understand(
    spark: SparkSession, groups: str, measures: str, schema: str
) -> None:
    rule = AggregateRule(parse_groups(groups), parse_measures(measures), schema)
    with pytest.raises(JobError, match="--groupBy") as raised:
        check_expressions(spark, rule)
    assert "\n" not in str(raised.value)
