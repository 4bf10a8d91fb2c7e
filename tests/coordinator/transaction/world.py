"""A transaction coordinator on a virtual clock, with partitions that only record their markers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from kbroker.coordinator.runtime.records import encode_batch
from kbroker.coordinator.transaction.markers import (
    MarkerResults,
    MarkerWriter,
    WriteMarkers,
    all_at_once,
)
from kbroker.coordinator.transaction.producer import Producer
from kbroker.coordinator.transaction.records import Transaction, TransactionRecord
from kbroker.coordinator.transaction.service import TRANSACTION_TOPIC, TransactionCoordinator
from kbroker.coordinator.transaction.shard import TransactionShard
from kbroker.coordinator.transaction.state import TransactionState
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.transactions import EndTxnRequest, InitProducerIdRequest
from kbroker.settings.views.transaction_coordinator import TransactionCoordinatorConfig
from tests.coordinator.simulation import Context, FakeTopics, MemoryLog
from tests.sim.timers import SimTimers

OUT = TopicPartition("out", 0)


class Cluster(FakeTopics):
    """With the level of transaction.version."""

    features: ClassVar = {"transaction.version": 2}


class TransactionWorld:
    """Leads the only partition of `__transaction_state`.

    marker_error: what becomes of markers; those that are written are in `markers` as (partition,
    producer id, epoch, commit). producer_id_error: why there is no producer id.
    """

    def __init__(self) -> None:
        self.timers = SimTimers()
        self.log = MemoryLog()
        self.topics = Cluster()
        self.topics.add(TRANSACTION_TOPIC, 1)
        self.epoch = 0
        self.last_producer_id = 1000
        self.marker_error = ErrorCode.NONE
        self.producer_id_error = ErrorCode.NONE
        self.markers: list[tuple[TopicPartition, int, int, bool]] = []
        self.coordinator = self.build()
        self.lead()

    def build(self) -> TransactionCoordinator:
        return TransactionCoordinator(
            TransactionCoordinatorConfig(),
            log=self.log,
            markers=self.marker_writer(),
            timers=self.timers,
            cluster=lambda: self.topics,
            next_producer_id=self.next_producer_id,
        )

    def marker_writer(self) -> MarkerWriter:
        return self

    def by_leader(self, partitions: Sequence[TopicPartition]) -> Iterable[Sequence[TopicPartition]]:
        return all_at_once(partitions)

    def drop(self, is_dropped: Callable[[str], bool]) -> None:
        """No marker waits here."""

    def next_producer_id(self) -> Deferred[int]:
        if self.producer_id_error is not ErrorCode.NONE:
            return Deferred.failed(KafkaError(self.producer_id_error))
        self.last_producer_id += 1
        return Deferred.of(self.last_producer_id)

    def write_markers(
        self, request: WriteMarkers, *, coordinator_epoch: int
    ) -> Deferred[MarkerResults]:
        assert coordinator_epoch == self.epoch
        if self.marker_error is ErrorCode.NONE:
            self.markers += [
                (partition, request.producer_id, request.producer_epoch, request.commit)
                for partition in request.partitions
            ]
        return Deferred.of(dict.fromkeys(request.partitions, self.marker_error))

    def lead(self) -> None:
        """Become leader in a new epoch, with the state of the log."""
        self.resign()
        self.epoch += 1
        self.coordinator.on_leadership(0, self.epoch)
        self.timers.advance(0)

    def resign(self) -> None:
        self.coordinator.on_leadership(0, None)

    def put(self, transaction: Transaction) -> None:
        """Let the log end with this state of an id."""
        batch = encode_batch([TransactionRecord.of(transaction, 1)], 0, base_sequence=-1)
        self.log.append(TopicPartition(TRANSACTION_TOPIC, 0), batch)
        self.lead()

    def shard(self) -> TransactionShard:
        return self.coordinator.runtime.host(0).shard

    def state(self, transactional_id: str) -> TransactionState:
        return self.shard().transactions[transactional_id].state

    def replayed(self) -> TransactionShard:
        """A fresh shard, made from the log alone."""
        shard = TransactionShard(TransactionCoordinatorConfig(), self.timers.now_ms)
        for batch in self.log.batches.get(TopicPartition(TRANSACTION_TOPIC, 0), []):
            for position, header in iter_batches(batch):
                for record in iter_records(batch[position:], header):
                    decoded = shard.decode(record.key, record.value)
                    if decoded is not None:
                        shard.replay(decoded)
        return shard


class Client:
    """A transactional producer as far as its coordinator sees it. version: of transactions."""

    def __init__(
        self,
        world: TransactionWorld,
        *,
        transactional_id: str = "tx",
        version: int = 0,
        producer_id: int = -1,
        epoch: int = -1,
    ) -> None:
        self.world = world
        self.transactional_id = transactional_id
        self.version = version
        self.producer_id = producer_id
        self.epoch = epoch

    def ask_init(self, *, keep: bool = False, timeout_ms: int = 60_000) -> Any:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=self.producer_id if keep else -1,
            producer_epoch=self.epoch if keep else -1,
        )
        return self.world.coordinator.init_producer_id(request)

    def init(self, *, keep: bool = False, timeout_ms: int = 60_000) -> ErrorCode:
        outcome = self.ask_init(keep=keep, timeout_ms=timeout_ms)
        response = outcome.value if isinstance(outcome, Deferred) else outcome
        if response.error_code == 0:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        return ErrorCode(response.error_code)

    def ask_add(self, *partitions: TopicPartition) -> Deferred[ErrorCode]:
        return self.world.coordinator.add_partitions(
            self.transactional_id,
            Producer(self.producer_id, self.epoch),
            partitions,
            client_version=self.version,
        )

    def add(self, *partitions: TopicPartition) -> ErrorCode:
        outcome = self.ask_add(*partitions)
        return outcome.value if isinstance(outcome, Deferred) else outcome

    def verify(self, partition: TopicPartition) -> ErrorCode:
        producer = Producer(self.producer_id, self.epoch)
        verified = self.world.coordinator.verify(self.transactional_id, producer, [partition])
        return verified.value[partition]

    def ask_end(self, *, commit: bool) -> Any:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        return self.world.coordinator.end(Context(5 if self.version == 2 else 3), request)

    def end(self, *, commit: bool) -> ErrorCode:
        response = self.ask_end(commit=commit).value
        if response.error_code == 0 and self.version == 2:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        return ErrorCode(response.error_code)
