"""Where an archive's records go, and what the output says of itself: files of Parquet or
a table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..checkpoint import Offsets
from ..decoding.options import Decode
from ..lake.formats import FORMATS
from ..lake.notes import is_table
from ..session import is_remote
from ..storage import Folder
from .commits import (
    STATE_FOLDER,
    Commit,
    StagedFile,
    Staging,
    add_commit,
    clean_up,
    newest_commit,
    next_commit,
    publish,
    staging_folder,
    without_left_over,
)
from .layout import Rewind, check_name, looks_typed, parse_file, rewind, string_mark
from .start import JOB
from .steps import finish_what_was_cut_off, read_ledger, without_compaction
from .tables import Tables, check_form, tables_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .options import ArchiveOptions

Write = Callable[["DataFrame", Staging], list[StagedFile]]
DEFAULT_FILE_BYTES: Final = 128 * 1024 * 1024
TELLING_RECORDS: Final = 1000
"""Of fewer records a file is larger than what is in them."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch to store. ends: next offsets behind it. check: called before anything of it becomes
    visible; raises StartRefused if this run may not write any more. record_bytes: average size as
    the brokers store records, None if they do not tell. latest: the topics' ends behind the batch's
    planning, empty if the brokers did not answer just now; None where they cannot be asked.
    """

    batch_id: int
    ends: Offsets
    topic_ids: dict[str, str]
    check: Callable[[], None]
    record_bytes: float | None = None
    latest: Offsets | None = None


class Store(Protocol):
    """An output. Picklable."""

    @property
    def folder(self) -> Folder: ...

    @property
    def has_python_tasks(self) -> bool:
        """Whether Spark's tasks run functions of this package."""
        ...

    def newest(self) -> Commit | None:
        """What the output says of itself; None if it is no output. Raises JobError."""
        ...

    def foreign(self, commit: Commit | None) -> str:
        """Why the output is not of this kind; empty if it is, or is empty. Raises StartRefused if
        its values are of another form.
        """
        ...

    def count(self, commit: Commit) -> int:
        """The records that the output has at a commit. Raises JobError."""
        ...

    def alone(self) -> AbstractContextManager[object]:
        """Records may be removed in this block. Raises StartRefused while `compact` runs."""
        ...

    def add(self, commit: Commit) -> None:
        """Make a commit without records hold. Raises StartRefused."""
        ...

    def finish(self, commit: Commit) -> Commit:
        """Carry out what the newest commit says, as far as that is not done; gives the commit that
        is the newest then. Raises StartRefused if another run writes.
        """
        ...

    def rewound(self, positions: Offsets, generations: dict[str, int]) -> tuple[Rewind, int]:
        """What going back to these positions removes, and how many records that are."""
        ...

    def write(self, frame: DataFrame, previous: Commit, batch: Batch) -> Commit:
        """Store a batch behind the previous commit; gives its commit, which holds. Raises JobError;
        nothing of the batch is visible then.
        """
        ...


@dataclass(frozen=True)
class ParquetStore:
    """Files of Parquet. write_files: as `staged_parquet.write_staged`. decode: the form of values.
    tables: of decoded ones; None where values stay bytes, or the output is only looked at.
    query_name: in dead letters. spark_writes: see `ArchiveOptions.spark_has_output`.
    """

    folder: Folder
    target_file_bytes: int
    compression: str
    write_files: Write
    decode: Decode = "none"
    tables: Tables | None = None
    query_name: str = JOB
    spark_writes: bool = True

    @property
    def has_python_tasks(self) -> bool:
        """See `Store`."""
        return self.tables is not None or not self.spark_writes

    def newest(self) -> Commit | None:
        """See `Store`."""
        return newest_commit(self.folder)

    def foreign(self, commit: Commit | None) -> str:
        """See `Store`."""
        check_form(self.folder, commit, self.decode)
        names = [name for name in self.folder.names() if not name.startswith(".")]
        if any(is_table(self.folder, each) for each in FORMATS.values()):
            return f"{self.folder} holds a table, not files of Parquet"
        if commit is not None:
            return ""
        if "_spark_metadata" in names:
            return (
                f"{self.folder} was written by Spark's file sink (it has _spark_metadata), whose "
                "files only Spark reads once"
            )
        names = [name for name in names if name != STATE_FOLDER]
        return f"{self.folder} holds what archive did not write ({names[0]})" if names else ""

    def count(self, commit: Commit) -> int:
        """See `Store`."""
        return commit.records - read_ledger(self.folder).removed_records

    def alone(self) -> AbstractContextManager[object]:
        """See `Store`."""
        return without_compaction(self.folder)

    def add(self, commit: Commit) -> None:
        """See `Store`."""
        add_commit(self.folder, commit)

    def finish(self, commit: Commit) -> Commit:
        """See `Store`."""
        finish_what_was_cut_off(self.folder)
        self._publish(commit)
        clean_up(self.folder, commit)
        if self.tables is not None:
            self.tables.keep_form()
        return without_left_over(self.folder, commit)

    def rewound(self, positions: Offsets, generations: dict[str, int]) -> tuple[Rewind, int]:
        """See `Store`."""
        from .files import count_records, dead_files

        paths = [*self.folder.files(), *dead_files(self.folder)]
        back = rewind(paths, positions, generations)
        return back, count_records(self.folder, back.removed)

    def write(self, frame: DataFrame, previous: Commit, batch: Batch) -> Commit:
        """See `Store`."""
        is_read_twice = self.tables is not None and self.tables.looks_at_values
        rows = frame.persist() if is_read_twice else frame
        try:
            files = self.write_files(rows, self._staging(rows, previous, batch))
        finally:
            if is_read_twice:
                rows.unpersist()
        batch.check()
        for file in files:  # a commit whose files cannot be renamed would block the archive
            content = parse_file(file.path)
            if content is not None:
                check_name(previous.layout, content, self.folder.longest_name)
        following = next_commit(previous, batch.batch_id, batch.ends, files, batch.topic_ids)
        add_commit(self.folder, following)
        self._publish(following)
        clean_up(self.folder, following)
        return following

    def _publish(self, commit: Commit) -> None:
        """As `publish`; those who read dead letters alone take topics for strings too."""
        from .files import DEAD_LETTERS, empty_file

        dead = (file for file in commit.files if file.path.startswith(f"{DEAD_LETTERS}/"))
        if "topic" in commit.layout and any(looks_typed(file.topic) for file in dead):
            mark = f"{DEAD_LETTERS}/{string_mark(commit.layout)}"
            if not self.folder.exists(mark):
                self.folder.write(mark, empty_file(commit.layout))
        publish(self.folder, commit)

    def _staging(self, frame: DataFrame, previous: Commit, batch: Batch) -> Staging:
        origin: dict[str, Any] = {
            "checkpoint_id": previous.checkpoint_id,
            "query": previous.query,
            "batch_id": batch.batch_id,
        }
        return Staging(
            output=self.folder.uri,
            staged_in=staging_folder(previous.number + 1),
            layout=previous.layout,
            generations=previous.generations,
            target_file_bytes=self.target_file_bytes,
            rows_per_file=rows_per_file(self.target_file_bytes, previous.files, batch.record_bytes),
            compression=self.compression,
            origin=origin,
            decoder=self._decoder(frame, batch.ends),
            # Under Spark Connect 4.0 what a write has counted may be missing in its answer.
            by_spark=not (self.has_python_tasks or is_remote(frame)),
        )

    def _decoder(self, frame: DataFrame, ends: Offsets) -> str:
        """See `Staging`. The tables grow before the batch is written; again has no effect."""
        if self.tables is None:
            return ""
        from .decoded import ValueDecoder

        return ValueDecoder(self.tables.of_batch(frame, ends), self.query_name).to_text()


def rows_per_file(
    target_bytes: int, before: Sequence[StagedFile], record_bytes: float | None
) -> int | None:
    """Rows of a file of about that size, None if that is not known. before: the files of the batch
    before, which tell if they have records enough. record_bytes: as brokers store them.
    """
    records = sum(file.records for file in before)
    if records >= TELLING_RECORDS:
        record_bytes = sum(file.size_bytes for file in before) / records
    return None if record_bytes is None else max(int(target_bytes / record_bytes), 1)


def _write_staged(frame: DataFrame, staging: Staging) -> list[StagedFile]:
    from .staged_parquet import write_staged  # which needs pyspark

    return write_staged(frame, staging)


def parquet_store(
    options: ArchiveOptions, write_files: Write = _write_staged, tables: Tables | None = None
) -> ParquetStore:
    """The files of Parquet of these options."""
    return ParquetStore(
        Folder(options.output_uri),
        options.target_file_bytes or DEFAULT_FILE_BYTES,
        options.compression,
        write_files,
        options.decoding.decode,
        tables,
        options.query_name,
        options.spark_has_output,
    )


def store_of(options: ArchiveOptions, spark: SparkSession | None = None) -> Store:
    """The output of `archive`. spark: None where it is only looked at. Raises JobError for options
    that do not go together, or if what the decoding needs cannot be had.
    """
    options.check_decoding()
    if options.lake is None:
        folder, decoding = Folder(options.output_uri), options.decoding
        return parquet_store(
            options, tables=None if spark is None else tables_of(folder, decoding, spark)
        )
    from .lake_store import lake_store

    return lake_store(options, options.lake, spark)
