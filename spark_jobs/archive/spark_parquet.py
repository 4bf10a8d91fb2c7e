"""An archive's files as Spark writes them where values stay bytes: no row passes through Python.

Spark's tasks write into a folder of its own below the staging folder, by Spark's commit protocol:
files of failed and of second attempts are not in it. Its folders say topic, partition and hour; the
driver reads each file's footer, which says what is in it, and names it by that.
"""

from __future__ import annotations

import json
import queue
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq

from ..errors import JobError
from ..storage import Folder
from .commits import StagedFile, Staging, not_shared
from .files import (
    COLUMNS,
    HOUR_MS,
    METADATA_KEY,
    ROW_GROUP_BYTES,
    column_range,
    file_schema,
)
from .layout import LAST_HOUR, FileRange, file_name, folder

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

TOPIC, PARTITION, HOUR = "t", "p", "h"
"""The columns of the staged folders. Short: a topic's name may have 249 of a name's 255 bytes."""

SETTINGS: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
"""Spark has no options of a writer for these."""

OPTIONS: Final = {
    # Version 2 of the committer shows the files of a task before the task is committed.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "parquet.block.size": str(ROW_GROUP_BYTES),
    "parquet.compression.codec.zstd.level": "1",
    **{f"parquet.enable.dictionary#{name}": "false" for name in ("key", "value", "offset")},
    **{f"parquet.column.statistics.enabled#{name}": "false" for name in ("key", "value")},
}
"""Of a file: as `files` writes it. Keys and values have no statistics and no dictionary, which
would be given up after a megabyte.
"""

CODECS: Final = {"lz4": "lz4_raw", "none": "uncompressed"}
"""Spark's names of codecs where they are not those of pyarrow."""

COUNT_TIMEOUT_S: Final = 60.0


def write_by_spark(frame: DataFrame, staging: Staging) -> list[StagedFile]:
    """Write a batch's records; gives the files, which are not visible yet. frame: with COLUMNS.
    Raises JobError, or what Spark raises.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    output = Folder(staging.output)
    target = f"{staging.staged_in}/{uuid.uuid4().hex}"
    counted = Observation()
    rows = frame.select(*_columns(staging)).observe(counted, F.count(F.lit(1)).alias("records"))
    folders = [name for name in (TOPIC, PARTITION, HOUR) if name in rows.columns]
    options = OPTIONS | {"compression": CODECS.get(staging.compression, staging.compression)}
    if staging.rows_per_file is not None:
        options["maxRecordsPerFile"] = str(staging.rows_per_file)
    # Spark sorts by the folders in any case, but does not say in which order it leaves equal rows.
    writer = rows.sortWithinPartitions(*folders, "offset").write.partitionBy(*folders)
    with _settings(frame):
        writer.options(**options).parquet(output.child(target).spark_uri)
    return staged_files(output, target, staging, _records(counted))


def _columns(staging: Staging) -> list[Column]:
    """Those of the files, and of the folders."""
    from pyspark.sql import functions as F

    origin = {METADATA_KEY: staging.origin}
    columns = [
        F.col(name).alias(name, metadata=origin) if name == "offset" else F.col(name)
        for name in COLUMNS
        if name not in staging.layout
    ]
    # Not nullable, for which Spark would put an expression of its own behind the sort.
    columns.append(F.coalesce(F.col("topic"), F.lit("")).alias(TOPIC))
    columns.append(F.col("partition").alias(PARTITION))
    if "date" in staging.layout:
        columns.append(F.expr(_hour(staging.layout)).alias(HOUR))
    return columns


def _hour(layout: tuple[str, ...]) -> str:
    """As `files` counts the hours that tell folders apart, in SQL."""
    unit = 1 if "hour" in layout else 24
    time_ms = "unix_millis(timestamp)"
    whole = f"least({time_ms} div {HOUR_MS * unit} * {unit}, {LAST_HOUR // unit * unit})"
    return f"int(if({time_ms} < 0, -1, {whole}))"


@contextmanager
def _settings(frame: DataFrame) -> Iterator[None]:
    """SETTINGS hold in the frame's session: a query's own one, but that of the user under Spark
    Connect.
    """
    conf = frame.sparkSession.conf
    before = {name: conf.get(name) for name in SETTINGS}
    for name, value in SETTINGS.items():
        conf.set(name, value)
    try:
        yield
    finally:
        for name, kept in before.items():
            conf.set(name, str(kept))


def _records(counted: Observation) -> int:
    """The number of rows that passed. Raises JobError if Spark does not tell: it does so by an
    event, which a driver that is overloaded drops.
    """
    answers: queue.SimpleQueue[dict[str, Any] | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(counted.get)
        except Exception as error:  # noqa: BLE001 - raised below, in the thread that asked
            answers.put(error)

    # A daemon: where the event does not come, it waits for ever, and the process must end.
    threading.Thread(target=ask, name="archive-count", daemon=True).start()
    try:
        found = answers.get(timeout=COUNT_TIMEOUT_S)
    except queue.Empty:
        raise JobError(
            "Spark did not say how many records it wrote (its driver drops events, see "
            "spark.scheduler.listenerbus.eventqueue.capacity): nothing of this batch is visible. "
            "Start again"
        ) from None
    if isinstance(found, Exception):
        raise found
    return int(found["records"])


def staged_files(output: Folder, target: str, staging: Staging, records: int) -> list[StagedFile]:
    """The files that Spark wrote into the folder `target` of the output, named by what is in them.
    records: that Spark wrote. Raises JobError if they are not all there.
    """
    there = output.child(target)
    files = [_staged_file(output, target, path, staging) for path in there.files()]
    if sum(file.records for file in files) != records:
        raise not_shared(output)
    return files


def _staged_file(output: Folder, target: str, path: str, staging: Staging) -> StagedFile:
    staged = f"{target}/{path}"
    system, root = output.open()
    with system.open_input_file(f"{root}/{staged}") as file:
        size_bytes: int = file.size()
        metadata: Any = pq.read_metadata(file)
    found = metadata.schema.to_arrow_schema().remove_metadata()
    if not found.equals(file_schema(staging.layout)):
        raise JobError(
            f"Spark wrote files with the columns {json.dumps([str(field) for field in found])}: "
            "another query of this session changes its settings. Nothing of this batch is "
            "visible; start again"
        )
    offsets = column_range(metadata, "offset")
    if offsets is None:
        raise JobError(f"Spark wrote {output}/{staged} without statistics of offsets")
    values = dict(part.partition("=")[::2] for part in path.split("/")[:-1])
    topic = values[TOPIC]
    generation = staging.generations.get(topic, 1)
    content = FileRange(topic, int(values[PARTITION]), *offsets, generation)
    place = folder(staging.layout, topic, content.partition, int(values.get(HOUR, 0)))
    name = file_name(staging.layout, content)
    visible = f"{place}/{name}" if place else name
    return StagedFile(staged, visible, topic, metadata.num_rows, size_bytes)
