"""Deadlines of the requests that classic members of a consumer group owe."""

from __future__ import annotations

from kbroker.coordinator.group.consumer.expected_requests import ExpectedRequest, ExpectedRequests
from kbroker.coordinator.runtime.deadlines import Deadlines
from kbroker.coordinator.runtime.result import Result

JOIN, SYNC = ExpectedRequest.JOIN, ExpectedRequest.SYNC


def late_members() -> tuple[Deadlines, ExpectedRequests, list[tuple[str, str]]]:
    late: list[tuple[str, str]] = []
    deadlines = Deadlines()

    def on_late(group_id: str, member_id: str) -> list[Result]:
        late.append((group_id, member_id))
        return []

    return deadlines, ExpectedRequests(deadlines, on_late), late


def test_a_late_request_is_reported_once() -> None:
    deadlines, expected, late = late_members()
    expected.expect("g", "m", JOIN, 10, anew=False)
    deadlines.fire(9)
    assert late == []
    deadlines.fire(10)
    deadlines.fire(100)
    assert late == [("g", "m")]


def test_only_a_new_expectation_moves_the_deadline() -> None:
    deadlines, expected, late = late_members()
    expected.expect("g", "a", JOIN, 10, anew=False)
    expected.expect("g", "a", JOIN, 20, anew=False)
    expected.expect("g", "b", JOIN, 10, anew=False)
    expected.expect("g", "b", JOIN, 20, anew=True)
    deadlines.fire(10)
    assert late == [("g", "a")]


def test_a_request_that_arrived_is_not_late() -> None:
    deadlines, expected, late = late_members()
    expected.expect("g", "m", JOIN, 10, anew=False)
    expected.expect("g", "m", SYNC, 10, anew=False)
    expected.received("g", "m", JOIN)
    deadlines.fire(10)
    assert late == [("g", "m")]


def test_a_member_that_left_owes_nothing() -> None:
    deadlines, expected, late = late_members()
    for member_id in ("a", "b"):
        for request in (JOIN, SYNC):
            expected.expect("g", member_id, request, 10, anew=False)
    expected.forget("g", "a")
    expected.clear()
    deadlines.fire(10)
    assert late == []
