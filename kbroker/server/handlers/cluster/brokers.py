"""What brokers ask the active controller: BrokerRegistration v0-4, BrokerHeartbeat v0-2,
AlterPartition v2-3, AssignReplicasToDirs v0, AllocateProducerIds v0; UnregisterBroker v0 from an
administrator (KIP-500, KIP-497, KIP-730, KIP-858).

All on controller listeners; brokers forward UnregisterBroker. Registration v2 names log directories
(KIP-858), v3 the epoch of the previous incarnation (KIP-966); heartbeat v1 names directories that
failed; AlterPartition v3 names the epochs of the brokers in the new ISR (KIP-903), which are not
checked for v2. A response leaves once the records are committed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.controller.brokers.broker_heartbeat import HeartbeatReply
from kbroker.controller.producer_ids import ProducerIdBlock
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from kbroker.server.api_handler import ApiHandler
from kbroker.server.policies.administration import BROKERS as POLICIES
from kbroker.server.requests import RequestContext
from kbroker.server.services import ControllerServices


def register_broker(
    services: ControllerServices, context: RequestContext, request: BrokerRegistrationRequest
) -> Deferred[BrokerRegistrationResponse]:
    """The broker is fenced until a heartbeat of it asks for more."""
    del context
    return services.node_requests.register_broker(request).then(
        lambda epoch: BrokerRegistrationResponse(broker_epoch=epoch)
    )


def broker_heartbeat(
    services: ControllerServices, context: RequestContext, request: BrokerHeartbeatRequest
) -> Deferred[BrokerHeartbeatResponse]:
    """Renews the broker's session; unfences, fences or shuts the broker down as it asks."""
    del context
    return services.node_requests.heartbeat(request).then(_heartbeat_response)


def _heartbeat_response(reply: HeartbeatReply) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(
        is_caught_up=reply.is_caught_up,
        is_fenced=reply.is_fenced,
        should_shut_down=reply.should_shut_down,
    )


def unregister_broker(
    services: ControllerServices, context: RequestContext, request: UnregisterBrokerRequest
) -> Deferred[UnregisterBrokerResponse]:
    """The broker leaves its ISRs and the cluster."""
    del context
    return services.node_requests.unregister_broker(request.broker_id).then(
        lambda _: UnregisterBrokerResponse()
    )


def alter_partition(
    services: ControllerServices, context: RequestContext, request: AlterPartitionRequest
) -> Deferred[AlterPartitionResponse]:
    """The ISRs that leaders propose."""
    del context
    return services.node_requests.alter_partition(request)


def assign_replicas_to_directories(
    services: ControllerServices, context: RequestContext, request: AssignReplicasToDirsRequest
) -> Deferred[AssignReplicasToDirsResponse]:
    """In which of its log directories the broker's replicas are."""
    del context
    return services.node_requests.assign_replicas_to_directories(request)


def allocate_producer_ids(
    services: ControllerServices, context: RequestContext, request: AllocateProducerIdsRequest
) -> Deferred[AllocateProducerIdsResponse]:
    """The next block of producer ids for a broker."""
    del context
    block = services.node_requests.allocate_producer_ids(request.broker_id, request.broker_epoch)
    return block.then(_producer_ids_response)


def _producer_ids_response(block: ProducerIdBlock) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(
        producer_id_start=block.first_id, producer_id_len=block.count
    )


# Any: each API has a request class of its own
def _error_code(response: Callable[..., Message]) -> Callable[[Any, ErrorCode, str], Message]:
    """The error response of an API whose response has an error code only."""

    def error_response(request: Any, error: ErrorCode, message: str) -> Message:
        del request, message
        return response(error_code=error)

    return error_response


def unregister_broker_error(
    request: UnregisterBrokerRequest, error: ErrorCode, message: str
) -> UnregisterBrokerResponse:
    """The error of the whole response."""
    del request
    return UnregisterBrokerResponse(error_code=error, error_message=message or None)


HANDLERS: tuple[ApiHandler[ControllerServices], ...] = (
    ApiHandler(
        ApiKey.BROKER_REGISTRATION,
        register_broker,
        _error_code(BrokerRegistrationResponse),
        POLICIES[ApiKey.BROKER_REGISTRATION],
    ),
    ApiHandler(
        ApiKey.BROKER_HEARTBEAT,
        broker_heartbeat,
        _error_code(BrokerHeartbeatResponse),
        POLICIES[ApiKey.BROKER_HEARTBEAT],
    ),
    ApiHandler(
        ApiKey.ALTER_PARTITION,
        alter_partition,
        _error_code(AlterPartitionResponse),
        POLICIES[ApiKey.ALTER_PARTITION],
    ),
    ApiHandler(
        ApiKey.ASSIGN_REPLICAS_TO_DIRS,
        assign_replicas_to_directories,
        _error_code(AssignReplicasToDirsResponse),
        POLICIES[ApiKey.ASSIGN_REPLICAS_TO_DIRS],
    ),
    ApiHandler(
        ApiKey.ALLOCATE_PRODUCER_IDS,
        allocate_producer_ids,
        _error_code(AllocateProducerIdsResponse),
        POLICIES[ApiKey.ALLOCATE_PRODUCER_IDS],
    ),
    ApiHandler(
        ApiKey.UNREGISTER_BROKER,
        unregister_broker,
        unregister_broker_error,
        POLICIES[ApiKey.UNREGISTER_BROKER],
    ),
)
