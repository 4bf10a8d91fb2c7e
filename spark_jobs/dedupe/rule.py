"""What `dedupe` remembers: ids, as SHA-256, with the time and the place of their first records.

An id is remembered until the watermark has passed the time of its first record; without a watermark
for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ..errors import JobError
from ..stateful.batches import TIME, Step, add_up
from ..stateful.state import Counts
from .ids import id_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ID: Final = "id"
RESULT: Final = ("key", "value", "headers", "partition", "offset", "timestamp")


@dataclass(frozen=True, slots=True)
class DedupeRule:
    """See `Rule`. by: see `ids`. keeps_without_id: write records without an id."""

    by: str
    keeps_without_id: bool = False

    @property
    def text(self) -> str:
        """See `Rule`."""
        return f"--by {self.by}"

    @property
    def is_delta(self) -> bool:
        """See `Rule`."""
        return True

    @property
    def order_by(self) -> tuple[str, ...]:
        """See `Rule`."""
        return ("offset",)

    @property
    def keeps_partitions(self) -> bool:
        """See `Rule`."""
        return True

    def prepared(self, batch: DataFrame) -> DataFrame:
        """See `Rule`."""
        from pyspark.sql import functions as F

        return batch.withColumn(ID, F.unhex(F.sha2(id_column(self.by), 256)))

    def is_late(self, watermark_ms: int) -> Column:
        """See `Rule`."""
        from pyspark.sql import functions as F

        return F.col(TIME) < watermark_ms

    def count(self, batch: DataFrame, watermark_ms: int) -> tuple[Counts, int | None]:
        """See `Rule`."""
        from pyspark.sql import functions as F

        late = self.is_late(watermark_ms)
        has_none = F.col(ID).isNull() & ~late
        place = F.when(has_none, F.struct("offset", "topic", "partition"))
        row = batch.agg(
            F.count(F.lit(1)).alias("read"),
            F.sum(late.cast("long")).alias("late"),
            F.sum(has_none.cast("long")).alias("without_id"),
            F.min(place).alias("first"),
            F.max(TIME).alias("newest"),
        ).collect()[0]
        if row["first"] is not None and not self.keeps_without_id:
            offset, topic, partition = row["first"]
            raise JobError(
                f"{add_up(row['without_id'])} records have no id ({self.by}), the first is "
                f"{topic}-{partition} at offset {offset}: name another --by, or give "
                "--withoutId keep to write all of them"
            )
        counts = Counts(row["read"], add_up(row["late"]), 0, add_up(row["without_id"]))
        return counts, row["newest"]

    def rows(self, step: Step) -> DataFrame:
        """The ids that are new: time, partition and offset of their first record, the batch."""
        from pyspark.sql import functions as F

        fresh = step.batch.where(~self.is_late(step.watermark_ms) & F.col(ID).isNotNull())
        firsts = fresh.groupBy(ID).agg(F.min(F.struct(TIME, "partition", "offset")).alias("first"))
        if step.prior is not None:
            known = self.compacted(step.prior, step.watermark_ms).select(ID)
            firsts = firsts.join(known, ID, "left_anti")
        return firsts.select(ID, "first.*", F.lit(step.batch_id).cast("long").alias("batch"))

    def results(self, step: Step, rows: DataFrame) -> DataFrame:
        """The records that `rows` name, and those without an id."""
        from pyspark.sql import functions as F

        named = step.batch.join(rows.select("partition", "offset"), ["partition", "offset"])
        has_none = F.col(ID).isNull() & ~self.is_late(step.watermark_ms)
        found = named.unionByName(step.batch.where(has_none))
        return found.withColumn("timestamp", F.col(TIME)).select(*RESULT)

    def compacted(self, state: DataFrame, watermark_ms: int) -> DataFrame:
        """See `Rule`."""
        return state.where(~self.is_late(watermark_ms))

    def counted(self, counts: Counts, rows: DataFrame) -> Counts:
        """See `Rule`."""
        firsts = rows.count()
        return replace(counts, duplicates=counts.read - counts.late - counts.without_id - firsts)
