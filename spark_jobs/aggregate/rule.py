"""What `aggregate` remembers: a row per group, and per window that is not over.

Totals of windows are written once, when the watermark has passed their end; running totals in each
batch that changes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from ..errors import JobError
from ..stateful.batches import TIME, Step, add_up
from ..stateful.state import Counts
from .measures import Group, Measure, is_path

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

START: Final = "window_start"
END: Final = "window_end"
LAST: Final = "last_ms"
CHANGED: Final = "changed"
RECORD_TIME: Final = "record_time_ms"
"""TIME, under a name that no group has."""

LATE: Final = "is_late"
PLACE: Final = ("offset", "topic", "partition")


@dataclass(frozen=True, slots=True)
class AggregateRule:
    """See `Rule` and `AggregateOptions`."""

    groups: tuple[Group, ...]
    measures: tuple[Measure, ...]
    schema: str = ""
    window_ms: int | None = None

    @property
    def text(self) -> str:
        """See `Rule`."""
        said = "--groupBy " + ", ".join(f"{one.name}={one.expression}" for one in self.groups)
        said += " --aggregates " + ", ".join(
            f"{one.name}={one.function}({one.expression})" for one in self.measures
        )
        if self.window_ms is not None:
            said += f" --window '{self.window_ms} ms'"
        return said + (f" --schema '{self.schema}'" if self.schema else "")

    @property
    def is_delta(self) -> bool:
        """See `Rule`."""
        return False

    @property
    def order_by(self) -> tuple[str, ...]:
        """See `Rule`."""
        return ("timestamp",)

    @property
    def keeps_partitions(self) -> bool:
        """See `Rule`."""
        return False

    @property
    def _keys(self) -> list[str]:
        names = [group.name for group in self.groups]
        return names if self.window_ms is None else [*names, START]

    def prepared(self, batch: DataFrame) -> DataFrame:
        """See `Rule`."""
        return batch

    def is_late(self, watermark_ms: int) -> Column:
        """Those whose window is over."""
        from pyspark.sql import functions as F

        if self.window_ms is None:
            return F.lit(False)
        return _start(TIME, self.window_ms) + self.window_ms <= watermark_ms

    def count(self, batch: DataFrame, watermark_ms: int) -> tuple[Counts, int | None]:
        """See `Rule`. Raises JobError for a group whose text is not UTF-8: Spark groups by bytes,
        but in JSON each such byte is U+FFFD, so that other groups would have the same key.
        """
        from pyspark.sql import functions as F

        records = self._records(batch, self.is_late(watermark_ms).alias(LATE))
        groups = [group for group in self.groups if not self._is_decoded(group)]
        columns = [F.expr(group.expression) for group in groups]
        kinds = list(records.select(*columns).schema) if columns else []
        is_broken = [
            _is_broken(column, kind.dataType).alias(f"broken_{index}")
            for index, (column, kind) in enumerate(zip(columns, kinds, strict=True))
        ]
        row = (
            records.select(*PLACE, LATE, RECORD_TIME, *is_broken)
            .agg(
                F.count(F.lit(1)),
                F.sum(F.col(LATE).cast("long")),
                F.max(RECORD_TIME),
                *(
                    F.min(F.when(F.col(f"broken_{index}") & ~F.col(LATE), F.struct(*PLACE)))
                    for index in range(len(groups))
                ),
            )
            .collect()[0]
        )
        read, late, newest_ms, *firsts = row
        for group, first in zip(groups, firsts, strict=True):
            if first is not None:
                offset, topic, partition = first
                raise JobError(
                    f"group {group.name} of {topic}-{partition} at offset {offset} is not UTF-8, "
                    "and in JSON other groups would get the same key: group by its bytes, as with "
                    '--groupBy "id=hex(key)"'
                )
        return Counts(read, add_up(late)), newest_ms

    def _is_decoded(self, group: Group) -> bool:
        """Whether it is a field of JSON, whose strings are UTF-8: to parse values for a check would
        be in vain.
        """
        root, dot, _ = group.expression.partition(".")
        return bool(self.schema and dot) and root == "value" and is_path(group.expression)

    def rows(self, step: Step) -> DataFrame:
        """The state behind the batch, with the windows that it ends."""
        from pyspark.sql import functions as F

        parts = [part for measure in self.measures for part in measure.parts]
        added = self._added(step)
        if step.prior is not None:
            before = step.prior.withColumn(CHANGED, F.lit(False))
            if self.window_ms is not None:
                before = before.where(F.col(START) + self.window_ms > step.watermark_ms)
            added = before.unionByName(added)
        merged = [F.expr(f"{part.merge}(`{part.column}`)").alias(part.column) for part in parts]
        merged += [F.max(LAST).alias(LAST), F.max(CHANGED).alias(CHANGED)]
        return _grouped(added, self._keys, merged)

    def _records(self, batch: DataFrame, *more: Column) -> DataFrame:
        """The records as expressions see them, with RECORD_TIME."""
        from pyspark.sql import functions as F

        names = ("topic", "partition", "offset", "timestamp", "headers")
        value = F.col("value").cast("string")
        columns = [F.col(name) for name in names]
        columns += [F.col("key").cast("string").alias("key"), F.col(TIME).alias(RECORD_TIME)]
        columns.append((F.from_json(value, self.schema) if self.schema else value).alias("value"))
        return batch.select(*columns, *more)

    def _added(self, step: Step) -> DataFrame:
        """The totals of the batch alone."""
        from pyspark.sql import functions as F

        records = self._records(step.batch.where(~self.is_late(step.watermark_ms)))
        taken = [F.expr(group.expression).alias(group.name) for group in self.groups]
        if self.window_ms is not None:
            taken.append(_start(RECORD_TIME, self.window_ms).alias(START))
        taken += [
            F.expr(measure.expression).alias(f"{measure.name}__of") for measure in self.measures
        ]
        rows = records.select(*taken, RECORD_TIME)
        totals = [
            F.expr(f"{part.function}(`{measure.name}__of`)").alias(part.column)
            for measure in self.measures
            for part in measure.parts
        ]
        totals += [F.max(RECORD_TIME).alias(LAST), F.lit(True).alias(CHANGED)]
        return _grouped(rows, self._keys, totals).where(F.col(LAST).isNotNull())

    def results(self, step: Step, rows: DataFrame) -> DataFrame:
        """The totals as JSON: windows that are over, or groups that have changed. The key has the
        group and the window, the value everything; the time is the last of the window or the group.
        """
        from pyspark.sql import functions as F

        keys = [F.col(group.name) for group in self.groups]
        if self.window_ms is None:
            done = rows.where(CHANGED)
            time = F.col(LAST)
        else:
            end = F.col(START) + self.window_ms
            done = rows.where(end <= step.behind_ms)
            keys += [F.col(START), end.alias(END)]
            time = end - 1
        totals = [F.expr(measure.result).alias(measure.name) for measure in self.measures]
        options = {"ignoreNullFields": "false"}
        key = F.to_json(F.struct(*keys), options) if keys else F.lit("{}")
        headers = F.array().cast("array<struct<key:string,value:binary>>")
        return done.select(
            key.cast("binary").alias("key"),
            F.to_json(F.struct(*keys, *totals), options).cast("binary").alias("value"),
            headers.alias("headers"),
            time.alias("timestamp"),
        )

    def compacted(self, state: DataFrame, watermark_ms: int) -> DataFrame:
        """A state without deltas is compact."""
        return state

    def counted(self, counts: Counts, rows: DataFrame) -> Counts:
        """There are no duplicates."""
        return counts


def _start(time: str, window_ms: int) -> Column:
    """Of a record's window."""
    from pyspark.sql import functions as F

    return F.col(time) - F.pmod(F.col(time), F.lit(window_ms).cast("long"))


def _is_broken(column: Column, kind: DataType) -> Column:
    """Whether a text of it is not valid UTF-8; null or false if none is. kind: its type."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    if isinstance(kind, StringType):
        return ~F.is_valid_utf8(column)
    if isinstance(kind, ArrayType):
        element = kind.elementType
        return F.exists(column, lambda each: _is_broken(each, element))
    if isinstance(kind, MapType):
        keys = _is_broken(F.map_keys(column), ArrayType(kind.keyType))
        return keys | _is_broken(F.map_values(column), ArrayType(kind.valueType))
    if isinstance(kind, StructType):
        fields = [_is_broken(column.getField(each.name), each.dataType) for each in kind]
        return reduce(or_, fields, F.lit(False))
    return F.lit(False)


def _grouped(rows: DataFrame, keys: list[str], totals: list[Column]) -> DataFrame:
    return rows.groupBy(*keys).agg(*totals) if keys else rows.agg(*totals)
