"""A partition of `__consumer_offsets`, replayed: commits, and the members that a group had then.

All records of a group are in one partition, in order. The topic is compacted, so the history is
what the cleaner has left. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kbroker.protocol.batches.batch_header import BatchHeader
from kbroker.protocol.batches.control_records import ControlType, control_type
from kbroker.protocol.batches.records import Record
from kbroker.protocol.errors import MalformedRequest

from .records import Committed, Member, MemberChange, Members, group_event

NO_PRODUCER: Final = -1

Place = tuple[str, str, int]
"""Group, topic, partition."""


@dataclass(frozen=True, slots=True)
class Commit:
    """An offset that was committed. members: of the group then. producer_id: of the transaction,
    NO_PRODUCER without one. record_offset: where the log has it.
    """

    offset: int
    time_ms: int
    members: tuple[Member, ...] = ()
    producer_id: int = NO_PRODUCER
    record_offset: int = 0


@dataclass(slots=True)
class PartitionHistory:
    """Commits of a group for a partition. newest: the last ones in the order of the log, of which
    the last one counts. is_deleted: whether the offset is gone, by a request or by its expiry.
    decided_at: the record offset of the commit or deletion that counts.
    """

    newest: deque[Commit]
    count: int = 0
    is_deleted: bool = False
    decided_at: int = 0

    def add(self, commit: Commit) -> None:
        """A commit that counts if it is later in the log than what does now: as in Kafka, where one
        of a transaction that has ended only now does not replace another that came behind it.
        """
        self.count += 1
        if commit.record_offset >= self.decided_at:
            self.decided_at, self.is_deleted = commit.record_offset, False
        later = 0
        while later < len(self.newest) and (
            self.newest[-1 - later].record_offset > commit.record_offset
        ):
            later += 1
        if later == len(self.newest) == self.newest.maxlen:
            return  # older than all that are kept
        behind = [self.newest.pop() for _ in range(later)]
        self.newest.append(commit)
        self.newest.extend(reversed(behind))

    def delete(self, record_offset: int) -> None:
        """The offset is deleted by a later record."""
        self.decided_at, self.is_deleted = record_offset, True


@dataclass(slots=True)
class OpenCommits:
    """Offsets of a transaction that has no marker yet. first_ms: of the oldest of its batches."""

    first_ms: int
    commits: list[tuple[Place, Commit]] = field(default_factory=list)


class OffsetsReplay:
    """The state of one partition. points: commits that are kept. groups: empty for all."""

    def __init__(self, points: int, groups: Sequence[str] = ()) -> None:
        self.histories: dict[Place, PartitionHistory] = {}
        self.open: dict[int, OpenCommits] = {}
        self.aborted = 0
        self.unreadable = 0
        self._points = points
        self._groups = frozenset(groups)
        self._members: dict[str, dict[str, Member]] = {}
        self._snapshots: dict[str, tuple[Member, ...]] = {}

    def apply(self, header: BatchHeader, record: Record) -> None:
        """The next record of the log, those of control batches too."""
        if header.is_control:
            self._end(header.producer_id, control_type(record))
            return
        try:
            event = group_event(record)
        except MalformedRequest:
            self.unreadable += 1
            return
        match event:
            case Committed():
                self._commit(header, record, event)
            case Members(group, members):
                self._members[group] = {member.member_id: member for member in members}
                self._snapshots.pop(group, None)
            case MemberChange():
                self._change(event)

    def _commit(self, header: BatchHeader, record: Record, event: Committed) -> None:
        if self._groups and event.group not in self._groups:
            return
        place = (event.group, event.topic, event.partition)
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER
        if event.offset is None:  # Kafka applies it at once, in a transaction too
            self._history(place).delete(record.offset)
            return
        time_ms = event.time_ms if event.time_ms >= 0 else record.timestamp
        members = self._snapshot(event.group)
        commit = Commit(event.offset, time_ms, members, producer_id, record.offset)
        if producer_id == NO_PRODUCER:
            self._history(place).add(commit)
        else:
            undecided = self.open.setdefault(producer_id, OpenCommits(record.timestamp))
            undecided.commits.append((place, commit))

    def _end(self, producer_id: int, kind: ControlType) -> None:
        ended = self.open.pop(producer_id, None)
        if ended is None:
            return
        if kind is ControlType.COMMIT:
            for place, commit in ended.commits:
                self._history(place).add(commit)
        else:
            self.aborted += len(ended.commits)

    def _history(self, place: Place) -> PartitionHistory:
        history = self.histories.get(place)
        if history is None:
            history = self.histories[place] = PartitionHistory(deque(maxlen=self._points))
        return history

    def _change(self, event: MemberChange) -> None:
        members = self._members.setdefault(event.group, {})
        known = members.get(event.member_id, Member(event.member_id))
        if event.member is None:
            # A member that leaves loses its assignment first, then its metadata.
            if event.is_assignment:
                members[event.member_id] = replace(known, partitions=None)
            else:
                members.pop(event.member_id, None)
        elif event.is_assignment:
            members[event.member_id] = replace(known, partitions=event.member.partitions)
        else:
            members[event.member_id] = replace(event.member, partitions=known.partitions)
        self._snapshots.pop(event.group, None)

    def _snapshot(self, group: str) -> tuple[Member, ...]:
        found = self._snapshots.get(group)
        if found is None:
            found = self._snapshots[group] = tuple(self._members.get(group, {}).values())
        return found


def committer(
    commit: Commit,
    topic: str,
    partition: int,
    *,
    topic_id: str,
    transactional_ids: Mapping[int, str],
) -> str:
    """Who made a commit, as far as the log tells: the transactional id, the member that had the
    partition, or the only member. topic_id: in hexadecimal digits.
    """
    if commit.producer_id != NO_PRODUCER:
        name = transactional_ids.get(commit.producer_id)
        if name is None:
            return f"producer {commit.producer_id}"
        return f"transactional id {name}"
    wanted = {(topic, partition), (topic_id, partition)}
    owners = [member for member in commit.members if wanted & (member.partitions or frozenset())]
    if len(owners) == 1:
        return str(owners[0])
    if len(commit.members) == 1:
        return str(commit.members[0])
    return f"one of {len(commit.members)} members" if commit.members else "no member"
