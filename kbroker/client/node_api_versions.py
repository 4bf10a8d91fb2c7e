"""The API versions that a broker announced on one connection, and how they are agreed on (KIP-35,
KIP-511).
"""

from __future__ import annotations

from typing import Final

from kbroker.protocol.apis import ApiKey, valid_versions
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

SOFTWARE_NAME: Final = "kbroker"
SOFTWARE_VERSION: Final = "1"
LOWEST_VERSION, FIRST_VERSION = valid_versions(ApiKey.API_VERSIONS)
"""The version of the first ApiVersions request on a connection: our highest."""


def api_versions_request() -> ApiVersionsRequest:
    """The first request on a connection."""
    return ApiVersionsRequest(
        client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION
    )


def retry_version(response: ApiVersionsResponse) -> int | None:
    """The version in which ApiVersions is sent again to a broker that refused `FIRST_VERSION`; None
    if it did not.
    """
    if response.error_code != ErrorCode.UNSUPPORTED_VERSION:
        return None
    theirs = {api.api_key: api.max_version for api in response.api_keys}
    return min(FIRST_VERSION, theirs.get(ApiKey.API_VERSIONS, LOWEST_VERSION))


class NodeApiVersions:
    """The version ranges of one broker. address: names it in errors."""

    __slots__ = ("_address", "_ranges")

    def __init__(self, address: str, response: ApiVersionsResponse) -> None:
        """Raises KafkaError with the response's error."""
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code), f"ApiVersions to {address}")
        self._address = address
        self._ranges = {
            api.api_key: (api.min_version, api.max_version) for api in response.api_keys
        }

    def range_of(self, api_key: int) -> tuple[int, int] | None:
        """The versions that the broker serves, both ends inclusive; None if it has not the API."""
        return self._ranges.get(api_key)

    def version_of(self, api_key: int, max_version: int | None = None) -> int:
        """The highest version that both sides support. Raises KafkaError(UNSUPPORTED_VERSION) if
        there is none.
        """
        ours_low, ours_high = valid_versions(api_key)
        if max_version is not None:
            ours_high = min(ours_high, max_version)
        low, high = self._ranges.get(api_key, (0, -1))
        version = min(ours_high, high)
        if version < max(ours_low, low):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self._address} serves {ApiKey(api_key).name} {low}-{high}, "
                f"this client speaks {ours_low}-{ours_high}",
            )
        return version
