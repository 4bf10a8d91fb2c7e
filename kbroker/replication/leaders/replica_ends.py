"""The high watermark and last stable offset of a replica, and the requests that wait for them.

    log start offset <= last stable offset <= high watermark <= log end offset

A leader decides how far the high watermark moves (`partition`); a follower takes it from its
leader. The log is reached through the port `replica_log`; waiting requests are in `purgatory`.
"""

from __future__ import annotations

from collections import deque

from kbroker.model import InvariantError, TopicPartition
from kbroker.replication.appended_bytes import AppendedBytes
from kbroker.replication.leaders.replica_log import ReplicaLog
from kbroker.replication.purgatory import OffsetWaiter, StartWatcher, Watcher


class ReplicaEnds:
    """See the module's docstring. `partition.Partition` is one: an append costs no look-up in a
    second object.
    """

    __slots__ = (
        "_appended",
        "_end_watchers",
        "_last_end",
        "_offset_waiters",
        "_stable_bytes",
        "_watchers",
        "high_watermark",
        "last_stable_offset",
        "log",
        "start_watchers",
        "topic_partition",
    )

    def __init__(
        self, topic_partition: TopicPartition, log: ReplicaLog, high_watermark: int
    ) -> None:
        """high_watermark: as the checkpoint has it; kept within the log."""
        self.topic_partition = topic_partition
        self.log = log
        self.high_watermark = max(log.log_start_offset, min(high_watermark, log.log_end_offset))
        log.on_high_watermark(self.high_watermark)
        self.last_stable_offset = self._stable_end()
        self._last_end = log.log_end_offset
        self._appended = AppendedBytes()
        self._stable_bytes = 0  # bytes below the high watermark since the last stable offset moved
        self._watchers: dict[Watcher, None] = {}
        self._end_watchers: dict[Watcher, None] = {}
        self._offset_waiters: deque[OffsetWaiter] = deque()
        self.start_watchers: dict[StartWatcher, None] | None = None

    def replace_log(self, log: ReplicaLog) -> None:
        """Use another log with the same records, after a move to another directory."""
        if log.log_end_offset != self.log.log_end_offset:
            raise InvariantError(f"{self.topic_partition}: {log} is not the log it replaces")
        self.log = log
        log.on_high_watermark(self.high_watermark)

    # changes

    def _move_high_watermark(self, offset: int, added_bytes: int) -> None:
        self.high_watermark = offset
        unstable = self.log.on_high_watermark(offset)
        stable = offset if unstable is None else self._stable_end()
        stable_bytes = 0
        self._stable_bytes += added_bytes
        if stable > self.last_stable_offset:
            self.last_stable_offset = stable
            stable_bytes, self._stable_bytes = self._stable_bytes, 0
        waiters = self._offset_waiters
        while waiters and (waiters[0].ended or waiters[0].required_offset <= offset):
            waiters.popleft().ready()
        if self._watchers:
            for watcher in tuple(self._watchers):
                watcher.moved(added_bytes, stable_bytes)

    def _stable_end(self) -> int:
        unstable = self.log.first_unstable_offset
        if unstable is None or unstable >= self.high_watermark:
            return self.high_watermark
        return max(unstable, self.log.log_start_offset)

    def log_start_moved(self) -> None:
        """Retention or DeleteRecords moved the log's start; what lies below it is neither committed
        nor unstable.
        """
        start = self.log.log_start_offset
        if self.high_watermark < start:
            self.high_watermark = start
            self.log.on_high_watermark(start)
        self.last_stable_offset = self._stable_end()
        for watcher in tuple(self._watchers) + tuple(self._end_watchers):
            watcher.moved(0, 0)

    def follower_advanced(self, leader_high_watermark: int, added_bytes: int) -> None:
        """This follower appended added_bytes, perhaps none, that its leader sent together with its
        own high watermark.
        """
        end = self._last_end = self.log.log_end_offset
        offset = min(leader_high_watermark, end)
        if added_bytes:
            self._appended.add(end, added_bytes)
        if offset > self.high_watermark:
            self._move_high_watermark(offset, self._appended.take_below(offset))

    def truncated(self) -> None:
        """This follower's log was truncated or restarted at another offset, so nothing at or beyond
        its end is committed here.
        """
        end = self._last_end = self.log.log_end_offset
        start = self.log.log_start_offset
        self._appended.clear()
        self.high_watermark = max(start, min(self.high_watermark, end))
        self.log.on_high_watermark(self.high_watermark)
        self.last_stable_offset = self._stable_end()
        for watcher in tuple(self._watchers) + tuple(self._end_watchers):
            watcher.moved(0, 0)

    # watchers and waiters

    def watch(self, watcher: Watcher, *, log_end: bool = False) -> None:
        """Tell watcher when the high watermark or last stable offset moves; log_end: when the log
        grows (a follower).
        """
        (self._end_watchers if log_end else self._watchers)[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)
        self._end_watchers.pop(watcher, None)

    def wait_for(self, waiter: OffsetWaiter, required_offset: int) -> None:
        """Make waiter ready when the high watermark reaches required_offset; called in order of
        offsets.
        """
        waiter.required_offset = required_offset
        self._offset_waiters.append(waiter)

    def _tell_start_watchers(self) -> None:
        for watcher in tuple(self.start_watchers or ()):
            watcher.starts_moved()

    @property
    def watcher_count(self) -> int:
        return len(self._watchers) + len(self._end_watchers)

    def _abandon_waiters(self) -> None:
        """Wake all waiters: leadership is lost, so their records may never be committed."""
        waiters, self._offset_waiters = self._offset_waiters, deque()
        for waiter in waiters:
            waiter.ready()

    def _lose_watchers(self) -> None:
        for watcher in tuple(self._watchers) + tuple(self._end_watchers):
            watcher.lost()
