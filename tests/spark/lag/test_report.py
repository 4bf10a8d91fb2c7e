"""The table of `lag`, and its JSON."""

from __future__ import annotations

import json

import pytest

from spark_jobs.lag.report import (
    WIDTH,
    LagReport,
    PartitionLag,
    QueryLag,
    age,
    shortened,
)

QUERY = QueryLag(
    "checkpoint",
    "/data/totals",
    "5f3a",
    41,
    (
        PartitionLag("orders", 0, 120, 130, 10, 12.4),
        PartitionLag("orders", 1, None, 3, 3, None),
        PartitionLag("payments", 0, 55, 55, 0, 0.0),
    ),
    ("topic gone does not exist any more",),
)
GROUP = QueryLag("group", "reports", "", None, (PartitionLag("orders", 0, 9, 9, 0, 0.0),))


def test_a_table_for_each_query() -> None:
    assert LagReport([QUERY, GROUP]).to_text().splitlines() == [
        "checkpoint /data/totals, batch 41",
        "topic     partition  offset  end  lag  behind",
        "orders            0     120  130   10    12 s",
        "orders            1       -    3    3       ?",
        "payments          0      55   55    0     0 s",
        "total                              13       ?",
        "note: topic gone does not exist any more",
        "",
        "group reports",
        "topic   partition  offset  end  lag  behind",
        "orders          0       9    9    0     0 s",
    ]


def test_long_names_and_large_numbers_fit_on_80_columns() -> None:
    number = 10**14
    rows = [
        PartitionLag(
            "a-very-long-name-of-a-topic-" * 8 + str(n), n, number, number * 2, number, 9e6
        )
        for n in range(12)
    ]
    query = QueryLag("group", "g", "", None, tuple(rows), ("a note of many words " * 20,))
    lines = LagReport([query]).to_text().splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert "…" in lines[2] and lines[2].split()[0][-1] == "0"
    assert len(lines) > 15


def test_nothing_but_a_note() -> None:
    query = QueryLag("checkpoint", "/new", "", -1, (), ("no batch is committed yet",))
    assert LagReport([query]).to_text() == "checkpoint /new\nnote: no batch is committed yet"
    (found,) = json.loads(json.dumps(LagReport([query]).to_json()))["queries"]
    assert (found["lag"], found["seconds_behind"]) == (None, None)  # 0 would say: all is read


def test_json_has_everything() -> None:
    document = json.loads(json.dumps(LagReport([QUERY, GROUP]).to_json()))
    first, second = document["queries"]
    assert (first["lag"], first["seconds_behind"], first["batch_id"]) == (13, None, 41)
    assert first["partitions"][1] == {
        "topic": "orders",
        "partition": 1,
        "offset": None,
        "end": 3,
        "lag": 3,
        "seconds_behind": None,
    }
    assert first["notes"] == ["topic gone does not exist any more"]
    assert (second["kind"], second["name"], second["batch_id"]) == ("group", "reports", None)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "?"),
        (0.0, "0 s"),
        (119.4, "119 s"),
        (120.0, "2 min"),
        (7199.0, "120 min"),
        (7200.0, "2 h"),
        (172_800.0, "2 d"),
    ],
)
def test_ages(seconds: float | None, shown: str) -> None:
    assert age(seconds) == shown


def test_names_that_are_shortened() -> None:
    assert shortened("abcdefghij", 10) == "abcdefghij"
    assert shortened("abcdefghijk", 10) == "abcde…hijk"
    assert len(shortened("x" * 249, 9)) == 9
