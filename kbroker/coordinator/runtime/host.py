"""An active shard on this broker: its status, its uncommitted writes, its timer."""

from __future__ import annotations

from enum import Enum
from typing import Generic, Protocol, TypeVar

from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.runtime.result import Results
from kbroker.coordinator.runtime.uncommitted import Uncommitted
from kbroker.model import TopicPartition
from kbroker.ports import TimerHandle
from kbroker.protocol.errors import ErrorCode


class Shard(Protocol):
    """The state of one partition of an internal topic, as the runtime sees it."""

    def decode(self, key: bytes | None, value: bytes | None) -> CoordinatorRecord | None: ...
    def replay(self, record: CoordinatorRecord) -> None: ...
    def replay_transactional(self, producer_id: int, record: CoordinatorRecord) -> None: ...
    def end_transaction(self, producer_id: int, *, commit: bool) -> None: ...
    def on_loaded(self, now_ms: int) -> Results: ...
    def unload(self, error: ErrorCode) -> Results:
        """Stop coordinating: returns a reply with this error for every waiting request."""
        ...

    def next_deadline_ms(self) -> int | None: ...
    def on_deadline(self, now_ms: int) -> Results: ...
    def changes(self, record: CoordinatorRecord) -> str | None:
        """The log line for a record that was just written and replayed; None if there is none."""
        ...


S = TypeVar("S", bound=Shard)


class HostStatus(Enum):
    """LOADING -> ACTIVE -> CLOSED. FAILED: the log could not be replayed; until the next leader
    epoch.
    """

    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    CLOSED = "closed"


class Host(Generic[S]):
    """One shard and what the runtime keeps about it.

    epoch: the leader epoch of this broker. load_offset: that of the next batch to replay. timer_ms:
    when the timer fires.
    """

    __slots__ = (
        "epoch",
        "load_offset",
        "load_started_ms",
        "record_count",
        "shard",
        "status",
        "timer",
        "timer_ms",
        "topic_partition",
        "uncommitted",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        epoch: int,
        shard: S,
        uncommitted: Uncommitted,
        now_ms: int,
    ) -> None:
        self.topic_partition = topic_partition
        self.epoch = epoch
        self.shard = shard
        self.status = HostStatus.LOADING
        self.load_offset = 0
        self.load_started_ms = now_ms
        self.record_count = 0
        self.uncommitted = uncommitted
        self.timer: TimerHandle | None = None
        self.timer_ms = 0
