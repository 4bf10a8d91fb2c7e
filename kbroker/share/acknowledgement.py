"""Acknowledgements of a share group's member (KIP-932): their types, and what each does to a
record. A core.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from kbroker.protocol.errors import ErrorCode
from kbroker.share.runs import ACKNOWLEDGED, ACQUIRED, ARCHIVED, AVAILABLE

GAP: Final = 0
ACCEPT: Final = 1
RELEASE: Final = 2
REJECT: Final = 3
RENEW: Final = 4
STATE_AFTER: Final[Mapping[int, int]] = {
    GAP: ARCHIVED,
    ACCEPT: ACKNOWLEDGED,
    RELEASE: AVAILABLE,
    REJECT: ARCHIVED,
    RENEW: ACQUIRED,
}


STEP_TYPES: Final = 512
"""In one step of an acknowledgement: types looked at, and runs of records that change. Each
takes a few microseconds if neighbours have different types.
"""


class Acknowledgement(NamedTuple):
    """types: one per offset, or a single one for all offsets."""

    first: int
    last: int
    types: Sequence[int]


def kinds_of(item: Acknowledgement) -> list[tuple[int, int, int]]:
    """(first, last, type) of adjacent offsets with the same type."""
    if len(item.types) == 1:
        return [(item.first, item.last, item.types[0])]
    result: list[tuple[int, int, int]] = []
    for offset, kind in enumerate(item.types, item.first):
        if result and result[-1][2] == kind:
            result[-1] = (result[-1][0], offset, kind)
        else:
            result.append((offset, offset, kind))
    return result


def check_acknowledgements(
    items: Sequence[Acknowledgement], *, may_renew: bool
) -> Generator[None, None, ErrorCode]:
    """Validate acknowledgements by themselves: order, overlaps, types. In steps."""
    allowed = frozenset(STATE_AFTER) if may_renew else frozenset(STATE_AFTER) - {RENEW}
    last = -1
    left = STEP_TYPES
    for item in items:
        count = item.last - item.first + 1
        if item.first < 0 or count <= 0 or item.first < last:
            return ErrorCode.INVALID_REQUEST
        if len(item.types) not in (1, count):
            return ErrorCode.INVALID_REQUEST
        for start in range(0, len(item.types), STEP_TYPES):
            if left <= 0:
                left = STEP_TYPES
                yield
            types = item.types[start : start + STEP_TYPES]
            if not allowed.issuperset(types):
                return ErrorCode.INVALID_REQUEST
            left -= len(types)
        last = item.last
    return ErrorCode.NONE


def pieces_of(items: Iterable[Acknowledgement]) -> Iterator[Acknowledgement]:
    """The same acknowledgements, each with at most `STEP_TYPES` types."""
    for item in items:
        if len(item.types) <= STEP_TYPES:
            yield item
            continue
        for start in range(0, len(item.types), STEP_TYPES):
            types = item.types[start : start + STEP_TYPES]
            first = item.first + start
            yield Acknowledgement(first, first + len(types) - 1, types)
