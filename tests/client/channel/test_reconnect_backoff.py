"""Delays between connection attempts: doubled, bounded, jittered, per node."""

from __future__ import annotations

from random import Random

from kbroker.client.channel.reconnect_backoff import JITTER, ReconnectBackoff


def test_the_delay_doubles_up_to_its_bound() -> None:
    backoff = ReconnectBackoff(Random(1), base_ms=50, max_ms=500)
    now_ms = 0
    for expected_ms in (50, 100, 200, 400, 500, 500, 500):
        assert backoff.remaining_ms(1, now_ms) == 0
        backoff.failed(1, now_ms)
        delay_ms = backoff.remaining_ms(1, now_ms)
        assert expected_ms * (1 - JITTER) - 1 <= delay_ms <= expected_ms * (1 + JITTER)
        now_ms += delay_ms
    backoff.succeeded(1)
    backoff.failed(1, now_ms)
    assert backoff.remaining_ms(1, now_ms) <= 60


def test_ten_thousand_failures_stay_within_the_bound() -> None:
    backoff = ReconnectBackoff(Random(1), base_ms=50, max_ms=500)
    for attempt in range(10_000):
        backoff.failed(1, attempt * 1_000)
    assert backoff.remaining_ms(1, 9_999_000) <= 600


def test_several_connections_that_are_lost_at_once_count_once() -> None:
    backoff = ReconnectBackoff(Random(1), base_ms=50, max_ms=500)
    for _ in range(5):
        backoff.failed(1, 1_000)
    assert backoff.remaining_ms(1, 1_000) <= 60


def test_nodes_do_not_delay_each_other_and_draw_their_own_jitter() -> None:
    backoff = ReconnectBackoff(Random(1), base_ms=1_000, max_ms=1_000)
    for node_id in range(10):
        backoff.failed(node_id, 0)
    assert backoff.remaining_ms(10, 0) == 0
    assert len({backoff.remaining_ms(node_id, 0) for node_id in range(10)}) > 5
    backoff.forget(3)
    assert backoff.remaining_ms(3, 0) == 0 < backoff.remaining_ms(4, 0)
