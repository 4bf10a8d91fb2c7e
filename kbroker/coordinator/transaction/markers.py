"""The markers that end a transaction in its partitions (KIP-98, KIP-890): the request of its shard,
and the way to the partitions.

Today all partitions are led by this broker. Markers for other brokers will be WriteTxnMarkers
requests of `MarkerRouter`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from kbroker.coordinator.runtime.coordinator_log import AppendOutcome, CoordinatorLog, Transactional
from kbroker.coordinator.runtime.result import OutgoingRequest, Results
from kbroker.model import TopicPartition
from kbroker.ports import Deferred, Timers, gather_by_key
from kbroker.protocol.control_records import build_end_transaction_marker
from kbroker.protocol.errors import ErrorCode, KafkaError

MARKER_TIMEOUT_MS: Final = 30_000
"""How long a marker waits for its replicas; after that it is written again."""

MarkerResults = Mapping[TopicPartition, ErrorCode]
"""The outcome of the marker in each partition; NONE: committed."""


class WriteMarkers(OutgoingRequest):
    """Write the marker that ends a transaction into each partition.

    then: what follows, given (results, now_ms). transaction_version: 2 if producer_epoch is above
    the epoch of the transaction's data (KIP-890).
    """

    __slots__ = (
        "commit",
        "partitions",
        "producer_epoch",
        "producer_id",
        "then",
        "transaction_version",
    )

    def __init__(
        self,
        partitions: Sequence[TopicPartition],
        then: Callable[[MarkerResults, int], Results],
        *,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        transaction_version: int,
    ) -> None:
        self.partitions = partitions
        self.then = then
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.commit = commit
        self.transaction_version = transaction_version

    def __repr__(self) -> str:
        kind = "commit" if self.commit else "abort"
        return (
            f"WriteMarkers({kind}, {self.producer_id}, {self.producer_epoch}, {self.partitions!r})"
        )


class MarkerWriter(Protocol):
    """The port to the partitions of transactions, wherever they are."""

    def write_markers(
        self, request: WriteMarkers, *, coordinator_epoch: int
    ) -> Deferred[MarkerResults]:
        """Write the marker into each of the request's partitions; the outcome of each."""
        ...


class MarkedCoordinator(Protocol):
    """A coordinator whose topic holds records of transactions; `CoordinatorRuntime` is one."""

    def write_marker(
        self,
        partition: int,
        transaction: Transactional,
        *,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> Deferred[ErrorCode]:
        """Write a marker into a partition of the topic and apply it to the state."""
        ...


class MarkerRouter:
    """A `MarkerWriter` for the partitions that this broker leads.

    coordinators: by their topics; a marker there goes through the coordinator, whose state it
    changes. knows: whether this broker hosts a partition of such a topic.
    """

    __slots__ = ("_coordinators", "_knows", "_log", "_timers")

    def __init__(
        self,
        log: CoordinatorLog,
        coordinators: Mapping[str, MarkedCoordinator],
        timers: Timers,
        *,
        knows: Callable[[str, int], bool],
    ) -> None:
        self._log = log
        self._coordinators = coordinators
        self._timers = timers
        self._knows = knows

    def write_markers(
        self, request: WriteMarkers, *, coordinator_epoch: int
    ) -> Deferred[MarkerResults]:
        """See `MarkerWriter`."""
        transaction = Transactional(request.producer_id, request.producer_epoch)
        return gather_by_key(
            {
                partition: self.write(
                    partition,
                    transaction,
                    commit=request.commit,
                    coordinator_epoch=coordinator_epoch,
                    transaction_version=request.transaction_version,
                )
                for partition in request.partitions
            }
        )

    def write(
        self,
        partition: TopicPartition,
        transaction: Transactional,
        *,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> Deferred[ErrorCode]:
        """Write one marker into one partition; NONE once it is committed."""
        coordinator = self._coordinators.get(partition.topic)
        if coordinator is not None:
            if not self._knows(partition.topic, partition.partition):
                return Deferred.of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return coordinator.write_marker(
                partition.partition,
                transaction,
                commit=commit,
                coordinator_epoch=coordinator_epoch,
                transaction_version=transaction_version,
            )
        batch = build_end_transaction_marker(
            commit=commit,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=self._timers.now_ms(),
        )
        outcome = self._log.append(partition, batch, transaction_version=transaction_version)
        return outcome.then(_error_of).recover(_code_of)


def _error_of(outcome: AppendOutcome) -> ErrorCode:
    return outcome.error


def _code_of(error: KafkaError) -> ErrorCode:
    return error.code
