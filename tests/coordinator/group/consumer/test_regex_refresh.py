"""One resolution of regular expressions: whole names, in bounded turns, and bad expressions."""

from __future__ import annotations

import pytest

from kbroker.coordinator.group.consumer.regex_refresh import RegexRefresh
from kbroker.protocol.errors import ErrorCode

TOPICS = dict.fromkeys(["b", "a2", "a1", "ab", "_x"])


def refresh(*regexes: str, topics: dict[str, None] = TOPICS) -> RegexRefresh:
    return RegexRefresh(regexes, topics, offset=5, wall_ms=9)


def test_names_are_matched_as_a_whole_and_sorted() -> None:
    made = refresh("a.", "a", "b|a1", "no")
    assert made.advance()
    assert made.resolved == {"a.": ["a1", "a2", "ab"], "a": [], "b|a1": ["a1", "b"], "no": []}
    assert made.refused == []


@pytest.mark.parametrize("turn", [1, 2, 3, 4, 5, 7, 100])
def test_turns_of_any_size_find_the_same(turn: int) -> None:
    made, expected = refresh("a.", "b", ".*"), refresh("a.", "b", ".*")
    expected.advance()
    turns = 1
    while not made.advance(turn):
        turns += 1
    assert made.resolved == expected.resolved
    assert turns == -(-3 * len(TOPICS) // turn), "each turn does as much as it may, and no more"


def test_an_expression_that_re2_refuses_matches_nothing_and_keeps_no_other() -> None:
    made = refresh("(", "a1", "[")
    assert made.advance()
    assert made.resolved == {"(": [], "a1": ["a1"], "[": []}
    codes = [error.code for error in made.refused]
    assert codes == [ErrorCode.INVALID_REGULAR_EXPRESSION] * 2


def test_refused_expressions_count_as_work() -> None:
    made = refresh(*("(" * number for number in range(1, 5)))
    assert [made.advance(2), made.advance(2)] == [False, True]


def test_no_topics_and_no_expressions() -> None:
    assert refresh().advance()
    made = refresh("a", "b", topics={})
    assert not made.advance(1), "an expression is work even where there is no topic"
    assert made.advance(1)
    assert made.resolved == {"a": [], "b": []}


def test_it_keeps_the_topics_of_its_start() -> None:
    topics = dict.fromkeys(["a"])
    made = refresh(".*", topics=topics)
    topics["b"] = None
    made.advance()
    assert made.resolved == {".*": ["a"]}
    assert made.topics is topics and (made.offset, made.wall_ms) == (5, 9)
