"""What is recorded: names and values are unique."""

from __future__ import annotations

import pytest

from kbroker.testing.history.operations import Ending, History, SentRecord
from tests.testing.history.histories import EVENTS


def test_a_value_is_sent_once() -> None:
    history = History()
    history.send(SentRecord("p", 0, 0, EVENTS, b"a"))
    with pytest.raises(ValueError, match="a of p was sent before"):
        history.send(SentRecord("p", 0, 1, EVENTS, b"a"))


def test_a_transaction_is_begun_once_and_knows_its_records() -> None:
    history = History()
    history.begin("t")
    with pytest.raises(ValueError, match="transaction t was begun before"):
        history.begin("t")
    history.send(SentRecord("p", 0, 0, EVENTS, b"a", transaction="t"))
    assert history.ending_of("t") is history.ending_of(None) is None
    history.end("t", Ending.COMMITTED, 5)
    assert history.ending_of("t") is Ending.COMMITTED
    assert history.transactions["t"].values == [b"a"]
