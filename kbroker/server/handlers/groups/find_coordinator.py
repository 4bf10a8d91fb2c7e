"""FindCoordinator v0-6: which broker coordinates a group a transactional id or the state
of a share partition.

v1: key type and error message (KIP-98). v2: throttling as in KIP-219. v3: flexible. v4: several
keys at once, an error per key (KIP-699). v5: for transactions (KIP-890). v6: share groups
(KIP-932). The first request creates the coordinators' topic, `__consumer_offsets` or another. As in
Kafka it is answered with COORDINATOR_NOT_AVAILABLE at once, and the client asks again; so it is
while a partition has no leader. A node that is its whole cluster has the topic a moment later and
answers then. The broker named is always one that Metadata lists on the same listener.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from kbroker.coordinator.group.service import GROUP_TOPIC
from kbroker.coordinator.share_state.topic import SHARE_TOPIC, is_coordinator_key
from kbroker.coordinator.transaction.service import TRANSACTION_TOPIC
from kbroker.log_lines import shown
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kbroker.replication.time_slices import Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.policies.groups import FIND_COORDINATOR as POLICIES
from kbroker.server.requests import RequestContext
from kbroker.server.services import Services
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.sliced import sliced

logger = logging.getLogger(__name__)

GROUP: Final = 0
TRANSACTION: Final = 1
SHARE: Final = 2
STEP_CHARACTERS: Final = 16_384
"""Of keys, that are hashed in one step."""

KEY_CHARACTERS: Final = 512
"""Characters whose hash code takes as long as the rest of the work for a key."""

BATCHED_VERSION: Final = 4
"""From this version on a request names several keys."""

SHARE_VERSION: Final = 6
"""From this version on a request may be for share groups."""

_TOPICS: Final[Mapping[int, str]] = {
    GROUP: GROUP_TOPIC,
    TRANSACTION: TRANSACTION_TOPIC,
    SHARE: SHARE_TOPIC,
}

_Coordinator = FindCoordinatorResponse.Coordinator


def _response(coordinators: list[_Coordinator], *, batched: bool) -> FindCoordinatorResponse:
    if batched:
        return FindCoordinatorResponse(coordinators=coordinators)
    only = coordinators[0]
    return FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message or ErrorCode(only.error_code).name,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


def _failed(key: str, error: ErrorCode, message: str) -> _Coordinator:
    return _Coordinator(
        key=key, node_id=-1, host="", port=-1, error_code=error, error_message=message
    )


def find_coordinator_error(
    request: FindCoordinatorRequest, error: ErrorCode, message: str
) -> FindCoordinatorResponse:
    """The same error for every key; a batched request is known by its keys."""
    if request.coordinator_keys:
        keys = [_failed(key, error, message) for key in request.coordinator_keys]
        return _response(keys, batched=True)
    return _response([_failed(request.key, error, message)], batched=False)


@sliced
def handle_find_coordinator(
    services: Services, context: RequestContext, request: FindCoordinatorRequest
) -> Steps[FindCoordinatorResponse]:
    """Answer at once, or once the channel to the controller has made the coordinators' topic."""
    topic = _TOPICS.get(request.key_type)
    unknown = topic is None or (request.key_type == SHARE and context.api_version < SHARE_VERSION)
    asks_for_topic = topic is not None and not unknown and topic not in services.image.topics
    found: list[_Coordinator] = []
    unseen = 0
    for key in _keys(context, request):
        unseen += KEY_CHARACTERS + len(key)
        if unseen >= STEP_CHARACTERS:
            unseen = 0
            yield None
        if topic is None or unknown:
            message = f"Unknown key type {request.key_type}."
            found.append(_failed(key, ErrorCode.INVALID_REQUEST, message))
        elif request.key_type == SHARE and not is_coordinator_key(key):
            found.append(_failed(key, ErrorCode.INVALID_REQUEST, ""))
        else:
            if asks_for_topic:
                asks_for_topic = False
                requested = _requested(services, topic)
                if not requested.done:
                    yield requested
            found.append(_find(services, context, request.key_type, key))
    return _response(found, batched=context.api_version >= BATCHED_VERSION)


def _requested(services: Services, topic: str) -> Deferred[ErrorCode]:
    """Request the coordinators' topic; resolves when the client is to be answered, with the reason
    if the topic cannot be created.
    """

    def refused(error: KafkaError) -> ErrorCode:
        logger.warning("node %d: %s cannot be created: %s", services.node_id, topic, shown(error))
        return error.code

    try:
        return services.channel.request_internal_topic(topic).recover(refused)
    except KafkaError as error:
        return Deferred.of(refused(error))


def _keys(context: RequestContext, request: FindCoordinatorRequest) -> list[str]:
    batched = context.api_version >= BATCHED_VERSION
    return request.coordinator_keys if batched else [request.key]


def _find(services: Services, context: RequestContext, key_type: int, key: str) -> _Coordinator:
    """The leader of the key's partition, if a client of this listener can reach it."""
    image = services.image
    partition = image.partition(_TOPICS[key_type], _partition_for(services, key_type, key))
    broker = image.brokers.get(partition.leader) if partition is not None else None
    endpoint = broker.endpoints.get(context.session.listener_name) if broker is not None else None
    if broker is None or endpoint is None or broker.fenced:
        return _failed(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
    return _Coordinator(key=key, node_id=broker.id, host=endpoint.host, port=endpoint.port)


def _partition_for(services: Services, key_type: int, key: str) -> int:
    if key_type == SHARE:
        return services.share_coordinator.partition_for(key)
    coordinator = services.groups if key_type == GROUP else services.transactions
    return coordinator.partition_for(key)


HANDLERS: tuple[ApiHandler[Services], ...] = (
    ApiHandler(
        ApiKey.FIND_COORDINATOR,
        handle_find_coordinator,
        find_coordinator_error,
        POLICIES[ApiKey.FIND_COORDINATOR],
        refusal=Division(("coordinator_keys",), ("coordinators",)),
    ),
)
