"""Consumer groups under random joins, leaves, crashes, lost answers, changes and reloads, by
seed.
"""

from __future__ import annotations

from random import Random

import pytest

from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from tests.coordinator.group.consumers import Consumer, settle
from tests.coordinator.simulation import LOG_ERRORS, World

SEEDS = range(30)
REPLAY_EVERY = 10
STEPS = 120
CUTS = 2
ATTRIBUTES = (
    "currents",
    "epoch",
    "members",
    "metadata_hash",
    "owners",
    "regexes",
    "static_members",
    "target_epoch",
    "targets",
)


class Simulation:
    """epochs: the newest seen of each group; committed: the same, of what is committed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        config = GroupCoordinatorConfig(
            group_consumer_assignment_interval_ms=self.random.choice([0, 1_000]),
            group_consumer_session_timeout_ms=20_000,
            group_consumer_assignors=self.random.choice(
                [("uniform", "range"), ("range", "uniform"), ("range",)]
            ),
        )
        self.world = World(seed=seed, config=config)
        self.consumers: list[Consumer] = []
        self.crashed_instances: list[dict[str, object]] = []
        self.epochs: dict[str, int] = {}
        self.committed: dict[str, int] = {}
        self.count = 0

    def run(self) -> None:
        actions = [
            (self.join, 4),
            (self.poll, 40),
            (self.poll_deaf, 4),
            (self.resist, 1),
            (self.leave, 2),
            (self.crash, 2),
            (self.leave_for_a_while, 2),
            (self.come_back, 1),
            (self.pass_time, 20),
            (self.pass_much_time, 1),
            (self.jump_clock, 1),
            (self.reload, 1),
            (self.fail_over, 1),
            (self.change_topics, 1),
            (self.slow_log, 4),
            (self.failing_log, 1),
        ]
        steps, weights = zip(*actions, strict=True)
        for step in range(STEPS):
            self.random.choices(steps, weights)[0]()
            self.check()
            if step % REPLAY_EVERY == 0:
                self.check_replay()
        self.slow_log_ends()
        self.world.log.errors = []
        self.world.timers.advance(0)
        for consumer in self.consumers:
            consumer.stubborn = False
        self.world.timers.advance(25_000)  # who crashed is given up
        settle(self.world, self.consumers, rounds=60)
        self.check()
        self.check_replay()
        check_shares(self.world, self.consumers)
        check_history(self.world)
        for _ in range(CUTS):
            check_cut(self.world, self.random.randint(0, self.world.log_length()))

    def join(self) -> None:
        if len(self.consumers) >= 8:
            return
        fields: dict[str, object] = {"group_id": self.random.choice(["c", "d"])}
        kind = self.random.randrange(4)
        if kind == 0:
            fields["instance_id"] = f"i{self.count}"
        if kind == 1:
            fields["subscribed_topic_names"] = None
            fields["subscribed_topic_regex"] = self.random.choice(["ev.*", "(events|other|new.)"])
        if kind == 2:
            fields["subscribed_topic_names"] = ["events", "other"]
        if self.random.random() < 0.3:
            fields["server_assignor"] = self.random.choice(
                self.world.config.group_consumer_assignors
            )
        self.start(fields)

    def start(self, fields: dict[str, object]) -> None:
        self.count += 1
        self.consumers.append(Consumer(self.world, f"m{self.count}", **fields))
        self.consumers[-1].poll()

    def any(self) -> Consumer | None:
        return self.random.choice(self.consumers) if self.consumers else None

    def poll(self) -> None:
        for consumer in self.random.sample(self.consumers, min(len(self.consumers), 3)):
            consumer.poll()

    def poll_deaf(self) -> None:
        consumer = self.any()
        if consumer is not None and not self.world.log.delayed:
            consumer.deaf = True
            consumer.poll()
            consumer.deaf = False

    def resist(self) -> None:
        """The member is busy with its records and revokes nothing, possibly until it is removed."""
        consumer = self.any()
        if consumer is not None:
            consumer.stubborn = not consumer.stubborn

    def leave(self) -> None:
        consumer = self.any()
        if consumer is not None and consumer.epoch > 0:
            self.consumers.remove(consumer)
            if consumer.member_id in consumer.group.members:
                consumer.leave()

    def crash(self) -> None:
        consumer = self.any()
        if consumer is not None:
            consumer.deaf = True
            self.consumers.remove(consumer)
            if "instance_id" in consumer.fields:
                self.crashed_instances.append(consumer.fields)

    def come_back(self) -> None:
        """A static member that crashed is started again, and waits until it was given up."""
        if self.crashed_instances and len(self.consumers) < 8:
            self.start(self.crashed_instances.pop())

    def leave_for_a_while(self) -> None:
        consumer = self.any()
        if consumer is None or "instance_id" not in consumer.fields or consumer.epoch <= 0:
            return
        self.consumers.remove(consumer)
        consumer.deaf = True
        if consumer.member_id in consumer.group.members:
            consumer.leave(-2)
        self.start(consumer.fields)

    def pass_time(self) -> None:
        for _ in range(self.random.randrange(1, 4)):
            self.world.timers.advance(1_000)
            for consumer in self.consumers:
                if self.random.random() < 0.7:
                    consumer.poll()

    def pass_much_time(self) -> None:
        """The machines of all clients sleep."""
        self.world.timers.advance(self.random.randrange(40_000))

    def jump_clock(self) -> None:
        self.world.timers.jump(self.random)

    def reload(self) -> None:
        self.slow_log_ends()
        self.world.resign()
        self.world.lead()

    def fail_over(self) -> None:
        """No client was told of the lost state."""
        self.world.fail_over(self.random)
        self.epochs = dict(self.committed)

    def change_topics(self) -> None:
        name = f"new{self.random.randrange(3)}"
        if name in self.world.topics.topics:
            self.world.topics.remove(name)
        else:
            self.world.topics.add(name, self.random.randrange(1, 5))

    def slow_log(self) -> None:
        if self.world.log.delayed:
            self.random.choice([self.slow_log_ends, self.fail_over])()
        else:
            self.world.log.delayed = True

    def failing_log(self) -> None:
        self.world.log.errors = [self.random.choice(LOG_ERRORS)]

    def slow_log_ends(self) -> None:
        self.world.log.delayed = False
        self.world.log.commit()

    def check(self) -> None:
        groups = self.world.shard().consumer.groups
        newest = self.epochs
        self.epochs = {}
        for name, group in groups.items():
            assert group.epoch >= newest.get(name, 0), "a group epoch went back"
            assert group.target_epoch <= group.epoch
            self.epochs[name] = group.epoch
            check_owners(group)
        if not self.world.log.waiting:
            self.committed = dict(self.epochs)
        for consumer in self.consumers:
            group_or_none = groups.get(consumer.group_id)
            if group_or_none is None or consumer.member_id not in group_or_none.members:
                continue
            assert consumer.epoch <= group_or_none.epoch
            for place in consumer.owned:
                assert group_or_none.owners.get(place) == consumer.member_id

    def check_replay(self) -> None:
        """A replay of the log gives the current state, also if it was compacted."""
        groups = self.world.shard().consumer.groups
        for compacted in (False, True):
            replayed = self.world.replayed(compacted=compacted).consumer.groups
            assert replayed.keys() == groups.keys()
            for name, group in groups.items():
                check_same(group, replayed[name])


def check_same(group: ConsumerGroup, replayed: ConsumerGroup) -> None:
    """All durable state is equal."""
    for attribute in ATTRIBUTES:
        assert getattr(replayed, attribute) == getattr(group, attribute), attribute


def check_shares(world: World, consumers: list[Consumer]) -> None:
    """All partitions of subscribed topics are read by exactly one."""
    topics = world.topics.topics
    for name, group in world.shard().consumer.groups.items():
        if not group.members:
            continue
        wanted = {
            (topics[topic].topic_id, partition)
            for topic in group.subscribed_names()
            if topic in topics
            for partition in topics[topic].partitions
        }
        owned = [
            place for consumer in consumers if consumer.group_id == name for place in consumer.owned
        ]
        assert sorted(owned) == sorted(wanted)


def check_history(world: World) -> None:
    """After any last record of the log, each partition has one owner and no epoch went back."""
    newest: dict[str, int] = {}
    for shard in world.growing():
        groups = shard.consumer.groups
        for name, group in groups.items():
            check_owners(group)
            assert group.target_epoch <= group.epoch
            assert group.epoch >= newest.get(name, 0), "a group epoch went back"
        newest = {name: group.epoch for name, group in groups.items()}


def check_cut(world: World, end: int) -> None:
    """A coordinator can continue after any last record of the log: former members are removed, and
    new members share all partitions.
    """
    cut = world.cut(end)
    consumers = [Consumer(cut, f"late-{name}", group_id=name) for name in ("c", "d")]
    before = {name: group.epoch for name, group in cut.shard().consumer.groups.items()}
    settle(cut, consumers, rounds=80)
    check_shares(cut, consumers)
    for name, group in cut.shard().consumer.groups.items():
        assert group.epoch > before.get(name, 0)
        check_same(group, cut.replayed().consumer.groups[name])


def check_owners(group: ConsumerGroup) -> None:
    """Each partition belongs to one member only, as assigned or not yet revoked."""
    seen: set[tuple[bytes, int]] = set()
    for current in group.currents.values():
        for owned in (current.assigned, current.revoking):
            for topic_id, partitions in owned.items():
                for partition in partitions:
                    assert (topic_id, partition) not in seen
                    seen.add((topic_id, partition))
    assert seen == group.owners.keys()


@pytest.mark.parametrize("seed", SEEDS)
def test_simulated_consumer_groups(seed: int) -> None:
    Simulation(seed).run()


def test_a_life_cut_at_many_records() -> None:
    simulation = Simulation(5)
    simulation.run()
    for end in range(0, simulation.world.log_length(), 8):
        check_cut(simulation.world, end)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_lives_cut_at_every_record(seed: int) -> None:
    simulation = Simulation(seed)
    simulation.run()
    for end in range(simulation.world.log_length() + 1):
        check_cut(simulation.world, end)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_thousands_of_simulated_consumer_groups(block: int) -> None:
    for seed in range(1_000 + block * 100, 1_100 + block * 100):
        try:
            Simulation(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
