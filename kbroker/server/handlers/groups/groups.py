"""JoinGroup v0-9, SyncGroup v0-5, Heartbeat v0-4, LeaveGroup v0-5, ListGroups v0-5, DescribeGroups
v0-6.

The rules of the classic group protocol are in `coordinator/group/classic/group`.
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

from typing import Final

from kbroker.coordinator.group.membership.join import join_error
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.groups import (
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
from kbroker.replication.time_slices import Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.handlers.groups.group_descriptions import described_groups
from kbroker.server.policies.groups import GROUPS as POLICIES
from kbroker.server.requests import LARGE_REQUEST_BYTES, Outcome, RequestContext
from kbroker.server.services import Services
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.sliced import CHEAP_ITEMS, once_each, sliced

MIN_MEMBER_BYTES: Final = 3
"""On the wire, of a member that leaves, in any version."""


def handle_join_group(
    services: Services, context: RequestContext, request: JoinGroupRequest
) -> Outcome:
    """The response leaves when all members have joined, or the rebalance times out."""
    return services.groups.join_group(context, request)


def join_group_error(
    request: JoinGroupRequest, error: ErrorCode, message: str
) -> JoinGroupResponse:
    """The error; the member keeps its id."""
    return join_error(request.member_id, error)


def handle_sync_group(
    services: Services, context: RequestContext, request: SyncGroupRequest
) -> Outcome:
    """The response leaves when the assignment of the leader is committed."""
    return services.groups.sync_group(context, request)


def sync_group_error(
    request: SyncGroupRequest, error: ErrorCode, message: str
) -> SyncGroupResponse:
    """The error, without an assignment."""
    return SyncGroupResponse(error_code=error)


def handle_heartbeat(
    services: Services, context: RequestContext, request: HeartbeatRequest
) -> Outcome:
    """Answered at once."""
    return services.groups.heartbeat(context, request)


def heartbeat_error(request: HeartbeatRequest, error: ErrorCode, message: str) -> HeartbeatResponse:
    """The response that carries only the error."""
    return HeartbeatResponse(error_code=error)


def leave_group_error(
    request: LeaveGroupRequest, error: ErrorCode, message: str
) -> LeaveGroupResponse:
    """The response that carries only the error, without members."""
    return LeaveGroupResponse(error_code=error)


@sliced
def handle_leave_group(
    services: Services, context: RequestContext, request: LeaveGroupRequest
) -> Steps[Message]:
    """All members leave in one turn. The identities of a large request are checked in steps first:
    one that may not leave is answered then, and the group is given each of the others twice at
    most, since a member that is named again after it left is unknown from then on.
    """
    if len(request.members) * MIN_MEMBER_BYTES <= LARGE_REQUEST_BYTES:
        return (yield from _left(services, context, request))
    errors: list[ErrorCode] = []
    for start in range(0, len(request.members), CHEAP_ITEMS):
        some = request.members[start : start + CHEAP_ITEMS]
        errors += services.groups.leave_errors(request.group_id, some)
        yield None
    leaving: list[LeaveGroupRequest.MemberIdentity] = []
    places: dict[tuple[str, str | None, bool], int] = {}
    for count, (identity, error) in enumerate(zip(request.members, errors, strict=True), 1):
        if count % CHEAP_ITEMS == 0:
            yield None
        if error is ErrorCode.NONE:
            for is_again in (False, True):
                key = (identity.member_id, identity.group_instance_id, is_again)
                if key not in places:
                    places[key] = len(leaving)
                    leaving.append(identity)
                    break
    reduced = LeaveGroupRequest(group_id=request.group_id, members=leaving)
    answered = yield from _left(services, context, reduced)
    if not isinstance(answered, LeaveGroupResponse) or answered.error_code:
        return answered
    response = LeaveGroupResponse()
    named: set[tuple[str, str | None]] = set()
    for count, (identity, error) in enumerate(zip(request.members, errors, strict=True), 1):
        if count % CHEAP_ITEMS == 0:
            yield None
        member_id, instance_id = identity.member_id, identity.group_instance_id
        code: int = error
        if error is ErrorCode.NONE:
            is_again = (member_id, instance_id) in named
            named.add((member_id, instance_id))
            code = answered.members[places[member_id, instance_id, is_again]].error_code
        response.members.append(
            LeaveGroupResponse.MemberResponse(
                member_id=member_id, group_instance_id=instance_id, error_code=code
            )
        )
    return response


def _left(
    services: Services, context: RequestContext, request: LeaveGroupRequest
) -> Steps[Message]:
    outcome = services.groups.leave_group(context, request)
    yield outcome
    return outcome.value


@sliced
def handle_list_groups(
    services: Services, context: RequestContext, request: ListGroupsRequest
) -> Steps[ListGroupsResponse]:
    """The groups that this broker coordinates. Filters may repeat a name half a million times."""
    del context
    states = yield from once_each(state.lower() for state in request.states_filter)
    types = yield from once_each(group_type.lower() for group_type in request.types_filter)
    return (yield from services.groups.list_groups(states.keys(), types.keys()))


def list_groups_error(
    request: ListGroupsRequest, error: ErrorCode, message: str
) -> ListGroupsResponse:
    """The response that carries only the error."""
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


@sliced
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


HANDLERS: tuple[ApiHandler[Services], ...] = (
    ApiHandler(
        ApiKey.JOIN_GROUP,
        handle_join_group,
        join_group_error,
        POLICIES[ApiKey.JOIN_GROUP],
    ),
    ApiHandler(
        ApiKey.SYNC_GROUP,
        handle_sync_group,
        sync_group_error,
        POLICIES[ApiKey.SYNC_GROUP],
    ),
    ApiHandler(
        ApiKey.HEARTBEAT,
        handle_heartbeat,
        heartbeat_error,
        POLICIES[ApiKey.HEARTBEAT],
    ),
    ApiHandler(
        ApiKey.LEAVE_GROUP,
        handle_leave_group,
        leave_group_error,
        POLICIES[ApiKey.LEAVE_GROUP],
    ),
    ApiHandler(
        ApiKey.LIST_GROUPS,
        handle_list_groups,
        list_groups_error,
        POLICIES[ApiKey.LIST_GROUPS],
    ),
    ApiHandler(
        ApiKey.DESCRIBE_GROUPS,
        handle_describe_groups,
        describe_groups_error,
        POLICIES[ApiKey.DESCRIBE_GROUPS],
        refusal=Division(("groups",), ("groups",)),
    ),
)
