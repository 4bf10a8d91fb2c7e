"""Sizes that follow from the memory limit."""

from __future__ import annotations

import pytest

from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.log_config import UNPACKED_SHARE
from kbroker.settings.views.network import (
    FRAME_OVERHEAD_BYTES,
    INDEX_SHARE,
    MAP_SHARE,
    MIN_LIST_BYTES,
    POOL_SHARE,
    NetworkConfig,
)


def network(**properties: str) -> NetworkConfig:
    keys = {name.replace("_", "."): value for name, value in properties.items()}
    return NetworkConfig.from_broker(BrokerConfig.from_properties(keys))


def test_the_defaults_are_those_of_the_table() -> None:
    assert network() == NetworkConfig()


def test_the_shares_fit_into_the_limit() -> None:
    """Unpacking holds a batch three times at most: see UNPACKED_SHARE."""
    assert POOL_SHARE + 3 * UNPACKED_SHARE + MAP_SHARE + INDEX_SHARE <= 1


@pytest.mark.parametrize("limit", [1 << 20, 1 << 24, 1 << 28, 1 << 34])
def test_the_largest_request_fits_into_the_pool_with_its_buffer(limit: int) -> None:
    found = NetworkConfig(memory_limit_bytes=limit)
    assert found.max_frame_bytes <= 104_857_600
    assert 0 < found.max_frame_bytes + FRAME_OVERHEAD_BYTES < found.pool_bytes < limit
    assert found.max_list_bytes == max(MIN_LIST_BYTES, limit // 64)


def test_a_smaller_limit_of_a_request_counts() -> None:
    assert network(socket_request_max_bytes="1000").max_frame_bytes == 1000


@pytest.mark.parametrize(("text", "limit"), [("-1", None), ("0", None), ("200000000", 200_000_000)])
def test_a_bound_on_queued_bytes_is_one_above_0(text: str, limit: int | None) -> None:
    assert network(queued_max_request_bytes=text).queued_max_request_bytes == limit
