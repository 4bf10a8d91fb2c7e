"""Groups under random joins, leaves, crashes, timeouts, slow and failing logs and reloads, by
seed.
"""

from __future__ import annotations

from random import Random

import pytest

from kbroker.coordinator.group.classic.state import GroupState
from kbroker.coordinator.group.shard import GroupShard
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.groups import JoinGroupResponse, SyncGroupResponse
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from tests.coordinator.group.commits import commit, fetch
from tests.coordinator.group.members import PARTITION_COUNT, ClientMember, settle
from tests.coordinator.simulation import LOG_ERRORS, World

SEEDS = range(60)
STEPS = 150


class Checker:
    """One owner per partition and generation; generations with an assignment never go back."""

    def __init__(self) -> None:
        self.owners: dict[tuple[str, int, int], str] = {}
        self.newest: dict[str, int] = {}
        self.committed: dict[tuple[str, int], set[int]] = {}

    def assigned(self, member: ClientMember) -> None:
        newest = self.newest.get(member.group, 0)
        assert member.generation >= newest, "a generation went back"
        self.newest[member.group] = member.generation
        identity = member.instance_id or member.member_id
        for partition in member.partitions or []:
            key = (member.group, member.generation, partition)
            owner = self.owners.setdefault(key, identity)
            assert owner == identity, f"{key} belongs to {owner} and {identity}"


class WatchedMember(ClientMember):
    checker: Checker

    def _synced(self, response: SyncGroupResponse) -> None:
        super()._synced(response)
        if response.error_code == ErrorCode.NONE:
            self.checker.assigned(self)

    def _joined(self, response: JoinGroupResponse) -> None:
        super()._joined(response)
        if response.error_code == ErrorCode.NONE:
            assert response.generation_id > 0
            ids = [member.member_id for member in response.members]
            assert len(ids) == len(set(ids))


class Simulation:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        delay = self.random.choice([0, 3_000])
        config = GroupCoordinatorConfig(
            group_initial_rebalance_delay_ms=delay,
            group_max_size=self.random.choice([4, 2**31 - 1]),
        )
        self.world = World(seed=seed, config=config)
        self.checker = Checker()
        self.members: list[WatchedMember] = []
        self.acknowledged: dict[int, int] = {}
        self.attempted: dict[int, set[int]] = {}
        self.count = 0

    def run(self) -> None:
        actions = [
            (self.add, 4),
            (self.poll, 30),
            (self.leave, 2),
            (self.crash, 2),
            (self.change, 2),
            (self.restart, 1),
            (self.dawdle, 2),
            (self.pass_time, 20),
            (self.pass_much_time, 1),
            (self.jump_clock, 1),
            (self.commit_offset, 10),
            (self.reload, 1),
            (self.fail_over, 1),
            (self.slow_log, 3),
            (self.failing_log, 1),
            (self.check_replay, 4),
        ]
        names = [action for action, _ in actions]
        weights = [weight for _, weight in actions]
        for _ in range(STEPS):
            self.random.choices(names, weights)[0]()
        self.end()

    def restart(self) -> None:
        """A static member crashes and comes back without its id, possibly with a failing log."""
        old = self.some()
        if old is None or old.instance_id is None:
            return
        if self.random.random() < 0.5:
            self.failing_log()
        old.crash()
        self.members.remove(old)
        self.start(old.instance_id, old.version, old.protocols)
        self.check_replay()

    def add(self) -> None:
        if len(self.members) >= 6:
            return
        static = self.random.random() < 0.3
        instance_id = f"i{self.random.randrange(3)}" if static else None
        version = self.random.choice([3, 5, 8, 9])
        protocols = self.random.choice([("range", "sticky"), ("sticky", "range")])
        self.start(instance_id if version >= 5 else None, version, protocols)

    def start(self, instance_id: str | None, version: int, protocols: tuple[str, ...]) -> None:
        self.count += 1
        member = WatchedMember(
            self.world,
            f"m{self.count}",
            version=version,
            instance_id=instance_id,
            session_timeout_ms=self.random.choice([6_000, 15_000]),
            rebalance_timeout_ms=self.random.choice([8_000, 30_000]),
            protocols=protocols,
        )
        for other in self.members:
            if member.instance_id is not None and other.instance_id == member.instance_id:
                other.crash()
        member.checker = self.checker
        self.members.append(member)
        member.join()

    def alive(self) -> list[WatchedMember]:
        return [member for member in self.members if not member.crashed]

    def some(self) -> WatchedMember | None:
        alive = self.alive()
        return self.random.choice(alive) if alive else None

    def poll(self) -> None:
        member = self.some()
        if member is not None:
            member.poll()

    def leave(self) -> None:
        member = self.some()
        if member is not None and member.member_id and not member.joining:
            member.leave()
            self.members.remove(member)
            member.crash()

    def crash(self) -> None:
        member = self.some()
        if member is not None:
            member.crash()
            self.members.remove(member)

    def change(self) -> None:
        member = self.some()
        if member is not None and not member.joining:
            member.topics = self.random.choice([["events"], ["events", "other"]])
            member.join()

    def dawdle(self) -> None:
        """The member learns of the generation and does not send SyncGroup, possibly until it is
        removed, or it crashes there.
        """
        member = self.some()
        if member is not None:
            member.dawdle()

    def pass_time(self) -> None:
        self.world.timers.advance(self.random.randrange(2_000))
        for member in self.alive():
            if self.random.random() < 0.7:
                member.poll()

    def pass_much_time(self) -> None:
        self.world.timers.advance(self.random.randrange(40_000))

    def commit_offset(self) -> None:
        if self.world.log.delayed or self.world.log.errors:
            return
        partition, offset = self.random.randrange(12), self.random.randrange(1_000)
        if commit(self.world, {partition: offset}, group="simple")[partition] is ErrorCode.NONE:
            self.acknowledged[partition] = offset

    def reload(self) -> None:
        self.world.resign()
        self.world.log.commit()
        self.world.lead()

    def jump_clock(self) -> None:
        self.world.timers.jump(self.random)

    def fail_over(self) -> None:
        self.world.fail_over(self.random)

    def slow_log(self) -> None:
        if self.world.log.delayed and self.random.random() < 0.5:
            self.fail_over()
            return
        self.world.log.delayed = not self.world.log.delayed
        self.world.log.commit()

    def failing_log(self) -> None:
        self.world.log.errors = [self.random.choice(LOG_ERRORS)]

    def check_replay(self) -> None:
        self.world.timers.advance(0)
        if self.world.log.waiting:
            return
        live = self.world.shard()
        check_equal(live, self.world.replayed())

    def end(self) -> None:
        """Everything works again: the group stabilizes, and no acknowledged commit is lost."""
        self.world.log.errors = []
        self.world.log.delayed = False
        self.world.log.commit()
        self.world.timers.advance(0)
        survivors = self.alive()[: self.world.config.group_max_size]
        for member in self.alive():
            member.auto_sync = True
            member.hurry()
            if member not in survivors:
                member.crash()
        settle(self.world, list(survivors), rounds=150)
        check_equal(self.world.shard(), self.world.replayed())
        for partition, offset in self.acknowledged.items():
            assert fetch(self.world, partition, group="simple") == {partition: (offset, "")}
        check_history(self.world)
        check_cut(self.world, self.random.randint(0, self.world.log_length()))


def check_history(world: World) -> None:
    """After any last record of the log no generation goes back."""
    newest: dict[str, int] = {}
    for shard in world.growing():
        for group_id, value in shard.classic.metadata.items():
            assert value.generation >= newest.get(group_id, 0), "a generation went back"
        newest = {group_id: value.generation for group_id, value in shard.classic.metadata.items()}


def check_cut(world: World, end: int) -> None:
    """A coordinator can continue after any last record of the log: former members are removed, and
    a new member gets all partitions.
    """
    cut = world.cut(end)
    value = cut.shard().classic.metadata.get("g")
    member = ClientMember(cut, "late")
    for _ in range(100):
        cut.timers.advance(1_000)
        member.poll()
        if member.partitions == list(range(PARTITION_COUNT)):
            break
    assert member.partitions == list(range(PARTITION_COUNT))
    assert member.generation > (value.generation if value is not None else 0)
    check_equal(cut.shard(), cut.replayed())


def check_equal(live: GroupShard, replayed: GroupShard) -> None:
    assert live.classic.metadata == replayed.classic.metadata
    assert live.offsets.groups() == replayed.offsets.groups()
    for group_id in live.offsets.groups():
        assert live.offsets.of_group(group_id) == replayed.offsets.of_group(group_id)
    for group_id, group in live.classic.groups.items():
        check_group(live, group_id)
        if group.state is GroupState.STABLE and group_id in replayed.classic.groups:
            again = replayed.classic.groups[group_id]
            assert again.generation_id == group.generation_id
            assert again.leader_id == group.leader_id


def check_group(shard: GroupShard, group_id: str) -> None:
    """The invariants of a live group."""
    group = shard.classic.groups[group_id]
    assert set(group.static_members.values()) <= set(group.members)
    assert group.pending_syncs <= set(group.members)
    assert not any(group.is_pending(member_id) for member_id in group.members)
    assert group.leader_id is None or group.leader_id in group.members
    waiting = [member for member in group.members.values() if member.join_waiter is not None]
    if group.state is GroupState.EMPTY:
        assert not group.members
    if group.state is GroupState.COMPLETING_REBALANCE:
        assert not waiting
    if group.state is GroupState.STABLE:
        assert group_id in shard.classic.metadata
        record = group.to_value({m.member_id: m.assignment for m in group.members.values()})
        if not waiting:
            assert record == shard.classic.metadata[group_id]


@pytest.mark.sim
@pytest.mark.parametrize("seed", SEEDS)
def test_random_lives(seed: int) -> None:
    Simulation(seed).run()


@pytest.mark.slow
@pytest.mark.sim
def test_random_lives_of_many_seeds() -> None:
    for seed in range(1_000, 4_000):
        try:
            Simulation(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error


def test_reload_after_every_record_of_a_busy_life() -> None:
    """A new coordinator can continue after any last record of the log."""
    simulation = Simulation(7)
    simulation.run()
    for end in range(0, simulation.world.log_length() + 1, 3):
        check_cut(simulation.world, end)


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.parametrize("seed", range(100, 120))
def test_reload_after_every_record(seed: int) -> None:
    simulation = Simulation(seed)
    simulation.run()
    for end in range(simulation.world.log_length() + 1):
        check_cut(simulation.world, end)
