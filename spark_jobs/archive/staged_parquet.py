"""The data source through which Spark's tasks write an archive's files into the staging folder.

A batch's frame is written to the format `kbroker_archive`; what the tasks wrote is then listed in
the manifest, which `take_manifest` gives to the driver. pyspark's `mapInArrow` would give it
directly, but needs pandas.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from ..errors import JobError
from ..storage import Folder
from .commits import StagedFile, Staging
from .files import write_files, write_parts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMAT = "kbroker_archive"
_OPTION = "staging"
_MANIFEST = "manifest.json"


@dataclass
class WrittenFiles(WriterCommitMessage):
    """What one task wrote."""

    files: list[StagedFile]


class StagedParquetWriter(DataSourceArrowWriter):
    """Writes a task's records into staged files, and the manifest once all tasks succeeded."""

    def __init__(self, staging: Staging) -> None:
        self.staging = staging

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        """Called in a task."""
        if not self.staging.decoder:
            return WrittenFiles(write_files(iterator, self.staging))
        from .decoded import ValueDecoder

        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        decoder = ValueDecoder.from_text(self.staging.decoder)
        parts = (part for batch in iterator for part in decoder.parts(batch, task))
        return WrittenFiles(write_parts(parts, self.staging))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Called once, beside the driver, with what the successful attempt of each task wrote."""
        files = [
            dataclasses.asdict(file)
            for message in messages
            if isinstance(message, WrittenFiles)
            for file in message.files
        ]
        name = f"{self.staging.staged_in}/{_MANIFEST}"
        Folder(self.staging.output).write(name, json.dumps(files).encode())

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The staging folder is removed after the next commit."""


class StagedParquet(DataSource):
    """`frame.write.format("kbroker_archive")`, for `write_staged` only."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> StagedParquetWriter:
        """The writer of one batch."""
        values: dict[str, Any] = json.loads(self.options[_OPTION])
        values["layout"] = tuple(values["layout"])
        return StagedParquetWriter(Staging(**values))


def register(spark: SparkSession) -> None:
    """Make the format known to a session."""
    spark.dataSource.register(StagedParquet)


def write_staged(frame: DataFrame, staging: Staging) -> list[StagedFile]:
    """Write a batch's records; gives the files, which are not visible yet."""
    output = Folder(staging.output)
    manifest = f"{staging.staged_in}/{_MANIFEST}"
    output.delete(manifest)  # of an earlier attempt
    options = json.dumps(dataclasses.asdict(staging))
    frame.write.format(FORMAT).option(_OPTION, options).mode("append").save()
    content = output.read(manifest)
    if content is None:
        raise JobError(
            f"the executors wrote to a {output} that is not the driver's: on a cluster --output "
            "must be a place that all machines share"
        )
    return [StagedFile(**file) for file in json.loads(content)]
