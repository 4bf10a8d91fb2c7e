"""From a request's bytes to the handler and back, as a chain that each API's `ApiPolicy` steers.

    header -> version -> forward, or decode -> group type served? -> authorised? -> handle -> error
    mapping

An API that a listener does not serve, and a version outside its range, are refused before anything
is decoded. The checks before the handler come from the policy and are chosen once, when the API is
registered: Produce and Fetch pay for none they do not need. Neighbours: `connection` moves the
bytes, `handlers/` has one module per API family, `api_policy` the policies. Two stages
(docs/adr/0004): `handle` runs stage one inside the call that read the request (an append happens
here) and returns the response, or a Deferred that resolves with it once stage two is over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any, Final, Generic, TypeVar

from kbroker.log_lines import LogThrottle, shown
from kbroker.metrics import Histogram
from kbroker.model import InvariantError
from kbroker.ports import Deferred, Surprise
from kbroker.protocol.apis import ApiKey, api_info, request_class
from kbroker.protocol.codecs.codec import Part, decode
from kbroker.protocol.codecs.schema import Binary, Field, Message, Request
from kbroker.protocol.errors import ErrorCode, KafkaError, MalformedRequest
from kbroker.protocol.framing import (
    REQUEST_HEAD,
    RequestHeader,
    decode_request_header,
    encode_response_frame,
    read_client_id,
)
from kbroker.server.api_handler import (
    ApiHandler,
    RegisteredApi,
    api_version_ranges,
    small_responses,
)
from kbroker.server.api_policy import (
    Authorizer,
    ListenerType,
    Quota,
    checks_of,
)
from kbroker.server.forwarding import Forwarder
from kbroker.server.request_errors import RequestErrors
from kbroker.server.requests import (
    CloseConnection,
    HandlerSteps,
    LargePendingResponse,
    NoResponseError,
    Outcome,
    PendingResponse,
    Refusal,
    RefusedRequest,
    RequestContext,
)
from kbroker.server.services import NodeServices
from kbroker.server.session import ApiVersionRange, Session
from kbroker.server.slicing.large_requests import LargeRequest, LargeRequests, free_in_steps

logger = logging.getLogger(__name__)

_HEAD_BYTES: Final = REQUEST_HEAD.size
FAILURES_PER_SECOND: Final = 10
"""Requests that raised an unexpected exception and are logged, each with its traceback."""

S = TypeVar("S", bound=NodeServices)

Interceptor = Callable[[RequestContext, Any], Outcome]
"""A test's hook in front of a handler: returns an outcome, raises KafkaError, or returns None to
pass the request on.
"""


class _Route(Generic[S]):
    """A registered API, its policy taken apart. Handler and request class are imported with the
    first request. checks: run in their order before the handler; base_checks: those of them that do
    not depend on quotas. limits_to_quotas: whether the handler's `limit` is one of them.
    """

    __slots__ = (
        "base_checks",
        "checks",
        "flexible_from",
        "handler",
        "limits_to_quotas",
        "max_version",
        "min_version",
        "mostly_records",
        "registered",
        "request_type",
        "services",
        "view_fields",
    )

    handler: ApiHandler[S]
    """Once it is loaded."""

    def __init__(
        self, registered: RegisteredApi[S], services: S, authorizer: Authorizer | None
    ) -> None:
        policy = registered.policy
        self.registered = registered
        self.services = services
        self.min_version, self.max_version = policy.versions
        self.flexible_from = api_info(registered.api_key).flexible_from
        self.mostly_records = policy.mostly_records
        self.base_checks = checks_of(policy, services, authorizer)
        self.checks = self.base_checks
        self.limits_to_quotas = False
        self.request_type: type[Request] | None = None
        self.view_fields: tuple[Field, ...] = ()
        """The fields of the request that hold views on the receive buffer."""

    def load(self) -> type[Request]:
        """Import the handler and the request class."""
        self.handler = self.registered.load()
        self.request_type = request_type = request_class(self.registered.api_key)
        self.view_fields = tuple(field for field in request_type.FIELDS if field.holds_bytes)
        self.limit_to_quotas(self.limits_to_quotas)
        return request_type

    def limit_to_quotas(self, limits: bool) -> None:
        """Call the handler's `limit` before it from now on, or call it no more."""
        self.limits_to_quotas = limits
        if self.request_type is not None and self.handler.limit is not None:
            limit = (partial(self.handler.limit, self.services),) if limits else ()
            self.checks = self.base_checks + limit

    def kept(self, request: Any) -> Any:  # of the API's own class
        """The request without its views on the receive buffer, for as long as its response
        waits.
        """
        if self.view_fields:
            request = copy(request)
            for field in self.view_fields:
                setattr(request, field.name, field.default_value())
        return request


class Dispatcher(Generic[S]):
    """The handler table of one type of listener, at work.

    small_responses: keys of the APIs of `MemoryClass.SMALL_RESPONSE`. requests: how many, by API
    key. errors: answers that are an error as a whole, which a forwarder may count, too. times: by
    API key, from `dispatch` to the end of `render`; None: not measured.
    """

    __slots__ = (
        "_failures",
        "_forwarder",
        "_large",
        "_own_versions",
        "_routes",
        "_services",
        "errors",
        "interceptors",
        "requests",
        "small_responses",
        "times",
    )

    def __init__(
        self,
        handlers: Sequence[RegisteredApi[S]],
        services: S,
        *,
        listener: ListenerType = ListenerType.BROKER,
        authorizer: Authorizer | None = None,
        forwarder: Forwarder | None = None,
        errors: RequestErrors | None = None,
    ) -> None:
        """handlers: those whose policy does not name the listener type are left out, and those of
        APIs that the forwarder has.
        """
        forwarded = frozenset[int]() if forwarder is None else forwarder.api_keys
        served = [
            handler
            for handler in handlers
            if listener in handler.policy.listeners and handler.api_key not in forwarded
        ]
        self._routes = {
            int(handler.api_key): _Route(handler, services, authorizer) for handler in served
        }
        self._forwarder = forwarder
        self._services = services
        self._failures = LogThrottle(logger, logging.ERROR, lines=FAILURES_PER_SECOND)
        self._large = LargeRequests(services)
        self.interceptors: dict[int, Interceptor] = {}
        self.requests: dict[int, int] = {}
        self.errors = errors or RequestErrors()
        self.small_responses = small_responses(served)
        if forwarder is not None:
            self.small_responses |= forwarder.small_responses
        self.times: dict[int, Histogram] | None = None
        self._own_versions = api_version_ranges(served)

    @property
    def surprises(self) -> int:
        """How many requests had an unexpected exception."""
        return self.errors.surprises

    def api_versions(self) -> Sequence[ApiVersionRange]:
        """What ApiVersions announces."""
        if self._forwarder is None:
            return self._own_versions
        return sorted([*self._own_versions, *self._forwarder.api_versions()])

    def quota_of(self, api_key: int) -> Quota:
        """The client quota of an API; EXEMPT for one that is not served."""
        route = self._routes.get(api_key)
        if route is not None:
            return route.registered.policy.quota
        return Quota.EXEMPT if self._forwarder is None else self._forwarder.quota_of(api_key)

    def limit_responses(self, *, to_quotas: bool) -> None:
        """Call `limit` of handlers from now on, or call it no more."""
        for route in self._routes.values():
            route.limit_to_quotas(to_quotas)

    def withdrawn(self, api_key: int, response: Message) -> Message | None:
        """What is sent in place of a response that exceeds a client quota; None: the response."""
        withdraw = self._routes[api_key].handler.withdraw
        return None if withdraw is None else withdraw(self._services, response)

    def dispatch(
        self, session: Session, frame: memoryview, arrived_ms: int
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
            return self._forward(api_key, session, frame, arrived_ms)
        if not route.min_version <= api_version <= route.max_version:
            return _unsupported_version(route.registered, api_version, correlation_id)
        self.requests[api_key] = self.requests.get(api_key, 0) + 1
        client_id, position = read_client_id(
            frame, id_size, flexible=api_version >= route.flexible_from
        )
        request_type = route.request_type
        if request_type is None:
            request_type = route.load()
        context = RequestContext(
            route.handler.api_key, api_version, correlation_id, client_id, session, arrived_ms
        )
        # Bytes behind the body are ignored, as Kafka does: librdkafka 2.16 puts three behind a
        # Metadata v13 request for all topics.
        started_s = 0.0 if self.times is None else time.perf_counter()
        request, _ = decode(request_type, frame, api_version, position)
        outcome = self._handle(route, context, request)
        if outcome is None:
            return None
        pending = PendingResponse(api_key, api_version, correlation_id)
        pending.started_s = started_s
        if not isinstance(outcome, Deferred):
            pending.message = outcome
        elif not outcome.done:
            pending.deferred = outcome
            pending.error_response = (
                Refusal
                if route.mostly_records
                else partial(self._failed, route.handler, context, route.kept(request))
            )
        elif (error := outcome.error) is not None:
            pending.message = self._failed(route.handler, context, request, error)
        else:
            pending.message = outcome.value
        return pending

    def dispatch_in_slices(
        self, session: Session, frame: memoryview, arrived_ms: int
    ) -> PendingResponse | None:
        """As `dispatch`, for a request that may hold very many small items (`large_requests`). Only
        its header is looked at now.
        """
        header = decode_request_header(frame)
        key, version = header.api_key, header.api_version
        route = self._routes.get(key)
        if route is None or not route.min_version <= version <= route.max_version:
            return self.dispatch(session, frame, arrived_ms)
        self.requests[key] = self.requests.get(key, 0) + 1
        pending = LargePendingResponse(key, version, header.correlation_id)
        pending.started_s = 0.0 if self.times is None else time.perf_counter()
        large = self._large_request(route, header, session, bytearray(frame), arrived_ms)
        answer = self._large.begin(large)
        if answer.done:
            pending.message = answer.value
        else:
            pending.deferred = answer
            pending.error_response = Refusal
        return pending

    def respond_in_steps(
        self, session: Session, header: RequestHeader, frame: Binary, arrived_ms: int
    ) -> HandlerSteps:
        """Steps of a large request inside another one, which return its response. frame: read
        between the steps. Raises MalformedRequest, and KafkaError for a response that is too large.
        """
        route = self._routes.get(header.api_key)
        if route is None or not route.min_version <= header.api_version <= route.max_version:
            raise MalformedRequest(f"API {header.api_key} v{header.api_version} is not served")
        self.requests[header.api_key] = self.requests.get(header.api_key, 0) + 1
        large = self._large_request(route, header, session, frame, arrived_ms)
        refused: list[Exception] = []  # copies: the frames of an error hold the request
        response: Message | None = None
        try:
            response = yield from self._large.respond(large)
        except KafkaError as error:
            refused.append(KafkaError(error.code, error.message))
        except MalformedRequest as error:
            refused.append(MalformedRequest(str(error)))
        yield from free_in_steps(large.made)
        if refused:
            raise refused.pop()
        return response

    def _large_request(
        self,
        route: _Route[S],
        header: RequestHeader,
        session: Session,
        frame: Binary,
        arrived_ms: int,
    ) -> LargeRequest:
        request_type = route.request_type or route.load()
        handler = route.handler
        context = RequestContext(
            handler.api_key,
            header.api_version,
            header.correlation_id,
            header.client_id,
            session,
            arrived_ms,
        )
        return LargeRequest(
            context,
            request_type,
            frame,
            header.body_position,
            lambda request: self._handle_in_steps(route, context, request),
            lambda request, error: handler.refused_in_steps(
                request, *self._error_of(handler, context, error)
            ),
            handler.division,
            waits_for_others=handler.policy.waits_for_others,
        )

    def _forward(
        self, api_key: int, session: Session, frame: memoryview, arrived_ms: int
    ) -> PendingResponse | None:
        """Hand a request to the forwarder. Raises MalformedRequest for an API it does not serve."""
        if self._forwarder is None or api_key not in self._forwarder.api_keys:
            raise MalformedRequest(f"API key {api_key} is not served")
        self.requests[api_key] = self.requests.get(api_key, 0) + 1
        started_s = 0.0 if self.times is None else time.perf_counter()
        pending = self._forwarder.dispatch(session, frame, arrived_ms)
        if pending is not None:
            pending.started_s = started_s
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
            self.errors.surprises += 1
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

    def _handle(self, route: _Route[S], context: RequestContext, request: Message) -> Outcome:
        handler = route.handler
        try:
            if self.interceptors:
                interceptor = self.interceptors.get(handler.api_key)
                if interceptor is not None:
                    outcome = interceptor(context, request)
                    if outcome is not None:
                        return outcome
            for check in route.checks:
                check(context, request)
            return handler.handle(self._services, context, request)
        except (CloseConnection, MalformedRequest, InvariantError):
            raise
        except Exception as error:  # noqa: BLE001  # top frame of a request
            return self._failed(handler, context, request, error)

    def _handle_in_steps(
        self, route: _Route[S], context: RequestContext, request: Any
    ) -> HandlerSteps:
        """As `_handle`, in the API's `steps` if it has them; an error response is in steps, too."""
        handler = route.handler
        try:
            interceptor = self.interceptors.get(handler.api_key)
            outcome = None if interceptor is None else interceptor(context, request)
            if outcome is not None:
                return outcome
            for check in route.checks:
                check(context, request)
            if handler.steps is not None and interceptor is None:
                return (yield from handler.steps(self._services, context, request))
            return handler.handle(self._services, context, request)
        except (CloseConnection, MalformedRequest, InvariantError):
            raise
        except Exception as error:  # noqa: BLE001  # top frame of a request
            code, message = self._error_of(handler, context, error)
        return (yield from handler.refused_in_steps(request, code, message))

    def _failed(
        self, handler: ApiHandler[S], context: RequestContext, request: Any, error: Exception
    ) -> Message:
        """The response to a request whose check, handler or Deferred failed with error."""
        return handler.error_response(request, *self._error_of(handler, context, error))

    def _error_of(
        self, handler: ApiHandler[S], context: RequestContext, error: Exception
    ) -> tuple[ErrorCode, str]:
        """The code and message that answer a request which failed with error. What is not a
        KafkaError is logged and counted.
        """
        code = error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
        self.errors.count(handler.api_key, code)
        if isinstance(error, KafkaError) and not isinstance(error, Surprise):
            return code, error.message
        self.errors.surprises += 1
        self._failures.log(
            context.arrived_ms,
            "node %d: %s v%d from client %s at %s failed",
            self._services.node_id,
            handler.api_key.name,
            context.api_version,
            shown(context.client_id),
            context.session.client_host,
            exc_info=None if isinstance(error, Surprise) else error,
        )
        return ErrorCode.UNKNOWN_SERVER_ERROR, ""


def _unsupported_version(
    registered: RegisteredApi[S], api_version: int, correlation_id: int
) -> PendingResponse:
    """ApiVersions is answered in v0, so that a newer client can step down; a request of any other
    API ends the connection.
    """
    if registered.api_key is not ApiKey.API_VERSIONS:
        raise MalformedRequest(f"{registered.api_key.name} v{api_version} is not served")
    pending = PendingResponse(int(registered.api_key), 0, correlation_id)
    pending.message = registered.load().error_response(None, ErrorCode.UNSUPPORTED_VERSION, "")
    return pending
