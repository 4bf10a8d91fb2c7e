"""Reading batches and message sets through the same functions."""

from __future__ import annotations

from random import Random

import pytest

from kbroker.protocol.batches.any_magic import (
    check_any_crc,
    iter_any_batches,
    read_any_header,
)
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.record_conversion import to_record_batch
from kbroker.protocol.errors import ErrorCode, KafkaError
from tests.protocol.message_sets import (
    OLD_CODECS,
    all_records,
    expected_records,
    message_set,
)


def test_kafkas_files_of_every_magic_and_codec(kafka_logs: dict[str, bytes]) -> None:
    assert len(kafka_logs) == 13
    for name, data in kafka_logs.items():
        magic = int(name[1])
        assert all_records(data) == list(expected_records(magic)), name
        for position, header in iter_any_batches(data):
            assert header.magic == magic
            assert header.codec.name.lower() == name[3:]
            assert check_any_crc(data, position, header)
            assert not check_any_crc(data[:-1] + bytes((data[-1] ^ 1,)), position, header) or (
                position + header.size_bytes < len(data)
            )


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_every_prefix_and_many_changed_bytes_raise_nothing_unmeant(
    magic: int, codec: Compression
) -> None:
    data = bytes(message_set(6, magic, codec))
    for end in range(len(data)):
        list(iter_any_batches(data[:end], partial_ok=True))
        with pytest.raises(KafkaError):
            to_record_batch(data[:end], max_message_bytes=10_000)
            raise KafkaError(ErrorCode.NONE, "a prefix of whole messages")
    source = Random(magic * 10 + codec)
    for _ in range(300):
        changed = bytearray(data)
        for _ in range(source.randint(1, 4)):
            changed[source.randrange(len(changed))] = source.choice((0, 1, 0x7F, 0x80, 0xFF))
        try:
            all_records(changed)
            to_record_batch(changed, max_message_bytes=10_000)
        except KafkaError:
            continue


def test_a_header_that_lies_is_refused_even_where_a_cut_end_is_allowed() -> None:
    with pytest.raises(KafkaError):
        list(iter_any_batches(bytes(61), partial_ok=True))
    with pytest.raises(KafkaError):
        read_any_header(bytes(16) + b"\x01" + bytes(9))
    batch = bytes(build_batch([(0, b"k", b"v", ())]))
    assert [h.magic for _, h in iter_any_batches(batch + batch[:40], partial_ok=True)] == [2]
    with pytest.raises(KafkaError):
        list(iter_any_batches(batch + batch[:40]))
