"""OffsetForLeaderEpoch v0-4: where a leader epoch ended, so that a consumer or follower can tell
whether its history is still this log's (KIP-101, KIP-279, KIP-320).

v1: the epoch in the response. v2: the client's own epoch fences it. v3: replica id, which changes
nothing here. v4 is flexible. The response is the largest epoch not above the one asked for, with
its end; -1 and -1 if that epoch is newer than all this log knows.
"""

from __future__ import annotations

from kbroker.model import TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.list_offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kbroker.replication.time_slices import Pace, Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.policies.data import LEADER_EPOCHS as POLICIES
from kbroker.server.requests import RequestContext
from kbroker.server.services import Services
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.sliced import sliced

_Partition = OffsetForLeaderEpochResponse.EpochEndOffset
_Topic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult


def offset_for_leader_epoch_error(
    request: OffsetForLeaderEpochRequest, code: ErrorCode, message: str
) -> OffsetForLeaderEpochResponse:
    """Every partition fails in the same way."""
    del message
    return OffsetForLeaderEpochResponse(
        topics=[
            _Topic(
                topic=topic.topic,
                partitions=[
                    _Partition(partition=asked.partition, error_code=int(code))
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@sliced
def handle_offset_for_leader_epoch(
    services: Services, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> Steps[OffsetForLeaderEpochResponse]:
    """Look up each partition, in the order of the request."""
    del context
    topics = []
    pace = Pace()
    for topic in request.topics:
        if pace.is_due():
            yield None
        answers = []
        for asked in topic.partitions:
            if pace.is_due():
                yield None
            error, epoch, end_offset = services.replicas.epoch_end(
                TopicPartition(topic.topic, asked.partition),
                asked.leader_epoch,
                current_leader_epoch=asked.current_leader_epoch,
            )
            answers.append(
                _Partition(
                    error_code=int(error),
                    partition=asked.partition,
                    leader_epoch=epoch,
                    end_offset=end_offset,
                )
            )
        topics.append(_Topic(topic=topic.topic, partitions=answers))
    return OffsetForLeaderEpochResponse(topics=topics)


HANDLERS: tuple[ApiHandler[Services], ...] = (
    ApiHandler(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        handle_offset_for_leader_epoch,
        offset_for_leader_epoch_error,
        POLICIES[ApiKey.OFFSET_FOR_LEADER_EPOCH],
        refusal=Division(("topics", "partitions"), ("topics", "partitions")),
    ),
)
