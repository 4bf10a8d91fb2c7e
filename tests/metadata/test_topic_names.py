"""Topic names, and the texts with which Apache Kafka 4.3.1 rejects them."""

from __future__ import annotations

import pytest

from kbroker.metadata.topic_names import MAX_NAME_LENGTH, name_error

LONG = "x" * (MAX_NAME_LENGTH + 1)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        (LONG, f"the length of '{LONG}' is longer than the max allowed length 249"),
        ("ä" * 250, f"the length of '{'ä' * 250}' is longer than the max allowed length 249"),
        *(
            (
                bad,
                f"'{bad}' contains one or more characters other than ASCII alphanumerics, '.', "
                "'_' and '-'",
            )
            for bad in ("a b", "a/b", "ä", "a\n", "\na", "a:b", "\0", "٣")
        ),
    ],
)
def test_a_name_that_may_not_be(name: str, message: str) -> None:
    assert name_error(name) == f"Topic name is invalid: {message}"


@pytest.mark.parametrize("name", ["x" * 249, "...", "a.b-c_D9", "-", "_"])
def test_a_name_that_may_be(name: str) -> None:
    assert name_error(name) is None
