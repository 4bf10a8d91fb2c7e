"""Acknowledgements by themselves: which are malformed, and their types as ranges of offsets."""

from __future__ import annotations

import pytest

from kbroker.ports import at_once
from kbroker.protocol.errors import ErrorCode
from kbroker.share.acknowledgement import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    STATE_AFTER,
    STEP_TYPES,
    Acknowledgement,
    check_acknowledgements,
    kinds_of,
    pieces_of,
)
from kbroker.share.runs import TERMINAL


def checked(items: list[Acknowledgement], *, may_renew: bool) -> ErrorCode:
    return at_once(check_acknowledgements(items, may_renew=may_renew))


@pytest.mark.parametrize(
    "item",
    [
        Acknowledgement(0, 1, [9]),
        Acknowledgement(0, 1, []),
        Acknowledgement(0, 2, [ACCEPT, ACCEPT]),
        Acknowledgement(2, 0, [ACCEPT]),
        Acknowledgement(-1, 0, [ACCEPT]),
        Acknowledgement(0, 2**62, [ACCEPT, ACCEPT]),
        Acknowledgement(0, 0, [RENEW]),
    ],
)
def test_malformed_acknowledgements(item: Acknowledgement) -> None:
    assert checked([item], may_renew=False) is ErrorCode.INVALID_REQUEST


def test_acknowledgements_go_upwards() -> None:
    first, second = Acknowledgement(0, 1, [ACCEPT]), Acknowledgement(2, 3, [RENEW])
    assert checked([first, second], may_renew=True) is ErrorCode.NONE
    assert checked([second, first], may_renew=True) is ErrorCode.INVALID_REQUEST


def test_one_offset_may_be_in_two_batches_one_more_may_not() -> None:
    """As in Kafka, which refuses a batch that begins before the end of the one before."""
    first = Acknowledgement(0, 3, [ACCEPT])
    for begin, error in ((3, ErrorCode.NONE), (2, ErrorCode.INVALID_REQUEST)):
        items = [first, Acknowledgement(begin, 5, [ACCEPT])]
        assert checked(items, may_renew=False) is error


@pytest.mark.parametrize("kind", [GAP, ACCEPT, RELEASE, REJECT])
def test_every_type_of_the_first_version(kind: int) -> None:
    item = Acknowledgement(0, 0, [kind])
    assert checked([item], may_renew=False) is ErrorCode.NONE


def test_a_bad_type_is_found_anywhere() -> None:
    item = Acknowledgement(0, 2, [ACCEPT, ACCEPT, 5])
    assert checked([item], may_renew=True) is ErrorCode.INVALID_REQUEST
    item = Acknowledgement(0, 2, [ACCEPT, -1, ACCEPT])
    assert checked([item], may_renew=True) is ErrorCode.INVALID_REQUEST


def test_nothing_is_well_formed() -> None:
    assert checked([], may_renew=False) is ErrorCode.NONE


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ([ACCEPT], [(10, 14, ACCEPT)]),
        ([ACCEPT] * 5, [(10, 14, ACCEPT)]),
        (
            [ACCEPT, RELEASE, RELEASE, GAP, ACCEPT],
            [(10, 10, ACCEPT), (11, 12, RELEASE), (13, 13, GAP), (14, 14, ACCEPT)],
        ),
    ],
)
def test_neighbours_of_one_type_are_one_range(
    types: list[int], expected: list[tuple[int, int, int]]
) -> None:
    assert kinds_of(Acknowledgement(10, 14, types)) == expected


def test_what_is_done_with_after_each_type() -> None:
    done = {kind for kind, state in STATE_AFTER.items() if state in TERMINAL}
    assert done == {GAP, ACCEPT, REJECT}


@pytest.mark.parametrize("count", [1, STEP_TYPES, STEP_TYPES + 1, 5 * STEP_TYPES])
def test_pieces_say_the_same(count: int) -> None:
    types = [kind % 4 for kind in range(count)]
    items = [Acknowledgement(10, 10 + count - 1, types), Acknowledgement(10**6, 10**9, [ACCEPT])]
    pieces = list(pieces_of(items))
    assert max(len(piece.types) for piece in pieces) <= STEP_TYPES
    said = [kind for piece in pieces for kind in kinds_of(piece)]
    assert said == [kind for item in items for kind in kinds_of(item)]


def test_very_many_types_are_checked_in_steps() -> None:
    many = 20 * STEP_TYPES
    whole = Acknowledgement(0, many - 1, [ACCEPT] * many)
    single = [Acknowledgement(offset, offset, [ACCEPT]) for offset in range(many)]
    for items in ([whole], single):
        steps = list(check_acknowledgements(items, may_renew=False))
        assert len(steps) == 19
    bad = Acknowledgement(0, many - 1, [*whole.types[1:], RENEW])
    assert checked([bad], may_renew=False) is ErrorCode.INVALID_REQUEST
    assert checked([bad], may_renew=True) is ErrorCode.NONE
