"""What becomes of a group's offset in a copy. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kbroker.client.cluster import TopicPartition

from ..errors import StartRefused
from ..exactly_once.runs import Run, translated


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy has of a source partition. position: the next source offset that it copies.
    runs: its offset map, sorted. is_cut: whether the oldest part of the map was deleted. reached:
    the position after the map was read, None if unknown.
    """

    position: int
    runs: Sequence[Run]
    is_cut: bool = False
    reached: int | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """A committed offset, and what it is in the copy."""

    source: TopicPartition
    offset: int
    target: TopicPartition
    target_offset: int


def needs_first(committed: int, copied: Copied) -> bool:
    """Whether `moved` has to be told the first record at or after the committed offset: the map
    begins behind it.
    """
    return not copied.runs or committed < copied.runs[0].source


def moved(
    source: TopicPartition,
    committed: int,
    target: TopicPartition,
    copied: Copied,
    first: int | None = None,
) -> Move:
    """Where a reader goes on, without a gap or a repeat. first: where `needs_first`, the offset of
    the source's first record at or after the committed one and before the copy's position, None if
    there is none.

    Raises StartRefused if the copy does not have what the group has read or will read.
    """
    if committed > copied.position:
        raise StartRefused(
            f"the group has read {source} up to offset {committed}, the copy is at "
            f"{copied.position}: it would read what is copied later again; wait until the copy is "
            "as far"
        )
    if committed == copied.reached and copied.runs:
        # Also where the map has nothing but what was copied before the topic was created again.
        last = copied.runs[-1]
        return Move(source, committed, target, last.target + last.length)
    if needs_first(committed, copied):
        start = copied.runs[0] if copied.runs else None
        if copied.is_cut:
            raise StartRefused(
                f"the offset map no longer has offset {committed} of {source}: the retention of "
                "its topic is shorter than the group's lag"
            )
        if first is not None and (start is None or first < start.source):
            raise StartRefused(
                f"the copy begins behind what the group has read of {source}: it has no record of "
                f"offset {first}"
            )
        return Move(source, committed, target, start.target if start is not None else 0)
    offset = translated(copied.runs, committed)
    if offset is None:
        raise AssertionError("translated() found no place behind the first run")
    return Move(source, committed, target, offset)
