"""Requests that a broker makes for one of its clients: in an Envelope with the client's principal,
so that the controller authorises the client and not the broker (KIP-590; Kafka's TopicCreator).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from kbroker.model import ClientIdentity
from kbroker.ports import Deferred
from kbroker.protocol.apis import valid_versions
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.codecs.schema import Request, Response
from kbroker.protocol.errors import ErrorCode, KafkaError, MalformedRequest
from kbroker.protocol.forwarded_client import envelope
from kbroker.protocol.framing import LENGTH, decode_response_header, encode_request_frame
from kbroker.protocol.messages.cluster import EnvelopeResponse

if TYPE_CHECKING:
    from kbroker.broker.node_to_controller import NodeToController

R = TypeVar("R", bound=Response)

CORRELATION_ID: Final = 0
"""Of every such request: the Envelope has one of its own, which tells them apart."""


def send_with_principal(
    requests: NodeToController, client: ClientIdentity, request: Request, response_type: type[R]
) -> Deferred[R]:
    """As `NodeToController.send`. Also fails with the error of the Envelope, and with
    UNKNOWN_SERVER_ERROR for a response that cannot be read.
    """
    controller = requests.controller_api_versions()
    try:
        if controller is None:
            version = valid_versions(request.API_KEY)[1]
        else:
            version = controller.version_of(request.API_KEY)
        frame = bytearray()
        for part in encode_request_frame(request, version, CORRELATION_ID, client.client_id):
            if not isinstance(part, bytes | bytearray | memoryview):
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "a request with file ranges")
            frame += part
    except KafkaError as error:
        return Deferred.failed(error)
    del frame[: LENGTH.size]
    return requests.send(envelope(frame, client), EnvelopeResponse).then(
        partial(_unwrap, response_type, version)
    )


def _unwrap(response_type: type[R], version: int, response: EnvelopeResponse) -> R:
    if response.error_code or response.response_data is None:
        code = ErrorCode(response.error_code) or ErrorCode.UNKNOWN_SERVER_ERROR
        raise KafkaError(code, "the active controller refused the envelope")
    data = response.response_data
    try:
        correlation_id, position = decode_response_header(data, response_type.API_KEY, version)
        inner, _ = decode(response_type, data, version, position)
    except MalformedRequest as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from None
    if correlation_id != CORRELATION_ID:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the response is to another request")
    return inner
