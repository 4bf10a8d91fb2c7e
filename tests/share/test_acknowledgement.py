"""Acknowledgements by themselves: which are malformed, and their types as ranges of offsets."""

from __future__ import annotations

import pytest

from kbroker.protocol.errors import ErrorCode
from kbroker.share.acknowledgement import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    STATE_AFTER,
    Acknowledgement,
    check_acknowledgements,
    kinds_of,
)
from kbroker.share.runs import TERMINAL


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
    assert check_acknowledgements([item], may_renew=False) is ErrorCode.INVALID_REQUEST


def test_acknowledgements_go_upwards() -> None:
    first, second = Acknowledgement(0, 1, [ACCEPT]), Acknowledgement(2, 3, [RENEW])
    assert check_acknowledgements([first, second], may_renew=True) is ErrorCode.NONE
    assert check_acknowledgements([second, first], may_renew=True) is ErrorCode.INVALID_REQUEST


def test_one_offset_may_be_in_two_batches_one_more_may_not() -> None:
    """As in Kafka, which refuses a batch that begins before the end of the one before."""
    first = Acknowledgement(0, 3, [ACCEPT])
    for begin, error in ((3, ErrorCode.NONE), (2, ErrorCode.INVALID_REQUEST)):
        items = [first, Acknowledgement(begin, 5, [ACCEPT])]
        assert check_acknowledgements(items, may_renew=False) is error


@pytest.mark.parametrize("kind", [GAP, ACCEPT, RELEASE, REJECT])
def test_every_type_of_the_first_version(kind: int) -> None:
    item = Acknowledgement(0, 0, [kind])
    assert check_acknowledgements([item], may_renew=False) is ErrorCode.NONE


def test_a_bad_type_is_found_anywhere() -> None:
    item = Acknowledgement(0, 2, [ACCEPT, ACCEPT, 5])
    assert check_acknowledgements([item], may_renew=True) is ErrorCode.INVALID_REQUEST
    item = Acknowledgement(0, 2, [ACCEPT, -1, ACCEPT])
    assert check_acknowledgements([item], may_renew=True) is ErrorCode.INVALID_REQUEST


def test_nothing_is_well_formed() -> None:
    assert check_acknowledgements([], may_renew=False) is ErrorCode.NONE


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
