"""Arrow batches of records to Parquet files in a staging folder. Knows pyarrow, not Spark.

A task's batches come in the order of their offsets. Each (topic, partition, folder) has its own
file, which is closed at the target size; it is named when it is closed, by what is in it.
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import JobError
from ..storage import Folder
from .commits import StagedFile, Staging
from .layout import LAST_HOUR, FileRange, file_name, folder

ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
"""Size in memory at which buffered records become a row group."""

BUFFERED_BYTES: Final = 64 * 1024 * 1024
"""Limit of what a task buffers for all its open files together."""

OPEN_FILES: Final = 32
METADATA_KEY: Final = "kbroker.archive"

_BINARY: Final = pa.binary()
SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("ms", "UTC")),
        pa.field("timestampType", pa.int32()),
    ]
)
"""A record. timestampType: 0 is CreateTime, 1 is LogAppendTime, -1 is none, as in Kafka."""

COLUMNS: Final = tuple(SCHEMA.names)
VALUE: Final = "value"

DEAD_LETTERS: Final = "_dlq"
"""The folder of records whose values cannot be decoded, as they were, in the archive's layout."""

HOUR_MS: Final = 3_600_000
STATISTICS: Final = ["topic", "partition", "offset", "timestamp", "timestampType"]


def file_schema(layout: tuple[str, ...], value_type: pa.DataType | None = _BINARY) -> pa.Schema:
    """SCHEMA without the columns that are folders. value_type: None for no column `value`."""
    columns = [column for column in SCHEMA if column.name not in layout]
    if value_type is None:
        return pa.schema([column for column in columns if column.name != VALUE])
    return pa.schema(
        [column.with_type(value_type) if column.name == VALUE else column for column in columns]
    )


@dataclass(frozen=True, slots=True)
class Part:
    """Records whose values have one type, as in `file_schema`. folder: that they go to, before
    those of the layout.
    """

    rows: pa.RecordBatch
    value_type: pa.DataType | None = _BINARY
    folder: str = ""


def empty_file(layout: tuple[str, ...]) -> bytes:
    """A Parquet file of the layout's schema without rows."""
    schema = file_schema(layout)
    buffer = io.BytesIO()
    pq.write_table(schema.empty_table(), buffer)
    return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class _Group:
    """Records of a batch that belong into one folder. hour: of their time, since 1970, rounded down
    to what the layout tells apart.
    """

    topic: str
    partition: int
    hour: int
    rows: pa.RecordBatch
    part: Part

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self.part.folder, self.topic, self.partition, self.hour


def split(part: Part, layout: tuple[str, ...]) -> Iterator[_Group]:
    """The records by topic, partition and the folder's time, each in their order."""
    batch = part.rows
    topics = batch.column("topic").dictionary_encode()
    indices = topics.indices.cast(pa.int64())
    partitions = batch.column("partition").cast(pa.int64())
    hours = _hours(batch.column("timestamp"), layout)
    key, scale = indices, 1
    for column in (partitions, hours):
        low, high = pc.min_max(column).as_py().values()
        scale = high - low + 1
        key = pc.add(pc.multiply(key, scale), pc.subtract(column, low))
    values = pc.unique(key)
    for value in values:
        rows = batch if len(values) == 1 else batch.filter(pc.equal(key, value))
        first = 0 if len(values) == 1 else pc.index(key, value).as_py()
        yield _Group(
            topics[first].as_py(),
            partitions[first].as_py(),
            hours[first].as_py(),
            rows,
            part,
        )


def _hours(times: pa.Array, layout: tuple[str, ...]) -> pa.Array:
    """Hours since 1970 that tell folders apart: rounded to days, or all 0, as the layout allows."""
    if "date" not in layout:
        return pa.repeat(pa.scalar(0, pa.int64()), len(times))
    microseconds = times.cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.int64())
    unit = 1 if "hour" in layout else 24
    whole = pc.min_element_wise(
        pc.multiply(pc.divide(microseconds, HOUR_MS * 1000 * unit), unit), LAST_HOUR // unit * unit
    )
    return pc.if_else(pc.less(microseconds, 0), -1, whole)


class _OpenFile:
    """A Parquet file that is being written. Its name in the staging folder says nothing."""

    def __init__(self, staging: Staging, group: _Group) -> None:
        self._staging = staging
        self._group = group
        self._output = Folder(staging.output)
        self.staged = f"{staging.staged_in}/{uuid.uuid4().hex}.tmp"
        self._schema = file_schema(staging.layout, group.part.value_type)
        self._batches: list[pa.RecordBatch] = []
        self.buffered_bytes = 0
        self._first = self._last = -1
        self._records = 0
        self._sink: Any = None  # pyarrow has no types
        self._writer: Any = None

    def add(self, rows: pa.RecordBatch) -> None:
        """Take records behind those already taken."""
        offsets = pc.min_max(rows.column("offset")).as_py()
        if self._first < 0:
            self._first = offsets["min"]
        self._last = offsets["max"]
        self._records += rows.num_rows
        self._batches.append(rows)
        self.buffered_bytes += rows.nbytes
        if self.buffered_bytes >= min(ROW_GROUP_BYTES, self._staging.target_file_bytes):
            self.flush()

    @property
    def is_full(self) -> bool:
        """Whether the file has its target size."""
        written = 0 if self._sink is None else self._sink.tell()
        return bool(written >= self._staging.target_file_bytes)

    def flush(self) -> None:
        """Write what is buffered as a row group."""
        if not self._batches:
            return
        table = pa.Table.from_batches(self._batches).select(self._schema.names)
        self._open().write_table(table.cast(self._schema, safe=False), row_group_size=1 << 30)
        self._batches, self.buffered_bytes = [], 0

    def close(self) -> StagedFile:
        """Finish the file."""
        self.flush()
        group, staging = self._group, self._staging
        content = FileRange(
            group.topic,
            group.partition,
            self._first,
            self._last,
            staging.generations.get(group.topic, 1),
        )
        described = {
            "topic": content.topic,
            "partition": content.partition,
            "first_offset": content.first_offset,
            "last_offset": content.last_offset,
            "records": self._records,
            "generation": content.generation,
            **staging.origin,
        }
        writer = self._open()
        writer.add_key_value_metadata({METADATA_KEY: json.dumps(described)})
        writer.close()
        size_bytes = self._sink.tell()
        self._sink.close()
        place = folder(staging.layout, group.topic, group.partition, group.hour)
        name = file_name(staging.layout, content)
        path = "/".join(filter(None, (group.part.folder, place, name)))
        return StagedFile(self.staged, path, group.topic, self._records, size_bytes)

    def _open(self) -> Any:
        if self._writer is None:
            self._output.make_parent(self.staged)
            system, root = self._output.open()
            self._sink = system.open_output_stream(f"{root}/{self.staged}")
            self._writer = pq.ParquetWriter(
                self._sink,
                self._schema,
                compression=self._staging.compression,
                use_dictionary=[name for name in ("topic",) if name in self._schema.names],
                write_statistics=[name for name in STATISTICS if name in self._schema.names],
            )
        return self._writer


def write_files(batches: Iterable[pa.RecordBatch], staging: Staging) -> list[StagedFile]:
    """As `write_parts`, with values as they are. batches: with COLUMNS."""
    return write_parts(map(Part, batches), staging)


def write_parts(parts: Iterable[Part], staging: Staging) -> list[StagedFile]:
    """Write the records of one task into the staging folder; gives the files, closed.

    parts: ascending offsets in each partition. A late record's file stays open
    beside the newer ones, OPEN_FILES at most; the one not used for the longest is closed first.
    """
    done: list[StagedFile] = []
    open_files: dict[tuple[str, str, int, int], _OpenFile] = {}
    for part in parts:
        if not part.rows.num_rows:
            continue
        for group in split(part, staging.layout):
            file = open_files.pop(group.key, None) or _OpenFile(staging, group)
            open_files[group.key] = file  # behind all others: the most recently used
            file.add(group.rows)
            if file.is_full:
                done.append(open_files.pop(group.key).close())
            if len(open_files) > OPEN_FILES:
                done.append(open_files.pop(next(iter(open_files))).close())
        while sum(file.buffered_bytes for file in open_files.values()) > BUFFERED_BYTES:
            max(open_files.values(), key=lambda file: file.buffered_bytes).flush()
    done += [file.close() for file in open_files.values()]
    return done


def dead_files(output: Folder) -> list[str]:
    """Relative paths of the files with dead letters."""
    return [f"{DEAD_LETTERS}/{path}" for path in output.child(DEAD_LETTERS).files()]


def column_range(metadata: Any, name: str) -> tuple[int, int] | None:
    """The smallest and the largest value of a column of integers or times by a file's statistics;
    None without them. Times in the column's unit, ms: Python has no dates behind the year 9999.
    """
    smallest: list[int] = []
    largest: list[int] = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = (group.column(place) for place in range(metadata.num_columns))
        (column,) = (column for column in columns if column.path_in_schema == name)
        statistics = column.statistics
        if statistics is None or not statistics.has_min_max:
            return None
        smallest.append(statistics.min_raw)
        largest.append(statistics.max_raw)
    return (min(smallest), max(largest)) if smallest else None


@contextmanager
def whole_file(place: object) -> Iterator[None]:
    """Raises JobError, which names the file at `place`, where the block finds that it is damaged or
    cannot read it. Errors of the file system that have a number pass.
    """
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if not isinstance(error, pa.ArrowInvalid):
            raise JobError(f"{place} cannot be read: {reason}") from error
        raise JobError(
            f"{place} is damaged ({reason}): bring it back from a copy; or delete it and start "
            "archive with --resume-from earliest, which archives what Kafka still has"
        ) from error


def metadata_of(output: Folder, path: str) -> Any:
    """The metadata of a visible file, as pyarrow has it. Raises JobError if it is damaged."""
    system, root = output.open()
    with whole_file(f"{output}/{path}"):
        return pq.read_metadata(f"{root}/{path}", filesystem=system)


def count_records(output: Folder, paths: Iterable[str]) -> int:
    """Records in visible files, by their metadata. Raises JobError for a damaged one."""
    return sum(metadata_of(output, path).num_rows for path in paths)
