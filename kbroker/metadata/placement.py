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

    Leaders go round the brokers from a random one on; followers stand at a distance from their
    leader that grows with each round, so that one broker's partitions have their other copies
    spread over all the rest. Unfenced brokers come before fenced ones in each list. Requires
    replication_factor <= len(brokers).
    """
    ids = sorted(broker.id for broker in brokers)
    fenced = {broker.id for broker in brokers if broker.fenced}
    first = random.randrange(len(ids))
    shift = random.randrange(len(ids)) if replication_factor > 1 else 0
    placed = []
    for partition in range(partition_count):
        leader = (first + partition) % len(ids)
        if partition and partition % len(ids) == 0:
            shift += 1
        replicas = [ids[leader]]
        for follower in range(replication_factor - 1):
            distance = 1 + (shift + follower) % (len(ids) - 1)
            replicas.append(ids[(leader + distance) % len(ids)])
        replicas.sort(key=lambda broker_id: broker_id in fenced)
        placed.append(replicas)
    return placed
