"""The limit of log.cleaner.io.max.bytes.per.second on the reads and writes of compaction."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import Final

THROTTLE_WINDOW_SECONDS: Final = 0.3
MAX_PAUSE_SECONDS: Final = 3600.0


class Throttle:
    """Limits the bytes per second that all rounds together read and write. A rate that is not above
    0 is no limit.
    """

    def __init__(
        self, bytes_per_second: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.bytes_per_second = bytes_per_second
        self._clock = clock
        self._lock = Lock()
        self._began = clock()
        self._bytes = 0

    def charge(self, count: int) -> float:
        """Account for count bytes. Returns how many seconds to wait now, limited to the longest
        sleep of a thread.
        """
        if not self.bytes_per_second > 0:
            return 0.0
        with self._lock:
            self._bytes += count
            elapsed = self._clock() - self._began
            needed = self._bytes / self.bytes_per_second
            if max(elapsed, needed) < THROTTLE_WINDOW_SECONDS:
                return 0.0
            self._began += max(elapsed, needed)
            self._bytes = 0
            return min(max(0.0, needed - elapsed), MAX_PAUSE_SECONDS)
