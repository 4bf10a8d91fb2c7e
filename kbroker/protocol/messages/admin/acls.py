"""Access control lists (KIP-140)."""

from __future__ import annotations

from kbroker.protocol.codecs.schema import (
    Request,
    Response,
    Struct,
    array,
    int8,
    int16,
    int32,
    string,
)


class DescribeAclsRequest(
    Request, api_key=29, versions="0-3", flexible="2+", listeners="broker controller"
):
    resource_type_filter: int = int8("0+")
    resource_name_filter: str | None = string("0+", nullable="0+")
    pattern_type_filter: int = int8("1+", default=3)
    principal_filter: str | None = string("0+", nullable="0+")
    host_filter: str | None = string("0+", nullable="0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class DescribeAclsResponse(Response, api_key=29, versions="0-3", flexible="2+"):
    class AclDescription(Struct):
        principal: str = string("0+")
        host: str = string("0+")
        operation: int = int8("0+")
        permission_type: int = int8("0+")

    class DescribeAclsResource(Struct):
        resource_type: int = int8("0+")
        resource_name: str = string("0+")
        pattern_type: int = int8("1+", default=3)
        acls: list[DescribeAclsResponse.AclDescription] = array("AclDescription", "0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    resources: list[DescribeAclsResponse.DescribeAclsResource] = array("DescribeAclsResource", "0+")


class CreateAclsRequest(
    Request, api_key=30, versions="0-3", flexible="2+", listeners="broker controller"
):
    class AclCreation(Struct):
        resource_type: int = int8("0+")
        resource_name: str = string("0+")
        resource_pattern_type: int = int8("1+", default=3)
        principal: str = string("0+")
        host: str = string("0+")
        operation: int = int8("0+")
        permission_type: int = int8("0+")

    creations: list[CreateAclsRequest.AclCreation] = array("AclCreation", "0+")


class CreateAclsResponse(Response, api_key=30, versions="0-3", flexible="2+"):
    class AclCreationResult(Struct):
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+")

    throttle_time_ms: int = int32("0+")
    results: list[CreateAclsResponse.AclCreationResult] = array("AclCreationResult", "0+")


class DeleteAclsRequest(
    Request, api_key=31, versions="0-3", flexible="2+", listeners="broker controller"
):
    class DeleteAclsFilter(Struct):
        resource_type_filter: int = int8("0+")
        resource_name_filter: str | None = string("0+", nullable="0+")
        pattern_type_filter: int = int8("1+", default=3)
        principal_filter: str | None = string("0+", nullable="0+")
        host_filter: str | None = string("0+", nullable="0+")
        operation: int = int8("0+")
        permission_type: int = int8("0+")

    filters: list[DeleteAclsRequest.DeleteAclsFilter] = array("DeleteAclsFilter", "0+")


class DeleteAclsResponse(Response, api_key=31, versions="0-3", flexible="2+"):
    class DeleteAclsMatchingAcl(Struct):
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+")
        resource_type: int = int8("0+")
        resource_name: str = string("0+")
        pattern_type: int = int8("1+", default=3)
        principal: str = string("0+")
        host: str = string("0+")
        operation: int = int8("0+")
        permission_type: int = int8("0+")

    class DeleteAclsFilterResult(Struct):
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+")
        matching_acls: list[DeleteAclsResponse.DeleteAclsMatchingAcl] = array(
            "DeleteAclsMatchingAcl", "0+"
        )

    throttle_time_ms: int = int32("0+")
    filter_results: list[DeleteAclsResponse.DeleteAclsFilterResult] = array(
        "DeleteAclsFilterResult", "0+"
    )
