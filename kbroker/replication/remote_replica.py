"""What a leader knows of one follower (KIP-497): its log end offset, and when it last caught up.

`Partition` decides from it on the high watermark and the ISR. A core: time is an argument.
"""

from __future__ import annotations

from typing import Final

NEVER_MS: Final = -(1 << 62)
"""A time before every other."""


class RemoteReplica:
    """What the leader knows of a follower. log_end_offset: -1 until its first fetch under this
    leader.
    """

    __slots__ = (
        "last_caught_up_ms",
        "last_fetch_leader_end",
        "last_fetch_ms",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, now_ms: int, *, in_sync: bool) -> None:
        self.log_end_offset = -1
        self.log_start_offset = -1
        self.last_fetch_ms = 0
        self.last_fetch_leader_end = -1
        self.last_caught_up_ms = now_ms if in_sync else NEVER_MS

    def fetched(
        self, *, fetch_offset: int, log_start_offset: int, leader_end: int, now_ms: int
    ) -> None:
        """It has everything below fetch_offset. It was caught up now, or when it last asked for
        what it now has.
        """
        if fetch_offset >= leader_end:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif fetch_offset >= self.last_fetch_leader_end >= 0:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.last_fetch_leader_end = leader_end
        self.last_fetch_ms = now_ms

    def is_caught_up(self, *, leader_end: int, now_ms: int, lag_max_ms: int) -> bool:
        """Whether it holds the leader's end, or did so no longer than lag_max_ms ago."""
        return self.log_end_offset == leader_end or now_ms - self.last_caught_up_ms <= lag_max_ms
