"""Records of one target partition as columns, and their bytes in a batch, without an object per
record: pyarrow's kernels do what `kbroker.protocol.batches.records.encode_record` does for one.

A block is a pyarrow RecordBatch: `timestamp` (int64, no null), `key` and `value` (binary), and, if
any row may have headers, `headers`: their encoded bytes with the count before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kbroker.client.cluster import TopicPartition
from kbroker.protocol.batches.records import Header, append_varint

from .records import RECORD_OVERHEAD_BYTES, RecordFields
from .rows import (
    HEADERS,
    KEY,
    NO_HEADER_KEY,
    NO_PARTITION,
    NO_TOPIC,
    PARTITION,
    SOURCE_OFFSET,
    TIMESTAMP,
    TOPIC,
    VALUE,
)
from .runs import Span, add_span

TABLE_VARINTS: Final = 1 << 16
"""Numbers below it have their varints in a table; a record's offset delta and nearly every length
is one. Each other number is encoded once for its block.
"""

_BINARY: Final = pa.binary()
_TIME: Final = "timestamp"

# Made once: each conversion of a Python value lets Arrow search for the package dateutil, which
# takes up to a millisecond where it is not installed.
_EMPTY: Final = pa.scalar(b"", _BINARY)
_ZERO: Final = pa.scalar(b"\x00", _BINARY)
"""The attributes of a record, the varint of 0."""
_NULL: Final = pa.scalar(b"\x01", _BINARY)
"""The varint of length -1."""


class Encoded(NamedTuple):
    """The records of a batch, not compressed. body: a buffer."""

    body: pa.Buffer
    base_timestamp: int
    max_timestamp: int


class TargetBlock(NamedTuple):
    """Rows for one target partition, in their order. sources: their source offsets, None where the
    rows have none.
    """

    target: TopicPartition
    block: pa.RecordBatch
    sources: pa.Int64Array | None


def target_blocks(
    batch: pa.RecordBatch, *, topic: str | None, now_ms: int
) -> Iterator[TargetBlock]:
    """The rows of a record batch with the columns of `rows`. topic: of all rows, None if they have
    a column for it. now_ms: for rows without a timestamp.

    Raises ValueError for a null where none may be.
    """
    if not batch.num_rows:
        return
    names = batch.schema.names
    partitions = batch.column(names.index(PARTITION)).cast(pa.int64())
    if partitions.null_count:
        raise ValueError(NO_PARTITION)
    topics: list[str] = [] if topic is None else [topic]
    places = partitions
    if topic is None:
        column = batch.column(names.index(TOPIC))
        if column.null_count:
            raise ValueError(NO_TOPIC)
        encoded = column.cast(pa.string()).dictionary_encode()
        topics = encoded.dictionary.to_pylist()
        # A partition is an int of 32 bits, so that topic and partition fit into one number.
        shifted = pc.shift_left(encoded.indices.cast(pa.int64()), _scalar(32))
        places = pc.add(shifted, pc.add(partitions, _scalar(1 << 31)))
    low, high = pc.min_max(places).as_py().values()
    if low != high:
        order = pc.array_sort_indices(places)  # it is stable
        batch, places = batch.take(order), places.take(order)
    block = record_block(batch, now_ms=now_ms)
    sources = batch.column(names.index(SOURCE_OFFSET)) if SOURCE_OFFSET in names else None
    if sources is not None and sources.null_count:
        raise ValueError("a row has no source offset")
    start = 0
    for run in pc.value_counts(places).to_pylist():
        index, partition = 0, run["values"]
        if topic is None:
            index, partition = partition >> 32, (partition & 0xFFFFFFFF) - (1 << 31)
        count = run["counts"]
        target = TopicPartition(topics[index], partition)
        mine = None if sources is None else sources.slice(start, count)
        yield TargetBlock(target, block.slice(start, count), mine)
        start += count


def record_block(batch: pa.RecordBatch, *, now_ms: int) -> pa.RecordBatch:
    """The block of rows with the columns of `rows`. Raises ValueError for a header without key."""
    names, count = batch.schema.names, batch.num_rows
    if TIMESTAMP in names:
        times = batch.column(names.index(TIMESTAMP))
        if times.null_count:
            times = pc.fill_null(times, now_ms)
    else:
        times = pa.repeat(pa.scalar(now_ms, pa.int64()), count)
    if KEY in names:
        keys = batch.column(names.index(KEY)).cast(_BINARY)
    else:
        keys = pa.nulls(count, _BINARY)
    columns = {_TIME: times, KEY: keys, VALUE: batch.column(names.index(VALUE)).cast(_BINARY)}
    if HEADERS in names:
        headers = batch.column(names.index(HEADERS))
        if len(headers.flatten()):
            columns[HEADERS] = _header_bytes(headers)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def block_of(records: Sequence[RecordFields]) -> pa.RecordBatch:
    """The block of records that are there one by one."""
    columns: dict[str, pa.Array] = {
        _TIME: pa.array([record[0] for record in records], pa.int64()),
        KEY: pa.array([record[1] for record in records], _BINARY),
        VALUE: pa.array([record[2] for record in records], _BINARY),
    }
    if any(record[3] for record in records):
        columns[HEADERS] = pa.array([_encode_headers(record[3]) for record in records], _BINARY)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _encode_headers(headers: Sequence[Header]) -> bytes:
    out = bytearray()
    append_varint(out, len(headers))
    for name, content in headers:
        append_varint(out, len(name))
        out += name
        append_varint(out, -1 if content is None else len(content))
        out += content or b""
    return bytes(out)


def first_record(block: pa.RecordBatch) -> RecordFields:
    """The first record; its headers are not decoded."""
    timestamp, key, value = (block.column(place)[0].as_py() for place in range(3))
    return timestamp, key, value, ()


def joined_blocks(blocks: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One block of all their records."""
    if len(blocks) == 1:
        return blocks[0]
    columns = {_TIME: pa.int64(), KEY: _BINARY, VALUE: _BINARY}
    arrays = {name: pa.concat_arrays([block.column(name) for block in blocks]) for name in columns}
    if any(HEADERS in block.schema.names for block in blocks):
        arrays[HEADERS] = pa.concat_arrays([_headers_of(block) for block in blocks])
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def _headers_of(block: pa.RecordBatch) -> pa.BinaryArray:
    if HEADERS in block.schema.names:
        return block.column(HEADERS)
    return pa.repeat(_ZERO, block.num_rows)


def compacted(block: pa.RecordBatch) -> pa.RecordBatch:
    """The block in memory of its own, if it is a slice that would keep much more alive."""
    if block.get_total_buffer_size() <= 2 * block.nbytes:
        return block
    return block.take(_counted(_table_size(block.num_rows)).slice(0, block.num_rows))


def sizes(block: pa.RecordBatch) -> Sequence[int]:
    """About the bytes that the records take in a batch: of the first, of the first two, and so on.

    A buffer of its own; `bisect` searches it.
    """
    total = pc.add(_lengths(block.column(VALUE), 0), _scalar(RECORD_OVERHEAD_BYTES))
    if block.column(KEY).null_count < block.num_rows:
        total = pc.add(total, _lengths(block.column(KEY), 0))
    if HEADERS in block.schema.names:
        total = pc.add(total, _lengths(block.column(HEADERS), 0))
    ends = pc.cumulative_sum(total)
    return memoryview(ends.buffers()[1]).cast("B").cast("q")[: len(ends)]


def encode_block(block: pa.RecordBatch) -> Encoded:
    """The records as they are in a batch whose first offset is that of the first record."""
    times = block.column(_TIME)
    low, high = pc.min_max(times).as_py().values()
    first = times[0]
    parts: list[pa.Array | pa.Scalar] = [_ZERO]
    parts.append(_ZERO if low == high else _varints(pc.subtract(times, first)))
    parts.append(_varint_table(_table_size(block.num_rows)).slice(1, block.num_rows))
    for name in (KEY, VALUE):
        parts += _with_lengths(block.column(name))
    if HEADERS in block.schema.names:
        parts.append(block.column(HEADERS))
    else:
        parts.append(_ZERO)
    lengths = _scalar(sum(isinstance(part, pa.Scalar) for part in parts))  # a byte each
    for part in parts:
        if isinstance(part, pa.Array):
            lengths = pc.add(lengths, _lengths(part, 0))
    joined = pc.binary_join_element_wise(_varints(lengths), *parts, _EMPTY)
    return Encoded(_content(joined), first.as_py(), high)


def _with_lengths(values: pa.BinaryArray) -> list[pa.Array | pa.Scalar]:
    """The values, each behind its length."""
    if values.null_count == len(values):
        return [_NULL]
    lengths = _varints(_lengths(values, -1))
    return [lengths, pc.fill_null(values, _EMPTY) if values.null_count else values]


def _lengths(values: pa.BinaryArray, of_null: int) -> pa.Int64Array:
    lengths = pc.binary_length(values).cast(pa.int64())
    return pc.fill_null(lengths, _scalar(of_null)) if values.null_count else lengths


def _content(values: pa.BinaryArray) -> pa.Buffer:
    """The bytes of all values behind each other; no value is null."""
    ends = memoryview(values.buffers()[1]).cast("B").cast("i")
    first, last = ends[values.offset], ends[values.offset + len(values)]
    return values.buffers()[2].slice(first, last - first)


def _varints(numbers: pa.Array) -> pa.BinaryArray:
    """The zigzag varint of each number; none is null."""
    numbers = numbers.cast(pa.int64())
    low, high = pc.min_max(numbers).as_py().values()
    if low >= -1 and high < TABLE_VARINTS:
        return _varint_table(_table_size(high + 1)).take(pc.add(numbers, _scalar(1)))
    known = numbers.dictionary_encode()
    return pa.array(map(_varint, known.dictionary.to_pylist()), _BINARY).take(known.indices)


def _varint(number: int) -> bytes:
    out = bytearray()
    append_varint(out, number)
    return bytes(out)


def _table_size(count: int) -> int:
    """So that there are few tables."""
    return 1 << max(10, (count - 1).bit_length())


@cache
def _scalar(number: int) -> pa.Int64Scalar:
    """For the few numbers that the kernels get."""
    return pa.scalar(number, pa.int64())


@cache
def _counted(count: int) -> pa.Int64Array:
    """0, 1, 2, ... up to count, exclusive."""
    return pa.array(range(count), pa.int64())


@cache
def _varint_table(count: int) -> pa.BinaryArray:
    """The varints of -1 up to count, exclusive."""
    return pa.array(map(_varint, range(-1, count)), _BINARY)


def _header_bytes(headers: pa.Array) -> pa.BinaryArray:
    """The headers of each row as they are in a record, with their count; a null list is none.

    Raises ValueError for a header without key.
    """
    counts = pc.fill_null(pc.list_value_length(headers).cast(pa.int64()), _scalar(0))
    items = headers.flatten()
    keys, contents = items.field(0), items.field(1)
    if keys.null_count:
        raise ValueError(NO_HEADER_KEY)
    each = pc.binary_join_element_wise(
        *_with_lengths(keys.cast(_BINARY)), *_with_lengths(contents.cast(_BINARY)), _EMPTY
    )
    # Rows are neighbours in `each`: their bounds in its bytes are those of their first headers.
    firsts = pc.cumulative_sum(pa.concat_arrays([_counted(1), counts]))
    bounds = pa.Array.from_buffers(
        pa.int32(), len(each) + 1, [None, each.buffers()[1]], offset=each.offset
    )
    rows = pa.Array.from_buffers(
        _BINARY, len(headers), [None, bounds.take(firsts).buffers()[1], each.buffers()[2]]
    )
    return pc.binary_join_element_wise(_varints(counts), rows, _EMPTY)


def add_sources(spans: list[Span], sources: pa.Int64Array) -> None:
    """Append the source offsets of rows that follow those in `spans`."""
    following = spans[-1].sequence + spans[-1].length if spans else 0
    steps = pc.subtract(sources.slice(1), sources.slice(0, len(sources) - 1))
    breaks: Iterable[int] = pc.indices_nonzero(pc.not_equal(steps, _scalar(1))).to_pylist()
    starts = [0, *(place + 1 for place in breaks)]
    for start, end in zip(starts, [*starts[1:], len(sources)], strict=True):
        add_span(spans, following + start, sources[start].as_py(), end - start)
