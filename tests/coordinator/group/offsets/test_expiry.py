"""Which committed offsets have been kept long enough, and when their group ends with them."""

from __future__ import annotations

import pytest

from kbroker.coordinator.group.offsets import expiry as module
from kbroker.coordinator.group.offsets.expiry import ExpirySweep, OffsetExpiry, Retention
from kbroker.coordinator.group.offsets.store import OffsetStore
from kbroker.coordinator.group.records import NO_EXPIRY
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.protocol.messages.stored.group_records import (
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
)

RETENTION_MS = 100


def put(
    store: OffsetStore,
    group: str,
    topic: str = "t",
    *,
    partition: int = 0,
    committed_ms: int = 0,
    expires_ms: int = NO_EXPIRY,
) -> None:
    value = OffsetCommitValue(commit_timestamp=committed_ms, expire_timestamp=expires_ms)
    store.replay(OffsetCommitKey(group=group, topic=topic, partition=partition), value)


def ends(records: list[CoordinatorRecord]) -> list[str]:
    """Of tombstones: `group/topic` for offsets, `group` for groups."""
    found = []
    for record in records:
        assert record.value is None
        match record.key:
            case OffsetCommitKey(group=group, topic=topic):
                found.append(f"{group}/{topic}")
            case GroupMetadataKey(group=group):
                found.append(group)
    return sorted(found)


def check(
    store: OffsetStore, now_ms: int, retention: Retention | None = None, group: str = "g"
) -> tuple[list[str], bool]:
    found, is_bare = OffsetExpiry(store, RETENTION_MS, now_ms).of_group(
        group, retention or Retention(())
    )
    return ends(found), is_bare


def test_an_offset_ends_when_its_time_has_passed() -> None:
    store = OffsetStore()
    put(store, "g", committed_ms=50)
    assert check(store, 149) == ([], False)
    assert check(store, 150) == (["g/t"], True)


def test_the_time_starts_when_the_group_became_empty() -> None:
    store = OffsetStore()
    put(store, "g", "old", committed_ms=10)
    put(store, "g", "new", committed_ms=80)
    retention = Retention((), since_empty_ms=50)
    assert check(store, 149, retention) == ([], False)
    assert check(store, 150, retention) == (["g/old"], False)
    assert check(store, 180, retention) == (["g/new", "g/old"], True)


def test_a_time_that_the_client_chose_holds() -> None:
    store = OffsetStore()
    put(store, "g", "soon", expires_ms=5)
    put(store, "g", "late", expires_ms=5_000)
    assert check(store, 1_000, Retention((), since_empty_ms=999)) == (["g/soon"], False)


def test_offsets_of_subscribed_topics_are_kept() -> None:
    store = OffsetStore()
    put(store, "g", "t")
    put(store, "g", "u")
    assert check(store, 1_000, Retention({"t"})) == (["g/u"], False)


def test_a_pending_offset_keeps_its_place_and_its_group() -> None:
    store = OffsetStore()
    put(store, "g", "t")
    put(store, "g", "u")
    store.replay_pending(7, OffsetCommitKey(group="g", topic="t", partition=0), OffsetCommitValue())
    assert check(store, 1_000) == (["g/u"], False)
    assert check(store, 1_000, group="no offsets") == ([], True)


class Kind:
    """Groups without members, but `busy`; `online` are not looked at."""

    def retention(self, group_id: str) -> Retention | None:
        return None if group_id == "online" else Retention(())

    def is_idle(self, group_id: str) -> bool:
        return group_id != "busy"

    def end(self, group_id: str) -> list[CoordinatorRecord]:
        return [CoordinatorRecord(GroupMetadataKey(group=group_id), None)]


def test_a_group_ends_with_its_last_offset_unless_it_has_members() -> None:
    store = OffsetStore()
    for group in ("busy", "idle", "online", "ended", "kept"):
        put(store, group)
    put(store, "kept", "later", committed_ms=950)
    groups = ["busy", "idle", "online", "ended", "kept", "bare"]
    sweep = ExpirySweep(groups, lambda group_id: None if group_id == "ended" else Kind())
    found = sweep.advance(OffsetExpiry(store, RETENTION_MS, 1_000))
    assert sweep.is_over
    assert ends(found) == ["bare", "busy/t", "idle", "idle/t", "kept/t"]


def test_a_round_is_made_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OFFSETS_PER_TURN", 4)
    store = OffsetStore()
    for group in "abc":
        for partition in range(3):
            put(store, group, partition=partition)
    sweep = ExpirySweep("abc", lambda _: Kind())
    expiry = OffsetExpiry(store, RETENTION_MS, 1_000)
    turns = []
    while not sweep.is_over:
        turns.append(sorted({end[0] for end in ends(sweep.advance(expiry))}))
    assert turns == [["c"], ["b"], ["a"]], "a group counts with its offsets, and is not cut"
