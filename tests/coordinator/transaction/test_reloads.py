"""After any sequence of requests, timeouts and faults, a coordinator that loads the log of
transactional ids has the same state as the one that wrote it: from the whole log, from the
compacted one, and from that without tombstones. An epoch never passes 32767, and no client gets it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from kbroker.coordinator.transaction.records import LAST_CLIENT_EPOCH, MAX_EPOCH, Transaction
from kbroker.coordinator.transaction.service import TRANSACTION_TOPIC
from kbroker.coordinator.transaction.shard import TransactionShard
from kbroker.coordinator.transaction.state import AT_REST, ENDING
from kbroker.model import TopicPartition
from kbroker.ports import Deferred, at_once
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.transactions import ListTransactionsRequest
from tests.coordinator.compacted import compacted
from tests.coordinator.transaction.world import Client, TransactionWorld

E = ErrorCode
LOG = TopicPartition(TRANSACTION_TOPIC, 0)
SEEDS = range(30)
STEPS = 120
CHECK_EVERY = 8
IDS = ("x", "y", "z")
PARTITIONS = [TopicPartition("out", index) for index in range(3)]
FAULTS = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
)


class Life:
    """One coordinator, and clients of few ids that are sometimes not the only ones."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = TransactionWorld()
        self.clients = [
            Client(self.world, transactional_id=name, version=version)
            for name in IDS
            for version in (0, 2)
        ]

    def run(self) -> None:
        actions: list[tuple[Callable[[], object], int]] = [
            (self.init, 10),
            (self.add, 25),
            (self.end, 20),
            (self.end_again, 4),
            (self.wear_out, 4),
            (self.pass_time, 14),
            (self.pass_much_time, 2),
            (self.marker_fault, 4),
            (self.producer_id_fault, 2),
            (self.fault, 3),
            (self.slow_log, 3),
            (self.reload, 3),
        ]
        steps, weights = zip(*actions, strict=True)
        for step in range(STEPS):
            self.random.choices(steps, weights)[0]()
            if step % CHECK_EVERY == 0:
                self.check()
        self.check()
        self.end_all()

    # -- what happens ------------------------------------------------------------------------

    def any_client(self) -> Client:
        return self.random.choice(self.clients)

    def ask(self, call: Callable[[], Any]) -> None:
        """What is not answered at once is not heard."""
        answer = call()
        if isinstance(answer, Deferred) and not answer.done:
            return
        response = answer.value
        if not isinstance(response, ErrorCode):
            assert getattr(response, "producer_epoch", 0) <= LAST_CLIENT_EPOCH

    def init(self) -> None:
        client = self.any_client()
        if self.world.log.delayed:
            self.ask(client.ask_init)
            return
        client.init(keep=self.random.random() < 0.5, timeout_ms=self.random.choice([9_000, 60_000]))
        assert client.epoch <= LAST_CLIENT_EPOCH

    def add(self) -> None:
        client = self.any_client()
        self.ask(lambda: client.ask_add(self.random.choice(PARTITIONS)))

    def end(self) -> None:
        client, commit = self.any_client(), self.random.random() < 0.6
        if self.world.log.delayed:
            self.ask(lambda: client.ask_end(commit=commit))
            return
        client.end(commit=commit)
        assert client.epoch <= LAST_CLIENT_EPOCH

    def end_again(self) -> None:
        """The answer was lost."""
        client, commit = self.any_client(), self.random.random() < 0.6
        self.ask(lambda: client.ask_end(commit=commit))
        self.ask(lambda: client.ask_end(commit=commit))

    def wear_out(self) -> None:
        """Many transactions later, by the record of one: near the last epoch."""
        self.settle()
        client = self.any_client()
        found = self.shard().transactions.get(client.transactional_id)
        if found is None or found.state in ENDING:
            return
        epoch = self.random.choice([LAST_CLIENT_EPOCH - 1, LAST_CLIENT_EPOCH, MAX_EPOCH])
        if epoch > found.producer_epoch:
            self.world.put(found._replace(producer_epoch=epoch))
            client.producer_id, client.epoch = found.producer_id, min(epoch, LAST_CLIENT_EPOCH)

    def pass_time(self) -> None:
        self.world.timers.advance(self.random.randrange(12_000))

    def pass_much_time(self) -> None:
        """Ids that are not used expire, by the wall clock."""
        if self.random.random() < 0.5:
            self.world.timers.wall_jump_ms += 8 * 86_400_000
            self.world.timers.advance(3_600_000)
        else:
            self.world.timers.advance(90_000)

    def marker_fault(self) -> None:
        self.world.marker_error = self.random.choice([E.NONE, E.NOT_LEADER_OR_FOLLOWER])

    def producer_id_fault(self) -> None:
        self.world.producer_id_error = self.random.choice([E.NONE, E.COORDINATOR_LOAD_IN_PROGRESS])

    def fault(self) -> None:
        self.world.log.errors = [self.random.choice(FAULTS)]

    def slow_log(self) -> None:
        self.world.log.delayed = not self.world.log.delayed
        self.world.log.commit()

    def reload(self) -> None:
        self.world.lead()

    # -- what must hold ----------------------------------------------------------------------

    def shard(self) -> TransactionShard:
        return self.world.shard()

    def settle(self) -> None:
        self.world.log.errors = []
        self.world.log.delayed = False
        self.world.log.commit()
        self.world.timers.advance(0)

    def check(self) -> None:
        self.settle()
        live = observed(self.world)
        assert all(one.producer_epoch <= MAX_EPOCH for one in self.shard().transactions.values())
        batches = self.world.log.batches.get(LOG, [])
        logs = [batches, *(compacted(batches, keep_tombstones=keep) for keep in (True, False))]
        for log in logs:
            assert observed(loaded(self.world, log)) == live

    def end_all(self) -> None:
        """Everything works again: what is open is aborted by its timeout, what is decided ends."""
        self.world.marker_error = self.world.producer_id_error = E.NONE
        self.world.timers.advance(200_000)
        assert all(one.state in AT_REST for one in self.shard().transactions.values())
        assert not self.shard()._ends
        self.check()
        for client in self.clients:
            assert client.init() is E.NONE
            assert client.add(PARTITIONS[0]) is E.NONE
            assert client.end(commit=True) is E.NONE


def loaded(world: TransactionWorld, log: list[bytes]) -> TransactionWorld:
    """A coordinator that loads this log, and cannot write, so that it completes nothing."""
    again = TransactionWorld()
    again.timers.time_ms = world.timers.time_ms
    again.timers.wall_jump_ms = world.timers.wall_jump_ms
    again.log.batches[LOG] = list(log)
    again.log.errors = [E.NOT_ENOUGH_REPLICAS] * len(IDS)
    again.lead()
    return again


def observed(world: TransactionWorld) -> dict[str, Any]:
    """All that is known of the ids, but the epoch before the present one (as Kafka, not in the
    log).
    """
    shard, coordinator = world.shard(), world.coordinator
    names = sorted(shard.transactions)
    described = [coordinator.describe(name)[0] for name in names]
    listed = at_once(coordinator.list_transactions(ListTransactionsRequest()))
    return {
        "transactions": {name: _durable(one) for name, one in shard.transactions.items()},
        "described": {one.transactional_id: one for one in described},
        "listed": {one.transactional_id: one for one in listed.transaction_states},
        "ends": set(shard._ends),
        "armed": [check._deadline.at_ms is not None for check in (shard._timeouts, shard._expiry)]
        if shard.transactions
        else [],
    }


def _durable(transaction: Transaction) -> Transaction:
    return transaction._replace(last_producer_epoch=-1)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_coordinator_that_loads_the_log_knows_the_same(seed: int) -> None:
    Life(seed).run()


@pytest.mark.slow
@pytest.mark.sim
def test_a_coordinator_that_loads_the_log_knows_the_same_many_times() -> None:
    for seed in range(1_000, 5_000):
        try:
            Life(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
