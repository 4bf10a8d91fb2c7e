"""Committed offsets that go back, appear without a commit, or come from an aborted transaction."""

from __future__ import annotations

from kbroker.testing.history.operations import Ending
from tests.testing.history.histories import Clients


def only_line(clients: Clients) -> str:
    (line,) = clients.lines()
    return line


def test_an_offset_that_goes_back() -> None:
    clients = Clients()
    clients.commit(5)
    clients.commit(9)
    clients.fetch(9)
    assert clients.lines() == []
    clients.fetch(5)
    assert only_line(clients) == (
        "group g of events-0: offset 5 was fetched, after 9 was committed"
    )


def test_an_offset_that_is_forgotten() -> None:
    clients = Clients()
    clients.fetch(None)
    clients.commit(5)
    clients.fetch(None)
    assert only_line(clients) == (
        "group g of events-0: no offset was fetched, after 5 was committed"
    )


def test_an_offset_that_was_never_committed() -> None:
    clients = Clients()
    clients.commit(5)
    clients.fetch(6)
    assert "offset 6 was fetched, which was never committed" in only_line(clients)


def test_an_offset_that_is_committed_later() -> None:
    clients = Clients()
    clients.fetch(6)
    clients.commit(6)
    assert "offset 6 was fetched, before it was committed" in only_line(clients)


def test_a_commit_without_an_answer_may_be_carried_out_at_any_time() -> None:
    clients = Clients()
    clients.commit(5)
    clients.commit(7, is_acknowledged=False)
    clients.fetch(5)
    clients.fetch(7)
    clients.commit(9)
    clients.fetch(7)
    assert clients.lines() == []


def test_what_a_fetch_has_found_is_committed() -> None:
    clients = Clients()
    clients.commit(5)
    clients.commit(7, is_acknowledged=False)
    clients.fetch(5)
    clients.fetch(7)
    assert clients.lines() == []
    clients.fetch(5)
    assert only_line(clients) == (
        "group g of events-0: offset 5 was fetched, after 7 was committed"
    )


def test_of_commits_of_one_offset_the_first_may_be_the_one_that_was_found() -> None:
    clients = Clients()
    clients.commit(7, is_acknowledged=False)
    clients.commit(5)
    clients.commit(7, is_acknowledged=False)
    clients.fetch(7)
    clients.fetch(5)
    assert clients.lines() == []


def test_commits_at_the_same_time_may_be_in_either_order() -> None:
    for found in (5, 9):
        clients = Clients()
        first, second = clients.commit(5), clients.commit(9)
        first.ended_ms = second.ended_ms
        clients.fetch(found)
        assert clients.lines() == []


def test_groups_are_apart() -> None:
    clients = Clients()
    clients.commit(5)
    clients.fetch(None, group="h")
    assert clients.lines() == []


def test_offsets_of_transactions_count_if_they_are_committed() -> None:
    clients = Clients()
    clients.commit(5, transaction=begun(clients, "t1"))
    clients.fetch(None)
    clients.history.end("t1", Ending.COMMITTED, clients.now_ms())
    clients.fetch(5)
    clients.commit(9, transaction=begun(clients, "t2"))
    clients.history.end("t2", Ending.ABORTED, clients.now_ms())
    clients.fetch(5)
    assert clients.lines() == []
    clients.fetch(None)
    assert "no offset was fetched, after 5 was committed" in only_line(clients)
    clients.history.fetches.pop()
    clients.fetch(9)
    assert only_line(clients) == (
        "group g of events-0: offset 9 was fetched, which was committed in the aborted "
        "transaction t2 only"
    )


def test_a_fetch_that_does_not_wait_for_markers_may_miss_a_committed_transaction() -> None:
    clients = Clients()
    clients.commit(5, transaction=begun(clients, "t"))
    clients.history.end("t", Ending.COMMITTED, clients.now_ms())
    clients.fetch(None, requires_stable=False)
    assert clients.lines() == []


def begun(clients: Clients, name: str) -> str:
    """A transaction without records."""
    clients.history.begin(name)
    return name
