"""Coordinators on three brokers: after any changes of leaders, the responses to clients agree with
the final log of all brokers. A coordinator that relies on records above the high watermark is
detected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

import pytest

from kbroker.coordinator.group.records import decode_record
from kbroker.coordinator.group.service import GROUP_TOPIC, GroupCoordinator
from kbroker.coordinator.runtime.host import HostStatus
from kbroker.coordinator.runtime.uncommitted import Uncommitted
from kbroker.coordinator.runtime.writer import ShardWriter
from kbroker.coordinator.transaction.markers import MarkerResults, WriteMarkers
from kbroker.coordinator.transaction.producer import Producer
from kbroker.coordinator.transaction.records import TransactionRecord, decode_transaction_record
from kbroker.coordinator.transaction.service import TRANSACTION_TOPIC, TransactionCoordinator
from kbroker.coordinator.transaction.state import TransactionState
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.groups import ListGroupsResponse
from kbroker.protocol.messages.coordinators.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kbroker.protocol.messages.coordinators.transactions import (
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kbroker.protocol.messages.stored.group_records import OffsetCommitKey, OffsetCommitValue
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from kbroker.settings.views.transaction_coordinator import TransactionCoordinatorConfig
from tests.coordinator.replicated import BrokerLog, LieError, ReplicatedCluster, Step, run_steps
from tests.coordinator.share_state.replicated import ShareStates
from tests.coordinator.simulation import Context, FakeTopics

E = ErrorCode
STEPS = 500
SEEDS = range(25)
SEEDS_PER_MUTANT = 200
RETRIED = (
    E.NOT_COORDINATOR,
    E.COORDINATOR_NOT_AVAILABLE,
    E.COORDINATOR_LOAD_IN_PROGRESS,
)


class Groups(ReplicatedCluster):
    """Offsets are committed, each another one, and read. told_committed, seen: what clients were
    told.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.topics = FakeTopics()
        self.topics.add(GROUP_TOPIC, 1)
        self.topics.add("events", 1)
        self.count = 0
        self.told_committed: set[tuple[str, int]] = set()
        self.seen: set[tuple[str, int]] = set()
        self.listed: set[str] = set()
        self.lies: list[str] = []
        self.errors: list[ErrorCode] = []
        self.coordinate(self.make)

    def make(self, log: BrokerLog) -> GroupCoordinator:
        return GroupCoordinator(
            GroupCoordinatorConfig(),
            log=log,
            timers=self.timers,
            random=self.random,
            topics=lambda: self.topics,
        )

    def steps(self) -> Iterable[tuple[Step, int]]:
        return [(self.commit, 30), (self.read, 30), (self.list_groups, 6)]

    def any_group(self) -> str:
        return self.random.choice(["a", "b", f"new{self.count}"])

    def newest(self, group_id: str) -> int:
        """The highest offset that a client was told is committed."""
        offsets = (offset for name, offset in self.told_committed if name == group_id)
        return max(offsets, default=-1)

    def commit(self, index: int | None = None) -> None:
        self.count += 1
        group_id, offset = self.any_group(), self.count
        partition = OffsetCommitRequest.OffsetCommitRequestPartition(committed_offset=offset)
        topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="events", partitions=[partition])
        request = OffsetCommitRequest(
            group_id=group_id, generation_id_or_member_epoch=-1, topics=[topic]
        )

        def answered(response: OffsetCommitResponse) -> None:
            error = E(response.topics[0].partitions[0].error_code)
            self.errors.append(error)
            if error is E.NONE:
                self.told_committed.add((group_id, offset))

        asked = self.coordinating() if index is None else index
        coordinator: GroupCoordinator = self.coordinators[asked]
        run_steps(coordinator.offsets.commit(Context(9), request), answered)

    def read(self) -> None:
        index, group_id = self.coordinating(), self.any_group()
        at_least = self.newest(group_id) if self.is_current(index) else -1
        wanted = OffsetFetchRequest.OffsetFetchRequestTopics(name="events", partition_indexes=[0])
        group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=[wanted])

        def answered(response: OffsetFetchResponse) -> None:
            found = response.groups[0]
            if found.error_code:
                self.errors.append(E(found.error_code))
                return
            offset = found.topics[0].partitions[0].committed_offset
            if offset < at_least:
                self.lies.append(f"{group_id}: {offset} after {at_least}")
            if offset >= 0:
                self.seen.add((group_id, offset))

        coordinator: GroupCoordinator = self.coordinators[index]
        request = OffsetFetchRequest(groups=[group])
        run_steps(coordinator.offsets.fetch(request, 8, lambda count: True), answered)

    def list_groups(self) -> None:
        def answered(response: ListGroupsResponse) -> None:
            self.listed.update(group.group_id for group in response.groups)

        coordinator: GroupCoordinator = self.coordinators[self.coordinating()]
        run_steps(coordinator.list_groups(), answered)

    def check(self) -> None:
        if self.lies:
            raise LieError(self.lies[0])
        committed: set[tuple[str, int]] = set()
        for record in self.records():
            decoded = decode_record(record.key, record.value)
            if decoded is not None and isinstance(decoded.value, OffsetCommitValue):
                assert isinstance(decoded.key, OffsetCommitKey)
                committed.add((decoded.key.group, decoded.value.offset))
        if lost := self.told_committed - committed:
            raise LieError(f"told of as committed, and lost: {sorted(lost)}")
        if lost := self.seen - committed:
            raise LieError(f"read, and lost: {sorted(lost)}")
        if gone := self.listed - {group_id for group_id, _ in committed}:
            raise LieError(f"listed, and lost: {sorted(gone)}")
        assert set(self.errors) <= {E.NONE, *RETRIED}


class Cluster(FakeTopics):
    """With the level of transaction.version."""

    features: ClassVar = {"transaction.version": 2}


class Transactions(ReplicatedCluster):
    """Transactions of a few ids. seen: (id, producer, partition) of what was part of a transaction;
    markers: (producer id, epoch, commit) that were written.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.topics = Cluster()
        self.topics.add(TRANSACTION_TOPIC, 1)
        self.last_producer_id = 1000
        self.clients: dict[str, Producer] = {}
        self.seen: set[tuple[str, Producer, TopicPartition]] = set()
        self.markers: set[tuple[int, int, bool]] = set()
        self.told_ended: set[tuple[int, int, bool]] = set()
        self.listed: set[tuple[str, int]] = set()
        self.coordinate(self.make)

    def make(self, log: BrokerLog) -> TransactionCoordinator:
        return TransactionCoordinator(
            TransactionCoordinatorConfig(),
            log=log,
            markers=self,
            timers=self.timers,
            cluster=lambda: self.topics,
            next_producer_id=self.next_producer_id,
        )

    def next_producer_id(self) -> Deferred[int]:
        self.last_producer_id += 1
        return Deferred.of(self.last_producer_id)

    def write_markers(
        self, request: WriteMarkers, *, coordinator_epoch: int
    ) -> Deferred[MarkerResults]:
        self.markers.add((request.producer_id, request.producer_epoch, request.commit))
        return Deferred.of(dict.fromkeys(request.partitions, E.NONE))

    def by_leader(self, partitions: Sequence[TopicPartition]) -> Iterable[Sequence[TopicPartition]]:
        return (partitions,)

    def drop(self, is_dropped: Callable[[str], bool]) -> None:
        """No marker waits here."""

    def steps(self) -> Iterable[tuple[Step, int]]:
        return [
            (self.init, 8),
            (self.add, 25),
            (self.verify, 20),
            (self.end, 15),
            (self.list_transactions, 6),
        ]

    def coordinator(self) -> TransactionCoordinator:
        found: TransactionCoordinator = self.coordinators[self.coordinating()]
        return found

    def any_partition(self) -> TopicPartition:
        return TopicPartition("out", self.random.randrange(3))

    def init(self) -> None:
        name = self.random.choice("xyz")
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)

        def answered(response: InitProducerIdResponse) -> None:
            if not response.error_code:
                self.clients[name] = Producer(response.producer_id, response.producer_epoch)

        self.coordinator().init_producer_id(request).on_done(answered)

    def add(self) -> None:
        name, partition = self.random.choice("xyz"), self.any_partition()
        producer = self.clients.get(name)
        if producer is None:
            return

        def answered(error: ErrorCode) -> None:
            if error is E.NONE:
                self.seen.add((name, producer, partition))

        self.coordinator().add_partitions(name, producer, [partition], client_version=0).on_done(
            answered
        )

    def verify(self) -> None:
        name, partition = self.random.choice("xyz"), self.any_partition()
        producer = self.clients.get(name)
        if producer is None:
            return

        def answered(found: dict[TopicPartition, ErrorCode]) -> None:
            if found[partition] is E.NONE:
                self.seen.add((name, producer, partition))

        self.coordinator().verify(name, producer, [partition]).on_done(answered)

    def end(self) -> None:
        name, commit = self.random.choice("xyz"), self.random.random() < 0.6
        producer = self.clients.get(name)
        if producer is None:
            return
        request = EndTxnRequest(
            transactional_id=name,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=commit,
        )

        def answered(response: EndTxnResponse) -> None:
            if not response.error_code:
                self.told_ended.add((producer.producer_id, producer.producer_epoch, commit))

        self.coordinator().end(Context(3), request).on_done(answered)

    def list_transactions(self) -> None:
        def answered(response: ListTransactionsResponse) -> None:
            found = response.transaction_states
            self.listed.update((one.transactional_id, one.producer_id) for one in found)

        run_steps(self.coordinator().list_transactions(ListTransactionsRequest()), answered)

    def check(self) -> None:
        parts: set[tuple[str, Producer, TopicPartition]] = set()
        ends: set[tuple[int, int, bool]] = set()
        known: set[tuple[str, int]] = set()
        for record in self.records():
            decoded = decode_transaction_record(record.key, record.value)
            if not isinstance(decoded, TransactionRecord):
                continue
            now = decoded.transaction
            known.add((now.transactional_id, now.producer_id))
            producer = Producer(now.producer_id, now.producer_epoch)
            parts |= {(now.transactional_id, producer, part) for part in now.partitions}
            if now.state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT):
                commit = now.state is TransactionState.PREPARE_COMMIT
                ends.add((now.producer_id, now.producer_epoch, commit))
        for told, in_log in (
            (self.seen, parts),
            (self.markers, ends),
            (self.told_ended, ends),
            (self.listed, known),
        ):
            if lost := set(told) - set(in_log):
                raise LieError(f"told, and lost: {sorted(map(repr, lost))}")


KINDS = {"groups": Groups, "transactions": Transactions, "share states": ShareStates}


def run(kind: str, seed: int) -> None:
    """One history. Raises LieError."""
    world: Groups | Transactions | ShareStates = KINDS[kind](seed)
    actions = [
        *world.steps(),
        (world.fetch_any, 150),
        (world.learn_any, 24),
        (world.tell_any, 30),
        (world.elect_any, 4),
        (world.pass_time, 6),
    ]
    steps, weights = zip(*actions, strict=True)
    for step in world.random.choices(steps, weights, k=STEPS):
        step()
        world.timers.advance(0)
    world.settle()
    world.timers.advance(40_000)
    world.settle()
    world.check()
    hosts = list(world.coordinators[world.leader].runtime.hosts())
    assert [host.status for host in hosts] == [HostStatus.ACTIVE]
    for index, coordinator in enumerate(world.coordinators):
        assert index == world.leader or not list(coordinator.runtime.hosts())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_clients_are_told_is_in_the_log(kind: str, seed: int) -> None:
    run(kind, seed)


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.parametrize("start", range(1_000, 6_000, 500))
@pytest.mark.parametrize("kind", KINDS)
def test_what_clients_are_told_is_in_the_log_many_times(kind: str, start: int) -> None:
    for seed in range(start, start + 500):
        try:
            run(kind, seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


def trust_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records above the high watermark are considered committed after a load."""
    monkeypatch.setattr(ShardWriter, "await_tail", lambda self, host: None)


def forget_when_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write whose response timed out is considered committed."""
    on_timer = Uncommitted._on_timer

    def forgetful(self: Uncommitted) -> None:
        on_timer(self)
        self.writes.clear()

    monkeypatch.setattr(Uncommitted, "_on_timer", forgetful)


def wait_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written records are considered committed."""
    monkeypatch.setattr(Uncommitted, "wait", lambda self: self._committed)


def forget_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed write is considered not to have happened, until the shard is loaded again."""
    settle = Uncommitted.settle

    def forgetful(self: Uncommitted, write: object, error: ErrorCode) -> None:
        settle(self, write, error)  # type: ignore[arg-type]  # passed on as it is
        self.writes = type(self.writes)(one for one in self.writes if one.error is None)

    monkeypatch.setattr(Uncommitted, "settle", forgetful)


@pytest.mark.parametrize("mutate", [trust_tail, forget_when_late, wait_for_nothing])
@pytest.mark.parametrize("kind", KINDS)
def test_a_coordinator_that_trusts_the_tail_is_found_out(
    kind: str, mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises(LieError):
        for seed in range(SEEDS_PER_MUTANT):
            run(kind, seed)


def test_a_coordinator_that_forgets_failed_writes_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the failure and the reload, its state still has records that may be lost."""
    assert state_after_a_failed_write() is E.NOT_COORDINATOR
    forget_failures(monkeypatch)
    assert state_after_a_failed_write() is E.NONE


def state_after_a_failed_write() -> ErrorCode:
    """Whether the state may be shown in the turn of the loop in which a write failed."""
    world = Groups(1)
    world.commit(world.leader)
    world.elect(world.leader)  # in its new epoch the leader no longer answers for the former one
    runtime = world.coordinators[world.leader].runtime
    found: Deferred[ErrorCode] = runtime.when_committed(runtime.host(0))
    return found.value


def test_errors_of_transactions_are_retriable() -> None:
    """Leadership that ends with a write in flight fails the request, and the next one succeeds."""
    world = Transactions(1)
    failed: list[KafkaError] = []
    told: list[ErrorCode] = []
    world.coordinators[0].init_producer_id(
        InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
    ).on_done(lambda response: told.append(E(response.error_code)), failed.append)
    assert told == []
    world.elect(1)
    world.learn(0)
    world.tell(0)
    assert (told, failed) == ([E.NOT_COORDINATOR], [])
    world.settle()
    world.coordinators[1].init_producer_id(
        InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
    ).on_done(lambda response: told.append(E(response.error_code)), failed.append)
    world.settle()
    assert (told, failed) == ([E.NOT_COORDINATOR, E.NONE], [])
