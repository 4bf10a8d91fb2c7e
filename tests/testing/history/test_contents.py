"""Lost, doubled and misplaced records, and transactions that are visible in part: each is found."""

from __future__ import annotations

import pytest

from kbroker.testing.history.operations import Ending, Guarantee
from tests.testing.history.histories import EVENTS, LEDGERS, Clients, right_history


def only_line(clients: Clients) -> str:
    (line,) = clients.lines()
    return line


def test_an_acknowledged_record_that_is_lost() -> None:
    clients = Clients(skip=(b"b",))
    clients.produce(b"a", b"b", b"c")
    assert only_line(clients) == "events-0: lost: b of p was acknowledged and is not there"
    clients.history.acknowledged[b"b"] = 7
    assert "b of p was acknowledged at offset 7 and is not there" in only_line(clients)


def test_a_record_without_an_outcome_may_be_there_or_not() -> None:
    clients = Clients(skip=(b"b",))
    clients.produce(b"a", b"b", b"c")
    del clients.history.acknowledged[b"b"], clients.history.acknowledged[b"c"]
    assert clients.lines() == []


def test_deleted_records_are_not_lost() -> None:
    clients = Clients(skip=(b"b",))
    clients.produce(b"a", b"b")
    clients.history.acknowledged[b"b"] = 1
    clients.history.deleted[EVENTS] = 2
    assert clients.lines() == []
    clients.history.deleted[EVENTS] = 1
    assert "lost: b of p" in only_line(clients)


def test_a_record_that_stands_twice() -> None:
    clients = Clients(repeat=(b"b",))
    clients.produce(b"a", b"b", b"c")
    assert only_line(clients) == "events-0: b of p stands twice, at offsets 1 and 2"


def test_without_idempotence_a_record_may_stand_twice_but_not_be_lost() -> None:
    clients = Clients(repeat=(b"b",), skip=(b"c",))
    clients.produce(b"a", b"b", b"c", guarantee=Guarantee.AT_LEAST_ONCE)
    assert only_line(clients) == "events-0: lost: c of p was acknowledged and is not there"


def test_records_in_another_order() -> None:
    clients = Clients()
    for value in (b"a", b"b", b"c"):
        clients.send(value)
    for value in (b"a", b"c", b"b"):
        clients.store(value)
    assert only_line(clients) == "events-0 offset 2: b of p stands after c of p"


def test_order_is_within_an_epoch_except_for_transactions() -> None:
    clients = Clients()
    clients.send(b"old", epoch=0)
    clients.send(b"new", epoch=1)
    clients.store(b"new")
    clients.store(b"old")
    assert clients.lines() == []
    clients = Clients()
    clients.transact("new", Ending.COMMITTED, commit=True, epoch=1)
    clients.transact("old", Ending.COMMITTED, commit=True, epoch=0)
    assert clients.lines() == [
        f"{partition} offset 2: old/{partition.partition} of t stands after "
        f"new/{partition.partition} of t"
        for partition in LEDGERS
    ]


def test_a_record_that_was_never_sent() -> None:
    clients = right_history()
    clients.logs[EVENTS].append(b"phantom")
    assert "offset 5: a record was stored that was never sent: b'phantom'" in only_line(clients)


def test_a_record_in_another_partition() -> None:
    clients = right_history()
    clients.logs[LEDGERS[0]].append(b"unanswered")
    assert "unanswered of p was stored, which was sent to events-0" in only_line(clients)


def test_a_committed_transaction_of_which_a_record_is_lost() -> None:
    clients = Clients(skip=(b"t/1",))
    clients.transact("t", Ending.COMMITTED, commit=True)
    lost, missing = clients.lines()
    assert lost == "ledger-1: lost: t/1 of t was acknowledged and is not there"
    assert missing == (
        "transaction t was committed, and 1 of its 2 records are missing: t/1 of t in ledger-1"
    )


def test_a_committed_transaction_whose_markers_abort_it() -> None:
    clients = Clients()
    clients.transact("t", Ending.COMMITTED, commit=False)
    assert "t was committed, and 2 of its 2 records are missing" in only_line(clients)


def test_an_aborted_transaction_whose_markers_commit_it() -> None:
    clients = Clients()
    clients.transact("t", Ending.ABORTED, commit=True)
    assert only_line(clients) == (
        "transaction t was aborted, and 2 of its 2 records are visible: t/0 of t in ledger-0"
    )


@pytest.mark.parametrize("ending", [None, Ending.COMMITTED])
def test_a_transaction_that_is_visible_in_one_partition_only(ending: Ending | None) -> None:
    clients = Clients()
    clients.transact("t", ending, commit=True)
    second = clients.logs[LEDGERS[1]]
    second.data, second.next_offset = second.data[:0], 0
    second.append(b"t/1", is_transactional=True)
    second.end_transaction(commit=False)
    known = "was committed" if ending else "is visible in part"
    assert only_line(clients) == (
        f"transaction t {known}, and 1 of its 2 records are missing: t/1 of t in ledger-1"
    )


def test_a_marker_that_was_dropped() -> None:
    clients = right_history()
    first = clients.logs[LEDGERS[0]]
    clients.history.begin("hanging")
    clients.send(b"open", LEDGERS[0], producer="t", epoch=2, transaction="hanging")
    first.append(b"open", is_transactional=True)
    assert only_line(clients) == (
        "ledger-0: transaction hanging was never ended there (1 records are open)"
    )
