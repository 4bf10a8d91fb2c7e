"""Message sets to batches and back, held against the log files of Apache Kafka."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from collections.abc import Callable
from random import Random

import pytest

from kbroker.protocol.batches.any_magic import (
    iter_any_batches,
    iter_any_records,
)
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import read_batch_header
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.control_records import build_end_transaction_marker
from kbroker.protocol.batches.record_conversion import (
    down_convert,
    to_record_batch,
    write_message_set,
)
from kbroker.protocol.batches.records import Record, iter_records
from kbroker.protocol.errors import ErrorCode, KafkaError
from tests.protocol.message_sets import (
    BASE_MS,
    OLD_CODECS,
    all_records,
    expected_records,
    message_set,
    wrapper,
)


@pytest.mark.parametrize("name", ["v0-none", "v0-lz4", "v1-none", "v1-lz4"])
def test_what_is_written_are_kafkas_bytes(kafka_logs: dict[str, bytes], name: str) -> None:
    """gzip and snappy differ in what the compressor chooses, nothing else."""
    data, out = kafka_logs[name], bytearray()
    for position, header in iter_any_batches(data):
        records = iter_any_records(data[position : position + header.size_bytes], header)
        append_time = header.is_log_append_time
        write_message_set(
            out, records, magic=header.magic, codec=header.codec, log_append_time=append_time
        )
    assert bytes(out) == data


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_set_becomes_one_batch_in_the_same_codec(magic: int, codec: Compression) -> None:
    batch = to_record_batch(message_set(7, magic, codec, first=40), max_message_bytes=10_000)
    header = read_batch_header(batch)
    assert (header.size_bytes, header.record_count, header.codec) == (len(batch), 7, codec)
    assert header.max_timestamp == (BASE_MS + 6 if magic else -1)
    assert [(r.offset, r.key, r.value) for r in iter_records(batch)] == [
        (i, b"k%d" % i, b"v%d" % i) for i in range(7)
    ]


def test_wrong_offsets_inside_a_wrapper_do_not_matter_on_the_way_in() -> None:
    """Some clients of the 0.10 era left every relative offset at 0."""
    inner = b"".join(bytes(message_set(1, 1)) for _ in range(3))
    batch = to_record_batch(wrapper(inner), max_message_bytes=10_000)
    assert [record.offset for record in iter_records(batch)] == [0, 1, 2]


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_down_conversion(magic: int, codec: Compression) -> None:
    batch = build_batch(
        [(BASE_MS + i, b"k%d" % i, None, [(b"h", b"x")]) for i in range(5)],
        base_offset=20,
        compression=codec,
    )
    converted = all_records(down_convert(batch, magic=magic, first_offset=22))
    first = 22 if codec is Compression.NONE else 20  # a compressed batch stays whole
    assert [record.offset for record in converted] == list(range(first, 25))
    assert [record.timestamp for record in converted] == [
        BASE_MS + offset - 20 if magic else -1 for offset in range(first, 25)
    ]
    assert converted[-1] == Record(24, BASE_MS + 4 if magic else -1, b"k4", None)


def test_down_conversion_keeps_the_timestamp_type() -> None:
    records = [(BASE_MS, b"k", b"v", ())] * 2
    for codec in (Compression.NONE, Compression.LZ4):
        batch = build_batch(records, compression=codec, log_append_time_ms=BASE_MS + 77)
        (header, *_) = [header for _, header in iter_any_batches(down_convert(batch, magic=1))]
        assert header.is_log_append_time
        assert header.max_timestamp == BASE_MS + 77


def test_down_conversion_from_magic_1_to_0(kafka_logs: dict[str, bytes]) -> None:
    for codec in ("none", "gzip", "snappy", "lz4"):
        data = kafka_logs[f"v1-{codec}"]
        converted = all_records(down_convert(data, magic=0))
        assert [record.value for record in converted] == [r.value for r in expected_records(1)]
        assert down_convert(data, magic=1) == data


def test_control_records_are_left_out_and_transactions_are_plain() -> None:
    data = build_batch(
        [(BASE_MS, b"k", b"v", ())],
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    marker = build_end_transaction_marker(
        commit=True,
        producer_id=1,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=0,
        base_offset=1,
    )
    assert len(all_records(down_convert(data + marker, magic=1))) == 1
    assert down_convert(marker, magic=1) == b""


def test_zstd_ends_a_down_conversion_and_alone_it_is_refused() -> None:
    plain = build_batch([(BASE_MS, b"k", b"v", ())])
    zstd = build_batch([(BASE_MS, b"k", b"v", ())], base_offset=1, compression=Compression.ZSTD)
    assert len(all_records(down_convert(plain + zstd + plain, magic=1))) == 1
    with pytest.raises(KafkaError) as caught:
        down_convert(zstd + plain, magic=1)
    assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def with_flag(data: bytearray, attributes: int) -> bytes:
    data[17] = attributes
    struct.pack_into(">I", data, 12, zlib.crc32(data[16:]))
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(b"", ErrorCode.INVALID_RECORD, id="nothing"),
        pytest.param(bytes(25), ErrorCode.CORRUPT_MESSAGE, id="too short"),
        pytest.param(bytes(message_set(1, 1))[:-1], ErrorCode.CORRUPT_MESSAGE, id="cut"),
        pytest.param(
            bytes(message_set(1, 1)[:-1]) + b"x", ErrorCode.CORRUPT_MESSAGE, id="wrong crc"
        ),
        pytest.param(
            with_flag(message_set(1, 1), 8), ErrorCode.INVALID_TIMESTAMP, id="log append time"
        ),
        pytest.param(with_flag(message_set(1, 1), 4), ErrorCode.CORRUPT_MESSAGE, id="zstd"),
        pytest.param(with_flag(message_set(1, 1), 7), ErrorCode.CORRUPT_MESSAGE, id="no codec"),
        pytest.param(wrapper(b""), ErrorCode.INVALID_RECORD, id="empty wrapper"),
        pytest.param(wrapper(b"x" * 40), ErrorCode.CORRUPT_MESSAGE, id="no set inside"),
        pytest.param(
            wrapper(bytes(message_set(2, 1))[:-1]), ErrorCode.CORRUPT_MESSAGE, id="inner cut"
        ),
        pytest.param(
            wrapper(bytes(message_set(1, 1))[:-1] + b"x"), ErrorCode.CORRUPT_MESSAGE, id="inner crc"
        ),
        pytest.param(wrapper(bytes(message_set(2, 0))), ErrorCode.INVALID_RECORD, id="inner magic"),
        pytest.param(
            wrapper(wrapper(bytes(message_set(2, 1)))), ErrorCode.INVALID_RECORD, id="nested"
        ),
        pytest.param(
            wrapper(bytes(message_set(1, 1))) * 2, ErrorCode.INVALID_RECORD, id="two wrappers"
        ),
        pytest.param(
            bytes(message_set(1, 1)) + wrapper(bytes(message_set(1, 1))),
            ErrorCode.INVALID_RECORD,
            id="plain and wrapper",
        ),
        pytest.param(
            bytes(message_set(1, 1)) + bytes(build_batch([(0, b"", b"", ())])),
            ErrorCode.CORRUPT_MESSAGE,
            id="a batch behind a message",
        ),
        pytest.param(
            wrapper(bytes(message_set(1, 1)) + bytes(33 << 20)),
            ErrorCode.MESSAGE_TOO_LARGE,
            id="a bomb",
        ),
        pytest.param(
            wrapper(Random(1).randbytes(50_001)),
            ErrorCode.MESSAGE_TOO_LARGE,
            id="above max.message.bytes",
        ),
    ],
)
def test_what_is_refused_on_the_way_in(data: bytes, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as caught:
        to_record_batch(data, max_message_bytes=50_000)
    assert caught.value.code is code


def peak_bytes(work: Callable[[], object]) -> int:
    """Of the memory that work has at a time."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_records_of_a_set_are_converted_one_by_one() -> None:
    """As objects all of them would be ten times their size and more."""
    sent = bytearray()
    records = [Record(number, 1, None, None) for number in range(20_000)]
    write_message_set(sent, records, magic=1, codec=Compression.GZIP)
    unpacked_bytes = 20_000 * 34
    batch = bytearray()

    def convert() -> None:
        batch[:] = to_record_batch(sent, max_message_bytes=1 << 20)

    assert peak_bytes(convert) < 3 * unpacked_bytes
    assert read_batch_header(batch).record_count == 20_000


def test_a_set_that_is_too_large_for_a_batch_is_not_converted_to_its_end() -> None:
    sent = bytearray()
    write_message_set(sent, [Record(n, 1, None, bytes(100)) for n in range(10_000)], magic=1)
    with pytest.raises(KafkaError) as caught:
        to_record_batch(sent, max_message_bytes=5_000)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert peak_bytes(lambda: refused(sent)) < 100_000


def refused(sent: bytearray) -> None:
    with pytest.raises(KafkaError):
        to_record_batch(sent, max_message_bytes=5_000)
