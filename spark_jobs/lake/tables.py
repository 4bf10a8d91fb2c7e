"""A table in a folder, as SQL of Spark names and changes it. A job's commits carry a note (see
`notes`), and Delta skips one whose number it has: a second writer changes nothing.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from ..session import is_remote
from ..storage import Folder
from .formats import DELTA, LakeFormat
from .notes import PROPERTY, delta_metadata

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

TRANSACTIONS: Final = "kbroker"
"""The application id of the jobs' changes in Delta's transactions; the version is the number of the
change.
"""

_DELTA_CONF: Final = "spark.databricks.delta"

METADATA_LIMITS: Final = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
"""Of Iceberg tables. Each commit writes a file of metadata with all snapshots. By default Iceberg
deletes none of them, so they would grow with the square of the number of batches.
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A column in SQL: its name and Spark's type."""

    name: str
    type: str

    def __str__(self) -> str:
        return f"{quoted(self.name)} {self.type}"


@dataclass(frozen=True, slots=True)
class Note:
    """What goes with a change. number: larger than that of any change before. text: JSON."""

    number: int
    text: str


class LakeTable(Protocol):
    """A table by its folder. Picklable. keeps_notes_of_changes: see `change`."""

    @property
    def folder(self) -> Folder: ...

    @property
    def keeps_notes_of_changes(self) -> bool: ...

    def name(self, spark: SparkSession) -> str:
        """In SQL."""
        ...

    def create(
        self, spark: SparkSession, columns: Sequence[Column], partitions: Sequence[str]
    ) -> None:
        """Make the table. partitions: columns of Delta Lake, expressions of Iceberg's SQL."""
        ...

    def replace(
        self, spark: SparkSession, columns: Sequence[Column], partitions: Sequence[str]
    ) -> None:
        """Make an existing table anew, as `create` does; it is empty then."""
        ...

    def limit_metadata(self, spark: SparkSession) -> None:
        """Let an existing table keep few old files of metadata, if it does not say how many."""
        ...

    def append(self, frame: DataFrame, note: Note, options: Mapping[str, str]) -> None:
        """Add rows, all of them and the note in one commit."""
        ...

    def change(self, spark: SparkSession, statement: str, note: Note) -> None:
        """Run a MERGE; where `keeps_notes_of_changes`, with the note in the same commit."""
        ...


def table_at(folder: Folder, format_: LakeFormat) -> LakeTable:
    """The table of a format in a folder, which may not be there yet."""
    return DeltaTable(folder) if format_ == DELTA else IcebergTable(folder)


def quoted(name: str) -> str:
    """A name in SQL."""
    return "`" + name.replace("`", "``") + "`"


def sql_type(kind: DataType) -> str:
    """A type in SQL. Spark's own `simpleString` leaves names of fields as they are."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    match kind:
        case StructType():
            fields = (f"{quoted(field.name)}: {sql_type(field.dataType)}" for field in kind.fields)
            return f"struct<{', '.join(fields)}>"
        case ArrayType():
            return f"array<{sql_type(kind.elementType)}>"
        case MapType():
            return f"map<{sql_type(kind.keyType)}, {sql_type(kind.valueType)}>"
        case _:
            return kind.simpleString()


def text(value: str) -> str:
    """A string in SQL."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _properties(values: Mapping[str, str]) -> str:
    return f"({', '.join(f'{text(key)}={text(value)}' for key, value in values.items())})"


@contextmanager
def configured(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """The session has these settings in the block."""
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, known in before.items():
            if known is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, known)


@contextmanager
def _one_at_a_time(spark: SparkSession) -> Iterator[None]:
    """Of the queries of a session of Spark Connect one is in the block: their batches run in
    processes of the server, one for each query, and have the settings of the user's session.
    """
    if not is_remote(spark):
        yield  # a query has a session of its own
        return
    session_id = spark.session_id  # type: ignore[attr-defined]  # only a remote session has it
    path = Path(tempfile.gettempdir()) / f"kbroker-{session_id}.lock"
    # The folder belongs to all users, so a link with that name is not followed.
    lock = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@dataclass(frozen=True, slots=True)
class DeltaTable:
    """See `LakeTable`."""

    folder: Folder
    keeps_notes_of_changes: bool = True

    def name(self, _spark: SparkSession) -> str:
        """See `LakeTable`."""
        return f"delta.{quoted(self.folder.spark_uri)}"

    def create(
        self, spark: SparkSession, columns: Sequence[Column], partitions: Sequence[str]
    ) -> None:
        """See `LakeTable`. CREATE TABLE takes a folder with anything in it for a table."""
        self._write_empty(spark, columns, partitions, "append")

    def replace(
        self, spark: SparkSession, columns: Sequence[Column], partitions: Sequence[str]
    ) -> None:
        """See `LakeTable`."""
        self._write_empty(spark, columns, partitions, "overwrite")

    def _write_empty(
        self, spark: SparkSession, columns: Sequence[Column], partitions: Sequence[str], mode: str
    ) -> None:
        empty = spark.createDataFrame([], ", ".join(map(str, columns)))
        writer = empty.write.format("delta").mode(mode).partitionBy(*partitions)
        if mode == "overwrite":
            writer = writer.option("overwriteSchema", "true")
        writer.save(self.folder.spark_uri)

    def limit_metadata(self, _spark: SparkSession) -> None:
        """See `LakeTable`. Delta Lake cleans its log up by itself."""

    def append(self, frame: DataFrame, note: Note, options: Mapping[str, str]) -> None:
        """See `LakeTable`."""
        writer = frame.write.format("delta").mode("append").options(**options)
        writer = writer.option("userMetadata", delta_metadata(note.text))
        writer = writer.option("txnAppId", TRANSACTIONS).option("txnVersion", str(note.number))
        writer.save(self.folder.spark_uri)

    def change(self, spark: SparkSession, statement: str, note: Note) -> None:
        """See `LakeTable`. The SQL of Delta Lake takes the note from the session alone."""
        settings = {
            f"{_DELTA_CONF}.commitInfo.userMetadata": delta_metadata(note.text),
            f"{_DELTA_CONF}.write.txnAppId": TRANSACTIONS,
            f"{_DELTA_CONF}.write.txnVersion": str(note.number),
        }
        with _one_at_a_time(spark), configured(spark, settings):
            spark.sql(statement)


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """See `LakeTable`. The table is one of a Hadoop catalog, whose warehouse is the folder above
    the table's: Iceberg's SQL knows no paths.
    """

    folder: Folder
    keeps_notes_of_changes: bool = False

    def name(self, spark: SparkSession) -> str:
        """See `LakeTable`. Makes the catalog known to the session."""
        return f"{self.catalog(spark)}.{quoted(self.own_name)}"

    @property
    def own_name(self) -> str:
        """Within its catalog."""
        return self.folder.spark_uri.rpartition("/")[2]

    def catalog(self, spark: SparkSession) -> str:
        """The table's catalog, made known to the session."""
        warehouse = self.folder.spark_uri.rpartition("/")[0]
        name = f"kbroker_{zlib.crc32(warehouse.encode()):08x}"
        setting = f"spark.sql.catalog.{name}"
        if spark.conf.get(setting, None) is None:
            spark.conf.set(f"{setting}.type", "hadoop")
            spark.conf.set(f"{setting}.warehouse", warehouse)
            # Others may change the table: a kept one would be old.
            spark.conf.set(f"{setting}.cache-enabled", "false")
            spark.conf.set(setting, "org.apache.iceberg.spark.SparkCatalog")
        return name

    def create(
        self, spark: SparkSession, columns: Sequence[Column], partitions: Sequence[str]
    ) -> None:
        """See `LakeTable`."""
        self._create(spark, "CREATE TABLE IF NOT EXISTS", columns, partitions)

    def replace(
        self, spark: SparkSession, columns: Sequence[Column], partitions: Sequence[str]
    ) -> None:
        """See `LakeTable`."""
        self._create(spark, "REPLACE TABLE", columns, partitions)

    def _create(
        self, spark: SparkSession, verb: str, columns: Sequence[Column], partitions: Sequence[str]
    ) -> None:
        partitioned = f" PARTITIONED BY ({', '.join(partitions)})" if partitions else ""
        properties = _properties({"format-version": "2", **METADATA_LIMITS})
        spark.sql(
            f"{verb} {self.name(spark)} ({', '.join(map(str, columns))}) "
            f"USING iceberg{partitioned} TBLPROPERTIES {properties}"
        )

    def limit_metadata(self, spark: SparkSession) -> None:
        """See `LakeTable`. What a user has set stays."""
        name = self.name(spark)
        known = {row.key for row in spark.sql(f"SHOW TBLPROPERTIES {name}").collect()}
        missing = {key: value for key, value in METADATA_LIMITS.items() if key not in known}
        if missing:
            spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES {_properties(missing)}")

    def append(self, frame: DataFrame, note: Note, options: Mapping[str, str]) -> None:
        """See `LakeTable`."""
        writer = frame.writeTo(self.name(frame.sparkSession)).options(**options)
        writer.option(f"snapshot-property.{PROPERTY}", note.text).append()

    def change(self, spark: SparkSession, statement: str, _note: Note) -> None:
        """See `LakeTable`. Iceberg's SQL has no place for a note."""
        spark.sql(statement)
