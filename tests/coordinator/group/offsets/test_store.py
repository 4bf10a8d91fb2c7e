"""The committed offsets of a shard: records and tombstones, deleted topics, what is pending."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.coordinator.group.offsets.pending import OffsetPlace
from kbroker.coordinator.group.offsets.store import OffsetStore
from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.topics import DeletedTopic
from kbroker.model import ZERO_UUID, Uuid
from kbroker.protocol.messages.stored.group_records import OffsetCommitKey, OffsetCommitValue

ID, OTHER_ID = b"a" * 16, b"b" * 16
PRODUCER = 7


def key(group: str, topic: str = "t", partition: int = 0) -> OffsetCommitKey:
    return OffsetCommitKey(group=group, topic=topic, partition=partition)


def value(offset: int, topic_id: Uuid = ID) -> OffsetCommitValue:
    return OffsetCommitValue(offset=offset, topic_id=topic_id)


def places(records: Iterable[CoordinatorRecord | None]) -> list[tuple[str, str, int]]:
    """Of tombstones."""
    found = []
    for record in records:
        if record is None:
            continue
        assert isinstance(record.key, OffsetCommitKey) and record.value is None
        found.append(tuple(OffsetPlace.of(record.key)))
    return found  # type: ignore[return-value]  # a named tuple's three fields


def offsets(store: OffsetStore, group: str = "g") -> dict[tuple[str, int], int]:
    return {
        (topic, partition): one.offset
        for topic, partitions in store.of_group(group).items()
        for partition, one in partitions.items()
    }


def test_the_last_record_counts_and_tombstones_leave_nothing_empty() -> None:
    store = OffsetStore()
    for partition, offset in ((0, 1), (1, 2), (0, 3)):
        store.replay(key("g", partition=partition), value(offset))
    assert offsets(store) == {("t", 0): 3, ("t", 1): 2}
    assert store.groups() == ["g"]
    store.replay(key("g", partition=0), None)
    assert offsets(store) == {("t", 1): 2}
    store.replay(key("g", partition=1), None)
    store.replay(key("g", partition=1), None)
    assert store.groups() == [] and not store.has_group("g")
    assert dict(store.of_group("g")) == {}


def test_an_offset_of_a_transaction_counts_from_its_commit_on() -> None:
    store = OffsetStore()
    store.replay_pending(PRODUCER, key("g"), value(5))
    assert offsets(store) == {}
    assert store.has_group("g") and store.has(OffsetPlace("g", "t", 0))
    assert not store.has(OffsetPlace("g", "t", 1))
    store.end_transaction(PRODUCER, commit=True)
    assert offsets(store) == {("t", 0): 5}


def test_an_aborted_offset_leaves_the_one_before() -> None:
    store = OffsetStore()
    store.replay(key("g"), value(1))
    store.replay_pending(PRODUCER, key("g"), value(5))
    store.end_transaction(PRODUCER, commit=False)
    assert offsets(store) == {("t", 0): 1}


def test_a_tombstone_removes_what_is_pending_too() -> None:
    store = OffsetStore()
    store.replay_pending(PRODUCER, key("g"), value(5))
    store.replay(key("g"), None)
    store.end_transaction(PRODUCER, commit=True)
    assert offsets(store) == {}
    store.replay(key("g"), value(1))
    store.replay_pending(PRODUCER, key("g"), None)
    assert offsets(store) == {}, "a tombstone in a transaction counts at once"


def test_the_end_of_a_group_names_each_offset_once() -> None:
    store = OffsetStore()
    store.replay(key("g", "t", 0), value(1))
    store.replay_pending(PRODUCER, key("g", "t", 0), value(2))
    store.replay_pending(PRODUCER, key("g", "u", 3), value(2))
    store.replay(key("other", "t", 0), value(1))
    assert places(store.tombstones_of_group("g")) == [("g", "t", 0), ("g", "u", 3)]
    assert places(store.tombstones_of_group("none")) == []


def test_offsets_of_deleted_topics_of_all_groups() -> None:
    store = OffsetStore()
    store.replay(key("b", "t", 1), value(1))
    store.replay(key("a", "t", 0), value(1, ZERO_UUID))
    store.replay(key("a", "u", 0), value(1))
    store.replay(key("c", "t", 0), value(1, OTHER_ID))
    store.replay_pending(PRODUCER, key("d", "t", 0), value(1))
    store.replay_pending(PRODUCER, key("b", "t", 1), value(2))
    found = places(store.tombstones_of_topics([DeletedTopic("t", ID)]))
    assert found == [("b", "t", 1), ("a", "t", 0), ("d", "t", 0)], "not of a later topic's name"
    assert places(store.tombstones_of_topics([])) == []


def test_offsets_of_several_deleted_topics_of_one_name() -> None:
    store = OffsetStore()
    store.replay(key("a"), value(1))
    store.replay(key("b"), value(1, OTHER_ID))
    store.replay(key("c"), value(1, b"c" * 16))
    deleted = [DeletedTopic("t", ID), DeletedTopic("t", OTHER_ID)]
    assert places(store.tombstones_of_topics(deleted)) == [("a", "t", 0), ("b", "t", 0)]


def test_offsets_of_a_deleted_topic_are_found_while_the_store_changes() -> None:
    store = OffsetStore()
    for group in ("a", "b"):
        for partition in (0, 1, 2):
            store.replay(key(group, "t", partition), value(1))
    store.replay_pending(PRODUCER, key("b", "t", 3), value(1))
    store.replay_pending(PRODUCER, key("b", "t", 4), value(1))
    steps = store.tombstones_of_topics([DeletedTopic("t", ID)])
    assert places([next(steps), next(steps)]) == [("a", "t", 0)]
    store.replay(key("a", "t", 1), value(9, OTHER_ID))
    store.replay(key("a", "t", 2), None)
    assert places([next(steps), next(steps), next(steps)]) == []
    store.replay(key("b", "t", 1), None)
    store.end_transaction(PRODUCER, commit=True)
    assert places(steps) == [("b", "t", 0), ("b", "t", 2), ("b", "t", 3), ("b", "t", 4)]


def test_the_steps_of_a_deletion_do_not_grow_with_other_topics() -> None:
    store = OffsetStore()
    for topic in range(50):
        store.replay(key("a", f"other-{topic}"), value(1))
    deleted = [DeletedTopic(f"deleted-{number}", ID) for number in range(50)]
    assert list(store.tombstones_of_topics(deleted)) == [None]
    store.replay(key("a", "deleted-3"), value(1))
    assert len(list(store.tombstones_of_topics(deleted))) == 2


def test_whose_offset_it_is() -> None:
    topic = DeletedTopic("t", ID)
    assert topic.has(value(1)) and topic.has(value(1, ZERO_UUID))
    assert not topic.has(value(1, OTHER_ID))


def test_a_walk_goes_on_while_the_store_changes() -> None:
    store = OffsetStore()
    for group in ("a", "b"):
        for topic in ("t", "u"):
            for partition in (0, 1):
                store.replay(key(group, topic, partition), value(partition))
    everything = [(*each[:3], each[3].offset) for each in store.walk()]
    assert everything == [
        (group, topic, partition, partition)
        for group in ("a", "b")
        for topic in ("t", "u")
        for partition in (0, 1)
    ]
    walk = store.walk()
    assert next(walk)[:3] == ("a", "t", 0)
    store.replay(key("a", "new"), value(1))
    store.replay(key("c"), value(1))
    for topic in ("t", "u"):
        for partition in (0, 1):
            store.replay(key("b", topic, partition), None)
    assert [each[:3] for each in walk] == [("a", "t", 1), ("a", "u", 0), ("a", "u", 1)]
