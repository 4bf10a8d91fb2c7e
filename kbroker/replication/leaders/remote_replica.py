"""What a leader knows of one follower (KIP-497, KIP-903): its log end offset, its broker epoch, and
when it last caught up.

`isr` and `Partition` decide from it on the ISR and the high watermark. A core: time is an argument.
"""

from __future__ import annotations

from typing import Final

NEVER_MS: Final = -(1 << 62)
"""Earlier than every real time."""

NO_FETCH_EPOCH: Final = -2
"""The broker epoch of a follower that has not fetched yet; -1 is one that does not tell its epoch
(Fetch before v15).
"""


class RemoteReplica:
    """What the leader knows of a follower. log_end_offset: -1 until its first fetch under this
    leader. broker_epoch: of its last fetch.
    """

    __slots__ = (
        "broker_epoch",
        "last_caught_up_ms",
        "last_fetch_leader_end",
        "last_fetch_ms",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, now_ms: int, *, in_sync: bool) -> None:
        self.log_end_offset = -1
        self.log_start_offset = -1
        self.broker_epoch = NO_FETCH_EPOCH
        self.last_fetch_ms = NEVER_MS
        self.last_fetch_leader_end = -1
        self.last_caught_up_ms = now_ms if in_sync else NEVER_MS

    def fetched(
        self,
        *,
        fetch_offset: int,
        log_start_offset: int,
        leader_end: int,
        broker_epoch: int,
        now_ms: int,
    ) -> None:
        """The follower fetched from fetch_offset, so it has everything below. If that is the
        leader's end, it is caught up now; otherwise as of the earlier fetch whose log end it has
        now reached.
        """
        if fetch_offset >= leader_end:
            caught_up_ms = now_ms
        elif fetch_offset >= self.last_fetch_leader_end:
            caught_up_ms = self.last_fetch_ms
        else:
            caught_up_ms = NEVER_MS
        if caught_up_ms > self.last_caught_up_ms:
            self.last_caught_up_ms = caught_up_ms
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        if leader_end > self.last_fetch_leader_end:
            self.last_fetch_leader_end = leader_end
        self.last_fetch_ms = now_ms
        self.broker_epoch = broker_epoch

    def was_at_end(self, at_ms: int) -> None:
        """The follower had the leader's log end at at_ms."""
        self.last_caught_up_ms = max(self.last_caught_up_ms, at_ms)

    def leader_reelected(self, *, leader_end: int, now_ms: int, in_sync: bool) -> None:
        """The same broker leads in a new epoch. Offsets are kept and times reset, so a follower
        outside the ISR must fetch before it rejoins.
        """
        self.last_fetch_leader_end = leader_end
        self.last_fetch_ms = self.last_caught_up_ms = now_ms if in_sync else NEVER_MS

    def is_caught_up(self, *, leader_end: int, now_ms: int, lag_max_ms: int) -> bool:
        """Whether the follower has the leader's log end, or had it within the last lag_max_ms."""
        return self.log_end_offset == leader_end or now_ms - self.last_caught_up_ms <= lag_max_ms
