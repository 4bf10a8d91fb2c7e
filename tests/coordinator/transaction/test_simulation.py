"""Transactions while the coordinator crashes at any append: before the record is in the log, after
it, or after it is committed and unanswered.

After every step the replayed log says what the living coordinator says. No transaction gets both
kinds of marker; one whose commit was confirmed has its commit marker everywhere; one whose commit
was refused for good has none; at the end every transaction is over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from kbroker.coordinator.runtime.coordinator_log import AppendOutcome
from kbroker.coordinator.transaction.markers import MarkerResults, WriteMarkers
from kbroker.coordinator.transaction.records import Transaction
from kbroker.coordinator.transaction.state import AT_REST
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from tests.coordinator.simulation import MemoryLog
from tests.coordinator.transaction.world import Client, TransactionWorld

E = ErrorCode
AGAIN = {E.CONCURRENT_TRANSACTIONS, E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR}
STEPS = 35
PARTITIONS = [TopicPartition("out", index) for index in range(3)]


class CrashError(BaseException):
    """The process ends here: no exception handler may continue after it."""


class CrashingLog(MemoryLog):
    """Ends the process in one of so many appends, before or after the record is in the log."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self.crash_in = 0
        self.count = 0
        self.loses: bool | None = None
        """Whether the record is lost in the crash; None for either."""

    def append(
        self,
        topic_partition: TopicPartition,
        batch: bytearray,
        *,
        leader_epoch: int = -1,
        transaction_version: int = 0,
    ) -> Deferred[AppendOutcome]:
        self.crash_in -= 1
        self.count += 1
        loses = self.random.random() < 0.5 if self.loses is None else self.loses
        if self.crash_in == 0 and loses:
            raise CrashError
        outcome = super().append(topic_partition, batch)
        if self.crash_in == 0:
            raise CrashError
        return outcome


@dataclass
class Written:
    """One transaction as its producer and its partitions saw it."""

    partitions: set[TopicPartition] = field(default_factory=set)
    ends: dict[TopicPartition, set[bool]] = field(default_factory=dict)
    committed: bool | None = None
    """None: never heard."""


class Simulation(TransactionWorld):
    """Partitions know who has a transaction open in them; a crash may come between two markers."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.open: dict[tuple[TopicPartition, int], Written] = {}
        self.crash_after_markers = 0
        super().__init__()
        self.log = CrashingLog(self.random)
        self.coordinator = self.build()
        self.lead()

    def write_markers(
        self, request: WriteMarkers, *, coordinator_epoch: int
    ) -> Deferred[MarkerResults]:
        results: dict[TopicPartition, ErrorCode] = {}
        for partition in request.partitions:
            if self.random.random() < 0.1:
                results[partition] = E.NOT_LEADER_OR_FOLLOWER
                continue
            transaction = self.open.pop((partition, request.producer_id), None)
            if transaction is not None:
                transaction.ends.setdefault(partition, set()).add(request.commit)
            results[partition] = E.NONE
            if self.random.random() < 0.05:
                raise CrashError
        return Deferred.of(results)

    def restart(self) -> None:
        """A new process, with the log as it is; it may crash while it loads."""
        while True:
            self.timers._heap.clear()
            self.coordinator = self.build()
            self.epoch += 1
            try:
                self.coordinator.on_leadership(0, self.epoch)
                self.timers.advance(0)
            except CrashError:
                continue
            return

    def check(self) -> None:
        live = {key: _durable(value) for key, value in self.shard().transactions.items()}
        logged = {key: _durable(value) for key, value in self.replayed().transactions.items()}
        assert live == logged


def _durable(transaction: Transaction) -> Transaction:
    return transaction._replace(last_producer_epoch=-1)


class Producer:
    """A client that retries unanswered requests, and starts again when it is told to."""

    def __init__(self, world: Simulation, name: str, version: int) -> None:
        self.world = world
        self.client = Client(world, transactional_id=name, version=version)
        self.current: Written | None = None
        self.done: list[Written] = []

    def call(self, ask: Any) -> ErrorCode:
        """Repeat until there is a response that is not retriable."""
        for _ in range(200):
            try:
                error: ErrorCode = ask()
            except CrashError:
                self.world.restart()
                continue
            self.world.check()
            if error not in AGAIN:
                return error
            try:
                self.world.timers.advance(200)
            except CrashError:
                self.world.restart()
        raise AssertionError("no end of it")

    def start(self) -> None:
        if self.current is not None:
            self.done.append(self.current)
        self.current = None
        assert self.call(self.client.init) is E.NONE

    def write(self, partition: TopicPartition) -> None:
        error = self.call(lambda: self.client.add(partition))
        if error is not E.NONE:
            assert error is E.PRODUCER_FENCED
            self.start()
            return
        if self.current is None:
            self.current = Written()
        self.current.partitions.add(partition)
        self.world.open[partition, self.client.producer_id] = self.current

    def end(self, *, commit: bool) -> None:
        if self.current is None:
            return
        error = self.call(lambda: self.client.end(commit=commit))
        self.current.committed = commit and error is E.NONE
        self.done.append(self.current)
        self.current = None
        if error is not E.NONE:
            assert error in (E.PRODUCER_FENCED, E.INVALID_TXN_STATE)
            self.start()


def run(seed: int, steps: int) -> list[Written]:
    """Crashes are random."""
    return drive(Simulation(seed), steps, crashes=0.4)


def drive(world: Simulation, steps: int, *, crashes: float) -> list[Written]:
    random = world.random
    log: Any = world.log
    producers = [Producer(world, f"tx-{index}", version=2 * (index % 2)) for index in range(4)]
    for producer in producers:
        producer.start()
    for _ in range(steps):
        producer = random.choice(producers)
        if random.random() < crashes:
            log.crash_in = random.randrange(1, 5)
        match random.random():
            case chance if chance < 0.55:
                producer.write(random.choice(PARTITIONS))
            case chance if chance < 0.9:
                producer.end(commit=random.random() < 0.6)
            case chance if chance < 0.95:
                producer.start()
            case _:
                try:
                    world.timers.advance(40_000)
                except CrashError:
                    world.restart()
    log.crash_in = 0
    for _ in range(200):
        try:
            world.timers.advance(10_000)
        except CrashError:
            world.restart()
    assert all(found.state in AT_REST for found in world.shard().transactions.values())
    assert world.open == {}
    world.check()
    for producer in producers:
        if producer.current is not None:
            producer.done.append(producer.current)
    return [written for producer in producers for written in producer.done]


def check(seed: int, history: list[Written]) -> None:
    """No transaction has both kinds of marker, and each has those that its producer was told."""
    for written in history:
        kinds = {kind for ends in written.ends.values() for kind in ends}
        assert len(kinds) <= 1, (seed, written)
        if written.committed:
            assert kinds == {True}, (seed, written)
            assert set(written.ends) == written.partitions
        elif written.committed is False:
            assert True not in kinds, (seed, written)


@pytest.mark.parametrize("seed", range(10))
def test_crash_at_any_append(seed: int) -> None:
    check(seed, run(seed, steps=60))


@pytest.mark.parametrize("loses", [True, False], ids=["lost", "kept"])
def test_crash_at_each_append_in_turn(loses: bool) -> None:
    """The same scenario again and again, with the crash one append later each time."""
    at = 0
    while True:
        at += 1
        world = Simulation(seed=7)
        log: Any = world.log
        log.crash_in, log.loses = at, loses
        check(at, drive(world, STEPS, crashes=0))
        if log.count < at:
            break
    assert at > 40


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 2000, 100))
def test_crash_at_any_append_many_times(start: int) -> None:
    for seed in range(start, start + 100):
        test_crash_at_any_append(seed)
