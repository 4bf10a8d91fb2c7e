"""The parser that checks our rules and dashboards: what it reads, and what it refuses."""

from __future__ import annotations

import pytest

from tests.server.monitoring.promql import Matcher, selectors


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("up", [("up", set())]),
        ("up == 0", [("up", set())]),
        ("-a + 2 * b ^ 3", [("a", set()), ("b", set())]),
        ("sum by (job) (rate(a[5m]))", [("a", {"job"})]),
        ("sum(rate(a[1h30m] offset 5m)) by (job)", [("a", {"job"})]),
        ("sum without (x) (a)", None),
        ("topk(3, a) > bool 2", [("a", set())]),
        ("a - on (x, y) group_right () b", [("a", {"x", "y"}), ("b", {"x", "y"})]),
        ("a and b or c unless d", [(each, set()) for each in "abcd"]),
        ("histogram_quantile(0.99, sum by (le) (rate(a_bucket[5m])))", [("a_bucket", {"le"})]),
        ("clamp_min(job:a:sum - 1, 0) # why", [("job:a:sum", set())]),
        ("scalar(max(a)) - 1 - b", [("a", set()), ("b", set())]),
    ],
)
def test_what_is_read(text: str, expected: list[tuple[str, set[str]]] | None) -> None:
    if expected is None:
        with pytest.raises(SyntaxError):
            selectors(text)
    else:
        assert [(each.name, set(each.labels)) for each in selectors(text)] == expected


def test_matchers() -> None:
    (one,) = selectors("""a{x="1", y!~'b|c',z=""} > 1""")
    assert one.matchers == (
        Matcher("x", "=", "1"),
        Matcher("y", "!~", "b|c"),
        Matcher("z", "=", ""),
    )
    assert [each.takes("1") for each in one.matchers] == [True, True, False]
    assert [each.takes("b") for each in one.matchers] == [False, False, False]
    assert Matcher("x", "=~", "a.*").takes("ab") and not Matcher("x", "!=", "a").takes("a")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a b",
        "(a",
        "a)",
        "a{",
        "a{x}",
        'a{x=="1"}',
        "rate(a)",
        "sum(a[5m])",
        "a[5m] + b",
        "(a + b)[5m]",
        "nosuch(a)",
        "rate(a[5m], 1)",
        "sum by job (a)",
        "a + bool b",
        "a on (x) b",
        "a ! b",
        "by",
        "a[5]",
    ],
)
def test_what_is_no_expression(text: str) -> None:
    with pytest.raises(SyntaxError):
        selectors(text)
