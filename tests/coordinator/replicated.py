"""A coordinator's log on three brokers, and the coordinator of each: leaders change, followers copy
in their own time, and brokers learn of changes late.

All three brokers are always in the ISR, so the high watermark is what all of them have fetched from
the present leader, and any of them may be the next leader. Positions are counted in batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from random import Random
from typing import Any, Protocol, TypeVar

from kbroker.coordinator.runtime.coordinator_log import ANY_EPOCH, AppendOutcome
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.batches.batch_header import iter_batches, read_batch_header
from kbroker.protocol.batches.records import Record, iter_records
from kbroker.protocol.errors import ErrorCode, KafkaError
from tests.batch_offsets import assign_offsets
from tests.coordinator.simulation import Outcome
from tests.sim.timers import SimTimers

BROKERS = 3

T = TypeVar("T")
Step = Callable[[], None]


class LieError(AssertionError):
    """A client got a response that is not true."""


class Replica:
    """The log of one broker. epoch: the newest leader epoch that it has learned of. fetched: what
    followers have, in this epoch of a leader.
    """

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.high_watermark = 0
        self.epoch = 0
        self.leads = False
        self.fetched: dict[int, int] = {}
        self.waiting: list[tuple[int, Callable[[ErrorCode], None]]] = []

    def next_offset(self) -> int:
        return read_batch_header(self.batches[-1]).next_offset if self.batches else 0

    def when_at(self, end: int, call: Callable[[ErrorCode], None]) -> None:
        """Call with NONE once the high watermark is reached, or with the error if it cannot be any
        more.
        """
        self.waiting.append((end, call))

    def commit(self) -> None:
        """Move the high watermark of a leader."""
        if self.leads and len(self.fetched) == BROKERS - 1:
            end = min(len(self.batches), *self.fetched.values())
            self.high_watermark = max(self.high_watermark, end)
            while self.waiting and self.waiting[0][0] <= self.high_watermark:
                self.waiting.pop(0)[1](ErrorCode.NONE)

    def abandon(self) -> None:
        """The leadership ended, or another one began."""
        waiting, self.waiting = self.waiting, []
        for _, call in waiting:
            call(ErrorCode.NOT_LEADER_OR_FOLLOWER)


class BrokerLog:
    """The port of one broker's coordinator."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica

    def append(
        self,
        topic_partition: TopicPartition,
        batch: bytearray,
        *,
        leader_epoch: int = ANY_EPOCH,
        transaction_version: int = 0,
    ) -> Deferred[AppendOutcome]:
        replica = self.replica
        if not replica.leads or leader_epoch not in (ANY_EPOCH, replica.epoch):
            return Deferred.of(Outcome(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        assign_offsets(batch, replica.next_offset(), replica.epoch)
        replica.batches.append(bytes(batch))
        outcome: Deferred[AppendOutcome] = Deferred()
        replica.when_at(len(replica.batches), lambda error: outcome.resolve(Outcome(error)))
        return outcome

    def read(self, topic_partition: TopicPartition, offset: int, max_bytes: int) -> bytes:
        if not self.replica.leads:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        data = bytearray()
        for batch in self.replica.batches:
            if read_batch_header(batch).last_offset >= offset:
                data += batch
                if len(data) >= max_bytes:
                    break
        return bytes(data)

    def end_offset(self, topic_partition: TopicPartition) -> int:
        return self.replica.next_offset()

    def delete_before(self, topic_partition: TopicPartition, offset: int) -> None:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "nothing is deleted here")

    def when_committed(self, topic_partition: TopicPartition) -> Deferred[ErrorCode]:
        replica = self.replica
        if not replica.leads:
            return Deferred.of(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if replica.high_watermark >= len(replica.batches):
            return Deferred.of(ErrorCode.NONE)
        committed: Deferred[ErrorCode] = Deferred()
        replica.when_at(len(replica.batches), committed.resolve)
        return committed


class Coordinator(Protocol):
    """Of groups, of transactions or of share states."""

    def on_leadership(self, partition: int, epoch: int | None) -> None: ...


class ReplicatedCluster:
    """leader, epoch: as the controller has it. orders: the leadership changes of which each
    coordinator was not notified yet.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.timers = SimTimers()
        self.replicas = [Replica() for _ in range(BROKERS)]
        self.orders: list[deque[int | None]] = [deque() for _ in range(BROKERS)]
        self.told: list[int | None] = [None] * BROKERS
        self.leader = 0
        self.epoch = 0
        self.coordinators: list[Any] = []  # of the kind that a test is about

    def coordinate(self, make: Callable[[BrokerLog], Coordinator]) -> None:
        """Create the coordinators and elect the first leader."""
        self.coordinators = [make(BrokerLog(replica)) for replica in self.replicas]
        self.elect(0)
        self.settle()

    # -- what happens to the log -------------------------------------------------------------

    def elect(self, index: int) -> None:
        """The broker is elected leader; the others have not learned of it."""
        self.epoch += 1
        self.leader = index
        self.learn(index)

    def learn(self, index: int) -> None:
        """The broker applies the newest metadata to its replica: a follower truncates its log to
        where it diverges from the leader's.
        """
        replica = self.replicas[index]
        if replica.epoch == self.epoch:
            return
        was_leader, replica.leads = replica.leads, index == self.leader
        replica.epoch = self.epoch
        replica.fetched = {}
        replica.abandon()
        if replica.leads:
            self.orders[index].append(self.epoch)
            return
        if was_leader:
            self.orders[index].append(None)
        theirs = self.replicas[self.leader].batches
        same = 0
        for mine, other in zip(replica.batches, theirs, strict=False):
            if mine != other:
                break
            same += 1
        assert same >= replica.high_watermark, "a committed batch is lost"
        del replica.batches[same:]

    def fetch(self, index: int, count: int) -> None:
        """A follower acknowledges what it has and copies so many batches more."""
        leader, replica = self.replicas[self.leader], self.replicas[index]
        if index == self.leader or replica.epoch != self.epoch:
            return
        have = len(replica.batches)
        leader.fetched[index] = have
        leader.commit()
        replica.batches += leader.batches[have : have + count]
        replica.high_watermark = min(leader.high_watermark, len(replica.batches))

    def tell(self, index: int) -> None:
        """The broker's coordinator learns of one change of its leadership, in their order."""
        if self.orders[index]:
            order = self.told[index] = self.orders[index].popleft()
            self.coordinators[index].on_leadership(0, order)

    def settle(self) -> None:
        """Deliver everything: all replicas are equal, all is committed, all brokers are
        notified.
        """
        for index in range(BROKERS):
            self.learn(index)
        for _ in range(20):  # what is committed makes coordinators write more
            for index in range(BROKERS):
                while self.orders[index]:
                    self.tell(index)
                self.timers.advance(0)
                self.fetch(index, len(self.replicas[self.leader].batches))
        ends = {len(replica.batches) for replica in self.replicas}
        assert ends == {self.replicas[self.leader].high_watermark}

    # -- steps of a simulation ---------------------------------------------------------------

    def any_broker(self) -> int:
        return self.random.randrange(BROKERS)

    def elect_any(self) -> None:
        self.elect(self.any_broker())

    def learn_any(self) -> None:
        self.learn(self.any_broker())

    def fetch_any(self) -> None:
        self.fetch(self.any_broker(), self.random.randrange(1, 4))

    def tell_any(self) -> None:
        self.tell(self.any_broker())

    def pass_time(self) -> None:
        self.timers.advance(self.random.choice([10, 1_000, 6_000, 31_000]))

    def is_current(self, index: int) -> bool:
        """Whether this broker leads, and its coordinator has been told."""
        return self.leader == index and self.told[index] == self.epoch and not self.orders[index]

    def coordinating(self) -> int:
        """The broker that a client assumes to be the coordinator, which is mostly right."""
        return self.leader if self.random.random() < 0.8 else self.any_broker()

    def records(self) -> list[Record]:
        """All that is committed, after `settle`."""
        return [
            record
            for batch in self.replicas[self.leader].batches
            for position, header in iter_batches(batch)
            if not header.is_control
            for record in iter_records(batch[position:], header)
        ]


def run_steps(
    steps: Generator[Deferred[ErrorCode] | None, None, T], done: Callable[[T], None]
) -> None:
    """Take all steps of a request, none later than what it waits for."""

    def proceed(_: object = None) -> None:
        try:
            while (waits_for := next(steps)) is None or waits_for.done:
                pass
        except StopIteration as end:
            done(end.value)
        else:
            waits_for.on_done(proceed)

    proceed()
