"""Schedules the refreshes of consumer groups' regular expressions: after a heartbeat, in separate
turns of the loop. One refresh is a `RegexRefresh`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.coordinator.group.consumer.membership import (
    resolved,
)
from kbroker.coordinator.group.consumer.regex_refresh import MIN_INTERVAL_MS, RegexRefresh
from kbroker.coordinator.runtime.deadlines import Deadline, Deadlines
from kbroker.coordinator.runtime.result import CoordinatorResult, Result
from kbroker.coordinator.topics import ClusterTopics


class RegexSchedule:
    """The refreshes of the groups of one shard. groups: by id, read only. topics: returns the
    current topics of the cluster. wall_ms: the wall clock.
    """

    __slots__ = ("_deadlines", "_groups", "_running", "_started_ms", "_topics", "_wall_ms")

    def __init__(
        self,
        groups: Mapping[str, ConsumerGroup],
        deadlines: Deadlines,
        topics: Callable[[], ClusterTopics],
        wall_ms: Callable[[], int],
    ) -> None:
        self._groups = groups
        self._deadlines = deadlines
        self._topics = topics
        self._wall_ms = wall_ms
        self._running: dict[str, tuple[RegexRefresh, Deadline]] = {}
        """By group id: the refresh that is running, and its next turn."""
        self._started_ms: dict[str, int] = {}
        """By id of groups with regular expressions: when the last refresh started."""

    def start_if_due(self, group: ConsumerGroup, topics: ClusterTopics, now_ms: int) -> None:
        """Start a refresh if one of the group's regular expressions is not resolved yet, or if the
        cluster's topics changed; not again within MIN_INTERVAL_MS, unless none is resolved.
        """
        group_id, regexes = group.group_id, group.subscriptions.regexes
        if not regexes or group_id in self._running:
            return
        if len(regexes) == len(group.regexes) and group.matched_topics is topics.topics:
            return
        last_ms = self._started_ms.get(group_id)
        if group.regexes and last_ms is not None and now_ms <= last_ms + MIN_INTERVAL_MS:
            return
        refresh = RegexRefresh(
            regexes, topics.topics, offset=topics.offset, wall_ms=self._wall_ms()
        )
        turn = Deadline(partial(self._on_turn, group_id))
        self._running[group_id] = (refresh, turn)
        self._started_ms[group_id] = now_ms
        self._deadlines.set(turn, now_ms)

    def _on_turn(self, group_id: str, now_ms: int) -> list[Result]:
        refresh, turn = self._running[group_id]
        if not refresh.advance():
            self._deadlines.set(turn, now_ms + 1)
            return []
        del self._running[group_id]
        group = self._groups.get(group_id)
        if group is None:
            return []
        topics = self._topics()

        def written(now_ms: int) -> list[Result]:
            group.seen_topics, group.matched_topics = topics.topics, refresh.topics
            return []

        records = resolved(group, refresh, topics)
        return (
            [CoordinatorResult(records, None, on_written=written)] if records else written(now_ms)
        )

    def cancel(self, group_id: str) -> None:
        """Stop the refresh of a group that was deleted."""
        under_way = self._running.pop(group_id, None)
        if under_way is not None:
            self._deadlines.cancel(under_way[1])
        self._started_ms.pop(group_id, None)

    def clear(self) -> None:
        """Stop every refresh, when the shard is unloaded."""
        for group_id in list(self._running):
            self.cancel(group_id)
        self._started_ms.clear()
