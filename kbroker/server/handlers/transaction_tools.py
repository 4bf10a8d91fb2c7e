"""WriteTxnMarkers v1-2, DescribeTransactions v0, ListTransactions v0-2: for coordinators and tools.

WriteTxnMarkers ends a transaction in the partitions led here, on the word of a coordinator (or of
an operator whose transaction hangs, KIP-664); v1: flexible, v2: the transaction's version
(KIP-1228), by which the epoch is checked. ListTransactions v1: only those open for some time
(KIP-994), v2: by a pattern of ids (KIP-1152).
"""

from __future__ import annotations

from kbroker.coordinator.shards import Transactional
from kbroker.model import Deferred, TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kbroker.protocol.schema import Message
from kbroker.server.dispatch import ApiHandler, Outcome, RequestContext
from kbroker.server.services import Services

_Marker = WriteTxnMarkersRequest.WritableTxnMarker
_MarkerResult = WriteTxnMarkersResponse.WritableTxnMarkerResult
_TopicResult = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
_PartitionResult = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult


def handle_write_markers(
    services: Services, context: RequestContext, request: WriteTxnMarkersRequest
) -> Outcome:
    """Each partition of each marker by itself; answered when the last one is committed."""
    del context
    response = WriteTxnMarkersResponse()
    later: Deferred[Message] = Deferred()
    left = 1

    def arrived(result: _PartitionResult, error: ErrorCode) -> None:
        nonlocal left
        result.error_code = error
        left -= 1
        if not left:
            later.resolve(response)

    done = _PartitionResult()
    for marker in request.markers:
        if not marker.topics:
            continue  # as in Kafka
        answer = _MarkerResult(producer_id=marker.producer_id)
        response.markers.append(answer)
        for topic in marker.topics:
            results = _TopicResult(name=topic.name)
            answer.topics.append(results)
            for index in topic.partition_indexes:
                result = _PartitionResult(partition_index=index)
                results.partitions.append(result)
                left += 1
                outcome = _write(services, marker, TopicPartition(topic.name, index))
                if isinstance(outcome, ErrorCode):
                    arrived(result, outcome)
                else:
                    outcome.on_done(lambda error, result=result: arrived(result, error))  # type: ignore[misc]  # bound now
    arrived(done, ErrorCode.NONE)
    return later


def _write(
    services: Services, marker: _Marker, partition: TopicPartition
) -> ErrorCode | Deferred[ErrorCode]:
    return services.markers.write(
        partition,
        Transactional(marker.producer_id, marker.producer_epoch),
        commit=marker.transaction_result,
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
    )


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


def handle_describe_transactions(
    services: Services, context: RequestContext, request: DescribeTransactionsRequest
) -> Outcome:
    """Each id on its own; the partitions are those of a transaction that is not over."""
    del context
    return services.transactions.describe_transactions(request)


def describe_transactions_error(
    request: DescribeTransactionsRequest, code: ErrorCode, message: str
) -> DescribeTransactionsResponse:
    """Every id fails in the same way."""
    del message
    return DescribeTransactionsResponse(
        transaction_states=[
            DescribeTransactionsResponse.TransactionState(
                error_code=code, transactional_id=transactional_id
            )
            for transactional_id in request.transactional_ids
        ]
    )


def handle_list_transactions(
    services: Services, context: RequestContext, request: ListTransactionsRequest
) -> Outcome:
    """Those that this broker coordinates."""
    del context
    return services.transactions.list_transactions(request)


def list_transactions_error(
    request: ListTransactionsRequest, code: ErrorCode, message: str
) -> ListTransactionsResponse:
    """None."""
    del request, message
    return ListTransactionsResponse(error_code=code)


HANDLERS: tuple[ApiHandler, ...] = (
    ApiHandler(ApiKey.WRITE_TXN_MARKERS, 1, 2, handle_write_markers, write_markers_error),
    ApiHandler(
        ApiKey.DESCRIBE_TRANSACTIONS,
        0,
        0,
        handle_describe_transactions,
        describe_transactions_error,
    ),
    ApiHandler(ApiKey.LIST_TRANSACTIONS, 0, 2, handle_list_transactions, list_transactions_error),
)
