"""The partitions of this broker that follow one leader (Kafka's AbstractFetcherThread and
ReplicaFetcherThread): which request the leader is sent next, and which changes of logs follow from
its responses.

A core: time is an argument, and it returns `Effect`s, in order. The shell (`fetchers`) sends the
requests, lets `follower_log` change the logs, and reports each outcome. At most one request is in
flight. None is sent while a change of a log is in progress, so that the next Fetch includes that
partition. After CHANGE_PATIENCE_MS the other partitions are fetched without it.

    TRUNCATING -> FETCHING       a log without leader epochs was cut at the high watermark
    FETCHING -> OUT_OF_RANGE     the leader does not have the fetch offset
    OUT_OF_RANGE -> FETCHING     the leader's log end and start are known, the log was cut to fit
    any -> FAILED                fenced by the leader, own disk failed; until a newer leader epoch

A partition in FETCHING may be delayed by replica.fetch.backoff.ms, and leaves the fetch session for
that time. Fetch itself finds where logs diverge (KIP-595): the response has the leader's largest
epoch up to the last fetched one, and the end of that epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from kbroker.model import TopicPartition
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kbroker.replication.divergence import truncation
from kbroker.replication.followers.followed_partition import (
    UNKNOWN,
    AppendFetched,
    Effect,
    FollowedPartition,
    FollowState,
    LogChange,
    ReportFailed,
    SendFetch,
    SendListOffsets,
    StartOverAt,
    TruncateTo,
)
from kbroker.replication.followers.follower_session import (
    FollowerSession,
    PartitionKey,
    Position,
    ReplicaFetchLimits,
)
from kbroker.replication.partition import Partition
from kbroker.replication.throttle import ReplicationThrottle

HELD_BACK_MS: Final = 250
"""How long a throttled partition is not fetched before its throttle is checked again."""

CHANGE_PATIENCE_MS: Final = 1_000
"""How long a change of one log may delay the fetching of the other partitions."""

_FETCHING: Final = FollowState.FETCHING
"""To look a member up in its enum costs ten times as much."""

_new_tuple: Final = tuple.__new__

LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2


class FollowedPartitions:
    """All partitions of this broker that follow one leader. node_id: of this broker. broker_epoch:
    returns the epoch of its current registration. backoff_ms: replica.fetch.backoff.ms. throttle:
    limits what this broker fetches.
    """

    def __init__(
        self,
        node_id: int,
        limits: ReplicaFetchLimits,
        *,
        backoff_ms: int,
        broker_epoch: Callable[[], int],
        throttle: ReplicationThrottle | None = None,
    ) -> None:
        self._node_id = node_id
        self._throttle = throttle or ReplicationThrottle()
        self._backoff_ms = backoff_ms
        self._broker_epoch = broker_epoch
        self._session = FollowerSession(limits)
        self._followed: dict[PartitionKey, FollowedPartition] = {}
        """In the order of reading: a partition that got records goes to the end."""
        self._changed: dict[PartitionKey, None] = {}
        """Partitions whose position in the fetch session may be out of date."""
        self._delayed: dict[FollowedPartition, int] = {}
        """The time at which each delayed partition is due; all delays are equal, so the order is
        that of the deadlines.
        """
        self._held_back: dict[FollowedPartition, int] = {}
        """The time until which each throttled partition is not fetched."""
        self._out_of_range: dict[FollowedPartition, None] = {}
        self._under_way: dict[FollowedPartition, int] = {}
        """Partitions with a change of their log in progress, and its start time."""
        self._patient_until_ms: int | None = None
        """The time until which no Fetch is sent because of a change of a log; None: no wait."""
        self._asked_offsets: dict[TopicPartition, FollowedPartition] = {}
        self._awaits_fetch = False

    # followed partitions

    def __len__(self) -> int:
        return len(self._followed)

    def get(self, key: PartitionKey) -> FollowedPartition | None:
        """A followed partition, which may have failed."""
        return self._followed.get(key)

    def follow(self, partition: Partition) -> None:
        """Follow the leader in the partition's leader epoch; the same epoch changes nothing, unless
        the partition failed.
        """
        followed = FollowedPartition(partition)
        key = followed.key
        present = self._followed.get(key)
        if present is not None:
            if present.is_current(partition):
                return
            self._remove(present)
        self._followed[key] = followed
        self._changed[key] = None

    def unfollow(self, key: PartitionKey) -> None:
        """Stop following; a response that is in flight is ignored for the partition."""
        followed = self._followed.get(key)
        if followed is not None:
            self._remove(followed)

    def log_start_moved(self, key: PartitionKey) -> None:
        """Retention moved the log start offset here. The next Fetch tells the leader."""
        if key in self._followed:
            self._changed[key] = None

    def _remove(self, followed: FollowedPartition) -> None:
        followed.state = FollowState.REMOVED
        key = followed.key
        del self._followed[key]
        self._delayed.pop(followed, None)
        self._held_back.pop(followed, None)
        self._out_of_range.pop(followed, None)
        self._changed[key] = None

    # requests

    def poll(self, now_ms: int) -> list[Effect]:
        """Return the effects that are due. Called after every event, and at `next_deadline_ms`."""
        if self._awaits_fetch or self._asked_offsets or self._awaits_changes(now_ms):
            return []
        if self._delayed or self._held_back:
            self._end_delays(now_ms)
        effects: list[Effect] = list(self._start_changed(now_ms))
        if effects:
            return effects
        if self._out_of_range:
            return [SendListOffsets(self._offsets_request())]
        if self._throttle.is_active:
            self._hold_back(now_ms)
        request = self._fetch_request()
        if request is None:
            return []
        self._awaits_fetch = True
        return [SendFetch(request)]

    def next_deadline_ms(self) -> int | None:
        """When `poll` is due if nothing happens before."""
        if self._awaits_fetch or self._asked_offsets:
            return None
        if self._patient_until_ms is not None:
            return self._patient_until_ms
        due_ms = [next(iter(each.values())) for each in (self._delayed, self._held_back) if each]
        return min(due_ms, default=None)

    def _begin_change(self, followed: FollowedPartition, now_ms: int) -> None:
        followed.is_changing = True
        self._under_way[followed] = now_ms

    def _end_change(self, followed: FollowedPartition) -> None:
        followed.is_changing = False
        self._under_way.pop(followed, None)

    def _awaits_changes(self, now_ms: int) -> bool:
        """Whether to wait for a change of a log. Otherwise the next Fetch leaves the partitions
        with a change out.
        """
        self._patient_until_ms = None
        if not self._under_way:
            return False
        until_ms = next(reversed(self._under_way.values())) + CHANGE_PATIENCE_MS
        if now_ms < until_ms:
            self._patient_until_ms = until_ms
            return True
        for followed in self._under_way:
            self._changed[followed.key] = None
        return False

    def _end_delays(self, now_ms: int) -> None:
        for waiting in (self._delayed, self._held_back):
            while waiting:
                followed, due_ms = next(iter(waiting.items()))
                if due_ms > now_ms:
                    break
                del waiting[followed]
                followed.is_delayed = followed in self._delayed or followed in self._held_back
                self._changed[followed.key] = None

    def _hold_back(self, now_ms: int) -> None:
        """Exclude throttled partitions that are not in sync from the fetch while the rate is above
        the limit.
        """
        throttle = self._throttle
        if not throttle.is_exceeded(now_ms):
            return
        for followed in self._followed.values():
            name = followed.partition.topic_partition
            if followed.is_ready and throttle.holds_back(name, followed.lag == 0, now_ms):
                followed.is_delayed = True
                self._held_back[followed] = now_ms + HELD_BACK_MS
                self._changed[followed.key] = None

    def _start_changed(self, now_ms: int) -> Iterator[Effect]:
        """Set the positions of partitions that are followed anew. Without leader epochs the point
        of divergence cannot be found, so a log is truncated to its high watermark.
        """
        for key in self._changed:
            followed = self._followed.get(key)
            if followed is None or followed.is_started or followed.is_delayed:
                continue
            followed.is_started = True
            partition = followed.partition
            log = partition.log
            followed.fetch_offset = log.log_end_offset
            if (
                log.leader_epochs.latest_epoch is None
                and partition.high_watermark < log.log_end_offset
            ):
                followed.state = FollowState.TRUNCATING
                self._begin_change(followed, now_ms)
                yield TruncateTo(followed, partition.high_watermark)

    def _fetch_request(self) -> FetchRequest | None:
        session, broker_epoch = self._session, self._broker_epoch()
        changed, self._changed = self._changed, {}
        if session.is_full:
            return session.full_request(
                (
                    (key, followed.position)
                    for key, followed in self._followed.items()
                    if followed.is_ready
                ),
                replica_id=self._node_id,
                broker_epoch=broker_epoch,
            )
        return session.incremental_request(
            self._positions(changed), replica_id=self._node_id, broker_epoch=broker_epoch
        )

    def _positions(
        self, keys: Iterable[PartitionKey]
    ) -> Iterator[tuple[PartitionKey, Position | None]]:
        for key in keys:
            followed = self._followed.get(key)
            yield key, None if followed is None or not followed.is_ready else followed.position

    def _offsets_request(self) -> ListOffsetsRequest:
        """The ListOffsets request for partitions that are out of range: first for the leader's log
        end, then for its log start if the end alone does not decide.
        """
        topics: dict[str, ListOffsetsRequest.ListOffsetsTopic] = {}
        for followed in self._out_of_range:
            name, index = followed.partition.topic_partition
            self._asked_offsets[followed.partition.topic_partition] = followed
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=[])
            topic.partitions.append(
                ListOffsetsRequest.ListOffsetsPartition(
                    partition_index=index,
                    current_leader_epoch=followed.leader_epoch,
                    timestamp=LATEST_TIMESTAMP if followed.leader_end < 0 else EARLIEST_TIMESTAMP,
                )
            )
        return ListOffsetsRequest(replica_id=self._node_id, topics=list(topics.values()))

    # responses

    def fetch_answered(self, response: FetchResponse, now_ms: int) -> Iterator[Effect]:
        """The leader answered a Fetch. The effects may be carried out one by one, in several turns
        of the loop; the next request is sent after the last one.
        """
        was_full = self._session.is_full
        if not self._session.answered(response):
            self._awaits_fetch = False
            if was_full:  # the next request is the same one
                self._delay_all(now_ms)
            return
        positions = self._session.positions
        for topic in response.responses:
            topic_id = topic.topic_id
            for data in topic.partitions:
                key = topic_id, data.partition_index
                followed = self._followed.get(key)
                if followed is None or not (followed.is_started and followed.is_ready):
                    continue
                asked = positions[key]
                if asked[0] == followed.fetch_offset and asked[1] == followed.leader_epoch:
                    effect = self._fetched(followed, data, now_ms)
                    if effect is not None:
                        yield effect
        self._awaits_fetch = False

    def _fetched(
        self, followed: FollowedPartition, data: FetchResponse.PartitionData, now_ms: int
    ) -> Effect | None:
        if data.error_code:
            return self._refused(followed, ErrorCode(data.error_code), now_ms)
        log = followed.partition.log
        diverging = data.diverging_epoch
        if diverging.epoch >= 0:
            # the high watermark and log start of this answer are not applied: they may lie beyond
            # what is left of this log (KAFKA-14704)
            cut = truncation(log, diverging.epoch, diverging.end_offset)
            self._begin_change(followed, now_ms)
            return TruncateTo(followed, cut.offset)
        if log.log_end_offset != followed.fetch_offset:
            reason = f"fetched from {followed.fetch_offset}, the log ends at {log.log_end_offset}"
            return self._fail(followed, reason)
        followed.is_changing = True
        self._under_way[followed] = now_ms
        records = data.records or b""
        high_watermark = followed.leader_offset = data.high_watermark
        if records and self._throttle.is_active:
            self._throttle.count([(followed.partition.topic_partition, records)], now_ms)
        return _new_tuple(AppendFetched, (followed, records, high_watermark, data.log_start_offset))

    def _refused(self, followed: FollowedPartition, error: ErrorCode, now_ms: int) -> Effect | None:
        """The leader answered for one partition with an error."""
        if error is ErrorCode.OFFSET_OUT_OF_RANGE:
            followed.state = FollowState.OUT_OF_RANGE
            followed.leader_end = UNKNOWN
            self._out_of_range[followed] = None
            self._changed[followed.key] = None
        elif error is ErrorCode.FENCED_LEADER_EPOCH:
            return self._fenced(followed)
        else:
            self._delay(followed, now_ms)
        return None

    def offsets_answered(self, response: ListOffsetsResponse, now_ms: int) -> list[Effect]:
        """The leader answered a ListOffsets."""
        asked, self._asked_offsets = self._asked_offsets, {}
        effects: list[Effect] = []
        for topic in response.topics:
            for data in topic.partitions:
                followed = asked.pop(TopicPartition(topic.name, data.partition_index), None)
                if followed is None or followed.state is not FollowState.OUT_OF_RANGE:
                    continue
                if not data.error_code:
                    effects += self._located(followed, data.offset, now_ms)
                    continue
                self._end_out_of_range(followed)
                if data.error_code == ErrorCode.FENCED_LEADER_EPOCH:
                    effects.append(self._fenced(followed))
                else:
                    self._delay(followed, now_ms)
        for followed in asked.values():
            self._end_out_of_range(followed)
            self._delay(followed, now_ms)
        return effects

    def _located(self, followed: FollowedPartition, offset: int, now_ms: int) -> Iterator[Effect]:
        """Handle the leader's log end, or its log start, of a partition that is out of range.

        If the leader's log end is below the end of this log, there was an unclean election, and
        this log is truncated to it. If the leader's log start is beyond the end of this log, this
        replica was down for long, and restarts there. Otherwise the leader's log has grown since,
        and the next Fetch finds where the logs diverge.
        """
        own_end = followed.partition.log.log_end_offset
        if followed.leader_end < 0 and offset >= own_end:
            followed.leader_end = offset
            return  # the log start is asked for next
        change: LogChange | None = None
        if followed.leader_end < 0:
            change = TruncateTo(followed, offset)
            followed.leader_offset = offset
        else:
            if offset > own_end:
                change = StartOverAt(followed, offset)
            followed.leader_offset = followed.leader_end
        self._end_out_of_range(followed)
        if change is not None:
            self._begin_change(followed, now_ms)
            yield change
        else:
            self._moved(followed)

    def _end_out_of_range(self, followed: FollowedPartition) -> None:
        del self._out_of_range[followed]
        followed.state = FollowState.FETCHING
        self._changed[followed.key] = None

    def request_failed(self, now_ms: int) -> None:
        """The request in flight failed."""
        if self._awaits_fetch:
            self._awaits_fetch = False
            self._session.failed()
            self._delay_all(now_ms)
        asked, self._asked_offsets = self._asked_offsets, {}
        for followed in asked.values():
            if followed.state is FollowState.OUT_OF_RANGE:
                self._end_out_of_range(followed)
                self._delay(followed, now_ms)

    # outcomes of changes of logs

    def changed(self, followed: FollowedPartition) -> None:
        """A change of the partition's log is done."""
        followed.is_changing = False
        self._under_way.pop(followed, None)
        if followed.state is FollowState.TRUNCATING:
            followed.state = _FETCHING
        if followed.state is _FETCHING:
            self._moved(followed)

    def change_refused(self, followed: FollowedPartition, now_ms: int) -> None:
        """A change of the log was not completed, but may succeed later: the records were corrupt,
        and are fetched again, never skipped; or the process had no file descriptor left.
        """
        self._end_change(followed)
        if followed.state is FollowState.TRUNCATING:
            followed.state = FollowState.FETCHING
            followed.is_started = False
        if followed.state is FollowState.FETCHING:
            if followed.is_started:
                self._moved(followed)  # sound batches before corrupt ones were appended
            self._delay(followed, now_ms)

    def change_failed(self, followed: FollowedPartition, reason: str) -> list[Effect]:
        """The log could not be changed, so the partition fails."""
        self._end_change(followed)
        if followed.state is FollowState.REMOVED:
            return []
        return [self._fail(followed, reason)]

    def _moved(self, followed: FollowedPartition) -> None:
        """Called when the end of the log may have moved."""
        end = followed.partition.log.log_end_offset
        if end != followed.fetch_offset:
            followed.fetch_offset = end
            key = followed.key
            self._changed[key] = None
            del self._followed[key]
            self._followed[key] = followed
        elif self._session.positions.get(followed.key) != followed.position:
            self._changed[followed.key] = None

    def _delay(self, followed: FollowedPartition, now_ms: int) -> None:
        if not followed.is_delayed:
            followed.is_delayed = True
            self._delayed[followed] = now_ms + self._backoff_ms
            self._changed[followed.key] = None

    def _delay_all(self, now_ms: int) -> None:
        for followed in self._followed.values():
            if followed.state is FollowState.FETCHING:
                self._delay(followed, now_ms)

    def _fenced(self, followed: FollowedPartition) -> ReportFailed:
        """The leader has a newer epoch, of which this broker will learn from the metadata."""
        return self._fail(followed, f"fenced in leader epoch {followed.leader_epoch}")

    def _fail(self, followed: FollowedPartition, reason: str) -> ReportFailed:
        followed.state = FollowState.FAILED
        self._delayed.pop(followed, None)
        self._held_back.pop(followed, None)
        self._out_of_range.pop(followed, None)
        self._changed[followed.key] = None
        return ReportFailed(followed, reason)
