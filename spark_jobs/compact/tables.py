"""A table of Delta Lake or Iceberg: small files into few by the format's own means, old records and
old versions away.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from ..archive.lake_store import COLUMNS, copy_note
from ..errors import JobError, first_cause
from ..lake.formats import DELTA, FORMATS, LakeFormat, check_format
from ..lake.notes import is_table
from ..lake.tables import IcebergTable, configured, quoted, table_at, text
from ..session import shuffle_partitions
from ..storage import Folder
from ..table.changes import KEY
from .options import CompactOptions
from .parquet import Done

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIME: Final = "timestamp"
OVERTAKEN: Final = "Metadata file for version"
"""Of Iceberg's message when the version that a commit stands on was deleted meanwhile."""

LISTING: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"

_HOUR_MS: Final = 3_600_000


def format_of(output: Folder) -> LakeFormat | None:
    """The format of the table in a folder; None if it is no table."""
    return next((each for each in FORMATS.values() if is_table(output, each)), None)


def compact_table(
    spark: SparkSession, options: CompactOptions, format_: LakeFormat, now_ms: int
) -> Done:
    """Compact a table. Raises JobError, also where another writer was in the way."""
    check_format(spark, format_)
    output, done = Folder(options.output_uri), Done()
    name = table_at(output, format_).name(spark)
    try:
        copy_note(output, format_)  # before versions go away
        if options.retention_ms is not None:
            done.deleted_records = delete_old(spark, name, now_ms - options.retention_ms)
        if format_ == DELTA:
            _compact_delta(spark, name, options, done)
        else:
            _compact_iceberg(spark, IcebergTable(output), options, now_ms, done)
    except JobError:
        raise
    except Exception as error:  # pyspark's own, and Java's through py4j
        cause = first_cause(error)
        if OVERTAKEN in cause:
            cause = (
                f"{output} got more commits meanwhile than it keeps versions of "
                "(write.metadata.previous-versions-max): compact more often, or set that higher"
            )
        raise JobError(f"compact stopped: {cause}") from error
    return done


def delete_old(spark: SparkSession, name: str, before_ms: int) -> int:
    """Delete records by their time; gives their number. Raises JobError for a table that is not
    `archive`'s: a column of that name may be anything there.
    """
    names = set(spark.table(name).columns)
    missing = [column.name for column in COLUMNS if column.name not in names]
    if missing or KEY.name in names:
        why = f"it has no column {missing[0]}" if missing else f"it has the column {KEY.name}"
        raise JobError(
            f"--retention: `archive` did not make the table ({why}), and only of its tables "
            "records are deleted by their time"
        )
    condition = f"{quoted(TIME)} < timestamp_millis({before_ms})"
    (row,) = spark.sql(f"SELECT count(*) AS n FROM {name} WHERE {condition}").collect()
    if row.n:
        spark.sql(f"DELETE FROM {name} WHERE {condition}")
    return int(row.n)


def _compact_delta(spark: SparkSession, name: str, options: CompactOptions, done: Done) -> None:
    optimize = "spark.databricks.delta.optimize"
    size = str(options.target_file_bytes)
    # Below the second size a file is small.
    settings = {f"{optimize}.maxFileSize": size, f"{optimize}.minFileSize": size}
    with configured(spark, settings):
        (row,) = spark.sql(f"OPTIMIZE {name}").collect()
    done.files, done.into = row.metrics.numFilesRemoved, row.metrics.numFilesAdded
    if options.history_ms is not None:
        hours = options.history_ms / _HOUR_MS
        with configured(spark, {LISTING: _listing_tasks(spark)}):
            spark.sql(f"VACUUM {name} RETAIN {hours:.3f} HOURS")


def _listing_tasks(spark: SparkSession) -> str:
    """In how many tasks VACUUM lists the table's folders: Spark's default of 10,000 takes a minute
    on two cores, however few the folders are.
    """
    most = shuffle_partitions(spark)
    return str(min(int(spark.conf.get(LISTING) or most), most))


def _compact_iceberg(
    spark: SparkSession, table: IcebergTable, options: CompactOptions, now_ms: int, done: Done
) -> None:
    wanted = {
        "target-file-size-bytes": str(options.target_file_bytes),
        "min-input-files": str(options.min_files),
    }
    row = _call(spark, table, "rewrite_data_files", f"options => {_map(wanted)}")
    done.files, done.into = row.rewritten_data_files_count, row.added_data_files_count
    if options.history_ms is not None:
        before = datetime.fromtimestamp((now_ms - options.history_ms) / 1000, UTC)
        with configured(spark, {"spark.sql.session.timeZone": "UTC"}):
            time = f"TIMESTAMP '{before:%Y-%m-%d %H:%M:%S}'"
            _call(spark, table, "expire_snapshots", f"older_than => {time}")


def _call(spark: SparkSession, table: IcebergTable, procedure: str, arguments: str) -> Any:
    name = text(quoted(table.own_name))
    catalog = table.catalog(spark)
    (row,) = spark.sql(f"CALL {catalog}.system.{procedure}(table => {name}, {arguments})").collect()
    return row


def _map(values: Mapping[str, str]) -> str:
    pairs = (part for pair in values.items() for part in pair)
    return f"map({', '.join(map(text, pairs))})"
