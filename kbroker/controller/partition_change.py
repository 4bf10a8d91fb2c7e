"""From "these brokers may no longer (or may again) lead" to PartitionChangeRecords: leader choice
with ELR (KIP-966).

The records are those Kafka's controller writes, field for field: see docs/metadata.md for the
rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from kbroker.metadata.image import (
    NO_LEADER,
    MetadataImage,
    PartitionImage,
    TopicImage,
    has_online_directory,
)
from kbroker.protocol.messages.metadata_records import PartitionChangeRecord

RECOVERING: Final = 1


def partition_change(
    topic: TopicImage,
    index: int,
    *,
    leaving: int = -1,
    unclean: bool = False,
    acceptable: Callable[[int], bool],
    min_insync_replicas: int,
    elr_enabled: bool,
) -> PartitionChangeRecord | None:
    """The change that follows from `leaving` dropping out (-1: no replica) and from who is
    acceptable as leader now.

    unclean: the leaving broker may have lost its unsynced tail, so it is in no ISR and no ELR any
    more. Without ELR the last member always stays in the ISR. Returns None if nothing changes.
    """
    old = topic.partitions[index]
    isr = tuple(replica for replica in old.isr if replica != leaving)
    if not isr and not elr_enabled:
        isr = old.isr
    leader, isr, recovering = _elect(old, isr, leaving, unclean, acceptable, elr_enabled)
    elr, last_known = old.elr, old.last_known_elr
    if elr_enabled:
        elr, last_known = _eligible(old, isr, leaving if unclean else -1, min_insync_replicas)
        if not isr:
            last_known = (old.leader,) if old.leader != NO_LEADER else old.last_known_elr
    record = PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id)
    if isr != old.isr:
        record.isr = list(isr)
    if leader != old.leader or (leader != NO_LEADER and set(isr) < set(old.isr)):
        record.leader = leader
    if recovering:
        record.leader_recovery_state = RECOVERING
    if elr != old.elr:
        record.eligible_leader_replicas = list(elr)
    if last_known != old.last_known_elr:
        record.last_known_elr = list(last_known)
    unchanged = record == PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id)
    return None if unchanged else record


def _elect(
    old: PartitionImage,
    isr: tuple[int, ...],
    leaving: int,
    unclean: bool,
    acceptable: Callable[[int], bool],
    elr_enabled: bool,
) -> tuple[int, tuple[int, ...], bool]:
    """(leader, ISR, whether the leader may lack committed records)."""

    def may_lead(replica: int) -> bool:
        return replica != leaving and acceptable(replica)

    if old.leader in isr and may_lead(old.leader):
        return old.leader, isr, False
    for replica in old.replicas:
        if replica in isr and may_lead(replica):
            return replica, isr, False
    if elr_enabled:
        for replica in old.replicas:
            if replica in old.elr and may_lead(replica):
                return replica, (*isr, replica), False
        lost = not isr and not (set(old.elr) - ({leaving} if unclean else set()))
        if lost and len(old.last_known_elr) == 1 and may_lead(old.last_known_elr[0]):
            return old.last_known_elr[0], (old.last_known_elr[0],), True
    return NO_LEADER, isr, False


def _eligible(
    old: PartitionImage, isr: tuple[int, ...], unclean: int, min_insync_replicas: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(ELR, last known ELR) that go with the new ISR."""
    if len(isr) >= min(min_insync_replicas, len(old.replicas)):
        return (), ()
    candidates = [*old.elr, *(replica for replica in old.isr if replica not in old.elr)]
    elr = tuple(replica for replica in candidates if replica not in isr and replica != unclean)
    known = [*candidates, *(replica for replica in old.last_known_elr if replica not in candidates)]
    return elr, tuple(replica for replica in known if replica not in isr and replica not in elr)


def is_acceptable(image: MetadataImage, partition: PartitionImage, replica: int) -> bool:
    """Whether the broker is active and the directory of its replica online."""
    broker = image.brokers.get(replica)
    if broker is None or broker.fenced or broker.in_controlled_shutdown:
        return False
    for each, directory in zip(partition.replicas, partition.directories, strict=False):
        if each == replica:
            return has_online_directory(broker, directory)
    return True


def changes_for(
    image: MetadataImage,
    *,
    leaving: int = -1,
    unclean: bool = False,
    concerned: Callable[[PartitionImage], bool],
    min_insync_replicas: Callable[[str], int],
) -> Iterable[PartitionChangeRecord]:
    """A change for each concerned partition, topics by name."""

    for name in sorted(image.topics):
        topic = image.topics[name]
        for index, partition in topic.partitions.items():
            if concerned(partition):
                record = partition_change(
                    topic,
                    index,
                    leaving=leaving,
                    unclean=unclean,
                    acceptable=partial(is_acceptable, image, partition),
                    min_insync_replicas=min_insync_replicas(name),
                    elr_enabled=image.elr_enabled,
                )
                if record is not None:
                    yield record
