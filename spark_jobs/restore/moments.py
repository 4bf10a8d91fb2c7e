"""Points in time as options have them. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

_DURATION: Final = re.compile(r"(\d+)\s*(s|m|h|d)")
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_moment(text: str, now_ms: int) -> int:
    """Milliseconds since 1970 of `2026-05-01T12:00:00Z` (UTC without a zone), `2026-05-01`, `2h`
    (so long before now; s, m, h or d) or a number of milliseconds. Raises ValueError.
    """
    text = text.strip()
    duration = _DURATION.fullmatch(text)
    if duration is not None:
        return now_ms - int(duration[1]) * _UNITS_MS[duration[2]]
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            "write a time such as 2026-05-01T12:00:00Z, a duration before now such as 2h, or "
            "milliseconds since 1970"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
