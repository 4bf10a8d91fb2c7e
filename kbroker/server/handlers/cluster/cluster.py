"""DescribeCluster v0-2: the brokers that a client of the listener can reach.

v1: endpoint type (KIP-919). v2: fenced brokers (KIP-1073). The controllers describe themselves, in
`controllers`. Deviation: no ACLs yet, so every operation is authorized.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from kbroker.server.policies.data import CLUSTER as POLICIES
from kbroker.server.requests import RequestContext
from kbroker.server.services import Services

BROKER_ENDPOINT: Final = 1
CONTROLLER_ENDPOINT: Final = 2
_ENDPOINTS: Final[Mapping[int, str]] = {
    BROKER_ENDPOINT: "BROKER",
    CONTROLLER_ENDPOINT: "CONTROLLER",
}


def handle_describe_cluster(
    services: Services, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """The brokers that are registered with the listener."""
    check_endpoint_type(request.endpoint_type, BROKER_ENDPOINT, context.api_version)
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


def check_endpoint_type(endpoint_type: int, expected: int, api_version: int) -> None:
    """expected: that of the listener. Raises KafkaError."""
    wanted = _ENDPOINTS.get(endpoint_type)
    if endpoint_type == expected:
        return
    if wanted is None:
        code, message = (
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            f"Unsupported endpoint type {endpoint_type}",
        )
    else:
        code, message = (
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            f"The request was sent to an endpoint of type {_ENDPOINTS[expected]}, but we wanted an "
            f"endpoint of type {wanted}",
        )
    raise KafkaError(code if api_version else ErrorCode.INVALID_REQUEST, message)


def describe_cluster_error(
    request: DescribeClusterRequest, error: ErrorCode, message: str
) -> DescribeClusterResponse:
    """The error of the whole response."""
    return DescribeClusterResponse(error_code=error, error_message=message or None)


HANDLERS: tuple[ApiHandler[Services], ...] = (
    ApiHandler(
        ApiKey.DESCRIBE_CLUSTER,
        handle_describe_cluster,
        describe_cluster_error,
        POLICIES[ApiKey.DESCRIBE_CLUSTER],
    ),
)
