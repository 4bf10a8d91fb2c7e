"""Envelope v0: a request of a client, forwarded by its broker to the active controller (KIP-590).

Controller listeners serve it. The request inside goes through the same chain as one that arrives by
itself, with the principal and the address of the client and the listener of the Envelope; a large
one is decoded and handled in the slices of the Envelope's own bytes, not of a copy. Its response,
header and body, is the Envelope's.

Errors of the Envelope, in the order of the checks: CLUSTER_AUTHORIZATION_FAILED (no
CLUSTER_ACTION), PRINCIPAL_DESERIALIZATION_FAILURE, INVALID_REQUEST (an address of another length
than 4 or 16 bytes), UNSUPPORTED_VERSION (no request header), INVALID_REQUEST (an API that is not
forwarded, such as Envelope), UNSUPPORTED_VERSION (an API or a version that is not served here, or a
body that cannot be decoded). The broker answers UNSUPPORTED_VERSION by closing the client's
connection, and the others with UNKNOWN_SERVER_ERROR. NOT_CONTROLLER replaces a response with that
error anywhere in it, and a DescribeQuorum response with NOT_LEADER_OR_FOLLOWER: the broker then
finds the active controller and sends the request again. Deviation: a principal whose type has a
colon is refused.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple, cast

from kbroker.model import InvariantError
from kbroker.ports import Deferred
from kbroker.protocol.apis import APIS, ApiKey
from kbroker.protocol.codecs.codec import Part, encode_in_steps
from kbroker.protocol.codecs.schema import Message, Response
from kbroker.protocol.errors import ErrorCode, KafkaError, MalformedRequest
from kbroker.protocol.forwarded_client import client_of
from kbroker.protocol.framing import (
    LENGTH,
    RequestHeader,
    decode_request_header,
    encode_response_frame,
)
from kbroker.protocol.messages.cluster import EnvelopeRequest, EnvelopeResponse
from kbroker.protocol.response_errors import error_codes
from kbroker.replication.time_slices import Pace
from kbroker.server.api_handler import ApiHandler
from kbroker.server.dispatch import Dispatcher
from kbroker.server.policies.administration import ENVELOPE as POLICIES
from kbroker.server.requests import (
    CloseConnection,
    HandlerSteps,
    Outcome,
    PendingResponse,
    Refusal,
    RequestContext,
    WrittenResponse,
)
from kbroker.server.services import ControllerServices
from kbroker.server.session import Session
from kbroker.server.slicing.sliced import CHEAP_ITEMS

LENGTH_BYTES: Final = LENGTH.size


class _Embedded(NamedTuple):
    """The request inside an Envelope. frame: a view on the Envelope's bytes."""

    header: RequestHeader
    frame: memoryview
    session: Session


class EnvelopeHandler:
    """dispatcher: of the requests inside, which has no Envelope."""

    def __init__(self, dispatcher: Dispatcher[ControllerServices]) -> None:
        self._dispatcher = dispatcher

    def handle(
        self, services: ControllerServices, context: RequestContext, request: EnvelopeRequest
    ) -> Outcome:
        """Stage one is that of the request inside. Raises KafkaError; see the module."""
        del services
        embedded = _unwrap(context, request)
        try:
            pending = self._dispatcher.dispatch(
                embedded.session, embedded.frame, context.arrived_ms
            )
        except MalformedRequest as error:
            raise _not_parsed(error) from None
        if pending is None:
            raise InvariantError(f"{context.api_key.name}: a forwarded request has no response")
        if pending.deferred is None:
            return self._wrap(pending)
        answer: Deferred[Message | Refusal] = pending.deferred
        return answer.recover(pending.error_response, cancels_source=True).then(
            lambda message: self._wrap_late(pending, message), cancels_source=True
        )

    def steps(
        self, services: ControllerServices, context: RequestContext, request: EnvelopeRequest
    ) -> HandlerSteps:
        """`handle` for a large request."""
        del services
        embedded = _unwrap(context, request)
        header = embedded.header
        malformed = None
        try:
            response = yield from self._dispatcher.respond_in_steps(
                embedded.session, header, embedded.frame, context.arrived_ms
            )
        except MalformedRequest as error:
            malformed = _not_parsed(error)
        if malformed is not None:
            raise malformed
        if (yield from _refuses_as_standby(response)):
            return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
        written = WrittenResponse((yield from encode_in_steps(response, header.api_version)))
        parts = encode_response_frame(
            header.api_key,
            header.api_version,
            header.correlation_id,
            cast(Message, written),  # it stands where a message does
        )
        return EnvelopeResponse(response_data=_payload(parts))

    def _wrap(self, pending: PendingResponse) -> EnvelopeResponse:
        """The response to the request inside. Raises KafkaError for one that cannot be encoded: it
        must not close the connection, which other clients of the broker use.
        """
        message = pending.message
        if isinstance(message, Response) and _is_refused_as_standby(message):
            return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
        try:
            parts = self._dispatcher.render(pending)
        except CloseConnection as error:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from None
        return EnvelopeResponse(response_data=_payload(parts))

    def _wrap_late(self, pending: PendingResponse, message: Message | Refusal) -> EnvelopeResponse:
        pending.message = cast(Message, message)  # a Refusal stands where a message does
        return self._wrap(pending)


def envelope_error(request: EnvelopeRequest, error: ErrorCode, message: str) -> EnvelopeResponse:
    """The error of the Envelope itself."""
    del request, message
    return EnvelopeResponse(error_code=error)


def envelope_handler(
    dispatcher: Dispatcher[ControllerServices],
) -> ApiHandler[ControllerServices]:
    """The Envelope API. dispatcher: of the requests inside, without this handler."""
    envelopes = EnvelopeHandler(dispatcher)
    return ApiHandler(
        ApiKey.ENVELOPE,
        envelopes.handle,
        envelope_error,
        POLICIES[ApiKey.ENVELOPE],
        steps=envelopes.steps,
    )


def _unwrap(context: RequestContext, request: EnvelopeRequest) -> _Embedded:
    """Raises KafkaError; see the module."""
    client = client_of(request)
    frame = memoryview(request.request_data)
    try:
        header = decode_request_header(frame)
    except MalformedRequest as error:
        raise _not_parsed(error) from None
    if not APIS[header.api_key].forwardable:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{ApiKey(header.api_key).name} is not forwarded"
        )
    session = Session(
        connection_id=context.session.connection_id,
        listener_name=context.session.listener_name,
        client_host=client.host,
        principal=client.principal,
        is_token_authenticated=client.is_token_authenticated,
        is_forwarded=True,
    )
    return _Embedded(header, frame, session)


def _not_parsed(error: MalformedRequest) -> KafkaError:
    return KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"the request in the envelope: {error}")


def _standby_code(response: Message) -> ErrorCode:
    """The error with which a controller that is not the active one answers."""
    if response.API_KEY == ApiKey.DESCRIBE_QUORUM:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.NOT_CONTROLLER


def _is_refused_as_standby(response: Message) -> bool:
    return _standby_code(response) in error_codes(response)


def _refuses_as_standby(response: Message) -> Generator[None, None, bool]:
    """`_is_refused_as_standby` in steps."""
    wanted = _standby_code(response)
    pace = Pace(CHEAP_ITEMS)
    for code in error_codes(response):
        if code == wanted:
            return True
        if pace.is_due():
            yield None
    return False


def _payload(parts: list[Part]) -> bytearray:
    """A response frame without its length. Raises InvariantError for records in it."""
    payload = bytearray()
    for part in parts:
        if not isinstance(part, bytes | bytearray | memoryview):
            raise InvariantError("a forwarded request is answered with a range of a file")
        payload += part
    del payload[:LENGTH_BYTES]
    return payload
