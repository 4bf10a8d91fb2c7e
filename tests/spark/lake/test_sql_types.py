"""Types in SQL are those that they were, whatever names their fields have. Without Spark."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from spark_jobs.lake.tables import Column, sql_type


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (LongType(), "bigint"),
        (DecimalType(12, 2), "decimal(12,2)"),
        (struct(**{"a-b": IntegerType()}), "struct<`a-b`: int>"),
        (
            struct(**{"a`b": IntegerType(), "select": StringType()}),
            "struct<`a``b`: int, `select`: string>",
        ),
        (ArrayType(struct(**{"a b": StringType()})), "array<struct<`a b`: string>>"),
        (
            MapType(StringType(), ArrayType(struct(**{"1": LongType()}))),
            "map<string, array<struct<`1`: bigint>>>",
        ),
        (struct(), "struct<>"),
    ],
)
def test_types(kind: DataType, shown: str) -> None:
    assert sql_type(kind) == shown
    assert str(Column("c-d", sql_type(kind))) == f"`c-d` {shown}"
