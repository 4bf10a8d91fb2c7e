"""Groups in which members of both protocols come and go at random, so that they change from one to
the other and back, with slow and failing logs and a reload at any record, by seed.
"""

from __future__ import annotations

from random import Random

import pytest

from kbroker.coordinator.group.membership.epochs import FIRST_EPOCH
from kbroker.coordinator.group.shard import GroupShard
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.groups import JoinGroupResponse, SyncGroupResponse
from kbroker.protocol.messages.stored.group_records import (
    ConsumerGroupMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
)
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from tests.coordinator.group.classic.test_simulation import check_equal
from tests.coordinator.group.consumer.test_simulation import check_owners, check_same
from tests.coordinator.group.consumers import Consumer
from tests.coordinator.group.members import PARTITION_COUNT, ClientMember
from tests.coordinator.simulation import LOG_ERRORS, World

SEEDS = range(40)
STEPS = 120
Either = ClientMember | Consumer


class Classic(ClientMember):
    """Checks the responses that it gets: the generation of its assignments never goes back while it
    keeps its id and the group lives.
    """

    newest = 0
    named = ""
    lives = 0

    def _joined(self, response: JoinGroupResponse) -> None:
        if response.member_id != self.named:
            self.named, self.newest = response.member_id, 0
        super()._joined(response)

    def _synced(self, response: SyncGroupResponse) -> None:
        super()._synced(response)
        if response.error_code == ErrorCode.NONE:
            assert self.partitions is not None
            assert len(set(self.partitions)) == len(self.partitions)
            lives = len(beginnings(self.world))
            if lives == self.lives:
                assert self.generation >= self.newest, "a generation went back"
            self.newest, self.lives = self.generation, lives


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
        self.committed = 0
        self.kinds: set[str] = set()

    def run(self) -> None:
        actions = [
            (self.add_classic, 5),
            (self.add_consumer, 4),
            (self.poll, 40),
            (self.leave, 5),
            (self.restart, 1),
            (self.crash, 2),
            (self.pass_time, 25),
            (self.pass_much_time, 1),
            (self.jump_clock, 1),
            (self.dawdle, 1),
            (self.reload, 1),
            (self.slow_log, 3),
            (self.failing_log, 1),
        ]
        steps, weights = zip(*actions, strict=True)
        for step in range(STEPS):
            self.random.choices(steps, weights)[0]()
            self.check()
            if step % 5 == 0:
                self.check_replay()
        self.end()

    def restart(self) -> None:
        """A static member crashes and comes back without its id, perhaps upon a bad log."""
        old = self.some()
        if isinstance(old, ClientMember) and old.instance_id is not None:
            if self.random.random() < 0.5:
                self.failing_log()
            self.start_classic(old.instance_id, old.protocols)
            self.world.timers.advance(0)
            self.check_replay()

    def add_classic(self) -> None:
        if len(self.members) >= 6:
            return
        instance_id = f"i{self.random.randrange(3)}" if self.random.random() < 0.3 else None
        self.start_classic(
            instance_id, self.random.choice([("range", "sticky"), ("sticky", "range")])
        )

    def start_classic(self, instance_id: str | None, protocols: tuple[str, ...]) -> None:
        self.count += 1
        self.displace(instance_id)
        member = Classic(
            self.world,
            f"m{self.count}",
            version=self.random.choice([5, 9]),
            instance_id=instance_id,
            session_timeout_ms=self.random.choice([6_000, 15_000]),
            rebalance_timeout_ms=self.random.choice([8_000, 30_000]),
            protocols=protocols,
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

    def pass_much_time(self) -> None:
        self.world.timers.advance(self.random.randrange(40_000))

    def jump_clock(self) -> None:
        self.world.timers.jump(self.random)

    def dawdle(self) -> None:
        """The member revokes nothing, or does not send SyncGroup, possibly until it is removed."""
        member = self.some()
        if isinstance(member, Consumer):
            member.stubborn = not member.stubborn
        elif member is not None:
            member.dawdle()

    def slow_log(self) -> None:
        log = self.world.log
        if log.delayed and self.random.random() < 0.5:
            self.world.fail_over(self.random)
            self.newest = self.committed
            return
        log.delayed = not log.delayed
        log.commit()

    def failing_log(self) -> None:
        self.world.log.errors = [self.random.choice(LOG_ERRORS)]

    def check(self) -> None:
        self.world.timers.advance(0)
        shard = self.world.shard()
        self.newest = check_one_kind(shard, self.newest)
        if "g" in shard.consumer.groups:
            self.kinds.add("consumer")
        elif "g" in shard.classic.groups and shard.classic.groups["g"].members:
            self.kinds.add("classic")
        if not self.world.log.waiting or not self.newest:
            self.committed = self.newest

    def check_replay(self) -> None:
        if self.world.log.waiting:
            return
        live, replayed = self.world.shard(), self.world.replayed()
        check_equal(live, replayed)
        assert live.consumer.groups.keys() == replayed.consumer.groups.keys()
        for name, group in live.consumer.groups.items():
            check_same(group, replayed.consumer.groups[name])

    def end(self) -> None:
        """Everything works again: all partitions are assigned once, and again after a reload."""
        self.world.log.errors = []
        self.world.log.delayed = False
        self.world.log.commit()
        self.world.timers.advance(0)
        for member in self.members:
            if isinstance(member, Consumer):
                member.stubborn = False
            else:
                member.auto_sync = True
                member.hurry()
        for _ in range(2):
            self.settle()
            self.check()
            self.check_replay()
            self.reload()
        newest, anew = 0, beginnings(self.world)
        for number, shard in enumerate(self.world.growing()):
            newest = check_one_kind(shard, 0 if number in anew else newest)
        check_cut(self.world, self.random)

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
        owned = [partition for member in self.members for partition in partitions_of(member)]
        return not self.members or sorted(owned) == list(range(PARTITION_COUNT))


def beginnings(world: World) -> set[int]:
    """The batches of the log with which the group may start again: it had no members, or that could
    not be written before a consumer came.
    """
    found = set()
    for number, records in enumerate(world.stored()):
        values = [record.decoded.value for record in records if record.decoded is not None]
        epochs = [value.epoch for value in values if isinstance(value, ConsumerGroupMetadataValue)]
        keys = [record.decoded.key for record in records if record.decoded is not None]
        is_empty = any(isinstance(v, GroupMetadataValue) and not v.members for v in values)
        is_change = any(isinstance(key, GroupMetadataKey) for key in keys)
        if is_empty or (is_change and any(epoch <= FIRST_EPOCH + 1 for epoch in epochs)):
            found.add(number)
    return found


def check_one_kind(shard: GroupShard, newest: int) -> int:
    """The group is of one kind, each partition has one owner and the epoch has not gone back; the
    epoch, 0 where the next member may start a new group.
    """
    group, consumers = shard.classic.groups.get("g"), shard.consumer.groups.get("g")
    assert group is None or consumers is None, "two groups of one name"
    value = shard.classic.metadata.get("g")
    assert value is None or consumers is None, "two groups of one name in the log"
    if consumers is not None:
        check_owners(consumers)
        assert consumers.epoch >= newest, "an epoch went back"
        return consumers.epoch if consumers.members else 0
    if value is None or not value.members or (group is not None and not group.members):
        return 0
    assert value.generation >= newest, "a generation went back"
    return value.generation


def check_cut(world: World, random: Random) -> None:
    """A member of either kind can continue after any last record of the log."""
    cut = world.cut(random.randint(0, world.log_length()))
    member: Either = ClientMember(cut, "late")
    if random.random() < 0.5:
        member = Consumer(cut, "late", group_id="g")
    for _ in range(100):
        cut.timers.advance(1_000)
        member.poll()
        check_one_kind(cut.shard(), 0)
        if partitions_of(member) == list(range(PARTITION_COUNT)):
            break
    assert partitions_of(member) == list(range(PARTITION_COUNT))
    check_equal(cut.shard(), cut.replayed())


def partitions_of(member: Either) -> list[int]:
    """Those of `events` it reads."""
    if isinstance(member, ClientMember):
        return sorted(member.partitions or ())
    return sorted(partition for _, partition in member.owned)


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
