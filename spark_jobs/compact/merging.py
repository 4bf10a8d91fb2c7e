"""Files of Parquet into one, and the newest time in a file. Knows pyarrow, not Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ..archive.files import (
    METADATA_KEY,
    ROW_GROUP_BYTES,
    STATISTICS,
    column_range,
    metadata_of,
    whole_file,
)
from ..storage import Folder

BATCH_RECORDS = 16_384


def merge(sources: list[Path], target: Path, described: dict[str, object]) -> int:
    """Write the records of files, one after the other, into a file; gives its size in bytes.

    described: becomes the file's metadata, with the number of records. Raises JobError for a
    damaged file.
    """
    with whole_file(sources[0]):
        first = pq.read_metadata(sources[0])
        schema = pq.read_schema(sources[0]).remove_metadata()
    codec = first.row_group(0).column(0).compression if first.num_row_groups else "ZSTD"
    records = 0
    with pq.ParquetWriter(
        target,
        schema,
        compression="none" if codec == "UNCOMPRESSED" else codec,
        use_dictionary=[name for name in ("topic",) if name in schema.names],
        write_statistics=[name for name in STATISTICS if name in schema.names],
    ) as writer:
        for table in _groups(sources):
            records += table.num_rows
            writer.write_table(table.select(schema.names).cast(schema), row_group_size=1 << 30)
        content = {**described, "records": records}
        writer.add_key_value_metadata({METADATA_KEY: json.dumps(content)})
    return target.stat().st_size


def _groups(sources: list[Path]) -> Iterator[pa.Table]:
    """The records as tables of about a row group each."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for source in sources:
        with whole_file(source), pq.ParquetFile(source) as file:
            for batch in file.iter_batches(batch_size=BATCH_RECORDS):
                waiting.append(batch)
                size += batch.nbytes
                if size >= ROW_GROUP_BYTES:
                    yield pa.Table.from_batches(waiting)
                    waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def columns_of(path: Path) -> str:
    """A file's columns with their types, as text. Raises FileNotFoundError, or JobError for a
    damaged file.
    """
    with whole_file(path):
        schema = pq.read_schema(path).remove_metadata()
    return str(schema.to_string(show_field_metadata=False))


def newest_time_ms(archive: Folder, path: str) -> tuple[int | None, int]:
    """The newest record time of a file, by its statistics, and its number of records. The time is
    None if the file does not tell. Raises JobError for a damaged file.
    """
    metadata = metadata_of(archive, path)
    times = column_range(metadata, "timestamp")
    return None if times is None else max(times[1], 0), metadata.num_rows
