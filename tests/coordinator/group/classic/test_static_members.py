"""Static members (KIP-345): they return without a rebalance, fence each other, and are removed."""

from __future__ import annotations

import pytest

from kbroker.coordinator.group.classic.state import GroupState
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.groups import LeaveGroupRequest
from tests.coordinator.group.classic.rebalances import state, static_pair
from tests.coordinator.group.members import PARTITION_COUNT, ClientMember, settle
from tests.coordinator.simulation import Context, World


@pytest.mark.parametrize("version", [5, 9])
def test_static_member_returns_without_a_rebalance(version: int) -> None:
    world = World()
    old = static_pair(world, version)
    held = old[1].partitions
    new = ClientMember(world, "b2", instance_id="i-b", version=version)
    new.join()
    assert new.errors == [ErrorCode.NONE, ErrorCode.NONE]
    assert new.partitions == held
    assert state(world) is GroupState.STABLE
    assert old[1].heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    persisted = [member.member_id for member in world.shard().classic.metadata["g"].members]
    assert new.member_id in persisted


@pytest.mark.parametrize(("version", "skips"), [(8, False), (9, True)])
def test_static_leader_returns(version: int, skips: bool) -> None:
    world = World()
    old = static_pair(world, version)
    assert old[0].leader == old[0].member_id
    held = old[0].partitions
    new = ClientMember(world, "a2", instance_id="i-a", version=version)
    new.join()
    assert new.last_join is not None
    assert new.last_join.skip_assignment is skips
    assert len(new.last_join.members) == (2 if skips else 0)
    assert (new.leader == new.member_id) is skips
    assert new.partitions == held


@pytest.mark.parametrize("who", [0, 1], ids=["leader", "follower"])
def test_static_member_whose_return_cannot_be_written_has_not_returned(who: int) -> None:
    """The live group equals the one after a reload: the former entry, with its partitions."""
    world = World()
    old = static_pair(world)
    world.log.errors = [ErrorCode.NOT_ENOUGH_REPLICAS]
    new = ClientMember(world, "new", instance_id=old[who].instance_id)
    new.join()
    assert new.errors == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    group = world.shard().classic.groups["g"]
    persisted = [member.member_id for member in world.shard().classic.metadata["g"].members]
    assert list(group.members) == persisted
    assert group.leader_id == old[0].member_id
    assert old[who].heartbeat() is ErrorCode.NONE
    new.poll()
    assert new.partitions == old[who].partitions
    assert old[who].heartbeat() is ErrorCode.FENCED_INSTANCE_ID


def test_static_member_whose_return_is_written_but_not_acknowledged_has_returned() -> None:
    world = World()
    old = static_pair(world)
    world.log.errors = [ErrorCode.REQUEST_TIMED_OUT]
    new = ClientMember(world, "new", instance_id="i-b")
    new.join()
    assert new.errors == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    persisted = [member.member_id for member in world.shard().classic.metadata["g"].members]
    assert list(world.shard().classic.groups["g"].members) == persisted
    assert old[1].heartbeat() is ErrorCode.FENCED_INSTANCE_ID


def test_static_member_that_is_away_keeps_its_place_until_its_session_ends() -> None:
    world = World()
    members = static_pair(world)
    members[1].crash()
    world.timers.advance(5_000)
    members[0].poll()
    assert state(world) is GroupState.STABLE
    for _ in range(6):
        world.timers.advance(1_000)
        members[0].poll()
    settle(world, [members[0]])
    assert members[0].partitions == list(range(PARTITION_COUNT))


def test_static_member_fences_its_waiting_former_self() -> None:
    world = World()
    old = ClientMember(world, "a", instance_id="i")
    old.join()
    new = ClientMember(world, "a", instance_id="i")
    new.join()
    assert old.errors == [ErrorCode.FENCED_INSTANCE_ID]
    settle(world, [new])


def test_tool_removes_static_member_by_instance_id() -> None:
    world = World()
    static_pair(world)
    request = LeaveGroupRequest(
        group_id="g",
        members=[
            LeaveGroupRequest.MemberIdentity(group_instance_id="i-a"),
            LeaveGroupRequest.MemberIdentity(group_instance_id="nobody"),
            LeaveGroupRequest.MemberIdentity(member_id="x", group_instance_id="i-b"),
        ],
    )
    response = world.coordinator.leave_group(Context(5), request).value
    assert [member.error_code for member in response.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
    ]
    assert [member.group_instance_id for member in response.members] == ["i-a", "nobody", "i-b"]
