"""The markers that end a transaction in its partitions (KIP-98, KIP-890): the request of its shard,
and the routing to the partitions.

`MarkerRouter` writes the markers of partitions that this broker leads. Those of other leaders go
through the port `MarkerLeaders` (`broker/remote/remote_markers`: WriteTxnMarkers), which a node
that is its whole cluster does not need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from kbroker.coordinator.runtime.coordinator_log import AppendOutcome, CoordinatorLog, Transactional
from kbroker.coordinator.runtime.result import OutgoingRequest, Results
from kbroker.model import TopicPartition
from kbroker.ports import Deferred, Timers, gather, gather_by_key
from kbroker.protocol.batches.control_records import build_end_transaction_marker
from kbroker.protocol.errors import ErrorCode, KafkaError

MARKER_TIMEOUT_MS: Final = 30_000
"""How long a marker waits for the commit; then it is written again."""

MarkerResults = Mapping[TopicPartition, ErrorCode]
"""The outcome of the marker in each partition; NONE: committed."""

ByLeader = Callable[[Sequence[TopicPartition]], Iterable[Sequence[TopicPartition]]]
"""Groups partitions by their leaders."""

NO_LEADER: Final = -1


def all_at_once(partitions: Sequence[TopicPartition]) -> Iterable[Sequence[TopicPartition]]:
    """The `ByLeader` of a broker that leads every partition."""
    return (partitions,)


class WriteMarkers(OutgoingRequest):
    """Write the marker that ends a transaction into each partition.

    then: returns the next decisions, given (results, now_ms). transactional_id: that of the
    transaction. transaction_version: 2 if producer_epoch is above the epoch of the transaction's
    data (KIP-890).
    """

    __slots__ = (
        "commit",
        "partitions",
        "producer_epoch",
        "producer_id",
        "then",
        "transaction_version",
        "transactional_id",
    )

    def __init__(
        self,
        partitions: Sequence[TopicPartition],
        then: Callable[[MarkerResults, int], Results],
        *,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        transaction_version: int,
    ) -> None:
        self.partitions = partitions
        self.then = then
        self.transactional_id = transactional_id
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
    """The port to the partitions of transactions, on any broker."""

    def by_leader(self, partitions: Sequence[TopicPartition]) -> Iterable[Sequence[TopicPartition]]:
        """Group partitions by their leaders: one request per group, since its outcomes arrive
        together.
        """
        ...

    def write_markers(
        self, request: WriteMarkers, *, coordinator_epoch: int
    ) -> Deferred[MarkerResults]:
        """Write the marker into each of the request's partitions; returns the outcome of each, once
        all are known. UNKNOWN_TOPIC_OR_PARTITION: the partition was deleted.
        """
        ...

    def drop(self, is_dropped: Callable[[str], bool]) -> None:
        """Send no more markers of these transactional ids, which have another coordinator; markers
        in flight are not cancelled.
        """
        ...


class MarkerLeaders(Protocol):
    """The port to the partitions that other brokers lead. node_id: that of this broker."""

    @property
    def node_id(self) -> int: ...

    def leader_of(self, partition: TopicPartition) -> int | None:
        """The id of the broker that leads a partition, NO_LEADER if no broker does, None if the
        partition was deleted. From the newest metadata: a coordinator that was elected with them
        must not use older ones.
        """
        ...

    def write_markers(
        self,
        leader_id: int,
        request: WriteMarkers,
        partitions: Sequence[TopicPartition],
        *,
        coordinator_epoch: int,
    ) -> Deferred[MarkerResults]:
        """Send the request's marker for some of its partitions to a leader. Never returns
        UNKNOWN_TOPIC_OR_PARTITION: the leader's metadata may be behind.
        """
        ...

    def drop(self, is_dropped: Callable[[str], bool]) -> None:
        """See `MarkerWriter`."""
        ...


class MarkedCoordinator(Protocol):
    """A coordinator whose topic has transactional records; `CoordinatorRuntime` is one."""

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
    """A `MarkerWriter`.

    coordinators: by their topics; a marker in such a topic is written by the coordinator, whose
    state it changes. knows: whether the cluster has a partition of such a topic. others: None if
    this broker leads every partition.
    """

    __slots__ = ("_coordinators", "_knows", "_log", "_others", "_timers")

    def __init__(
        self,
        log: CoordinatorLog,
        coordinators: Mapping[str, MarkedCoordinator],
        timers: Timers,
        *,
        knows: Callable[[str, int], bool],
        others: MarkerLeaders | None = None,
    ) -> None:
        self._log = log
        self._coordinators = coordinators
        self._timers = timers
        self._knows = knows
        self._others = others

    def by_leader(self, partitions: Sequence[TopicPartition]) -> Iterable[Sequence[TopicPartition]]:
        """See `MarkerWriter`."""
        others = self._others
        if others is None:
            return all_at_once(partitions)
        return _by_leader(partitions, others).values()

    def write_markers(
        self, request: WriteMarkers, *, coordinator_epoch: int
    ) -> Deferred[MarkerResults]:
        """See `MarkerWriter`."""
        others = self._others
        if others is None:
            return self._write_here(request, request.partitions, coordinator_epoch)
        written: list[Deferred[MarkerResults]] = []
        for leader_id, partitions in _by_leader(request.partitions, others).items():
            if leader_id is None:
                deleted = dict.fromkeys(partitions, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                written.append(Deferred.of(deleted))
            elif leader_id == NO_LEADER:
                waiting = dict.fromkeys(partitions, ErrorCode.LEADER_NOT_AVAILABLE)
                written.append(Deferred.of(waiting))
            elif leader_id == others.node_id:
                written.append(self._write_here(request, partitions, coordinator_epoch))
            else:
                sent = others.write_markers(
                    leader_id, request, partitions, coordinator_epoch=coordinator_epoch
                )
                written.append(sent)
        return written[0] if len(written) == 1 else gather(written).then(_merged)

    def drop(self, is_dropped: Callable[[str], bool]) -> None:
        """See `MarkerWriter`."""
        if self._others is not None:
            self._others.drop(is_dropped)

    def _write_here(
        self, request: WriteMarkers, partitions: Sequence[TopicPartition], coordinator_epoch: int
    ) -> Deferred[MarkerResults]:
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
                for partition in partitions
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


def _by_leader(
    partitions: Sequence[TopicPartition], others: MarkerLeaders
) -> dict[int | None, list[TopicPartition]]:
    found: dict[int | None, list[TopicPartition]] = {}
    for partition in partitions:
        found.setdefault(others.leader_of(partition), []).append(partition)
    return found


def _merged(results: list[MarkerResults]) -> MarkerResults:
    return {partition: error for some in results for partition, error in some.items()}


def _error_of(outcome: AppendOutcome) -> ErrorCode:
    return outcome.error


def _code_of(error: KafkaError) -> ErrorCode:
    return error.code
