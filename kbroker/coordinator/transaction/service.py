"""The transaction coordinator: requests of transactional producers, answered by shards.

A request finds its shard by the hash of its transactional id, is decided there (`transactions`),
and its records are written and its answers let out by `shards`. Every method takes the request as
decoded and gives the response, or a Deferred of it. Fresh producer ids come from outside, perhaps
later: the shard is then looked up anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from kbroker.coordinator.patterns import matcher
from kbroker.coordinator.runtime.call_context import CallContext
from kbroker.coordinator.runtime.effects import Waiter
from kbroker.coordinator.runtime.key_hash import partition_of
from kbroker.coordinator.runtime.shards import (
    CoordinatorLog,
    CoordinatorRuntime,
    Host,
    HostStatus,
    MarkerWriter,
)
from kbroker.coordinator.topics import ClusterTopic
from kbroker.coordinator.transaction.ends import Producer
from kbroker.coordinator.transaction.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, by_topic
from kbroker.coordinator.transaction.shard import (
    Answer,
    TransactionSettings,
    TransactionShard,
    init_error,
)
from kbroker.coordinator.transaction.state import STATE_BY_NAME, TransactionState
from kbroker.model import TopicPartition
from kbroker.ports import Deferred, Timers
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.transactions import (
    AddOffsetsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kbroker.protocol.schema import Message

TRANSACTION_TOPIC: Final = "__transaction_state"
END_V2_VERSION: Final = 5
"""From this EndTxn on the epoch rises with every transaction (transaction.version 2, KIP-890)."""

_Described = DescribeTransactionsResponse.TransactionState
_Listed = ListTransactionsResponse.TransactionState


class CoordinatorSettings(TransactionSettings, Protocol):
    """What of the broker's configuration the transaction coordinator reads."""

    @property
    def transaction_state_log_num_partitions(self) -> int: ...


class Cluster(Protocol):
    """What it needs to know of the cluster; metadata's MetadataImage is one."""

    @property
    def topics(self) -> Mapping[str, ClusterTopic]: ...
    @property
    def features(self) -> Mapping[str, int]: ...


class TransactionCoordinator:
    """Transactional ids: request in, response (or a Deferred of it) out.

    next_producer_id: a fresh id, perhaps later; raises KafkaError.
    """

    def __init__(
        self,
        config: CoordinatorSettings,
        *,
        log: CoordinatorLog,
        markers: MarkerWriter,
        timers: Timers,
        cluster: Callable[[], Cluster],
        next_producer_id: Callable[[], int | Deferred[int]],
    ) -> None:
        self._config = config
        self._timers = timers
        self._cluster = cluster
        self._next_producer_id = next_producer_id
        self.runtime: CoordinatorRuntime[TransactionShard] = CoordinatorRuntime(
            TRANSACTION_TOPIC,
            log=log,
            timers=timers,
            make_shard=lambda: TransactionShard(config, timers.now_ms, self._log_version),
            base_sequence=-1,
            markers=markers,
            next_producer_id=next_producer_id,
        )

    def _log_version(self) -> int:
        return 1 if self._cluster().features.get("transaction.version", 0) > 0 else 0

    def partition_for(self, transactional_id: str) -> int:
        """The partition of `__transaction_state` whose leader coordinates this id."""
        topic = self._cluster().topics.get(TRANSACTION_TOPIC)
        count = (
            len(topic.partitions) if topic else self._config.transaction_state_log_num_partitions
        )
        return partition_of(transactional_id, count)

    def on_leadership(self, partition: int, epoch: int | None) -> None:
        """This broker leads that partition of `__transaction_state` from epoch on, or (None) no
        longer.
        """
        self.runtime.on_leadership(partition, epoch)

    def close(self) -> None:
        """The broker stops."""
        self.runtime.close()

    # -- producers ---------------------------------------------------------------------------

    def init_producer_id(
        self, request: InitProducerIdRequest
    ) -> InitProducerIdResponse | Deferred[Message]:
        """InitProducerId with a transactional id."""
        expected = None
        if request.producer_id != NO_PRODUCER_ID or request.producer_epoch != NO_PRODUCER_EPOCH:
            expected = Producer(request.producer_id, request.producer_epoch)
        transactional_id = request.transactional_id or ""
        waiter: Waiter = Deferred()

        def proceed(host: Host[TransactionShard], new_producer_id: int | None) -> None:
            effects = host.shard.init_producer_id(
                transactional_id,
                request.transaction_timeout_ms,
                expected,
                waiter,
                self._timers.monotonic_ms(),
                new_producer_id=new_producer_id,
            )
            self.runtime.carry_out(host, effects)

        timeout_ms = request.transaction_timeout_ms
        if not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            return init_error(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        return self._with_producer_id(transactional_id, Answer(waiter, init_error), proceed)

    def end(self, context: CallContext, request: EndTxnRequest) -> Deferred[Message]:
        """EndTxn."""
        waiter: Waiter = Deferred()
        client_version = 2 if context.api_version >= END_V2_VERSION else 0

        def failed(error: ErrorCode) -> EndTxnResponse:
            return EndTxnResponse(error_code=error)

        def proceed(host: Host[TransactionShard], new_producer_id: int | None) -> None:
            effects = host.shard.end(
                request.transactional_id,
                Producer(request.producer_id, request.producer_epoch),
                waiter,
                self._timers.monotonic_ms(),
                commit=request.committed,
                client_version=client_version,
                new_producer_id=new_producer_id,
            )
            self.runtime.carry_out(host, effects)

        answer = Answer(waiter, failed)
        if client_version < 2:
            try:
                proceed(self._host(request.transactional_id), None)
            except KafkaError as error:
                waiter.resolve(failed(error.code))
            return waiter
        return self._with_producer_id(request.transactional_id, answer, proceed, only_known=True)

    def _with_producer_id(
        self,
        transactional_id: str,
        answer: Answer,
        proceed: Callable[[Host[TransactionShard], int | None], None],
        *,
        only_known: bool = False,
    ) -> Deferred[Message]:
        """Proceed at the id's shard, with a fresh producer id if it needs one; only_known: not for
        an id that does not exist.
        """

        def go_on(producer_id: int | None) -> None:
            try:
                proceed(self._host(transactional_id), producer_id)
            except KafkaError as error:
                answer.waiter.resolve(answer.respond(error.code))

        try:
            shard = self._host(transactional_id).shard
            is_needed = shard.needs_producer_id(transactional_id)
            if only_known and transactional_id not in shard.transactions:
                is_needed = False
            fresh = self._next_producer_id() if is_needed else None
        except KafkaError as error:
            answer.waiter.resolve(answer.respond(error.code))
            return answer.waiter
        if isinstance(fresh, Deferred):
            fresh.on_done(go_on)
        else:
            go_on(fresh)
        return answer.waiter

    def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[TopicPartition],
        *,
        client_version: int,
    ) -> ErrorCode | Deferred[ErrorCode]:
        """Make partitions part of the producer's transaction, which begins with the first.

        client_version: of transactions, 2 or less. The error is the coordinator's own.
        """
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        try:
            host = self._host(transactional_id)
        except KafkaError as error:
            return error.code
        waiter: Waiter = Deferred()
        effects = host.shard.add_partitions(
            transactional_id,
            producer,
            frozenset(partitions),
            Answer(waiter, lambda error: AddOffsetsToTxnResponse(error_code=error)),
            self._timers.monotonic_ms(),
            client_version=client_version,
        )
        self.runtime.carry_out(host, effects)
        if waiter.done:
            return _error_of(waiter.value)
        later: Deferred[ErrorCode] = Deferred()
        waiter.on_done(lambda response: later.resolve(_error_of(response)))
        return later

    def verify(
        self, transactional_id: str, producer: Producer, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether each partition is part of the producer's open transaction."""
        if not transactional_id:
            return dict.fromkeys(partitions, ErrorCode.INVALID_REQUEST)
        try:
            host = self._host(transactional_id)
        except KafkaError as error:
            return dict.fromkeys(partitions, error.code)
        return host.shard.verify(transactional_id, producer, partitions)

    # -- tools -------------------------------------------------------------------------------

    def describe_transactions(
        self, request: DescribeTransactionsRequest
    ) -> DescribeTransactionsResponse:
        """DescribeTransactions: each id on its own."""
        return DescribeTransactionsResponse(
            transaction_states=[self._describe(name) for name in request.transactional_ids]
        )

    def _describe(self, transactional_id: str) -> DescribeTransactionsResponse.TransactionState:
        try:
            if not transactional_id:
                raise KafkaError(ErrorCode.INVALID_REQUEST)
            found = self._host(transactional_id).shard.transactions.get(transactional_id)
            if found is None or found.state is TransactionState.DEAD:
                raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        except KafkaError as error:
            return _Described(error_code=error.code, transactional_id=transactional_id)
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

    def list_transactions(self, request: ListTransactionsRequest) -> ListTransactionsResponse:
        """ListTransactions: of this broker's partitions; one that is still loaded is an error, not
        an omission.
        """
        names = request.state_filters
        unknown = [name for name in names if name not in STATE_BY_NAME]
        states = frozenset(STATE_BY_NAME[name] for name in names if name in STATE_BY_NAME)
        response = ListTransactionsResponse(unknown_state_filters=unknown)
        try:
            pattern = request.transactional_id_pattern
            matches = matcher(pattern) if pattern else None
        except KafkaError as error:
            return ListTransactionsResponse(error_code=error.code)
        producer_ids = frozenset(request.producer_id_filters)
        for host in self.runtime.hosts():
            if host.status is HostStatus.LOADING:
                return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            if host.status is not HostStatus.ACTIVE:
                continue
            for found in host.shard.select(
                states=states if names else None,
                producer_ids=producer_ids,
                longer_than_ms=request.duration_filter,
                matches=matches,
            ):
                response.transaction_states.append(
                    _Listed(
                        transactional_id=found.transactional_id,
                        producer_id=found.producer_id,
                        transaction_state=found.state.shown,
                    )
                )
        return response

    def _host(self, transactional_id: str) -> Host[TransactionShard]:
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        return self.runtime.host(self.partition_for(transactional_id))


def _error_of(response: Message) -> ErrorCode:
    if isinstance(response, AddOffsetsToTxnResponse):
        return ErrorCode(response.error_code)
    return ErrorCode.UNKNOWN_SERVER_ERROR
