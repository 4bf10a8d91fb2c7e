"""Lists, descriptions and fetches of many groups while some of their records are not committed."""

from __future__ import annotations

import pytest

from kbroker.ports import Deferred, at_once
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.groups import ListGroupsResponse
from kbroker.protocol.messages.coordinators.offsets import OffsetFetchRequest
from tests.coordinator.group.commits import commit, commit_later, fetch
from tests.coordinator.group.members import ClientMember, settle
from tests.coordinator.simulation import World


def test_a_list_of_groups_shows_what_is_committed() -> None:
    world = World()
    commit_later(world, 1)
    listed = world.answer(world.coordinator.list_groups())
    assert isinstance(listed, Deferred)
    assert not listed.done
    world.log.commit()
    assert [group.group_id for group in listed.value.groups] == ["g"]


@pytest.mark.parametrize("how", ["lost", "late"])
def test_a_list_of_groups_whose_records_may_be_lost(how: str) -> None:
    """Groups that another leader lists are left out; uncertain ones are an error."""
    world = World(partition_count=2)
    commit(world, {0: 1}, group="h")
    assert world.coordinator.partition_for("g") != world.coordinator.partition_for("h")
    commit_later(world, 1)
    listed = world.answer(world.coordinator.list_groups())
    assert isinstance(listed, Deferred)
    if how == "lost":
        world.coordinator.on_leadership(world.coordinator.partition_for("g"), None)
        assert [group.group_id for group in listed.value.groups] == ["h"]
    else:
        world.timers.advance(5_000)
        assert listed.value == ListGroupsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)


def test_a_fetch_of_many_groups_waits_once_for_those_that_changed() -> None:
    world = World(partition_count=2)
    commit(world, {0: 1}, group="h")
    commit_later(world, 2)
    groups = [
        OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name, topics=None)
        for name in ("g", "h", "none", "g2")
    ]
    steps = world.coordinator.offsets.fetch(
        OffsetFetchRequest(groups=groups), 8, lambda count: True
    )
    fetched = world.answer(steps)
    assert isinstance(fetched, Deferred)
    world.timers.advance(5_000)
    errors = {group.group_id: ErrorCode(group.error_code) for group in fetched.value.groups}
    assert list(errors) == ["g", "h", "none", "g2"]
    assert (errors["g"], errors["h"]) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NONE)
    assert fetched.value.groups[0].topics == []
    world.log.commit()
    assert fetch(world, 0) == {0: (2, "")}


def test_list_and_describe() -> None:
    world = World()
    member = ClientMember(world, "a", instance_id="i")
    member.join()
    settle(world, [member])
    commit(world, {0: 1}, group="simple")
    table: list[tuple[list[str], list[str], list[str]]] = [
        ([], [], ["g", "simple"]),
        (["stable"], [], ["g"]),
        (["Empty", "Dead"], ["classic"], ["simple"]),
        ([], ["consumer"], []),
    ]
    for states, types, expected in table:
        filters = [{name.lower() for name in names} for names in (states, types)]
        groups = at_once(world.coordinator.list_groups(*filters)).groups
        assert sorted(group.group_id for group in groups) == expected
    (listed,) = [
        group for group in at_once(world.coordinator.list_groups()).groups if group.group_id == "g"
    ]
    assert (listed.protocol_type, listed.group_state, listed.group_type) == (
        "consumer",
        "Stable",
        "classic",
    )
    described, members = world.coordinator.describe_group("g", 6)
    assert (described.group_state, described.protocol_data) == ("Stable", "range")
    (shown,) = members
    assert (shown.group_instance_id, shown.client_id, shown.client_host) == (
        "i",
        "a",
        "/10.0.0.1",
    )
    assert shown.member_assignment
    assert shown.member_metadata
    missing, _ = world.coordinator.describe_group("nothing", 6)
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    old, _ = world.coordinator.describe_group("nothing", 5)
    assert (old.error_code, old.group_state) == (0, "Dead")
