"""Bytes above the high watermark: told apart by where their append ends."""

from __future__ import annotations

from kbroker.replication.appended_bytes import MAX_APPENDS, AppendedBytes


def test_bytes_are_taken_once_the_offset_has_passed_their_append() -> None:
    appended = AppendedBytes()
    appended.add(5, 100)
    appended.add(9, 10)
    assert appended.take_below(4) == 0
    assert appended.take_below(8) == 100
    assert appended.take_below(8) == 0
    assert appended.take_below(9) == 10


def test_after_many_appends_only_the_sum_is_known() -> None:
    appended = AppendedBytes()
    count = MAX_APPENDS + 50
    for end in range(1, count + 1):
        appended.add(end, 1)
    assert appended.take_below(MAX_APPENDS - 1) == MAX_APPENDS - 1
    assert appended.take_below(count - 1) == 0
    assert appended.take_below(count) == 51


def test_what_is_forgotten_is_not_taken() -> None:
    appended = AppendedBytes()
    appended.add(5, 100)
    appended.clear()
    assert appended.take_below(5) == 0
