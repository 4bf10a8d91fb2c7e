"""The frame of a micro-batch as rows for the tasks: columns checked, rows arranged by partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from .arrow_map import map_in_arrow
from .errors import SinkError
from .rows import HEADERS, KEY, PARTITION, SOURCE_OFFSET, TIMESTAMP, TOPIC, VALUE
from .tasks import AddPartition

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

OFFSET: Final = "offset"
"""The column that becomes SOURCE_OFFSET, where an offset map is written."""
SOURCE_TIMESTAMP: Final = "timestamp"
"""The column that becomes TIMESTAMP, under the name that Spark's Kafka source gives it."""

Arrangement = Literal["shuffle", "keep"]


@dataclass(frozen=True, slots=True)
class Layout:
    """How rows reach the tasks.

    topic: of all rows; None if the column `topic` names it. arrangement: `shuffle` brings the rows
    of a target partition into one task; `keep` leaves them where they are, for frames in which each
    target partition is in one Spark partition already (checked while writing). order_by: columns by
    which the rows of a target partition are sorted. tasks: of the shuffle, None for one per target
    partition, at most spark.sql.shuffle.partitions. has_offsets: rows carry their
    source offsets (column `offset`, long), for the offset map.
    """

    topic: str | None
    arrangement: Arrangement = "shuffle"
    order_by: tuple[str, ...] = ()
    tasks: int | None = None
    has_offsets: bool = False


def arranged(frame: DataFrame, layout: Layout, partition_counts: Mapping[str, int]) -> DataFrame:
    """The rows for `tasks.WriteTask`. partition_counts: of every target topic.

    Raises SinkError for columns that cannot be written.
    """
    from pyspark.sql import functions as F

    order = [F.col(name).alias(f"order_{i}") for i, name in enumerate(layout.order_by)]
    rows = frame.select(*record_columns(frame.schema, layout), *order)
    if PARTITION not in rows.columns:
        rows = _with_partition(rows, layout, partition_counts)
    targets = [name for name in (TOPIC, PARTITION) if name in rows.columns]
    if layout.arrangement == "shuffle":
        most = int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions", "200") or 200)
        tasks = layout.tasks or min(sum(partition_counts.values()), most)
        rows = rows.repartition(tasks, *targets)
    if order:
        rows = rows.sortWithinPartitions(*targets, *(f"order_{i}" for i in range(len(order))))
    return rows.drop(*(f"order_{i}" for i in range(len(order))))


def _with_partition(
    rows: DataFrame, layout: Layout, partition_counts: Mapping[str, int]
) -> DataFrame:
    from pyspark.sql.types import IntegerType, StructField, StructType

    if layout.arrangement == "keep":
        raise SinkError(
            "arrangement='keep' needs a column partition, which says where each row goes"
        )
    schema = StructType([*rows.schema.fields, StructField(PARTITION, IntegerType(), False)])
    return map_in_arrow(rows, AddPartition(dict(partition_counts), layout.topic), schema)


def record_columns(schema: StructType, layout: Layout) -> list[Column]:
    """The columns of a record, in the form that `rows` reads. Others are left out.

    Raises SinkError for a column that is missing or has a type that cannot be written.
    """
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    fields = {field.name.lower(): field for field in schema.fields}
    columns: list[Column] = []

    def take(name: str, kinds: tuple[type[DataType], ...], advice: str) -> bool:
        if name not in fields:
            return False
        if not isinstance(fields[name].dataType, kinds):
            shown = fields[name].dataType.simpleString()
            raise SinkError(f"column {fields[name].name} is {shown}: {advice}")
        return True

    if VALUE not in fields:
        raise SinkError("the frame has no column value, which is what a record holds")
    for name in (KEY, VALUE):
        if take(name, (T.StringType, T.BinaryType), "make it a string or binary, as by to_json"):
            columns.append(F.col(fields[name].name).cast("binary").alias(name))
    if layout.topic is None:
        if TOPIC not in fields:
            raise SinkError("name one topic for the sink, or add a column topic")
        take(TOPIC, (T.StringType,), "make it a string")
        columns.append(F.col(fields[TOPIC].name).alias(TOPIC))
    integers = (T.ByteType, T.ShortType, T.IntegerType)
    if take(PARTITION, integers, "make it an int"):
        columns.append(F.col(fields[PARTITION].name).cast("int").alias(PARTITION))
    times = (T.TimestampType, T.TimestampNTZType, T.LongType)
    if take(SOURCE_TIMESTAMP, times, "make it a timestamp, or a long of milliseconds"):
        column = F.col(fields[SOURCE_TIMESTAMP].name)
        if not isinstance(fields[SOURCE_TIMESTAMP].dataType, T.LongType):
            column = F.unix_millis(column.cast("timestamp"))
        columns.append(column.alias(TIMESTAMP))
    advice = "make it array<struct<key:string,value:binary>>"
    if take(HEADERS, (T.ArrayType,), advice):
        if not _are_headers(fields[HEADERS].dataType):
            take(HEADERS, (), advice)
        columns.append(F.col(fields[HEADERS].name).alias(HEADERS))
    if layout.has_offsets and take(OFFSET, (T.LongType,), "make it a long"):
        columns.append(F.col(fields[OFFSET].name).alias(SOURCE_OFFSET))
    return columns


def _are_headers(kind: DataType) -> bool:
    from pyspark.sql import types as T

    if not isinstance(kind, T.ArrayType) or not isinstance(kind.elementType, T.StructType):
        return False
    kinds = [type(field.dataType) for field in kind.elementType.fields]
    return kinds == [T.StringType, T.BinaryType]
