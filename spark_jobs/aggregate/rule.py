"""What `aggregate` remembers: a row per group, and per window that is not over.

Totals of windows are written once, when the watermark has passed their end; running totals in each
batch that changes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..stateful.batches import TIME, Step, add_up
from ..stateful.state import Counts
from .measures import Group, Measure

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

START: Final = "window_start"
END: Final = "window_end"
LAST: Final = "last_ms"
CHANGED: Final = "changed"
RECORD_TIME: Final = "record_time_ms"
"""TIME, under a name that no group has."""


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
        """See `Rule`."""
        from pyspark.sql import functions as F

        row = batch.agg(
            F.count(F.lit(1)).alias("read"),
            F.sum(self.is_late(watermark_ms).cast("long")).alias("late"),
            F.max(TIME).alias("newest"),
        ).collect()[0]
        return Counts(row["read"], add_up(row["late"])), row["newest"]

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

    def _added(self, step: Step) -> DataFrame:
        """The totals of the batch alone."""
        from pyspark.sql import functions as F

        names = ("topic", "partition", "offset", "timestamp", "headers")
        value = F.col("value").cast("string")
        columns = [F.col(name) for name in names]
        columns += [F.col("key").cast("string").alias("key"), F.col(TIME).alias(RECORD_TIME)]
        columns.append((F.from_json(value, self.schema) if self.schema else value).alias("value"))
        records = step.batch.where(~self.is_late(step.watermark_ms)).select(*columns)
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


def _grouped(rows: DataFrame, keys: list[str], totals: list[Column]) -> DataFrame:
    return rows.groupBy(*keys).agg(*totals) if keys else rows.agg(*totals)
