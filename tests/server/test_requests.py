"""What stands in place of a response: bytes that are encoded already, and refusals."""

from __future__ import annotations

import pytest

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError, MalformedRequest
from kbroker.server.requests import (
    PendingResponse,
    Refusal,
    RefusedRequest,
    RequestContext,
    WrittenResponse,
)
from kbroker.server.session import Session


@pytest.mark.parametrize("version", [0, 7, -1])
def test_written_parts_follow_what_is_there(version: int) -> None:
    parts: list[object] = [b"earlier"]
    response = WrittenResponse([b"one", b"two"])
    rest = response.ENCODERS.get(version)(response, bytearray(b"head"), parts)  # type: ignore[arg-type]  # only bytes
    assert parts == [b"earlier", bytearray(b"head"), b"one", b"two"]
    assert rest == b""
    with pytest.raises(ValueError, match="as one"):
        response.ENCODERS.get(version)(response, bytearray(), None)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (KafkaError(ErrorCode.INVALID_REQUEST, "why"), RefusedRequest),
        (MalformedRequest("why"), RefusedRequest),
        (IndexError("why"), IndexError),
    ],
)
def test_a_refusal_is_raised_when_it_is_rendered_and_not_kept(
    error: Exception, kind: type[Exception]
) -> None:
    refusal = Refusal(error)
    with pytest.raises(kind, match="why") as caught:
        refusal.ENCODERS.get(3)(refusal, bytearray(), None)
    assert (caught.value is error) == (kind is not RefusedRequest)
    assert refusal._errors == []


def test_a_place_has_no_response_at_first() -> None:
    pending = PendingResponse(ApiKey.FETCH, 12, 7)
    assert (pending.message, pending.deferred) == (None, None)
    assert (pending.api_key, pending.api_version, pending.correlation_id) == (1, 12, 7)


def test_a_request_has_the_address_of_its_session() -> None:
    context = RequestContext(ApiKey.FETCH, 12, session=Session(client_host="::1"))
    assert context.client_host == "::1"
    assert RequestContext(ApiKey.FETCH, 12).session is not RequestContext(ApiKey.FETCH, 12).session
