"""The checker finds what it is there for."""

from __future__ import annotations

import pytest

from tests.e2e.transaction_history import KEYS, Outcomes, Place, Seen, anomalies

COUNT = 20
Read = dict[Place, list[Seen]]


def history() -> tuple[Outcomes, Read]:
    """A worker that commits its inputs in fives, with an abort between."""
    outcomes = Outcomes()
    read: Read = {("by-key", index): [] for index in range(3)} | {("all", 0): []}
    for start in range(0, COUNT, 5):
        outcomes.take(f"open w/0/{start}a")
        outcomes.take(f"abort w/0/{start}a")
        outcomes.take(f"open w/0/{start}")
        for number in range(start, start + 5):
            key = number % KEYS
            read["by-key", key % 3].append(Seen(f"w/{key}", number, f"w/0/{start}"))
            read["all", 0].append(Seen("w", number, f"w/0/{start}"))
        outcomes.take(f"commit w/0/{start}")
    return outcomes, read


def found(outcomes: Outcomes, read: Read) -> str:
    return "; ".join(anomalies({"w": COUNT}, outcomes, read))


def test_a_right_history_has_none() -> None:
    assert found(*history()) == ""


def test_an_end_without_a_response_may_be_either() -> None:
    outcomes, read = history()
    outcomes.ends["w/0/5"] = outcomes.ends["w/0/5a"] = "open"
    assert found(outcomes, read) == ""


def test_a_record_that_is_missing() -> None:
    outcomes, read = history()
    del read["all", 0][7]
    assert "list w: [8, 9, 10, 11, 12] instead of [7, 8" in found(outcomes, read)
    assert "w/0/5 is read in part" in found(outcomes, read)


def test_a_record_that_stands_twice() -> None:
    outcomes, read = history()
    read["all", 0].insert(3, read["all", 0][3])
    assert "list w: [3, 4, 5, 6, 7] instead of [4" in found(outcomes, read)


def test_a_record_of_an_aborted_transaction() -> None:
    outcomes, read = history()
    read["all", 0][3] = read["all", 0][3]._replace(attempt="w/0/5a")
    assert "w/0/5a is read, but was: abort" in found(outcomes, read)


def test_a_commit_that_is_not_there() -> None:
    outcomes, read = history()
    for records in read.values():
        records[:] = [record for record in records if record.attempt != "w/0/15"]
    assert "w/0/15 was committed and is not read" in found(outcomes, read)


def test_transactions_in_another_order() -> None:
    outcomes, read = history()
    outcomes.ends = dict(reversed(outcomes.ends.items()))
    assert "stands after a later transaction" in found(outcomes, read)


@pytest.mark.parametrize("attempt", ["x/1/1"])
def test_a_transaction_that_was_never_begun(attempt: str) -> None:
    outcomes, read = history()
    read["by-key", 0][0] = read["by-key", 0][0]._replace(attempt=attempt)
    assert f"{attempt} is read, but was: never begun" in found(outcomes, read)
