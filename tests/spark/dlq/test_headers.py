"""The headers of dead letters."""

from __future__ import annotations

from spark_jobs.dlq.checks import Problem
from spark_jobs.dlq.headers import (
    MESSAGE_LENGTH,
    RETRIES,
    Place,
    dead_letter_bytes,
    dead_letter_headers,
    own_headers,
)

PROBLEM = Problem("VALUE_CONVERTER", "org.x.DataException", "id is missing")
OWN = [(b"a", b"1"), (b"a", None), (b"", b"")]


def test_a_record_that_fails_first() -> None:
    found = dead_letter_headers(OWN, Place("orders", 2, 7, "dlq-orders", 3), PROBLEM, "x.Checks")
    assert found == [
        *OWN,
        (b"__connect.errors.topic", b"orders"),
        (b"__connect.errors.partition", b"2"),
        (b"__connect.errors.offset", b"7"),
        (b"__connect.errors.connector.name", b"dlq-orders"),
        (b"__connect.errors.task.id", b"3"),
        (b"__connect.errors.stage", b"VALUE_CONVERTER"),
        (b"__connect.errors.class.name", b"x.Checks"),
        (b"__connect.errors.exception.class.name", b"org.x.DataException"),
        (b"__connect.errors.exception.message", b"id is missing"),
    ]
    assert own_headers(found) == OWN


def test_a_dead_letter_that_fails_again() -> None:
    """It keeps where it was read first, has one set of headers, and counts."""
    headers = dead_letter_headers(OWN, Place("orders", 2, 7, "q", 0), PROBLEM, "x")
    for retries in (b"1", b"2", b"3"):
        place = Place("orders.dlq", 0, 99, "dlq-retry", 5)
        headers = dead_letter_headers(headers, place, PROBLEM, "x")
        named = dict(headers)
        assert len(named) == len(headers) - 1  # one of the record's own is there twice
        assert (named[b"__connect.errors.topic"], named[b"__connect.errors.offset"]) == (
            b"orders",
            b"7",
        )
        assert named[RETRIES] == retries
        assert own_headers(headers) == OWN


def test_room_for_the_headers() -> None:
    letter = dead_letter_headers(
        [],
        Place("t" * 249, 1 << 30, 1 << 62, "q" * 1000, 1 << 30),
        PROBLEM._replace(message="\u20ac" * 5000),
        "c" * 200,
    )
    size = sum(len(name) + len(value or b"") + 10 for name, value in letter)
    assert dead_letter_bytes(1_048_588) > 1_048_588 + size
    assert dead_letter_bytes((1 << 31) - 1) == (1 << 31) - 1  # Kafka's largest


def test_values_from_outside() -> None:
    place = Place("t", 0, 0, "q", 0)
    strange = [(RETRIES, b"x"), (b"__connect.errors.topic", None)]
    named = dict(dead_letter_headers(strange, place, PROBLEM, "x"))
    assert (named[RETRIES], named[b"__connect.errors.topic"]) == (b"1", b"t")
    for number in (b"9" * 4300, b"9" * 5000, b"9" * 10):  # Python converts up to 4300 digits
        strange = [(RETRIES, number), (b"__connect.errors.topic", b"t")]
        assert dict(dead_letter_headers(strange, place, PROBLEM, "x"))[RETRIES] == b"1"
    long = PROBLEM._replace(message="\ud800" * 5000)
    found = dict(dead_letter_headers([], place, long, "x"))[b"__connect.errors.exception.message"]
    assert found == b"?" * MESSAGE_LENGTH
