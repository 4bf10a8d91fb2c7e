"""Which records are late. The watermark is the newest record time of the batches before, less the
delay: Spark's rule for one stream.
"""

from __future__ import annotations

import re
from typing import Final

_DURATION: Final = re.compile(
    r"(\d+)\s*(ms|milliseconds?|s|seconds?|m|minutes?|h|hours?|d|days?)", re.IGNORECASE
)
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

NO_WATERMARK: Final = -(1 << 62)
"""Of a query that has read nothing, and of one without a delay: no record is late."""


def parse_duration(text: str) -> int:
    """`10 minutes`, `10m`, `500 ms` to milliseconds. Raises ValueError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise ValueError("write a duration such as '10 minutes' or 10m")
    unit = match[2].lower()
    is_milliseconds = unit == "ms" or unit.startswith("milli")
    return int(match[1]) * (1 if is_milliseconds else _UNITS_MS[unit[0]])


def next_watermark(before_ms: int, newest_ms: int | None, delay_ms: int | None) -> int:
    """The watermark behind a batch; it never goes back. newest_ms: of the batch's records, None
    without one. delay_ms: None for no watermark.
    """
    if delay_ms is None or newest_ms is None:
        return before_ms
    return max(before_ms, newest_ms - delay_ms)
