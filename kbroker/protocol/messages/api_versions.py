"""ApiVersions: the versions and features of the other side (KIP-35, KIP-511, KIP-584, KIP-1242)."""

from __future__ import annotations

from kbroker.protocol.codecs.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    string,
)


class ApiVersionsRequest(
    Request, api_key=18, versions="0-4", flexible="3+", listeners="broker controller"
):
    client_software_name: str = string("3+", ignorable=True)
    client_software_version: str = string("3+", ignorable=True)


class ApiVersionsResponse(Response, api_key=18, versions="0-4", flexible="3+"):
    class ApiVersion(Struct):
        api_key: int = int16("0+")
        min_version: int = int16("0+")
        max_version: int = int16("0+")

    class SupportedFeatureKey(Struct):
        name: str = string("3+")
        min_version: int = int16("3+")
        max_version: int = int16("3+")

    class FinalizedFeatureKey(Struct):
        name: str = string("3+")
        max_version_level: int = int16("3+")
        min_version_level: int = int16("3+")

    error_code: int = int16("0+")
    api_keys: list[ApiVersionsResponse.ApiVersion] = array("ApiVersion", "0+")
    throttle_time_ms: int = int32("1+", ignorable=True)
    supported_features: list[ApiVersionsResponse.SupportedFeatureKey] = array(
        "SupportedFeatureKey", "3+", tag=0, tagged="3+", ignorable=True
    )
    finalized_features_epoch: int = int64("3+", tag=1, tagged="3+", default=-1, ignorable=True)
    finalized_features: list[ApiVersionsResponse.FinalizedFeatureKey] = array(
        "FinalizedFeatureKey", "3+", tag=2, tagged="3+", ignorable=True
    )
    zk_migration_ready: bool = boolean("3+", tag=3, tagged="3+", default=False, ignorable=True)
