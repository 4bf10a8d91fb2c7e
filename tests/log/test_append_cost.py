"""How much work a produced batch is, found without doing it."""

from __future__ import annotations

import pytest

from kbroker.log.append_cost import (
    A_WORKERS,
    CONVERSION_COST,
    LOOP_BYTES,
    LOOP_PACKED_BYTES,
    MESSAGE_SET_BYTES,
    RECORD_COST_BYTES,
    loop_cost,
)
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.record_conversion import write_message_set
from kbroker.protocol.batches.records import Record
from kbroker.settings.views.log_config import LogConfig

NOW_MS = 1_700_000_000_000
PLAIN = LogConfig()
COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}))


def batch(
    count: int = 1,
    size: int = 10,
    compression: Compression = Compression.NONE,
    timestamp: int = NOW_MS,
) -> bytearray:
    return build_batch([(timestamp, b"key", bytes(size), [])] * count, compression=compression)


def cost(batches: bytearray, config: LogConfig = PLAIN, **options: int) -> int:
    return loop_cost(batches, config, 12, NOW_MS, **options)


@pytest.mark.parametrize("compression", list(Compression))
def test_a_batch_whose_records_are_not_looked_at_costs_nothing(compression: Compression) -> None:
    assert cost(batch(1000, 1000, compression)) == 0
    config = LogConfig(compression_type=compression.name.lower().replace("none", "uncompressed"))
    assert cost(batch(1000, 1000, compression), config) == 0


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(COMPACTED, id="keys are due"),
        pytest.param(LogConfig(validate_records=True), id="records are checked"),
        pytest.param(LogConfig(message_timestamp_before_max_ms=1000), id="times are checked"),
        pytest.param(LogConfig(compression_type="zstd"), id="another codec"),
    ],
)
def test_a_batch_that_is_decoded_costs_its_bytes(config: LogConfig) -> None:
    one = batch(1, 1000)
    assert cost(one, config) == len(one)
    large = batch(1, LOOP_BYTES)
    assert cost(large, config) == A_WORKERS


def test_many_small_records_cost_more_than_their_bytes() -> None:
    small = batch(100, 0)
    assert cost(small, COMPACTED) == 100 * RECORD_COST_BYTES > len(small)


def test_a_time_too_far_ahead_is_looked_at() -> None:
    config = LogConfig(message_timestamp_after_max_ms=1000)
    assert cost(batch(timestamp=NOW_MS + 1000), config) == 0
    assert cost(batch(timestamp=NOW_MS + 1001), config) > 0
    stamped = LogConfig(message_timestamp_after_max_ms=1000, message_timestamp_type="LogAppendTime")
    assert cost(batch(timestamp=NOW_MS + 1001), stamped) == 0


def test_few_packed_bytes_that_unpack_to_many_are_a_workers() -> None:
    bomb = batch(1, 20 << 20, Compression.ZSTD)
    assert len(bomb) < 4096
    assert cost(bomb, COMPACTED) > LOOP_BYTES
    fitting = batch(2, 3000, Compression.ZSTD)
    assert len(fitting) < LOOP_PACKED_BYTES
    assert 6000 < cost(fitting, COMPACTED) <= LOOP_BYTES
    assert cost(fitting, COMPACTED, limit=5000) > 5000
    assert cost(fitting, COMPACTED, limit=0) == A_WORKERS


def test_a_count_of_records_that_is_a_lie_is_a_workers() -> None:
    lie = batch(1, 10, Compression.ZSTD)
    lie[57:61] = (2**31 - 1).to_bytes(4, "big")
    assert cost(lie, COMPACTED) == A_WORKERS
    lie[57:61] = b"\xff" * 4
    assert 0 <= cost(lie, COMPACTED) <= LOOP_BYTES


def test_bytes_that_are_no_batch_cost_nothing() -> None:
    assert cost(bytearray(), COMPACTED) == cost(bytearray(60), COMPACTED) == 0


def message_set(count: int, size: int, codec: Compression = Compression.NONE) -> bytearray:
    out = bytearray()
    records = [Record(offset, NOW_MS, None, bytes(size)) for offset in range(count)]
    write_message_set(out, records, magic=1, codec=codec)
    return out


def test_a_message_set_costs_its_conversion() -> None:
    small = message_set(2, 10)
    assert loop_cost(small, PLAIN, 2, NOW_MS) == len(small) * CONVERSION_COST
    assert loop_cost(small, PLAIN, None, NOW_MS) == 0, "it is no produced one"
    assert loop_cost(message_set(1, MESSAGE_SET_BYTES), PLAIN, 2, NOW_MS) == A_WORKERS
    packed = message_set(50, 1000, Compression.GZIP)
    assert len(packed) < MESSAGE_SET_BYTES
    assert loop_cost(packed, PLAIN, 2, NOW_MS) > LOOP_BYTES
