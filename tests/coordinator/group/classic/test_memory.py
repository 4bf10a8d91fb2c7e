"""Limits on the memory of classic groups before it is in a record."""

from __future__ import annotations

from kbroker.coordinator.group.classic.memory import (
    MEMBERS_AT_LEAST,
    MemberMemory,
    PendingMembers,
    digest_of,
)


class World:
    """Pending members of at most two; `forgotten` has (member, now_ms)."""

    def __init__(self) -> None:
        self.pending = PendingMembers(2)
        self.forgotten: list[tuple[str, int]] = []

    def add(self, name: str, now_ms: int = 0, group_id: str = "g") -> None:
        def forget(now_ms: int) -> None:
            self.forgotten.append((name, now_ms))

        self.pending.add(group_id, digest_of(name), forget, now_ms)


def test_beyond_the_limit_the_oldest_of_all_groups_is_forgotten() -> None:
    world = World()
    for number, (name, group_id) in enumerate([("a", "g"), ("b", "h"), ("c", "g"), ("d", "g")]):
        world.add(name, now_ms=number, group_id=group_id)
    assert world.forgotten == [("a", 2), ("b", 3)]
    assert len(world.pending) == 2


def test_one_that_came_back_makes_room() -> None:
    world = World()
    world.add("a")
    world.add("b")
    world.pending.remove("g", digest_of("a"))
    world.pending.remove("g", digest_of("a"))
    world.pending.remove("other", digest_of("b"))
    world.add("c")
    assert world.forgotten == []
    assert len(world.pending) == 2


def test_the_same_id_in_two_groups_is_two() -> None:
    world = World()
    world.add("a", group_id="g")
    world.add("a", group_id="h")
    assert len(world.pending) == 2


def test_of_a_long_id_only_a_digest_is_kept() -> None:
    assert len(digest_of("x" * 40_000)) == 16
    assert digest_of("a") != digest_of("b")
    assert len(digest_of("\ud800")) == 16, "text that is no UTF-8"


def test_room_for_what_members_say() -> None:
    memory = MemberMemory(1600)
    assert memory.member_limit_bytes == 1600 // MEMBERS_AT_LEAST == 100
    memory.add(1500)
    assert memory.has_room(100) and not memory.has_room(101)
    memory.add(300)
    assert not memory.has_room(1)
    assert memory.has_room(0) and memory.has_room(-5), "less than before is always taken"
    memory.add(-1800)
    assert memory.used_bytes == 0 and memory.has_room(1600)
