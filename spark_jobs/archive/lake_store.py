"""An output that is a table of Delta Lake or Iceberg.

A batch is one commit of the table, whose note is the archive's commit: so the table says how far it
is, and both appear at once. Commits without records, and a copy of each note, are files in the
hidden folder `_archive`, as with files of Parquet: the table's history may be cleaned up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ..checkpoint import Offsets
from ..errors import StartRefused
from ..lake.formats import DELTA, LakeFormat
from ..lake.notes import is_table, log_folder, newest_note, partitions_of
from ..lake.tables import Column, LakeTable, Note, quoted, table_at, text
from ..storage import Folder
from .commits import (
    STATE_FOLDER,
    Commit,
    add_commit,
    clean_up,
    newest_commit,
    next_commit,
    parse_commit,
)
from .layout import Rewind
from .stores import Batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .options import ArchiveOptions

HEADERS: Final = "ARRAY<STRUCT<key: STRING, value: BINARY>>"
GENERATION: Final = "generation"
COLUMNS: Final = (
    Column("key", "BINARY"),
    Column("value", "BINARY"),
    Column("headers", HEADERS),
    Column("topic", "STRING"),
    Column("partition", "INT"),
    Column("offset", "BIGINT"),
    Column("timestamp", "TIMESTAMP"),
    Column("timestampType", "INT"),
    Column(GENERATION, "INT"),
)
"""Of a table: those of the files, and 2 and above for a topic that was created again."""

_DELTA_COLUMNS: Final = {"date": Column("date", "DATE"), "hour": Column("hour", "INT")}
"""Levels that are columns of their own. Iceberg takes them from the time."""

_DAY_MS: Final = 86_400_000
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True)
class LakeStore:
    """A table, as `Store` wants it. spark: None in another process than the one that made it, and
    where the table is only looked at. options: of the format's writer.
    """

    table: LakeTable
    format: LakeFormat
    options: tuple[tuple[str, str], ...] = ()
    spark: SparkSession | None = None

    job: ClassVar[str] = "archive"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "spark": None}

    @property
    def folder(self) -> Folder:
        """See `Store`."""
        return self.table.folder

    @property
    def has_python_tasks(self) -> bool:
        """See `Store`."""
        return False

    def newest(self) -> Commit | None:
        """See `Store`."""
        copy = newest_commit(self.folder)
        note = newest_note(self.folder, self.format)
        if note is None:
            return copy
        commit = parse_commit(note.encode(), f"a commit of table {self.folder}")
        return copy if copy is not None and copy.number > commit.number else commit

    def foreign(self, commit: Commit | None) -> str:
        """See `Store`."""
        names = [name for name in self.folder.names() if not name.startswith(".")]
        others = [name for name in names if name != STATE_FOLDER]
        if not others and commit is not None and commit.records:
            return f"{self.folder} has lost its table, of which {STATE_FOLDER} speaks"
        if not others:
            return ""
        if commit is None:
            return f"{self.folder} holds what {self.job} did not write ({others[0]})"
        if log_folder(self.format) not in names:
            return f"{self.folder} is no table of {self.format.title} (it has {others[0]})"
        return ""

    def count(self, commit: Commit) -> int:
        """See `Store`. Records that `compact` or others have deleted are counted too."""
        return commit.records

    def alone(self) -> AbstractContextManager[object]:
        """See `Store`. The table's own commits decide."""
        return nullcontext()

    def add(self, commit: Commit) -> None:
        """See `Store`."""
        add_commit(self.folder, commit)

    def finish(self, commit: Commit) -> Commit:
        """See `Store`."""
        spark = self.session()
        if not is_table(self.folder, self.format):
            self.table.create(spark, self.columns(commit), self.partitions(commit))
        else:
            if not (commit.records or commit.removed):
                self._make_anew(spark, commit)
            self.table.limit_metadata(spark)
        for condition in commit.removed:
            spark.sql(f"DELETE FROM {self.table.name(spark)} WHERE {condition}")
        keep_copy(self.folder, commit)
        clean_up(self.folder, commit)
        return commit

    def rewound(self, positions: Offsets, generations: dict[str, int]) -> tuple[Rewind, int]:
        """See `Store`."""
        if not is_table(self.folder, self.format):
            return Rewind(positions, ()), 0
        conditions = [
            f"(topic = {text(topic)} AND {GENERATION} = {generations.get(topic, 1)} AND "
            f"{quoted('partition')} = {partition} AND {quoted('offset')} >= {offset})"
            for topic, offsets in positions.items()
            for partition, offset in offsets.items()
        ]
        condition = " OR ".join(conditions)
        spark = self.session()
        (counted,) = spark.sql(
            f"SELECT count(*) AS n FROM {self.table.name(spark)} WHERE {condition}"
        ).collect()
        removed = (condition,) if counted.n else ()
        return Rewind(positions, removed), int(counted.n)

    def write(self, frame: DataFrame, previous: Commit, batch: Batch) -> Commit:
        """See `Store`."""
        rows = self.rows(frame, previous).persist()
        try:
            return self.commit(
                previous,
                batch,
                rows.count(),
                lambda note: self.table.append(rows, note, dict(self.options)),
            )
        finally:
            rows.unpersist()

    def commit(
        self, previous: Commit, batch: Batch, records: int, store: Callable[[Note], None]
    ) -> Commit:
        """Make a batch hold. store: changes the table. Raises StartRefused."""
        following = next_commit(previous, batch.batch_id, batch.ends, [], batch.topic_ids)
        following = replace(following, records=previous.records + records)
        batch.check()
        if records:  # Delta Lake makes no commit of nothing
            store(Note(following.number, following.to_json().decode()))
        if records and self.is_note_kept:
            self._check_is_newest(following)
            keep_copy(self.folder, following)
        else:
            add_commit(self.folder, following)
        clean_up(self.folder, following)
        return following

    @property
    def is_note_kept(self) -> bool:
        """Whether the table has the note of a batch."""
        return True

    def columns(self, commit: Commit) -> Sequence[Column]:
        """Of the table."""
        if self.format != DELTA:
            return COLUMNS
        return (*COLUMNS, *(c for name, c in _DELTA_COLUMNS.items() if name in commit.layout))

    def partitions(self, commit: Commit) -> Sequence[str]:
        """Of the table, by the layout's levels."""
        if self.format == DELTA:
            return commit.layout
        transforms = {"date": "days(`timestamp`)", "hour": "hours(`timestamp`)"}
        levels = [
            level for level in commit.layout if level != "date" or "hour" not in commit.layout
        ]
        return [transforms.get(level, quoted(level)) for level in levels]

    def rows(self, frame: DataFrame, commit: Commit) -> DataFrame:
        """The records with the table's columns."""
        from pyspark.sql import functions as F

        time_ms = F.unix_millis("timestamp")
        values = {
            "date": F.date_from_unix_date(F.floor(time_ms / _DAY_MS).cast("int")),
            "hour": F.pmod(F.floor(time_ms / _HOUR_MS), F.lit(24)).cast("int"),
        }
        number = F.lit(1)
        for topic, generation in commit.generations.items():
            number = F.when(F.col("topic") == topic, generation).otherwise(number)
        rows = frame.withColumn(GENERATION, number)
        names = [column.name for column in self.columns(commit)]
        for name in values.keys() & set(names):
            rows = rows.withColumn(name, values[name])
        return rows.select(*names)

    def _make_anew(self, spark: SparkSession, commit: Commit) -> None:
        """Replace an empty table that an earlier start has made for other options."""
        columns, partitions = self.columns(commit), self.partitions(commit)
        table = spark.table(self.table.name(spark))
        wanted = spark.createDataFrame([], ", ".join(map(str, columns)))
        is_other = wanted.dtypes != table.dtypes or (
            partitions_of(self.folder, self.format) != list(partitions)
        )
        if is_other and not table.limit(1).collect():  # rows of a batch that was cut off stay
            self.table.replace(spark, columns, partitions)

    def session(self) -> SparkSession:
        """The session of the process that made the store."""
        if self.spark is None:
            raise AssertionError("a table is changed without a session")
        return self.spark

    def _check_is_newest(self, following: Commit) -> None:
        newest = self.newest()
        if (
            newest is None
            or newest.number != following.number
            or (
                newest.checkpoint_id,
                newest.query,
                newest.batch_id,
            )
            != (following.checkpoint_id, following.query, following.batch_id)
        ):
            raise StartRefused(
                f"another run writes to {self.folder}: this one ends; nothing of its batch is in "
                "the table"
            )


def keep_copy(table: Folder, commit: Commit) -> None:
    """Write down the newest commit, which the table's own note tells, where that is not done: the
    run that made it was ended before, or has not come to it. The note goes with the history.
    """
    copy = newest_commit(table)
    if copy is None or copy.number < commit.number:
        with suppress(StartRefused):  # another process has done it just now
            add_commit(table, commit)


def copy_note(table: Folder, format_: LakeFormat) -> None:
    """As `keep_copy`, of a table's newest note if it has one. Raises JobError, OSError."""
    note = newest_note(table, format_)
    if note is not None:
        keep_copy(table, parse_commit(note.encode(), f"a commit of table {table}"))


def lake_store(
    options: ArchiveOptions, format_: LakeFormat, spark: SparkSession | None
) -> LakeStore:
    """The table of an archive."""
    if format_ == DELTA:
        names = {"compression": options.compression}
    else:
        codec = {"none": "uncompressed"}.get(options.compression, options.compression)
        names = {"compression-codec": codec}
        if options.target_file_bytes is not None:
            names["target-file-size-bytes"] = str(options.target_file_bytes)
    return LakeStore(
        table_at(Folder(options.output_uri), format_), format_, tuple(names.items()), spark
    )
