"""Java's durations, as share.auto.offset.reset has them."""

from __future__ import annotations

import pytest

from kbroker.settings.durations import duration_ms


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("PT1H", 3_600_000),
        ("P1D", 86_400_000),
        ("p2dt3h4m5.678s", 2 * 86_400_000 + 3 * 3_600_000 + 4 * 60_000 + 5_678),
        ("PT0S", 0),
        ("PT-0.5S", -500),
        ("-PT1M", -60_000),
        ("PT0.1239S", 123),
    ],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert duration_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", "P", "PT", "1H", "P1H", "PT1D", "P1DT", "PT1H ", "PT\u0661S"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        duration_ms(text)
