"""AddPartitionsToTxn v0-5, AddOffsetsToTxn v0-4, TxnOffsetCommit v0-5, EndTxn v0-5: a transactional
producer at work (KIP-98, KIP-890). Its first request, InitProducerId, has a module of its own.

AddPartitionsToTxn v1, AddOffsetsToTxn v1, EndTxn v1: throttling as in KIP-219. v2 of them:
PRODUCER_FENCED, before INVALID_PRODUCER_EPOCH. v3: flexible. AddPartitionsToTxn v4: from brokers,
several transactions, also only to verify; v5 the same under transaction.version 2. TxnOffsetCommit
v2: leader epoch. v3: flexible, member and generation (KIP-447). v4 and EndTxn v4:
TRANSACTION_ABORTABLE may come. EndTxn v5 and TxnOffsetCommit v5: transaction.version 2, in which
every EndTxn raises the epoch and answers with it, and partitions are added by the broker itself.

The decisions are in `coordinator/transaction/shard`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from kbroker.broker.transaction_gate import OFFSETS_ADD_ITSELF_SINCE, Verdicts, commit_error_of
from kbroker.coordinator.group.offsets.commit import ResolvedCommit
from kbroker.coordinator.group.service import GROUP_TOPIC
from kbroker.coordinator.runtime.coordinator_log import Transactional
from kbroker.coordinator.transaction.producer import Producer
from kbroker.model import TopicPartition
from kbroker.ports import Deferred, at_once
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.offsets import OffsetCommitRequest, OffsetCommitResponse
from kbroker.protocol.messages.coordinators.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from kbroker.replication.time_slices import Pace, Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.policies.groups import TRANSACTIONS as POLICIES
from kbroker.server.requests import Outcome, RequestContext
from kbroker.server.services import Services
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.large_requests import free_in_steps
from kbroker.server.slicing.sliced import CHEAP_ITEMS, once_each, sliced, step_items_of

BATCHED_SINCE: Final = 4
"""AddPartitionsToTxn of brokers: several transactions in one request."""
ADD_V2_SINCE: Final = 5
FENCED_SINCE: Final = 2
"""From this version on PRODUCER_FENCED may come."""
OFFSET_COMMIT_BY_NAME: Final = 9

_Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
_Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
_TopicResult = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
_PartitionResult = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
_Result = AddPartitionsToTxnResponse.AddPartitionsToTxnResult
_CommitResult = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition

T_co = TypeVar("T_co", covariant=True)


def known_error(error: ErrorCode, version: int) -> ErrorCode:
    """The error in a code that this version of the client knows."""
    if error is ErrorCode.PRODUCER_FENCED and version < FENCED_SINCE:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


# AddPartitionsToTxn


def _results(
    topics: Iterable[_Topic], errors: Mapping[TopicPartition, ErrorCode], otherwise: ErrorCode
) -> Generator[None, None, list[_TopicResult]]:
    """The result of each partition, as often as it is named. otherwise: the error of partitions
    that are not in errors.
    """
    results: list[_TopicResult] = []
    pace = Pace(CHEAP_ITEMS)
    for topic in topics:
        if pace.is_due():
            yield None
        result = _TopicResult(name=topic.name)
        results.append(result)
        for index in topic.partitions:
            if pace.is_due():
                yield None
            result.results_by_partition.append(
                _PartitionResult(
                    partition_index=index,
                    partition_error_code=errors.get(TopicPartition(topic.name, index), otherwise),
                )
            )
    return results


def add_partitions_error(
    request: AddPartitionsToTxnRequest, code: ErrorCode, message: str
) -> AddPartitionsToTxnResponse:
    """Every partition fails in the same way (v0-3), or the whole request (v4 on)."""
    del message
    topics = request.v3_and_below_topics
    return AddPartitionsToTxnResponse(
        error_code=code, results_by_topic_v3_and_below=at_once(_results(topics, {}, code))
    )


@sliced
def handle_add_partitions(
    services: Services, context: RequestContext, request: AddPartitionsToTxnRequest
) -> Steps[AddPartitionsToTxnResponse]:
    """All partitions of a transaction are added, or none."""
    version = context.api_version
    if version < BATCHED_SINCE:
        only = _Transaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        answered = yield from _begin_add(services, version, only)
        if not answered.outcome.done:
            yield answered.outcome
        results = yield from _results(only.topics, answered.errors, answered.outcome.value)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)
    added = []
    pace = Pace()
    for transaction in request.transactions:
        if pace.is_due():
            yield None
        added.append((yield from _begin_add(services, version, transaction)))
    response = AddPartitionsToTxnResponse()
    for answered in added:
        if not answered.outcome.done:
            yield answered.outcome
        if pace.is_due():
            yield None
        asked = answered.asked
        results = yield from _results(asked.topics, answered.errors, answered.outcome.value)
        response.results_by_transaction.append(
            _Result(transactional_id=asked.transactional_id, topic_results=results)
        )
    return response


class _Added(NamedTuple):
    """The request of one transaction, and the errors of its partitions; those without one share the
    outcome.
    """

    asked: _Transaction
    errors: dict[TopicPartition, ErrorCode]
    outcome: Deferred[ErrorCode]


def _begin_add(
    services: Services, version: int, asked: _Transaction
) -> Generator[Deferred[Any] | None, None, _Added]:
    partitions = list(
        (
            yield from once_each(
                TopicPartition(topic.name, index)
                for topic in asked.topics
                for index in topic.partitions
            )
        )
    )
    producer = Producer(asked.producer_id, asked.producer_epoch)
    errors: dict[TopicPartition, ErrorCode] = {}
    for start in range(0, len(partitions), CHEAP_ITEMS):
        if start:
            yield None
        for each in partitions[start : start + CHEAP_ITEMS]:
            if services.image.partition(*each) is None:
                errors[each] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if errors:  # of a verification too: Kafka's broker asks its metadata first
        return _Added(asked, errors, Deferred.of(ErrorCode.OPERATION_NOT_ATTEMPTED))
    if asked.verify_only:
        for start in range(0, len(partitions), CHEAP_ITEMS):
            if start:
                yield None
            some = partitions[start : start + CHEAP_ITEMS]
            verified = services.transactions.verify(asked.transactional_id, producer, some)
            if not verified.done:
                yield verified
            errors |= verified.value
        return _Added(asked, errors, Deferred.of(ErrorCode.NONE))
    outcome = services.transactions.add_partitions(
        asked.transactional_id,
        producer,
        partitions,
        client_version=2 if version >= ADD_V2_SINCE else 0,
    )
    return _Added(asked, errors, outcome.then(lambda error: known_error(error, version)))


# AddOffsetsToTxn


def handle_add_offsets(
    services: Services, context: RequestContext, request: AddOffsetsToTxnRequest
) -> Outcome:
    """Make the group's partition of `__consumer_offsets` part of the transaction."""
    partition = TopicPartition(GROUP_TOPIC, services.groups.partition_for(request.group_id))
    outcome = services.transactions.add_partitions(
        request.transactional_id,
        Producer(request.producer_id, request.producer_epoch),
        [partition],
        client_version=0,
    )

    def response(error: ErrorCode) -> AddOffsetsToTxnResponse:
        return AddOffsetsToTxnResponse(error_code=known_error(error, context.api_version))

    return outcome.then(response)


def add_offsets_error(
    request: AddOffsetsToTxnRequest, code: ErrorCode, message: str
) -> AddOffsetsToTxnResponse:
    """The error; the group is not added to the transaction."""
    del request, message
    return AddOffsetsToTxnResponse(error_code=code)


# TxnOffsetCommit


class _NamedTopic(Protocol[T_co]):
    @property
    def name(self) -> str: ...
    @property
    def partitions(self) -> Sequence[T_co]: ...


class _NamedPartition(Protocol):
    @property
    def partition_index(self) -> int: ...


P = TypeVar("P", bound=_NamedPartition)


def _commit_response(
    topics: Iterable[_NamedTopic[P]], error_of: Callable[[P], int]
) -> Generator[None, None, TxnOffsetCommitResponse]:
    """topics: of the request, or of the response as OffsetCommit has it."""
    response = TxnOffsetCommitResponse()
    pace = Pace(CHEAP_ITEMS)
    for topic in topics:
        if pace.is_due():
            yield None
        results: list[_CommitResult] = []
        response.topics.append(
            TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                name=topic.name, partitions=results
            )
        )
        for partition in topic.partitions:
            if pace.is_due():
                yield None
            results.append(
                _CommitResult(
                    partition_index=partition.partition_index, error_code=error_of(partition)
                )
            )
    return response


def txn_offset_commit_error(
    request: TxnOffsetCommitRequest, code: ErrorCode, message: str
) -> TxnOffsetCommitResponse:
    """Every partition fails in the same way."""
    del message
    return at_once(_commit_response(request.topics, lambda _: code))


@sliced
def handle_txn_offset_commit(
    services: Services, context: RequestContext, request: TxnOffsetCommitRequest
) -> Steps[TxnOffsetCommitResponse]:
    """Topics are looked up, the transaction is asked for, then the group; the response comes when
    the offsets are in the log, where they wait for the transaction's end.
    """
    if not request.group_id:
        return (yield from _commit_response(request.topics, lambda _: ErrorCode.INVALID_GROUP_ID))
    version = context.api_version
    step_items = step_items_of(request.topics)
    asked = yield from _as_offset_commit(request, step_items)
    commit = yield from services.groups.offsets.resolve_commit(
        asked, OFFSET_COMMIT_BY_NAME, step_items
    )
    error = ErrorCode.NONE
    if commit.accepted:
        written = _commit_in_transaction(services, version, request, commit, asked)
        if not written.done:
            yield written
        error = written.value
        del written
    response = yield from commit.answer(error)
    answer = yield from _commit_response(response.topics, _error_of)
    unused: list[object] = [asked, response]
    del asked, commit, response
    yield from free_in_steps(unused)
    return answer


def _commit_in_transaction(
    services: Services,
    version: int,
    request: TxnOffsetCommitRequest,
    commit: ResolvedCommit,
    asked: OffsetCommitRequest,
) -> Deferred[ErrorCode]:
    partition = TopicPartition(GROUP_TOPIC, services.groups.partition_for(request.group_id))
    producer = Producer(request.producer_id, request.producer_epoch)
    hosted = services.replicas.partition(partition)
    if hosted is None or not hosted.is_leader:
        # Another broker coordinates the group, so the partition is not added to the transaction.
        transaction = Transactional(*producer)
        return services.groups.offsets.commit_in_transaction(commit, asked, transaction)
    verdicts = services.partition_gate.ask(
        request.transactional_id, producer, [partition], adds=version >= OFFSETS_ADD_ITSELF_SINCE
    )

    def write(known: Verdicts) -> Deferred[ErrorCode]:
        """In the turn of the loop that verified it: later the transaction may have ended."""
        error = known.get(partition, ErrorCode.NONE)
        if error is not ErrorCode.NONE:
            return Deferred.of(commit_error_of(error, version))
        return services.groups.offsets.commit_in_transaction(
            commit, asked, Transactional(*producer)
        )

    return verdicts.then(write)


def _error_of(partition: OffsetCommitResponse.OffsetCommitResponsePartition) -> int:
    return partition.error_code


def _as_offset_commit(
    request: TxnOffsetCommitRequest, step_items: int
) -> Generator[None, None, OffsetCommitRequest]:
    asked = OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
    )
    pace = Pace(step_items)
    for topic in request.topics:
        if pace.is_due():
            yield None
        partitions: list[OffsetCommitRequest.OffsetCommitRequestPartition] = []
        asked.topics.append(
            OffsetCommitRequest.OffsetCommitRequestTopic(name=topic.name, partitions=partitions)
        )
        for partition in topic.partitions:
            if pace.is_due():
                yield None
            partitions.append(
                OffsetCommitRequest.OffsetCommitRequestPartition(
                    partition_index=partition.partition_index,
                    committed_offset=partition.committed_offset,
                    committed_leader_epoch=partition.committed_leader_epoch,
                    committed_metadata=partition.committed_metadata,
                )
            )
    return asked


# EndTxn


def handle_end_txn(services: Services, context: RequestContext, request: EndTxnRequest) -> Outcome:
    """The response leaves when the decision is committed; a restarted broker completes it."""
    outcome = services.transactions.end(context, request)
    if context.api_version >= FENCED_SINCE:
        return outcome

    def with_known_error(response: EndTxnResponse) -> EndTxnResponse:
        response.error_code = known_error(ErrorCode(response.error_code), context.api_version)
        return response

    return outcome.then(with_known_error)


def end_txn_error(request: EndTxnRequest, code: ErrorCode, message: str) -> EndTxnResponse:
    """The error; the transaction is not ended."""
    del request, message
    return EndTxnResponse(error_code=code)


HANDLERS: tuple[ApiHandler[Services], ...] = (
    ApiHandler(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        handle_add_partitions,
        add_partitions_error,
        POLICIES[ApiKey.ADD_PARTITIONS_TO_TXN],
        refusal=Division(
            ("v3_and_below_topics", "partitions"),
            ("results_by_topic_v3_and_below", "results_by_partition"),
        ),
    ),
    ApiHandler(
        ApiKey.ADD_OFFSETS_TO_TXN,
        handle_add_offsets,
        add_offsets_error,
        POLICIES[ApiKey.ADD_OFFSETS_TO_TXN],
    ),
    ApiHandler(
        ApiKey.TXN_OFFSET_COMMIT,
        handle_txn_offset_commit,
        txn_offset_commit_error,
        POLICIES[ApiKey.TXN_OFFSET_COMMIT],
        refusal=Division(("topics", "partitions"), ("topics", "partitions")),
    ),
    ApiHandler(
        ApiKey.END_TXN,
        handle_end_txn,
        end_txn_error,
        POLICIES[ApiKey.END_TXN],
    ),
)
