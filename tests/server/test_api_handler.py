"""What follows from the registered APIs together."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from kbroker.model import InvariantError
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.groups import HeartbeatResponse
from kbroker.server.api_handler import (
    ApiHandler,
    LateHandler,
    api_version_ranges,
    small_responses,
)
from kbroker.server.api_policy import NO_AUTHORISATION, ApiPolicy, MemoryClass, Versions
from kbroker.server.handlers import (
    CONTROLLER_MODULES,
    MODULES,
    broker_apis,
    controller_apis,
    telemetry_apis,
)


def heartbeat_error(request: Any, error: ErrorCode, message: str) -> Message:
    return HeartbeatResponse(error_code=error)


def policy(min_version: int, max_version: int) -> ApiPolicy:
    return ApiPolicy(Versions(min_version, max_version), NO_AUTHORISATION)


def test_announced_ranges() -> None:
    handlers: tuple[ApiHandler[Any], ...] = (
        ApiHandler(ApiKey.HEARTBEAT, lambda s, c, r: None, heartbeat_error, policy(0, 4)),
        ApiHandler(ApiKey.PRODUCE, lambda s, c, r: None, heartbeat_error, policy(3, 13)),
    )
    assert api_version_ranges(handlers) == [(0, 3, 13), (12, 0, 4)]


def test_announced_ranges_and_small_responses_come_from_the_policies() -> None:
    small = ApiPolicy(Versions(0, 4), NO_AUTHORISATION, memory_class=MemoryClass.SMALL_RESPONSE)
    handlers: list[ApiHandler[Any]] = [
        ApiHandler(ApiKey.HEARTBEAT, lambda s, c, r: None, heartbeat_error, small),
        ApiHandler(ApiKey.METADATA, lambda s, c, r: None, heartbeat_error, policy(0, 13)),
    ]
    assert small_responses(handlers) == {ApiKey.HEARTBEAT}
    assert api_version_ranges(handlers) == [(3, 0, 13), (12, 0, 4)]


def test_a_late_handler_is_found_in_its_module_with_the_policy_of_its_table() -> None:
    every: list[LateHandler[Any]] = [*broker_apis(), *telemetry_apis(), *controller_apis()]
    for late in every:
        handler = late.load()
        assert (handler.api_key, handler.policy) == (late.api_key, late.policy)
        assert handler.load() is handler


def test_a_table_with_an_api_that_its_module_does_not_have_is_a_broken_invariant() -> None:
    late: LateHandler[Any] = LateHandler(
        "kbroker.server.handlers.records.produce", ApiKey.FETCH, policy(0, 4)
    )
    with pytest.raises(InvariantError, match="FETCH"):
        late.load()


def test_every_handler_of_a_module_is_in_its_table() -> None:
    for name, policies in {**MODULES, **CONTROLLER_MODULES}.items():
        handlers = import_module(f"kbroker.server.handlers.{name}").HANDLERS
        assert [handler.api_key for handler in handlers] == list(policies)
