"""From a request's bytes to the handler and back: the handler table, version check and error
mapping.

Neighbours: `connection` moves the bytes, `handlers/` has one module per API family. Two stages
(docs/adr/0004): `handle` runs stage one inside the call that read the request (an append happens
here) and returns the response, or a Deferred that resolves with it once stage two is over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kbroker.log_lines import LogThrottle, shown
from kbroker.metrics import Histogram
from kbroker.model import InvariantError
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey, api_info, request_class
from kbroker.protocol.codec import Part, decode
from kbroker.protocol.errors import ErrorCode, KafkaError, MalformedRequest
from kbroker.protocol.framing import (
    REQUEST_HEAD,
    decode_request_header,
    encode_response_frame,
    read_client_id,
)
from kbroker.protocol.schema import Message
from kbroker.server.network.large_requests import (
    LargeRequest,
    LargeRequests,
    NoResponseError,
    RefusedRequest,
)

if TYPE_CHECKING:
    from kbroker.server.services import Services

logger = logging.getLogger(__name__)

_HEAD_BYTES: Final = REQUEST_HEAD.size
_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)

FAILURES_PER_SECOND: Final = 10
"""Requests that raised an unexpected exception and are logged, each with its traceback."""

# Any: a Deferred of the API's own response class, since Deferred is invariant
Outcome = Message | Deferred[Any] | None
"""A response, one that comes later, or None: this request gets no response (Produce, acks=0)."""

# Any: as above, and of the API's own response class
Steps = Generator[Deferred[Any] | None, None, Any]


class CloseConnection(Exception):
    """Raised by a handler to end this connection without an answer, with one log line (a failed
    Produce with acks=0).
    """


@dataclass(slots=True)
class RequestContext:
    """Who asked, what and when. One per request; handlers only read it (ApiVersions sets the
    software fields).
    """

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

    handle: stage one, synchronous. The request's bytes fields are views on the connection's receive
    buffer: valid until handle returns, so whatever outlives it must be written or copied by then.
    It may write into them (base offsets). It gives up the whole request by raising KafkaError,
    which becomes `error_response(request, code, message)`. steps: in its place for what goes
    through `large_requests`, where `handle` itself is not to be sliced: what comes out of it is
    None for a pause or a Deferred to wait for.
    """

    api_key: ApiKey
    min_version: int
    max_version: int
    # Any: each handler names its own request class
    handle: Callable[[Services, RequestContext, Any], Outcome]
    error_response: Callable[[Any, ErrorCode, str], Message]
    steps: Callable[[Services, RequestContext, Any], Steps] | None = None


class ApiVersionRange(NamedTuple):
    """One line of ApiVersions, both ends inclusive."""

    api_key: int
    min_version: int
    max_version: int


Interceptor = Callable[[RequestContext, Any], Outcome]
"""A test's hook in front of a handler: returns an outcome, raises KafkaError, or returns None to
pass the request on.
"""


@dataclass(slots=True)
class ConnectionInfo:
    """What is known of a connection; the fields of every RequestContext on it."""

    connection_id: str
    listener_name: str
    client_host: str
    principal: str = "User:ANONYMOUS"
    client_software_name: str = "unknown"
    client_software_version: str = "unknown"


class PendingResponse:
    """A request's place in the order of a connection's responses. message is None until there is
    one.
    """

    __slots__ = ("api_key", "api_version", "correlation_id", "deferred", "message", "started_s")

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


class _Route:
    """A registered API with its request class, which is imported when the first request comes."""

    __slots__ = ("flexible_from", "handler", "request_type")

    def __init__(self, handler: ApiHandler) -> None:
        self.handler = handler
        self.flexible_from = api_info(handler.api_key).flexible_from
        self.request_type: type[Message] | None = None


class Dispatcher:
    """The handler table at work. counters: requests by API key, and `surprises`, exceptions nobody
    meant to raise. times: by API key, from `dispatch` to the end of `render`; None: not measured.
    """

    __slots__ = (
        "_failures",
        "_large",
        "_routes",
        "_services",
        "interceptors",
        "requests",
        "surprises",
        "times",
    )

    def __init__(self, handlers: Sequence[ApiHandler], services: Services) -> None:
        self._routes = {int(handler.api_key): _Route(handler) for handler in handlers}
        self._services = services
        self._failures = LogThrottle(logger, logging.ERROR, lines=FAILURES_PER_SECOND)
        self._large = LargeRequests(services)
        self.interceptors: dict[int, Interceptor] = {}
        self.requests: dict[int, int] = {}
        self.surprises = 0
        self.times: dict[int, Histogram] | None = None
        services.api_versions = api_version_ranges(handlers)

    def dispatch(
        self, connection: ConnectionInfo, frame: memoryview, arrived_ms: int
    ) -> PendingResponse | None:
        """Stage one of one request. frame: without its length, writable, the caller's again on
        return.

        Returns None if the request gets no response. Raises MalformedRequest (bytes that are no
        request) and CloseConnection; both end the connection.
        """
        if len(frame) < _HEAD_BYTES:
            raise MalformedRequest(
                f"a frame of {len(frame)} bytes is too short for a request header"
            )
        api_key, api_version, correlation_id, id_size = REQUEST_HEAD.unpack_from(frame)
        route = self._routes.get(api_key)
        if route is None:
            raise MalformedRequest(f"API key {api_key} is not served")
        handler = route.handler
        if not handler.min_version <= api_version <= handler.max_version:
            return self._unsupported_version(api_key, api_version, correlation_id, handler)
        self.requests[api_key] = self.requests.get(api_key, 0) + 1
        client_id, position = read_client_id(
            frame, id_size, flexible=api_version >= route.flexible_from
        )
        context = RequestContext(
            handler.api_key,
            api_version,
            correlation_id,
            client_id,
            connection.listener_name,
            connection.client_host,
            connection.connection_id,
            arrived_ms,
            connection.principal,
            connection.client_software_name,
            connection.client_software_version,
        )
        request_type = route.request_type
        if request_type is None:
            request_type = route.request_type = request_class(api_key)
        # Bytes behind the body are ignored, as Kafka does: librdkafka 2.16 puts three behind a
        # Metadata v13 request for all topics.
        started_s = 0.0 if self.times is None else time.perf_counter()
        request, _ = decode(request_type, frame, api_version, position)
        outcome = self._handle(handler, context, request)
        if api_key == _API_VERSIONS:
            connection.client_software_name = context.client_software_name
            connection.client_software_version = context.client_software_version
        if outcome is None:
            return None
        pending = PendingResponse(api_key, api_version, correlation_id)
        pending.started_s = started_s
        if not isinstance(outcome, Deferred):
            pending.message = outcome
        elif outcome.done:
            pending.message = outcome.value
        else:
            pending.deferred = outcome
        return pending

    def dispatch_in_slices(
        self, connection: ConnectionInfo, frame: memoryview, arrived_ms: int
    ) -> PendingResponse | None:
        """As `dispatch`, for a request that may hold very many small items (`large_requests`). Only
        its header is looked at now.
        """
        header = decode_request_header(frame)
        route = self._routes.get(header.api_key)
        if route is None or not (
            route.handler.min_version <= header.api_version <= route.handler.max_version
        ):
            return self.dispatch(connection, frame, arrived_ms)
        handler = route.handler
        self.requests[header.api_key] = self.requests.get(header.api_key, 0) + 1
        context = RequestContext(
            handler.api_key,
            header.api_version,
            header.correlation_id,
            header.client_id,
            connection.listener_name,
            connection.client_host,
            connection.connection_id,
            arrived_ms,
            connection.principal,
            connection.client_software_name,
            connection.client_software_version,
        )
        pending = LargePendingResponse(header.api_key, header.api_version, header.correlation_id)
        pending.started_s = 0.0 if self.times is None else time.perf_counter()
        is_whole = handler.steps is None or handler.api_key in self.interceptors
        handle = self._handle if is_whole else self._handle_in_steps
        answer = self._large.begin(
            LargeRequest(
                context,
                request_class(header.api_key),
                bytearray(frame),
                header.body_position,
                lambda request: handle(handler, context, request),
            )
        )
        if answer.done:
            pending.message = answer.value
        else:
            pending.deferred = answer
        return pending

    def render(self, pending: PendingResponse) -> list[Part]:
        """The response as it leaves, length first. Raises CloseConnection if the message does not
        fit its version.
        """
        message = pending.message
        if message is None:
            raise CloseConnection("a response was due before it was there")
        try:
            parts = encode_response_frame(
                pending.api_key, pending.api_version, pending.correlation_id, message
            )
            if pending.started_s:
                self._observe(pending)
            return parts
        except CloseConnection:
            raise
        except NoResponseError:
            return []
        except RefusedRequest as error:
            raise CloseConnection(str(error)) from None
        except Exception as error:
            self.surprises += 1
            logger.exception(
                "node %d: cannot encode the %s v%d response",
                self._services.node_id,
                ApiKey(pending.api_key).name,
                pending.api_version,
            )
            raise CloseConnection("its response could not be encoded") from error

    def _observe(self, pending: PendingResponse) -> None:
        """Count how long a request took."""
        if self.times is not None:
            histogram = self.times.get(pending.api_key)
            if histogram is None:
                histogram = self.times[pending.api_key] = Histogram()
            histogram.observe(time.perf_counter() - pending.started_s)

    def _handle(self, handler: ApiHandler, context: RequestContext, request: Message) -> Outcome:
        try:
            if self.interceptors:
                interceptor = self.interceptors.get(handler.api_key)
                if interceptor is not None:
                    outcome = interceptor(context, request)
                    if outcome is not None:
                        return outcome
            return handler.handle(self._services, context, request)
        except (CloseConnection, MalformedRequest, InvariantError):
            raise
        except Exception as error:  # noqa: BLE001  # top frame of a request
            return self._failed(handler, context, request, error)

    def _handle_in_steps(self, handler: ApiHandler, context: RequestContext, request: Any) -> Steps:
        """As `_handle`, for a handler that has steps."""
        if handler.steps is None:
            raise InvariantError(f"{handler.api_key.name} has no steps")
        try:
            return (yield from handler.steps(self._services, context, request))
        except (CloseConnection, MalformedRequest, InvariantError):
            raise
        except Exception as error:  # noqa: BLE001  # top frame of a request
            return self._failed(handler, context, request, error)

    def _failed(
        self, handler: ApiHandler, context: RequestContext, request: Any, error: Exception
    ) -> Message:
        """The answer to a request that raised; what nobody meant to raise is logged and counted."""
        if isinstance(error, KafkaError):
            return handler.error_response(request, error.code, error.message)
        self.surprises += 1
        self._failures.log(
            context.arrived_ms,
            "node %d: %s v%d from client %s at %s failed",
            self._services.node_id,
            handler.api_key.name,
            context.api_version,
            shown(context.client_id),
            context.client_host,
            exc_info=True,
        )
        return handler.error_response(request, ErrorCode.UNKNOWN_SERVER_ERROR, "")

    def _unsupported_version(
        self, api_key: int, api_version: int, correlation_id: int, handler: ApiHandler
    ) -> PendingResponse:
        """ApiVersions is answered in v0, so that a newer client can step down; anything else ends
        the connection.
        """
        if api_key != ApiKey.API_VERSIONS:
            raise MalformedRequest(f"{handler.api_key.name} v{api_version} is not served")
        pending = PendingResponse(api_key, 0, correlation_id)
        pending.message = handler.error_response(None, ErrorCode.UNSUPPORTED_VERSION, "")
        return pending


def api_version_ranges(handlers: Sequence[ApiHandler]) -> list[ApiVersionRange]:
    """What ApiVersions announces for these handlers, by API key."""
    return sorted(
        ApiVersionRange(int(handler.api_key), handler.min_version, handler.max_version)
        for handler in handlers
    )
