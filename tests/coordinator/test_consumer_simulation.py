"""Consumer groups under random joins, leaves, crashes, lost answers, changes and reloads, by
seed.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from kbroker.coordinator.consumer_group import ConsumerGroup
from kbroker.settings.group_coordinator import GroupCoordinatorConfig
from tests.coordinator.consumers import Consumer, settle
from tests.coordinator.simulation import World

SEEDS = range(30)
REPLAY_EVERY = 10
STEPS = 120
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
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        config = GroupCoordinatorConfig(
            group_consumer_assignment_interval_ms=self.random.choice([0, 1_000]),
            group_consumer_session_timeout_ms=20_000,
            group_consumer_assignors=self.random.choice([("uniform", "range"), ("range",)]),
        )
        self.world = World(seed=seed, config=config)
        self.consumers: list[Consumer] = []
        self.epochs: Counter[str] = Counter()
        self.count = 0

    def run(self) -> None:
        actions = [
            (self.join, 4),
            (self.poll, 40),
            (self.poll_deaf, 4),
            (self.leave, 2),
            (self.crash, 2),
            (self.leave_for_a_while, 2),
            (self.pass_time, 20),
            (self.reload, 1),
            (self.change_topics, 1),
            (self.slow_log, 2),
        ]
        steps, weights = zip(*actions, strict=True)
        for step in range(STEPS):
            self.random.choices(steps, weights)[0]()
            self.check()
            if step % REPLAY_EVERY == 0:
                self.check_replay()
        self.world.log.commit()
        self.world.log.delayed = False
        self.world.timers.advance(25_000)  # who crashed is given up
        settle(self.world, self.consumers, rounds=60)
        self.check()
        self.check_replay()
        self.check_shares()

    def join(self) -> None:
        if len(self.consumers) >= 8:
            return
        self.count += 1
        fields: dict[str, object] = {"group_id": self.random.choice(["c", "d"])}
        kind = self.random.randrange(4)
        if kind == 0:
            fields["instance_id"] = f"i{self.count}"
        if kind == 1:
            fields["subscribed_topic_names"] = None
            fields["subscribed_topic_regex"] = self.random.choice(["ev.*", "(events|other|new.)"])
        if kind == 2:
            fields["subscribed_topic_names"] = ["events", "other"]
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

    def leave_for_a_while(self) -> None:
        consumer = self.any()
        if consumer is None or "instance_id" not in consumer.fields or consumer.epoch <= 0:
            return
        self.consumers.remove(consumer)
        consumer.deaf = True
        if consumer.member_id in consumer.group.members:
            consumer.leave(-2)
        self.count += 1
        self.consumers.append(Consumer(self.world, f"m{self.count}", **consumer.fields))

    def pass_time(self) -> None:
        for _ in range(self.random.randrange(1, 4)):
            self.world.timers.advance(1_000)
            for consumer in self.consumers:
                if self.random.random() < 0.7:
                    consumer.poll()

    def reload(self) -> None:
        self.slow_log_ends()
        self.world.resign()
        self.world.lead()

    def change_topics(self) -> None:
        name = f"new{self.random.randrange(3)}"
        if name in self.world.topics.topics:
            self.world.topics.remove(name)
        else:
            self.world.topics.add(name, self.random.randrange(1, 5))

    def slow_log(self) -> None:
        if self.world.log.delayed:
            self.slow_log_ends()
        else:
            self.world.log.delayed = True

    def slow_log_ends(self) -> None:
        self.world.log.delayed = False
        self.world.log.commit()

    def check(self) -> None:
        groups = self.world.shard().consumer.groups
        for name, group in groups.items():
            assert group.epoch >= self.epochs[name], "a group epoch went back"
            assert group.target_epoch <= group.epoch
            self.epochs[name] = group.epoch
            check_owners(group)
        for consumer in self.consumers:
            group_or_none = groups.get(consumer.group_id)
            if group_or_none is None or consumer.member_id not in group_or_none.members:
                continue
            for place in consumer.owned:
                assert group_or_none.owners.get(place) == consumer.member_id

    def check_replay(self) -> None:
        """What the log tells is what is, also when it was compacted."""
        groups = self.world.shard().consumer.groups
        for compacted in (False, True):
            replayed = self.world.replayed(compacted=compacted).consumer.groups
            assert replayed.keys() == groups.keys()
            for name, group in groups.items():
                for attribute in ATTRIBUTES:
                    live = getattr(group, attribute)
                    assert getattr(replayed[name], attribute) == live, attribute

    def check_shares(self) -> None:
        """All partitions of subscribed topics are read by exactly one."""
        topics = self.world.topics.topics
        for name, group in self.world.shard().consumer.groups.items():
            if not group.members:
                continue
            wanted = {
                (topics[topic].topic_id, partition)
                for topic in group.subscribed_names()
                if topic in topics
                for partition in topics[topic].partitions
            }
            owned = [
                place
                for consumer in self.consumers
                if consumer.group_id == name
                for place in consumer.owned
            ]
            assert sorted(owned) == sorted(wanted)


def check_owners(group: ConsumerGroup) -> None:
    """Each partition is with one member only, given or not yet given back."""
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


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_thousands_of_simulated_consumer_groups(block: int) -> None:
    for seed in range(1_000 + block * 100, 1_100 + block * 100):
        try:
            Simulation(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
