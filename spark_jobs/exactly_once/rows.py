"""Arrow record batches of a task as rows, column by column and without an object per cell.

`to_pylist` makes a scalar object of each cell first, which would take longer than encoding. Rows
that are only written to a topic stay columns: see `blocks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from kbroker.client.cluster import TopicPartition
from kbroker.protocol.batches.records import Header

from .records import RecordFields

if TYPE_CHECKING:
    import pyarrow as pa

TOPIC: Final = "topic"
PARTITION: Final = "partition"
TIMESTAMP: Final = "timestamp_ms"
KEY: Final = "key"
VALUE: Final = "value"
HEADERS: Final = "headers"
SOURCE_OFFSET: Final = "source_offset"
"""Columns of the rows that reach a task: topic string (absent if there is one topic), partition
int, timestamp_ms long (absent: the time of writing), key and value binary, headers
array<struct<key string, value binary>> (absent: none), source_offset long (absent: no offset map
is written). Key and value may be null.
"""

NO_PARTITION: Final = "a row has no partition: fill the column, or drop it to partition rows by key"
NO_TOPIC: Final = "a row has no topic: name one for the sink, or fill the column"
NO_HEADER_KEY: Final = "a header has no key, which Kafka does not allow"


def rows(
    batch: pa.RecordBatch, *, topic: str | None, now_ms: int
) -> Iterator[tuple[TopicPartition, RecordFields]]:
    """The rows of a record batch with the columns above. topic: of all rows, None if they have a
    column for it. now_ms: for rows without a timestamp.

    Raises ValueError for a null where none may be.
    """
    count = batch.num_rows
    names = batch.schema.names
    partitions = _integers(batch.column(names.index(PARTITION)))
    if TIMESTAMP in names:
        timestamps = [
            now_ms if value is None else value
            for value in _integers(batch.column(names.index(TIMESTAMP)))
        ]
    else:
        timestamps = [now_ms] * count
    keys = binary_values(batch.column(names.index(KEY))) if KEY in names else [None] * count
    values = binary_values(batch.column(names.index(VALUE)))
    headers: Sequence[Sequence[Header]]
    headers = header_lists(batch.column(names.index(HEADERS))) if HEADERS in names else [()] * count
    targets = _targets(batch, topic, partitions)
    return zip(targets, zip(timestamps, keys, values, headers, strict=True), strict=True)


def source_offsets(batch: pa.RecordBatch) -> list[int]:
    """The column source_offset. Raises ValueError for a null."""
    values = _integers(batch.column(batch.schema.names.index(SOURCE_OFFSET)))
    offsets = [value for value in values if value is not None]
    if len(offsets) != len(values):
        raise ValueError("a row has no source offset")
    return offsets


def _targets(
    batch: pa.RecordBatch, topic: str | None, partitions: Sequence[int | None]
) -> Iterator[TopicPartition]:
    if None in partitions:
        raise ValueError(NO_PARTITION)
    known: dict[tuple[str, int], TopicPartition] = {}
    topics: Sequence[str | None]
    if topic is not None:
        topics = [topic] * len(partitions)
    else:
        topics = [
            None if name is None else name.decode()
            for name in binary_values(batch.column(batch.schema.names.index(TOPIC)))
        ]
    for name, partition in zip(topics, partitions, strict=True):
        if name is None or partition is None:
            raise ValueError(NO_TOPIC)
        target = known.get((name, partition))
        if target is None:
            target = known[name, partition] = TopicPartition(name, partition)
        yield target


def binary_values(array: pa.Array) -> list[bytes | None]:
    """The values of a binary or string array, large or not; None for null."""
    import pyarrow as pa

    is_large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    bounds = _offsets(array.buffers()[1], array.offset, len(array), is_large=is_large)
    data = array.buffers()[2]
    if data is None or not bounds:
        values: list[bytes | None] = [b""] * len(array)
    else:
        first = bounds[0]
        content = bytes(memoryview(data)[first : bounds[-1]])
        if first:
            bounds = [bound - first for bound in bounds]
        values = [content[a:b] for a, b in pairwise(bounds)]
    for position in _null_positions(array):
        values[position] = None
    return values


def header_lists(array: pa.Array) -> list[Sequence[Header]]:
    """The headers of each row; a null list is none. Raises ValueError for a header without key."""
    import pyarrow as pa

    is_large = pa.types.is_large_list(array.type)
    bounds = _offsets(array.buffers()[1], array.offset, len(array), is_large=is_large)
    if not bounds or bounds[0] == bounds[-1]:
        return [()] * len(array)
    first = bounds[0]
    items = array.values.slice(first, bounds[-1] - first)
    keys, contents = binary_values(items.field(0)), binary_values(items.field(1))
    pairs = list(zip(keys, contents, strict=True))
    lists: list[Sequence[Header]] = [
        _headers(pairs[a - first : b - first]) if b > a else () for a, b in pairwise(bounds)
    ]
    for position in _null_positions(array):
        lists[position] = ()
    return lists


def _headers(pairs: Sequence[tuple[bytes | None, bytes | None]]) -> list[Header]:
    headers = []
    for key, content in pairs:
        if key is None:
            raise ValueError(NO_HEADER_KEY)
        headers.append((key, content))
    return headers


def _offsets(buffer: pa.Buffer | None, start: int, count: int, *, is_large: bool) -> list[int]:
    """The count + 1 bounds of an array that begins at element start; none if it is empty."""
    if buffer is None or not count:
        return []
    return _numbers(buffer, start, count + 1, 64 if is_large else 32)


def _integers(array: pa.Array) -> list[int | None]:
    """The values of an integer array; None for null."""
    buffer = array.buffers()[1]
    values: list[int | None] = [None] * len(array)
    if buffer is not None:
        values = list(_numbers(buffer, array.offset, len(array), array.type.bit_width))
    for position in _null_positions(array):
        values[position] = None
    return values


def _numbers(buffer: pa.Buffer, start: int, count: int, bit_width: int) -> list[int]:
    """Signed integers out of a buffer. start, count: in elements."""
    size = bit_width // 8
    used = memoryview(buffer)[start * size : (start + count) * size].cast("B")
    match bit_width:
        case 64:
            return used.cast("q").tolist()
        case 32:
            return used.cast("i").tolist()
        case 16:
            return used.cast("h").tolist()
    return used.cast("b").tolist()


def _null_positions(array: pa.Array) -> list[int]:
    if not array.null_count:
        return []
    import pyarrow.compute as compute

    positions: list[int] = compute.indices_nonzero(array.is_null()).to_pylist()
    return positions
