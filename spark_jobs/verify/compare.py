"""Two sides compared: what differs, in lines. No I/O here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from .facts import HASH_BYTES, PartitionFacts

_MODULUS: Final = 1 << 8 * HASH_BYTES


def findings_of(side: Iterable[PartitionFacts]) -> list[str]:
    """What is wrong with one side by itself: missing offsets and duplicates."""
    found = []
    for facts in side:
        if facts.missing:
            shown = ", ".join(f"{first}-{end - 1}" for first, end in facts.holes)
            found.append(
                f"{facts}: {facts.missing} offsets are missing, which neither a marker nor "
                f"compaction explains: {shown}"
            )
        if facts.duplicates:
            found.append(f"{facts}: {facts.duplicates} offsets occur more than once")
    return found


def compare_partitions(
    left: Sequence[PartitionFacts], right: Sequence[PartitionFacts]
) -> list[str]:
    """Partition by partition: records, their content and order. left: what should be there."""
    ours = {facts.partition: facts for facts in left}
    theirs = {facts.partition: facts for facts in right}
    found = []
    for partition in sorted(ours.keys() | theirs.keys()):
        one, other = ours.get(partition), theirs.get(partition)
        if one is None or other is None:
            facts = one or other
            if facts is not None and facts.compared:
                found.append(f"partition {partition}: {facts.compared} records are in {facts} only")
        elif one.compared != other.compared:
            found.append(_count_finding(f"partition {partition}", one.compared, other.compared))
        elif one.ordered != other.ordered and (one.older or other.older):
            counts = _count_finding(f"partition {partition}", one.records, other.records)
            found.append(f"{counts}, and the newest {one.compared} differ")
        elif one.ordered != other.ordered:
            what = "order" if one.unordered == other.unordered else "content"
            found.append(
                f"partition {partition}: the {what} of {one.compared} records differs: {one} has "
                f"hash {one.ordered}, {other} has {other.ordered}"
            )
    return found


def older_records(
    left: Iterable[PartitionFacts], right: Iterable[PartitionFacts]
) -> tuple[dict[int, int], dict[int, int]]:
    """How many records at the beginning of each partition the other side no longer has, by side and
    partition: its first ones were deleted, as its start tells, and it has fewer. Retention deletes
    whole segments, which never begin at the same record on both sides. A copy that has nothing left
    of what should be there lacks all of it.
    """
    theirs = {facts.partition: facts for facts in right}
    pairs = [(one, theirs[one.partition]) for one in left if one.partition in theirs]
    of_left = {
        one.partition: one.records - other.records
        for one, other in pairs
        if other.start and 0 < other.records < one.records
    }
    of_right = {
        other.partition: other.records - one.records
        for one, other in pairs
        if one.start and one.records < other.records
    }
    return of_left, of_right


def older_notes(left: Iterable[PartitionFacts], right: Iterable[PartitionFacts]) -> list[str]:
    """Which records of partitions that are the same otherwise are not compared."""
    theirs = {facts.partition: facts for facts in right}
    pairs = [(one, theirs[one.partition]) for one in left if one.partition in theirs]
    return [
        f"{facts}: the oldest {facts.older} of {facts.records} records are not compared: {other} "
        f"no longer has what was before its offset {other.start}"
        for one, another in pairs
        for facts, other in ((one, another), (another, one))
        if facts.older and facts.ordered == other.ordered
    ]


def compare_wholes(left: Sequence[PartitionFacts], right: Sequence[PartitionFacts]) -> list[str]:
    """All records of one side with all of the other, whatever their partitions and order."""
    counts = [sum(facts.compared for facts in side) for side in (left, right)]
    if counts[0] != counts[1]:
        return [_count_finding("all partitions", *counts)]
    hashes = [sum(int(f.unordered, 16) for f in side) % _MODULUS for side in (left, right)]
    if hashes[0] != hashes[1]:
        return [f"all partitions: {counts[0]} records on both sides, but their content differs"]
    return []


def left_out_notes(copy: Iterable[PartitionFacts]) -> list[str]:
    """What a copy has that its topic, being compacted, no longer has."""
    return [
        f"{facts}: {facts.left_out} records that compaction removed from the topic are in the "
        "archive and are not compared"
        for facts in copy
        if facts.left_out
    ]


def _count_finding(where: str, expected: int, found: int) -> str:
    difference = found - expected
    word = "missing" if difference < 0 else "too many"
    return f"{where}: {expected} records expected, {found} found: {abs(difference)} {word}"
