"""The state of a classic group in a simulated world, and the assignments of its members."""

from __future__ import annotations

from kbroker.coordinator.group.classic.state import GroupState
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from tests.coordinator.group.members import ClientMember, settle
from tests.coordinator.simulation import World

QUICK = GroupCoordinatorConfig(group_initial_rebalance_delay_ms=0)


def state(world: World, group: str = "g") -> GroupState:
    return world.shard().classic.groups[group].state


def all_partitions(members: list[ClientMember]) -> list[int]:
    return sorted(index for member in members for index in member.partitions or [])


# -- static members --------------------------------------------------------------------------


def static_pair(world: World, version: int = 9) -> list[ClientMember]:
    members = [ClientMember(world, n, instance_id=f"i-{n}", version=version) for n in "ab"]
    for member in members:
        member.join()
    settle(world, members)
    return members
