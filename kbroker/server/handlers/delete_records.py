"""DeleteRecords v0-2: move the start of a log up (KIP-107).

v1 may be throttled (KIP-219), v2 is flexible. Offset -1 stands for the high watermark; the
response's low watermark is where the log begins afterwards. Records beyond the high watermark stay
(OFFSET_OUT_OF_RANGE), topics without the cleanup policy `delete` keep theirs (POLICY_VIOLATION),
and internal topics are not to be touched (INVALID_TOPIC_EXCEPTION). Segments that lie wholly before
the new start go at the next retention run. timeout_ms is for followers, which move their own start
with their next fetch; the response does not wait for them.
"""

from __future__ import annotations

from typing import Final

from kbroker.metadata.internal_topics import INTERNAL_TOPICS
from kbroker.model import TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.topics import DeleteRecordsRequest, DeleteRecordsResponse
from kbroker.replication.time_slices import Pace
from kbroker.server.api_handler import ApiHandler
from kbroker.server.api_policy import DELETE_EACH_TOPIC, ApiPolicy, Versions
from kbroker.server.requests import RequestContext
from kbroker.server.services import Services
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.sliced import CHEAP_ITEMS, Steps, sliced

NO_LOW_WATERMARK: Final = -1
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
    pace = Pace(DELETIONS_PER_STEP)
    for key, offset in offsets.items():
        if pace.is_due():
            yield None
        low_watermark, error = NO_LOW_WATERMARK, ErrorCode.NONE
        try:
            low_watermark = _delete(services, key, offset)
        except KafkaError as failure:
            error = failure.code
        answer = _Partition(
            partition_index=key.partition, low_watermark=low_watermark, error_code=int(error)
        )
        found = topics.get(key.topic)
        if found is None:
            found = topics[key.topic] = _Topic(name=key.topic)
        found.partitions.append(answer)
    return DeleteRecordsResponse(topics=list(topics.values()))


def _delete(services: Services, key: TopicPartition, offset: int) -> int:
    if services.image.partition(key.topic, key.partition) is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if key.topic in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    return services.replicas.delete_records(key, offset)


HANDLERS: tuple[ApiHandler[Services], ...] = (
    ApiHandler(
        ApiKey.DELETE_RECORDS,
        handle_delete_records,
        delete_records_error,
        ApiPolicy(Versions(0, 2), (DELETE_EACH_TOPIC,)),
        refusal=Division(("topics", "partitions"), ("topics", "partitions")),
    ),
)
