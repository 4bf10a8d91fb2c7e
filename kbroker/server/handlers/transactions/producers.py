"""DescribeProducers v0: the idempotent and transactional producers a partition remembers (KIP-664).

Asked of the leader, for a look at transactions that hang. A producer whose last batch was an
end-of-transaction marker has no last sequence (-1) and no open transaction (-1). A partition named
again is answered once, where Kafka repeats the response; what would go beyond
`kbroker.response.max.bytes` is answered POLICY_VIOLATION.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from kbroker.log_lines import shown
from kbroker.model import TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
)
from kbroker.replication.time_slices import STEP_ITEMS, Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.policies.data import PRODUCERS as POLICIES
from kbroker.server.requests import RequestContext
from kbroker.server.services import Services
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.sliced import CHEAP_ITEMS, TOO_LARGE, AnswerSize, sliced

PRODUCER_BYTES: Final = 256
PARTITION_BYTES: Final = 256

_Partition = DescribeProducersResponse.PartitionResponse
_Topic = DescribeProducersResponse.TopicResponse


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


@sliced
def handle_describe_producers(
    services: Services, context: RequestContext, request: DescribeProducersRequest
) -> Steps[DescribeProducersResponse]:
    """Each partition has its own result, in the order of the request."""
    del context
    named: dict[str, set[int]] = {}
    topics: list[_Topic] = []
    count = 0
    with AnswerSize(services) as size:
        for asked in request.topics:
            topic = _Topic(name=asked.name)
            known = named.setdefault(asked.name, set())
            count += 1
            for index in asked.partition_indexes:
                count += 1
                if count % STEP_ITEMS == 0:
                    yield None
                if index not in known:
                    known.add(index)
                    answer = _Partition(partition_index=index)
                    key = TopicPartition(asked.name, index)
                    yield from _describe(services, key, answer, size)
                    topic.partitions.append(answer)
            if topic.partitions or not asked.partition_indexes:
                topics.append(topic)
            if count % STEP_ITEMS == 0:
                yield None
    return DescribeProducersResponse(topics=topics)


def _describe(
    services: Services, key: TopicPartition, answer: _Partition, size: AnswerSize
) -> Generator[None, None, None]:
    states = []
    try:
        if not size.is_full:
            states = services.replicas.producers_of(key)
        if not size.add(PARTITION_BYTES + PRODUCER_BYTES * len(states)):
            raise KafkaError(ErrorCode.POLICY_VIOLATION, TOO_LARGE)
    except KafkaError as failure:
        answer.error_code = int(failure.code)
        if failure.code == ErrorCode.POLICY_VIOLATION:
            answer.error_message = TOO_LARGE
        elif failure.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            answer.error_message = f"{shown(key)} does not exist."
        return
    for count, state in enumerate(states, 1):
        if count % CHEAP_ITEMS == 0:
            yield None
        first_offset = state.transaction_first_offset
        answer.active_producers.append(
            DescribeProducersResponse.ProducerState(
                producer_id=state.producer_id,
                producer_epoch=state.producer_epoch,
                last_sequence=state.last_sequence,
                last_timestamp=state.last_timestamp,
                coordinator_epoch=state.coordinator_epoch,
                current_txn_start_offset=-1 if first_offset is None else first_offset,
            )
        )


HANDLERS: tuple[ApiHandler[Services], ...] = (
    ApiHandler(
        ApiKey.DESCRIBE_PRODUCERS,
        handle_describe_producers,
        describe_producers_error,
        POLICIES[ApiKey.DESCRIBE_PRODUCERS],
        refusal=Division(("topics", "partition_indexes"), ("topics", "partitions")),
    ),
)
