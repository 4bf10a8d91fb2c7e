"""Counts of requests that were answered with an error."""

from __future__ import annotations

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.server.request_errors import RequestErrors


def test_requests_are_counted_by_api_and_code() -> None:
    errors = RequestErrors()
    for api_key, code in (
        (ApiKey.CREATE_TOPICS, ErrorCode.NOT_CONTROLLER),
        (ApiKey.CREATE_TOPICS, ErrorCode.REQUEST_TIMED_OUT),
        (ApiKey.DELETE_TOPICS, ErrorCode.NOT_CONTROLLER),
        (ApiKey.CREATE_TOPICS, ErrorCode.NOT_CONTROLLER),
    ):
        errors.count(api_key, code)
    assert errors.counts == {(19, 41): 2, (19, 7): 1, (20, 41): 1}
    assert errors.surprises == 0
