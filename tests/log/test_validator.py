"""What a produced batch must be, one row per way to be wrong, and what the broker changes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.log.validator import (
    MAX_RECORD_ERRORS,
    AppendOrigin,
    InvalidRecords,
    ValidatedBatches,
    validate_batches,
    validate_replicated,
)
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import check_crc, iter_batches, read_batch_header
from kbroker.protocol.batches.checksum import crc32c
from kbroker.protocol.batches.compression import LARGEST_RATIO, Compression
from kbroker.protocol.batches.control_records import build_end_transaction_marker
from kbroker.protocol.batches.records import Header, iter_records
from kbroker.protocol.errors import ErrorCode, KafkaError

GOLDEN = Path(__file__).parents[1] / "data" / "kafka-4.3.1" / "data"
NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Config:
    segment_bytes: int = 1 << 30
    max_message_bytes: int = 1 << 20
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = 2**63 - 1
    message_timestamp_after_max_ms: int = HOUR_MS
    max_unpacked_bytes: int = 1 << 20


RecordTuple = tuple[int | None, bytes | None, bytes | None, list[Header]]
RECORDS: list[RecordTuple] = [
    (NOW_MS, b"k0", b"v0", []),
    (NOW_MS - 5, None, b"v1", [(b"h", None)]),
    (NOW_MS + 5, b"k2", None, []),
]


def validate(
    batches: bytes | bytearray | memoryview,
    config: Config | None = None,
    *,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    compacted: bool = False,
    produce_version: int | None = None,
    validate_records: bool = False,
) -> ValidatedBatches:
    return validate_batches(
        batches,
        next_offset=100,
        leader_epoch=7,
        now_ms=NOW_MS,
        config=config or Config(),
        origin=origin,
        compacted=compacted,
        produce_version=produce_version,
        validate_records=validate_records,
    )


def patched(*patches: tuple[int, str, int], seal: bool = True) -> bytearray:
    """A good batch with header fields replaced; with its CRC mended or not."""
    batch = build_batch(RECORDS)
    for at, layout, value in patches:
        struct.pack_into(layout, batch, at, value)
    if seal:
        struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


GOOD = bytes(build_batch(RECORDS))
PRODUCER = (43, ">q", 5)

REFUSED = [
    pytest.param(b"", ErrorCode.INVALID_RECORD, id="no batch"),
    pytest.param(GOOD[:10], ErrorCode.INVALID_RECORD, id="ten bytes"),
    pytest.param(GOOD[:60], ErrorCode.INVALID_RECORD, id="half a header"),
    pytest.param(GOOD[:-1], ErrorCode.INVALID_RECORD, id="cut short"),
    pytest.param(GOOD + b"\0", ErrorCode.INVALID_RECORD, id="a byte more"),
    pytest.param(GOOD + GOOD, ErrorCode.INVALID_RECORD, id="two batches"),
    pytest.param(patched((16, ">b", 1)), ErrorCode.INVALID_RECORD, id="magic 1"),
    pytest.param(patched((16, ">b", 0)), ErrorCode.INVALID_RECORD, id="magic 0"),
    pytest.param(patched((16, ">b", 3)), ErrorCode.CORRUPT_MESSAGE, id="magic 3"),
    pytest.param(patched((16, ">b", -1)), ErrorCode.CORRUPT_MESSAGE, id="magic -1"),
    pytest.param(patched((8, ">i", -1)), ErrorCode.CORRUPT_MESSAGE, id="negative length"),
    pytest.param(patched((8, ">i", 48)), ErrorCode.CORRUPT_MESSAGE, id="length of no header"),
    pytest.param(patched((8, ">i", 2**31 - 1)), ErrorCode.INVALID_RECORD, id="length of 2 GB"),
    pytest.param(patched((17, ">I", 1), seal=False), ErrorCode.CORRUPT_MESSAGE, id="wrong CRC"),
    pytest.param(patched((0, ">q", 5)), ErrorCode.INVALID_RECORD, id="base offset 5"),
    pytest.param(patched((0, ">q", -1)), ErrorCode.INVALID_RECORD, id="base offset -1"),
    pytest.param(patched((23, ">i", -1)), ErrorCode.INVALID_RECORD, id="last offset delta -1"),
    pytest.param(patched((23, ">i", 2**31 - 1)), ErrorCode.INVALID_RECORD, id="huge delta"),
    pytest.param(patched((57, ">i", 0)), ErrorCode.INVALID_RECORD, id="no records"),
    pytest.param(patched((57, ">i", -1)), ErrorCode.INVALID_RECORD, id="-1 records"),
    pytest.param(patched((57, ">i", 4)), ErrorCode.INVALID_RECORD, id="count and delta differ"),
    pytest.param(patched((21, ">h", 0x20)), ErrorCode.INVALID_RECORD, id="control batch"),
    pytest.param(patched((21, ">h", 0x30)), ErrorCode.INVALID_RECORD, id="forged marker"),
    pytest.param(patched((21, ">h", 0x08)), ErrorCode.INVALID_TIMESTAMP, id="LogAppendTime set"),
    pytest.param(patched(PRODUCER, (51, ">h", 0)), ErrorCode.INVALID_RECORD, id="no sequence"),
    pytest.param(patched(PRODUCER, (53, ">i", 0)), ErrorCode.INVALID_RECORD, id="no epoch"),
    pytest.param(
        patched((21, ">h", 5)), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, id="unknown codec"
    ),
]


@pytest.mark.parametrize(("batches", "expected"), REFUSED)
def test_refused_from_a_client(batches: bytes, expected: ErrorCode) -> None:
    with pytest.raises(KafkaError) as caught:
        validate(batches)
    assert caught.value.code is expected
    assert caught.value.message


def test_a_good_batch_gets_offsets_and_epoch_in_place() -> None:
    frame = bytearray(b"header" + GOOD + b"next")
    view = memoryview(frame)[6:-4]
    valid = validate(view)
    assert valid.batches.obj is frame
    (header,) = valid.headers
    assert (header.base_offset, header.last_offset) == (100, 102)
    assert (valid.base_offset, valid.last_offset) == (100, 102)
    assert valid.max_timestamp == NOW_MS + 5
    assert valid.log_append_time_ms == -1
    assert read_batch_header(frame, 6) == header
    assert header.partition_leader_epoch == 7
    assert check_crc(view, 0, header)
    assert (frame[:6], frame[-4:]) == (b"header", b"next")


def test_bytes_that_cannot_be_written_are_copied() -> None:
    batch = GOOD
    assert validate(batch).batches == validate(bytearray(batch)).batches
    assert batch == bytes(build_batch(RECORDS))


def test_sizes() -> None:
    assert validate(GOOD, Config(max_message_bytes=len(GOOD)))
    with pytest.raises(KafkaError) as caught:
        validate(GOOD, Config(max_message_bytes=len(GOOD) - 1))
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(KafkaError) as caught:
        validate(GOOD, Config(segment_bytes=len(GOOD) - 1))
    assert caught.value.code is ErrorCode.RECORD_LIST_TOO_LARGE


@pytest.mark.parametrize("version", [3, 6, 7, 13, None])
def test_zstd_came_with_version_7(version: int | None) -> None:
    batch = build_batch(RECORDS, compression=Compression.ZSTD)
    if version is not None and version < 7:
        with pytest.raises(KafkaError) as caught:
            validate(batch, produce_version=version)
        assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    else:
        assert validate(batch, produce_version=version)


# -- timestamps -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timestamp", "before_ms", "accepted"),
    [
        pytest.param(NOW_MS + HOUR_MS, 2**63 - 1, True, id="an hour ahead"),
        pytest.param(NOW_MS + HOUR_MS + 1, 2**63 - 1, False, id="too far ahead"),
        pytest.param(0, 2**63 - 1, True, id="1970"),
        pytest.param(-1, 2**63 - 1, True, id="none"),
        pytest.param(-1, 1000, True, id="none, with a lower bound"),
        pytest.param(NOW_MS - 1000, 1000, True, id="a second ago"),
        pytest.param(NOW_MS - 1001, 1000, False, id="too old"),
    ],
)
def test_bounds_of_timestamps(timestamp: int, before_ms: int, accepted: bool) -> None:
    records: list[RecordTuple] = [(NOW_MS, b"k", b"v", []), (timestamp, b"k", b"v", [])]
    config = Config(message_timestamp_before_max_ms=before_ms)
    if accepted:
        validate(build_batch(records), config)
        return
    with pytest.raises(InvalidRecords) as caught:
        validate(build_batch(records), config)
    assert caught.value.code is ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in caught.value.record_errors] == [1]


@pytest.mark.parametrize("codec", list(Compression))
def test_log_append_time(codec: Compression) -> None:
    config = Config(message_timestamp_type="LogAppendTime")
    records: list[RecordTuple] = [(5, b"k", b"v", []), (NOW_MS * 2, b"k", b"v", [])]
    valid = validate(build_batch(records, compression=codec), config)
    assert valid.log_append_time_ms == valid.max_timestamp == NOW_MS
    (header,) = valid.headers
    assert header.is_log_append_time and check_crc(valid.batches, 0, header)
    assert read_batch_header(valid.batches) == header
    assert {record.timestamp for record in iter_records(valid.batches)} == {NOW_MS}


@pytest.mark.parametrize("name", ["log-append-time-0", "log-append-time-1"])
def test_log_append_time_is_written_as_kafka_writes_it(name: str) -> None:
    data = (GOLDEN / name / "00000000000000000000.log").read_bytes()
    for position, stored in iter_batches(data):
        batch = bytearray(data[position : position + stored.size_bytes])
        struct.pack_into(">qii", batch, 0, 0, stored.batch_length, -1)  # as the client sent it
        struct.pack_into(">hi", batch, 21, stored.attributes & ~0x08, stored.last_offset_delta)
        struct.pack_into(">q", batch, 35, stored.base_timestamp)
        struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
        valid = validate_batches(
            batch,
            next_offset=stored.base_offset,
            leader_epoch=stored.partition_leader_epoch,
            now_ms=stored.max_timestamp,
            config=Config(message_timestamp_type="LogAppendTime"),
            origin=AppendOrigin.CLIENT,
            compacted=False,
        )
        assert valid.batches == data[position : position + stored.size_bytes]


# -- codecs of the topic --------------------------------------------------------------------------

TARGETS = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


@pytest.mark.parametrize("stamp", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("source", list(Compression))
@pytest.mark.parametrize("name", TARGETS)
def test_recompressed_into_the_topics_codec(name: str, source: Compression, stamp: str) -> None:
    config = Config(compression_type=name, message_timestamp_type=stamp)
    batch = build_batch(RECORDS * 30, compression=source, producer_id=4, producer_epoch=1,
                        base_sequence=9)  # fmt: skip
    valid = validate(bytearray(batch), config)
    (header,) = valid.headers
    assert header.codec is TARGETS[name]
    assert check_crc(valid.batches, 0, header) and read_batch_header(valid.batches) == header
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 1, 9)
    records = list(iter_records(valid.batches))
    sent = list(iter_records(batch))
    assert [(r.key, r.value, r.headers) for r in records] == [
        (r.key, r.value, r.headers) for r in sent
    ]
    assert [record.offset for record in records] == list(range(100, 190))


def test_recompressed_as_kafka_does() -> None:
    data = (GOLDEN / "recompress-0" / "00000000000000000000.log").read_bytes()
    (stored,) = (header for _, header in iter_batches(data))
    records = [(r.timestamp, r.key, r.value, r.headers) for r in iter_records(data)]
    sent = build_batch(
        records,
        producer_id=stored.producer_id,
        producer_epoch=stored.producer_epoch,
        base_sequence=stored.base_sequence,
    )
    (header,) = validate(sent, Config(compression_type="zstd")).headers
    for name in ("attributes", "last_offset_delta", "base_timestamp", "max_timestamp"):
        assert getattr(header, name) == getattr(stored, name)


def test_corrupt_streams_are_found_when_they_must_be_opened() -> None:
    batch = bytearray(build_batch(RECORDS, compression=Compression.GZIP))
    batch[-5] ^= 0xFF
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    assert validate(bytearray(batch))  # ADR 2: behind the CRC it is the producer's own
    for config, compacted, full in (
        (Config(compression_type="lz4"), False, False),
        (Config(), True, False),
        (Config(), False, True),
    ):
        with pytest.raises(KafkaError) as caught:
            validate(bytearray(batch), config, compacted=compacted, validate_records=full)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_a_batch_that_grows_beyond_the_limit() -> None:
    batch = build_batch([(0, b"k", bytes(5000), [])], compression=Compression.GZIP)
    with pytest.raises(KafkaError) as caught:
        validate(batch, Config(compression_type="uncompressed", max_message_bytes=1000))
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


# -- records --------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Compression))
def test_a_compacted_topic_takes_no_record_without_a_key(codec: Compression) -> None:
    with pytest.raises(InvalidRecords) as caught:
        validate(build_batch(RECORDS, compression=codec), compacted=True)
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in caught.value.record_errors] == [1]
    assert validate(build_batch(RECORDS[:1], compression=codec), compacted=True)


def test_only_the_first_errors_are_told() -> None:
    keyless: list[RecordTuple] = [(0, None, b"v", [])] * 5
    with pytest.raises(InvalidRecords) as caught:
        validate(build_batch(keyless), compacted=True)
    assert len(caught.value.record_errors) == 5
    assert "and 2 more" in caught.value.message


def test_validate_records_looks_behind_the_header() -> None:
    batch = build_batch(RECORDS)
    batch[-1] = 0x7E  # a header count of 63
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    assert validate(bytearray(batch))
    with pytest.raises(KafkaError) as caught:
        validate(bytearray(batch), validate_records=True)
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_validate_records_wants_offsets_from_0_in_steps_of_1() -> None:
    batch = build_batch(RECORDS)
    at = bytes(batch).index(b"\x04\x04k2")  # offset delta 2, key length 2
    batch[at] = 0x02
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    with pytest.raises(InvalidRecords) as caught:
        validate(batch, validate_records=True)
    assert [error.batch_index for error in caught.value.record_errors] == [2]


def test_validate_records_mends_a_max_timestamp_that_is_wrong() -> None:
    batch = patched((35, ">q", 17))
    valid = validate(batch, validate_records=True)
    assert valid.max_timestamp == read_batch_header(valid.batches).max_timestamp == NOW_MS + 5
    assert check_crc(valid.batches, 0, valid.headers[0])


# -- who else appends -----------------------------------------------------------------------------


def test_the_broker_itself_may_append_control_batches_and_several() -> None:
    batches = build_batch(RECORDS) + build_end_transaction_marker(
        commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW_MS
    )
    valid = validate(batches, origin=AppendOrigin.COORDINATOR, compacted=True)
    assert [header.base_offset for header in valid.headers] == [100, 103]
    assert valid.last_offset == 103


def test_several_batches_recompressed_stay_in_order() -> None:
    marker = build_end_transaction_marker(
        commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1
    )
    sent = marker + build_batch(RECORDS) + marker
    valid = validate(sent, Config(compression_type="gzip"), origin=AppendOrigin.COORDINATOR)
    stored = [header for _, header in iter_batches(valid.batches)]
    assert stored == valid.headers
    assert [header.codec.name for header in stored] == ["NONE", "GZIP", "NONE"]
    assert [header.base_offset for header in stored] == [100, 101, 104]


def test_replicated_batches_keep_their_offsets() -> None:
    first = build_batch(RECORDS, base_offset=50, partition_leader_epoch=2)
    second = build_batch(RECORDS, base_offset=60, partition_leader_epoch=3)
    both = bytes(first + second)
    valid = validate_replicated(both, next_offset=50)
    assert (valid.base_offset, valid.last_offset) == (50, 62)
    assert valid.batches == both


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(lambda both: b"", ErrorCode.CORRUPT_MESSAGE, id="nothing"),
        pytest.param(lambda both: both[:-1], ErrorCode.INVALID_RECORD, id="cut short"),
        pytest.param(lambda both: both[:-1] + b"\x55", ErrorCode.CORRUPT_MESSAGE, id="wrong CRC"),
        pytest.param(lambda both: both + both, ErrorCode.OFFSET_OUT_OF_RANGE, id="backwards"),
    ],
)
def test_replicated_batches_that_are_refused(
    change: Callable[[bytes], bytes], expected: ErrorCode
) -> None:
    both = bytes(build_batch(RECORDS, base_offset=50))
    with pytest.raises(KafkaError) as caught:
        validate_replicated(change(both), next_offset=50)
    assert caught.value.code is expected


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_any_changed_byte_is_refused_or_harmless(position: int, value: int) -> None:
    """Only the leader epoch, which the broker writes itself, may be anything."""
    batch = bytearray(GOOD)
    batch[position] = value
    if bytes(batch) == GOOD or 12 <= position < 16:
        assert validate(batch).base_offset == 100
    else:
        with pytest.raises(KafkaError):
            validate(batch)


@pytest.mark.parametrize("options", [{"compacted": True}, {"validate_records": True}])
def test_what_is_looked_at_may_unpack_to_so_much(
    options: dict[str, bool],
) -> None:
    records: list[RecordTuple] = [(NOW_MS, b"key", bytes(10_000), [])]
    config = Config(max_unpacked_bytes=9_000)
    packed = build_batch(records, compression=Compression.ZSTD)
    with pytest.raises(KafkaError) as raised:
        validate(packed, config, **options)
    assert raised.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert validate(packed, config).headers, "nobody looks at them"
    assert validate(build_batch(records), config, **options).headers, "nothing is unpacked"


@pytest.mark.parametrize(("codec", "limit"), [("gzip", 9_000), ("uncompressed", 1 << 20)])
def test_what_is_packed_anew_may_unpack_to_so_much(codec: str, limit: int) -> None:
    """Without a codec the batch may be no larger than any other: nothing beyond is unpacked."""
    packed = build_batch([(NOW_MS, b"key", bytes(10_000), [])], compression=Compression.ZSTD)
    config = Config(compression_type=codec, max_message_bytes=8_000, max_unpacked_bytes=limit)
    with pytest.raises(KafkaError, match="unpacks to more than") as raised:
        validate(packed, config)
    assert raised.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_of_refused_records_so_many_are_named() -> None:
    keyless: list[RecordTuple] = [(NOW_MS, None, b"", [])] * (MAX_RECORD_ERRORS + 10)
    with pytest.raises(InvalidRecords) as raised:
        validate(build_batch(keyless), compacted=True)
    assert len(raised.value.record_errors) == MAX_RECORD_ERRORS


def claiming(batch: bytearray, count: int) -> bytearray:
    """The batch with another record count and the last offset delta that goes with it."""
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


SMALLEST: RecordTuple = (NOW_MS, None, None, [])
"""A record of seven bytes, the fewest there can be."""


@pytest.mark.parametrize("codec", list(Compression))
def test_bytes_bound_the_offsets_that_a_batch_takes(codec: Compression) -> None:
    """A record takes at least seven bytes, and no codec unpacks to more than its largest ratio."""
    batch = build_batch([SMALLEST] * 50, compression=codec)
    for count in (2**31 - 1, (len(batch) - 61) * LARGEST_RATIO[codec] // 7 + 1):
        with pytest.raises(KafkaError, match=f"{count} records in") as caught:
            validate(claiming(batch, count))
        assert caught.value.code is ErrorCode.INVALID_RECORD
    assert validate(build_batch([SMALLEST] * 50, compression=codec)).last_offset == 149


@pytest.mark.parametrize("size", [61, 62, 67])
def test_a_batch_without_room_for_a_record_is_refused(size: int) -> None:
    batch = patched((8, ">i", size - 12), (23, ">i", 0), (57, ">i", 1), seal=False)[:size]
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    with pytest.raises(KafkaError, match="1 records in") as caught:
        validate(batch)
    assert caught.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec])
@pytest.mark.parametrize("count", [1, 10_000])
def test_what_compresses_best_is_no_lie(codec: Compression, count: int) -> None:
    records: list[RecordTuple] = [SMALLEST] * count
    assert validate(build_batch(records, compression=codec)).last_offset == 99 + count


@pytest.mark.parametrize("target", ["uncompressed", "lz4"])
def test_a_batch_that_is_packed_anew_holds_as_many_records_as_it_says(target: str) -> None:
    """Its unpacked size is known then."""
    batch = claiming(build_batch([SMALLEST] * 50, compression=Compression.ZSTD), 51)
    with pytest.raises(KafkaError, match="51 records in 350 bytes") as caught:
        validate(batch, Config(compression_type=target))
    assert caught.value.code is ErrorCode.INVALID_RECORD
