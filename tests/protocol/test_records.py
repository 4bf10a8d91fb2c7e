"""Batches against those Apache Kafka 4.3.1 wrote, and against bytes that lie."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.checksum import crc32c
from kbroker.protocol.compression import Compression, compress
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import (
    BATCH_OVERHEAD,
    BatchHeader,
    ControlType,
    Record,
    append_varint,
    assign_offsets,
    build_batch,
    build_end_transaction_marker,
    check_crc,
    control_type,
    encode_record,
    iter_batches,
    iter_records,
    marker_coordinator_epoch,
    read_batch_header,
    read_varint,
    read_varlong,
    recompress,
    set_max_timestamp,
)

GOLDEN = Path(__file__).parents[1] / "data" / "kafka-4.3.1"
LOGS = [
    pytest.param(path, id=f"{path.parent.name}/{path.stem[-3:]}")
    for path in sorted(GOLDEN.glob("data/*/*.log"))
    if path.parent.name.startswith(("codec", "txn", "compact", "log-append", "recompress"))
]
SAME_STREAM = {Compression.NONE, Compression.LZ4}
"""Codecs whose library gives Kafka's very bytes; gzip's header and zstd's frame header differ."""

BATCH_LINE = re.compile(
    r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (-?\d+) lastSequence: (-?\d+) "
    r"producerId: (-?\d+) producerEpoch: (-?\d+) partitionLeaderEpoch: (\d+) "
    r"isTransactional: (\w+) isControl: (\w+) deleteHorizonMs: (\S+) position: (\d+) "
    r"(\w+): (-?\d+) size: (\d+) magic: 2 compresscodec: (\w+) crc: (\d+) isvalid: true"
)
RECORD_LINE = re.compile(
    r"\| offset: (\d+) \w+: (-?\d+) keySize: (-?\d+) valueSize: (-?\d+) sequence: (-?\d+) "
    r"headerKeys: \[(.*?)\](.*)"
)


class Dumped(NamedTuple):
    """A batch as Kafka's DumpLogSegments printed it."""

    batch: re.Match[str]
    records: list[re.Match[str]]


def dumped(log: Path) -> list[Dumped]:
    path = GOLDEN / "dump-clean" / log.parent.name / f"{log.name}.txt"
    batches: list[Dumped] = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        if batch := BATCH_LINE.match(line):
            batches.append(Dumped(batch, []))
        elif record := RECORD_LINE.match(line):
            batches[-1].records.append(record)
    return batches


def stored(log: Path) -> Iterator[tuple[memoryview, BatchHeader]]:
    data = memoryview(log.read_bytes())
    for position, header in iter_batches(data):
        assert check_crc(data, position, header)
        yield data[position : position + header.size_bytes], header


def rebuilt(header: BatchHeader, records: list[Record]) -> bytearray:
    horizon = header.base_timestamp if header.has_delete_horizon else None
    return build_batch(
        records,
        base_offset=header.base_offset,
        partition_leader_epoch=header.partition_leader_epoch,
        compression=header.codec,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
        delete_horizon_ms=horizon,
        last_offset_delta=header.last_offset_delta,
        max_timestamp=header.max_timestamp,
    )


@pytest.mark.parametrize("log", LOGS)
def test_headers_are_what_kafka_prints(log: Path) -> None:
    position = 0
    expected = dumped(log)
    found = list(stored(log))
    assert len(found) == len(expected)
    for (batch, header), (line, _) in zip(found, expected, strict=True):
        horizon = (
            f"OptionalLong[{header.base_timestamp}]"
            if header.has_delete_horizon
            else "OptionalLong.empty"
        )
        assert line.groups() == (
            str(header.base_offset),
            str(header.last_offset),
            str(header.record_count),
            str(header.base_sequence),
            str(header.last_sequence),
            str(header.producer_id),
            str(header.producer_epoch),
            str(header.partition_leader_epoch),
            str(header.is_transactional).lower(),
            str(header.is_control).lower(),
            horizon,
            str(position),
            "LogAppendTime" if header.is_log_append_time else "CreateTime",
            str(header.max_timestamp),
            str(len(batch)),
            header.codec.name.lower(),
            str(header.crc),
        )
        position += header.size_bytes


@pytest.mark.parametrize("log", LOGS)
def test_records_are_what_kafka_prints(log: Path) -> None:
    for (batch, header), (_, lines) in zip(stored(log), dumped(log), strict=True):
        records = list(iter_records(batch, header))
        assert len(records) == header.record_count == len(lines)
        for record, line in zip(records, lines, strict=True):
            offset, timestamp, key_size, value_size, sequence, header_keys, rest = line.groups()
            assert record.offset == int(offset)
            assert record.timestamp == int(timestamp)
            assert (-1 if record.key is None else len(record.key)) == int(key_size)
            assert (-1 if record.value is None else len(record.value)) == int(value_size)
            assert ",".join(name.decode() for name, _ in record.headers) == header_keys
            if header.is_control:
                kind = control_type(record)
                epoch = marker_coordinator_epoch(record)
                marker = {ControlType.ABORT: "ABORT", ControlType.COMMIT: "COMMIT"}[kind]
                assert f"endTxnMarker: {marker} coordinatorEpoch: {epoch}" in rest
                continue
            if header.base_sequence >= 0:
                assert (header.base_sequence + record.offset - header.base_offset) == int(sequence)
            expected = f" key: {record.key.decode()}" if record.key is not None else ""
            if record.value is not None:
                expected += f" payload: {record.value.decode()}"
            assert rest == expected


@pytest.mark.parametrize("log", LOGS)
def test_built_again_from_its_records_a_batch_has_the_same_bytes(log: Path) -> None:
    for batch, header in stored(log):
        if header.is_log_append_time:
            continue  # the records' own timestamps are there, but nobody reads them
        records = list(iter_records(batch, header))
        again = rebuilt(header, records)
        if header.codec in SAME_STREAM and header.record_count:
            assert again == batch
        assert list(iter_records(again)) == records


def test_an_emptied_batch_keeps_what_compaction_keeps() -> None:
    log = GOLDEN / "data" / "compact-txn-0" / "00000000000000000148.log"
    batch, header = next(stored(log))
    assert header.record_count == 0
    assert header.last_offset_delta == 2
    assert list(iter_records(batch, header)) == []
    assert rebuilt(header, []) == batch


@pytest.mark.parametrize("codec", list(Compression))
def test_an_emptied_batch_has_no_stream_to_open(codec: Compression) -> None:
    batch = build_batch([], last_offset_delta=2, compression=codec)
    assert read_batch_header(batch).codec is Compression.NONE
    struct.pack_into(">h", batch, 21, codec)
    assert list(iter_records(batch)) == []


HEADERS = [(b"a", b"1"), (b"a", None), (b"", b"")]
RECORDS: list[tuple[int | None, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]] = [
    (1000, b"k", b"v", HEADERS),
    (900, None, b"v" * 300, []),
    (2000, b"", None, []),
]


def test_batch_of_tuples() -> None:
    batch = build_batch(RECORDS, base_offset=7, partition_leader_epoch=3)
    header = read_batch_header(batch)
    assert (header.base_offset, header.last_offset, header.next_offset) == (7, 9, 10)
    assert (header.base_timestamp, header.max_timestamp) == (1000, 2000)
    assert (header.record_count, header.partition_leader_epoch) == (3, 3)
    assert (header.last_sequence, header.has_producer_id) == (-1, False)
    assert [record.offset for record in iter_records(batch)] == [7, 8, 9]
    assert [record.timestamp for record in iter_records(batch)] == [1000, 900, 2000]
    assert next(iter(iter_records(batch))).headers == HEADERS


@pytest.mark.parametrize("codec", list(Compression))
def test_every_codec(codec: Compression) -> None:
    batch = build_batch(RECORDS * 20, compression=codec)
    assert check_crc(batch, 0, read_batch_header(batch))
    plain = build_batch(RECORDS * 20)
    assert list(iter_records(batch)) == list(iter_records(plain))
    for other in Compression:
        changed = recompress(batch, read_batch_header(batch), other)
        header = read_batch_header(changed)
        assert header.codec is other and check_crc(changed, 0, header)
        assert list(iter_records(changed)) == list(iter_records(plain))


def test_offsets_and_epoch_go_in_without_touching_the_crc() -> None:
    batches = build_batch(RECORDS) + build_batch(RECORDS[:1])
    before = [header.crc for _, header in iter_batches(batches)]
    assert assign_offsets(memoryview(batches), 1 << 40, 12) == (1 << 40) + 4
    headers = [header for _, header in iter_batches(batches)]
    assert [header.base_offset for header in headers] == [1 << 40, (1 << 40) + 3]
    assert [header.partition_leader_epoch for header in headers] == [12, 12]
    assert [header.crc for header in headers] == before
    assert all(check_crc(batches, position, header) for position, header in iter_batches(batches))


def test_log_append_time_counts_for_every_record() -> None:
    batches = build_batch(RECORDS) + build_batch(RECORDS)
    second = len(batches) // 2
    set_max_timestamp(batches, second, 5555, log_append_time=True)
    header = read_batch_header(batches, second)
    assert header.is_log_append_time and check_crc(batches, second, header)
    assert {record.timestamp for record in iter_records(batches[second:])} == {5555}
    assert not read_batch_header(batches).is_log_append_time


def test_sequence_wraps_behind_int32_max() -> None:
    batch = build_batch(RECORDS, producer_id=1, producer_epoch=0, base_sequence=0x7FFFFFFE)
    assert read_batch_header(batch).last_sequence == 0


def test_markers() -> None:
    batch = build_end_transaction_marker(
        commit=False, producer_id=9, producer_epoch=2, coordinator_epoch=5, timestamp_ms=77
    )
    header = read_batch_header(batch)
    assert header.is_control and header.is_transactional and header.base_sequence == -1
    (record,) = iter_records(batch)
    assert control_type(record) is ControlType.ABORT
    assert marker_coordinator_epoch(record) == 5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param(None, b"", id="no key"),
        pytest.param(b"\0\0\0", b"", id="short key"),
        pytest.param(b"\xff\xff\0\0", b"", id="negative version"),
        pytest.param(b"\0\0\0\1", b"\0\0\0", id="short value"),
        pytest.param(b"\0\0\0\1", None, id="no value"),
    ],
)
def test_control_records_that_are_none(key: bytes | None, value: bytes | None) -> None:
    record = Record(0, 0, key, value)
    with pytest.raises(KafkaError) as caught:
        if control_type(record) is ControlType.COMMIT:
            marker_coordinator_epoch(record)
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_control_type_of_the_future() -> None:
    assert control_type(Record(0, 0, b"\0\0\0\x63", None)) is ControlType.UNKNOWN


@pytest.mark.parametrize(
    ("records", "options"),
    [
        pytest.param([], {}, id="nothing"),
        pytest.param([Record(5, 0, None, None)], {"base_offset": 6}, id="below the base offset"),
        pytest.param([Record(5, 0, None, None)] * 2, {}, id="the same offset twice"),
        pytest.param([Record(5, 0, None, None)], {"last_offset_delta": 4}, id="delta too small"),
    ],
)
def test_batches_that_cannot_be_built(records: list[Record], options: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        build_batch(records, **options)  # type: ignore[arg-type]  # one dict for all rows


# -- bytes that lie -------------------------------------------------------------------------------


def sealed(body: bytes, *, count: int, codec: Compression = Compression.NONE) -> bytes:
    """A batch with a right CRC round any body."""
    head = struct.pack(">qiib", 0, 49 + len(body), 0, 2)
    rest = struct.pack(">hiqqqhii", codec, max(count - 1, 0), 0, 0, -1, -1, -1, count) + body
    return head + struct.pack(">I", crc32c(rest)) + rest


def varint(value: int) -> bytes:
    out = bytearray()
    append_varint(out, value)
    return bytes(out)


def one_record(content: bytes) -> bytes:
    return sealed(varint(len(content)) + content, count=1)


GOOD = bytearray()
encode_record(GOOD, timestamp_delta=0, offset_delta=0, key=b"k", value=b"v", headers=[(b"h", b"x")])

NO_RECORDS = [
    pytest.param(sealed(b"", count=1), id="a record that is not there"),
    pytest.param(sealed(bytes(GOOD), count=2), id="more records than bytes"),
    pytest.param(sealed(bytes(GOOD), count=0x7FFFFFFF), id="2 billion records"),
    pytest.param(sealed(bytes(GOOD), count=-1), id="negative count"),
    pytest.param(sealed(bytes(GOOD) + b"z", count=1), id="bytes after the last record"),
    pytest.param(sealed(bytes(GOOD), count=0), id="records beyond the count"),
    pytest.param(sealed(varint(-1) + bytes(10), count=1), id="negative record length"),
    pytest.param(sealed(varint(0) + bytes(10), count=1), id="record of no bytes"),
    pytest.param(sealed(varint(1 << 30) + bytes(10), count=1), id="record of 1 GB"),
    pytest.param(sealed(b"\x80" * 5 + bytes(10), count=1), id="length of six bytes"),
    pytest.param(one_record(b"\0" + b"\x80" * 10 + bytes(9)), id="timestamp of eleven bytes"),
    pytest.param(one_record(b"\0\0" + b"\x80" * 5 + bytes(9)), id="offset delta of six bytes"),
    pytest.param(one_record(b"\0\0\0" + varint(1 << 30) + bytes(9)), id="key of 1 GB"),
    pytest.param(one_record(b"\0\0\0\1" + varint(100) + bytes(9)), id="value beyond the record"),
    pytest.param(one_record(b"\0\0\0\1\1" + varint(-1) + bytes(9)), id="negative header count"),
    pytest.param(one_record(b"\0\0\0\1\1" + varint(1 << 30) + bytes(9)), id="a billion headers"),
    pytest.param(one_record(b"\0\0\0\1\1\2" + varint(-1) + bytes(9)), id="null header key"),
    pytest.param(one_record(b"\0\0\0\1\1\2" + varint(99) + bytes(9)), id="header key too long"),
    pytest.param(one_record(b"\0\0\0\1\1\2\0" + varint(99) + bytes(9)), id="header value too long"),
    pytest.param(one_record(b"\0\0\0\1\1\0z"), id="bytes after the headers"),
]


@pytest.mark.parametrize("batch", NO_RECORDS)
def test_bytes_that_are_no_records(batch: bytes) -> None:
    header = read_batch_header(batch)
    assert check_crc(batch, 0, header)
    with pytest.raises(KafkaError) as caught:
        list(iter_records(batch))
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_every_truncated_record_is_refused() -> None:
    content = bytes(GOOD[1:])
    for size in range(len(content)):
        with pytest.raises(KafkaError):
            list(iter_records(one_record(content[:size])))


def test_a_bomb_in_a_batch_is_refused() -> None:
    bomb = sealed(compress(Compression.ZSTD, bytes(64 << 20)), count=1, codec=Compression.ZSTD)
    assert len(bomb) < 10_000
    with pytest.raises(KafkaError) as caught:
        iter_records(bomb, max_decompressed_bytes=1 << 20)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


BATCH = bytes(build_batch(RECORDS))


def patched(at: int, layout: str, value: int) -> bytes:
    batch = bytearray(BATCH)
    struct.pack_into(layout, batch, at, value)
    return bytes(batch)


LYING_HEADERS = [
    pytest.param(b"", id="nothing"),
    pytest.param(BATCH[: BATCH_OVERHEAD - 1], id="60 bytes"),
    pytest.param(patched(16, ">b", 1), id="magic 1"),
    pytest.param(patched(16, ">b", -1), id="magic -1"),
    pytest.param(patched(8, ">i", 48), id="length below a header's"),
    pytest.param(patched(8, ">i", -1), id="negative length"),
]


@pytest.mark.parametrize("buffer", LYING_HEADERS)
def test_headers_that_lie(buffer: bytes) -> None:
    with pytest.raises(KafkaError) as caught:
        read_batch_header(buffer)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("length", [len(BATCH) - 11, 0x7FFFFFFF])
def test_a_length_beyond_the_buffer(length: int) -> None:
    batch = bytearray(patched(8, ">i", length))
    assert not check_crc(batch, 0, read_batch_header(batch))
    for use in (
        lambda: list(iter_batches(batch)),
        lambda: list(iter_records(batch)),
        lambda: assign_offsets(batch, 0, 0),
    ):
        with pytest.raises(KafkaError) as caught:
            use()
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert list(iter_batches(batch, partial_ok=True)) == []


def test_a_fetch_answer_may_end_in_part_of_a_batch() -> None:
    for size in range(len(BATCH)):
        found = list(iter_batches(BATCH + BATCH[:size], partial_ok=True))
        assert [position for position, _ in found] == [0]


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_codecs_that_do_not_exist(codec: int) -> None:
    header = read_batch_header(patched(21, ">h", codec))
    with pytest.raises(KafkaError) as caught:
        _ = header.codec
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_every_flipped_bit_behind_the_crc_is_seen() -> None:
    for position in range(17, len(BATCH)):
        damaged = bytearray(BATCH)
        damaged[position] ^= 0x10
        assert not check_crc(damaged, 0, read_batch_header(damaged))


# -- properties -----------------------------------------------------------------------------------

maybe_bytes = st.none() | st.binary(max_size=40)
record_tuples = st.tuples(
    st.integers(-1, 1 << 50),
    maybe_bytes,
    maybe_bytes,
    st.lists(st.tuples(st.binary(max_size=10), maybe_bytes), max_size=3),
)


@given(
    st.lists(record_tuples, min_size=1, max_size=20),
    st.sampled_from(list(Compression)),
    st.integers(0, 1 << 60),
)
def test_decoding_what_was_built(
    records: list[tuple[int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]],
    codec: Compression,
    base_offset: int,
) -> None:
    batch = build_batch(records, base_offset=base_offset, compression=codec)
    assert check_crc(batch, 0, read_batch_header(batch))
    decoded = list(iter_records(memoryview(batch)))
    assert [(r.timestamp, r.key, r.value, r.headers) for r in decoded] == records
    assert [r.offset for r in decoded] == [base_offset + i for i in range(len(records))]


@given(st.binary(max_size=120), st.integers(-2, 10))
def test_any_body_gives_records_or_a_kafka_error(body: bytes, count: int) -> None:
    try:
        list(iter_records(sealed(body, count=count)))
    except KafkaError as error:
        assert error.code is ErrorCode.INVALID_RECORD


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_varlongs(value: int) -> None:
    data = varint(value)
    assert read_varlong(data, 0) == (value, len(data))
    if -(1 << 31) <= value < 1 << 31:
        assert read_varint(data, 0) == (value, len(data))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (0x7FFFFFFF, "feffffff0f"),
        (-0x80000000, "ffffffff0f"),
    ],
)
def test_varint_bytes(value: int, encoded: str) -> None:
    assert varint(value).hex() == encoded
    assert read_varint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)
