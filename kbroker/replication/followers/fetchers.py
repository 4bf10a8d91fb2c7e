"""Runs the fetching of followers: one loop per leader and fetcher number (num.replica.fetchers),
each with its own `follower` core and a port to the leader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol
from zlib import crc32

from kbroker.log.storage.files import LogDirectoryError
from kbroker.log_lines import shown
from kbroker.model import InvariantError, TopicPartition
from kbroker.ports import Deferred, TimerHandle, Timers
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kbroker.replication.followers.followed_partition import (
    AppendFetched,
    Effect,
    FollowedPartition,
    ReportFailed,
    SendFetch,
    SendListOffsets,
)
from kbroker.replication.followers.follower import FollowedPartitions
from kbroker.replication.followers.follower_log import (
    CORRUPT,
    PIECE_BATCHES,
    PIECE_BYTES,
    FollowerLogs,
)
from kbroker.replication.followers.follower_session import PartitionKey
from kbroker.replication.partition import Partition
from kbroker.replication.role import NO_LEADER, Role
from kbroker.replication.time_slices import FairSlices, SlicedSteps

logger = logging.getLogger(__name__)

STEP_BYTES: Final = PIECE_BYTES
"""Bytes of a response that are appended before the loop does other work."""

EFFECT_BYTES: Final = STEP_BYTES // PIECE_BATCHES
"""Bytes that an effect counts as, in addition to its records."""


class LeaderEndPoint(Protocol):
    """The port to the leader. Each request fails with KafkaError if there is no response."""

    def fetch(self, request: FetchRequest) -> Deferred[FetchResponse]: ...
    def list_offsets(self, request: ListOffsetsRequest) -> Deferred[ListOffsetsResponse]: ...


class ReplicaFetcher:
    """The loop of one `FollowedPartitions`. slices: runs the handling of large responses, and
    changes of logs, in steps. on_storage_error: called when a log could not be changed.
    """

    def __init__(
        self,
        follower: FollowedPartitions,
        leader: LeaderEndPoint,
        logs: FollowerLogs,
        timers: Timers,
        *,
        slices: FairSlices,
        on_storage_error: Callable[[Partition, OSError], None],
    ) -> None:
        self.follower = follower
        self._leader = leader
        self._logs = logs
        self._timers = timers
        self._slices = slices
        self._on_storage_error = on_storage_error
        self._timer: TimerHandle | None = None
        self._is_carrying_out = False
        self._is_closed = False

    def follow(self, partition: Partition) -> None:
        """See `FollowedPartitions.follow`. No change of the partition's log for an earlier
        leadership may be in progress.
        """
        self.follower.follow(partition)
        self._plan(0)

    def unfollow(self, key: PartitionKey) -> None:
        """See `FollowedPartitions.unfollow`."""
        self.follower.unfollow(key)
        self._plan(0)

    def log_start_moved(self, key: PartitionKey) -> None:
        """See `FollowedPartitions.log_start_moved`. The leader is told with the next request."""
        self.follower.log_start_moved(key)

    def close(self) -> None:
        """Send no more requests; a response that arrives later is ignored."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self, delay_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if self._is_closed else self._timers.call_later(delay_ms, self._run)

    def _run(self) -> None:
        self._timer = None
        self._look()

    def _look(self) -> None:
        """Carry out effects until the core waits for a response or a deadline."""
        if self._is_closed or self._is_carrying_out:
            return
        now_ms = self._timers.monotonic_ms()
        effects = self.follower.poll(now_ms)
        if effects:
            self._carry_out(effects)
            return
        due_ms = self.follower.next_deadline_ms()
        if due_ms is not None:
            self._plan(max(0, due_ms - now_ms))

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        """Carry out effects in order, then poll the core. `STEP_BYTES` are handled now, the rest in
        later turns of the loop.
        """
        self._is_carrying_out = True
        failure: Exception | None = None
        left = STEP_BYTES
        remaining = iter(effects)
        try:
            for effect in remaining:
                if self._is_closed:
                    break
                left -= self._carry_out_one(effect)
                if left <= 0:
                    self._slices.begin(self._steps(remaining), self._carried_out)
                    return
        except InvariantError:
            raise
        except Exception as error:  # noqa: BLE001 - the top frame of what an answer means
            failure = error
        self._carried_out(failure)

    def _steps(self, effects: Iterable[Effect]) -> SlicedSteps:
        for effect in effects:
            if self._is_closed:
                return
            self._carry_out_one(effect)
            yield None

    def _carried_out(self, failure: Exception | None) -> None:
        self._is_carrying_out = False
        if failure is not None and not self._is_closed:
            logger.error("a fetcher asks its leader again", exc_info=failure)
            self.follower.request_failed(self._timers.monotonic_ms())
        self._look()

    def _carry_out_one(self, effect: Effect) -> int:
        """Carry out one effect. Returns the bytes that it counts as; see `STEP_BYTES`."""
        if isinstance(effect, AppendFetched):
            return self._append(effect)
        if isinstance(effect, SendFetch):
            self._leader.fetch(effect.request).on_done(self._fetched, self._failed)
        elif isinstance(effect, SendListOffsets):
            answer = self._leader.list_offsets(effect.request)
            answer.on_done(self._offsets_listed, self._failed)
        elif isinstance(effect, ReportFailed):
            logger.warning("not fetched any more: %s: %s", effect.followed, shown(effect.reason))
        else:
            self._slices.begin(self._logs.steps(effect), partial(self._changed, effect.followed))
        return EFFECT_BYTES

    def _append(self, change: AppendFetched) -> int:
        """Append at once if that takes one step, as it nearly always does. Returns as
        `_carry_out_one`.
        """
        followed = change.followed
        size = EFFECT_BYTES + len(change.records)  # type: ignore[arg-type]  # they were received
        left: AppendFetched | None = change
        if size <= STEP_BYTES:
            try:
                left = self._logs.append_next(change)
            except InvariantError:
                raise
            except Exception as error:  # noqa: BLE001 - the top frame of the append
                self._changed(followed, error)
                return size
        if left is None:
            self.follower.changed(followed)
        else:
            self._slices.begin(self._logs.steps(left), partial(self._changed, followed))
        return size

    def _changed(self, followed: FollowedPartition, failure: Exception | None) -> None:
        """A change of a log has ended."""
        now_ms = self._timers.monotonic_ms()
        effects: list[Effect] = []
        if failure is None:
            self.follower.changed(followed)
        elif self._is_closed:
            logger.debug("%s: %s", followed, failure)
        elif isinstance(failure, KafkaError) and failure.code in CORRUPT:
            logger.error("records of %s are fetched again: %s", followed, failure.message)
            self.follower.change_refused(followed, now_ms)
        elif isinstance(failure, LogDirectoryError) and failure.is_shortage:
            logger.error("%s: %s, which is tried again", followed, failure)
            self.follower.change_refused(followed, now_ms)
        else:
            if not isinstance(failure, KafkaError | LogDirectoryError):
                # of this partition: the others are fetched all the same
                logger.error("%s could not be changed", followed, exc_info=failure)
            effects = self.follower.change_failed(followed, str(failure) or repr(failure))
        if isinstance(failure, LogDirectoryError) and not failure.is_shortage:
            self._on_storage_error(followed.partition, failure)
        for effect in effects:
            self._carry_out_one(effect)
        if not self._is_carrying_out:
            self._plan(0)

    def _fetched(self, response: FetchResponse) -> None:
        if not self._is_closed:
            now_ms = self._timers.monotonic_ms()
            self._carry_out(self.follower.fetch_answered(response, now_ms))

    def _offsets_listed(self, response: ListOffsetsResponse) -> None:
        if not self._is_closed:
            now_ms = self._timers.monotonic_ms()
            self._carry_out(self.follower.offsets_answered(response, now_ms))

    def _failed(self, error: KafkaError) -> None:
        if not self._is_closed:
            logger.debug("no answer from the leader: %s", error)
            self.follower.request_failed(self._timers.monotonic_ms())
            self._plan(0)


class ReplicaFetchers:
    """The fetchers of a broker. make: makes the fetcher of (leader's broker id, fetcher number).
    logs: shared by all fetchers. fetcher_count: num.replica.fetchers.
    """

    def __init__(
        self,
        make: Callable[[int, int], ReplicaFetcher],
        logs: FollowerLogs,
        *,
        fetcher_count: int = 1,
    ) -> None:
        self._make = make
        self._logs = logs
        self._fetcher_count = fetcher_count
        self._is_closed = False
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._places: dict[PartitionKey, tuple[int, int]] = {}

    def update(self, partition: Partition) -> None:
        """Called when a partition gets another role, leader or leader epoch, or is no longer
        hosted.
        """
        key = partition.topic_id, partition.topic_partition.partition
        place: tuple[int, int] | None = None
        if partition.role is Role.FOLLOWER and partition.leader != NO_LEADER:
            number = fetcher_number(partition.topic_partition, self._fetcher_count)
            place = partition.leader, number
        present = self._places.get(key)
        if present is not None and present == place:
            followed = self._fetchers[present].follower.get(key)
            if followed is not None and followed.is_current(partition):
                return
        waits = place is not None and self._logs.is_changing(partition)
        if present is not None and (waits or present != place):
            self._leave(key, present)
        if waits:  # for an earlier leadership: where the log ends is not known yet
            self._logs.when_idle(partition, partial(self._update_later, partition))
        elif place is not None:
            if place not in self._fetchers:
                self._fetchers[place] = self._make(*place)
            self._places[key] = place
            self._fetchers[place].follow(partition)

    def _leave(self, key: PartitionKey, place: tuple[int, int]) -> None:
        del self._places[key]
        fetcher = self._fetchers[place]
        fetcher.unfollow(key)
        if not len(fetcher.follower):
            fetcher.close()
            del self._fetchers[place]

    def _update_later(self, partition: Partition) -> None:
        """The change that the partition waited for has ended."""
        if not partition.removed and not self._is_closed:
            self.update(partition)

    def resize(self, fetcher_count: int, partitions: Iterable[Partition]) -> None:
        """Change the number of fetchers per leader. partitions: all that are hosted."""
        if fetcher_count == self._fetcher_count:
            return
        self._fetcher_count = fetcher_count
        for partition in partitions:
            self.update(partition)

    def log_start_moved(self, partition: Partition) -> None:
        """Retention moved the start of a log here."""
        key = partition.topic_id, partition.topic_partition.partition
        place = self._places.get(key)
        if place is not None:
            self._fetchers[place].log_start_moved(key)

    def close(self) -> None:
        """The broker stops."""
        self._is_closed = True
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._places.clear()


def fetcher_number(partition: TopicPartition, count: int) -> int:
    """Which of count fetchers a partition belongs to: the partitions of a topic are spread evenly.
    (Kafka's formula has Java's hash of the topic in place of the CRC. The number is internal to a
    broker.)
    """
    return (crc32(partition.topic.encode()) + partition.partition) % count
