"""Groups in which members of both protocols come and go at random, so that they change from one to
the other and back, with slow and failing logs and a reload at any record, by seed.
"""

from __future__ import annotations

from random import Random

import pytest

from kbroker.coordinator.group_state import GroupState
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import SyncGroupResponse
from kbroker.settings.group_coordinator import GroupCoordinatorConfig
from tests.coordinator.consumers import Consumer
from tests.coordinator.members import PARTITION_COUNT, ClientMember
from tests.coordinator.simulation import World
from tests.coordinator.test_consumer_simulation import ATTRIBUTES, check_owners

SEEDS = range(40)
STEPS = 120
Either = ClientMember | Consumer


class Classic(ClientMember):
    """Looks at what it is assigned."""

    def _synced(self, response: SyncGroupResponse) -> None:
        super()._synced(response)
        if response.error_code == ErrorCode.NONE:
            assert self.partitions is not None
            assert len(set(self.partitions)) == len(self.partitions)


class Simulation:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        config = GroupCoordinatorConfig(
            group_initial_rebalance_delay_ms=self.random.choice([0, 3_000]),
            group_consumer_assignment_interval_ms=self.random.choice([0, 1_000]),
            group_consumer_session_timeout_ms=15_000,
        )
        self.world = World(seed=seed, config=config)
        self.members: list[Either] = []
        self.count = 0
        self.newest = 0
        self.kinds: set[str] = set()

    def run(self) -> None:
        actions = [
            (self.add_classic, 5),
            (self.add_consumer, 4),
            (self.poll, 40),
            (self.leave, 5),
            (self.crash, 2),
            (self.pass_time, 25),
            (self.reload, 1),
            (self.slow_log, 2),
            (self.failing_log, 1),
        ]
        steps, weights = zip(*actions, strict=True)
        for step in range(STEPS):
            self.random.choices(steps, weights)[0]()
            self.check()
            if step % 5 == 0:
                self.check_replay()
        self.end()

    def add_classic(self) -> None:
        if len(self.members) >= 6:
            return
        self.count += 1
        instance = f"i{self.random.randrange(3)}" if self.random.random() < 0.3 else None
        self.displace(instance)
        member = Classic(
            self.world,
            f"m{self.count}",
            version=self.random.choice([5, 9]),
            instance_id=instance,
            session_timeout_ms=self.random.choice([6_000, 15_000]),
            rebalance_timeout_ms=self.random.choice([8_000, 30_000]),
            protocols=self.random.choice([("range", "sticky"), ("sticky", "range")]),
        )
        self.members.append(member)
        member.join()

    def add_consumer(self) -> None:
        if len(self.members) >= 6:
            return
        self.count += 1
        fields: dict[str, object] = {"group_id": "g"}
        if self.random.random() < 0.3:
            fields["instance_id"] = f"i{self.random.randrange(3)}"
            self.displace(str(fields["instance_id"]))
        self.members.append(Consumer(self.world, f"c{self.count}", **fields))
        self.members[-1].poll()

    def displace(self, instance_id: str | None) -> None:
        """There is one process per instance id: the former one is dead."""
        for member in list(self.members):
            theirs = (
                member.instance_id
                if isinstance(member, ClientMember)
                else member.fields.get("instance_id")
            )
            if instance_id is not None and theirs == instance_id:
                self.kill(member)

    def kill(self, member: Either) -> None:
        self.members.remove(member)
        if isinstance(member, ClientMember):
            member.crash()
        else:
            member.deaf = True

    def some(self) -> Either | None:
        return self.random.choice(self.members) if self.members else None

    def poll(self) -> None:
        for member in self.random.sample(self.members, min(len(self.members), 3)):
            member.poll()

    def leave(self) -> None:
        member = self.some()
        if isinstance(member, ClientMember):
            if member.member_id and not member.joining:
                self.members.remove(member)
                member.leave()
                member.crash()
        elif member is not None and member.epoch > 0:
            group = self.world.shard().consumer.groups.get("g")
            self.members.remove(member)
            member.deaf = True
            if group is not None and member.member_id in group.members:
                member.leave()

    def crash(self) -> None:
        member = self.some()
        if member is not None:
            self.kill(member)

    def pass_time(self) -> None:
        for _ in range(self.random.randrange(1, 4)):
            self.world.timers.advance(1_000)
            self.check()
            for member in list(self.members):
                if self.random.random() < 0.7:
                    member.poll()
                    self.check()

    def reload(self) -> None:
        self.world.resign()
        self.world.log.commit()
        self.world.lead()

    def slow_log(self) -> None:
        self.world.log.delayed = not self.world.log.delayed
        self.world.log.commit()

    def failing_log(self) -> None:
        error = self.random.choice([ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR])
        self.world.log.errors = [error]

    def check(self) -> None:
        self.world.timers.advance(0)
        shard = self.world.shard()
        group, consumers = shard.groups.get("g"), shard.consumer.groups.get("g")
        assert group is None or consumers is None, "two groups of one name"
        if consumers is not None:
            self.kinds.add("consumer")
            check_owners(consumers)
            self.rise(consumers.epoch)
            if not consumers.members:
                self.newest = 0  # whoever comes next may begin anew
        elif group is not None and group.members:
            self.kinds.add("classic")
            assert set(group.static_members.values()) <= set(group.members)
            if group.generation_id == 0:
                self.newest = 0  # another group of that name
            if group.state is GroupState.STABLE:
                self.rise(group.generation_id)
        else:
            self.newest = 0

    def rise(self, epoch: int) -> None:
        assert epoch >= self.newest, "an epoch went back"
        self.newest = epoch

    def check_replay(self) -> None:
        if self.world.log.waiting:
            return
        live, replayed = self.world.shard(), self.world.replayed()
        assert live.metadata == replayed.metadata
        assert live.consumer.groups.keys() == replayed.consumer.groups.keys()
        for name, group in live.consumer.groups.items():
            for attribute in ATTRIBUTES:
                again = getattr(replayed.consumer.groups[name], attribute)
                assert again == getattr(group, attribute), attribute

    def end(self) -> None:
        """Everything works again: all share all, each partition once, and again after a reload."""
        self.world.log.errors = []
        self.world.log.delayed = False
        self.world.log.commit()
        self.world.timers.advance(0)
        for _ in range(2):
            self.settle()
            self.check()
            self.check_replay()
            self.reload()

    def settle(self) -> None:
        for _ in range(120):
            self.world.timers.advance(1_000)
            self.check()
            for member in self.members:
                member.poll()
            if self.is_shared():
                return
        raise AssertionError("the group did not settle")

    def is_shared(self) -> bool:
        owned = [
            partition
            for member in self.members
            for partition in (
                member.partitions or ()
                if isinstance(member, ClientMember)
                else (partition for _, partition in member.owned)
            )
        ]
        return not self.members or sorted(owned) == list(range(PARTITION_COUNT))


@pytest.mark.sim
@pytest.mark.parametrize("seed", SEEDS)
def test_random_migrations(seed: int) -> None:
    Simulation(seed).run()


@pytest.mark.sim
def test_both_kinds_are_met() -> None:
    simulations = [Simulation(seed) for seed in range(5)]
    for simulation in simulations:
        simulation.run()
    assert any(simulation.kinds == {"classic", "consumer"} for simulation in simulations)


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.parametrize("block", range(20))
def test_thousands_of_migrations(block: int) -> None:
    for seed in range(1_000 + block * 100, 1_100 + block * 100):
        try:
            Simulation(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
