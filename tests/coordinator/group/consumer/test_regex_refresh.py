"""One resolution of regular expressions: whole names, in bounded turns, and bad expressions."""

from __future__ import annotations

import pytest

from kbroker.coordinator.group.consumer.regex_refresh import NAME_COST, RegexRefresh
from kbroker.protocol.errors import ErrorCode

TOPICS = dict.fromkeys(["b", "a2", "a1", "ab", "_x"])


def refresh(*regexes: str, topics: dict[str, None] = TOPICS) -> RegexRefresh:
    return RegexRefresh(regexes, topics, offset=5, wall_ms=9)


def test_names_are_matched_as_a_whole_and_sorted() -> None:
    made = refresh("a.", "a", "b|a1", "no")
    assert made.advance()
    assert made.resolved == {"a.": ["a1", "a2", "ab"], "a": [], "b|a1": ["a1", "b"], "no": []}
    assert made.refused == []


@pytest.mark.parametrize("turn", [1, 2, 17, 18, 19, 40, 100, 1000])
def test_turns_of_any_size_find_the_same(turn: int) -> None:
    regexes = ("a.", "b", ".*")
    made, expected = refresh(*regexes), refresh(*regexes)
    expected.advance()
    turns = 1
    while not made.advance(turn):
        turns += 1
    assert made.resolved == expected.resolved
    names = sum(len(name) + NAME_COST for name in TOPICS)
    cost = sum(len(regex) + NAME_COST + names for regex in regexes)
    dearest = NAME_COST + 2
    assert turns <= -(-cost // turn), "each turn does as much as it may"
    assert turns > cost // (turn + dearest), "and not more than that by more than one name"


def test_a_turn_is_shorter_in_names_where_names_and_expressions_are_long() -> None:
    topics = dict.fromkeys(str(number) * 200 for number in range(8))
    made = refresh("0*", "x" * 100, topics=topics)
    turns = [made.advance(2 * (200 + NAME_COST)) for _ in range(8)]
    assert turns == [False] * 7 + [True] + [], "two names at a time"
    assert made.resolved == {"0*": ["0" * 200], "x" * 100: []}


def test_an_expression_that_re2_refuses_matches_nothing_and_keeps_no_other() -> None:
    made = refresh("(", "a1", "[")
    assert made.advance()
    assert made.resolved == {"(": [], "a1": ["a1"], "[": []}
    codes = [error.code for error in made.refused]
    assert codes == [ErrorCode.INVALID_REGULAR_EXPRESSION] * 2


def test_refused_expressions_count_as_work() -> None:
    made = refresh(*("(" * number for number in range(1, 5)))
    cost = 2 * (NAME_COST + 2)
    assert [made.advance(cost), made.advance(cost)] == [False, True]


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
