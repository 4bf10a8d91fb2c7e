"""Points in time as options have them."""

from __future__ import annotations

import pytest

from spark_jobs.restore.moments import parse_moment

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1690000000000", 1_690_000_000_000),
        ("2h", NOW_MS - 7_200_000),
        ("90 s", NOW_MS - 90_000),
        ("3d", NOW_MS - 259_200_000),
        ("2023-11-14T22:13:20Z", NOW_MS),
        ("2023-11-14T22:13:20", NOW_MS),
        ("2023-11-15T00:13:20+02:00", NOW_MS),
        ("1970-01-02", 86_400_000),
    ],
)
def test_moments(text: str, moment: int) -> None:
    assert parse_moment(text, NOW_MS) == moment


@pytest.mark.parametrize("text", ["", "yesterday", "2y", "-5"])
def test_other_texts(text: str) -> None:
    with pytest.raises(ValueError, match="write a time such as"):
        parse_moment(text, NOW_MS)
