"""DeleteGroups v0-2, OffsetDelete v0: the end of groups and of what they have committed.

The rules are in `coordinator/group/shard`. DeleteGroups (KIP-229): only a group without members.
OffsetDelete (KIP-496): of an active group only offsets of topics that it does not subscribe to.
"""

from __future__ import annotations

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.groups import DeleteGroupsRequest, DeleteGroupsResponse
from kbroker.protocol.messages.coordinators.offsets import OffsetDeleteRequest, OffsetDeleteResponse
from kbroker.replication.time_slices import Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.policies.groups import DELETE_GROUPS as POLICIES
from kbroker.server.requests import Outcome, RequestContext
from kbroker.server.services import Services
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.sliced import sliced


def handle_delete_groups(
    services: Services, context: RequestContext, request: DeleteGroupsRequest
) -> Outcome:
    """The response leaves when the tombstones of all deletable groups are committed."""
    return services.groups.delete_groups(context, request)


def delete_groups_error(
    request: DeleteGroupsRequest, error: ErrorCode, message: str
) -> DeleteGroupsResponse:
    """The same error for every group."""
    return DeleteGroupsResponse(
        results=[
            DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=error)
            for group_id in request.groups_names
        ]
    )


def offset_delete_error(
    request: OffsetDeleteRequest, error: ErrorCode, message: str
) -> OffsetDeleteResponse:
    """The response that carries only the error, without partitions."""
    return OffsetDeleteResponse(error_code=error)


@sliced
def handle_offset_delete(
    services: Services, context: RequestContext, request: OffsetDeleteRequest
) -> Steps[OffsetDeleteResponse]:
    """The response leaves when the tombstones are committed."""
    del context
    return (yield from services.groups.offsets.delete(request))


HANDLERS: tuple[ApiHandler[Services], ...] = (
    ApiHandler(
        ApiKey.DELETE_GROUPS,
        handle_delete_groups,
        delete_groups_error,
        POLICIES[ApiKey.DELETE_GROUPS],
        division=Division(("groups_names",), ("results",)),
    ),
    ApiHandler(
        ApiKey.OFFSET_DELETE,
        handle_offset_delete,
        offset_delete_error,
        POLICIES[ApiKey.OFFSET_DELETE],
    ),
)
