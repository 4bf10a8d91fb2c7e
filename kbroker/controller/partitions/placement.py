"""Where the replicas of new partitions go, and which of them leads first.

Striped placement: leaders go round the racks and the brokers in them, followers go to other racks
as far as there are any, and unfenced brokers come before fenced ones. Kafka: StripedReplicaPlacer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from typing import Final, Protocol, TypeVar

from kbroker.metadata.image import BrokerRegistration, MetadataImage
from kbroker.model import MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY, Uuid
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.stored.metadata_records import PartitionRecord

T = TypeVar("T")

SORTED_REPLICAS: Final = 1000
"""Replicas of a manual assignment that are looked at, beside as many as there are brokers. A
request of 1 MB may name 250,000.
"""


class Draws(Protocol):
    """The part of `random.Random` that placement uses."""

    def randrange(self, stop: int, /) -> int:
        """A number from 0 to stop - 1."""
        ...


def place(
    brokers: Iterable[BrokerRegistration],
    *,
    partition_count: int,
    replication_factor: int,
    random: Draws,
) -> list[list[int]]:
    """Replica lists for new partitions; see `placements`."""
    placed = placements(brokers, replication_factor=replication_factor, random=random)
    return list(islice(placed, partition_count))


def placements(
    brokers: Iterable[BrokerRegistration], *, replication_factor: int, random: Draws
) -> Iterator[list[int]]:
    """The replicas of one new partition after the other, without an end, the preferred leader
    first. brokers: the usable ones.

    Raises KafkaError(INVALID_REPLICATION_FACTOR), at once.
    """
    racks = _Racks(brokers, random)
    if replication_factor <= 0:
        raise _not_placeable(
            f"Invalid replication factor {replication_factor}: the replication factor must be "
            "positive."
        )
    if racks.unfenced_count == 0:
        raise _not_placeable(
            "All brokers are currently fenced, or have all their log directories cordoned."
        )
    if replication_factor > racks.broker_count:
        raise _not_placeable(
            f"The target replication factor of {replication_factor} cannot be reached because "
            f"only {racks.broker_count} broker(s) are registered or some brokers have all their "
            "log directories cordoned."
        )
    return (racks.place(replication_factor) for _ in repeat(None))


def usable_for_placement(image: MetadataImage) -> list[BrokerRegistration]:
    """The brokers that may get new replicas, by id: not those that shut down, and not those whose
    directories are all cordoned. Fenced brokers may.
    """
    return [
        broker
        for _, broker in sorted(image.brokers.items())
        if not broker.in_controlled_shutdown and _has_uncordoned_directory(broker)
    ]


def check_replicas(
    image: MetadataImage, replicas: Sequence[int], replication_factor: int | None
) -> None:
    """The replicas of a manual assignment; replication_factor: the number there must be of them.

    Raises KafkaError(INVALID_REPLICA_ASSIGNMENT).
    """
    if not replicas:
        raise bad_assignment("The manual partition assignment includes an empty replica list.")
    seen: set[int] = set()
    # If they are more than the brokers, the first of them name one twice or an unknown one.
    for replica in sorted(replicas[: len(image.brokers) + SORTED_REPLICAS]):
        if replica not in image.brokers:
            raise bad_assignment(
                f"The manual partition assignment includes broker {replica}, but no such "
                "broker is registered."
            )
        if replica in seen:
            raise bad_assignment(
                f"The manual partition assignment includes the broker {replica} more than once."
            )
        seen.add(replica)
    if replication_factor is not None and len(replicas) != replication_factor:
        raise bad_assignment(
            f"The manual partition assignment includes a partition with {len(replicas)} "
            "replica(s), but this is "
            f"not consistent with previous partitions, which have {replication_factor} replica(s)."
        )


def default_directory(broker: BrokerRegistration | None) -> Uuid:
    """The directory of a new replica on that broker (None: not registered), if it is known: a
    broker with several directories chooses one itself and reports it.
    """
    if broker is None or len(broker.log_dirs) > 1:
        return UNASSIGNED_DIRECTORY
    return broker.log_dirs[0] if broker.log_dirs else MIGRATING_DIRECTORY


def new_partition_record(
    image: MetadataImage, topic_id: Uuid, index: int, replicas: Sequence[int]
) -> PartitionRecord:
    """A new partition on these replicas, at least one of which is active: the active ones are in
    its ISR, and the first of them leads.
    """
    isr = [replica for replica in replicas if image.is_active(replica)]
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=list(replicas),
        isr=isr,
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=[default_directory(image.brokers.get(replica)) for replica in replicas],
    )


def bad_assignment(message: str) -> KafkaError:
    """The refusal of a manual assignment."""
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def _not_placeable(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)


def _has_uncordoned_directory(broker: BrokerRegistration) -> bool:
    if not broker.log_dirs or broker.cordoned_log_dirs is None:
        return True
    return not set(broker.log_dirs) <= set(broker.cordoned_log_dirs)


NO_BROKER: Final = -1


class _BrokerList:
    """Brokers of a rack in the order in which they get replicas. The list starts one further with
    each partition.
    """

    __slots__ = ("_index", "_offset", "_partition", "_random", "ids")

    def __init__(self, random: Draws) -> None:
        self._random = random
        self.ids: list[int] = []
        self._index = self._offset = self._partition = 0

    def start(self) -> None:
        """All brokers are in: draw where the list starts."""
        if self.ids:
            self.ids.sort()
            self._offset = self._random.randrange(len(self.ids))

    def shuffle(self) -> None:
        _shuffle(self.ids, self._random)

    def next(self, partition: int) -> int:
        """The next broker for a replica of this partition; NO_BROKER if all have one."""
        if not self.ids:
            return NO_BROKER
        if self._partition != partition:
            self._partition = partition
            self._index = 0
            self._offset = (self._offset + 1) % len(self.ids)
        if self._index >= len(self.ids):
            return NO_BROKER
        broker = self.ids[(self._index + self._offset) % len(self.ids)]
        self._index += 1
        return broker


class _Rack:
    """The brokers of one rack."""

    __slots__ = ("fenced", "unfenced")

    def __init__(self, random: Draws) -> None:
        self.fenced = _BrokerList(random)
        self.unfenced = _BrokerList(random)

    def next(self, partition: int) -> int:
        """As `_BrokerList.next`, unfenced brokers first."""
        broker = self.unfenced.next(partition)
        return self.fenced.next(partition) if broker == NO_BROKER else broker


class _Racks:
    """All racks; a broker without one is in the rack None, which comes first.

    _partition: counts the partitions placed since the last shuffle.
    """

    __slots__ = (
        "_names",
        "_offset",
        "_partition",
        "_racks",
        "_random",
        "broker_count",
        "unfenced_count",
    )

    def __init__(self, brokers: Iterable[BrokerRegistration], random: Draws) -> None:
        self._random = random
        self._racks: dict[str | None, _Rack] = {}
        self.broker_count = self.unfenced_count = 0
        for broker in brokers:
            rack = self._racks.get(broker.rack)
            if rack is None:
                rack = self._racks[broker.rack] = _Rack(random)
            (rack.fenced if broker.fenced else rack.unfenced).ids.append(broker.id)
            self.broker_count += 1
            self.unfenced_count += not broker.fenced
        for rack in self._racks.values():
            rack.fenced.start()
            rack.unfenced.start()
        self._names = sorted(self._racks, key=lambda name: (name is not None, name or ""))
        self._partition = 0
        self._offset = random.randrange(len(self._names)) if self._names else 0

    def place(self, replication_factor: int) -> list[int]:
        """The replicas of the next partition. Requires an unfenced broker, and as many brokers as
        replicas.
        """
        if self._partition == self.unfenced_count and self.unfenced_count > 1:
            self._shuffle()  # so that the same assignments do not come again
            self._partition = 0
        if self._offset == len(self._names):
            self._offset = 0
        leader_rack = self._offset
        while (leader := self._rack(leader_rack).unfenced.next(self._partition)) == NO_BROKER:
            leader_rack = (leader_rack + 1) % len(self._names)
        replicas = [leader]
        rack = self._offset
        pass_over: int | None = leader_rack  # once: the leader's rack has a replica already
        while len(replicas) < replication_factor:
            broker = NO_BROKER
            if rack == pass_over:
                pass_over = None
            else:
                broker = self._rack(rack).next(self._partition)
            rack = (rack + 1) % len(self._names)
            if broker != NO_BROKER:
                replicas.append(broker)
        self._partition += 1
        self._offset += 1
        return replicas

    def _rack(self, index: int) -> _Rack:
        return self._racks[self._names[index]]

    def _shuffle(self) -> None:
        _shuffle(self._names, self._random)
        for rack in self._racks.values():
            rack.fenced.shuffle()
            rack.unfenced.shuffle()


def _shuffle(items: list[T], random: Draws) -> None:
    """Fisher-Yates from the end, as java.util.Collections."""
    for size in range(len(items), 1, -1):
        drawn = random.randrange(size)
        items[size - 1], items[drawn] = items[drawn], items[size - 1]
