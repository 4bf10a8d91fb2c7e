"""The table of `table`: a batch is one MERGE.

With Delta Lake the MERGE and its note are one commit. Iceberg's SQL has no place for a note, and
needs none: a MERGE that is run again changes nothing, since offsets decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..archive.commits import Commit
from ..archive.lake_store import LakeStore
from ..archive.layout import Rewind
from ..archive.stores import Batch
from ..checkpoint import Offsets
from ..lake.tables import Column, Note, quoted, table_at
from ..storage import Folder
from .changes import (
    AS_THEY_ARE,
    DELETED,
    KEY,
    NEWER,
    PLACE,
    Values,
    changes_of,
    check_changes,
    newest_of_each_key,
)
from .options import JOB, TableOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VIEW = "kbroker_changes"


@dataclass(frozen=True)
class TableStore(LakeStore):
    """See `LakeStore`. topic: whose records are changes."""

    topic: str = ""
    values: Values = AS_THEY_ARE

    job: ClassVar[str] = JOB

    def rewound(self, positions: Offsets, _generations: dict[str, int]) -> tuple[Rewind, int]:
        """See `Store`. Rows stay: records that are read again change only what is older."""
        return Rewind(positions, ()), 0

    def write(self, frame: DataFrame, previous: Commit, batch: Batch) -> Commit:
        """See `Store`. Raises JobError for records that are no row's."""
        spark = frame.sparkSession
        columns = self.values.columns(spark)
        generation = previous.generations.get(self.topic, 1)
        changes = changes_of(frame, self.values, generation).persist()
        newest = newest_of_each_key(changes, columns).persist()
        try:
            records = check_changes(changes, self.topic)
            newest.createOrReplaceTempView(VIEW)

            def merge(note: Note) -> None:
                names = [column.name for column in (KEY, *columns, *PLACE)]
                self.table.change(spark, merge_statement(self.table.name(spark), names), note)

            return self.commit(previous, batch, records, merge)
        finally:
            spark.catalog.dropTempView(VIEW)
            newest.unpersist()
            changes.unpersist()

    @property
    def is_note_kept(self) -> bool:
        """See `LakeStore`."""
        return self.table.keeps_notes_of_changes

    def columns(self, _commit: Commit) -> Sequence[Column]:
        """See `LakeStore`."""
        return (KEY, *self.values.columns(self.session()), *PLACE)

    def partitions(self, _commit: Commit) -> Sequence[str]:
        """See `LakeStore`."""
        return ()


def merge_statement(table: str, names: Sequence[str]) -> str:
    """The MERGE of the view's changes into a table with these columns."""
    shown = [quoted(name) for name in names]
    changed = ", ".join(f"t.{name} = s.{name}" for name in shown)
    return (
        f"MERGE INTO {table} t USING {VIEW} s ON t.{KEY.name} = s.{KEY.name} "
        f"WHEN MATCHED AND {NEWER} AND s.{DELETED} THEN DELETE "
        f"WHEN MATCHED AND {NEWER} THEN UPDATE SET {changed} "
        f"WHEN NOT MATCHED AND NOT s.{DELETED} THEN INSERT ({', '.join(shown)}) "
        f"VALUES ({', '.join(f's.{name}' for name in shown)})"
    )


def table_store(options: TableOptions, spark: SparkSession | None) -> TableStore:
    """The table of these options. spark: None where it is only looked at."""
    folder = Folder(options.archive.output_uri)
    values = Values(options.schema, options.envelope == "debezium")
    return TableStore(
        table_at(folder, options.lake), options.lake, (), spark, options.topic, values
    )
