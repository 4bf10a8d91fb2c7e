from __future__ import annotations

import pytest

from kbroker.log.storage import names
from kbroker.model import TopicPartition

HEX = "0ca4fd6a74884fdb93550f1f414d3d7d"


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("parts-2", (TopicPartition("parts", 2), "")),
        ("odd.name_with-dash-1-0", (TopicPartition("odd.name_with-dash-1", 0), "")),
        (f"odd.name-1-0.{HEX}-delete", (TopicPartition("odd.name-1", 0), "-delete")),
        (f"t-7.{HEX}-stray", (TopicPartition("t", 7), "-stray")),
        (f"t-7.{HEX}-future", (TopicPartition("t", 7), "-future")),
        (f"-7.{HEX}-future", None),
        ("lost+found", None),
        ("-0", None),
        ("topic-", None),
        ("topic-x", None),
    ],
)
def test_folder_names(name: str, parsed: tuple[TopicPartition, str] | None) -> None:
    assert names.parse_directory_name(name) == parsed


def test_a_long_topic_is_shortened_so_that_the_name_stays_a_file_name() -> None:
    name = names.marked_directory_name(TopicPartition("t" * 249, 12), HEX, names.DELETE_SUFFIX)
    assert len(name) == 255 and name.endswith(f"-12.{HEX}-delete")
    assert names.parse_directory_name(name) is not None


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("00000000000000000042.log", (42, ".log", "")),
        ("00000000000000000042.timeindex.deleted", (42, ".timeindex", ".deleted")),
        ("00000000000000000042.txnindex.swap", (42, ".txnindex", ".swap")),
        ("42.log", None),
        ("leader-epoch-checkpoint", None),
    ],
)
def test_file_names(name: str, parsed: tuple[int, str, str] | None) -> None:
    assert names.parse_offset_name(name) == parsed
    if parsed is not None:
        assert names.offset_name(parsed[0], parsed[1] + parsed[2]) == name
