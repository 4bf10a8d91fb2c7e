"""The fetch session of a follower with one leader (KIP-227, KIP-516): after the first Fetch, which
names every partition, a request names only partitions that are to be read from another position.

The leader's side is `fetch_session`; which partitions are fetched is decided in `follower`. Kafka's
FetchSessionHandler.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kbroker.model import Uuid
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.replication.reads.fetch_session import INITIAL_EPOCH, NO_SESSION_ID, next_epoch

PartitionKey = tuple[Uuid, int]
"""Topic id and partition index."""


class Position(NamedTuple):
    """The position from which a follower reads a partition. last_fetched_epoch: -1 for none."""

    fetch_offset: int
    leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int


class ReplicaFetchLimits(NamedTuple):
    """replica.fetch.wait.max.ms, .min.bytes, .response.max.bytes and .max.bytes."""

    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 10 << 20
    partition_max_bytes: int = 1 << 20


class FollowerSession:
    """positions: what the newest request asked for, per partition. is_full: whether the next
    request must name every partition.
    """

    __slots__ = ("_epoch", "_limits", "_session_id", "positions")

    def __init__(self, limits: ReplicaFetchLimits) -> None:
        self._limits = limits
        self._session_id = NO_SESSION_ID
        self._epoch = INITIAL_EPOCH
        self.positions: dict[PartitionKey, Position] = {}

    @property
    def is_full(self) -> bool:
        return self._epoch == INITIAL_EPOCH

    def full_request(
        self,
        positions: Iterable[tuple[PartitionKey, Position]],
        *,
        replica_id: int,
        broker_epoch: int,
    ) -> FetchRequest | None:
        """The request that begins a session with these partitions; None if there are none."""
        self.positions = dict(positions)
        if not self.positions:
            return None
        return self._request(self.positions, (), replica_id, broker_epoch)

    def incremental_request(
        self,
        changed: Iterable[tuple[PartitionKey, Position | None]],
        *,
        replica_id: int,
        broker_epoch: int,
    ) -> FetchRequest | None:
        """The next request of a session. changed: the partitions whose position may differ from the
        last request; a position of None means that the partition is not fetched now. Returns None
        if the session has no partition and the leader knows that.
        """
        updated: dict[PartitionKey, Position] = {}
        forgotten: list[PartitionKey] = []
        for key, position in changed:
            if position is None:
                if self.positions.pop(key, None) is not None:
                    forgotten.append(key)
            elif self.positions.get(key) != position:
                self.positions[key] = updated[key] = position
        if not self.positions and not forgotten:
            return None
        return self._request(updated, forgotten, replica_id, broker_epoch)

    def _request(
        self,
        updated: dict[PartitionKey, Position],
        forgotten: Iterable[PartitionKey],
        replica_id: int,
        broker_epoch: int,
    ) -> FetchRequest:
        limits = self._limits
        topics: dict[Uuid, FetchRequest.FetchTopic] = {}
        for (topic_id, index), position in updated.items():
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = FetchRequest.FetchTopic(topic_id=topic_id, partitions=[])
            topic.partitions.append(
                FetchRequest.FetchPartition(
                    partition=index,
                    current_leader_epoch=position.leader_epoch,
                    fetch_offset=position.fetch_offset,
                    last_fetched_epoch=position.last_fetched_epoch,
                    log_start_offset=position.log_start_offset,
                    partition_max_bytes=limits.partition_max_bytes,
                )
            )
        dropped: dict[Uuid, FetchRequest.ForgottenTopic] = {}
        for topic_id, index in forgotten:
            gone = dropped.get(topic_id)
            if gone is None:
                gone = dropped[topic_id] = FetchRequest.ForgottenTopic(
                    topic_id=topic_id, partitions=[]
                )
            gone.partitions.append(index)
        return FetchRequest(
            replica_state=FetchRequest.ReplicaState(
                replica_id=replica_id, replica_epoch=broker_epoch
            ),
            max_wait_ms=limits.max_wait_ms,
            min_bytes=limits.min_bytes,
            max_bytes=limits.max_bytes,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=list(topics.values()),
            forgotten_topics_data=list(dropped.values()),
        )

    def answered(self, response: FetchResponse) -> bool:
        """Handle the response to the newest request. Returns whether its partitions are valid;
        otherwise the next request is a full one.
        """
        if response.error_code:
            is_unknown = response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            self._begin_anew(close=not is_unknown)
            return False
        keys = {
            (topic.topic_id, partition.partition_index)
            for topic in response.responses
            for partition in topic.partitions
        }
        if self.is_full:
            if keys != self.positions.keys():
                self._begin_anew(close=False)
                return False
            self._session_id = response.session_id
            if response.session_id != NO_SESSION_ID:
                self._epoch = next_epoch(self._epoch)
            return True
        if not keys <= self.positions.keys():
            self._begin_anew(close=True)
            return False
        if response.session_id == NO_SESSION_ID:
            self._begin_anew(close=False)
        else:
            self._epoch = next_epoch(self._epoch)
        return True

    def failed(self) -> None:
        """The request failed, so it is unknown whether the leader has handled it."""
        self._begin_anew(close=True)

    def _begin_anew(self, *, close: bool) -> None:
        """close: the leader is to close the present session, if it has one."""
        self._epoch = INITIAL_EPOCH
        if not close:
            self._session_id = NO_SESSION_ID
