"""The records of a batch as changes of rows, the newest of each key.

A record is newer than another one of its key by its offset. Where the key is in two partitions, as
after partitions were added, the times of the newest in each decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..errors import JobError, first_cause
from ..lake.tables import Column, sql_type

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

PREFIX: Final = "kafka_"
KEY: Final = Column("kafka_key", "BINARY")
PLACE: Final = (
    Column("kafka_generation", "INT"),
    Column("kafka_partition", "INT"),
    Column("kafka_offset", "BIGINT"),
    Column("kafka_timestamp", "TIMESTAMP"),
)
"""Of the record that a row comes from; kafka_generation is 2 and above for a topic that was created
again.
"""

DELETED: Final = "kafka_deleted"
IS_KEPT: Final = "kafka_is_kept"
"""Whether a change is a deletion of an earlier batch, see `deletions`."""

OFFSETS: Final = "kafka_offsets"
"""By partition, the offset of a key's newest change there."""

_BAD: Final = "_bad"
_CORRUPT: Final = "kafka_corrupt"
_VALUE: Final = "_value"


@dataclass(frozen=True, slots=True)
class Values:
    """How values become columns. schema: DDL, empty for values as they are."""

    schema: str
    is_debezium: bool

    def columns(self, spark: SparkSession) -> tuple[Column, ...]:
        """The table's columns that come from the value. Raises JobError for a wrong schema."""
        if not self.schema:
            return (Column("value", "BINARY"),)
        return tuple(
            Column(field.name, sql_type(field.dataType))
            for field in parse_schema(spark, self.schema).fields
        )

    def read(self, frame: DataFrame) -> tuple[Expression, Expression, Expression]:
        """Of records: the struct of the columns, whether the row is deleted, and whether the value
        cannot be used.
        """
        from pyspark.sql import functions as F

        is_tombstone = F.col("value").isNull()
        if not self.schema:
            return F.struct("value"), is_tombstone, F.lit(False)
        schema = parse_schema(frame.sparkSession, self.schema)
        text = F.col("value").cast("string")
        whole = _json(text, schema if not self.is_debezium else _envelope(schema))
        is_bad = ~is_tombstone & (whole.isNull() | whole[_CORRUPT].isNotNull())
        if not self.is_debezium:
            fields = F.struct(*(whole[field.name].alias(field.name) for field in schema.fields))
            return fields, is_tombstone, is_bad
        operation = F.coalesce(whole["payload"]["op"], whole["op"])
        after = F.coalesce(whole["payload"]["after"], whole["after"])
        is_deleted = is_tombstone | (operation == "d")
        is_bad = is_bad | (~is_tombstone & operation.isNull())
        is_bad = is_bad | (~is_tombstone & (operation != "d") & after.isNull())
        return after, F.coalesce(is_deleted, F.lit(False)), F.coalesce(is_bad, F.lit(True))


AS_THEY_ARE: Final = Values("", False)


def parse_schema(spark: SparkSession, schema: str) -> StructType:
    """A schema from its DDL, all fields nullable. Raises JobError."""
    from pyspark.sql.types import StructField, StructType

    try:
        fields = spark.createDataFrame([], schema).schema.fields
    except Exception as error:  # pyspark's own, and Java's through py4j
        raise JobError(f"--schema {schema}: {first_cause(error)}") from error
    taken = [field.name for field in fields if field.name.startswith(PREFIX)]
    if taken:
        raise JobError(f"--schema: {taken[0]} is one of the job's names, which begin with {PREFIX}")
    return StructType([StructField(field.name, field.dataType, True) for field in fields])


def _envelope(row: StructType) -> StructType:
    """A change event of Debezium, with the schema beside it (`payload`) or without."""
    from pyspark.sql.types import StringType, StructField, StructType

    event = [StructField("op", StringType()), StructField("after", row)]
    return StructType([*event, StructField("payload", StructType(event))])


def _json(text: Expression, schema: StructType) -> Any:
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    whole = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    return F.from_json(text, whole, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})


def changes_of(frame: DataFrame, values: Values, generation: int) -> DataFrame:
    """Records as changes: KEY, the value's columns, PLACE, DELETED, and what `check_changes` looks
    at.
    """
    from pyspark.sql import functions as F

    content, is_deleted, is_bad = values.read(frame)
    named = {
        "kafka_generation": F.lit(generation),
        "kafka_partition": F.col("partition"),
        "kafka_offset": F.col("offset"),
        "kafka_timestamp": F.col("timestamp"),
    }
    return frame.select(
        F.col("key").alias(KEY.name),
        content.alias(_VALUE),
        *(expression.alias(name) for name, expression in named.items()),
        is_deleted.alias(DELETED),
        is_bad.alias(_BAD),
        F.lit(False).alias(IS_KEPT),
    )


def with_deletions(changes: DataFrame, deletions: DataFrame) -> DataFrame:
    """Changes, and the earlier deletions of their keys. deletions: KEY and PLACE."""
    from pyspark.sql import functions as F

    value = F.lit(None).cast(changes.schema[_VALUE].dataType)
    found = deletions.join(changes.select(KEY.name), KEY.name, "left_semi")
    return changes.unionByName(
        found.select(
            "*",
            value.alias(_VALUE),
            F.lit(True).alias(DELETED),
            F.lit(False).alias(_BAD),
            F.lit(True).alias(IS_KEPT),
        )
    )


def newest_in_partitions(deletions: DataFrame) -> DataFrame:
    """The newest deletion of each key in each partition. deletions: KEY and PLACE, of one
    generation.
    """
    from pyspark.sql import functions as F

    place = F.struct(*(column.name for column in PLACE))
    newest = deletions.groupBy(KEY.name, "kafka_partition").agg(
        F.max_by(place, F.col("kafka_offset")).alias("newest")
    )
    return newest.select(KEY.name, "newest.*")


def check_changes(changes: DataFrame, topic: str) -> int:
    """The number of records. Raises JobError for those that have no key or no usable value."""
    from pyspark.sql import functions as F

    place = F.struct("kafka_partition", "kafka_offset")
    without_key = F.col(KEY.name).isNull()
    row = changes.agg(
        F.count(F.lit(1)).alias("records"),
        F.min(F.when(without_key, place)).alias("without_key"),
        F.min(F.when(F.col(_BAD), place)).alias("bad"),
    ).collect()[0]
    for found, why in (
        (row["without_key"], "has no key, so it is no row's"),
        (row["bad"], "has a value that does not fit --schema and --envelope"),
    ):
        if found is not None:
            partition, offset = found
            raise JobError(
                f"the record {topic}-{partition} at offset {offset} {why}: nothing of its batch is "
                "in the table. `dlq` with --requireKey and --schema sorts such records out"
            )
    return int(row["records"])


def newest_of_each_key(changes: DataFrame, columns: tuple[Column, ...]) -> DataFrame:
    """The newest change of each key: KEY, columns, PLACE, DELETED, IS_KEPT, OFFSETS."""
    from pyspark.sql import functions as F

    place = [column.name for column in PLACE]
    whole = F.struct(_VALUE, *place, DELETED, IS_KEPT)
    in_partition = changes.groupBy(KEY.name, "kafka_partition").agg(
        F.max_by(whole, F.col("kafka_offset")).alias("newest")
    )
    order = F.struct("newest.kafka_timestamp", "newest.kafka_partition")
    offsets = F.struct("newest.kafka_partition", "newest.kafka_offset")
    newest = in_partition.groupBy(KEY.name).agg(
        F.max_by("newest", order).alias("newest"),
        F.map_from_entries(F.collect_list(offsets)).alias(OFFSETS),
    )
    fields = [F.col("newest")[_VALUE][column.name].alias(column.name) for column in columns]
    return newest.select(
        KEY.name,
        *fields,
        *(F.col("newest")[name].alias(name) for name in place),
        *(F.col("newest")[name].alias(name) for name in (DELETED, IS_KEPT)),
        OFFSETS,
    )


NEWER: Final = (
    "(s.kafka_generation > t.kafka_generation OR (s.kafka_generation = t.kafka_generation AND ("
    f"try_element_at(s.{OFFSETS}, t.kafka_partition) > t.kafka_offset OR "
    "(s.kafka_partition <> t.kafka_partition AND (s.kafka_timestamp > t.kafka_timestamp OR "
    "(s.kafka_timestamp = t.kafka_timestamp AND s.kafka_partition > t.kafka_partition))))))"
)
"""Whether the source's change is newer than the target's row, in SQL. It is too where the row's
record has a successor in its own partition, whatever the times say.
"""
