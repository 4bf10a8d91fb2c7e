"""StreamsGroupHeartbeat v0, StreamsGroupDescribe v0: the groups of Kafka Streams (KIP-1071).

The rules are in `coordinator/group/streams/membership`; the topics found missing there are created
here. As in Kafka 4.3 there are no static members, warm-up tasks,
task offsets or source topics by regular expression yet: INVALID_REQUEST.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kbroker.coordinator.group.streams.status import StreamsStatus
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.streams_groups import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from kbroker.replication.time_slices import Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.handlers.groups.group_descriptions import described_groups
from kbroker.server.policies.groups import STREAMS_GROUPS as POLICIES
from kbroker.server.requests import Outcome, RequestContext
from kbroker.server.services import Services
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.sliced import sliced

if TYPE_CHECKING:
    from kbroker.coordinator.group.streams.membership import StreamsHeartbeat

FAILURES_SHOWN: Final = 3
"""Of topics that could not be created, in the words for a client."""


def handle_streams_group_heartbeat(
    services: Services, context: RequestContext, request: StreamsGroupHeartbeatRequest
) -> Outcome:
    """The response leaves when the records are committed and missing topics are requested."""
    answer = services.groups.streams_heartbeat(context, request)
    return answer.then(lambda heartbeat: _answer(services, context, heartbeat))


def _answer(
    services: Services, context: RequestContext, heartbeat: StreamsHeartbeat
) -> StreamsGroupHeartbeatResponse:
    response, missing = heartbeat.response, heartbeat.missing
    if missing:
        services.streams_topics.create(
            missing,
            services.channel,
            context.identity,
            now_ms=services.timers.monotonic_ms(),
            retry_ms=2 * response.heartbeat_interval_ms,
        )
        failures = services.streams_topics.failures(missing)
        for status in response.status or ():
            if failures and status.status_code == StreamsStatus.MISSING_INTERNAL_TOPICS:
                more = len(failures) - FAILURES_SHOWN
                shown = ", ".join(failures[:FAILURES_SHOWN])
                shown += f" and {more} more" if more > 0 else ""
                status.status_detail += f"; Creation failed: {shown}."
    return response


def streams_group_heartbeat_error(
    request: StreamsGroupHeartbeatRequest, error: ErrorCode, message: str
) -> StreamsGroupHeartbeatResponse:
    """The response that carries only the error and its message."""
    return StreamsGroupHeartbeatResponse(error_code=error, error_message=message or None)


def streams_group_describe_error(
    request: StreamsGroupDescribeRequest, error: ErrorCode, message: str
) -> StreamsGroupDescribeResponse:
    """The same error for every group."""
    return StreamsGroupDescribeResponse(
        groups=[
            StreamsGroupDescribeResponse.DescribedGroup(
                group_id=group_id, error_code=error, error_message=message or None
            )
            for group_id in request.group_ids
        ]
    )


@sliced
def handle_streams_group_describe(
    services: Services, context: RequestContext, request: StreamsGroupDescribeRequest
) -> Steps[StreamsGroupDescribeResponse]:
    """Each group on its own; see `group_descriptions`."""
    del context
    groups = yield from described_groups(
        services,
        request.group_ids,
        services.groups.streams_describe,
        with_operations=request.include_authorized_operations,
    )
    return StreamsGroupDescribeResponse(groups=groups)


HANDLERS: tuple[ApiHandler[Services], ...] = (
    ApiHandler(
        ApiKey.STREAMS_GROUP_HEARTBEAT,
        handle_streams_group_heartbeat,
        streams_group_heartbeat_error,
        POLICIES[ApiKey.STREAMS_GROUP_HEARTBEAT],
    ),
    ApiHandler(
        ApiKey.STREAMS_GROUP_DESCRIBE,
        handle_streams_group_describe,
        streams_group_describe_error,
        POLICIES[ApiKey.STREAMS_GROUP_DESCRIBE],
        refusal=Division(("group_ids",), ("groups",)),
    ),
)
