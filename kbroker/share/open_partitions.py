"""The open share partitions of a broker (KIP-932), and the fetches that wait for their records."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol, TypeVar

from kbroker.model import TopicPartition
from kbroker.ports import Deferred, TimerHandle
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.share_partition_state import SharePlace
from kbroker.replication.partition import Partition
from kbroker.share.partition import SharePartition
from kbroker.share.runs import Change

K = TypeVar("K", bound=Hashable)
_Index = dict[K, dict[SharePlace, "OpenSharePartition"]]


class Waiting(Protocol):
    """A fetch that waits for records of a share partition."""

    def more(self, size_bytes: int) -> None:
        """size_bytes more can be read."""
        ...

    def wake(self) -> None:
        """Records are available again, or an error occurred: check now."""
        ...


class OpenSharePartition:
    """An open share partition. waiting: fetches that wait for its records. acknowledging_count: the
    acknowledgements that are being applied, in steps.
    """

    __slots__ = (
        "acknowledging_count",
        "changes",
        "core",
        "is_writing",
        "key",
        "leader_epoch",
        "reads_committed",
        "replica",
        "state_epoch",
        "timer",
        "waiting",
    )

    def __init__(
        self, key: SharePlace, replica: Partition, core: SharePartition, state_epoch: int
    ) -> None:
        self.key = key
        self.replica = replica
        self.core = core
        self.leader_epoch = replica.leader_epoch
        self.state_epoch = state_epoch
        self.reads_committed = False
        self.changes: list[tuple[Change, Deferred[ErrorCode]]] = []
        self.is_writing = False
        self.acknowledging_count = 0
        self.timer: TimerHandle | None = None
        self.waiting: dict[Waiting, None] = {}

    @property
    def is_at_rest(self) -> bool:
        """Whether it can be closed without losing state: no lock, no unwritten change."""
        is_changing = self.is_writing or self.changes or self.acknowledging_count
        return not is_changing and self.core.next_deadline_ms() is None

    @property
    def upper_offset(self) -> int:
        """The end, exclusive, of the records that the group may read."""
        replica = self.replica
        return replica.last_stable_offset if self.reads_committed else replica.high_watermark

    def readable_offset(self, max_locks: int) -> int | None:
        """The offset to read for the next delivery. None if there is nothing to read, or the
        maximum number of records is in flight.
        """
        self.core.log_start_moved(self.replica.log.log_start_offset)
        offset = self.core.next_fetch_offset(max_locks)
        return None if offset is None or offset >= self.upper_offset else offset

    def wait(self, waiting: Waiting) -> None:
        """Notify waiting when more records can be read."""
        if not self.waiting:
            self.replica.watch(self)
        self.waiting[waiting] = None

    def leave(self, waiting: Waiting) -> None:
        """Stop notifying waiting."""
        self.waiting.pop(waiting, None)
        if not self.waiting:
            self.replica.unwatch(self)

    def moved(self, high_watermark_bytes: int, stable_bytes: int) -> None:
        """The high watermark or last stable offset of the partition has advanced."""
        added = stable_bytes if self.reads_committed else high_watermark_bytes
        if added:
            for waiting in tuple(self.waiting):
                waiting.more(added)

    def lost(self) -> None:
        """The leadership of the partition has changed."""
        self.wake()

    def wake(self) -> None:
        for waiting in tuple(self.waiting):
            waiting.wake()


class OpenSharePartitions:
    """The open share partitions by their key, and indexes of them: 10,000 partitions may change
    their leaders at once, and any of them may be open for many groups.
    """

    __slots__ = ("_by_group", "_by_key", "_by_partition")

    def __init__(self) -> None:
        self._by_key: dict[SharePlace, OpenSharePartition] = {}
        self._by_group: _Index[str] = {}
        self._by_partition: _Index[TopicPartition] = {}

    def get(self, key: SharePlace) -> OpenSharePartition | None:
        """The open share partition of that key."""
        return self._by_key.get(key)

    def values(self) -> list[OpenSharePartition]:
        """All of them."""
        return list(self._by_key.values())

    def of_group(self, group_id: str) -> list[OpenSharePartition]:
        """Those of one group."""
        return list(self._by_group.get(group_id, {}).values())

    def of_partition(self, partition: TopicPartition) -> list[OpenSharePartition]:
        """Those of one partition: one for each group."""
        return list(self._by_partition.get(partition, {}).values())

    def add(self, found: OpenSharePartition) -> None:
        """Add a share partition whose key is not open."""
        key = found.key
        self._by_key[key] = found
        self._by_group.setdefault(key.group_id, {})[key] = found
        self._by_partition.setdefault(found.replica.topic_partition, {})[key] = found

    def remove(self, found: OpenSharePartition) -> None:
        """Remove a share partition; no effect if it was removed before."""
        if self._by_key.get(found.key) is not found:
            return
        del self._by_key[found.key]
        _remove(self._by_group, found.key.group_id, found.key)
        _remove(self._by_partition, found.replica.topic_partition, found.key)


def _remove(index: _Index[K], name: K, key: SharePlace) -> None:
    entries = index[name]
    del entries[key]
    if not entries:
        del index[name]
