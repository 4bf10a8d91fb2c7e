"""Where replicas go and which of them leads. Racks come with the issue that brings more brokers."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from kbroker.metadata.image import BrokerRegistration


def place(
    brokers: Sequence[BrokerRegistration],
    *,
    partition_count: int,
    replication_factor: int,
    random: Random,
) -> list[list[int]]:
    """Replica lists for new partitions, the preferred leader first.

    Leaders go round the active brokers (neither fenced nor shutting down) from a random one on;
    followers stand at a distance from their leader that grows with each round, so that one broker's
    partitions have their other copies spread over all the rest, active ones before the others.
    Requires at least one active broker, and replication_factor <= len(brokers).
    """
    idle = {broker.id for broker in brokers if broker.fenced or broker.in_controlled_shutdown}
    ids = sorted(
        (broker.id for broker in brokers), key=lambda broker_id: (broker_id in idle, broker_id)
    )
    active_count = len(ids) - len(idle)
    first = random.randrange(active_count)
    shift = random.randrange(len(ids)) if replication_factor > 1 else 0
    placed = []
    for partition in range(partition_count):
        leader = (first + partition) % active_count
        if partition and leader == first:
            shift += 1
        others = [
            ids[(leader + 1 + (shift + step) % (len(ids) - 1)) % len(ids)]
            for step in range(len(ids) - 1)
        ]
        others.sort(key=lambda broker_id: broker_id in idle)
        placed.append([ids[leader], *others[: replication_factor - 1]])
    return placed
