"""JoinGroup v0-9, SyncGroup v0-5, Heartbeat v0-4, LeaveGroup v0-5, ListGroups v0-5, DescribeGroups
v0-6.

What the classic group protocol decides is in `coordinator/classic_group`; here it is only called.
JoinGroup v1: rebalance timeout of its own (KIP-62). v4: MEMBER_ID_REQUIRED (KIP-394). v5: static
members (KIP-345). v7: protocol type (KIP-559). v8: reason (KIP-800). v9: skip assignment (KIP-814).
SyncGroup v3, Heartbeat v3: static members. SyncGroup v5: protocol type and name (KIP-559).
LeaveGroup v3: several members at once, by instance id too (KIP-345). v5: reason (KIP-800).
ListGroups v4: states (KIP-518). v5: types (KIP-848). DescribeGroups v3: authorized operations
(KIP-430). v4: instance ids. v6: an unknown group is an error (KIP-1043), before it is a dead one.
Consumer groups are listed here and described in `consumer_groups`. Deviation: there are no ACLs
yet, so every operation is authorized.
"""

from __future__ import annotations

from kbroker.coordinator.classic_group import join_error
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kbroker.server.dispatch import ApiHandler, Outcome, RequestContext
from kbroker.server.handlers.group_descriptions import described_groups
from kbroker.server.services import Services
from kbroker.server.sliced import Steps, sliced


def handle_join_group(
    services: Services, context: RequestContext, request: JoinGroupRequest
) -> Outcome:
    """Answered when the group has gathered."""
    return services.groups.join_group(context, request)


def join_group_error(
    request: JoinGroupRequest, error: ErrorCode, message: str
) -> JoinGroupResponse:
    """The member keeps its id."""
    return join_error(request.member_id, error)


def handle_sync_group(
    services: Services, context: RequestContext, request: SyncGroupRequest
) -> Outcome:
    """Answered when the leader's assignment is committed."""
    return services.groups.sync_group(context, request)


def sync_group_error(
    request: SyncGroupRequest, error: ErrorCode, message: str
) -> SyncGroupResponse:
    """No assignment."""
    return SyncGroupResponse(error_code=error)


def handle_heartbeat(
    services: Services, context: RequestContext, request: HeartbeatRequest
) -> Outcome:
    """Answered at once."""
    return services.groups.heartbeat(context, request)


def heartbeat_error(request: HeartbeatRequest, error: ErrorCode, message: str) -> HeartbeatResponse:
    """The bare error."""
    return HeartbeatResponse(error_code=error)


def handle_leave_group(
    services: Services, context: RequestContext, request: LeaveGroupRequest
) -> Outcome:
    """Answered at once."""
    return services.groups.leave_group(context, request)


def leave_group_error(
    request: LeaveGroupRequest, error: ErrorCode, message: str
) -> LeaveGroupResponse:
    """The bare error; no member was looked at."""
    return LeaveGroupResponse(error_code=error)


def handle_list_groups(
    services: Services, context: RequestContext, request: ListGroupsRequest
) -> Outcome:
    """The groups of this broker."""
    return services.groups.list_groups(context, request)


def list_groups_error(
    request: ListGroupsRequest, error: ErrorCode, message: str
) -> ListGroupsResponse:
    """The bare error."""
    return ListGroupsResponse(error_code=error)


def describe_groups_error(
    request: DescribeGroupsRequest, error: ErrorCode, message: str
) -> DescribeGroupsResponse:
    """The same error for every group."""
    return DescribeGroupsResponse(
        groups=[
            DescribeGroupsResponse.DescribedGroup(group_id=group_id, error_code=error)
            for group_id in request.groups
        ]
    )


@sliced(describe_groups_error)
def handle_describe_groups(
    services: Services, context: RequestContext, request: DescribeGroupsRequest
) -> Steps[DescribeGroupsResponse]:
    """Each group on its own; see `group_descriptions`."""
    groups = yield from described_groups(
        services,
        request.groups,
        lambda group_id: services.groups.describe_group(group_id, context.api_version),
        with_operations=request.include_authorized_operations,
    )
    return DescribeGroupsResponse(groups=groups)


HANDLERS: tuple[ApiHandler, ...] = (
    ApiHandler(ApiKey.JOIN_GROUP, 0, 9, handle_join_group, join_group_error),
    ApiHandler(ApiKey.SYNC_GROUP, 0, 5, handle_sync_group, sync_group_error),
    ApiHandler(ApiKey.HEARTBEAT, 0, 4, handle_heartbeat, heartbeat_error),
    ApiHandler(ApiKey.LEAVE_GROUP, 0, 5, handle_leave_group, leave_group_error),
    ApiHandler(ApiKey.LIST_GROUPS, 0, 5, handle_list_groups, list_groups_error),
    ApiHandler(ApiKey.DESCRIBE_GROUPS, 0, 6, handle_describe_groups, describe_groups_error),
)
