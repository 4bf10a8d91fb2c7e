"""Patterns of RE2: what they match, and what one may cost."""

from __future__ import annotations

import pytest

from kbroker.metadata import patterns
from kbroker.metadata.patterns import (
    MAX_NAME_CHARACTERS,
    MAX_PATTERN_CHARACTERS,
    MAX_UNICODE_CLASSES,
    SHOWN_CHARACTERS,
    check_pattern,
    matcher,
)
from kbroker.protocol.errors import ErrorCode, KafkaError


def refusal(regex: str) -> str:
    with pytest.raises(KafkaError) as raised:
        check_pattern(regex)
    assert raised.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    return raised.value.message


def test_a_name_is_matched_as_a_whole() -> None:
    matches = matcher("(a|b)-[0-9]+")
    assert [name for name in ("a-1", "b-22", "a-1x", "xa-1", "c-1") if matches(name)] == [
        "a-1",
        "b-22",
    ]


def test_no_captures_are_computed() -> None:
    """1,000 groups in 4 KB took 170 ms for each name."""
    pattern = patterns._compiled("((.*)*)*" * 500)
    assert pattern.groups == 0
    assert pattern.fullmatch("transaction-0")


def test_few_unicode_classes_are_taken_and_many_refused() -> None:
    """8,000 of them in 32 KB took a second to compile."""
    assert matcher(r"\pL*" * MAX_UNICODE_CLASSES)("ü")
    for regex in (r"\pL*" * (MAX_UNICODE_CLASSES + 1), r"\PN*" * 1000):
        assert "Unicode classes" in refusal(regex)


def test_a_pattern_of_many_characters_is_refused() -> None:
    """The time to compile "a?a?..." grows with the square: 0.17 s for 16 KB."""
    assert matcher("a?" * (MAX_PATTERN_CHARACTERS // 2))("aaa")
    assert "longer than 4000 characters" in refusal("a" * (MAX_PATTERN_CHARACTERS + 1))
    names = "|".join(f"team-{number}.orders.v1" for number in range(150))
    assert matcher(names)("team-149.orders.v1")


def test_a_name_that_no_topic_can_have_matches_nothing() -> None:
    """Each character may take microseconds where the pattern's states exceed its memory."""
    matches = matcher(".*")
    assert matches("x" * MAX_NAME_CHARACTERS)
    assert not matches("x" * (MAX_NAME_CHARACTERS + 1))


def test_a_pattern_that_grows_beyond_the_bound_is_refused() -> None:
    """A third of a second to compile, of eight characters."""
    assert "too large" in refusal(r"\pL{300}")


def test_a_refusal_repeats_the_beginning_of_a_long_pattern_only() -> None:
    assert len(refusal("(" * 30_000)) < 2 * SHOWN_CHARACTERS + 100
    assert "'a(b'" in refusal("a(b")
