"""Checks of reads: an offset has the same record for every reader at any time, a read_committed
reader gets no aborted record, and no reader misses a record.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator

from kbroker.model import TopicPartition
from kbroker.testing.history.contents import Contents
from kbroker.testing.history.operations import Ending, History, ReadRecord
from kbroker.testing.history.stored import Fate


def check_offsets(history: History, contents: Contents) -> Iterator[str]:
    """Check that an offset has the same record for every reader, for its producer, and in the final
    logs.
    """
    places: dict[tuple[TopicPartition, int], tuple[bytes, str]] = {
        (partition, record.offset): (record.value, "stored in the end")
        for partition, records in contents.items()
        for record in records
    }
    observed = [
        (history.sent[value].partition, offset, value, "acknowledged")
        for value, offset in history.acknowledged.items()
        if offset is not None
    ]
    for read in history.reads:
        partition, offset = read.partition, read.offset
        is_kept = partition in contents and offset >= history.deleted_below(partition)
        if is_kept and (partition, offset) not in places:
            yield (
                f"{partition} offset {offset}: {_shown(read.value)} was read by {read.reader}, "
                f"and no record is there in the end"
            )
        else:
            observed.append((partition, offset, read.value, f"read by {read.reader}"))
    for partition, offset, value, how in observed:
        first, first_how = places.setdefault((partition, offset), (value, how))
        if first != value:
            yield (
                f"{partition} offset {offset} holds two records: {_shown(first)} was {first_how}, "
                f"{_shown(value)} was {how}"
            )


def check_reads(history: History, contents: Contents) -> Iterator[str]:
    """Check that every record read was sent, and that within a session each read continues where
    the last one ended.
    """
    latest: dict[tuple[str, int, TopicPartition], ReadRecord] = {}
    visible = _VisibleOffsets(contents)
    for read in history.reads:
        where = f"{read.partition} offset {read.offset}"
        sent = history.sent.get(read.value)
        if sent is None:
            yield f"{where}: {read.reader} read a record that was never sent: {_shown(read.value)}"
            continue
        ending = history.ending_of(sent.transaction)
        if read.committed_only and ending is Ending.ABORTED:
            yield f"{where}: {read.reader} read {sent}, whose transaction was aborted"
        session = read.reader, read.session, read.partition
        before = latest.get(session)
        latest[session] = read
        if before is None:
            continue
        if read.offset <= before.offset:
            yield f"{where}: {read.reader} read it after offset {before.offset}"
            continue
        missed = visible.between(read.partition, before.offset, read.offset, read.committed_only)
        if missed:
            yield f"{where}: {read.reader} missed {len(missed)} records, first offset {missed[0]}"


def check_groups(history: History, contents: Contents) -> Iterator[str]:
    """Check that a group's committed offset passes no record that none of its members has read.
    Only for groups that start at the earliest offset and have reads in the history.
    """
    read: dict[tuple[str, TopicPartition], set[int]] = defaultdict(set)
    committed_only: dict[str, bool] = {}
    for each in history.reads:
        if each.group is not None:
            read[each.group, each.partition].add(each.offset)
            committed_only[each.group] = each.committed_only
    ends: dict[tuple[str, TopicPartition], int] = {}
    for commit in history.commits:
        if commit.ended_ms is not None and commit.group in committed_only:
            key = commit.group, commit.partition
            ends[key] = max(ends.get(key, 0), commit.offset)
    visible = _VisibleOffsets(contents)
    for (group, partition), end in ends.items():
        start = history.deleted_below(partition)
        wanted = visible.between(partition, start - 1, end, committed_only[group])
        missed = [offset for offset in wanted if offset not in read[group, partition]]
        if missed:
            yield (
                f"{partition}: group {group} has committed offset {end}, and none of its members "
                f"read {len(missed)} records before it, first offset {missed[0]}"
            )


class _VisibleOffsets:
    """The offsets of records, by their visibility to readers."""

    def __init__(self, contents: Contents) -> None:
        self._all = {
            partition: [record.offset for record in records]
            for partition, records in contents.items()
        }
        self._committed = {
            partition: [record.offset for record in records if record.fate is Fate.COMMITTED]
            for partition, records in contents.items()
        }

    def between(
        self, partition: TopicPartition, after: int, before: int, committed_only: bool
    ) -> list[int]:
        """The offsets of the visible records between two offsets, both exclusive."""
        offsets = (self._committed if committed_only else self._all).get(partition, [])
        begin = bisect_right(offsets, after)
        return offsets[begin : bisect_right(offsets, before - 1)]


def _shown(value: bytes) -> str:
    return value[:60].decode(errors="replace")
