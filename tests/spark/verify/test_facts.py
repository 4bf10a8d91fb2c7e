"""Counts, holes and hashes of a partition, and two sides compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_jobs.verify.compare import compare_partitions, compare_wholes, findings_of
from spark_jobs.verify.facts import FactsBuilder, Field, PartitionFacts, record_bytes

Row = tuple[int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]
ROWS: list[Row] = [
    (0, 10, b"k", b"v", []),
    (1, 11, None, b"v", [(b"h", b"1")]),
    (2, 12, b"k", None, [(b"h", None), (b"h", b"")]),
    (3, 13, b"", b"", []),
]


def facts_of(
    rows: list[Row], ignored: frozenset[Field] = frozenset(), partition: int = 0, topic: str = "t"
) -> PartitionFacts:
    builder = FactsBuilder(topic, partition, 0, ignored)
    for offset, *rest in rows:
        builder.advance(offset, offset + 1, is_compacted=False)
        builder.add_record(offset, *rest)
    return builder.facts(len(rows))


def test_facts_come_back() -> None:
    facts = replace(facts_of(ROWS), missing=3, holes=((1, 2), (5, 7)))
    assert PartitionFacts.decode(facts.encode()) == facts
    assert str(facts) == "t-0"


def test_every_part_of_a_record_counts() -> None:
    seen = {record_bytes(*row, frozenset()) for row in ROWS}
    assert len(seen) == len(ROWS)
    one = (1, 2, b"ab", b"c", [(b"d", b"e")])
    others = [
        (9, 2, b"ab", b"c", [(b"d", b"e")]),
        (1, 9, b"ab", b"c", [(b"d", b"e")]),
        (1, 2, b"a", b"bc", [(b"d", b"e")]),
        (1, 2, None, b"abc", [(b"d", b"e")]),
        (1, 2, b"ab", b"c", [(b"de", b"")]),
        (1, 2, b"ab", b"c", [(b"d", None)]),
        (1, 2, b"ab", b"c", []),
    ]
    assert len({record_bytes(*row, frozenset()) for row in [one, *others]}) == 8  # type: ignore[arg-type]
    ignored: frozenset[Field] = frozenset({"offset", "timestamp", "headers"})
    same = [others[0], others[1], others[4], others[5], others[6]]
    assert {record_bytes(*row, ignored) for row in same} == {record_bytes(*one, ignored)}  # type: ignore[arg-type]


def test_order_and_content_have_hashes_of_their_own() -> None:
    ignored: frozenset[Field] = frozenset({"offset"})
    facts = facts_of(ROWS, ignored)
    shuffled = facts_of([ROWS[2], ROWS[0], ROWS[3], ROWS[1]], ignored)
    assert facts.unordered == shuffled.unordered
    assert facts.ordered != shuffled.ordered
    twice = facts_of([ROWS[0], ROWS[0], ROWS[1], ROWS[1]], ignored)
    others = facts_of([ROWS[2], ROWS[2], ROWS[3], ROWS[3]], ignored)
    assert len({facts.unordered, twice.unordered, others.unordered}) == 3


def test_holes() -> None:
    builder = FactsBuilder("t", 0, 5, frozenset())
    builder.advance(5, 8, is_compacted=False)
    builder.advance(10, 12, is_compacted=False)
    builder.advance(15, 16, is_compacted=True)
    builder.advance(14, 16, is_compacted=False)
    builder.advance(20, 21, is_compacted=False)
    facts = builder.facts(21)
    assert (facts.missing, facts.holes) == (6, ((8, 10), (16, 20)))
    assert (facts.compacted, facts.duplicates) == (3, 2)
    assert findings_of([facts]) == [
        "t-0: 6 offsets are missing, which neither a marker nor compaction explains: 8-9, 16-19",
        "t-0: 2 offsets occur more than once",
    ]
    assert findings_of([facts_of(ROWS)]) == []


def test_what_two_cleaners_agree_on() -> None:
    """The newest record of each key: older ones and tombstones may be there or not."""
    rows: list[Row] = [
        (0, 10, b"a", b"1", []),
        (1, 11, b"b", b"1", []),
        (2, 12, b"a", b"2", []),
        (3, 13, b"c", b"1", []),
        (4, 14, b"c", None, []),
        (5, 15, None, b"x", []),
        (6, 16, b"d", b"1", []),
    ]
    ignored: frozenset[Field] = frozenset({"offset"})

    def newest(*offsets: int) -> PartitionFacts:
        builder = FactsBuilder("t", 0, 0, ignored, newest_only=True)
        for offset in offsets:
            builder.advance(offset, offset + 1, is_compacted=True)
            builder.add_record(*rows[offset])
        return builder.facts(len(rows))

    whole = newest(*range(7))
    assert (whole.records, whole.current, whole.compared) == (7, 3, 3)
    for others in ((1, 2, 3, 4, 6), (0, 1, 2, 6)):
        assert compare_partitions([whole], [newest(*others)]) == []
        assert compare_wholes([whole], [newest(*others)]) == []
    (lost,) = compare_partitions([whole], [newest(1, 2)])
    assert lost == "partition 0: 3 records expected, 2 found: 1 missing"
    (older,) = compare_partitions([whole], [newest(0, 1, 6)])
    assert older.startswith("partition 0: the content of 3 records differs")
    assert PartitionFacts.decode(whole.encode()) == whole


def test_only_the_first_holes_are_named() -> None:
    builder = FactsBuilder("t", 0, 0, frozenset())
    for offset in range(1, 40, 2):
        builder.advance(offset, offset + 1, is_compacted=False)
    facts = builder.facts(40)
    assert (facts.missing, len(facts.holes)) == (20, 5)


@pytest.mark.parametrize(
    ("copy", "finding"),
    [
        (ROWS, None),
        (ROWS[:3], "partition 0: 4 records expected, 3 found: 1 missing"),
        ([*ROWS, ROWS[0]], "partition 0: 4 records expected, 5 found: 1 too many"),
        ([ROWS[1], ROWS[0], *ROWS[2:]], "partition 0: the order of 4 records differs"),
        ([*ROWS[:3], (3, 13, b"", b"x", [])], "partition 0: the content of 4 records differs"),
        ([], "partition 0: 4 records expected, 0 found: 4 missing"),
    ],
)
def test_partitions_compared(copy: list[Row], finding: str | None) -> None:
    ignored: frozenset[Field] = frozenset({"offset"})
    left, right = facts_of(ROWS, ignored), facts_of(copy, ignored, topic="copy")
    found = compare_partitions([left], [right])
    assert len(found) == (finding is not None)
    if finding is not None:
        assert found[0].startswith(finding)


def test_partitions_that_one_side_does_not_have() -> None:
    left = [facts_of(ROWS), facts_of([], partition=1)]
    right = [facts_of(ROWS), facts_of(ROWS, partition=2, topic="copy")]
    assert compare_partitions(left, right) == ["partition 2: 4 records are in copy-2 only"]


def test_wholes_compared() -> None:
    ignored: frozenset[Field] = frozenset({"offset"})
    left = [facts_of(ROWS[:2], ignored), facts_of(ROWS[2:], ignored, partition=1)]
    spread = [facts_of([ROWS[3]], ignored), facts_of([ROWS[2], ROWS[0], ROWS[1]], ignored)]
    assert compare_wholes(left, spread) == []
    changed = [facts_of([*ROWS[:3], ROWS[0]], ignored)]
    assert compare_wholes(left, changed) == [
        "all partitions: 4 records on both sides, but their content differs"
    ]
    assert compare_wholes(left, left[:1]) == [
        "all partitions: 4 records expected, 2 found: 2 missing"
    ]
