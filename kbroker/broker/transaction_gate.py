"""Whether a transactional producer's batches may enter partitions (KIP-890).

They may while the transaction is open there. Otherwise the coordinator is asked whether the
partition belongs to the transaction; under transaction.version 2 it is told to add the partition.
The markers that end transactions are in `coordinator/transaction/markers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from kbroker.coordinator.transaction.ends import Producer
from kbroker.coordinator.transaction.service import TransactionCoordinator
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from kbroker.replication.manager import ReplicaManager

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
    ) -> Deferred[Verdicts]:
        """The coordinator's error or NONE for each partition without an open transaction of the
        producer. adds: the producer relies on the broker to add partitions to its transaction.
        """
        replicas = self._replicas
        unsure = [
            partition
            for partition in partitions
            if not replicas.has_open_transaction(partition, *producer)
        ]
        if not unsure or not (adds or self._verifies()):
            return Deferred.of({})
        if not adds:
            return self._coordinator.verify(transactional_id, producer, unsure)
        added = self._coordinator.add_partitions(
            transactional_id, producer, unsure, client_version=2
        )
        if added.done:
            return Deferred.of(dict.fromkeys(unsure, added.value))

        def verify(error: ErrorCode) -> Deferred[Verdicts]:
            # The transaction may have ended since, by its timeout for example.
            if error is ErrorCode.NONE:
                return self._coordinator.verify(transactional_id, producer, unsure)
            return Deferred.of(dict.fromkeys(unsure, error))

        return added.then(verify)


def produce_error_of(error: ErrorCode, version: int) -> ErrorCode:
    """The Produce error for the coordinator's error, among those that the request version knows."""
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
    """The error message for an error of `produce_error_of` whose name alone would mislead."""
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
