"""`compact`: small files into few, so that readers see each record once before, meanwhile and
after; and the retention of archives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import JobError
from ..lake.formats import DELTA, LakeFormat
from ..storage import Folder
from ..topic_checks import counted
from .options import DEFAULT_FILES, FEWEST_FILES, CompactOptions
from .parquet import Done, compact_parquet, planned
from .tables import compact_table, format_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What a run did. files: merged ones; into: how many they became. deleted_files: None for
    tables, which decide themselves. notes: lines for the user.
    """

    options: CompactOptions
    files: int
    into: int
    deleted_records: int
    deleted_files: int | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "files": self.files,
            "into": self.into,
            "deleted_records": self.deleted_records,
            "deleted_files": self.deleted_files,
        }

    def to_text(self) -> str:
        """The line at the end of a run."""
        said = (
            f"compacted {counted(self.files, 'file')} of {self.options.output} into {self.into:,}"
        )
        if self.options.retention_ms is None:
            return said
        files = "" if self.deleted_files is None else f" in {counted(self.deleted_files, 'file')}"
        return f"{said}; deleted {counted(self.deleted_records, 'old record')}{files}"


def lake_format(options: CompactOptions) -> LakeFormat | None:
    """The format of the table; None for files of Parquet. Raises JobError, also for an option that
    the format has not.
    """
    output = Folder(options.output_uri)
    try:
        found = format_of(output)
    except OSError as error:
        raise JobError(f"{output} cannot be read: {error.strerror or error}") from error
    is_given = options.has_min_files or options.min_files != DEFAULT_FILES
    if found == DELTA and is_given and options.min_files != FEWEST_FILES:
        raise JobError(
            f"--minFiles {options.min_files}: {output} is a table of {DELTA.title}, whose OPTIMIZE "
            f"merges {FEWEST_FILES} small files too and cannot be told otherwise: leave it out"
        )
    return found


def describe_check(options: CompactOptions, now_ms: int) -> str:
    """What a run would do, in one line; nothing is changed. Raises JobError."""
    format_ = lake_format(options)
    if format_ is not None:
        return f"{options.output}: a table of {format_.title}, which decides itself"
    done = planned(options, now_ms)
    if done.not_merged:
        return f"{options.output}: {done.not_merged}"
    return f"{options.output}: {counted(done.files, 'file')} to merge into {done.into:,}"


def compact(spark: SparkSession | None, options: CompactOptions, now_ms: int) -> CompactReport:
    """Run the job. spark: needed for tables only. now_ms: the time that ages are counted from.

    Raises JobError, or StartRefused while another compaction runs.
    """
    format_ = lake_format(options)
    if format_ is not None:
        if spark is None:
            raise JobError(f"{options.output} is a table of {format_.title}: give a session")
        done = compact_table(spark, options, format_, now_ms)
    elif options.history_ms is not None:
        raise JobError("--history is of tables: files of Parquet have one version")
    else:
        done = _of_parquet(options, now_ms)
    deleted_files = None if format_ is not None else done.deleted_files
    notes = (done.not_merged,) if done.not_merged else ()
    return CompactReport(options, done.files, done.into, done.deleted_records, deleted_files, notes)


def _of_parquet(options: CompactOptions, now_ms: int) -> Done:
    try:
        return compact_parquet(options, now_ms)
    except OSError as error:
        raise JobError(f"{options.output}: {error.strerror or error}") from error
