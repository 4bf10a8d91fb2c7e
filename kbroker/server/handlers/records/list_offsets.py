"""ListOffsets v0-11: offsets by time, and the ends of a partition.

v0: for a time the starts of segments last written by then, newest first, as many as asked for; the
ends as a list of one. v1: one offset per partition, -1 latest, -2 earliest (KIP-79). v2: isolation
level (KIP-98). v4: leader epochs (KIP-320). v5: OFFSET_NOT_AVAILABLE, which v1-4 get as
LEADER_NOT_AVAILABLE (KIP-207). v6: flexible. v7: -3, the record with the largest timestamp
(KIP-734). v8: -4, earliest local (KIP-405). v9: -5, latest tiered (KIP-1005). v10: timeout for
remote look-ups (KIP-1075), unused here: nothing is remote. v11: -6, earliest not yet uploaded
(KIP-1023).

The response to a time is the first record at or after it, not its batch; -1 if there is none. A
partition named twice gets INVALID_REQUEST (in v0, which Kafka 4 does not serve, too), a special
timestamp before its version UNSUPPORTED_VERSION. Records are looked for in a thread
(`replication/reads/offsets`) and partitions one after the other, in slices of the loop. Deviation:
once the batches of a partition have unpacked to `kbroker.list.offsets.max.bytes`, the next header
that claims the time is believed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Any, Final

from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kbroker.replication.reads.offsets import SINCE_VERSION
from kbroker.replication.time_slices import Pace, Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.policies.data import LIST_OFFSETS as POLICIES
from kbroker.server.requests import RequestContext
from kbroker.server.services import Services
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.sliced import CHEAP_ITEMS, AnswerSize, sliced

LEADER_EPOCH_SINCE: Final = 4
OFFSET_NOT_AVAILABLE_SINCE: Final = 5
READ_COMMITTED: Final = 1
OFFSET_BYTES: Final = 40

_Asked = ListOffsetsRequest.ListOffsetsPartition
_AskedTopic = ListOffsetsRequest.ListOffsetsTopic

_Partition = ListOffsetsResponse.ListOffsetsPartitionResponse
_Topic = ListOffsetsResponse.ListOffsetsTopicResponse


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


@sliced
def handle_list_offsets(
    services: Services, context: RequestContext, request: ListOffsetsRequest
) -> Steps[ListOffsetsResponse]:
    """Look up each partition, in the order of the request."""
    named: Counter[tuple[str, int]] = Counter()
    pace = Pace(CHEAP_ITEMS)
    for topic in request.topics:
        if pace.is_due():
            yield None
        for asked in topic.partitions:
            if pace.is_due():
                yield None
            named[topic.name, asked.partition_index] += 1
    topics: list[_Topic] = []
    pace = Pace()
    with AnswerSize(services) as size:
        for topic in request.topics:
            if pace.is_due():
                yield None
            answers: list[_Partition] = []
            topics.append(_Topic(name=topic.name, partitions=answers))
            for asked in topic.partitions:
                if pace.is_due():
                    yield None
                if named[topic.name, asked.partition_index] > 1:
                    answers.append(_failed(asked, ErrorCode.INVALID_REQUEST))
                elif context.api_version == 0:
                    answers.append(_segment_offsets(services, context, request, topic, asked, size))
                else:
                    answers.append((yield from _list(services, context, request, topic, asked)))
    return ListOffsetsResponse(topics=topics)


def _list(
    services: Services,
    context: RequestContext,
    request: ListOffsetsRequest,
    topic: _AskedTopic,
    asked: _Asked,
) -> Generator[Deferred[Any] | None, None, _Partition]:
    version = context.api_version
    if asked.timestamp < 0 and version < SINCE_VERSION.get(asked.timestamp, version + 1):
        return _failed(asked, ErrorCode.UNSUPPORTED_VERSION)
    found = yield from services.replicas.list_offset(
        TopicPartition(topic.name, asked.partition_index),
        asked.timestamp,
        read_committed=request.isolation_level == READ_COMMITTED,
        current_leader_epoch=asked.current_leader_epoch,
        replica_id=request.replica_id,
    )
    error = found.error
    if error == ErrorCode.OFFSET_NOT_AVAILABLE and version < OFFSET_NOT_AVAILABLE_SINCE:
        error = ErrorCode.LEADER_NOT_AVAILABLE
    return _Partition(
        partition_index=asked.partition_index,
        error_code=int(error),
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.leader_epoch if version >= LEADER_EPOCH_SINCE else -1,
    )


def _segment_offsets(
    services: Services,
    context: RequestContext,
    request: ListOffsetsRequest,
    topic: _AskedTopic,
    asked: _Asked,
    size: AnswerSize,
) -> _Partition:
    """v0. There -1 is the end, -2 the start, and any other time finds segments, not records."""
    if size.is_full:
        return _failed(asked, ErrorCode.POLICY_VIOLATION)
    try:
        offsets = services.replicas.segment_offsets(
            TopicPartition(topic.name, asked.partition_index),
            asked.timestamp,
            max_count=asked.max_num_offsets,
            now_ms=context.arrived_ms,
            replica_id=request.replica_id,
        )
    except KafkaError as failure:
        return _failed(asked, failure.code)
    if not size.add(OFFSET_BYTES * len(offsets)):
        return _failed(asked, ErrorCode.POLICY_VIOLATION)
    return _Partition(partition_index=asked.partition_index, old_style_offsets=offsets)


def _failed(asked: _Asked, error: ErrorCode) -> _Partition:
    return _Partition(partition_index=asked.partition_index, error_code=int(error))


HANDLERS: tuple[ApiHandler[Services], ...] = (
    ApiHandler(
        ApiKey.LIST_OFFSETS,
        handle_list_offsets,
        list_offsets_error,
        POLICIES[ApiKey.LIST_OFFSETS],
        refusal=Division(("topics", "partitions"), ("topics", "partitions")),
    ),
)
