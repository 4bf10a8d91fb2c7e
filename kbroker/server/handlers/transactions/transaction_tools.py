"""WriteTxnMarkers v1-2, DescribeTransactions v0, ListTransactions v0-2: for coordinators and tools.

WriteTxnMarkers ends a transaction in the partitions led here, on the word of a coordinator (or of
an operator whose transaction hangs, KIP-664); v1: flexible, v2: the transaction's version
(KIP-1228), by which the epoch is checked. ListTransactions v1: only those open for some time
(KIP-994), v2: by a pattern of ids (KIP-1152).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.coordinator.runtime.coordinator_log import Transactional
from kbroker.coordinator.transaction.service import describe_error
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kbroker.replication.time_slices import Pace, Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.policies.groups import TRANSACTION_TOOLS as POLICIES
from kbroker.server.requests import RequestContext
from kbroker.server.services import Services
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.sliced import CHEAP_ITEMS, describe_each, sliced

MARKERS_PER_STEP: Final = 8

_OF_LEADERS: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}
"""A transaction coordinator of Apache Kafka knows no errors of the group coordinator, through which
a marker goes into `__consumer_offsets`.
"""

_Marker = WriteTxnMarkersRequest.WritableTxnMarker
_MarkerResult = WriteTxnMarkersResponse.WritableTxnMarkerResult
_TopicResult = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
_PartitionResult = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult


def write_markers_error(
    request: WriteTxnMarkersRequest, code: ErrorCode, message: str
) -> WriteTxnMarkersResponse:
    """Every partition fails in the same way."""
    del message
    return WriteTxnMarkersResponse(
        markers=[
            _MarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    _TopicResult(
                        name=topic.name,
                        partitions=[
                            _PartitionResult(partition_index=index, error_code=code)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


@sliced
def handle_write_markers(
    services: Services, context: RequestContext, request: WriteTxnMarkersRequest
) -> Steps[WriteTxnMarkersResponse]:
    """Each partition of each marker has its own result; the response leaves when the last marker is
    committed. A partition that a marker names again, also in equal markers in a row, is written
    once: the second marker would have nothing to end. As in Kafka, whose map of a marker's batches
    has each partition once.
    """
    del context
    response = WriteTxnMarkersResponse()
    waiting: list[tuple[_PartitionResult, Deferred[ErrorCode]]] = []
    pace, write_pace = Pace(CHEAP_ITEMS), Pace(MARKERS_PER_STEP)
    last: tuple[int, ...] | None = None
    written: dict[str, dict[int, Deferred[ErrorCode]]] = {}
    for marker in request.markers:
        if pace.is_due():
            yield None
        if not marker.topics:
            continue  # as in Kafka
        identity = _identity(marker)
        if identity != last:
            last, written = identity, {}
        answer = _MarkerResult(producer_id=marker.producer_id)
        response.markers.append(answer)
        for topic in marker.topics:
            if pace.is_due():
                yield None
            results = _TopicResult(name=topic.name)
            answer.topics.append(results)
            outcomes = written.setdefault(topic.name, {})
            for index in topic.partition_indexes:
                if pace.is_due():
                    yield None
                outcome = outcomes.get(index)
                if outcome is None:
                    if write_pace.is_due():
                        yield None
                    outcome = _write(services, marker, TopicPartition(topic.name, index))
                    outcomes[index] = outcome
                result = _PartitionResult(partition_index=index)
                results.partitions.append(result)
                if outcome.done:
                    result.error_code = _OF_LEADERS.get(outcome.value, outcome.value)
                else:
                    waiting.append((result, outcome))
    for result, outcome in waiting:
        if not outcome.done:
            yield outcome
        elif pace.is_due():
            yield None
        result.error_code = _OF_LEADERS.get(outcome.value, outcome.value)
    return response


def _identity(marker: _Marker) -> tuple[int, ...]:
    """What a marker writes, wherever it is written."""
    return (
        marker.producer_id,
        marker.producer_epoch,
        marker.transaction_result,
        marker.coordinator_epoch,
        marker.transaction_version,
    )


def _write(services: Services, marker: _Marker, partition: TopicPartition) -> Deferred[ErrorCode]:
    return services.markers.write(
        partition,
        Transactional(marker.producer_id, marker.producer_epoch),
        commit=marker.transaction_result,
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
    )


def describe_transactions_error(
    request: DescribeTransactionsRequest, code: ErrorCode, message: str
) -> DescribeTransactionsResponse:
    """The same error for every transactional id."""
    del message
    return DescribeTransactionsResponse(
        transaction_states=[
            DescribeTransactionsResponse.TransactionState(
                error_code=code, transactional_id=transactional_id
            )
            for transactional_id in request.transactional_ids
        ]
    )


@sliced
def handle_describe_transactions(
    services: Services, context: RequestContext, request: DescribeTransactionsRequest
) -> Steps[DescribeTransactionsResponse]:
    """Each id on its own; the partitions are those of a transaction that is not over. The response
    leaves when what it shows is committed.
    """
    del context
    uncommitted: dict[str, Deferred[ErrorCode]] = {}

    def describe(name: str) -> DescribeTransactionsResponse.TransactionState:
        found, committed = services.transactions.describe(name)
        if not committed.done or committed.value is not ErrorCode.NONE:
            uncommitted[name] = committed
        return found

    described = yield from describe_each(
        services,
        request.transactional_ids,
        describe,
        lambda name: describe_error(name, ErrorCode.POLICY_VIOLATION),
    )
    for committed in uncommitted.values():
        if not committed.done:
            yield committed
    if any(committed.value is not ErrorCode.NONE for committed in uncommitted.values()):
        described = [
            found
            if (error := _error_of(uncommitted, found.transactional_id)) is ErrorCode.NONE
            else describe_error(found.transactional_id, error)
            for found in described
        ]
    return DescribeTransactionsResponse(transaction_states=described)


def _error_of(outcomes: Mapping[str, Deferred[ErrorCode]], name: str) -> ErrorCode:
    outcome = outcomes.get(name)
    return ErrorCode.NONE if outcome is None else outcome.value


@sliced
def handle_list_transactions(
    services: Services, context: RequestContext, request: ListTransactionsRequest
) -> Steps[ListTransactionsResponse]:
    """The transactional ids that this broker coordinates."""
    del context
    return (yield from services.transactions.list_transactions(request))


def list_transactions_error(
    request: ListTransactionsRequest, code: ErrorCode, message: str
) -> ListTransactionsResponse:
    """The error, without transactional ids."""
    del request, message
    return ListTransactionsResponse(error_code=code)


HANDLERS: tuple[ApiHandler[Services], ...] = (
    ApiHandler(
        ApiKey.WRITE_TXN_MARKERS,
        handle_write_markers,
        write_markers_error,
        POLICIES[ApiKey.WRITE_TXN_MARKERS],
        refusal=Division(
            ("markers", "topics", "partition_indexes"), ("markers", "topics", "partitions")
        ),
    ),
    ApiHandler(
        ApiKey.DESCRIBE_TRANSACTIONS,
        handle_describe_transactions,
        describe_transactions_error,
        POLICIES[ApiKey.DESCRIBE_TRANSACTIONS],
        refusal=Division(("transactional_ids",), ("transaction_states",)),
    ),
    ApiHandler(
        ApiKey.LIST_TRANSACTIONS,
        handle_list_transactions,
        list_transactions_error,
        POLICIES[ApiKey.LIST_TRANSACTIONS],
    ),
)
