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

from collections.abc import Generator, Iterable
from typing import Final, Protocol

from kbroker.coordinator.group.offsets.fetch import NO_OFFSET
from kbroker.ports import at_once
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kbroker.replication.time_slices import Pace, Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.policies.groups import OFFSETS as POLICIES
from kbroker.server.requests import RequestContext
from kbroker.server.services import Services
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.large_requests import free_in_steps
from kbroker.server.slicing.sliced import CHEAP_ITEMS, AnswerSize, sliced, step_items_of

GROUPS_VERSION: Final = 8
"""From this OffsetFetch on a request names groups."""
GROUP_ERROR_VERSION: Final = 2
"""From this OffsetFetch on a group's error stands at the response; before, at each partition."""

_FetchGroup = OffsetFetchRequest.OffsetFetchRequestGroup
_FetchTopics = OffsetFetchRequest.OffsetFetchRequestTopics
_FoundTopic = OffsetFetchResponse.OffsetFetchResponseTopic
_FoundPartition = OffsetFetchResponse.OffsetFetchResponsePartition
_FoundGroup = OffsetFetchResponse.OffsetFetchResponseGroup


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
        if context.api_version >= GROUP_ERROR_VERSION:
            return OffsetFetchResponse(error_code=error)
        return (yield from _single_group_error(asked.topics or (), error))
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


class _AskedTopic(Protocol):
    """A topic of a request, of any version."""

    @property
    def name(self) -> str: ...
    @property
    def partition_indexes(self) -> list[int]: ...


def _single_group_error(
    topics: Iterable[_AskedTopic], error: ErrorCode
) -> Generator[None, None, OffsetFetchResponse]:
    """The error for every partition, in the format of v0-7."""
    response = OffsetFetchResponse()
    pace = Pace(CHEAP_ITEMS)
    for topic in topics:
        if pace.is_due():
            yield None
        found = _FoundTopic(name=topic.name)
        response.topics.append(found)
        for index in topic.partition_indexes:
            if pace.is_due():
                yield None
            found.partitions.append(
                _FoundPartition(
                    partition_index=index,
                    committed_offset=NO_OFFSET,
                    metadata="",
                    error_code=error,
                )
            )
    return response


def offset_fetch_error(
    request: OffsetFetchRequest, error: ErrorCode, message: str
) -> OffsetFetchResponse:
    """The error for every group (from v8 on), or for the response and every partition (before)."""
    return at_once(_refuse_fetch(request, error, message))


def _refuse_fetch(
    request: OffsetFetchRequest, error: ErrorCode, message: str
) -> Generator[None, None, OffsetFetchResponse]:
    del message
    if not request.groups:
        response = yield from _single_group_error(request.topics or (), error)
        response.error_code = error
        return response
    response = OffsetFetchResponse()
    pace = Pace(CHEAP_ITEMS)
    for group in request.groups:
        if pace.is_due():
            yield None
        response.groups.append(_FoundGroup(group_id=group.group_id, error_code=error))
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
        asked = yield from _as_group(request, version)
        found = yield from services.groups.offsets.fetch(asked, version, size.add)
        answer = yield from _single_group(context, asked.groups[0], found)
        unused: list[object] = [asked, found]
        del asked, found
        yield from free_in_steps(unused)
        return answer


def _as_group(
    request: OffsetFetchRequest, version: int
) -> Generator[None, None, OffsetFetchRequest]:
    """A request before v8 as one of v8 has it. All topics of the group: since v2."""
    group = _FetchGroup(group_id=request.group_id, topics=None)
    if request.topics is not None or version < GROUP_ERROR_VERSION:
        group.topics = topics = []
        pace = Pace(CHEAP_ITEMS)
        for topic in request.topics or ():
            if pace.is_due():
                yield None
            topics.append(_FetchTopics(name=topic.name, partition_indexes=topic.partition_indexes))
    return OffsetFetchRequest(groups=[group], require_stable=request.require_stable)


HANDLERS: tuple[ApiHandler[Services], ...] = (
    ApiHandler(
        ApiKey.OFFSET_COMMIT,
        handle_offset_commit,
        offset_commit_error,
        POLICIES[ApiKey.OFFSET_COMMIT],
        refusal=Division(("topics", "partitions"), ("topics", "partitions")),
    ),
    ApiHandler(
        ApiKey.OFFSET_FETCH,
        handle_offset_fetch,
        offset_fetch_error,
        POLICIES[ApiKey.OFFSET_FETCH],
        refusal=_refuse_fetch,
    ),
)
