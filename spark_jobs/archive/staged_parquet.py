"""How Spark's tasks write an archive's files into the staging folder: by themselves, see
`spark_parquet`, or by a function for `mapInArrow`, whose rows say what the task wrote. The function
decodes values, and it knows the file systems of pyarrow, of which Spark may lack one.

Of the function Spark gives the rows of one successful attempt of each task. What other attempts
wrote stays in the staging folder, which is removed after the next commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING, Final

from ..arrow_map import map_in_arrow
from ..storage import Folder
from .commits import StagedFile, Staging, not_shared

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

FILES_SCHEMA: Final = "staged string, path string, topic string, records long, size_bytes long"
"""A row per file: the fields of `StagedFile`."""


@dataclass(frozen=True, slots=True)
class WriteStaged:
    """Writes a task's records into staged files and yields a row for each."""

    staging: Staging

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function for `mapInArrow`."""
        yield _file_rows(self._write(batches))

    def _write(self, batches: Iterable[pa.RecordBatch]) -> list[StagedFile]:
        from .files import write_files, write_parts

        if not self.staging.decoder:
            return write_files(batches, self.staging)
        from pyspark import TaskContext

        from .decoded import ValueDecoder

        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        decoder = ValueDecoder.from_text(self.staging.decoder)
        return write_parts(
            (part for batch in batches for part in decoder.parts(batch, task)), self.staging
        )


def _file_rows(files: Sequence[StagedFile]) -> pa.RecordBatch:
    import pyarrow as pa

    names = [field.name for field in fields(StagedFile)]
    values = [astuple(file) for file in files]
    kinds = [*[pa.string()] * 3, *[pa.int64()] * 2]
    arrays = [
        pa.array([value[place] for value in values], kind) for place, kind in enumerate(kinds)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def write_staged(frame: DataFrame, staging: Staging) -> list[StagedFile]:
    """Write a batch's records; gives the files, which are not visible yet. Raises JobError."""
    if staging.by_spark:
        from .spark_parquet import write_by_spark

        return write_by_spark(frame, staging)
    rows = map_in_arrow(frame, WriteStaged(staging), FILES_SCHEMA).collect()
    files = [StagedFile(*row) for row in rows]
    output = Folder(staging.output)
    there = {f"{staging.staged_in}/{name}" for name in output.names(staging.staged_in)}
    if not there.issuperset(file.staged for file in files):
        raise not_shared(output)
    return files
