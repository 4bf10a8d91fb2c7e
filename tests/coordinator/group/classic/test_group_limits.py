"""Limits of classic groups: their size, pending member ids, and memory of members' metadata."""

from __future__ import annotations

from typing import Any

from kbroker.coordinator.group.classic.state import GroupState
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.groups import JoinGroupRequest
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from tests.coordinator.group.classic.rebalances import state
from tests.coordinator.group.members import ClientMember, settle
from tests.coordinator.simulation import Context, World

# -- limits and errors -----------------------------------------------------------------------


def test_group_max_size() -> None:
    config = GroupCoordinatorConfig(group_max_size=2)
    world = World(config=config)
    members = [ClientMember(world, name) for name in "abc"]
    for member in members:
        member.join()
    assert members[2].errors[-1] is ErrorCode.GROUP_MAX_SIZE_REACHED
    settle(world, members[:2])
    members[2].member_id = ""
    members[2].join()
    assert members[2].errors[-1] is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert state(world) is GroupState.STABLE


def ask_for_id(world: World, client_id: str, group: str = "g", member_id: str = "") -> Any:
    """A JoinGroup on its own; its answer, or the Deferred of it."""
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    answer = world.coordinator.join_group(Context(9, client_id=client_id), request)
    return answer.value if answer.done else answer


def test_ids_of_pending_members_are_bounded_in_size_and_number() -> None:
    config = GroupCoordinatorConfig(kbroker_group_max_pending_members=10)
    world = World(config=config)
    long = "x" * 32_000
    ids = [ask_for_id(world, f"{n}{long}", f"g{n % 2}").member_id for n in range(30)]
    assert all(member_id.startswith(f"{n}{long}-") for n, member_id in enumerate(ids))
    groups = [world.shard().classic.groups[f"g{n}"] for n in range(2)]
    assert sum(len(group.pending_joins) for group in groups) == 10
    assert max(len(key) for group in groups for key in group.pending_joins) <= 64
    assert [n for n, member_id in enumerate(ids) if groups[n % 2].is_pending(member_id)] == list(
        range(20, 30)
    )
    refused = ask_for_id(world, f"0{long}", "g0", ids[0])
    assert refused.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    joined = ask_for_id(world, f"29{long}", "g1", ids[29])
    assert not joined.done
    assert world.shard().classic.groups["g1"].members.keys() == {ids[29]}
    world.timers.advance(10_000)
    assert not any(group.pending_joins for group in groups)
    assert len(world.shard().classic._pending_members) == 0


def test_a_flood_of_joins_ends_no_client() -> None:
    """A member whose id was removed meanwhile requests another."""
    world = World(config=GroupCoordinatorConfig(kbroker_group_max_pending_members=2))
    member = ClientMember(world, "a")
    settle(world, [member])
    late = ask_for_id(world, "late")
    for n in range(3):
        ask_for_id(world, f"flood{n}")
    assert ask_for_id(world, "late", member_id=late.member_id).error_code == (
        ErrorCode.UNKNOWN_MEMBER_ID
    )
    again = ask_for_id(world, "late")
    assert not ask_for_id(world, "late", member_id=again.member_id).done
    assert again.member_id in world.shard().classic.groups["g"].members


def test_a_rebalance_that_waits_for_a_forgotten_id_goes_on() -> None:
    world = World(config=GroupCoordinatorConfig(kbroker_group_max_pending_members=1))
    member = ClientMember(world, "a")
    settle(world, [member])
    ask_for_id(world, "late")
    member.topics = ["other"]
    member.join()
    assert member.joining
    ask_for_id(world, "x", "another group")
    world.timers.advance(1)
    assert not member.joining
    assert state(world) is GroupState.STABLE


def test_what_members_say_is_bounded_over_all_groups() -> None:
    world = World(config=GroupCoordinatorConfig(kbroker_group_members_max_bytes=1_048_576))
    memory = world.shard().classic._memory
    members = [ClientMember(world, f"m{n}", group=f"g{n}", protocols=("r",)) for n in range(22)]
    for member in members:
        member.topics = ["x" * 100] * 480
        member.join()
    world.timers.advance(3_000)
    assert [member.errors[-1] for member in members[:20]] == [ErrorCode.NONE] * 20
    assert members[21].errors == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    members[0].join()  # its data is no larger than before
    world.timers.advance(3_000)
    assert members[0].errors[-1] is ErrorCode.NONE
    used = memory.used_bytes
    assert 900_000 < used <= 1_048_576
    world.resign()
    assert memory.used_bytes == 0
    world.lead()
    assert 0 < memory.used_bytes <= used
    for member in members[:21]:
        member.leave()
    assert memory.used_bytes == 0
    members[21].join()
    world.timers.advance(3_000)
    assert members[21].errors[-1] is ErrorCode.NONE


def test_one_member_says_only_so_much() -> None:
    """More than any record could hold; many protocols are refused before they are looked at."""
    world = World(config=GroupCoordinatorConfig(kbroker_group_members_max_bytes=1_048_576))
    large = ClientMember(world, "large", protocols=("range",))
    large.topics = ["x" * 100] * 700
    large.join()
    assert large.errors == [ErrorCode.GROUP_MAX_SIZE_REACHED]
    many = ClientMember(world, "many", group="other", protocols=tuple(map(str, range(400))))
    many.join()
    assert many.errors == [ErrorCode.GROUP_MAX_SIZE_REACHED]
    assert not world.shard().classic.groups["g"].members
    assert "other" not in world.shard().classic.groups
