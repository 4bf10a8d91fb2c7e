"""When a member is removed: no requests in its session, or partitions not revoked in time."""

from __future__ import annotations

from kbroker.coordinator.group.membership.sessions import RETRY_MS, MemberSessions
from kbroker.coordinator.runtime.deadlines import Deadlines
from kbroker.coordinator.runtime.result import Result


class World:
    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self.ended: list[str] = []
        self.late: list[str] = []
        self.sessions = MemberSessions(self.deadlines, give_up=self.give_up, on_late=self.on_late)

    def give_up(self, group_id: str, member_id: str) -> list[Result]:
        self.ended.append(f"{group_id}/{member_id}")
        return []

    def on_late(self, group_id: str, member_id: str) -> list[Result]:
        self.late.append(f"{group_id}/{member_id}")
        return []


def test_a_session_ends_at_its_time_unless_it_is_renewed() -> None:
    world = World()
    world.sessions.renew("g", "a", 100)
    world.sessions.renew("g", "b", 100)
    world.sessions.renew("h", "a", 100)
    world.sessions.renew("g", "b", 200)
    world.deadlines.fire(99)
    assert world.ended == []
    world.deadlines.fire(100)
    assert sorted(world.ended) == ["g/a", "h/a"]
    world.deadlines.fire(199)
    assert len(world.ended) == 2
    world.deadlines.fire(200)
    assert world.ended[-1] == "g/b"


def test_the_time_to_give_back_starts_once_per_assignment() -> None:
    world = World()
    first, second = ["t-0"], ["t-0"]
    world.sessions.expect_return("g", "a", first, 100)
    world.sessions.expect_return("g", "a", first, 500)
    world.deadlines.fire(100)
    assert world.late == ["g/a"], "a heartbeat that changes nothing does not put it off"
    world.sessions.expect_return("g", "b", first, 100)
    world.sessions.expect_return("g", "b", second, 500)
    world.deadlines.fire(499)
    assert world.late == ["g/a"], "another assignment, though it is equal, starts the time again"
    world.deadlines.fire(500)
    assert world.late == ["g/a", "g/b"]
    assert world.ended == []


def test_who_gave_back_is_not_late() -> None:
    world = World()
    world.sessions.renew("g", "a", 300)
    world.sessions.expect_return("g", "a", object(), 100)
    world.sessions.returned("g", "a")
    world.sessions.returned("g", "a")
    world.deadlines.fire(300)
    assert (world.late, world.ended) == ([], ["g/a"])


def test_a_member_that_left_has_no_deadlines() -> None:
    world = World()
    world.sessions.renew("g", "a", 100)
    world.sessions.expect_return("g", "a", object(), 100)
    world.sessions.forget("g", "a")
    world.sessions.forget("g", "a")
    assert world.deadlines.next_ms() is None


def test_an_end_that_could_not_be_written_is_tried_again() -> None:
    world = World()
    world.sessions.renew("g", "a", 100)
    world.deadlines.fire(100)
    world.sessions.retry("g", "a", 100)
    world.deadlines.fire(99 + RETRY_MS)
    assert world.ended == ["g/a"]
    world.deadlines.fire(100 + RETRY_MS)
    assert world.ended == ["g/a"] * 2


def test_an_unloaded_shard_removes_no_member() -> None:
    world = World()
    for member in "abc":
        world.sessions.renew("g", member, 100)
        world.sessions.expect_return("g", member, object(), 50)
    world.sessions.clear()
    world.deadlines.fire(1_000)
    assert (world.ended, world.late) == ([], [])
