"""OffsetCommit v0-10, OffsetFetch v0-10: what groups have read so far.

The rules are in `coordinator/group/offsets`. OffsetFetch before v8 is converted to v8 here.
OffsetCommit and OffsetFetch v0 meant ZooKeeper; here they mean the same offsets as later versions,
and a partition without any is answered UNKNOWN_TOPIC_OR_PARTITION as it was there. OffsetCommit v1:
generation and member, a commit time for each partition; v2: one retention time instead. v5: no
retention time any more (KIP-211). v6: leader epoch (KIP-320). v7: static members (KIP-345). v9:
GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH (KIP-848). v10: topic ids (KIP-848). OffsetFetch v2: all
topics of a group, an error of the whole response. v5: leader epoch (KIP-320). v7: require stable
(KIP-447). v8: several groups (KIP-709). v9: member id and epoch (KIP-848). v10: topic ids.

A group of which all offsets are asked for again is answered once, where Kafka repeats it; what
would go beyond `kbroker.response.max.bytes` is answered POLICY_VIOLATION.
"""

from __future__ import annotations

from typing import Final

from kbroker.coordinator.group.offsets.fetch import NO_OFFSET
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kbroker.replication.time_slices import Pace
from kbroker.server.api_handler import ApiHandler
from kbroker.server.api_policy import (
    DESCRIBE_EACH_GROUP,
    DESCRIBE_EACH_TOPIC,
    READ_EACH_TOPIC,
    READ_GROUP,
    ApiPolicy,
    MemoryClass,
    Versions,
)
from kbroker.server.requests import RequestContext
from kbroker.server.services import Services
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.sliced import CHEAP_ITEMS, AnswerSize, Steps, sliced, step_items_of

GROUPS_VERSION: Final = 8
"""From this OffsetFetch on a request names groups."""
GROUP_ERROR_VERSION: Final = 2
"""From this OffsetFetch on a group's error stands at the response; before, at each partition."""

_FetchGroup = OffsetFetchRequest.OffsetFetchRequestGroup
_FetchTopics = OffsetFetchRequest.OffsetFetchRequestTopics
_FoundTopic = OffsetFetchResponse.OffsetFetchResponseTopic
_FoundPartition = OffsetFetchResponse.OffsetFetchResponsePartition


def offset_commit_error(
    request: OffsetCommitRequest, error: ErrorCode, message: str
) -> OffsetCommitResponse:
    """The same error for every partition."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponse.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponse.OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=error
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@sliced
def handle_offset_commit(
    services: Services, context: RequestContext, request: OffsetCommitRequest
) -> Steps[OffsetCommitResponse]:
    """The response leaves when the offsets are committed in `__consumer_offsets`."""
    return services.groups.offsets.commit(context, request, step_items_of(request.topics))


def _single_group(
    context: RequestContext, asked: _FetchGroup, response: OffsetFetchResponse
) -> Steps[OffsetFetchResponse]:
    """The response for one group in the format of v1-7."""
    group = response.groups[0]
    if group.error_code != ErrorCode.NONE:
        error = ErrorCode(group.error_code)
        return _single_group_error(asked, error, per_partition=context.api_version < 2)
    answer = OffsetFetchResponse()
    pace = Pace(CHEAP_ITEMS)
    for topic in group.topics:
        if pace.is_due():
            yield None
        found = _FoundTopic(name=topic.name)
        answer.topics.append(found)
        for partition in topic.partitions:
            if pace.is_due():
                yield None
            error_code = partition.error_code
            if context.api_version == 0 and partition.committed_offset < 0 and not error_code:
                error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            found.partitions.append(
                _FoundPartition(
                    partition_index=partition.partition_index,
                    committed_offset=partition.committed_offset,
                    committed_leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.metadata,
                    error_code=error_code,
                )
            )
    return answer


def _single_group_error(
    asked: _FetchGroup, error: ErrorCode, *, per_partition: bool
) -> OffsetFetchResponse:
    if not per_partition:
        return OffsetFetchResponse(error_code=error)
    return OffsetFetchResponse(
        topics=[
            _FoundTopic(
                name=topic.name,
                partitions=[
                    _FoundPartition(
                        partition_index=index,
                        committed_offset=NO_OFFSET,
                        metadata="",
                        error_code=error,
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in asked.topics or ()
        ]
    )


def offset_fetch_error(
    request: OffsetFetchRequest, error: ErrorCode, message: str
) -> OffsetFetchResponse:
    """The error for every group (from v8 on), or for the response and every partition (before)."""
    if request.groups:
        return OffsetFetchResponse(
            groups=[
                OffsetFetchResponse.OffsetFetchResponseGroup(
                    group_id=group.group_id, error_code=error
                )
                for group in request.groups
            ]
        )
    topics = [
        _FetchTopics(name=topic.name, partition_indexes=topic.partition_indexes)
        for topic in request.topics or ()
    ]
    response = _single_group_error(_FetchGroup(topics=topics), error, per_partition=True)
    response.error_code = error
    return response


@sliced
def handle_offset_fetch(
    services: Services, context: RequestContext, request: OffsetFetchRequest
) -> Steps[OffsetFetchResponse]:
    """The response leaves when all earlier writes of the shard are committed."""
    version = context.api_version
    with AnswerSize(services) as size:
        if version >= GROUPS_VERSION:
            return (yield from services.groups.offsets.fetch(request, version, size.add))
        topics = request.topics
        if topics is None and version < GROUP_ERROR_VERSION:
            topics = []
        group = _FetchGroup(
            group_id=request.group_id,
            topics=topics
            if topics is None
            else [
                _FetchTopics(name=topic.name, partition_indexes=topic.partition_indexes)
                for topic in topics
            ],
        )
        asked = OffsetFetchRequest(groups=[group], require_stable=request.require_stable)
        found = yield from services.groups.offsets.fetch(asked, version, size.add)
        return (yield from _single_group(context, group, found))


HANDLERS: tuple[ApiHandler, ...] = (
    ApiHandler(
        ApiKey.OFFSET_COMMIT,
        handle_offset_commit,
        offset_commit_error,
        ApiPolicy(
            Versions(0, 10),
            (READ_GROUP, READ_EACH_TOPIC),
            memory_class=MemoryClass.SMALL_RESPONSE,
        ),
        refusal=Division(("topics", "partitions"), ("topics", "partitions")),
    ),
    ApiHandler(
        ApiKey.OFFSET_FETCH,
        handle_offset_fetch,
        offset_fetch_error,
        ApiPolicy(
            Versions(0, 10),
            (DESCRIBE_EACH_GROUP, DESCRIBE_EACH_TOPIC),
        ),
        refusal=Division(("groups",), ("groups",)),
    ),
)
