"""Reading and changing configurations (KIP-133, KIP-339, KIP-1142)."""

from __future__ import annotations

from kbroker.protocol.codecs.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    string,
)


class DescribeConfigsRequest(
    Request, api_key=32, versions="0-4", flexible="4+", listeners="broker controller"
):
    class DescribeConfigsResource(Struct):
        resource_type: int = int8("0+")
        resource_name: str = string("0+")
        configuration_keys: list[str] | None = array("string", "0+", nullable="0+")

    resources: list[DescribeConfigsRequest.DescribeConfigsResource] = array(
        "DescribeConfigsResource", "0+"
    )
    include_synonyms: bool = boolean("1+", default=False)
    include_documentation: bool = boolean("3+", default=False)


class DescribeConfigsResponse(Response, api_key=32, versions="0-4", flexible="4+"):
    class DescribeConfigsSynonym(Struct):
        name: str = string("1+")
        value: str | None = string("1+", nullable="0+")
        source: int = int8("1+")

    class DescribeConfigsResourceResult(Struct):
        name: str = string("0+")
        value: str | None = string("0+", nullable="0+")
        read_only: bool = boolean("0+")
        is_default: bool = boolean("0")
        config_source: int = int8("1+", default=-1, ignorable=True)
        is_sensitive: bool = boolean("0+")
        synonyms: list[DescribeConfigsResponse.DescribeConfigsSynonym] = array(
            "DescribeConfigsSynonym", "1+", ignorable=True
        )
        config_type: int = int8("3+", default=0, ignorable=True)
        documentation: str | None = string("3+", nullable="0+", ignorable=True)

    class DescribeConfigsResult(Struct):
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+")
        resource_type: int = int8("0+")
        resource_name: str = string("0+")
        configs: list[DescribeConfigsResponse.DescribeConfigsResourceResult] = array(
            "DescribeConfigsResourceResult", "0+"
        )

    throttle_time_ms: int = int32("0+")
    results: list[DescribeConfigsResponse.DescribeConfigsResult] = array(
        "DescribeConfigsResult", "0+"
    )


class AlterConfigsRequest(
    Request, api_key=33, versions="0-2", flexible="2+", listeners="broker controller"
):
    class AlterableConfig(Struct):
        name: str = string("0+")
        value: str | None = string("0+", nullable="0+")

    class AlterConfigsResource(Struct):
        resource_type: int = int8("0+")
        resource_name: str = string("0+")
        configs: list[AlterConfigsRequest.AlterableConfig] = array("AlterableConfig", "0+")

    resources: list[AlterConfigsRequest.AlterConfigsResource] = array("AlterConfigsResource", "0+")
    validate_only: bool = boolean("0+")


class AlterConfigsResponse(Response, api_key=33, versions="0-2", flexible="2+"):
    class AlterConfigsResourceResponse(Struct):
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+")
        resource_type: int = int8("0+")
        resource_name: str = string("0+")

    throttle_time_ms: int = int32("0+")
    responses: list[AlterConfigsResponse.AlterConfigsResourceResponse] = array(
        "AlterConfigsResourceResponse", "0+"
    )


class IncrementalAlterConfigsRequest(
    Request, api_key=44, versions="0-1", flexible="1+", listeners="broker controller"
):
    class AlterableConfig(Struct):
        name: str = string("0+")
        config_operation: int = int8("0+")
        value: str | None = string("0+", nullable="0+")

    class AlterConfigsResource(Struct):
        resource_type: int = int8("0+")
        resource_name: str = string("0+")
        configs: list[IncrementalAlterConfigsRequest.AlterableConfig] = array(
            "AlterableConfig", "0+"
        )

    resources: list[IncrementalAlterConfigsRequest.AlterConfigsResource] = array(
        "AlterConfigsResource", "0+"
    )
    validate_only: bool = boolean("0+")


class IncrementalAlterConfigsResponse(Response, api_key=44, versions="0-1", flexible="1+"):
    class AlterConfigsResourceResponse(Struct):
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+")
        resource_type: int = int8("0+")
        resource_name: str = string("0+")

    throttle_time_ms: int = int32("0+")
    responses: list[IncrementalAlterConfigsResponse.AlterConfigsResourceResponse] = array(
        "AlterConfigsResourceResponse", "0+"
    )


class ListConfigResourcesRequest(
    Request, api_key=74, versions="0-1", flexible="0+", listeners="broker"
):
    resource_types: list[int] = array("int8", "1+")


class ListConfigResourcesResponse(Response, api_key=74, versions="0-1", flexible="0+"):
    class ConfigResource(Struct):
        resource_name: str = string("0+")
        resource_type: int = int8("1+", default=16, ignorable=True)

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    config_resources: list[ListConfigResourcesResponse.ConfigResource] = array(
        "ConfigResource", "0+"
    )
