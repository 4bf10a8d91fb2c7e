"""`dedupe` with Spark on a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_jobs.dedupe.job import dedupe, describe_check
from spark_jobs.dedupe.options import DedupeOptions
from spark_jobs.errors import JobError, StartRefused
from spark_jobs.stateful import batches as stateful_batches
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

BASE_MS = 1_700_000_000_000


def produce(bootstrap: str, topic: str, *rows: tuple[bytes | None, bytes, int]) -> None:
    """Rows of key, value, and seconds behind the first."""
    records = [Sent(key, value, (), BASE_MS + at * 1000, 0) for key, value, at in rows]
    ConfluentAdapter(bootstrap).produce(topic, records, codec="none", idempotent=True)


def values(bootstrap: str, topic: str) -> list[bytes | None]:
    return [None if r.value is None else bytes(r.value) for r in records_of(bootstrap, topic, 1)[0]]


def test_the_first_of_each_id_and_late_records(
    spark: SparkSession,
    bootstrap: str,
    new_topic: Callable[[int], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = new_topic(1)
    once, late = f"{topic}-once", f"{topic}-late"
    stateful = StatefulOptions(
        "dedupe",
        topic,
        once,
        str(tmp_path / "cp"),
        60_000,
        late,
        bootstrap,
        source_options={"maxOffsetsPerTrigger": "4"},
    )
    options = DedupeOptions(stateful)
    produce(
        bootstrap, topic, (b"a", b"a1", 0), (b"b", b"b1", 1), (b"a", b"a2", 2), (b"c", b"c1", 3)
    )
    produce(bootstrap, topic, (b"b", b"b2", 100), (b"d", b"d1", 90))
    assert f"topic {late} is created" in describe_check(options)
    report = dedupe(spark, options)
    assert values(bootstrap, once) == [b"a1", b"b1", b"c1", b"d1"]
    assert (report.counts.read, report.written, report.counts.duplicates) == (6, 4, 2)

    # The watermark is at 40 s now: b is forgotten with time 1, so b3 is its first again.
    monkeypatch.setattr(stateful_batches, "MAX_PARTS", 1)
    produce(bootstrap, topic, (b"b", b"b3", 95), (b"e", b"e1", 20), (b"d", b"d2", 99))
    report = dedupe(spark, options)
    assert values(bootstrap, once)[4:] == [b"b3"]
    assert (report.written, report.counts.late, report.counts.duplicates) == (1, 1, 1)
    (found,) = records_of(bootstrap, late, 1)[0]
    assert (found.key, found.value, found.timestamp) == (b"e", b"e1", BASE_MS + 20_000)
    assert dict(found.headers) == {
        b"kbroker.late.topic": topic.encode(),
        b"kbroker.late.partition": b"0",
        b"kbroker.late.offset": b"7",
        b"kbroker.late.watermark": b"%d" % (BASE_MS + 40_000),
    }
    assert report.to_text() == (
        f"read 3 records of {topic}: 1 to {once}; 1 duplicate; 1 late, to {late}; in 1 batch"
    )
    produce(bootstrap, topic, (b"d", b"d3", 98))
    assert dedupe(spark, options).counts.duplicates == 1

    with pytest.raises(StartRefused, match="was made with --by key, and this is --by value"):
        describe_check(replace(options, by="value"))
    produce(bootstrap, topic, (None, b"x", 101))
    with pytest.raises(JobError, match=rf"1 records have no id \(key\), the first is {topic}-0 at"):
        dedupe(spark, options)
    report = dedupe(spark, replace(options, without_id="keep"))
    assert (report.written, report.counts.without_id) == (1, 1)
    assert values(bootstrap, once)[5:] == [b"x"]


def test_ids_in_values_and_headers_and_a_batch_that_is_begun_again(
    spark: SparkSession, bootstrap: str, new_topic: Callable[[int], str], tmp_path: Path
) -> None:
    from spark_jobs.dedupe.ids import id_column

    rows = [(None, json.dumps({"id": n % 3}).encode(), [("id", b"%d" % (n % 2))]) for n in range(6)]
    schema = "key binary, value binary, headers array<struct<key:string,value:binary>>"
    frame = spark.createDataFrame(rows, schema)

    def ids(by: str) -> list[bytes]:
        return sorted(bytes(row[0]) for row in frame.select(id_column(by)).distinct().collect())

    assert (ids("json:$.id"), ids("header:id"), len(ids("value"))) == (
        [b"0", b"1", b"2"],
        [b"0", b"1"],
        3,
    )
    assert frame.where(id_column("header:absent").isNotNull()).count() == 0

    topic = new_topic(1)
    stateful = StatefulOptions(
        "dedupe", topic, f"{topic}-once", str(tmp_path / "cp"), bootstrap_servers=bootstrap
    )
    options = DedupeOptions(stateful)
    produce(bootstrap, topic, (b"a", b"a1", 0), (b"b", b"b1", 5), (b"a", b"a2", 9))
    dedupe(spark, options)
    # As a kill behind the commit leaves it: Spark does not know that the batch is written.
    (tmp_path / "cp" / "query-1" / "commits" / "0").unlink()
    (tmp_path / "cp" / "query-1" / "commits" / ".0.crc").unlink(missing_ok=True)
    produce(bootstrap, topic, (b"b", b"b2", 9), (b"c", b"c1", 9))
    dedupe(spark, options)
    assert values(bootstrap, stateful.to_topic) == [b"a1", b"b1", b"c1"]
