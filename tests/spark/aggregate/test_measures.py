"""Groups and totals out of their texts."""

from __future__ import annotations

import pytest

from spark_jobs.aggregate.measures import Group, Measure, Part, parse_groups, parse_measures, split


def test_groups() -> None:
    assert parse_groups("key, value.country,day=date(timestamp)") == (
        Group("key", "key"),
        Group("country", "value.country"),
        Group("day", "date(timestamp)"),
    )
    assert parse_groups("is_eu = value.country == 'DE'")[0].expression == "value.country == 'DE'"


def test_measures_and_what_is_kept_of_them() -> None:
    measures = parse_measures("orders=count(*), mean=avg(coalesce(value.amount, 0)), top=max(key)")
    assert [measure.name for measure in measures] == ["orders", "mean", "top"]
    assert measures[0] == Measure("orders", "count", "1")
    assert measures[1].expression == "coalesce(value.amount, 0)"
    assert measures[1].parts == (Part("mean__sum", "sum"), Part("mean__count", "count"))
    assert [part.merge for part in measures[1].parts] == ["sum", "sum"]
    assert measures[1].result == "try_divide(`mean__sum`, `mean__count`)"
    assert (measures[2].parts[0].merge, measures[2].result) == ("max", "`top__max`")


def test_commas_in_brackets_and_quotes_do_not_split() -> None:
    assert split("a(b, c[1, 2]), 'x,(' , d") == ["a(b, c[1, 2])", "'x,('", "d"]
    assert split(" , ") == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("lower(key)", "give it a name"),
        ("a=key, a=value", "the same name"),
        ("value.key, key", "the same name"),
        ("window_start=key", "a meaning of its own"),
        ("a=f(key", "do not match"),
        ("a=f)key(", "do not match"),
        ("a='key", "do not match"),
    ],
)
def test_groups_that_cannot_be(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_groups(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("count(*)", "write name=function"),
        ("x=median(value.a)", "count, sum, min, max or avg"),
        ("", "at least one"),
        ("changed=count(*)", "a meaning of its own"),
    ],
)
def test_measures_that_cannot_be(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_measures(text)
