"""ConsumerGroupHeartbeat v0-1, ConsumerGroupDescribe v0-1: the consumer protocol of KIP-848.

What the protocol decides is in `coordinator/consumer_membership`; here it is only called.
Heartbeat v1: regular expressions; the member makes its id (KIP-1082). Describe v1: the kind of each
member. Both are off while group.version is 0. Groups change their protocol while they have members
(`coordinator/migration`). Deviation: there are no ACLs yet, so every operation is authorized.
"""

from __future__ import annotations

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kbroker.server.dispatch import ApiHandler, Outcome, RequestContext
from kbroker.server.handlers.groups import GROUP_OPERATIONS
from kbroker.server.services import Services


def handle_consumer_group_heartbeat(
    services: Services, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> Outcome:
    """Answered when what it says is committed."""
    services.require_group_protocol("consumer", "group.version")
    return services.groups.consumer_heartbeat(context, request)


def consumer_group_heartbeat_error(
    request: ConsumerGroupHeartbeatRequest, error: ErrorCode, message: str
) -> ConsumerGroupHeartbeatResponse:
    """Error and words."""
    return ConsumerGroupHeartbeatResponse(error_code=error, error_message=message or None)


def handle_consumer_group_describe(
    services: Services, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> Outcome:
    """Each group on its own."""
    services.require_group_protocol("consumer", "group.version")
    response = services.groups.consumer_describe(context, request)
    if request.include_authorized_operations:
        for group in response.groups:
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = GROUP_OPERATIONS
    return response


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


HANDLERS: tuple[ApiHandler, ...] = (
    ApiHandler(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        0,
        1,
        handle_consumer_group_heartbeat,
        consumer_group_heartbeat_error,
    ),
    ApiHandler(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        0,
        1,
        handle_consumer_group_describe,
        consumer_group_describe_error,
    ),
)
