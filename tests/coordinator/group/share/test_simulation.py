"""Share groups simulated by seed: members, topics and coordinators come and go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import pytest

from kbroker.protocol.errors import ErrorCode
from tests.coordinator.group.share.shares import Shares
from tests.coordinator.simulation import LOG_ERRORS, World

ATTRIBUTES = (
    "currents",
    "epoch",
    "members",
    "metadata_hash",
    "states",
    "target_epoch",
    "targets",
)


class Simulation:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.shares = Shares(seed)
        self.members: dict[str, int] = {}
        self.epoch = 0
        self.committed = 0
        self.count = 0

    def run(self) -> None:
        steps: Mapping[Callable[[], None], int] = {
            self.join: 3,
            self.beat: 30,
            self.leave: 1,
            self.crash: 1,
            self.pass_time: 15,
            self.reload: 1,
            self.change_topics: 1,
            self.slow_states: 2,
            self.failing_states: 1,
            self.slow_log: 4,
            self.failing_log: 1,
            self.jump_clock: 1,
            self.pass_much_time: 1,
        }
        for _ in range(100):
            self.random.choices(list(steps), list(steps.values()))[0]()
            self.check()
        log, persister = self.shares.world.log, self.shares.persister
        log.delayed = persister.delayed = False
        persister.errors.clear()
        log.errors = []
        self.shares.world.timers.advance(0)
        for _ in range(3):
            log.commit()
            persister.answer()
        for _ in range(50):
            self.shares.world.timers.advance(3_000)
            self.beat()
        self.check()
        self.check_settled()
        check_history(self.shares.world)
        check_cut(self.shares.world, self.random.randint(0, self.shares.world.log_length()))

    def join(self) -> None:
        if len(self.members) < 6:
            self.count += 1
            self.members[f"m{self.count}"] = 0
            self.beat(f"m{self.count}")

    def beat(self, *names: str) -> None:
        for name in names or list(self.members):
            topics = ["other", "new0"] if int(name[1:]) % 2 else ["other"]
            if self.members[name] == 0:
                answer = self.shares.join(name, *topics)
            else:
                answer = self.shares.ask(member_id=name, member_epoch=self.members[name])
            if answer.error_code == ErrorCode.NONE:
                assert answer.member_epoch >= self.members[name]
                self.members[name] = answer.member_epoch
            elif answer.error_code != ErrorCode.REQUEST_TIMED_OUT:
                self.members[name] = 0

    def leave(self) -> None:
        if self.members:
            name = self.random.choice(list(self.members))
            del self.members[name]
            self.shares.ask(member_id=name, member_epoch=-1)

    def crash(self) -> None:
        if self.members:
            del self.members[self.random.choice(list(self.members))]

    def pass_time(self) -> None:
        self.shares.world.timers.advance(self.random.choice([100, 1_000, 5_000]))

    def reload(self) -> None:
        self.shares.world.log.commit()
        self.shares.world.resign()
        self.shares.world.lead()

    def pass_much_time(self) -> None:
        self.shares.world.timers.advance(self.random.randrange(60_000))

    def jump_clock(self) -> None:
        self.shares.world.timers.jump(self.random)

    def failing_log(self) -> None:
        self.shares.world.log.errors = [self.random.choice(LOG_ERRORS)]

    def change_topics(self) -> None:
        topics = self.shares.world.topics
        if "new0" in topics.topics:
            self.shares.world.coordinator.on_topics_deleted([topics.remove("new0")])
        else:
            topics.add("new0", self.random.randrange(1, 5))

    def slow_states(self) -> None:
        persister = self.shares.persister
        persister.delayed = not persister.delayed
        if not persister.delayed:
            persister.answer()

    def failing_states(self) -> None:
        self.shares.persister.errors.append(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def slow_log(self) -> None:
        log = self.shares.world.log
        if log.delayed and self.random.random() < 0.5:
            self.shares.world.fail_over(self.random)
            self.epoch = self.committed
            return
        log.delayed = not log.delayed
        if not log.delayed:
            log.commit()

    def check(self) -> None:
        shard = self.shares.world.shard()
        replayed = self.shares.world.replayed().share.groups
        assert replayed.keys() == shard.share.groups.keys()
        for name, group in shard.share.groups.items():
            assert group.epoch >= self.epoch, "a group epoch went back"
            self.epoch = group.epoch
            if not self.shares.world.log.waiting:
                self.committed = self.epoch
            assert group.target_epoch <= group.epoch
            assert group.currents.keys() == group.members.keys()
            assert group.targets.keys() <= group.members.keys()
            for attribute in ATTRIBUTES:
                assert getattr(replayed[name], attribute) == getattr(group, attribute), attribute
            for target in group.targets.values():
                for topic_id, partitions in target.items():
                    made = group.states.initialized.get(topic_id)
                    assert made is None or partitions <= made, "assigned without a state"

    def check_settled(self) -> None:
        if not self.members:
            return
        group, topics = self.shares.group(), self.shares.world.topics.topics
        assert group.members.keys() == self.members.keys()
        wanted = {
            (topics[name].topic_id, partition)
            for name in group.subscribed_names()
            if name in topics
            for partition in topics[name].partitions
        }
        assigned = {
            (topic_id, partition)
            for current in group.currents.values()
            for topic_id, partitions in current.assigned.items()
            for partition in partitions
        }
        assert assigned == wanted
        assert all(current.assigned for current in group.currents.values())


def check_history(world: World) -> None:
    """Whatever record the log ends with: no epoch goes back from there."""
    newest: dict[str, int] = {}
    for shard in world.growing():
        groups = shard.share.groups
        for name, group in groups.items():
            assert group.target_epoch <= group.epoch
            assert group.epoch >= newest.get(name, 0), "a group epoch went back"
        newest = {name: group.epoch for name, group in groups.items()}


def check_cut(world: World, end: int) -> None:
    """A coordinator can continue after any last record of the log: who was in the group is given
    up, who comes reads everything.
    """
    shares = Shares()
    shares.take(world.cut(end))
    epoch = 0
    for _ in range(60):
        shares.world.timers.advance(1_000)
        answer = shares.ask(
            member_id="late", member_epoch=epoch, subscribed_topic_names=["other", "new0"]
        )
        assert answer.member_epoch >= epoch
        epoch = answer.member_epoch
    group = shares.group()
    assert group.members.keys() == {"late"}
    topics = shares.world.topics.topics
    assert group.currents["late"].assigned == {
        topics[name].topic_id: frozenset(topics[name].partitions)
        for name in ("other", "new0")
        if name in topics
    }


@pytest.mark.parametrize("seed", range(30))
def test_simulated_share_groups(seed: int) -> None:
    Simulation(seed).run()


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_thousands_of_simulated_share_groups(block: int) -> None:
    for seed in range(1_000 + block * 100, 1_100 + block * 100):
        try:
            Simulation(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
