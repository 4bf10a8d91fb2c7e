"""APIs of ACLs on a cluster without an authorizer."""

from __future__ import annotations

import pytest

from kbroker.protocol.codecs.schema import Request
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.acls import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from kbroker.server.handlers.configs.acls import HANDLERS
from kbroker.server.requests import RequestContext
from tests.server.slices import Sliced

HANDLER_OF = {handler.api_key: handler for handler in HANDLERS}
ALL, LITERAL, ANY = 2, 3, 1
Creation = CreateAclsRequest.AclCreation
Filter = DeleteAclsRequest.DeleteAclsFilter


def describe(operation: int = ANY) -> DescribeAclsRequest:
    return DescribeAclsRequest(resource_type_filter=ANY, operation=operation, permission_type=ANY)


def creation(operation: int = ALL) -> Creation:
    return Creation(resource_type=2, resource_name="t", operation=operation, permission_type=3)


def deletion(operation: int = ANY) -> Filter:
    return Filter(resource_type_filter=ANY, operation=operation, permission_type=ANY)


def failure(request: Request) -> KafkaError:
    """The error of a request; it may come in a later slice."""
    sliced = Sliced()
    handler = HANDLER_OF[request.API_KEY]
    context = RequestContext(handler.api_key, handler.max_version)
    with pytest.raises(KafkaError) as raised:
        sliced.answer(handler.handle(sliced.services, context, request))
    return raised.value


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (describe(), "No Authorizer is configured on the broker"),
        (CreateAclsRequest(creations=[creation()]), "No Authorizer is configured."),
        (DeleteAclsRequest(filters=[deletion()]), "No Authorizer is configured."),
        (DeleteAclsRequest(filters=[deletion()] * 5000), "No Authorizer is configured."),
    ],
)
def test_security_is_disabled(request_: Request, message: str) -> None:
    error = failure(request_)
    assert (error.code, error.message) == (ErrorCode.SECURITY_DISABLED, message)


@pytest.mark.parametrize(
    "request_",
    [
        describe(operation=0),
        CreateAclsRequest(creations=[creation(), creation(operation=0)]),
        DeleteAclsRequest(filters=[deletion(operation=0)]),
    ],
)
def test_unknown_elements_are_invalid(request_: Request) -> None:
    assert failure(request_).code is ErrorCode.INVALID_REQUEST


def test_error_responses() -> None:
    code, message = ErrorCode.SECURITY_DISABLED, "why"
    describing, creating, deleting = HANDLERS
    described = describing.error_response(describe(), code, message)
    assert isinstance(described, DescribeAclsResponse)
    assert (described.error_code, described.error_message) == (code, message)
    created = creating.error_response(CreateAclsRequest(creations=[creation()] * 2), code, message)
    assert isinstance(created, CreateAclsResponse)
    assert [(each.error_code, each.error_message) for each in created.results] == [
        (code, message)
    ] * 2
    deleted = deleting.error_response(DeleteAclsRequest(filters=[deletion()] * 2), code, message)
    assert isinstance(deleted, DeleteAclsResponse)
    assert [each.error_code for each in deleted.filter_results] == [code] * 2
