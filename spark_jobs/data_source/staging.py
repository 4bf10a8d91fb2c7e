"""Rows that tasks leave for the commit: an Arrow file for each task, in a folder that driver and
executors share.

A data source in Python is told of a batch only at its end, and cannot say how Spark is to arrange
rows; the sink needs a producer id before the first row, and each target partition in one task.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..exactly_once.frames import SOURCE_TIMESTAMP
from ..exactly_once.rows import KEY, PARTITION, TIMESTAMP, VALUE
from ..storage import Folder

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX: Final = ".arrow"


@dataclass(frozen=True, slots=True)
class StagedRows:
    """What a task has left. task: its number; name: of the file, empty if there were no rows."""

    task: int
    name: str = ""
    rows: int = 0


def stage(
    batches: Iterable[pa.RecordBatch], columns: Sequence[tuple[int, str]], folder: Folder, task: int
) -> StagedRows:
    """Write the rows of a task. columns: place in a batch and name of those that make a record."""
    import pyarrow as pa

    name = f"{uuid.uuid4().hex}{SUFFIX}"
    writer: pa.RecordBatchStreamWriter | None = None
    sink: pa.NativeFile | None = None
    count = 0
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            rows = record_batch(batch, columns)
            if writer is None:
                folder.make_parent(name)
                system, root = folder.open()
                sink = system.open_output_stream(f"{root}/{name}")
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                writer = pa.ipc.new_stream(sink, rows.schema, options=options)
            writer.write_batch(rows)
            count += rows.num_rows
    finally:
        if writer is not None:
            writer.close()
        if sink is not None:
            sink.close()
    return StagedRows(task, name, count) if count else StagedRows(task)


def record_batch(batch: pa.RecordBatch, columns: Sequence[tuple[int, str]]) -> pa.RecordBatch:
    """A batch of Spark's in the form that `rows` reads."""
    import pyarrow as pa
    import pyarrow.compute as pc

    arrays, names = [], []
    for place, name in columns:
        column = batch.column(place)
        if name in (KEY, VALUE):
            column = column.cast(pa.binary())
        elif name == PARTITION:
            column = column.cast(pa.int32())
        elif name == SOURCE_TIMESTAMP:
            if pa.types.is_timestamp(column.type):
                # Arrow rounds in the local time of the column, which is that of Spark's session: it
                # refuses an hour that comes twice, and zones that only Java knows.
                utc = column.cast(pa.timestamp("us", "UTC"))
                whole = pc.floor_temporal(utc, unit="millisecond")
                column = whole.cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
            name = TIMESTAMP
        arrays.append(column)
        names.append(name)
    return pa.RecordBatch.from_arrays(arrays, names=names)


def read_staged(folder: Folder, staged: Iterable[StagedRows]) -> Iterator[pa.RecordBatch]:
    """The rows of all tasks, in the order of the tasks. Raises OSError where a file is gone."""
    import pyarrow as pa

    system, root = folder.open()
    for each in sorted(staged, key=lambda one: one.task):
        if each.name:
            with (
                system.open_input_stream(f"{root}/{each.name}") as source,
                pa.ipc.open_stream(source) as reader,
            ):
                yield from reader
