"""Whether a transactional producer's batches may enter partitions (KIP-890).

They may while the transaction is open there. Otherwise the coordinator is asked whether the
partition belongs to the transaction; under transaction.version 2 it is told to add the partition. A
coordinator on another broker is asked through `remote_verification`. Its answer may arrive after
the transaction's marker, and a batch may be appended long after the answer: both are noticed by
`OpenTransactions.verification_guard`. The markers that end transactions are in
`coordinator/transaction/markers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from kbroker.coordinator.transaction.producer import Producer
from kbroker.model import TopicPartition
from kbroker.ports import Deferred, Timers, follow
from kbroker.protocol.errors import ErrorCode

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

Guard = tuple[int, int] | None
"""See `OpenTransactions`."""


class OpenTransactions(Protocol):
    """The port to the transactions in the partitions led here; the replica manager is one."""

    def has_open_transaction(
        self, topic_partition: TopicPartition, producer_id: int, producer_epoch: int
    ) -> bool:
        """Whether this producer, in this epoch, has a transaction open in a partition led here."""
        ...

    def verification_guard(self, topic_partition: TopicPartition, producer_id: int) -> Guard:
        """(leader epoch, offset of the producer's last marker) of a partition led here; None: it is
        not led here.
        """
        ...


class OwnCoordinator(Protocol):
    """The transaction coordinator of this broker."""

    def verify(
        self, transactional_id: str, producer: Producer, partitions: Sequence[TopicPartition]
    ) -> Deferred[Verdicts]:
        """See `TransactionCoordinator`."""
        ...

    def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        *,
        client_version: int,
    ) -> Deferred[ErrorCode]:
        """See `TransactionCoordinator`."""
        ...


class OtherCoordinators(Protocol):
    """The port to the transaction coordinators of other brokers."""

    def ask(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> Deferred[Verdicts] | None:
        """Ask the coordinator of a transactional id; None if that is this broker. Never fails."""
        ...


class AddRetries(NamedTuple):
    """How a partition is added again while the producer's last transaction still ends: every
    backoff_ms, for timeout_ms (add.partitions.to.txn.retry.backoff.ms and .max.ms).
    """

    backoff_ms: int
    timeout_ms: int


class PartitionGate:
    """Whether a transactional producer's batches may enter partitions. verifies: whether producers
    that add partitions themselves are checked (transaction.partition.verification.enable). remote:
    None if this broker coordinates every transaction.
    """

    __slots__ = (
        "_asking",
        "_coordinator",
        "_remote",
        "_replicas",
        "_retries",
        "_timers",
        "_verifies",
    )

    def __init__(
        self,
        replicas: OpenTransactions,
        coordinator: OwnCoordinator,
        timers: Timers,
        *,
        verifies: Callable[[], bool],
        retries: AddRetries,
        remote: OtherCoordinators | None = None,
    ) -> None:
        self._replicas = replicas
        self._coordinator = coordinator
        self._timers = timers
        self._verifies = verifies
        self._retries = retries
        self._remote = remote
        self._asking: dict[Producer, Deferred[Verdicts]] = {}
        """The last question of each producer that waits for an answer."""

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

        They hold in the turn of the loop in which they are given; later the transaction may have
        ended. A producer's questions are answered in order, and each is asked after the batches of
        the one before it are appended: a client sends several requests at a time, whose sequences
        follow each other.
        """
        if self._asking:
            earlier = self._asking.get(producer)
            if earlier is not None:
                later: Deferred[Verdicts] = Deferred()
                ask = partial(
                    self._ask_now, transactional_id, producer, list(partitions), adds=adds
                )
                earlier.on_done(lambda _: follow(later, ask()), lambda _: follow(later, ask()))
                return self._in_order(producer, later)
        verdicts = self._ask_now(transactional_id, producer, partitions, adds=adds)
        return verdicts if verdicts.done else self._in_order(producer, verdicts)

    def _in_order(self, producer: Producer, verdicts: Deferred[Verdicts]) -> Deferred[Verdicts]:
        """Let the producer's later questions wait for these verdicts."""

        def forget(_: object) -> None:
            if self._asking.get(producer) is verdicts:
                del self._asking[producer]

        self._asking[producer] = verdicts
        verdicts.on_done(forget, forget)
        return verdicts

    def _ask_now(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[TopicPartition],
        *,
        adds: bool,
    ) -> Deferred[Verdicts]:
        replicas = self._replicas
        unsure = [
            partition
            for partition in partitions
            if not replicas.has_open_transaction(partition, *producer)
        ]
        if not unsure or not (adds or self._verifies()):
            return Deferred.of({})
        verdicts = self._ask_coordinator(transactional_id, producer, unsure, adds=adds)
        if not adds or (verdicts.done and not _is_concurrent(verdicts.value)):
            return verdicts
        ask = partial(self._ask_coordinator, transactional_id, producer, unsure, adds=True)
        adding = _Adding(ask, self._timers, self._retries)
        adding.take(verdicts)
        return adding

    def _ask_coordinator(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> Deferred[Verdicts]:
        verdicts = None
        if self._remote is not None and transactional_id:
            verdicts = self._remote.ask(transactional_id, producer, partitions, adds=adds)
        if verdicts is None:
            verdicts = self._ask_here(transactional_id, producer, partitions, adds=adds)
        if verdicts.done:
            return verdicts
        guards = {partition: self._guard(partition, producer) for partition in partitions}
        return verdicts.then(partial(self._with_guards, producer, guards))

    def _ask_here(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> Deferred[Verdicts]:
        coordinator = self._coordinator
        if not adds:
            return coordinator.verify(transactional_id, producer, partitions)
        added = coordinator.add_partitions(transactional_id, producer, partitions, client_version=2)
        return added.then(lambda error: dict.fromkeys(partitions, error))

    def recheck(
        self, producer: Producer, partition: TopicPartition, *, adds: bool
    ) -> Callable[[], ErrorCode] | None:
        """The check of a batch that may enter the partition now and is appended later: whether its
        transaction has not ended in the partition by then. None: producers are not verified.
        """
        if not (adds or self._verifies()):
            return None
        guard = self._guard(partition, producer)
        return partial(self._error_by_guard, partition, producer, guard)

    def _guard(self, partition: TopicPartition, producer: Producer) -> Guard:
        return self._replicas.verification_guard(partition, producer.producer_id)

    def _error_by_guard(
        self, partition: TopicPartition, producer: Producer, guard: Guard
    ) -> ErrorCode:
        """INVALID_TXN_STATE, as in Kafka, if the producer's transaction has ended in the partition
        since the guard was taken. Without this check the batch would begin a transaction that no
        marker ends. NETWORK_EXCEPTION if the partition has a new leader epoch, in which the
        coordinator is asked again.
        """
        now = self._guard(partition, producer)
        if now is None or now == guard:  # an append to a partition that is led elsewhere is refused
            return ErrorCode.NONE
        if self._replicas.has_open_transaction(partition, *producer):
            return ErrorCode.NONE
        if guard is None or guard[0] != now[0]:
            return ErrorCode.NETWORK_EXCEPTION
        return ErrorCode.INVALID_TXN_STATE

    def _with_guards(
        self, producer: Producer, guards: dict[TopicPartition, Guard], verdicts: Verdicts
    ) -> Verdicts:
        """The coordinator's verdicts, for batches that are appended in this turn of the loop."""
        return {
            partition: error or self._error_by_guard(partition, producer, guards[partition])
            for partition, error in verdicts.items()
        }


def _is_concurrent(verdicts: Verdicts) -> bool:
    return ErrorCode.CONCURRENT_TRANSACTIONS in verdicts.values()


class _Adding(Deferred[Verdicts]):
    """The verdicts on partitions that are to be added, asked for again while they are
    CONCURRENT_TRANSACTIONS, for a short time: the markers of the producer's last transaction are
    being written, and to send the batches again would take the producer longer.
    """

    __slots__ = ("_ask", "_backoff_ms", "_timers", "_until_ms")

    def __init__(
        self, ask: Callable[[], Deferred[Verdicts]], timers: Timers, retries: AddRetries
    ) -> None:
        super().__init__()
        self._ask = ask
        self._timers = timers
        self._backoff_ms = retries.backoff_ms
        self._until_ms = timers.monotonic_ms() + retries.timeout_ms

    def take(self, verdicts: Deferred[Verdicts]) -> None:
        """Take these verdicts, or ask again after a pause."""
        verdicts.on_done(self._on_verdicts, self.fail)

    def _on_verdicts(self, verdicts: Verdicts) -> None:
        if not _is_concurrent(verdicts) or self._timers.monotonic_ms() >= self._until_ms:
            self.resolve(verdicts)
        else:
            self._timers.call_later(self._backoff_ms, self._ask_again)

    def _ask_again(self) -> None:
        self.take(self._ask())


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
