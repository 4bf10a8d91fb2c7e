"""Partitions that Spark's expressions choose are those of `partition_for`."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from spark_jobs.exactly_once.partitioner import partition_for
from spark_jobs.exactly_once.spark_partitioner import partition_expression
from spark_jobs.java import java_problem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

KNOWN = (b"21", b"foobar", b"a-little-bit-long-string", b"a-little-bit-longer-string", b"abc")
"""Of Kafka's own UtilsTest, as in `test_partitioner`."""


def test_partitions_are_those_of_python(spark: SparkSession) -> None:
    """Keys of every length up to 40, a long one, extreme bytes, none, and no value either."""
    from pyspark.sql import functions as F

    source = random.Random(7)
    keys: list[bytes | None] = [*KNOWN, None, b"\xff" * 11, b"\x00" * 7, b"\x80" * 4, b"\xff" * 3]
    keys += [source.randbytes(length) for length in (*range(41), *range(41), 10_001)]
    rows = [
        (key, value, count)
        for key in keys
        for value in (b"value", b"", None)
        for count in (1, 3, 1000)
    ]
    frame = spark.createDataFrame(rows, "key binary, value binary, count int")
    keyed = F.expr(partition_expression("key", "value", "count")).alias("keyed")
    keyless = F.expr(partition_expression(None, "value", "count")).alias("keyless")
    found = frame.select("key", "value", "count", keyed, keyless).collect()
    assert len(found) == len(rows)
    for key_, value_, count_, by_key, by_value in found:
        plain = None if value_ is None else bytes(value_)
        assert by_key == partition_for(None if key_ is None else bytes(key_), plain, count_)
        assert by_value == partition_for(None, plain, count_)
