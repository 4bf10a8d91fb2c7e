"""What follows from the registered APIs together."""

from __future__ import annotations

from typing import Any

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.groups import HeartbeatResponse
from kbroker.server.api_handler import ApiHandler, api_version_ranges, small_responses
from kbroker.server.api_policy import NO_AUTHORISATION, ApiPolicy, MemoryClass, Versions


def heartbeat_error(request: Any, error: ErrorCode, message: str) -> Message:
    return HeartbeatResponse(error_code=error)


def policy(min_version: int, max_version: int) -> ApiPolicy:
    return ApiPolicy(Versions(min_version, max_version), NO_AUTHORISATION)


def test_announced_ranges() -> None:
    handlers = (
        ApiHandler(ApiKey.HEARTBEAT, lambda s, c, r: None, heartbeat_error, policy(0, 4)),
        ApiHandler(ApiKey.PRODUCE, lambda s, c, r: None, heartbeat_error, policy(3, 13)),
    )
    assert api_version_ranges(handlers) == [(0, 3, 13), (12, 0, 4)]


def test_announced_ranges_and_small_responses_come_from_the_policies() -> None:
    small = ApiPolicy(Versions(0, 4), NO_AUTHORISATION, memory_class=MemoryClass.SMALL_RESPONSE)
    handlers = [
        ApiHandler(ApiKey.HEARTBEAT, lambda s, c, r: None, heartbeat_error, small),
        ApiHandler(ApiKey.METADATA, lambda s, c, r: None, heartbeat_error, policy(0, 13)),
    ]
    assert small_responses(handlers) == {ApiKey.HEARTBEAT}
    assert api_version_ranges(handlers) == [(3, 0, 13), (12, 0, 4)]
