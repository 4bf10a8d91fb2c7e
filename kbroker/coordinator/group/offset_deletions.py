"""Deletes the offsets of deleted topics, in turns of the loop; `OffsetStore` finds them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from kbroker.coordinator.runtime.host import Host, HostStatus
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.runtime.result import in_batches
from kbroker.coordinator.runtime.runtime import CoordinatorRuntime
from kbroker.coordinator.topics import DeletedTopic
from kbroker.ports import TimerHandle, Timers

if TYPE_CHECKING:
    from kbroker.coordinator.group.shard import GroupShard

STEPS_PER_TURN: Final = 1_000
"""How many groups and offsets are looked at in one turn of the loop, those of all shards together;
the tombstones of one shard are one batch, unless they are too large for it.
"""


class _Deletion(NamedTuple):
    """Topics whose offsets a shard deletes. steps: see `OffsetStore.tombstones_of_topics`."""

    host: Host[GroupShard]
    topics: Sequence[DeletedTopic]
    steps: Iterator[CoordinatorRecord | None]


class OffsetDeletions:
    """The deletions in progress of a group coordinator."""

    def __init__(self, runtime: CoordinatorRuntime[GroupShard], timers: Timers) -> None:
        self._runtime = runtime
        self._timers = timers
        self._queue: deque[_Deletion] = deque()
        self._timer: TimerHandle | None = None

    def on_topics_deleted(self, topics: Sequence[DeletedTopic]) -> None:
        """Topics were deleted: delete their offsets, including pending ones, the first of them
        now. A shard that is loading does so after it is loaded.
        """
        for host in list(self._runtime.hosts()):
            self._schedule(host, topics)
        if self._timer is None:
            self._advance()

    def close(self) -> None:
        """Delete no more."""
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, host: Host[GroupShard], topics: Sequence[DeletedTopic]) -> None:
        if host.status is HostStatus.ACTIVE:
            self._runtime.carry_out(host, host.shard.on_topics_deleted(topics))
            steps = host.shard.offsets.tombstones_of_topics(topics)
            self._queue.append(_Deletion(host, topics, steps))
        elif host.status is HostStatus.LOADING:
            host.shard.deleted_topics += topics

    def _advance(self) -> None:
        """Take the steps of one turn, and schedule the next turn if some are left."""
        self._timer = None
        left = STEPS_PER_TURN
        while self._queue and left > 0:
            host, topics, steps = self._queue[0]
            if host.status is not HostStatus.ACTIVE:
                self._queue.popleft()
                for successor in list(self._runtime.hosts()):
                    if successor.topic_partition == host.topic_partition:
                        self._schedule(successor, topics)
                continue
            looked_at = list(islice(steps, left))
            if len(looked_at) < left:
                self._queue.popleft()
            left -= len(looked_at)
            tombstones = [record for record in looked_at if record is not None]
            self._runtime.carry_out(host, in_batches(tombstones, STEPS_PER_TURN))
        if self._queue:
            self._timer = self._timers.call_later(0, self._advance)
