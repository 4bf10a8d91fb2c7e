"""Times that a user writes: `2026-01-31T12:00:00`, ms since 1970, or a length back from now."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from kbroker.settings.durations import duration_ms

_LENGTH: Final = re.compile(r"-([0-9]{1,12})(ms|s|m|h|d)")
_UNIT_MS: Final[Mapping[str, int]] = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


def moment_ms(text: str, now_ms: int) -> int:
    """In ms since 1970. A date without a zone is in UTC; `-15m`, `-2h`, `-1d` and `-PT15M` count
    back from now. Raises ValueError, which says what can be written.
    """
    if text.isascii() and text.isdecimal():
        return int(text)
    if found := _LENGTH.fullmatch(text):
        return max(now_ms - int(found[1]) * _UNIT_MS[found[2]], 0)
    try:
        if text[:2].upper() == "-P":
            return max(now_ms - duration_ms(text[1:]), 0)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no time: write 2026-01-31T12:00:00 (UTC), ms since 1970, or -15m, -2h, "
            "-1d for a time before now"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def shown_ms(timestamp_ms: int) -> str:
    """`2026-01-31T12:00:00.000Z`; the number itself where no calendar has it."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
