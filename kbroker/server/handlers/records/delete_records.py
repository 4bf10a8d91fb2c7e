"""DeleteRecords v0-2: move the start of a log up (KIP-107).

v1 may be throttled (KIP-219), v2 is flexible. Offset -1 stands for the high watermark. Records
beyond the high watermark stay (OFFSET_OUT_OF_RANGE), topics that are only compacted keep theirs
(POLICY_VIOLATION), and internal topics are not to be touched (INVALID_TOPIC_EXCEPTION). Segments
that lie wholly before the new start go at the next retention run.

The response waits until the logs of all live replicas begin at the offset or later, which is the
low watermark that it names, at most timeout_ms (REQUEST_TIMED_OUT: the leader's records are
deleted all the same). A follower moves its start with the answer to its next Fetch, and tells the
leader with the one after that.
"""

from __future__ import annotations

from typing import Final

from kbroker.metadata.internal_topics import INTERNAL_TOPICS
from kbroker.model import TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.topics import DeleteRecordsRequest, DeleteRecordsResponse
from kbroker.replication.manager import HIGH_WATERMARK
from kbroker.replication.purgatory import DelayedResponse
from kbroker.replication.reads.low_watermark import NO_LOW_WATERMARK, LowWatermark
from kbroker.replication.time_slices import Pace, Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.policies.data import DELETE_RECORDS as POLICIES
from kbroker.server.requests import RequestContext
from kbroker.server.services import Services
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.sliced import CHEAP_ITEMS, sliced

DELETIONS_PER_STEP: Final = 8

_Partition = DeleteRecordsResponse.DeleteRecordsPartitionResult
_Topic = DeleteRecordsResponse.DeleteRecordsTopicResult


def delete_records_error(
    request: DeleteRecordsRequest, code: ErrorCode, message: str
) -> DeleteRecordsResponse:
    """Every partition fails in the same way."""
    del message
    return DeleteRecordsResponse(
        topics=[
            _Topic(
                name=topic.name,
                partitions=[
                    _Partition(
                        partition_index=asked.partition_index,
                        low_watermark=NO_LOW_WATERMARK,
                        error_code=int(code),
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@sliced
def handle_delete_records(
    services: Services, context: RequestContext, request: DeleteRecordsRequest
) -> Steps[DeleteRecordsResponse]:
    """Each partition has its own result; of a partition named twice the last offset counts."""
    del context
    offsets: dict[TopicPartition, int] = {}
    pace = Pace(CHEAP_ITEMS)
    for topic in request.topics:
        if pace.is_due():
            yield None
        for asked in topic.partitions:
            if pace.is_due():
                yield None
            offsets[TopicPartition(topic.name, asked.partition_index)] = asked.offset
    topics: dict[str, _Topic] = {}
    pending: list[tuple[_Partition, DelayedResponse[LowWatermark]]] = []
    pace = Pace(DELETIONS_PER_STEP)
    try:
        for key, offset in offsets.items():
            if pace.is_due():
                yield None
            answer = _Partition(
                partition_index=key.partition, low_watermark=NO_LOW_WATERMARK, error_code=0
            )
            try:
                outcome = _delete(services, key, offset, request.timeout_ms)
            except KafkaError as failure:
                answer.error_code = int(failure.code)
            else:
                if isinstance(outcome, LowWatermark):
                    _fill(answer, outcome)
                else:
                    pending.append((answer, outcome))
            found = topics.get(key.topic)
            if found is None:
                found = topics[key.topic] = _Topic(name=key.topic)
            found.partitions.append(answer)
        for answer, response in pending:
            yield response
            _fill(answer, response.value)
    finally:
        for _, response in pending:
            response.cancel()  # harmless once it is done
    return DeleteRecordsResponse(topics=list(topics.values()))


def _fill(answer: _Partition, outcome: LowWatermark) -> None:
    answer.error_code, answer.low_watermark = int(outcome.error), outcome.offset


def _delete(
    services: Services, key: TopicPartition, offset: int, timeout_ms: int
) -> LowWatermark | DelayedResponse[LowWatermark]:
    """Raises KafkaError."""
    if services.image.partition(key.topic, key.partition) is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if key.topic in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    start = services.replicas.delete_records(key, offset)
    required_offset = start if offset == HIGH_WATERMARK else offset
    return services.replicas.await_low_watermark(key, required_offset, timeout_ms)


HANDLERS: tuple[ApiHandler[Services], ...] = (
    ApiHandler(
        ApiKey.DELETE_RECORDS,
        handle_delete_records,
        delete_records_error,
        POLICIES[ApiKey.DELETE_RECORDS],
        refusal=Division(("topics", "partitions"), ("topics", "partitions")),
    ),
)
