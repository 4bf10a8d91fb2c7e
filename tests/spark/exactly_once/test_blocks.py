"""Blocks of columns: the bytes of their batches are those that records encoded one by one have."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import BATCH_OVERHEAD, read_batch_header
from spark_jobs.exactly_once.records import RecordFields
from spark_jobs.exactly_once.rows import header_lists, rows
from spark_jobs.exactly_once.runs import Span, add_span

pa = pytest.importorskip("pyarrow")

from spark_jobs.exactly_once.blocks import (  # noqa: E402
    TABLE_VARINTS,
    add_sources,
    block_of,
    compacted,
    encode_block,
    first_record,
    joined_blocks,
    record_block,
    sizes,
    target_blocks,
)

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
COLUMNS = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp_ms": pa.int64(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(HEADER),
    "source_offset": pa.int64(),
}
NOW_MS = 1_800_000_000_000


def random_bytes(random: Random, most: int) -> bytes | None:
    return random.choice([None, b"", random.randbytes(random.randrange(most))])


def random_headers(random: Random) -> list[dict[str, Any]] | None:
    if random.random() < 0.3:
        return None
    return [
        {"key": random.choice(["", "ü", "trace" * 20]), "value": random_bytes(random, 100)}
        for _ in range(random.randrange(4))
    ]


def random_rows(random: Random, count: int) -> Any:
    values: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for number in range(count):
        values["topic"].append(random.choice(["t", "u"]))
        values["partition"].append(random.randrange(-1, 3))
        values["timestamp_ms"].append(random.choice([None, -1, 5, random.randrange(1 << 41)]))
        values["key"].append(random_bytes(random, 200))
        values["value"].append(random_bytes(random, 300))
        values["headers"].append(random_headers(random))
        values["source_offset"].append(2 * number if random.random() < 0.5 else 1000 + number)
    arrays = [pa.array(values[name], kind) for name, kind in COLUMNS.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(COLUMNS))


def check_encoded(block: Any, records: list[RecordFields]) -> None:
    whole = build_batch(records)
    header, encoded = read_batch_header(whole), encode_block(block)
    assert bytes(encoded.body) == whole[BATCH_OVERHEAD:]
    assert encoded.base_timestamp == header.base_timestamp
    assert encoded.max_timestamp == header.max_timestamp


@pytest.mark.parametrize("seed", range(12))
def test_the_bytes_are_those_of_records_one_by_one(seed: int) -> None:
    random = Random(seed)
    batch = random_rows(random, random.randrange(1, 300))
    wanted = ["headers", "key", "source_offset", "timestamp_ms", "topic"]
    dropped = [name for name in wanted if random.random() < 0.3]
    batch = batch.select([name for name in COLUMNS if name not in dropped])
    batch = batch.slice(random.randrange(batch.num_rows))
    topic = "t" if "topic" in dropped else None
    by_target: dict[TopicPartition, list[RecordFields]] = {}
    offsets: dict[TopicPartition, list[int]] = {}
    source = [0] * batch.num_rows
    if "source_offset" not in dropped:
        source = batch.column("source_offset").to_pylist()
    for (target, record), offset in zip(
        rows(batch, topic=topic, now_ms=NOW_MS), source, strict=True
    ):
        by_target.setdefault(target, []).append(record)
        offsets.setdefault(target, []).append(offset)
    found = list(target_blocks(batch, topic=topic, now_ms=NOW_MS))
    assert len(found) == len(by_target)
    for target, block, sources in found:
        check_encoded(block, by_target[target])
        assert (sources is None) == ("source_offset" in dropped)
        if sources is not None:
            assert sources.to_pylist() == offsets[target]


def test_long_values_and_many_records() -> None:
    many = [(7, None, b"%d" % number, ()) for number in range(TABLE_VARINTS // 4)]
    check_encoded(block_of(many), many)
    large = [(7, b"k", b"x" * size, ()) for size in (63, 64, 8191, 8192, TABLE_VARINTS, 3_000_000)]
    check_encoded(block_of(large), large)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary()])
def test_other_types_of_keys_and_values(kind: Any) -> None:
    columns = [pa.array(["ü", None, ""], kind) for _ in range(2)]
    partition = pa.array([1] * 3, pa.int8())
    batch = pa.RecordBatch.from_arrays([*columns, partition], names=["key", "value", "partition"])
    ((target, block, sources),) = target_blocks(batch, topic="t", now_ms=NOW_MS)
    assert target == TopicPartition("t", 1)
    assert sources is None
    texts = ["ü".encode(), None, b""]
    check_encoded(block, [(NOW_MS, text, text, ()) for text in texts])


def test_no_rows() -> None:
    batch = random_rows(Random(1), 3).slice(3)
    assert list(target_blocks(batch, topic=None, now_ms=0)) == []


@pytest.mark.parametrize(
    ("column", "why"),
    [
        ("partition", "a row has no partition"),
        ("topic", "a row has no topic"),
        ("source_offset", "a row has no source offset"),
    ],
)
def test_nulls_where_none_may_be(column: str, why: str) -> None:
    batch = random_rows(Random(1), 3)
    place = batch.schema.get_field_index(column)
    batch = batch.set_column(place, column, pa.nulls(3, batch.column(place).type))
    with pytest.raises(ValueError, match=why):
        list(target_blocks(batch, topic=None, now_ms=0))


def test_a_header_without_a_key() -> None:
    headers = pa.array([[{"key": None, "value": b"x"}]], pa.list_(HEADER))
    batch = pa.RecordBatch.from_arrays(
        [pa.array([0], pa.int32()), pa.array([b"v"], pa.binary()), headers],
        names=["partition", "value", "headers"],
    )
    with pytest.raises(ValueError, match="a header has no key"):
        list(target_blocks(batch, topic="t", now_ms=0))


def test_blocks_with_and_without_headers_are_joined() -> None:
    one: list[RecordFields] = [(1, None, b"a", ()), (2, b"k", None, ())]
    two: list[RecordFields] = [(3, None, b"b", [(b"h", None), (b"h", b"1")]), (1, None, b"", ())]
    joined = joined_blocks([block_of(one), block_of(two), block_of(one)])
    check_encoded(joined, [*one, *two, *one])
    assert first_record(joined) == (1, None, b"a", ())


def test_sizes_add_up_and_slices_let_go_of_what_they_were_cut_from() -> None:
    batch = random_rows(Random(5), 200)
    block = record_block(batch, now_ms=0)
    lengths = [
        24 + len(key or b"") + len(value or b"")
        for key, value in zip(
            batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True
        )
    ]
    headers = [
        sum(len(name) + len(content or b"") for name, content in each)
        for each in header_lists(batch.column("headers"))
    ]
    found = sizes(block)
    assert len(found) == 200
    plain = sum(lengths) + sum(headers)
    assert plain <= found[-1] <= plain + 4 * 4 * 200
    assert sizes(block.slice(3, 2))[1] == found[4] - found[2]
    assert compacted(block.slice(0, 190)) is not None
    small = compacted(block.slice(7, 3))
    assert small == block.slice(7, 3)
    assert small.get_total_buffer_size() < block.get_total_buffer_size() / 10


def test_source_offsets_become_spans() -> None:
    spans: list[Span] = []
    wanted: list[Span] = []
    offsets = [5, 6, 7, 9, 10, 3, 3, 4, 8]
    for start, end in ((0, 2), (2, 3), (3, 8), (8, 9)):
        add_sources(spans, pa.array(offsets[start:end], pa.int64()))
    for sequence, offset in enumerate(offsets):
        add_span(wanted, sequence, offset)
    assert spans == wanted
