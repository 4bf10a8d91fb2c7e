"""The frame of a micro-batch as rows for the tasks: columns checked, rows arranged by partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Literal

from ..session import shuffle_partitions
from .errors import SinkError
from .placement import numbers_for_tasks
from .rows import HEADERS, KEY, PARTITION, SOURCE_OFFSET, TIMESTAMP, TOPIC, VALUE
from .spark_partitioner import partition_expression

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

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
        most = shuffle_partitions(frame.sparkSession)
        tasks = layout.tasks or min(sum(partition_counts.values()), most)
        rows = rows.repartition(tasks, _place(layout, partition_counts, tasks))
    if order:
        rows = rows.sortWithinPartitions(*targets, *(f"order_{i}" for i in range(len(order))))
    return rows.drop(*(f"order_{i}" for i in range(len(order))))


def _place(layout: Layout, partition_counts: Mapping[str, int], tasks: int) -> Column:
    """What to shuffle by, so that target partitions are spread evenly over the tasks: the hashes of
    0, 1, 2, ... would bring several into one task and leave others without any. Rows of a target
    that the sink does not have go to any task: `WriteTask` reports them.
    """
    from pyspark.sql import functions as F

    firsts = accumulate(partition_counts.values(), initial=0)
    first = _by_topic(dict(zip(partition_counts, firsts, strict=False)), layout)
    numbers = ", ".join(map(str, numbers_for_tasks(tasks)))
    number = f"{first} + cast({PARTITION} as bigint)"  # whatever a row says for its partition
    return F.expr(f"get(array({numbers}), cast(pmod({number}, {tasks}) as int))")


def _with_partition(
    rows: DataFrame, layout: Layout, partition_counts: Mapping[str, int]
) -> DataFrame:
    from pyspark.sql import functions as F

    if layout.arrangement == "keep":
        raise SinkError(
            "arrangement='keep' needs a column partition, which says where each row goes"
        )
    # Without partitions `WriteTask` reports a row, as it has an unknown topic.
    count = f"coalesce({_by_topic(partition_counts, layout)}, 1)"
    key = KEY if KEY in rows.columns else None
    return rows.withColumn(PARTITION, F.expr(partition_expression(key, VALUE, count)))


def _by_topic(values: Mapping[str, int], layout: Layout) -> str:
    """An expression: the value of the row's topic, null for topics that the sink does not have. A
    map, as a branch per topic would overflow Spark's stack with some thousand topics.
    """
    if layout.topic is not None:
        return str(values[layout.topic])
    # As one text, not a literal for each topic: the name of a topic that exists has neither of the
    # two separators, and no quote.
    text = ",".join(f"{topic}:{value}" for topic, value in values.items())
    return f"cast(try_element_at(str_to_map('{text}'), {TOPIC}) as int)"


def record_columns(schema: StructType, layout: Layout) -> list[Column]:
    """The columns of a record, in the form that `rows` reads. Others are left out.

    Raises SinkError for a column that is missing or has a type that cannot be written.
    """
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    columns: list[Column] = []
    for name, field in record_fields(schema, layout).items():
        column = F.col(field.name)
        match name:
            case "key" | "value":
                columns.append(column.cast("binary").alias(name))
            case "partition":
                columns.append(column.cast("int").alias(PARTITION))
            case "timestamp":
                if not isinstance(field.dataType, T.LongType):
                    column = F.unix_millis(column.cast("timestamp"))
                columns.append(column.alias(TIMESTAMP))
            case "offset":
                columns.append(column.alias(SOURCE_OFFSET))
            case _:
                columns.append(column.alias(name))
    return columns


def record_fields(schema: StructType, layout: Layout) -> dict[str, StructField]:
    """The fields that make a record, by the name that they have in lower case, in the order of
    `rows`. Raises SinkError as `record_columns` does.
    """
    from pyspark.sql import types as T

    fields = {field.name.lower(): field for field in schema.fields}
    if VALUE not in fields:
        raise SinkError("the frame has no column value, which is what a record holds")
    if layout.topic is None and TOPIC not in fields:
        raise SinkError("name one topic for the sink, or add a column topic")
    texts = (T.StringType, T.BinaryType), "make it a string or binary, as by to_json"
    times = (T.TimestampType, T.TimestampNTZType, T.LongType)
    wanted: dict[str, tuple[tuple[type[DataType], ...], str]] = {
        KEY: texts,
        VALUE: texts,
        TOPIC: ((T.StringType,), "make it a string"),
        PARTITION: ((T.ByteType, T.ShortType, T.IntegerType), "make it an int"),
        SOURCE_TIMESTAMP: (times, "make it a timestamp, or a long of milliseconds"),
        HEADERS: ((T.ArrayType,), "make it array<struct<key:string,value:binary>>"),
        OFFSET: ((T.LongType,), "make it a long"),
    }
    if layout.topic is not None:
        del wanted[TOPIC]
    if not layout.has_offsets:
        del wanted[OFFSET]
    found = {name: fields[name] for name in wanted if name in fields}
    for name, field in found.items():
        kinds, advice = wanted[name]
        is_valid = isinstance(field.dataType, kinds)
        if not is_valid or (name == HEADERS and not _are_headers(field.dataType)):
            shown = field.dataType.simpleString()
            raise SinkError(f"column {field.name} is {shown}: {advice}")
    return found


def _are_headers(kind: DataType) -> bool:
    from pyspark.sql import types as T

    if not isinstance(kind, T.ArrayType) or not isinstance(kind.elementType, T.StructType):
        return False
    kinds = [type(field.dataType) for field in kind.elementType.fields]
    return kinds == [T.StringType, T.BinaryType]
