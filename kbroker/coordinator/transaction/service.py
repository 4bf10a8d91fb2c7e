"""The transaction coordinator: passes requests of transactional producers to shards.

The hash of its transactional id determines the shard of a request, which makes the decision
(`shard`); the runtime writes the records and sends the response. Every method takes the decoded
request and returns the response, or a Deferred of it. Some requests wait for a new producer id; the
shard is looked up after that.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Mapping
from functools import partial
from typing import Final, Protocol, TypeVar

from kbroker.coordinator.runtime.call_context import CallContext
from kbroker.coordinator.runtime.coordinator_log import CoordinatorLog
from kbroker.coordinator.runtime.host import Host, HostStatus
from kbroker.coordinator.runtime.key_hash import partition_of
from kbroker.coordinator.runtime.key_partitions import KeyPartitions
from kbroker.coordinator.runtime.result import CoordinatorResult, OutgoingRequest, Results
from kbroker.coordinator.runtime.runtime import CoordinatorRuntime
from kbroker.coordinator.topics import ClusterTopic
from kbroker.coordinator.transaction.markers import MarkerWriter, WriteMarkers
from kbroker.coordinator.transaction.producer import Producer
from kbroker.coordinator.transaction.producer_ids import TakeProducerId
from kbroker.coordinator.transaction.records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Transaction,
    by_topic,
)
from kbroker.coordinator.transaction.shard import (
    TransactionSettings,
    TransactionShard,
    init_error,
)
from kbroker.coordinator.transaction.state import STATE_BY_NAME, TransactionState
from kbroker.metadata.patterns import CHARACTERS_PER_TURN, matcher
from kbroker.model import InvariantError, TopicPartition
from kbroker.ports import Deferred, Timers
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.transactions import (
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

R = TypeVar("R")

TRANSACTION_TOPIC: Final = "__transaction_state"
WRITE_TIMEOUT_MS: Final = 30_000
"""How long the response to a change of a transactional id waits for the commit."""
FILTERS_PER_STEP: Final = 256
"""How many state filters ListTransactions processes between two pauses."""
LISTED_COST: Final = 32
"""The cost of a transaction besides the characters of its id, of CHARACTERS_PER_TURN."""

END_V2_VERSION: Final = 5
"""From this EndTxn version on the epoch rises with every transaction (transaction.version 2,
KIP-890).
"""

_Described = DescribeTransactionsResponse.TransactionState
_Listed = ListTransactionsResponse.TransactionState


NextProducerId = Callable[[], Deferred[int]]
"""Allocates a new producer id."""


class TransactionCoordinatorSettings(TransactionSettings, Protocol):
    """The part of the broker's configuration that the transaction coordinator reads."""

    @property
    def transaction_max_timeout_ms(self) -> int: ...
    @property
    def transaction_state_log_num_partitions(self) -> int: ...


class Cluster(Protocol):
    """Topics and feature levels; metadata's MetadataImage is one."""

    @property
    def topics(self) -> Mapping[str, ClusterTopic]: ...
    @property
    def features(self) -> Mapping[str, int]: ...


class TransactionCoordinator:
    """Transactional ids: request in, response (or a Deferred of it) out."""

    def __init__(
        self,
        config: TransactionCoordinatorSettings,
        *,
        log: CoordinatorLog,
        markers: MarkerWriter,
        timers: Timers,
        cluster: Callable[[], Cluster],
        next_producer_id: NextProducerId,
    ) -> None:
        self._config = config
        self._timers = timers
        self._markers = markers
        self._cluster = cluster
        self._next_producer_id = next_producer_id
        self._partitions = KeyPartitions(
            TRANSACTION_TOPIC, cluster, config.transaction_state_log_num_partitions
        )
        self.runtime: CoordinatorRuntime[TransactionShard] = CoordinatorRuntime(
            TRANSACTION_TOPIC,
            log=log,
            timers=timers,
            make_shard=lambda: TransactionShard(
                config, timers.now_ms, self._log_version, markers.by_leader
            ),
            base_sequence=-1,
            write_timeout_ms=WRITE_TIMEOUT_MS,
            sender=_Sender(markers, next_producer_id),
        )

    def _log_version(self) -> int:
        return 1 if self._cluster().features.get("transaction.version", 0) > 0 else 0

    def partition_for(self, transactional_id: str) -> int:
        """The partition of `__transaction_state` whose leader coordinates this id."""
        return partition_of(transactional_id, self._partitions.count())

    def on_leadership(self, partition: int, epoch: int | None) -> None:
        """This broker leads that partition of `__transaction_state` from epoch on, or (None) does
        not lead it any more.
        """
        self._partitions.count()  # before the topic grows
        self.runtime.on_leadership(partition, epoch)
        if epoch is None:
            self._markers.drop(lambda name: self.partition_for(name) == partition)

    def close(self) -> None:
        """Unload all shards, since the broker stops."""
        self.runtime.close()

    # -- producers ---------------------------------------------------------------------------

    def init_producer_id(self, request: InitProducerIdRequest) -> Deferred[InitProducerIdResponse]:
        """InitProducerId with a transactional id."""
        expected = None
        if request.producer_id != NO_PRODUCER_ID or request.producer_epoch != NO_PRODUCER_EPOCH:
            expected = Producer(request.producer_id, request.producer_epoch)
        transactional_id = request.transactional_id or ""
        timeout_ms = request.transaction_timeout_ms
        if not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            return Deferred.of(init_error(ErrorCode.INVALID_TRANSACTION_TIMEOUT))

        def init(producer_id: int | None) -> Deferred[InitProducerIdResponse]:
            return self._decide(
                transactional_id,
                lambda shard, _: shard.init_producer_id(
                    transactional_id, timeout_ms, expected, new_producer_id=producer_id
                ),
            )

        fresh = self._fresh_producer_id(transactional_id)
        return fresh.then(init).recover(lambda error: init_error(error.code))

    def end(self, context: CallContext, request: EndTxnRequest) -> Deferred[EndTxnResponse]:
        """EndTxn."""
        transactional_id = request.transactional_id
        client_version = 2 if context.api_version >= END_V2_VERSION else 0

        def end(producer_id: int | None) -> Deferred[EndTxnResponse]:
            return self._decide(
                transactional_id,
                lambda shard, _: shard.end(
                    transactional_id,
                    Producer(request.producer_id, request.producer_epoch),
                    commit=request.committed,
                    client_version=client_version,
                    new_producer_id=producer_id,
                ),
            )

        if client_version < 2:
            ended = end(None)
        else:
            ended = self._fresh_producer_id(transactional_id, only_known=True).then(end)
        return ended.recover(lambda error: EndTxnResponse(error_code=error.code))

    def _fresh_producer_id(
        self, transactional_id: str, *, only_known: bool = False
    ) -> Deferred[int | None]:
        """A new producer id if the transactional id may need one, else None. only_known: not for a
        transactional id that does not exist.
        """
        try:
            shard = self._host(transactional_id).shard
            if not shard.needs_producer_id(transactional_id) or (
                only_known and transactional_id not in shard.transactions
            ):
                return Deferred.of(None)
        except KafkaError as error:
            return Deferred.failed(error)
        return self._next_producer_id().then(_optional)

    def _decide(
        self,
        transactional_id: str,
        decide: Callable[[TransactionShard, int], CoordinatorResult[R]],
    ) -> Deferred[R]:
        """The decision of the id's shard. The request may have waited for a producer id, so the
        shard is looked up here.
        """
        if not transactional_id:
            return Deferred.failed(KafkaError(ErrorCode.INVALID_REQUEST))
        return self.runtime.decide(self.partition_for(transactional_id), decide)

    def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[TopicPartition],
        *,
        client_version: int,
    ) -> Deferred[ErrorCode]:
        """Add partitions to the producer's transaction, which begins with the first of them. NONE
        once that is committed, else the coordinator's own error.

        client_version: the client's transaction.version, 2 or less.
        """
        named = frozenset(partitions)
        added: Deferred[ErrorCode] = self._decide(
            transactional_id,
            lambda shard, _: shard.add_partitions(
                transactional_id, producer, named, client_version=client_version
            ),
        )
        return added.recover(lambda error: error.code)

    def verify(
        self, transactional_id: str, producer: Producer, partitions: Iterable[TopicPartition]
    ) -> Deferred[dict[TopicPartition, ErrorCode]]:
        """Whether each partition is part of the producer's open transaction at the time of the
        response; by then its addition is committed. Never fails.
        """
        named = list(partitions)
        found, committed = self._verify_now(transactional_id, producer, named)
        is_busy = ErrorCode.CONCURRENT_TRANSACTIONS in found.values()
        if is_busy or (committed.done and committed.value is ErrorCode.NONE):
            return Deferred.of(found)

        def again(error: ErrorCode) -> dict[TopicPartition, ErrorCode]:
            if error is not ErrorCode.NONE:
                return dict.fromkeys(named, error)
            # The transaction may have ended meanwhile; a new one may not be committed.
            now, _ = self._verify_now(transactional_id, producer, named)
            return {partition: found[partition] or now[partition] for partition in named}

        return committed.then(again)

    def _verify_now(
        self, transactional_id: str, producer: Producer, partitions: list[TopicPartition]
    ) -> tuple[dict[TopicPartition, ErrorCode], Deferred[ErrorCode]]:
        """The result of the shard, and NONE once it is committed."""
        try:
            host = self._host(transactional_id)
        except KafkaError as error:
            return dict.fromkeys(partitions, error.code), Deferred.of(ErrorCode.NONE)
        found = host.shard.verify(transactional_id, producer, partitions)
        return found, self.runtime.when_committed(host)

    # -- tools -------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> tuple[_Described, Deferred[ErrorCode]]:
        """DescribeTransactions of one id, and NONE once everything in it is committed; otherwise
        the error to respond with instead.
        """
        try:
            host = self._host(transactional_id)
        except KafkaError as error:
            return describe_error(transactional_id, error.code), Deferred.of(ErrorCode.NONE)
        return _described(host.shard, transactional_id), self.runtime.when_committed(host)

    def list_transactions(
        self, request: ListTransactionsRequest
    ) -> Generator[Deferred[ErrorCode] | None, None, ListTransactionsResponse]:
        """ListTransactions, for the partitions that this broker leads, in steps; it waits until
        everything in the response is committed. The response is COORDINATOR_LOAD_IN_PROGRESS while
        one of the partitions is loading.
        """
        states: set[TransactionState] = set()
        unknown: dict[str, None] = {}
        for count, name in enumerate(request.state_filters, 1):
            if count % FILTERS_PER_STEP == 0:
                yield None
            if name in STATE_BY_NAME:
                states.add(STATE_BY_NAME[name])
            else:
                unknown[name] = None
        response = ListTransactionsResponse(unknown_state_filters=list(unknown))
        try:
            pattern = request.transactional_id_pattern
            matches = matcher(pattern) if pattern else None
        except KafkaError as error:
            return ListTransactionsResponse(error_code=error.code)
        producer_ids = frozenset(request.producer_id_filters)
        listed: list[tuple[list[_Listed], Deferred[ErrorCode]]] = []
        for host in list(self.runtime.hosts()):
            if host.status is HostStatus.LOADING:
                return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            if host.status is not HostStatus.ACTIVE:
                continue
            selects = partial(
                _is_selected,
                wall_ms=self._timers.now_ms(),
                states=states if request.state_filters else None,
                producer_ids=producer_ids,
                longer_than_ms=request.duration_filter,
                matches=matches,
            )
            transactions = list(
                host.shard.transactions.values()
            )  # a copy: the dict may change meanwhile
            committed = self.runtime.when_committed(host)
            selected: list[_Listed] = []
            listed.append((selected, committed))
            unseen = 0
            for found in transactions:
                unseen += LISTED_COST + len(found.transactional_id)
                if unseen >= CHARACTERS_PER_TURN:
                    unseen = 0
                    yield None
                if selects(found):
                    selected.append(
                        _Listed(
                            transactional_id=found.transactional_id,
                            producer_id=found.producer_id,
                            transaction_state=found.state.shown,
                        )
                    )
        for selected, committed in listed:
            if not committed.done:
                yield committed
            if committed.value is ErrorCode.NONE:
                response.transaction_states += selected
            elif committed.value is not ErrorCode.NOT_COORDINATOR:  # the next leader lists these
                return ListTransactionsResponse(error_code=committed.value)
        return response

    def _host(self, transactional_id: str) -> Host[TransactionShard]:
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        return self.runtime.host(self.partition_for(transactional_id))


def describe_error(transactional_id: str, error: ErrorCode) -> _Described:
    """The response of DescribeTransactions for an id with an error."""
    return _Described(error_code=error, transactional_id=transactional_id)


def _described(shard: TransactionShard, transactional_id: str) -> _Described:
    found = shard.transactions.get(transactional_id)
    if found is None or found.state is TransactionState.DEAD:
        return describe_error(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return _Described(
        transactional_id=transactional_id,
        transaction_state=found.state.shown,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[
            DescribeTransactionsResponse.TopicData(topic=topic, partitions=indexes)
            for topic, indexes in by_topic(found.partitions).items()
        ],
    )


def _optional(producer_id: int) -> int | None:
    return producer_id


def _is_selected(
    transaction: Transaction,
    *,
    wall_ms: int,
    states: Container[TransactionState] | None,
    producer_ids: frozenset[int],
    longer_than_ms: int,
    matches: Callable[[str], bool] | None,
) -> bool:
    """Whether an id passes the filters of ListTransactions. No filter: None, no producer ids,
    longer_than_ms -1.
    """
    return (
        (states is None or transaction.state in states)
        and (not producer_ids or transaction.producer_id in producer_ids)
        and (longer_than_ms < 0 or wall_ms - transaction.start_ms > longer_than_ms)
        and (matches is None or matches(transaction.transactional_id))
    )


class _Sender:
    """Sends the requests of `TransactionShard`s."""

    __slots__ = ("_markers", "_next_producer_id")

    def __init__(self, markers: MarkerWriter, next_producer_id: NextProducerId) -> None:
        self._markers = markers
        self._next_producer_id = next_producer_id

    def send(
        self, request: OutgoingRequest, *, coordinator_epoch: int
    ) -> Deferred[Callable[[int], Results]]:
        """See `RequestSender`."""
        if isinstance(request, WriteMarkers):
            results = self._markers.write_markers(request, coordinator_epoch=coordinator_epoch)
            # A failure counts as that of every marker, so that all of them are written again.
            outcomes = results.recover(lambda error: dict.fromkeys(request.partitions, error.code))
            return outcomes.then(lambda found: partial(request.then, found))
        if isinstance(request, TakeProducerId):
            fresh = self._next_producer_id()
            return fresh.then(lambda producer_id: partial(request.then, producer_id))
        raise InvariantError(f"the transaction coordinator sends no {request!r}")
