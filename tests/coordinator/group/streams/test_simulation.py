"""Streams groups under random joins, leaves, crashes, lost answers and reloads, by seed."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from kbroker.coordinator.group.streams.group import StreamsGroup
from kbroker.coordinator.group.streams.tasks import Task
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from tests.coordinator.group.streams_members import StreamsThread, settle, topology
from tests.coordinator.simulation import LOG_ERRORS, World

SEEDS = range(30)
REPLAY_EVERY = 10
STEPS = 120
SOURCES = {"s": "other", "t": "few"}
ATTRIBUTES = (
    "assignment_configs",
    "currents",
    "epoch",
    "keepers",
    "members",
    "metadata_hash",
    "runners",
    "target_epoch",
    "targets",
    "topology",
    "validated_topology_epoch",
)


class Simulation:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.standbys = self.random.choice([0, 0, 1, 2])
        config = GroupCoordinatorConfig(
            group_streams_assignment_interval_ms=self.random.choice([0, 1_000]),
            group_streams_initial_rebalance_delay_ms=self.random.choice([0, 3_000]),
            group_streams_session_timeout_ms=20_000,
            group_streams_num_standby_replicas=self.standbys,
        )
        self.world = World(seed=seed, config=config)
        self.world.topics.add("few", 2)
        self.threads: list[StreamsThread] = []
        self.epochs: dict[str, int] = {}
        self.committed: dict[str, int] = {}
        self.count = 0

    def run(self) -> None:
        actions = [
            (self.join, 4),
            (self.poll, 40),
            (self.poll_deaf, 4),
            (self.leave, 2),
            (self.crash, 2),
            (self.resist, 1),
            (self.pass_time, 20),
            (self.pass_much_time, 1),
            (self.jump_clock, 1),
            (self.reload, 1),
            (self.lose_topics, 1),
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
        for thread in self.threads:
            thread.stubborn = False
        self.world.timers.advance(25_000)  # who crashed is given up
        settle(self.world, self.threads, rounds=60)
        self.check()
        self.check_replay()
        self.check_shares()
        check_history(self.world)
        check_cut(self.world, self.random.randint(0, self.world.log_length()))

    def join(self) -> None:
        if len(self.threads) >= 8:
            return
        self.count += 1
        group_id = self.random.choice(sorted(SOURCES))
        process_id = f"{group_id}-process{self.random.randrange(4)}"
        thread = StreamsThread(
            self.world,
            f"m{self.count}",
            process_id,
            group_id=group_id,
            topology=topology(group_id, SOURCES[group_id]),
        )
        self.threads.append(thread)
        thread.poll()

    def any(self) -> StreamsThread | None:
        return self.random.choice(self.threads) if self.threads else None

    def poll(self) -> None:
        for thread in self.random.sample(self.threads, min(len(self.threads), 3)):
            thread.poll()

    def poll_deaf(self) -> None:
        thread = self.any()
        if thread is not None and not self.world.log.delayed:
            thread.deaf = True
            thread.poll()
            thread.deaf = False

    def leave(self) -> None:
        thread = self.any()
        if thread is not None and thread.epoch > 0:
            self.threads.remove(thread)
            if thread.member_id in thread.group.members:
                thread.leave()

    def crash(self) -> None:
        thread = self.any()
        if thread is not None:
            thread.deaf = True
            self.threads.remove(thread)

    def resist(self) -> None:
        """It is busy with its records and gives nothing back, perhaps until it is given up."""
        thread = self.any()
        if thread is not None:
            thread.stubborn = not thread.stubborn

    def pass_much_time(self) -> None:
        self.world.timers.advance(self.random.randrange(40_000))

    def jump_clock(self) -> None:
        self.world.timers.jump(self.random)

    def failing_log(self) -> None:
        self.world.log.errors = [self.random.choice(LOG_ERRORS)]

    def fail_over(self) -> None:
        """No client was told of the lost state."""
        self.world.fail_over(self.random)
        self.epochs = dict(self.committed)

    def pass_time(self) -> None:
        for _ in range(self.random.randrange(1, 4)):
            self.world.timers.advance(1_000)
            for thread in self.threads:
                if self.random.random() < 0.7:
                    thread.poll()

    def reload(self) -> None:
        self.slow_log_ends()
        self.world.resign()
        self.world.lead()

    def lose_topics(self) -> None:
        """An internal topic is deleted: it is created again."""
        name = self.random.choice(["s-rep", "s-log", "t-rep", "t-log"])
        if name in self.world.topics.topics:
            self.world.topics.remove(name)

    def slow_log(self) -> None:
        if self.world.log.delayed:
            self.random.choice([self.slow_log_ends, self.fail_over])()
        else:
            self.world.log.delayed = True

    def slow_log_ends(self) -> None:
        self.world.log.delayed = False
        self.world.log.commit()

    def check(self) -> None:
        groups = self.world.shard().streams.groups
        newest = self.epochs
        self.epochs = {}
        for name, group in groups.items():
            assert group.epoch >= newest.get(name, 0), "a group epoch went back"
            assert group.target_epoch <= group.epoch
            self.epochs[name] = group.epoch
            check_owners(group)
        if not self.world.log.waiting:
            self.committed = dict(self.epochs)
        for thread in self.threads:
            group_or_none = groups.get(thread.group_id)
            if group_or_none is None or thread.member_id not in group_or_none.members:
                continue
            for task in thread.active:
                assert group_or_none.runners.get(task) == thread.member_id

    def check_replay(self) -> None:
        """What the log tells is what is, also when it was compacted."""
        groups = self.world.shard().streams.groups
        for compacted in (False, True):
            replayed = self.world.replayed(compacted=compacted).streams.groups
            assert replayed.keys() == groups.keys()
            for name, group in groups.items():
                for attribute in ATTRIBUTES:
                    live = getattr(group, attribute)
                    assert getattr(replayed[name], attribute) == live, attribute

    def check_shares(self) -> None:
        """Each task is worked on by exactly one member, and its state kept by others as asked."""
        for name, group in self.world.shard().streams.groups.items():
            members = [thread for thread in self.threads if thread.group_id == name]
            if not members:
                continue
            count = len(self.world.topics.topics[SOURCES[name]].partitions)
            wanted = [(subtopology, one) for subtopology in "01" for one in range(count)]
            assert sorted(task for thread in members for task in thread.active) == wanted
            loads = [len(thread.active) for thread in members]
            processes = {str(thread.fields["process_id"]) for thread in members}
            if self.standbys == 0 and len(processes) == len(members):
                assert max(loads) - min(loads) <= 1
            copies = Counter(task for thread in members for task in thread.standby)
            expected = min(self.standbys, len(processes) - 1)
            assert copies == ({("1", one): expected for one in range(count)} if expected else {})
            assert group.state() == "Stable"


def check_history(world: World) -> None:
    """Whatever record the log ends with, each task has one member and no epoch went back."""
    newest: dict[str, int] = {}
    for shard in world.growing():
        groups = shard.streams.groups
        for name, group in groups.items():
            check_owners(group)
            assert group.target_epoch <= group.epoch
            assert group.epoch >= newest.get(name, 0), "a group epoch went back"
        newest = {name: group.epoch for name, group in groups.items()}


def check_cut(world: World, end: int) -> None:
    """A coordinator can continue after any last record of the log: who was in the groups is given
    up, who comes has all tasks.
    """
    cut = world.cut(end)
    threads = [
        StreamsThread(cut, f"late-{name}", group_id=name, topology=topology(name, source))
        for name, source in SOURCES.items()
    ]
    before = {name: group.epoch for name, group in cut.shard().streams.groups.items()}
    settle(cut, threads, rounds=80)
    for thread in threads:
        count = len(cut.topics.topics[SOURCES[thread.group_id]].partitions)
        assert thread.active == {(one, index) for one in "01" for index in range(count)}
        assert thread.group.epoch > before.get(thread.group_id, 0)


def check_owners(group: StreamsGroup) -> None:
    """A task is worked on by one member, given or not yet given back; a process has it once."""
    seen: dict[Task, str] = {}
    kept: dict[Task, set[str]] = {}
    by_process: set[tuple[str, Task]] = set()
    for member_id, current in group.currents.items():
        process_id = group.members[member_id].process_id
        for held in (current.assigned, current.revoking):
            for task in held.active_tasks():
                assert task not in seen
                seen[task] = member_id
            for task in held.passive_tasks():
                kept.setdefault(task, set()).add(member_id)
            for task in [*held.active_tasks(), *held.passive_tasks()]:
                assert (process_id, task) not in by_process
                by_process.add((process_id, task))
    assert seen == group.runners
    assert kept == group.keepers


@pytest.mark.parametrize("seed", SEEDS)
def test_simulated_streams_groups(seed: int) -> None:
    Simulation(seed).run()


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_thousands_of_simulated_streams_groups(block: int) -> None:
    for seed in range(1_000 + block * 100, 1_100 + block * 100):
        try:
            Simulation(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
