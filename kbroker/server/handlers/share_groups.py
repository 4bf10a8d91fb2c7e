"""ShareGroupHeartbeat v1, ShareGroupDescribe v1, DescribeShareGroupOffsets v0-1,
AlterShareGroupOffsets v0, DeleteShareGroupOffsets v0: share groups (KIP-932).

What they decide is in `coordinator/share_membership` and `share_group_coordinator`; here it is only
called. DescribeShareGroupOffsets v1: the lag (KIP-1226). Deviations: a partition has a start offset
as soon as it is read, in Kafka once a record was acknowledged; there are no ACLs yet, so every
operation is authorized.
"""

from __future__ import annotations

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.share_groups import (
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
from kbroker.server.dispatch import ApiHandler, Outcome, RequestContext
from kbroker.server.handlers.group_descriptions import described_groups
from kbroker.server.services import Services
from kbroker.server.sliced import Steps, sliced


def handle_share_group_heartbeat(
    services: Services, context: RequestContext, request: ShareGroupHeartbeatRequest
) -> Outcome:
    """Answered when what it says is committed."""
    return services.share_groups.heartbeat(context, request)


def share_group_heartbeat_error(
    request: ShareGroupHeartbeatRequest, error: ErrorCode, message: str
) -> ShareGroupHeartbeatResponse:
    """Error and words."""
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


@sliced(share_group_describe_error)
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


def handle_describe_share_group_offsets(
    services: Services, context: RequestContext, request: DescribeShareGroupOffsetsRequest
) -> Outcome:
    """Answered when the coordinators of all states have."""
    return services.share_groups.describe_offsets(context, request)


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


def handle_alter_share_group_offsets(
    services: Services, context: RequestContext, request: AlterShareGroupOffsetsRequest
) -> Outcome:
    """Answered when all states begin anew."""
    return services.share_groups.alter_offsets(context, request)


def alter_share_group_offsets_error(
    request: AlterShareGroupOffsetsRequest, error: ErrorCode, message: str
) -> AlterShareGroupOffsetsResponse:
    """Of the whole request."""
    return AlterShareGroupOffsetsResponse(error_code=error, error_message=message or error.name)


def handle_delete_share_group_offsets(
    services: Services, context: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> Outcome:
    """Answered when all states are deleted."""
    return services.share_groups.delete_offsets(context, request)


def delete_share_group_offsets_error(
    request: DeleteShareGroupOffsetsRequest, error: ErrorCode, message: str
) -> DeleteShareGroupOffsetsResponse:
    """Of the whole request."""
    return DeleteShareGroupOffsetsResponse(error_code=error, error_message=message or error.name)


HANDLERS: tuple[ApiHandler, ...] = (
    ApiHandler(
        ApiKey.SHARE_GROUP_HEARTBEAT,
        1,
        1,
        handle_share_group_heartbeat,
        share_group_heartbeat_error,
    ),
    ApiHandler(
        ApiKey.SHARE_GROUP_DESCRIBE,
        1,
        1,
        handle_share_group_describe,
        share_group_describe_error,
    ),
    ApiHandler(
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        0,
        1,
        handle_describe_share_group_offsets,
        describe_share_group_offsets_error,
    ),
    ApiHandler(
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        0,
        0,
        handle_alter_share_group_offsets,
        alter_share_group_offsets_error,
    ),
    ApiHandler(
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        0,
        0,
        handle_delete_share_group_offsets,
        delete_share_group_offsets_error,
    ),
)
