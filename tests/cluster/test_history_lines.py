"""The lines of clients become a history."""

from __future__ import annotations

import pytest

from kbroker.model import TopicPartition
from kbroker.testing.history.operations import (
    Ending,
    Guarantee,
    OffsetCommit,
    OffsetFetch,
    ReadRecord,
    SentRecord,
)
from tests.cluster.history_lines import HistoryLines, SharedHistory, Value, value_of

EVENTS = TopicPartition("events", 2)
LEDGER = TopicPartition("ledger", 0)


def test_values_say_who_sent_a_record_and_where() -> None:
    value = Value("confluent", 1, "events", 2, 34)
    assert str(value) == "confluent:1:events:2:34"
    assert Value.parse(str(value)) == value
    assert value_of(b"confluent:1:events:2:34 xxxx") == str(value)


def test_what_a_producer_sends_and_is_told() -> None:
    shared = SharedHistory()
    lines = HistoryLines("p", shared)
    for line in (
        "send p:0:events:2:0",
        "send p:0:events:2:1",
        "stored p:0:events:2:0 17",
        "failed p:0:events:2:1 for some reason",
        "stored p:0:events:2:1 -1",
        "",
        "WARNING of a library",
    ):
        lines.take(line)
    assert lines.count == 2
    history = shared.history
    assert history.sent[b"p:0:events:2:1"] == SentRecord("p", 0, 1, EVENTS, b"p:0:events:2:1")
    assert history.acknowledged == {b"p:0:events:2:0": 17, b"p:0:events:2:1": None}


def test_transactions_and_their_offsets() -> None:
    shared = SharedHistory()
    lines = HistoryLines("t", shared, guarantee=Guarantee.TRANSACTIONAL)
    for line in (
        "begin t-1",
        "send t:0:ledger:0:0 t-1",
        "committing t ledger 0 5 1000 t-1",
        "commit t-1 1010",
        "begin t-2",
        "abort t-2 1020",
        "begin t-3",
    ):
        lines.take(line)
    history = shared.history
    assert lines.count == 1
    assert history.transactions["t-1"].values == [b"t:0:ledger:0:0"]
    assert history.transactions["t-1"].ended_ms == 1010
    assert history.commits == [OffsetCommit("t", LEDGER, 5, 1000, None, "t-1")]
    endings = [each.ending for each in history.transactions.values()]
    assert endings == [Ending.COMMITTED, Ending.ABORTED, None]


def test_what_a_member_of_a_group_reads_and_commits() -> None:
    shared = SharedHistory()
    lines = HistoryLines("m", shared, group="g")
    for line in (
        "fetched g events 2 -1 1000 1001",
        "read 1 events 2 7 p:0:events:2:0",
        "committing g events 2 8 1002",
        "committing g events 2 8 1003",
        "committed g events 2 8 1004",
        "fetched g events 2 8 1005 1006",
    ):
        lines.take(line)
    history = shared.history
    assert lines.latest == {EVENTS: 7}
    assert history.reads == [ReadRecord("m", 1, EVENTS, 7, b"p:0:events:2:0", True, "g")]
    assert [commit.ended_ms for commit in history.commits] == [None, 1004]
    assert history.fetches == [
        OffsetFetch("g", EVENTS, None, 1000, 1001),
        OffsetFetch("g", EVENTS, 8, 1005, 1006),
    ]


def test_two_clients_have_one_history() -> None:
    shared = SharedHistory()
    HistoryLines("a", shared).take("send a:0:events:2:0")
    with pytest.raises(ValueError, match="was sent before"):
        HistoryLines("b", shared).take("send a:0:events:2:0")
