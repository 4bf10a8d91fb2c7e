"""The replica lists of a partition that moves to other brokers (KIP-455): how a reassignment
starts, when it is complete, and what cancelling it goes back to.

Kafka: PartitionReassignmentReplicas and PartitionReassignmentRevert. The requests are in
`reassignments`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kbroker.metadata.image import PartitionImage
from kbroker.protocol.errors import ErrorCode, KafkaError

Replicas = tuple[int, ...]


class CompletedReassignment(msgspec.Struct, frozen=True):
    """Replicas, the preferred leader first, and the members of the ISR among them."""

    replicas: Replicas
    isr: Replicas


class ReassignmentReplicas(msgspec.Struct, frozen=True):
    """A reassignment under way. replicas: all of them, also those that are to be removed. adding,
    removing: the brokers that are new in it, or leave when it is complete.
    """

    replicas: Replicas
    adding: Replicas
    removing: Replicas

    @property
    def in_progress(self) -> bool:
        """Whether there is anything to move."""
        return bool(self.adding or self.removing)

    def completed(self, isr: Sequence[int]) -> CompletedReassignment | None:
        """The assignment that the reassignment ends with, given this ISR; None while it has to
        wait, or if there is none.

        It waits for all added replicas to be in sync. If the replication factor shrinks, it waits
        for all target replicas: otherwise the ISR could become smaller than it must.
        """
        if not self.in_progress:
            return None
        target_isr = _without(isr, self.removing)
        target_replicas = _without(self.replicas, self.removing)
        if self.removing and not (target_isr and target_replicas):
            return None
        if not set(self.adding) <= set(target_isr):
            return None
        shrinks = len(self.adding) < len(self.removing)
        if shrinks and not set(target_replicas) <= set(target_isr):
            return None
        return CompletedReassignment(target_replicas, target_isr)


def start_reassignment(current: Sequence[int], target: Sequence[int]) -> ReassignmentReplicas:
    """The lists of a reassignment from the current replicas to the target ones."""
    removing = tuple(sorted(set(current) - set(target)))
    adding = tuple(sorted(set(target) - set(current)))
    return ReassignmentReplicas((*target, *removing), adding, removing)


class RevertedReassignment(msgspec.Struct, frozen=True):
    """The assignment to which a cancelled reassignment returns. unclean: no member of the ISR is an
    original replica, so the first of these is taken as the ISR, and committed records may be lost.
    """

    replicas: Replicas
    isr: Replicas
    unclean: bool


def revert_reassignment(partition: PartitionImage) -> RevertedReassignment:
    """Cancel the reassignment of a partition. Raises KafkaError(INVALID_REPLICA_ASSIGNMENT) if no
    replica would be left.
    """
    replicas = _without(partition.replicas, partition.adding)
    isr = _without(partition.isr, partition.adding)
    if isr:
        return RevertedReassignment(replicas, isr, unclean=False)
    if not replicas:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Invalid replica assignment: addingReplicas contains all replicas.",
        )
    return RevertedReassignment(replicas, replicas[:1], unclean=True)


def _without(replicas: Sequence[int], excluded: Sequence[int]) -> Replicas:
    return tuple(replica for replica in replicas if replica not in excluded)
