"""Headers of batches that Apache Kafka 4.3.1 wrote, and headers with invalid fields."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import (
    BATCH_OVERHEAD,
    check_crc,
    iter_batches,
    read_batch_header,
    set_max_timestamp,
)
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.errors import ErrorCode, KafkaError
from tests.batch_offsets import assign_offsets
from tests.protocol.stored_batches import LOGS, RECORDS, dumped, stored


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
