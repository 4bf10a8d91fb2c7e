"""ConsumerGroupHeartbeat v0-1, ConsumerGroupDescribe v0-1: the consumer protocol of KIP-848.

What the protocol decides is in `coordinator/group/consumer/membership`; here it is only called.
Heartbeat v1: regular expressions; the member makes its id (KIP-1082). Describe v1: the kind of each
member. Both are off while group.version is 0. Groups change their protocol while they have members
(`coordinator/group/migration`). Deviation: there are no ACLs yet, so every operation is authorized.
"""

from __future__ import annotations

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kbroker.replication.time_slices import Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.handlers.groups.group_descriptions import described_groups
from kbroker.server.policies.groups import CONSUMER_GROUPS as POLICIES
from kbroker.server.requests import Outcome, RequestContext
from kbroker.server.services import Services
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.sliced import sliced


def handle_consumer_group_heartbeat(
    services: Services, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> Outcome:
    """The response leaves when the records of the heartbeat are committed."""
    return services.groups.consumer_heartbeat(context, request)


def consumer_group_heartbeat_error(
    request: ConsumerGroupHeartbeatRequest, error: ErrorCode, message: str
) -> ConsumerGroupHeartbeatResponse:
    """The response that carries only the error and its message."""
    return ConsumerGroupHeartbeatResponse(error_code=error, error_message=message or None)


def consumer_group_describe_error(
    request: ConsumerGroupDescribeRequest, error: ErrorCode, message: str
) -> ConsumerGroupDescribeResponse:
    """The same error for every group."""
    return ConsumerGroupDescribeResponse(
        groups=[
            ConsumerGroupDescribeResponse.DescribedGroup(
                group_id=group_id, error_code=error, error_message=message or None
            )
            for group_id in request.group_ids
        ]
    )


@sliced
def handle_consumer_group_describe(
    services: Services, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> Steps[ConsumerGroupDescribeResponse]:
    """Each group on its own; see `group_descriptions`."""
    del context
    groups = yield from described_groups(
        services,
        request.group_ids,
        services.groups.consumer_describe,
        with_operations=request.include_authorized_operations,
    )
    return ConsumerGroupDescribeResponse(groups=groups)


HANDLERS: tuple[ApiHandler[Services], ...] = (
    ApiHandler(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        handle_consumer_group_heartbeat,
        consumer_group_heartbeat_error,
        POLICIES[ApiKey.CONSUMER_GROUP_HEARTBEAT],
    ),
    ApiHandler(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        handle_consumer_group_describe,
        consumer_group_describe_error,
        POLICIES[ApiKey.CONSUMER_GROUP_DESCRIBE],
        refusal=Division(("group_ids",), ("groups",)),
    ),
)
