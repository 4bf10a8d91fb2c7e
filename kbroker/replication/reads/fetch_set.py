"""The partitions that a Fetch request or a fetch session reads.

A set remembers which of its partitions may have something new. Partitions are watched
(`ReplicaEnds.watch`): one that was read to its end leaves `dirty` and returns to it when its high
watermark, last stable offset, log start or leader moves. A fetch reads dirty partitions only, so a
thousand idle ones cost nothing. The order of `dirty` is the order of reading: a partition whose
records were returned goes to the end, so a small max_bytes starves none (Kafka rotates its sessions
for the same reason).

Sessions are in `fetch_session`, reading in `fetch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Final, Protocol

from kbroker.model import Uuid
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.replication.partition import Partition
from kbroker.replication.reads.replica_selector import ClosestReplica

PARTITION_BYTES: Final = 448
"""Memory of a partition in a set: itself, its numbers, its places in the dicts of the set and among
the watchers of the partition.
"""

TOPIC_BYTES: Final = 512
"""Memory of a topic in a set, beside its name."""

CHARACTER_BYTES: Final = 4

STEP_ITEMS: Final = 256
"""Topics and partitions that are added, changed or dropped in one step: a microsecond or two each.
"""

TopicKey = str | Uuid
"""A topic as the request names it: name up to v12, id from v13."""


class FetchLimits:
    """The size limits of a response and its longest wait. max_bytes: at most fetch.max.bytes."""

    __slots__ = ("max_bytes", "max_wait_ms", "min_bytes")

    def __init__(self, *, max_wait_ms: int, min_bytes: int, max_bytes: int) -> None:
        self.max_wait_ms = max_wait_ms
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes


class BytesWaiter(Protocol):
    """The fetch that waits on a set."""

    def more(self, added_bytes: int) -> None: ...
    def ready(self) -> None: ...


class FetchPartition:
    """One partition as a client reads it: a watcher of that partition.

    partition: the hosted partition once found. sent_*: the values in the last response (-1: none,
    or an error).
    """

    __slots__ = (
        "current_leader_epoch",
        "dirty",
        "fetch_offset",
        "index",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "owner",
        "partition",
        "sent_high_watermark",
        "sent_log_start_offset",
        "topic",
        "watching",
    )

    def __init__(self, owner: FetchSet, topic: TopicKey, index: int) -> None:
        self.owner = owner
        self.topic = topic
        self.index = index
        self.partition: Partition | None = None
        self.fetch_offset = 0
        self.current_leader_epoch = -1
        self.last_fetched_epoch = -1
        self.log_start_offset = -1
        self.max_bytes = 0
        self.sent_high_watermark = -1
        self.sent_log_start_offset = -1
        self.dirty = True
        self.watching = False

    def moved(self, high_watermark_bytes: int, stable_bytes: int) -> None:
        """The partition has something new (see `purgatory.Watcher`)."""
        owner = self.owner
        if not self.dirty:
            self.dirty = True
            owner.dirty[self] = None
        waiter = owner.waiter
        if waiter is not None:
            added_bytes = stable_bytes if owner.read_committed else high_watermark_bytes
            if added_bytes:
                waiter.more(added_bytes)

    def lost(self) -> None:
        """The partition must be looked up again; a waiting fetch is answered now."""
        partition = self.partition
        if partition is not None:
            partition.unwatch(self)
            self.partition = None
        self.watching = False
        owner = self.owner
        if not self.dirty:
            self.dirty = True
            owner.dirty[self] = None
        if owner.waiter is not None:
            owner.waiter.ready()

    def watch(self) -> None:
        """Register as a watcher of the partition."""
        if not self.watching and self.partition is not None and not self.owner.closed:
            self.partition.watch(self, log_end=self.owner.replica_id >= 0)
            self.watching = True

    def unwatch(self) -> None:
        if self.watching and self.partition is not None:
            self.partition.unwatch(self)
        self.watching = False


class FollowerPartition(FetchPartition):
    """A partition as a follower reads it. In a session it is clean while the follower is at the
    leader's end, which each request of the session confirms without naming the partition.
    """

    __slots__ = ()

    def moved(self, high_watermark_bytes: int, stable_bytes: int) -> None:
        """As for a consumer. Also tells the leader when the follower was last at the log's end."""
        if not self.dirty and self.partition is not None:
            self.partition.in_sync.was_at_end(
                self.owner.replica_id, self.fetch_offset, self.owner.last_used_ms
            )
        super().moved(high_watermark_bytes, stable_bytes)


class FetchSet:
    """The partitions one request, or one session, reads. waiter: the fetch that waits on it now, if
    any. replica_epoch: of the broker that follows, as its newest request says; -1 unknown.
    last_used_ms: when the newest request of a session came. from_followers: whether a consumer may
    read from replicas that are followers here; closest: the replica that a consumer should read
    from (KIP-392).
    """

    __slots__ = (
        "closed",
        "closest",
        "dirty",
        "from_followers",
        "last_used_ms",
        "names_bytes",
        "partitions",
        "read_committed",
        "replica_epoch",
        "replica_id",
        "size",
        "waiter",
    )

    lasts: ClassVar[bool] = False
    """Whether the set outlives the request, so that its partitions are worth watching."""

    last_used_ms: int

    def __init__(self, replica_id: int = -1) -> None:
        self.partitions: dict[TopicKey, dict[int, FetchPartition]] = {}
        self.dirty: dict[FetchPartition, None] = {}
        self.size = 0
        self.names_bytes = 0
        self.closed = False
        self.read_committed = False
        self.replica_id = replica_id
        self.replica_epoch = -1
        self.from_followers = False
        self.closest: ClosestReplica | None = None
        self.waiter: BytesWaiter | None = None

    @property
    def held_bytes(self) -> int:
        """The approximate memory of the set, in bytes."""
        return self.size * PARTITION_BYTES + self.names_bytes

    def __iter__(self) -> Iterator[FetchPartition]:
        for indexes in self.partitions.values():
            yield from indexes.values()

    def update(self, topics: Sequence[FetchRequest.FetchTopic], *, by_id: bool) -> None:
        """Add or change the partitions of a request. The last entry of a partition counts."""
        dirty = self.dirty
        kind = FetchPartition if self.replica_id < 0 else FollowerPartition
        for topic in topics:
            key: TopicKey = topic.topic_id if by_id else topic.topic
            indexes = self.partitions.get(key)
            if indexes is None:
                indexes = self.partitions[key] = {}
                self.names_bytes += name_bytes(key)
            for asked in topic.partitions:
                index = asked.partition
                partition = indexes.get(index)
                if partition is None:
                    partition = indexes[index] = kind(self, key, index)
                    self.size += 1
                    dirty[partition] = None
                elif not partition.dirty:
                    partition.dirty = True
                    dirty[partition] = None
                partition.fetch_offset = asked.fetch_offset
                partition.current_leader_epoch = asked.current_leader_epoch
                partition.last_fetched_epoch = asked.last_fetched_epoch
                partition.log_start_offset = asked.log_start_offset
                partition.max_bytes = asked.partition_max_bytes

    def forget(self, topics: Sequence[FetchRequest.ForgottenTopic], *, by_id: bool) -> None:
        """Drop partitions; unknown ones are ignored."""
        for topic in topics:
            key: TopicKey = topic.topic_id if by_id else topic.topic
            indexes = self.partitions.get(key)
            if indexes is None:
                continue
            for index in topic.partitions:
                partition = indexes.pop(index, None)
                if partition is not None:
                    self.size -= 1
                    self.dirty.pop(partition, None)
                    partition.unwatch()
            if not indexes:
                del self.partitions[key]
                self.names_bytes -= name_bytes(key)

    def reread(self, topic: TopicKey, indexes: Iterable[int]) -> None:
        """Mark these partitions dirty: the response about them did not reach the client."""
        partitions = self.partitions.get(topic, {})
        for index in indexes:
            partition = partitions.get(index)
            if partition is None:
                continue
            partition.sent_high_watermark = partition.sent_log_start_offset = -1
            if not partition.dirty:
                partition.dirty = True
                self.dirty[partition] = None

    def set_isolation(self, *, read_committed: bool) -> None:
        """Set the isolation level of this request; after a change every partition is dirty."""
        if read_committed != self.read_committed:
            self.read_committed = read_committed
            for partition in self:
                if not partition.dirty:
                    partition.dirty = True
                    self.dirty[partition] = None

    def close(self) -> None:
        """Stop watching all partitions. A fetch that waits is answered with what it has."""
        self.closed = True
        if self.waiter is not None:
            self.waiter.ready()
        for partition in self:
            partition.unwatch()

    def clear(self) -> None:
        """Called when the set is no longer read: leaves no reference cycle."""
        self.partitions.clear()
        self.dirty.clear()

    def close_in_steps(self) -> Iterator[None]:
        """`close` and `clear` in steps. A fetch that waits on the set, or reads it in steps, keeps
        `dirty`, which is all that it reads, and clears the set itself.
        """
        self.closed = True
        partitions, self.partitions = self.partitions, {}
        if self.waiter is None:
            self.dirty.clear()
        else:
            self.waiter.ready()
        count = 0
        try:
            while partitions:
                indexes = next(reversed(partitions.values()))
                while indexes:
                    indexes.popitem()[1].unwatch()
                    count += 1
                    if count % STEP_ITEMS == 0:
                        yield
                partitions.popitem()
                count += 1
                if count % STEP_ITEMS == 0:
                    yield
        finally:
            for indexes in partitions.values():
                for partition in indexes.values():
                    partition.unwatch()


def name_bytes(topic: TopicKey) -> int:
    return TOPIC_BYTES + CHARACTER_BYTES * len(topic)


class ReadingSteps:
    """Stands in for the waiting fetch while a fetch reads its set in steps."""

    __slots__ = ("added_bytes", "is_ready")

    def __init__(self) -> None:
        self.added_bytes = 0
        self.is_ready = False

    def more(self, added_bytes: int) -> None:
        """A partition of the set has so many more bytes to read."""
        self.added_bytes += added_bytes

    def ready(self) -> None:
        """A partition was lost."""
        self.is_ready = True
