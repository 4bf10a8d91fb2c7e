"""Which target offset each source offset became: runs of consecutive records. No I/O here.

A task writes the records of a target partition in source order, so the n-th record of the task has
sequence n in the source's offsets and in the acknowledged batches; `joined` brings both together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """Records with the sequences `sequence`, `sequence` + 1, ... whose offsets are consecutive."""

    sequence: int
    offset: int
    length: int


class Run(NamedTuple):
    """`length` records with consecutive source offsets from `source` on are at `target` and on."""

    source: int
    target: int
    length: int


def add_span(spans: list[Span], sequence: int, offset: int, length: int = 1) -> None:
    """Append to spans that are sorted by sequence; one that continues the last is merged."""
    if spans:
        last = spans[-1]
        if (last.sequence + last.length, last.offset + last.length) == (sequence, offset):
            spans[-1] = Span(last.sequence, last.offset, last.length + length)
            return
    spans.append(Span(sequence, offset, length))


def joined(sources: Sequence[Span], targets: Sequence[Span]) -> list[Run]:
    """The runs of one partition. sources, targets: the same sequences from 0 on, each sorted.

    Raises ValueError if they are not: a record would have no place then.
    """
    runs: list[Run] = []
    left, right = 0, 0
    sequence = 0
    while left < len(sources) and right < len(targets):
        source, target = sources[left], targets[right]
        if not (source.sequence <= sequence and target.sequence <= sequence):
            raise ValueError(f"sequence {sequence} has no offset")
        end = min(source.sequence + source.length, target.sequence + target.length)
        first = Run(
            source.offset + sequence - source.sequence,
            target.offset + sequence - target.sequence,
            end - sequence,
        )
        add_run(runs, first)
        sequence = end
        left += end == source.sequence + source.length
        right += end == target.sequence + target.length
    if left < len(sources) or right < len(targets):
        raise ValueError(f"sequence {sequence} is in the source or in the target only")
    return runs


def add_run(runs: list[Run], run: Run) -> None:
    """Append to runs that are sorted; one that continues the last on both sides is merged."""
    if runs:
        last = runs[-1]
        if (last.source + last.length, last.target + last.length) == (run.source, run.target):
            runs[-1] = Run(last.source, last.target, last.length + run.length)
            return
    runs.append(run)


def newest_runs(runs: Iterable[Run]) -> list[Run]:
    """The runs of a copy, sorted by source offset, neighbours merged. runs: in the order in which
    they were written, those of one batch by source offset.

    A run that begins below the end of those before it is of a copy that began again there, perhaps
    of a topic that was created again: from there on the earlier runs no longer hold.
    """
    found: list[Run] = []
    for run in runs:
        while found and found[-1].source + found[-1].length > run.source:
            last = found.pop()
            if last.source < run.source:
                found.append(Run(last.source, last.target, run.source - last.source))
        add_run(found, run)
    return found


def translated(runs: Sequence[Run], offset: int) -> int | None:
    """The target offset of the first record at or after a source offset: where a reader that would
    read `offset` next goes on. Behind all runs it is the end of the last one; None before the
    first, or without runs.

    runs: sorted by source offset.
    """
    if not runs or offset < runs[0].source:
        return None
    place = bisect_right(runs, offset, key=lambda run: run.source) - 1
    run = runs[place]
    if offset < run.source + run.length:
        return run.target + offset - run.source
    if place + 1 < len(runs):
        return runs[place + 1].target
    return run.target + run.length
