"""Which parts of a folder are unsynced, while changes are recorded and flushes end in any order."""

from __future__ import annotations

import pytest

from kbroker.log.state.flush import FolderChanges, LogFlush


class Noted:
    def __init__(self, path: str, notes: list[str]) -> None:
        self.path = path
        self.notes = notes

    def sync(self) -> None:
        if self.path == "broken":
            raise OSError("broken")
        self.notes.append(self.path)


def unsynced(changes: FolderChanges) -> list[str]:
    return [name for name in ("names", "topic_id", "folder") if getattr(changes, name)]


def test_a_new_folder_has_no_changes() -> None:
    assert unsynced(FolderChanges()) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["names"]),
        ({"topic_id": True}, ["names", "topic_id"]),
        ({"folder": True}, ["names", "folder"]),
        ({"names": False, "topic_id": True}, ["topic_id"]),
    ],
)
def test_what_a_change_leaves_to_be_synced(options: dict[str, bool], expected: list[str]) -> None:
    changes = FolderChanges()
    changes.changed(**options)
    assert unsynced(changes) == expected
    changes.synced(changes.last)
    assert unsynced(changes) == []


def test_a_change_after_a_flush_began_is_left_to_the_next() -> None:
    changes = FolderChanges()
    changes.changed(folder=True)
    covered = changes.last
    changes.changed(topic_id=True)
    changes.synced(covered)
    assert unsynced(changes) == ["names", "topic_id"]


def test_an_older_flush_that_ends_last_takes_nothing_back() -> None:
    changes = FolderChanges()
    changes.changed()
    older = changes.last
    changes.changed(topic_id=True)
    changes.synced(changes.last)
    changes.synced(older)
    assert unsynced(changes) == []


def test_files_are_synced_in_order_up_to_the_first_that_fails() -> None:
    notes: list[str] = []
    ended: list[tuple[int, bool]] = []
    flush = LogFlush(
        [Noted("one", notes), Noted("two", notes), Noted("broken", notes), Noted("x", notes)],
        lambda flush, is_synced: ended.append((flush.up_to, is_synced)),
        up_to=7,
        change=1,
        epoch_change=-1,
    )
    with pytest.raises(OSError, match="broken"):
        flush.sync()
    assert notes == ["one", "two"]
    flush.finish(is_synced=False)
    flush.up_to = 5
    flush.finish()
    assert ended == [(7, False), (5, True)]
