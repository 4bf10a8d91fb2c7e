"""From a request's bytes to the handler and back: the handler table, version check and error mapping.

Neighbours: `connection` moves the bytes, `handlers/` has one module per API family. Two stages (docs/adr/0004): `handle`
runs stage one inside the call that read the request (an append happens here) and returns the response, or a Deferred
that resolves with it once stage two is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.model import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.schema import Message

if TYPE_CHECKING:
    from kbroker.server.services import Services

Outcome = Message | Deferred[Message] | None
"""A response, a response that comes later, or None: this request gets no response (Produce with acks=0)."""


class CloseConnection(Exception):
    """Raised by a handler to end this connection without an answer, with one log line (a failed Produce with acks=0)."""


@dataclass(slots=True)
class RequestContext:
    """Who asked, what and when. One per request; handlers only read it (ApiVersions sets the software fields)."""

    api_key: ApiKey
    api_version: int
    correlation_id: int = 0
    client_id: str | None = None
    listener_name: str = "PLAINTEXT"
    client_host: str = "127.0.0.1"
    connection_id: str = ""
    """Unique in this process's life, also over reconnects."""
    arrived_ms: int = 0
    """Wall clock, ms since the epoch, when the request was whole: the `now_ms` of the cores."""
    principal: str = "User:ANONYMOUS"
    client_software_name: str = "unknown"
    client_software_version: str = "unknown"


@dataclass(frozen=True, slots=True)
class ApiHandler:
    """One API as a handler module registers it; `HANDLERS` at its end lists them.

    handle: stage one, synchronous. The request's bytes fields are views on the connection's receive buffer: valid until
    handle returns, so whatever outlives it must be written or copied by then. It may write into them (base offsets).
    It gives up the whole request by raising KafkaError, which becomes `error_response(request, code, message)`.
    announced_min_version: what ApiVersions says where that differs from what is served (Produce, as Kafka does).
    """

    api_key: ApiKey
    min_version: int
    max_version: int
    handle: Callable[[Services, RequestContext, Any], Outcome]  # Any: each handler names its own request class
    error_response: Callable[[Any, ErrorCode, str], Message]
    announced_min_version: int | None = None


class ApiVersionRange(NamedTuple):
    """One line of ApiVersions, both ends inclusive."""

    api_key: int
    min_version: int
    max_version: int
