"""Between transactions and partitions: markers go out, and what producers send is checked.

`MarkerRouter` writes the markers that end a transaction into partitions led here; those of
`__consumer_offsets` go through the group coordinator, whose state they change. `PartitionGate`
answers whether a producer's batches may enter a partition (KIP-890): yes while its transaction is
open there, else the coordinator is asked, and under transaction.version 2 told to add the
partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from kbroker.coordinator.group.service import GROUP_TOPIC, GroupCoordinator
from kbroker.coordinator.runtime.effects import MarkerResults, WriteMarkers
from kbroker.coordinator.runtime.shards import Transactional
from kbroker.coordinator.transaction.ends import Producer
from kbroker.coordinator.transaction.service import TransactionCoordinator
from kbroker.log.validator import AppendOrigin
from kbroker.model import TopicPartition
from kbroker.ports import Deferred, Timers
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.records import build_end_transaction_marker
from kbroker.replication.append import PartitionAppendResult
from kbroker.replication.manager import ReplicaManager

MARKER_TIMEOUT_MS: Final = 30_000
"""How long a marker waits for its replicas; it is written again after that."""

ABORTABLE_SINCE: Final = 11
"""From this Produce on a client knows TRANSACTION_ABORTABLE (TxnOffsetCommit: 4)."""
OFFSETS_ABORTABLE_SINCE: Final = 4
ADDS_ITSELF_SINCE: Final = 12
"""From this Produce on the broker adds the partition to the transaction (TxnOffsetCommit: 5)."""
OFFSETS_ADD_ITSELF_SINCE: Final = 5

_LOOK_AGAIN: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)

Verdicts = dict[TopicPartition, ErrorCode]
"""Per partition the coordinator's error, or NONE: the batches may be appended."""


class MarkerRouter:
    """The markers' way into partitions."""

    __slots__ = ("_groups", "_replicas", "_timers")

    def __init__(self, replicas: ReplicaManager, groups: GroupCoordinator, timers: Timers) -> None:
        self._replicas = replicas
        self._groups = groups
        self._timers = timers

    def write_markers(
        self, effect: WriteMarkers, *, coordinator_epoch: int
    ) -> MarkerResults | Deferred[MarkerResults]:
        """One marker for each partition of the effect; what became of each."""
        outcomes = {
            partition: self.write(
                partition,
                Transactional(effect.producer_id, effect.producer_epoch),
                commit=effect.commit,
                coordinator_epoch=coordinator_epoch,
                transaction_version=effect.transaction_version,
            )
            for partition in effect.partitions
        }
        return all_of(outcomes)

    def write(
        self,
        partition: TopicPartition,
        producer: Transactional,
        *,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> ErrorCode | Deferred[ErrorCode]:
        """One marker into one partition."""
        if partition.topic == GROUP_TOPIC:
            if not self._replicas.knows(GROUP_TOPIC, partition.partition):
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return self._groups.runtime.write_marker(
                partition.partition,
                producer,
                commit=commit,
                coordinator_epoch=coordinator_epoch,
                transaction_version=transaction_version,
            )
        batch = build_end_transaction_marker(
            commit=commit,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=self._timers.now_ms(),
        )
        outcome = self._replicas.append(
            partition,
            batch,
            acks=-1,
            timeout_ms=MARKER_TIMEOUT_MS,
            origin=AppendOrigin.COORDINATOR,
            transaction_version=transaction_version,
        )
        if isinstance(outcome, PartitionAppendResult):
            return outcome.error
        later: Deferred[ErrorCode] = Deferred()
        outcome.on_done(lambda result: later.resolve(result.error))
        return later


class PartitionGate:
    """Whether a transactional producer's batches may enter partitions. verifies: whether producers
    that add partitions themselves are checked (transaction.partition.verification.enable).
    """

    __slots__ = ("_coordinator", "_replicas", "_verifies")

    def __init__(
        self,
        replicas: ReplicaManager,
        coordinator: TransactionCoordinator,
        *,
        verifies: Callable[[], bool],
    ) -> None:
        self._replicas = replicas
        self._coordinator = coordinator
        self._verifies = verifies

    def ask(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[TopicPartition],
        *,
        adds: bool,
    ) -> Verdicts | Deferred[Verdicts]:
        """adds: the producer leaves it to the broker to add partitions to its transaction."""
        replicas = self._replicas
        unsure = [
            partition
            for partition in partitions
            if not replicas.has_open_transaction(partition, *producer)
        ]
        if not unsure:
            return {}
        if not adds:
            if not self._verifies():
                return {}
            return self._coordinator.verify(transactional_id, producer, unsure)
        error = self._coordinator.add_partitions(
            transactional_id, producer, unsure, client_version=2
        )
        if isinstance(error, ErrorCode):
            return dict.fromkeys(unsure, error)
        later: Deferred[Verdicts] = Deferred()

        def added(code: ErrorCode) -> None:
            # Meanwhile the transaction may have been ended, by its timeout for one.
            if code is ErrorCode.NONE:
                later.resolve(self._coordinator.verify(transactional_id, producer, unsure))
            else:
                later.resolve(dict.fromkeys(unsure, code))

        error.on_done(added)
        return later


def produce_error_of(error: ErrorCode, version: int) -> ErrorCode:
    """What a producer is told for the coordinator's error, in words that its version knows."""
    if error in _LOOK_AGAIN:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    match error:
        case ErrorCode.CONCURRENT_TRANSACTIONS if version < ADDS_ITSELF_SINCE:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        case ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        case ErrorCode.TRANSACTION_ABORTABLE if version < ABORTABLE_SINCE:
            return ErrorCode.INVALID_TXN_STATE
    return error


def produce_message_of(error: ErrorCode) -> str | None:
    """What is said beside an error of `produce_error_of` whose name alone would mislead."""
    match error:
        case ErrorCode.INVALID_TXN_STATE:
            return "the partition is not part of the producer's transaction"
        case ErrorCode.NOT_ENOUGH_REPLICAS:
            return (
                "whether the partition is part of the producer's transaction is not known yet: "
                "its coordinator is busy"
            )
    return None


def commit_error_of(error: ErrorCode, version: int) -> ErrorCode:
    """The same for TxnOffsetCommit."""
    if error in _LOOK_AGAIN:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    match error:
        case ErrorCode.CONCURRENT_TRANSACTIONS if version < OFFSETS_ADD_ITSELF_SINCE:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        case ErrorCode.TRANSACTION_ABORTABLE if version < OFFSETS_ABORTABLE_SINCE:
            return ErrorCode.INVALID_TXN_STATE
    return error


def all_of(
    outcomes: dict[TopicPartition, ErrorCode | Deferred[ErrorCode]],
) -> MarkerResults | Deferred[MarkerResults]:
    """The errors, once all are there."""
    results: dict[TopicPartition, ErrorCode] = {}
    waiting: dict[TopicPartition, Deferred[ErrorCode]] = {}
    for partition, outcome in outcomes.items():
        if isinstance(outcome, ErrorCode):
            results[partition] = outcome
        else:
            waiting[partition] = outcome
    if not waiting:
        return results
    later: Deferred[MarkerResults] = Deferred()
    total = len(outcomes)

    def arrived(partition: TopicPartition, error: ErrorCode) -> None:
        results[partition] = error
        if len(results) == total:
            later.resolve(results)

    for partition, deferred in waiting.items():
        deferred.on_done(lambda error, partition=partition: arrived(partition, error))  # type: ignore[misc]  # bound now
    return later
