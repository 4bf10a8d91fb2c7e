"""The one builder of PartitionChangeRecords: what follows for a partition from a new ISR, new
replicas, a new directory, or from brokers that may or may no longer lead (KIP-455, KIP-841,
KIP-858, KIP-966).

Kafka: PartitionChangeBuilder; the steps and their order are its own. Which brokers may lead, and
the settings of the topic, come from `decision_context`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

import msgspec

from kbroker.controller.partitions.partition_reassignment import ReassignmentReplicas
from kbroker.metadata.delta import LEADER_UNCHANGED
from kbroker.metadata.image import NO_LEADER, PartitionImage
from kbroker.model import Uuid
from kbroker.protocol.messages.stored.metadata_records import PartitionChangeRecord

RECOVERED: Final = 0
RECOVERING: Final = 1
"""Leader recovery states: a RECOVERING leader was elected uncleanly and may lack committed
records.
"""

RECOVERY_UNCHANGED: Final = -1
"""PartitionChangeRecord.leader_recovery_state: keep it."""

DIRECTORY_ASSIGNMENT_LEVEL: Final = 17
"""metadata.version (3.7-IV2) from which partitions have the directories of their replicas."""

NO_EPOCH_BUMP_ON_SHRINK_LEVEL: Final = 12
"""metadata.version (3.6-IV0) from which a smaller ISR alone leaves the leader epoch (KAFKA-15021).
"""


class Election(Enum):
    """PREFERRED: the first replica, if it may lead. ONLINE: any valid leader. UNCLEAN: as ONLINE,
    and if there is none, any replica that is online.
    """

    PREFERRED = auto()
    ONLINE = auto()
    UNCLEAN = auto()


class ChangeRules(msgspec.Struct, frozen=True):
    """The inputs of a partition's change beside the partition itself.

    is_acceptable_leader: whether the broker is active and its replica's directory online.
    default_directory: of a new replica on a broker. min_insync_replicas: at most the number of
    replicas. use_last_known_leader: `last_known_elr` holds at most the last leader, which may lead
    again if ISR and ELR are empty; always so in a Kafka controller.
    """

    is_acceptable_leader: Callable[[int], bool]
    default_directory: Callable[[int], Uuid]
    metadata_version: int
    min_insync_replicas: int
    elr_enabled: bool
    use_last_known_leader: bool = True


class _Elected(NamedTuple):
    leader: int
    unclean: bool


class PartitionChangeBuilder:
    """One change of one partition. Set the targets that differ from the partition, then `build`
    once.

    target_isr, target_replicas, target_adding, target_removing, target_leader_recovery_state: what
    the partition is to have. unclean_shutdown_replicas: brokers that may have lost records, which
    are not eligible to lead.
    """

    __slots__ = (
        "_directories",
        "_partition",
        "_record",
        "_rules",
        "_target_elr",
        "_target_last_known_elr",
        "election",
        "target_adding",
        "target_isr",
        "target_leader_recovery_state",
        "target_removing",
        "target_replicas",
        "unclean_shutdown_replicas",
    )

    def __init__(
        self, topic_id: Uuid, partition_id: int, partition: PartitionImage, rules: ChangeRules
    ) -> None:
        self._partition = partition
        self._rules = rules
        self._record = PartitionChangeRecord(partition_id=partition_id, topic_id=topic_id)
        self._directories = dict(zip(partition.replicas, partition.directories, strict=False))
        self._target_elr: Sequence[int] = partition.elr
        self._target_last_known_elr: Sequence[int] = partition.last_known_elr
        self.election = Election.ONLINE
        self.target_isr: Sequence[int] = partition.isr
        self.target_replicas: Sequence[int] = partition.replicas
        self.target_adding: Sequence[int] = partition.adding
        self.target_removing: Sequence[int] = partition.removing
        self.target_leader_recovery_state = partition.leader_recovery_state
        self.unclean_shutdown_replicas: Sequence[int] = ()

    def set_directory(self, broker_id: int, directory_id: Uuid) -> None:
        """The replica on that broker is in that directory."""
        self._directories[broker_id] = directory_id

    def build(self) -> PartitionChangeRecord | None:
        """The record of the change; None if nothing changes."""
        record = self._record
        if self.target_adding or self.target_removing:
            self._complete_reassignment()
        if self._rules.elr_enabled:
            self._move_eligible_replicas()
        self._elect()
        self._bump_epoch_for_removed_replicas()
        self._record_eligible_replicas()
        self._record_isr()
        if self._rules.metadata_version < NO_EPOCH_BUMP_ON_SHRINK_LEVEL:
            self._bump_epoch_for_isr_shrink()
        if self._rules.use_last_known_leader and self._rules.elr_enabled:
            self._record_last_known_leader()
        self._record_assignment()
        if self.target_leader_recovery_state != self._partition.leader_recovery_state:
            record.leader_recovery_state = self.target_leader_recovery_state
        return record if _changes_anything(record) else None

    def _complete_reassignment(self) -> None:
        completed = ReassignmentReplicas(
            tuple(self.target_replicas), tuple(self.target_adding), tuple(self.target_removing)
        ).completed(self.target_isr)
        if completed is not None:
            self.target_isr, self.target_replicas = completed.isr, completed.replicas
            self.target_adding = self.target_removing = ()

    def _move_eligible_replicas(self) -> None:
        """Replicas that leave an ISR below min.insync.replicas stay eligible to lead: every record
        committed since is in the remaining members, and none was committed without them.
        """
        if len(self.target_isr) >= self._rules.min_insync_replicas:
            self._target_elr = self._target_last_known_elr = ()
            return
        isr = set(self.target_isr)
        candidates = {*self._target_elr, *self._partition.isr}
        elr = candidates - isr - set(self.unclean_shutdown_replicas)
        self._target_elr = sorted(elr)
        known = candidates.union(self._target_last_known_elr) - isr - elr
        self._target_last_known_elr = sorted(known)

    # The election.

    def _elect(self) -> None:
        leader, unclean = self._elected()
        if leader == self._partition.leader:
            return
        if leader in self._target_elr:
            self.target_isr = [leader]
            self._target_elr = [each for each in self._target_elr if each != leader]
        self._record.leader = leader
        if unclean:
            self._record.isr = [leader]
            if self._partition.leader_recovery_state != RECOVERING:
                self._record.leader_recovery_state = RECOVERING

    def _elected(self) -> _Elected:
        candidates = [self._partition.leader, *self.target_replicas]
        if self.election is Election.PREFERRED:
            candidates.insert(0, self.target_replicas[0])
        for replica in candidates:
            if self._is_valid_leader(replica):
                return _Elected(replica, unclean=False)
        if self._may_elect_last_known_leader():
            return _Elected(self._partition.last_known_elr[0], unclean=True)
        if self.election is Election.UNCLEAN:
            for replica in self.target_replicas:
                if self._rules.is_acceptable_leader(replica):
                    return _Elected(replica, unclean=True)
        return _Elected(NO_LEADER, unclean=False)

    def _is_valid_leader(self, replica: int) -> bool:
        has_all_records = replica in self.target_isr or (
            not self.target_isr and replica in self._target_elr
        )
        return has_all_records and self._rules.is_acceptable_leader(replica)

    def _may_elect_last_known_leader(self) -> bool:
        """Several last known replicas are those of a controller without `use_last_known_leader`:
        none of them is known to be the last leader.
        """
        if not (self._rules.elr_enabled and self._rules.use_last_known_leader):
            return False
        if self.target_isr or self._target_elr:
            return False
        known = self._partition.last_known_elr
        return len(known) == 1 and self._rules.is_acceptable_leader(known[0])

    # The record.

    def _bump_epoch_for_removed_replicas(self) -> None:
        """Naming the leader, also the same one, bumps the leader epoch."""
        removed = not set(self._partition.replicas) <= set(self.target_replicas)
        if removed and self._record.leader == LEADER_UNCHANGED:
            self._record.leader = self._partition.leader

    def _bump_epoch_for_isr_shrink(self) -> None:
        isr = self._record.isr
        shrinks = isr is not None and not set(self._partition.isr) <= set(isr)
        if shrinks and self._record.leader == LEADER_UNCHANGED:
            self._record.leader = self._partition.leader

    def _record_eligible_replicas(self) -> None:
        is_clean_election = self._record.isr is None
        if not is_clean_election or not self._rules.elr_enabled:
            self._target_elr = self._target_last_known_elr = ()
        if tuple(self._target_elr) != self._partition.elr:
            self._record.eligible_leader_replicas = list(self._target_elr)
        if self._rules.use_last_known_leader:
            return
        if tuple(self._target_last_known_elr) != self._partition.last_known_elr:
            self._record.last_known_elr = list(self._target_last_known_elr)

    def _record_isr(self) -> None:
        """Without ELR the last member stays in the ISR."""
        if self._record.isr is not None or tuple(self.target_isr) == self._partition.isr:
            return
        if self.target_isr or self._rules.elr_enabled:
            self._record.isr = list(self.target_isr)

    def _record_last_known_leader(self) -> None:
        """It is stored when the partition becomes leaderless, and cleared when it is led again."""
        known, leader = self._partition.last_known_elr, self._record.leader
        if leader == NO_LEADER and not known:
            self._record.last_known_elr = [self._partition.leader]
        elif leader >= 0 and known:
            self._record.last_known_elr = []

    def _record_assignment(self) -> None:
        record, partition = self._record, self._partition
        if self.target_replicas:
            if self._rules.metadata_version >= DIRECTORY_ASSIGNMENT_LEVEL:
                directories = [self._directory(replica) for replica in self.target_replicas]
                if tuple(directories) != partition.directories:
                    record.directories = directories
            if tuple(self.target_replicas) != partition.replicas:
                record.replicas = list(self.target_replicas)
        if tuple(self.target_removing) != partition.removing:
            record.removing_replicas = list(self.target_removing)
        if tuple(self.target_adding) != partition.adding:
            record.adding_replicas = list(self.target_adding)

    def _directory(self, replica: int) -> Uuid:
        known = self._directories.get(replica)
        return self._rules.default_directory(replica) if known is None else known


def _changes_anything(record: PartitionChangeRecord) -> bool:
    return (
        record.leader != LEADER_UNCHANGED
        or record.isr is not None
        or record.eligible_leader_replicas is not None
        or record.last_known_elr is not None
        or record.replicas is not None
        or record.directories is not None
        or record.adding_replicas is not None
        or record.removing_replicas is not None
        or record.leader_recovery_state != RECOVERY_UNCHANGED
    )
