"""`archive` and `table` with kills in the middle of batches: each record once for any reader, and
the current row of each key.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbroker.testing.process import BrokerProcess
from spark_jobs.java import java_problem
from tests.clients.adapters import ConfluentAdapter, Sent
from tests.spark.archive.readers import seen_by_duckdb, seen_by_pyarrow
from tests.spark.copying.records import fill, records_of
from tests.spark.kill_rounds import ROUNDS, Rounds, Victim

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long_spark,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(7200),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

PARTITIONS = 3
KEYS = 17
BASE_MS = 1_700_000_000_000


@ROUNDS
@pytest.mark.parametrize("decode", ["none", "string"])
def test_archive(
    spark: SparkSession,
    mortal: BrokerProcess,
    new_mortal_topic: Callable[[int], str],
    tmp_path: Path,
    rounds: int,
    decode: str,
) -> None:
    """Readers are asked after each life of a driver too, when its last batch was cut off."""
    bootstrap, output = mortal.bootstrap_servers, tmp_path / "out"
    topic = new_mortal_topic(PARTITIONS)
    arguments = ["archive", "--bootstrap-servers", bootstrap, "--topics", topic]
    arguments += ["--output", str(output), "--decode", decode]
    victims: tuple[Victim, ...] = ("worker", "broker")
    if decode == "none":  # Spark writes by itself: there is no worker
        victims = ("broker",)

    def feed(numbers: range) -> None:
        if output.exists():
            seen = seen_by_pyarrow(output)
            assert len(seen) == len({place[:3] for place in seen})
            assert seen_by_duckdb(output) == seen
        fill(bootstrap, topic, numbers, PARTITIONS)

    def stored(value: bytes | None) -> bytes | str | None:
        return value if value is None or decode == "none" else value.decode()

    count = Rounds(arguments, feed, mortal, victims=victims).run(rounds)
    expected = [
        (topic, partition, record.offset, record.key, stored(record.value))
        for partition, records in enumerate(records_of(bootstrap, topic, PARTITIONS))
        for record in records
    ]
    assert len(expected) == count
    assert seen_by_pyarrow(output) == seen_by_duckdb(output) == expected
    rows = spark.read.parquet(str(output)).select("topic", "partition", "offset").collect()
    assert sorted(map(tuple, rows)) == [place[:3] for place in expected]


@ROUNDS
def test_table(
    lake_spark: SparkSession,
    mortal: BrokerProcess,
    new_mortal_topic: Callable[[int], str],
    tmp_path: Path,
    rounds: int,
) -> None:
    bootstrap, output = mortal.bootstrap_servers, str(tmp_path / "table")
    topic = new_mortal_topic(PARTITIONS)

    def record(number: int) -> Sent:
        key = number % KEYS
        value = None if number % 5 == 4 else b"value-%d" % number
        return Sent(b"key-%d" % key, value, (), BASE_MS + number, key % PARTITIONS)

    def feed(numbers: range) -> None:
        records = [record(number) for number in numbers]
        ConfluentAdapter(bootstrap).produce(topic, records, codec="lz4", idempotent=True)

    arguments = ["table", "--bootstrap-servers", bootstrap, "--topic", topic, "--output", output]
    count = Rounds(arguments, feed, mortal).run(rounds)
    newest = {sent.key: sent.value for sent in map(record, range(count))}
    rows = lake_spark.read.format("delta").load(output).select("kafka_key", "value").collect()
    found = [(bytes(row.kafka_key), bytes(row.value)) for row in rows]
    assert sorted(found) == sorted((k, v) for k, v in newest.items() if v is not None)
