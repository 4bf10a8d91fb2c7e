"""Durations, and how the watermark moves."""

from __future__ import annotations

import pytest

from spark_jobs.stateful.watermarks import NO_WATERMARK, next_watermark, parse_duration


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("10 minutes", 600_000),
        ("10m", 600_000),
        ("1 hour", 3_600_000),
        ("500 ms", 500),
        ("3 milliseconds", 3),
        ("2 Days", 172_800_000),
        ("5 seconds", 5_000),
    ],
)
def test_durations(text: str, expected_ms: int) -> None:
    assert parse_duration(text) == expected_ms


@pytest.mark.parametrize("text", ["", "10", "0 s", "-1 s", "1 month", "ten minutes"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="write a duration"):
        parse_duration(text)


def test_the_watermark_never_goes_back() -> None:
    first = next_watermark(NO_WATERMARK, 1_000, 300)
    assert first == 700
    assert next_watermark(first, 900, 300) == 700
    assert next_watermark(first, None, 300) == 700
    assert next_watermark(first, 5_000, 300) == 4_700
    assert next_watermark(NO_WATERMARK, 1_000, None) == NO_WATERMARK
