"""Records of a log and the ends of their transactions."""

from __future__ import annotations

import pytest

from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.errors import KafkaError
from kbroker.testing.history.stored import Fate, stored_records
from tests.testing.history.histories import PartitionWriter


def fates(log: PartitionWriter, high_watermark: int | None = None) -> list[tuple[int, bytes, Fate]]:
    end = log.next_offset if high_watermark is None else high_watermark
    return [
        (record.offset, record.value, record.fate)
        for record in stored_records(bytes(log.data), end)
    ]


def test_markers_end_what_is_before_them() -> None:
    log = PartitionWriter()
    log.append(b"plain")
    log.append(b"one", is_transactional=True)
    log.end_transaction(commit=True)
    log.append(b"two", is_transactional=True)
    log.append(b"between")
    log.append(b"three", is_transactional=True)
    log.end_transaction(commit=False)
    log.append(b"four", is_transactional=True)
    assert fates(log) == [
        (0, b"plain", Fate.COMMITTED),
        (1, b"one", Fate.COMMITTED),
        (3, b"two", Fate.ABORTED),
        (4, b"between", Fate.COMMITTED),
        (5, b"three", Fate.ABORTED),
        (7, b"four", Fate.OPEN),
    ]


def test_only_what_is_below_the_high_watermark_counts() -> None:
    log = PartitionWriter()
    log.append(b"one", is_transactional=True)
    log.append(b"two")
    log.end_transaction(commit=True)
    assert fates(log, 2) == [(0, b"one", Fate.OPEN), (1, b"two", Fate.COMMITTED)]


def test_batches_of_several_records_and_a_torn_one_at_the_end() -> None:
    rows = [(0, None, b"a", ()), (0, None, b"b", ())]
    whole = bytes(build_batch(rows, compression=Compression.GZIP))
    torn = bytes(build_batch(rows, base_offset=2))[:-3]
    assert [record.value for record in stored_records(whole + torn, 4)] == [b"a", b"b"]


def test_damage_raises() -> None:
    log = PartitionWriter()
    log.append(b"one")
    log.data[16] ^= 0xFF
    with pytest.raises(KafkaError):
        stored_records(bytes(log.data), 1)
