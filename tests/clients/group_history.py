"""What the log of a group says about its members and their partitions, for tests that compare it
with what clients believe. The records are the same, whichever broker wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from kbroker.coordinator.group.consumer.records import ConsumerGroupKey, MemberMetadata
from kbroker.coordinator.group.membership.embedded_protocol import assignment_of
from kbroker.coordinator.group.records import decode_record
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.messages.stored.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    GroupMetadataKey,
    GroupMetadataValue,
)


@dataclass
class GroupHistory:
    """departures: when (ms) members ceased to be in the group, by client id. overlaps: partitions
    that two members had at the end of a batch.
    """

    departures: dict[str, list[int]] = field(default_factory=dict)
    overlaps: list[str] = field(default_factory=list)
    batches: int = 0
    _classic: dict[str, str] = field(default_factory=dict)
    """Client id by member id, here and in the next one."""
    _consumers: dict[str, str] = field(default_factory=dict)
    _owned: dict[str, set[int]] = field(default_factory=dict)

    def departed(self, client_id: str, after_ms: int, until_ms: int) -> bool:
        """Whether a member of this client ceased to be one in this time."""
        return any(after_ms < at <= until_ms for at in self.departures.get(client_id, ()))

    def add(self, at_ms: int, records: list[CoordinatorRecord]) -> None:
        """The records of one batch."""
        before = {**self._classic, **self._consumers}
        for record in records:
            if isinstance(record.key, GroupMetadataKey):
                self._add_generation(record.value)
            else:
                self._add_consumer(record)
        after = {**self._classic, **self._consumers}
        for member_id in before.keys() - after.keys():
            self.departures.setdefault(before[member_id], []).append(at_ms)
            self._owned.pop(member_id, None)
        for one, other in combinations(self._owned, 2):
            both = self._owned[one] & self._owned[other]
            if both:
                self.overlaps.append(f"{at_ms} {sorted(both)}: {after[one]} and {after[other]}")
        self.batches += 1

    def _add_generation(self, value: object) -> None:
        members = value.members if isinstance(value, GroupMetadataValue) else []
        self._classic = {member.member_id: member.client_id for member in members}
        for member in members:
            data = bytes(member.assignment)
            given = assignment_of(data).assigned_partitions if data else []
            self._owned[member.member_id] = {n for entry in given for n in entry.partitions}

    def _add_consumer(self, record: CoordinatorRecord) -> None:
        key, value = record.key, record.value
        if isinstance(key, ConsumerGroupMemberMetadataKey):
            self._consumers.pop(key.member_id, None)
            if isinstance(value, MemberMetadata):
                self._consumers[key.member_id] = value.client_id
        elif isinstance(key, ConsumerGroupCurrentMemberAssignmentKey):
            self._owned.pop(key.member_id, None)
            if isinstance(value, ConsumerGroupCurrentMemberAssignmentValue):
                owned = [*value.assigned_partitions, *value.partitions_pending_revocation]
                self._owned[key.member_id] = {n for entry in owned for n in entry.partitions}


def history_of(folder: Path, group: str) -> GroupHistory:
    """That of a group of consumers of one topic. folder: a log directory."""
    history = GroupHistory()
    for at_ms, records in _batches(folder, group):
        history.add(at_ms, records)
    return history


def _batches(folder: Path, group: str) -> Iterator[tuple[int, list[CoordinatorRecord]]]:
    for path in sorted(folder.glob("__consumer_offsets-*/*.log")):
        log = path.read_bytes()
        for position, header in iter_batches(log):
            found = []
            for record in iter_records(log[position:], header):
                decoded = decode_record(record.key, record.value)
                if decoded is None:
                    continue
                key = decoded.key
                if (isinstance(key, ConsumerGroupKey) and key.group_id == group) or (
                    isinstance(key, GroupMetadataKey) and key.group == group
                ):
                    found.append(decoded)
            if found:
                yield header.max_timestamp, found
