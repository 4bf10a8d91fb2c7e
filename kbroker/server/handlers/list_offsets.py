"""ListOffsets v0-11: offsets by time, and the ends of a partition.

v0: for a time the starts of segments last written by then, newest first, as many as asked for; the
ends as a list of one. v1: one offset per partition, -1 latest, -2 earliest (KIP-79). v2: isolation
level (KIP-98). v4: leader epochs (KIP-320). v5: OFFSET_NOT_AVAILABLE, which v1-4 get as
LEADER_NOT_AVAILABLE (KIP-207). v6: flexible. v7: -3, the record with the largest timestamp
(KIP-734). v8: -4, earliest local (KIP-405). v9: -5, latest tiered (KIP-1005). v10: timeout for
remote look-ups (KIP-1075), unused here: nothing is remote. v11: -6, earliest not yet uploaded
(KIP-1023).

The answer to a time is the first record at or after it, not its batch; -1 if there is none. A
partition named twice gets INVALID_REQUEST, a special timestamp before its version
UNSUPPORTED_VERSION.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from kbroker.model import TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kbroker.replication.offsets import SINCE_VERSION, ListedOffset, segment_offsets
from kbroker.server.dispatch import ApiHandler, Outcome, RequestContext
from kbroker.server.services import Services

logger = logging.getLogger(__name__)

LEADER_EPOCH_SINCE: Final = 4
OFFSET_NOT_AVAILABLE_SINCE: Final = 5
READ_COMMITTED: Final = 1

_Partition = ListOffsetsResponse.ListOffsetsPartitionResponse
_Topic = ListOffsetsResponse.ListOffsetsTopicResponse


def handle_list_offsets(
    services: Services, context: RequestContext, request: ListOffsetsRequest
) -> Outcome:
    """Look up each partition, in the order of the request."""
    version = context.api_version
    if version == 0:
        return _segment_offsets(services, context, request)
    named = Counter(
        (topic.name, asked.partition_index)
        for topic in request.topics
        for asked in topic.partitions
    )
    topics: list[_Topic] = []
    for topic in request.topics:
        answers: list[_Partition] = []
        topics.append(_Topic(name=topic.name, partitions=answers))
        for asked in topic.partitions:
            index = asked.partition_index
            if named[topic.name, index] > 1:
                found = ListedOffset(ErrorCode.INVALID_REQUEST)
            elif asked.timestamp < 0 and version < SINCE_VERSION.get(asked.timestamp, version + 1):
                found = ListedOffset(ErrorCode.UNSUPPORTED_VERSION)
            else:
                found = services.replicas.list_offset(
                    TopicPartition(topic.name, index),
                    asked.timestamp,
                    read_committed=request.isolation_level == READ_COMMITTED,
                    current_leader_epoch=asked.current_leader_epoch,
                    replica_id=request.replica_id,
                )
            error = found.error
            if error == ErrorCode.OFFSET_NOT_AVAILABLE and version < OFFSET_NOT_AVAILABLE_SINCE:
                error = ErrorCode.LEADER_NOT_AVAILABLE
            answers.append(
                _Partition(
                    partition_index=index,
                    error_code=int(error),
                    timestamp=found.timestamp,
                    offset=found.offset,
                    leader_epoch=found.leader_epoch if version >= LEADER_EPOCH_SINCE else -1,
                )
            )
    return ListOffsetsResponse(topics=topics)


def _segment_offsets(
    services: Services, context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    """v0. There -1 is the end, -2 the start, and any other time finds segments, not records."""
    topics: list[_Topic] = []
    for topic in request.topics:
        answers: list[_Partition] = []
        topics.append(_Topic(name=topic.name, partitions=answers))
        for asked in topic.partitions:
            answer = _Partition(partition_index=asked.partition_index)
            answers.append(answer)
            partition = services.replicas.find(topic.name, asked.partition_index)
            if isinstance(partition, ErrorCode):
                answer.error_code = int(partition)
                continue
            error = partition.check_leader()
            if error:
                answer.error_code = int(error)
                continue
            try:
                answer.old_style_offsets = segment_offsets(
                    partition,
                    asked.timestamp,
                    max_count=asked.max_num_offsets,
                    now_ms=context.arrived_ms,
                    replica_id=request.replica_id,
                )
            except OSError as failure:
                logger.error("%s-%d: %s", topic.name, asked.partition_index, failure)
                answer.error_code = int(ErrorCode.KAFKA_STORAGE_ERROR)
    return ListOffsetsResponse(topics=topics)


def list_offsets_error(
    request: ListOffsetsRequest, code: ErrorCode, message: str
) -> ListOffsetsResponse:
    """Every partition fails in the same way."""
    del message
    return ListOffsetsResponse(
        topics=[
            _Topic(
                name=topic.name,
                partitions=[
                    _Partition(partition_index=asked.partition_index, error_code=int(code))
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


HANDLERS: tuple[ApiHandler, ...] = (
    ApiHandler(ApiKey.LIST_OFFSETS, 0, 11, handle_list_offsets, list_offsets_error),
)
