"""The table of `table`: a batch is one MERGE.

With Delta Lake the MERGE and its note are one commit. Iceberg's SQL has no place for a note, and
needs none: a MERGE that is run again changes nothing, since offsets decide. What later batches must
know of deletions is kept beside the table, see `deletions`.
"""

from __future__ import annotations

import uuid
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
from .deletions import Deletions
from .options import JOB, TableOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
        # Under Spark Connect the session is the user's, with whatever else runs in it.
        view = f"kbroker_changes_{uuid.uuid4().hex}"
        columns = self.values.columns(spark)
        generation = previous.generations.get(self.topic, 1)
        deletions = Deletions(self.folder, generation)
        ends = batch.ends.get(self.topic, {})
        latest = None if batch.latest is None else batch.latest.get(self.topic, {})
        changes = changes_of(frame, self.values, generation).persist()
        known = deletions.added_to(changes, previous.number + 1)
        newest = newest_of_each_key(known, columns).persist()
        try:
            records = check_changes(changes, self.topic)
            newest.createOrReplaceTempView(view)

            def merge(note: Note) -> None:
                deletions.keep(newest, note.number, ends, latest)
                names = [column.name for column in (KEY, *columns, *PLACE)]
                statement = merge_statement(self.table.name(spark), view, names)
                self.table.change(spark, statement, note)

            following = self.commit(previous, batch, records, merge)
            deletions.drop(following.number, ends, latest)
            deletions.merge(spark, following.number)
            return following
        finally:
            spark.catalog.dropTempView(view)
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


def merge_statement(table: str, view: str, names: Sequence[str]) -> str:
    """The MERGE of a view's changes into a table with these columns."""
    shown = [quoted(name) for name in names]
    changed = ", ".join(f"t.{name} = s.{name}" for name in shown)
    return (
        f"MERGE INTO {table} t USING {view} s ON t.{KEY.name} = s.{KEY.name} "
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
