"""DescribeAcls v0-3, CreateAcls v0-3, DeleteAcls v0-3 (KIP-140) of a cluster without an authorizer:
SECURITY_DISABLED.

v1: pattern types (KIP-290). v2: flexible. v3: user resources (KIP-373). The message of DescribeAcls
differs from that of the other two, as in Kafka. Deviation: a request with an UNKNOWN element is
answered INVALID_REQUEST; Kafka closes the connection.
"""

from __future__ import annotations

from typing import Final

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.acls import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from kbroker.replication.time_slices import Pace, Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.policies.administration import ACLS as POLICIES
from kbroker.server.requests import RequestContext
from kbroker.server.services import NodeServices
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.sliced import CHEAP_ITEMS, sliced

UNKNOWN: Final = 0
"""Of resource types, pattern types, operations and permission types alike."""

NO_AUTHORIZER: Final = "No Authorizer is configured."


def handle_describe_acls(
    services: NodeServices, context: RequestContext, request: DescribeAclsRequest
) -> DescribeAclsResponse:
    """Raises KafkaError(SECURITY_DISABLED)."""
    _check_known(
        request.resource_type_filter,
        request.pattern_type_filter,
        request.operation,
        request.permission_type,
    )
    raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")


def describe_acls_error(
    request: DescribeAclsRequest, error: ErrorCode, message: str
) -> DescribeAclsResponse:
    """The response that carries only the error."""
    return DescribeAclsResponse(error_code=error, error_message=message or None)


@sliced
def handle_create_acls(
    services: NodeServices, context: RequestContext, request: CreateAclsRequest
) -> Steps[CreateAclsResponse]:
    """Raises KafkaError(SECURITY_DISABLED)."""
    pace = Pace(CHEAP_ITEMS)
    for each in request.creations:
        if pace.is_due():
            yield None
        _check_known(
            each.resource_type, each.resource_pattern_type, each.operation, each.permission_type
        )
    raise KafkaError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)


def create_acls_error(
    request: CreateAclsRequest, error: ErrorCode, message: str
) -> CreateAclsResponse:
    """The same error for every creation."""
    result = CreateAclsResponse.AclCreationResult
    return CreateAclsResponse(
        results=[result(error_code=error, error_message=message or None) for _ in request.creations]
    )


@sliced
def handle_delete_acls(
    services: NodeServices, context: RequestContext, request: DeleteAclsRequest
) -> Steps[DeleteAclsResponse]:
    """Raises KafkaError(SECURITY_DISABLED)."""
    pace = Pace(CHEAP_ITEMS)
    for each in request.filters:
        if pace.is_due():
            yield None
        _check_known(
            each.resource_type_filter,
            each.pattern_type_filter,
            each.operation,
            each.permission_type,
        )
    raise KafkaError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)


def delete_acls_error(
    request: DeleteAclsRequest, error: ErrorCode, message: str
) -> DeleteAclsResponse:
    """The same error for every filter."""
    result = DeleteAclsResponse.DeleteAclsFilterResult
    return DeleteAclsResponse(
        filter_results=[
            result(error_code=error, error_message=message or None) for _ in request.filters
        ]
    )


def _check_known(*elements: int) -> None:
    if UNKNOWN in elements:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The request has UNKNOWN elements.")


HANDLERS: tuple[ApiHandler[NodeServices], ...] = (
    ApiHandler(
        ApiKey.DESCRIBE_ACLS,
        handle_describe_acls,
        describe_acls_error,
        POLICIES[ApiKey.DESCRIBE_ACLS],
    ),
    ApiHandler(
        ApiKey.CREATE_ACLS,
        handle_create_acls,
        create_acls_error,
        POLICIES[ApiKey.CREATE_ACLS],
        refusal=Division(("creations",), ("results",)),
    ),
    ApiHandler(
        ApiKey.DELETE_ACLS,
        handle_delete_acls,
        delete_acls_error,
        POLICIES[ApiKey.DELETE_ACLS],
        refusal=Division(("filters",), ("filter_results",)),
    ),
)
