"""Members that vanish at each point of a rebalance: after each request, and before they process
each response. The remaining members share all partitions within one rebalance timeout and one
session timeout.
"""

from __future__ import annotations

import pytest

from kbroker.ports import Deferred
from kbroker.protocol.codecs.schema import Message
from tests.coordinator.group.consumers import Consumer
from tests.coordinator.group.consumers import settle as settle_consumers
from tests.coordinator.group.members import PARTITION_COUNT, ClientMember, settle
from tests.coordinator.simulation import World

POINTS = range(1, 9)
"""Of a member that joins, then is told to join again: JoinGroup said and heard, once to get an id,
once with it, SyncGroup said and heard, JoinGroup again.
"""


class Vanishing(ClientMember):
    """The member vanishes after `left` of its requests and responses."""

    left = 0

    def _when(self, answer: Deferred[Message], callback: object) -> None:
        def heard(message: Message) -> None:
            self._step()
            if not self.crashed:
                assert callable(callback)
                callback(message)

        self._step()
        super()._when(answer, heard)

    def _step(self) -> None:
        self.left -= 1
        if not self.left:
            self.crash()


@pytest.mark.parametrize("reload", [False, True], ids=["", "reload"])
@pytest.mark.parametrize("instance_id", [None, "i"], ids=["dynamic", "static"])
@pytest.mark.parametrize("place", [0, 2], ids=["leader", "follower"])
@pytest.mark.parametrize("point", POINTS)
def test_a_classic_member_vanishes(
    point: int, place: int, instance_id: str | None, reload: bool
) -> None:
    world = World()
    others = [ClientMember(world, f"m{number}") for number in range(2)]
    vanishing = Vanishing(world, "vanishing", instance_id=instance_id)
    vanishing.left = point
    members = [*others[:place], vanishing, *others[place:]]
    for member in members:
        member.join()
    for second in range(70):
        if reload and second == 8:
            world.resign()
            world.lead()
        world.timers.advance(1_000)
        for member in members:
            member.poll()
        if second == 20 and not vanishing.crashed:
            others[0].topics = ["events", "other"]
            others[0].join()
    assert vanishing.crashed
    settle(world, others)
    owned = [partition for member in others for partition in member.partitions or ()]
    assert sorted(owned) == list(range(PARTITION_COUNT))
    assert set(world.shard().classic.groups["g"].members) == {member.member_id for member in others}


@pytest.mark.parametrize("reload", [False, True], ids=["", "reload"])
@pytest.mark.parametrize("instance_id", [None, "i"], ids=["dynamic", "static"])
@pytest.mark.parametrize("stubborn", [False, True], ids=["", "stubborn"])
@pytest.mark.parametrize("point", range(1, 7))
def test_a_consumer_vanishes(
    point: int, stubborn: bool, instance_id: str | None, reload: bool
) -> None:
    """stubborn: the member revokes nothing before it vanishes."""
    world = World()
    others = [Consumer(world, f"m{number}") for number in range(2)]
    vanishing = Consumer(world, "vanishing", instance_id=instance_id)
    vanishing.stubborn = stubborn
    for _ in range(point):
        vanishing.poll()
        others[0].poll()
        world.timers.advance(1_000)
    if reload:
        world.resign()
        world.lead()
    settle_consumers(world, others, rounds=80)
    places = [(world.topics.topics["events"].topic_id, index) for index in range(PARTITION_COUNT)]
    assert sorted(place for one in others for place in one.owned) == places
    assert set(others[0].group.members) == {"m0", "m1"}
