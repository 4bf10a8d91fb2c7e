"""Durations in ISO 8601 format, as Java parses them: P1D, PT1H30M, PT0.5S."""

from __future__ import annotations

import re
from typing import Final

_DURATION: Final = re.compile(
    r"([-+]?)P(?:([-+]?[0-9]{1,18})D)?"
    r"(?:T(?=[-+0-9])(?:([-+]?[0-9]{1,18})H)?(?:([-+]?[0-9]{1,18})M)?"
    r"(?:([-+]?)([0-9]{1,18})(?:[.,]([0-9]{0,9}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)


def duration_ms(text: str) -> int:
    """The duration in ms, rounded down. Raises ValueError for an invalid one."""
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.group(number) for number in (2, 3, 4, 6)):
        raise ValueError(f"{text!r} is no duration such as P1DT2H3M4.5S")
    sign, days, hours, minutes, second_sign, seconds, fraction = found.groups("")
    total_ms = (
        int(days or 0) * 86_400_000 + int(hours or 0) * 3_600_000 + int(minutes or 0) * 60_000
    )
    second_ms = int(seconds or 0) * 1_000 + int((fraction + "000")[:3])
    total_ms += -second_ms if second_sign == "-" else second_ms
    return -total_ms if sign == "-" else total_ms
