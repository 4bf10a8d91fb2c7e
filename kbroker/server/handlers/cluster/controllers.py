"""APIs that only the listeners of controllers serve: DescribeCluster of the controllers v0-2,
ControllerRegistration v0 (KIP-919).

An AdminClient with `bootstrap.controllers` asks DescribeCluster for endpoint type 2 and learns the
registered controllers of its listener; v0 has no endpoint type, so it is refused. Each controller
registers with the active one after its start, with its listeners and the features it supports.
Deviation: no ACLs yet, so every operation is authorized.
"""

from __future__ import annotations

from kbroker.metadata.features import REGISTRATION_LEVEL
from kbroker.protocol.acl_operations import AclResource, authorized_operations
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from kbroker.protocol.messages.metadata import DescribeClusterRequest, DescribeClusterResponse
from kbroker.server.api_handler import ApiHandler
from kbroker.server.handlers.cluster.cluster import (
    CONTROLLER_ENDPOINT,
    check_endpoint_type,
    describe_cluster_error,
)
from kbroker.server.policies.administration import CONTROLLERS as POLICIES
from kbroker.server.requests import Outcome, RequestContext
from kbroker.server.services import ControllerServices


def describe_controllers(
    services: ControllerServices, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """The controllers that are registered with the listener. Raises KafkaError."""
    image, listener_name = services.image, context.session.listener_name
    if image.metadata_version < REGISTRATION_LEVEL:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "Direct-to-controller communication is not supported with the current MetadataVersion.",
        )
    check_endpoint_type(request.endpoint_type, CONTROLLER_ENDPOINT, context.api_version)
    found = {
        controller.id: controller.endpoints[listener_name]
        for controller in sorted(image.controllers.values(), key=lambda each: each.id)
        if listener_name in controller.endpoints
    }
    leader_id = services.leader_id()
    response = DescribeClusterResponse(
        cluster_id=services.cluster_id,
        controller_id=leader_id if leader_id in found else -1,
        endpoint_type=CONTROLLER_ENDPOINT,
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=controller_id, host=endpoint.host, port=endpoint.port
            )
            for controller_id, endpoint in found.items()
        ],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = authorized_operations(AclResource.CLUSTER)
    return response


def register_controller(
    services: ControllerServices, context: RequestContext, request: ControllerRegistrationRequest
) -> Outcome:
    """Answered when the registration is committed."""
    del context
    return services.node_requests.register_controller(request).then(
        lambda _: ControllerRegistrationResponse()
    )


def register_controller_error(
    request: ControllerRegistrationRequest, error: ErrorCode, message: str
) -> ControllerRegistrationResponse:
    """The error of the whole response."""
    del request
    return ControllerRegistrationResponse(error_code=error, error_message=message or None)


HANDLERS: tuple[ApiHandler[ControllerServices], ...] = (
    ApiHandler(
        ApiKey.DESCRIBE_CLUSTER,
        describe_controllers,
        describe_cluster_error,
        POLICIES[ApiKey.DESCRIBE_CLUSTER],
    ),
    ApiHandler(
        ApiKey.CONTROLLER_REGISTRATION,
        register_controller,
        register_controller_error,
        POLICIES[ApiKey.CONTROLLER_REGISTRATION],
    ),
)
