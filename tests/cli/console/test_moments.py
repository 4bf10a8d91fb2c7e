"""Times that a user writes."""

from __future__ import annotations

import pytest

from kbroker.cli.console.moments import moment_ms, shown_ms

NOW_MS = 1_770_000_000_000


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("0", 0),
        ("1769860800000", 1_769_860_800_000),
        ("2026-01-31T12:00:00", 1_769_860_800_000),
        ("2026-01-31 12:00", 1_769_860_800_000),
        ("2026-01-31T13:00:00.500+01:00", 1_769_860_800_500),
        ("2026-01-31T12:00:00Z", 1_769_860_800_000),
        ("2026-01-31", 1_769_817_600_000),
        ("-250ms", NOW_MS - 250),
        ("-30s", NOW_MS - 30_000),
        ("-15m", NOW_MS - 900_000),
        ("-2h", NOW_MS - 7_200_000),
        ("-1d", NOW_MS - 86_400_000),
        ("-999999999999d", 0),
        ("-PT15M", NOW_MS - 900_000),
    ],
)
def test_moments(text: str, moment: int) -> None:
    assert moment_ms(text, NOW_MS) == moment


@pytest.mark.parametrize("text", ["", "soon", "-1", "-1w", "15m", "2026-13-01", "-P", "\u0663"])
def test_what_is_no_time_says_what_can_be_written(text: str) -> None:
    with pytest.raises(ValueError, match="is no time: write 2026-01-31T12:00:00"):
        moment_ms(text, NOW_MS)


def test_shown() -> None:
    assert shown_ms(1_769_860_800_500) == "2026-01-31T12:00:00.500Z"
    assert shown_ms(0) == "1970-01-01T00:00:00.000Z"
    assert shown_ms(2**62) == str(2**62)
