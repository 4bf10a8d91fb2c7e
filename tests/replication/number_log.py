"""A log that is a few numbers, and a watcher, for tests of what a replica decides."""

from __future__ import annotations


class NumberLog:
    """A log without records."""

    def __init__(self, start: int = 0, end: int = 0) -> None:
        self.log_start_offset = start
        self.log_end_offset = end
        self.first_unstable_offset: int | None = None
        self.told: list[int] = []

    def on_high_watermark(self, high_watermark: int) -> int | None:
        self.told.append(high_watermark)
        return self.first_unstable_offset


class Listener:
    def __init__(self) -> None:
        self.heard: list[tuple[int, int]] = []
        self.lost_count = 0

    def moved(self, high_watermark_bytes: int, stable_bytes: int) -> None:
        self.heard.append((high_watermark_bytes, stable_bytes))

    def lost(self) -> None:
        self.lost_count += 1
