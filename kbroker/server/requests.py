"""One request on its way through the server: its context, its outcome, its place among responses.

`network` makes a place for the response, `dispatch` fills it, handlers get the context.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from kbroker.model import ClientIdentity
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.codec import Part
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import KafkaError, MalformedRequest
from kbroker.replication.time_slices import Steps, WorkMeter
from kbroker.server.session import Session

LARGE_REQUEST_BYTES: Final = 32 * 1024
"""Up to this size a request is decoded and handled in one turn: 10 ms at most."""

LARGE_PRODUCE_BYTES: Final = 128 * 1024
PRODUCE_PARTITIONS: Final = 256
"""A Produce request up to this size, or with up to so many topics and partitions, is handled in one
turn. An ordinary one of some batches of 16 KB is not even counted.
"""

PARTITION_BYTES: Final = 33
"""Bytes of a request for each partition or topic that a Produce may have: the cost of one in
Fetch.
"""

# Any: a Deferred of the API's own response class, since Deferred is invariant
Outcome = Message | Deferred[Any] | None
"""A response, one that comes later, or None: this request gets no response (Produce, acks=0)."""

# Any: as above, and of the API's own response class
HandlerSteps = Steps[Any]


class CloseConnection(Exception):
    """Raised by a handler to close this connection without a response, with one log line (a failed
    Produce with acks=0).
    """


class RequestContext(msgspec.Struct):
    """One request and its client; handlers only read it."""

    api_key: ApiKey
    api_version: int
    correlation_id: int = 0
    client_id: str | None = None
    session: Session = msgspec.field(default_factory=Session)
    arrived_ms: int = 0
    """Wall clock, ms since the epoch, when the request was whole: the `now_ms` of the cores."""

    @property
    def client_host(self) -> str:
        """The client's address, without its port."""
        return self.session.client_host

    @property
    def identity(self) -> ClientIdentity:
        """The client as the active controller is told of it."""
        return self.session.identity(self.client_id)


class RefusedRequest(Exception):
    """The request gets no response; its connection is to be closed."""


class _AnyVersion:
    """In place of a message's encoders: one for all versions."""

    __slots__ = ("_encoder",)

    def __init__(self, encoder: Callable[[Any, bytearray, list[Part] | None], bytearray]) -> None:
        self._encoder = encoder

    def get(self, version: int) -> Callable[[Any, bytearray, list[Part] | None], bytearray]:
        return self._encoder


class WrittenResponse:
    """A response that is encoded already; it stands where a message does."""

    __slots__ = ("_parts",)

    def __init__(self, parts: list[Part]) -> None:
        self._parts = parts

    def _write(self, out: bytearray, parts: list[Part] | None) -> bytearray:
        if parts is None:
            raise ValueError("a response in parts cannot be written as one")
        parts.append(out)
        parts += self._parts
        return bytearray()

    ENCODERS: Final = _AnyVersion(_write)


class NoResponseError(Exception):
    """The request gets no response (Produce, acks=0)."""


class Refusal:
    """In place of a response: what to raise when it is to be rendered, which happens once.

    An exception holds the frames it passed through and their callers, with all that was decoded of
    the request and with this object, if the request failed in its first slice: of what the client
    did wrong only the text is kept, and no exception outlives its rendering.
    """

    __slots__ = ("_errors",)

    def __init__(self, error: Exception) -> None:
        if isinstance(error, KafkaError | MalformedRequest):
            error = RefusedRequest(str(error))
        elif isinstance(error, RefusedRequest | NoResponseError):
            error.__traceback__ = None
        self._errors = [error]

    @property
    def ends_connection(self) -> bool:
        """Whether rendering ends the connection; not where there is no response (acks=0). Only
        before it is rendered.
        """
        return not isinstance(self._errors[0], NoResponseError)

    def _refuse(self, out: bytearray, parts: list[Part] | None) -> bytearray:
        del out, parts
        raise self._errors.pop()  # not kept: its traceback holds this frame

    ENCODERS: Final = _AnyVersion(_refuse)


class QuotaCharge(msgspec.Struct, frozen=True):
    """Whom the response is charged to. throttle_ms: for how long its request throttles the
    client. accounting_ns: what it took to charge the request. meter: what the request took after
    its first slice, if it is handled in slices.
    """

    session: Session
    client_id: str
    throttle_ms: int
    accounting_ns: int = 0
    meter: WorkMeter | None = None


class PendingResponse:
    """A request's place in the order of a connection's responses. message is None until there is
    one.
    """

    __slots__ = (
        "__weakref__",  # the sweeps remember which response is at the front, not what it holds
        "api_key",
        "api_version",
        "charge",
        "correlation_id",
        "deferred",
        "error_response",
        "message",
        "started_s",
    )

    error_response: Callable[[KafkaError], Message | Refusal]
    """The response if `deferred` fails; only set with `deferred`."""

    charge: QuotaCharge
    """Only set while client quotas hold for the client."""

    def __init__(self, api_key: int, api_version: int, correlation_id: int) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.message: Message | None = None
        self.deferred: Deferred[Any] | None = None
        self.started_s = 0.0


class LargePendingResponse(PendingResponse):
    """Of a `LargeRequest`: until the message is there, its connection starts no other request."""

    __slots__ = ()
