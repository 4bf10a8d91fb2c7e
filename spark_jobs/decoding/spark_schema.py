"""Schemas in Spark's DDL, read by Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ..errors import JobError, first_cause
from .json_schema import Schema, unknown_type
from .options import DecodeOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def json_schema(spark: SparkSession, options: DecodeOptions) -> Schema | None:
    """Of JSON values; None for any. Raises JobError."""
    return schema_of(spark, options.schema) if options.schema else None


def schema_of(spark: SparkSession, ddl: str) -> Schema:
    """A schema out of its DDL. Raises JobError if Spark does not understand it, or JSON has no
    values of a type in it.
    """
    try:
        schema = json.loads(spark.createDataFrame([], ddl).schema.json())
    except Exception as error:  # ParseException; under Connect another class
        raise JobError(f"--schema {ddl}: {first_cause(error)}") from error
    unknown = unknown_type(schema)
    if unknown is not None:
        raise JobError(f"--schema {ddl}: JSON has no {unknown}")
    return schema
