"""DescribeProducers v0: the idempotent and transactional producers a partition remembers (KIP-664).

Asked of the leader, for a look at transactions that hang. A producer whose last batch was an
end-of-transaction marker has no last sequence (-1) and no open transaction (-1).
"""

from __future__ import annotations

from kbroker.model import TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
)
from kbroker.server.dispatch import ApiHandler, Outcome, RequestContext
from kbroker.server.services import Services

_Partition = DescribeProducersResponse.PartitionResponse
_Topic = DescribeProducersResponse.TopicResponse


def handle_describe_producers(
    services: Services, context: RequestContext, request: DescribeProducersRequest
) -> Outcome:
    """Each partition by itself, in the order of the request."""
    del context
    return DescribeProducersResponse(
        topics=[
            _Topic(
                name=topic.name,
                partitions=[
                    _describe(services, TopicPartition(topic.name, index))
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


def _describe(services: Services, key: TopicPartition) -> _Partition:
    try:
        states = services.replicas.producers_of(key)
    except KafkaError as failure:
        unknown = failure.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return _Partition(
            partition_index=key.partition,
            error_code=int(failure.code),
            error_message=f"{key} does not exist." if unknown else None,
        )
    return _Partition(
        partition_index=key.partition,
        active_producers=[
            DescribeProducersResponse.ProducerState(
                producer_id=state.producer_id,
                producer_epoch=state.producer_epoch,
                last_sequence=state.last_sequence,
                last_timestamp=state.last_timestamp,
                coordinator_epoch=state.coordinator_epoch,
                current_txn_start_offset=-1
                if state.transaction_first_offset is None
                else state.transaction_first_offset,
            )
            for state in states
        ],
    )


def describe_producers_error(
    request: DescribeProducersRequest, code: ErrorCode, message: str
) -> DescribeProducersResponse:
    """Every partition fails in the same way."""
    return DescribeProducersResponse(
        topics=[
            _Topic(
                name=topic.name,
                partitions=[
                    _Partition(
                        partition_index=index, error_code=int(code), error_message=message or None
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


HANDLERS: tuple[ApiHandler, ...] = (
    ApiHandler(
        ApiKey.DESCRIBE_PRODUCERS, 0, 0, handle_describe_producers, describe_producers_error
    ),
)
