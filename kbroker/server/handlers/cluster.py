"""DescribeCluster v0-2: the brokers that a client of the listener can reach.

v1: endpoint type (KIP-919). v2: fenced brokers (KIP-1073). Deviation: no ACLs yet, so every
operation is authorized.
"""

from __future__ import annotations

from typing import Final

from kbroker.metadata.cluster_view import ClusterView
from kbroker.protocol.acl_operations import AclResource, authorized_operations
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from kbroker.server.api_handler import ApiHandler
from kbroker.server.api_policy import (
    NO_AUTHORISATION,
    ApiPolicy,
    Versions,
)
from kbroker.server.requests import RequestContext
from kbroker.server.services import Services

BROKER_ENDPOINT: Final = 1
CONTROLLER_ENDPOINT: Final = 2


def handle_describe_cluster(
    services: Services, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """The brokers that are registered with the listener."""
    endpoint_type = request.endpoint_type
    if endpoint_type == CONTROLLER_ENDPOINT:
        raise KafkaError(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if context.api_version
            else ErrorCode.INVALID_REQUEST,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint "
            "of type CONTROLLER",
        )
    if endpoint_type != BROKER_ENDPOINT:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            if context.api_version
            else ErrorCode.INVALID_REQUEST,
            f"Unsupported endpoint type {endpoint_type}",
        )
    image, listener_name = services.image, context.session.listener_name
    view = ClusterView(image, listener_name)
    brokers = [
        broker
        for broker in sorted(image.brokers.values(), key=lambda broker: broker.id)
        if listener_name in broker.endpoints
        and (request.include_fenced_brokers or not broker.fenced)
    ]
    response = DescribeClusterResponse(
        cluster_id=services.cluster_id,
        controller_id=min(view.reachable, default=-1),
        endpoint_type=BROKER_ENDPOINT,
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=broker.id,
                host=broker.endpoints[listener_name].host,
                port=broker.endpoints[listener_name].port,
                rack=broker.rack,
                is_fenced=request.include_fenced_brokers and broker.fenced,
            )
            for broker in brokers
        ],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = authorized_operations(AclResource.CLUSTER)
    return response


def describe_cluster_error(
    request: DescribeClusterRequest, error: ErrorCode, message: str
) -> DescribeClusterResponse:
    """The error of the whole response."""
    return DescribeClusterResponse(error_code=error, error_message=message or None)


HANDLERS: tuple[ApiHandler, ...] = (
    ApiHandler(
        ApiKey.DESCRIBE_CLUSTER,
        handle_describe_cluster,
        describe_cluster_error,
        ApiPolicy(Versions(0, 2), NO_AUTHORISATION),
    ),
)
