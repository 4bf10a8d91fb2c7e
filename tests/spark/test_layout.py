"""Folders and names of an archive's files, and what going back removes."""

from __future__ import annotations

import pytest

from spark_jobs.archive.layout import (
    LAST_HOUR,
    FileRange,
    Positions,
    check_name,
    file_name,
    folder,
    is_string_mark,
    looks_typed,
    parse_file,
    parse_layout,
    rewind,
    string_mark,
)
from spark_jobs.errors import JobError

HOUR = 494_000  # 2026-05-10 08:00 UTC


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("topic,date", ("topic", "date")),
        ("date,topic", ("topic", "date")),
        ("hour", ("date", "hour")),
        (" partition , topic ", ("topic", "partition")),
        ("none", ()),
    ],
)
def test_layouts(text: str, levels: tuple[str, ...]) -> None:
    assert parse_layout(text) == levels


@pytest.mark.parametrize("text", ["", "key", "topic,none", "topic;date"])
def test_layouts_that_are_none(text: str) -> None:
    with pytest.raises(JobError, match="levels are topic, date, hour, partition"):
        parse_layout(text)


@pytest.mark.parametrize(
    ("layout", "hour", "expected"),
    [
        (("topic", "date"), HOUR, "topic=orders/date=2026-05-10"),
        (("topic", "date", "hour"), HOUR + 1, "topic=orders/date=2026-05-10/hour=09"),
        (("date", "partition"), HOUR, "date=2026-05-10/partition=3"),
        ((), HOUR, ""),
        (("date", "hour"), -1, "date=1969-12-31/hour=23"),
        (("date",), LAST_HOUR, "date=9999-12-31"),
    ],
)
def test_folders(layout: tuple[str, ...], hour: int, expected: str) -> None:
    assert folder(layout, "orders", 3, hour) == expected


@pytest.mark.parametrize(
    ("layout", "content", "name"),
    [
        (
            ("topic", "date"),
            FileRange("orders", 3, 12_000, 15_999),
            "p00003-000000012000-000000015999.parquet",
        ),
        (
            ("topic",),
            FileRange("orders", 3, 0, 9, generation=2),
            "p00003-000000000000-000000000009.g2.parquet",
        ),
        ((), FileRange("a-p1", 0, 1, 2), "a-p1-p00000-000000000001-000000000002.parquet"),
        (
            ("date",),
            FileRange("__consumer_offsets", 123_456, 10**13, 10**13),
            "%5F_consumer_offsets-p123456-10000000000000-10000000000000.parquet",
        ),
    ],
)
def test_names_say_what_is_in_a_file(
    layout: tuple[str, ...], content: FileRange, name: str
) -> None:
    assert file_name(layout, content) == name
    place = folder(layout, content.topic, content.partition, HOUR)
    assert parse_file(f"{place}/{name}".lstrip("/")) == content
    assert not name.startswith((".", "_"))


@pytest.mark.parametrize(
    ("topic", "generation", "size"),
    [
        ("t" * 214, 1, None),
        ("t" * 215, 1, 256),
        ("t" * 214, 2, 258),
        ("." + "t" * 211, 1, None),
        ("_" + "t" * 212, 1, 256),
    ],
)
def test_names_that_are_too_long(topic: str, generation: int, size: int | None) -> None:
    content = FileRange(topic, 0, 0, 9, generation)
    for layout in ((), ("date",)):
        check_name(layout, content, None)
        if size is None:
            check_name(layout, content, 255)
        else:
            with pytest.raises(JobError, match=f"{size} bytes, of which .* takes 255"):
                check_name(layout, content, 255)
    check_name(("topic",), content, 255)


@pytest.mark.parametrize(
    "path", ["topic=a/part-00000.parquet", "p00003-1-2.parquet", "x.csv", "no-records.parquet"]
)
def test_other_files(path: str) -> None:
    assert parse_file(path) is None


@pytest.mark.parametrize(
    ("topic", "is_typed"),
    [
        *((name, True) for name in ("20240101", "2024-01-01", "1e5", "-7", ".5", "007", "NaN")),
        *((name, True) for name in ("true", "NULL", "infinity", "-Infinity", "5d")),
        *((name, False) for name in ("orders", "a1", "nano", "_1", "trueish", "-a")),
    ],
)
def test_topics_that_look_like_numbers(topic: str, is_typed: bool) -> None:
    assert looks_typed(topic) is is_typed


def test_the_string_mark_has_the_folders_of_the_layout() -> None:
    path = string_mark(("topic", "date", "partition"))
    assert path == "topic=~string/date=1970-01-01/partition=0/no-records.parquet"
    assert is_string_mark(path) and not is_string_mark("topic=string/x")
    assert parse_file(path) is None


def named(first: int, last: int, day: int = 1, generation: int = 1) -> str:
    layout = ("topic", "date")
    content = FileRange("t", 0, first, last, generation)
    return f"topic=t/date=2026-05-0{day}/{file_name(layout, content)}"


@pytest.mark.parametrize(
    ("wanted", "positions", "kept"),
    [
        (0, 0, 0),
        (1000, 1000, 2),
        # File 0..999 begins before 500 and stays whole; so does what lies within its range.
        (500, 1000, 2),
        (1500, 2000, 3),
        (9000, 9000, 4),
    ],
)
def test_going_back_keeps_files_that_begin_before(wanted: int, positions: int, kept: int) -> None:
    files = [named(0, 999), named(3, 998, 2), named(1000, 1999, 2), named(2000, 2001, 2)]
    others = ["topic=t/readme.txt", "topic=u/p00000-000000000000-000000000009.parquet"]
    back = rewind([*files, *others], {"t": {0: wanted}}, {})
    assert back.positions == {"t": {0: positions}}
    assert set(back.removed) == set(files[kept:])


def test_going_back_keeps_files_of_an_earlier_generation() -> None:
    wanted: Positions = {"t": {0: 0}}
    files = [named(0, 9), named(0, 9, generation=2)]
    assert rewind(files, wanted, {"t": 2}).removed == (files[1],)
    assert rewind(files, wanted, {"t": 3}).removed == ()
