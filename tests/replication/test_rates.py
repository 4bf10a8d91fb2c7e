"""The arithmetic of quotas, by Kafka's own results (tests/data/decisions/quotas)."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.replication.rates import (
    MAX_THROTTLE_MS,
    QuotaWindow,
    SampledRate,
    SimpleRate,
    TokenBucket,
    rounded_ms,
)
from tests.controller.decisions import cases

RATES = 220
BUCKETS = 120


def rate_case(case: dict[str, Any]) -> None:
    """Every step of one sensor: the throttle time and the rate just after."""
    seconds = case["quota.window.size.seconds"]
    rate = SampledRate(QuotaWindow(case["quota.window.num"], seconds * 1000))
    bound = float(case["quota"])
    for step in case["steps"]:
        now_ms = step["nowMs"]
        if step["do"] == "quota":
            bound = float(step["quota"])
            continue
        if step["do"] == "record":
            rate.record(step["value"], now_ms)
            assert rate.throttle_ms(bound, now_ms) == step["throttleTimeMs"], step
        else:
            rate.record(-step["value"], now_ms)
        assert rate.measure(now_ms) == step["rate"], step


def bucket_case(case: dict[str, Any]) -> None:
    """Every step of one bucket: what is refused, for how long, and the tokens that are left."""
    seconds = case["controller.quota.window.size.seconds"]
    bucket = TokenBucket(QuotaWindow(case["controller.quota.window.num"], seconds * 1000))
    bound = case["quota"]
    for step in case["steps"]:
        now_ms = step["nowMs"]
        for permits, refused_ms in step["records"]:
            if case["strict"] and bucket.throttle_ms(bound, now_ms):
                assert bucket.throttle_ms(bound, now_ms) == refused_ms, step
            else:
                bucket.record(permits, bound, now_ms)
        assert bucket.tokens(bound, now_ms) == step["tokens"], step


def test_rates_are_those_of_kafka() -> None:
    found = [case for _, case in cases("quotas") if case["kind"] == "rate"]
    for case in found:
        rate_case(case)
    assert len(found) == RATES


def test_tokens_are_those_of_kafka() -> None:
    found = [case for _, case in cases("quotas") if case["kind"] == "tokens"]
    for case in found:
        bucket_case(case)
    assert len(found) == BUCKETS


def test_a_bucket_is_full_at_first_whatever_the_time() -> None:
    assert TokenBucket(QuotaWindow(11, 1000)).tokens(10.0, 0) == 110.0


def test_a_rate_without_values_is_zero() -> None:
    rate = SampledRate(QuotaWindow())
    assert rate.measure(5) == 0.0
    assert rate.throttle_ms(1.0, 5) == 0


def test_nothing_is_admitted_at_a_rate_of_zero() -> None:
    """`max.connection.creation.rate` may be 0."""
    rate = SampledRate(QuotaWindow())
    rate.record(1.0, 5)
    assert rate.throttle_ms(0, 5) == MAX_THROTTLE_MS


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [
        (0.4, 0),
        (0.5, 1),
        (2.5, 3),
        (-3.0, 0),
        (float("nan"), 0),
        (float("inf"), MAX_THROTTLE_MS),
        (1e300, MAX_THROTTLE_MS),
    ],
)
def test_throttle_times_are_rounded_as_in_java(milliseconds: float, expected: int) -> None:
    assert rounded_ms(milliseconds) == expected


def test_a_simple_rate_knows_no_burst() -> None:
    simple, sampled = SimpleRate(QuotaWindow()), SampledRate(QuotaWindow())
    for rate in (simple, sampled):
        rate.record(1000.0, 0)
    assert simple.measure(0) == 1000.0
    assert sampled.measure(0) == 100.0
    assert simple.measure(4000) == 250.0
    assert simple.measure(60_000) == 0.0
