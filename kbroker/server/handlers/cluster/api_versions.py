"""ApiVersions v0-4: what the listener serves, computed from the registered handlers; of the APIs
that a broker forwards, the versions that the active controller serves, too.

v0: error and ranges. v1: throttle time. v3: flexible, client software name and version (KIP-511),
features (KIP-584); the response header stays at version 0 so that a client that asked with too new
a version can read the response. v4: also supported features whose minimum is 0, which the Java
client of v3 cannot take (KAFKA-17011). A version above 4 is answered in v0 with UNSUPPORTED_VERSION
and the one range that helps (see `dispatch`). Deviation: a client software name or version of more
than 1024 characters is INVALID_REQUEST.
"""

from __future__ import annotations

import re
from typing import Final

from kbroker.metadata.features import SUPPORTED_FEATURES
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kbroker.server.api_handler import ApiHandler
from kbroker.server.policies.data import API_VERSIONS as POLICIES
from kbroker.server.requests import RequestContext
from kbroker.server.services import NodeServices

MIN_VERSION: Final = 0
MAX_VERSION: Final = 4

MAX_SOFTWARE_CHARS: Final = 1024
"""The connection keeps them as long as it lives. Kafka has no such bound."""

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle_api_versions(
    services: NodeServices, context: RequestContext, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    """Answer with ranges and features; keep the client software in the session."""
    version = context.api_version
    if version >= 3:
        name, software_version = request.client_software_name, request.client_software_version
        is_too_long = max(len(name), len(software_version)) > MAX_SOFTWARE_CHARS
        if is_too_long or not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(software_version)):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "client software name or version is not valid"
            )
        context.session.client_software_name = name
        context.session.client_software_version = software_version
    response = ApiVersionsResponse(
        api_keys=[
            ApiVersionsResponse.ApiVersion(
                api_key=entry.api_key, min_version=entry.min_version, max_version=entry.max_version
            )
            for entry in context.session.api_versions()
        ]
    )
    if version >= 3:
        _add_features(services, version, response)
    return response


def _add_features(services: NodeServices, version: int, response: ApiVersionsResponse) -> None:
    response.supported_features = [
        ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=low, max_version=high)
        for name, (low, high) in SUPPORTED_FEATURES.items()
        if version >= 4 or low > 0
    ]
    response.finalized_features = [
        ApiVersionsResponse.FinalizedFeatureKey(
            name=name, max_version_level=level, min_version_level=level
        )
        for name, level in services.metadata.finalized_features().items()
    ]
    response.finalized_features_epoch = services.image.offset


def error_response(
    request: ApiVersionsRequest | None, error: ErrorCode, message: str
) -> ApiVersionsResponse:
    """request: None for a version that cannot be read; its response names the range of ApiVersions
    itself.
    """
    response = ApiVersionsResponse(error_code=error)
    if error == ErrorCode.UNSUPPORTED_VERSION:
        response.api_keys = [
            ApiVersionsResponse.ApiVersion(
                api_key=ApiKey.API_VERSIONS, min_version=MIN_VERSION, max_version=MAX_VERSION
            )
        ]
    return response


HANDLERS: tuple[ApiHandler[NodeServices], ...] = (
    ApiHandler(
        ApiKey.API_VERSIONS,
        handle_api_versions,
        error_response,
        POLICIES[ApiKey.API_VERSIONS],
    ),
)
