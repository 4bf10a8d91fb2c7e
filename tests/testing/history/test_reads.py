"""What a reader saw and must not have seen, or should have seen: each is found."""

from __future__ import annotations

from kbroker.testing.history.operations import Ending, ReadRecord
from tests.testing.history.histories import EVENTS, LEDGERS, Clients, right_history


def only_line(clients: Clients) -> str:
    (line,) = clients.lines()
    return line


def test_an_offset_that_holds_two_records() -> None:
    clients = right_history()
    clients.history.reads.append(ReadRecord("other", 0, EVENTS, 1, b"a", False))
    assert only_line(clients) == (
        "events-0 offset 1 holds two records: b was stored in the end, a was read by other"
    )


def test_an_offset_that_holds_two_records_is_found_before_the_end() -> None:
    clients = right_history()
    clients.logs.clear()
    clients.history.reads.append(ReadRecord("other", 0, EVENTS, 1, b"a", False))
    assert only_line(clients) == (
        "events-0 offset 1 holds two records: b was acknowledged, a was read by other"
    )


def test_a_record_that_was_acknowledged_at_another_offset() -> None:
    clients = right_history()
    clients.history.acknowledge(b"d", 3)
    assert only_line(clients) == (
        "events-0 offset 3 holds two records: c was stored in the end, d was acknowledged"
    )


def test_a_record_that_was_read_and_is_gone() -> None:
    clients = right_history()
    clients.history.reads.append(ReadRecord("other", 0, EVENTS, 5, b"unanswered", False))
    assert only_line(clients) == (
        "events-0 offset 5: unanswered was read by other, and no record is there in the end"
    )


def test_a_record_that_was_never_sent_is_read() -> None:
    clients = Clients()
    clients.history.reads.append(ReadRecord("r", 0, EVENTS, 5, b"phantom", False))
    clients.logs.clear()
    assert "offset 5: r read a record that was never sent: phantom" in only_line(clients)


def test_a_reader_of_committed_records_sees_an_aborted_one() -> None:
    clients = Clients()
    clients.transact("t", Ending.ABORTED, commit=False)
    clients.history.reads.append(ReadRecord("any", 0, LEDGERS[0], 0, b"t/0", False))
    assert clients.lines() == []
    clients.history.reads.append(ReadRecord("r", 0, LEDGERS[0], 0, b"t/0", True))
    assert only_line(clients) == (
        "ledger-0 offset 0: r read t/0 of t, whose transaction was aborted"
    )


def test_a_reader_that_misses_records() -> None:
    clients = right_history()
    clients.history.reads.append(ReadRecord("s", 0, EVENTS, 0, b"a", False))
    clients.history.reads.append(ReadRecord("s", 0, EVENTS, 3, b"c", False))
    assert only_line(clients) == "events-0 offset 3: s missed 2 records, first offset 1"


def test_a_reader_may_begin_anew_in_another_session() -> None:
    clients = right_history()
    for session, offset, value in ((0, 0, b"a"), (1, 3, b"c"), (2, 0, b"a")):
        clients.history.reads.append(ReadRecord("s", session, EVENTS, offset, value, False))
    assert clients.lines() == []


def test_a_reader_that_goes_back() -> None:
    clients = right_history()
    for offset, value in ((0, b"a"), (1, b"b"), (1, b"b")):
        clients.history.reads.append(ReadRecord("s", 0, EVENTS, offset, value, False))
    assert only_line(clients) == "events-0 offset 1: s read it after offset 1"


def test_a_group_that_commits_what_it_has_not_read() -> None:
    clients = right_history()
    del clients.history.reads[1:3]
    clients.history.reads[1:1] = [
        ReadRecord("r2", 0, EVENTS, 2, b"plain", committed_only=True, group="g")
    ]
    lines = clients.lines()
    assert lines == [
        "events-0 offset 3: r missed 2 records, first offset 1",
        "events-0: group g has committed offset 4, and none of its members read 1 records before "
        "it, first offset 1",
    ]
