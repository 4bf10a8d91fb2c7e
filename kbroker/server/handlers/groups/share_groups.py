"""ShareGroupHeartbeat v1, ShareGroupDescribe v1, DescribeShareGroupOffsets v0-1,
AlterShareGroupOffsets v0, DeleteShareGroupOffsets v0: share groups (KIP-932).

The rules are in `coordinator/group/share`: `membership`, `state_changes`, `offset_descriptions`.
DescribeShareGroupOffsets v1: the lag (KIP-1226). Deviations: a partition has a start offset
as soon as it is read, in Kafka once a record was acknowledged; there are no ACLs yet, so every
operation is authorized.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, Final, TypeVar

from kbroker.ports import Deferred, at_once
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.pieces import merge, pieces
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from kbroker.replication.time_slices import Pace, Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.handlers.groups.group_descriptions import described_groups
from kbroker.server.policies.groups import SHARE_GROUPS as POLICIES
from kbroker.server.requests import Outcome, RequestContext
from kbroker.server.services import Services
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.sliced import (
    CHEAP_ITEMS,
    TOO_LARGE,
    AnswerSize,
    estimated_bytes,
    sliced,
)

NUMBERS_PER_STEP: Final = 8192
"""Partition numbers that are told apart in one step."""

_PARTITIONS: Final = ("topics", "partitions")

R = TypeVar("R", bound=Message)

_AskedGroup = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
_AskedTopic = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestTopic
_FoundGroup = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup
_Piece = tuple[Deferred[DescribeShareGroupOffsetsResponse], int]
"""A response for some partitions of a group, and where `merge` adds it."""


def handle_share_group_heartbeat(
    services: Services, context: RequestContext, request: ShareGroupHeartbeatRequest
) -> Outcome:
    """The response leaves when the records of the heartbeat are committed."""
    return services.share_groups.heartbeat(context, request)


def share_group_heartbeat_error(
    request: ShareGroupHeartbeatRequest, error: ErrorCode, message: str
) -> ShareGroupHeartbeatResponse:
    """The response that carries only the error and its message."""
    return ShareGroupHeartbeatResponse(error_code=error, error_message=message or None)


def share_group_describe_error(
    request: ShareGroupDescribeRequest, error: ErrorCode, message: str
) -> ShareGroupDescribeResponse:
    """The same error for every group."""
    return ShareGroupDescribeResponse(
        groups=[
            ShareGroupDescribeResponse.DescribedGroup(
                group_id=group_id, error_code=error, error_message=message or None
            )
            for group_id in request.group_ids
        ]
    )


@sliced
def handle_share_group_describe(
    services: Services, context: RequestContext, request: ShareGroupDescribeRequest
) -> Steps[ShareGroupDescribeResponse]:
    """Each group on its own; see `group_descriptions`."""
    del context
    groups = yield from described_groups(
        services,
        request.group_ids,
        services.share_groups.describe,
        with_operations=request.include_authorized_operations,
    )
    return ShareGroupDescribeResponse(groups=groups)


def describe_share_group_offsets_error(
    request: DescribeShareGroupOffsetsRequest, error: ErrorCode, message: str
) -> DescribeShareGroupOffsetsResponse:
    """The same error for every group."""
    return DescribeShareGroupOffsetsResponse(
        groups=[
            DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup(
                group_id=group.group_id, error_code=error, error_message=message or None
            )
            for group in request.groups
        ]
    )


@sliced
def handle_describe_share_group_offsets(
    services: Services, context: RequestContext, request: DescribeShareGroupOffsetsRequest
) -> Steps[DescribeShareGroupOffsetsResponse]:
    """Answered when the coordinators of all states have. A group that is named again is answered
    once, with all topics that are asked for.
    """
    asked = yield from _each_group_once(request.groups)
    response = DescribeShareGroupOffsetsResponse()
    with AnswerSize(services) as size:
        for group in asked:
            yield None
            found = None
            if not size.is_full:
                found = yield from _described(services, context, group, size)
            response.groups.append(_too_large(group) if found is None else found)
    return response


def _described(
    services: Services, context: RequestContext, asked: _AskedGroup, size: AnswerSize
) -> Generator[Deferred[Any] | None, None, _FoundGroup | None]:
    """One group, a piece of its partitions per step; all pieces are asked for before the first one
    is waited for. None if the response would be too large. An error of the group is its whole
    response.
    """
    outcomes: list[_Piece] = []
    if asked.topics is None:
        described: Iterable[_Piece] = services.share_groups.describe_all_offsets(asked.group_id)
    else:
        described = (
            (
                services.share_groups.describe_offsets(
                    context, DescribeShareGroupOffsetsRequest(groups=[piece])
                ),
                continued,
            )
            for piece, continued in pieces(asked, _PARTITIONS)
        )
    for outcome in described:
        outcomes.append(outcome)
        yield None
    whole: _FoundGroup | None = None
    for response, continued in outcomes:
        if not response.done:
            yield response
        (found,) = response.value.groups
        if not size.add(estimated_bytes(found)):
            return None
        if found.error_code:
            return found
        if whole is None:
            whole = found
        else:
            merge(whole, found, _PARTITIONS, continued)
            yield None
    return whole


def _too_large(asked: _AskedGroup) -> _FoundGroup:
    return _FoundGroup(
        group_id=asked.group_id,
        error_code=ErrorCode.POLICY_VIOLATION,
        error_message=TOO_LARGE,
    )


def _each_group_once(groups: list[_AskedGroup]) -> Generator[None, None, list[_AskedGroup]]:
    """Each group, topic and partition once; topics of None stands for all of them."""
    found: dict[str, _AskedGroup] = {}
    topics: dict[tuple[str, str], dict[int, None]] = {}
    pace = Pace(CHEAP_ITEMS)
    for group in groups:
        if pace.is_due():
            yield None
        known = found.setdefault(group.group_id, _AskedGroup(group_id=group.group_id, topics=[]))
        if group.topics is None:
            known.topics = None
        for topic in group.topics or ():
            if pace.is_due():
                yield None
            key = (group.group_id, topic.topic_name)
            if key not in topics:
                topics[key] = {}
                if known.topics is not None:
                    known.topics.append(_AskedTopic(topic_name=topic.topic_name))
            for start in range(0, len(topic.partitions), NUMBERS_PER_STEP):
                if start:
                    yield None
                some = topic.partitions[start : start + NUMBERS_PER_STEP]
                topics[key].update(dict.fromkeys(some))
    for group in found.values():
        for topic in group.topics or ():
            if pace.is_due():
                yield None
            topic.partitions = list(topics[group.group_id, topic.topic_name])
    return list(found.values())


def handle_alter_share_group_offsets(
    services: Services, context: RequestContext, request: AlterShareGroupOffsetsRequest
) -> Outcome:
    """The response leaves when all states are initialized."""
    return at_once(services.share_groups.alter_offsets(context, request))


def alter_share_group_offsets_in_steps(
    services: Services, context: RequestContext, request: AlterShareGroupOffsetsRequest
) -> Steps[Message]:
    """The same for a request that may name very many partitions."""
    return (yield from _value_of(services.share_groups.alter_offsets(context, request)))


def alter_share_group_offsets_error(
    request: AlterShareGroupOffsetsRequest, error: ErrorCode, message: str
) -> AlterShareGroupOffsetsResponse:
    """The error of the whole request."""
    return AlterShareGroupOffsetsResponse(error_code=error, error_message=message or error.name)


def handle_delete_share_group_offsets(
    services: Services, context: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> Outcome:
    """The response leaves when all states are deleted."""
    return at_once(services.share_groups.delete_offsets(context, request))


def delete_share_group_offsets_in_steps(
    services: Services, context: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> Steps[Message]:
    """The same for a request that may name very many topics."""
    return (yield from _value_of(services.share_groups.delete_offsets(context, request)))


def _value_of(
    steps: Generator[None, None, Deferred[R]],
) -> Steps[R]:
    """These steps, and the value of the Deferred that they return."""
    response = yield from steps
    yield response
    return response.value


def delete_share_group_offsets_error(
    request: DeleteShareGroupOffsetsRequest, error: ErrorCode, message: str
) -> DeleteShareGroupOffsetsResponse:
    """The error of the whole request."""
    return DeleteShareGroupOffsetsResponse(error_code=error, error_message=message or error.name)


HANDLERS: tuple[ApiHandler[Services], ...] = (
    ApiHandler(
        ApiKey.SHARE_GROUP_HEARTBEAT,
        handle_share_group_heartbeat,
        share_group_heartbeat_error,
        POLICIES[ApiKey.SHARE_GROUP_HEARTBEAT],
    ),
    ApiHandler(
        ApiKey.SHARE_GROUP_DESCRIBE,
        handle_share_group_describe,
        share_group_describe_error,
        POLICIES[ApiKey.SHARE_GROUP_DESCRIBE],
        refusal=Division(("group_ids",), ("groups",)),
    ),
    ApiHandler(
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        handle_describe_share_group_offsets,
        describe_share_group_offsets_error,
        POLICIES[ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS],
        refusal=Division(("groups",), ("groups",)),
    ),
    ApiHandler(
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        handle_alter_share_group_offsets,
        alter_share_group_offsets_error,
        POLICIES[ApiKey.ALTER_SHARE_GROUP_OFFSETS],
        steps=alter_share_group_offsets_in_steps,
    ),
    ApiHandler(
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        handle_delete_share_group_offsets,
        delete_share_group_offsets_error,
        POLICIES[ApiKey.DELETE_SHARE_GROUP_OFFSETS],
        steps=delete_share_group_offsets_in_steps,
    ),
)
