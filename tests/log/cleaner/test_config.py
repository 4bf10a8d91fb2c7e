"""The cleaner's settings as one worker's share of them."""

from __future__ import annotations

import pytest

from kbroker.log.cleaner.config import CleanerConfig
from kbroker.settings.broker import BrokerConfig


def config(**keys: object) -> CleanerConfig:
    properties = {"log.dirs": "/data", "node.id": "1"} | {
        f"log.cleaner.{name.replace('_', '.')}": str(value) for name, value in keys.items()
    }
    return CleanerConfig.from_broker(BrokerConfig.from_properties(properties))


def test_threads_share_the_memory() -> None:
    one = config(dedupe_buffer_size=8 << 20, io_buffer_size=1 << 20)
    four = config(dedupe_buffer_size=8 << 20, io_buffer_size=1 << 20, threads=4)
    assert (one.threads, four.threads) == (1, 4)
    assert four.map_bytes == pytest.approx(one.map_bytes / 4, abs=1)
    assert (one.buffer_bytes, four.buffer_bytes) == (1 << 19, 1 << 17)
    assert four.sure_map_bytes <= four.map_bytes


@pytest.mark.parametrize(
    ("factor", "share"),
    [("0.5", 0.5), ("1.0", 1.0), ("7", 1.0), ("-1", 0.0), ("NaN", 0.0), ("Infinity", 1.0)],
)
def test_a_load_factor_is_a_share_whatever_is_configured(factor: str, share: float) -> None:
    found = config(dedupe_buffer_size=8 << 20, io_buffer_load_factor=factor)
    assert found.map_bytes == int((8 << 20) * share)
    assert found.sure_map_bytes <= found.map_bytes


def test_what_is_given_over_unchanged() -> None:
    found = config(enable="false", backoff_ms=7, io_max_bytes_per_second=123.5)
    assert (found.is_enabled, found.backoff_ms, found.bytes_per_second) == (False, 7, 123.5)
