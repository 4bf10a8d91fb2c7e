"""What a broker does with a request that the active controller answers: it passes the bytes on in
an Envelope, with the principal and the address of the client, and relays the bytes of the response
(KIP-590; Kafka's ForwardingManager).

`dispatch` hands over the requests of the APIs with `Forward.TO_CONTROLLER`. They are not decoded
here, nor authorised: the controller does both. The channel to the controller sends a request again,
to the controller that is active by then, until its retry time is over.

    outcome                                  response to the client
    the controller's response                relayed
    UNSUPPORTED_VERSION in the Envelope      none; its connection is closed, so that it learns the
                                             versions of the controller that is active now
    another error in the Envelope            UNKNOWN_SERVER_ERROR
    no response within the retry time        REQUEST_TIMED_OUT
    this broker stops                        BROKER_NOT_AVAILABLE

A node that is its whole cluster sends nothing. Its broker answers by itself what it has a handler
for (`ApiHandler`), and hands the rest to the handlers of its controller (`LocalForwarder`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from kbroker.log_lines import LogThrottle, shown
from kbroker.ports import Chained, Deferred
from kbroker.protocol.apis import ApiKey, request_class
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.codecs.schema import Message, Request, Response
from kbroker.protocol.errors import ErrorCode, KafkaError, MalformedRequest
from kbroker.protocol.framing import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
)
from kbroker.protocol.messages.cluster import EnvelopeResponse
from kbroker.server.api_handler import RegisteredApi, api_version_ranges, small_responses
from kbroker.server.api_policy import Quota
from kbroker.server.request_errors import RequestErrors
from kbroker.server.requests import (
    LARGE_REQUEST_BYTES,
    LargePendingResponse,
    PendingResponse,
    Refusal,
    RequestContext,
    WrittenResponse,
)
from kbroker.server.session import ApiVersionRange, Session
from kbroker.server.slicing.large_requests import LargeRequest, LargeRequests
from kbroker.settings.views.network import NetworkConfig

if TYPE_CHECKING:
    from kbroker.client.node_api_versions import NodeApiVersions
    from kbroker.ports import Memory
    from kbroker.server.network.connection_shared import RequestDispatcher
    from kbroker.server.services import NodeServices

logger = logging.getLogger(__name__)

_RELAYED_CODES: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.BROKER_NOT_AVAILABLE})
"""Failures of the channel that the client is told; every other one is UNKNOWN_SERVER_ERROR."""

ENVELOPE_BYTES: Final = 16 * 1024
"""Room for what the Envelope adds to a request, the principal above all. A larger request is
refused here: the controller would close the connection on which it gets those of all clients.
"""

R = TypeVar("R", bound=Response)


class EnvelopeChannel(Protocol):
    """The way to the active controller over the wire (`broker/node_to_controller`)."""

    def send(self, request: Request, response_type: type[R]) -> Deferred[R]:
        """Resolves with the response of a controller that is active; its other error codes are the
        caller's to check. `cancel` of the result gives the request up.
        """
        ...

    def controller_api_versions(self) -> NodeApiVersions | None:
        """Those of the active controller, None until they are known."""
        ...


class Forwarder(Protocol):
    """What `dispatch` needs. api_keys: the APIs that are forwarded. small_responses: see
    `MemoryClass`.
    """

    @property
    def api_keys(self) -> frozenset[int]: ...
    @property
    def small_responses(self) -> frozenset[int]: ...

    def api_versions(self) -> Sequence[ApiVersionRange]:
        """What ApiVersions announces of them."""
        ...

    def quota_of(self, api_key: int) -> Quota:
        """The client quota of an API; EXEMPT for one that is not forwarded."""
        ...

    def dispatch(
        self, session: Session, frame: memoryview, arrived_ms: int
    ) -> PendingResponse | None:
        """As `Dispatcher.dispatch`, for a request of any size."""
        ...


class _ForwardedRequest(NamedTuple):
    """frame: header and body, as the client sent them."""

    handler: RegisteredApi[Any]
    header: RequestHeader
    frame: bytes
    session: Session
    arrived_ms: int

    @property
    def is_large(self) -> bool:
        """Whether an error response is made in slices."""
        return len(self.frame) > LARGE_REQUEST_BYTES

    def __str__(self) -> str:
        return f"{ApiKey(self.header.api_key).name} v{self.header.api_version}"


class RequestForwarder:
    """Of one broker. handlers: of the APIs to be forwarded. errors: counts the requests that no
    controller has answered.
    """

    def __init__(
        self,
        handlers: Iterable[RegisteredApi[Any]],
        services: NodeServices,
        channel: EnvelopeChannel,
        errors: RequestErrors,
    ) -> None:
        self._handlers = {int(handler.api_key): handler for handler in handlers}
        self._node_id = services.node_id
        self._memory = services.memory
        self._large = LargeRequests(services)
        self._channel = channel
        self._errors = errors
        network = NetworkConfig.from_broker(services.config)
        self._max_bytes = min(network.max_frame_bytes, network.max_list_bytes) - ENVELOPE_BYTES
        self._refused = LogThrottle(logger)
        self.api_keys = frozenset(self._handlers)
        self.small_responses = small_responses(self._handlers.values())

    def api_versions(self) -> list[ApiVersionRange]:
        """See Forwarder: the versions that the active controller serves, too; all that this broker
        knows until those are known.
        """
        own = api_version_ranges(self._handlers.values())
        controller = self._channel.controller_api_versions()
        if controller is None:
            return own
        both = []
        for each in own:
            theirs = controller.range_of(each.api_key)
            if theirs is not None:
                low, high = max(each.min_version, theirs[0]), min(each.max_version, theirs[1])
                if low <= high:
                    both.append(ApiVersionRange(each.api_key, low, high))
        return both

    def quota_of(self, api_key: int) -> Quota:
        """See Forwarder."""
        handler = self._handlers.get(api_key)
        return Quota.EXEMPT if handler is None else handler.policy.quota

    def dispatch(self, session: Session, frame: memoryview, arrived_ms: int) -> PendingResponse:
        """See Forwarder."""
        header = decode_request_header(frame)
        handler = self._handlers[header.api_key]
        low, high = handler.policy.versions
        if not low <= header.api_version <= high:
            raise MalformedRequest(f"{handler.api_key.name} v{header.api_version} is not served")
        if len(frame) > self._max_bytes:
            raise MalformedRequest(
                f"{handler.api_key.name} of {len(frame)} bytes; a request that is forwarded may"
                f" have {self._max_bytes}"
            )
        request = _ForwardedRequest(handler, header, bytes(frame), session, arrived_ms)
        kind = LargePendingResponse if request.is_large else PendingResponse
        pending = kind(header.api_key, header.api_version, header.correlation_id)
        answer = self._forward(request)
        if answer.done and answer.error is None:
            pending.message = answer.value
        else:
            pending.deferred = answer
            pending.error_response = Refusal
        return pending

    def _forward(self, request: _ForwardedRequest) -> Deferred[Any]:
        """The response to come: a message, a `WrittenResponse` or a `Refusal`."""
        # Not at the top: a node that is its whole cluster forwards nothing.
        from kbroker.protocol.forwarded_client import envelope

        client = request.session.identity(request.header.client_id)
        sent = self._channel.send(envelope(request.frame, client), EnvelopeResponse)
        relayed: Deferred[Any] = sent.then(partial(self._relay, request), cancels_source=True)
        answer = relayed.recover(partial(self._refuse, request), cancels_source=True)
        return _charged(answer, self._memory, len(request.frame))

    def _relay(
        self, request: _ForwardedRequest, response: EnvelopeResponse
    ) -> WrittenResponse | Refusal:
        """The response inside the Envelope. Raises KafkaError if there is none."""
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            return Refusal(MalformedRequest(f"the active controller does not serve {request}"))
        data = response.response_data
        if response.error_code or data is None:
            raise self._unexpected(request, f"error {response.error_code} in the envelope")
        header = request.header
        try:
            correlation_id, position = decode_response_header(
                data, header.api_key, header.api_version
            )
        except MalformedRequest as error:
            raise self._unexpected(request, str(error)) from None
        if correlation_id != header.correlation_id:
            raise self._unexpected(request, f"it answers another request ({correlation_id})")
        return WrittenResponse([memoryview(data)[position:]])

    def _unexpected(self, request: _ForwardedRequest, reason: str) -> KafkaError:
        self._refused.log(
            request.arrived_ms,
            "node %d: the active controller's response to a forwarded %s is not usable: %s",
            self._node_id,
            request,
            shown(reason),
        )
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)

    def _refuse(
        self, request: _ForwardedRequest, error: KafkaError
    ) -> Message | Refusal | Deferred[Any]:
        """The error response to a request that no controller has answered."""
        code = error.code if error.code in _RELAYED_CODES else ErrorCode.UNKNOWN_SERVER_ERROR
        handler, header = request.handler.load(), request.header
        self._errors.count(handler.api_key, code)
        kind = request_class(header.api_key)
        if request.is_large:
            context = RequestContext(
                handler.api_key, header.api_version, header.correlation_id, header.client_id
            )
            return self._large.begin(
                LargeRequest(
                    context,
                    kind,
                    request.frame,
                    header.body_position,
                    lambda message: handler.refused_in_steps(message, code, ""),
                    lambda message, failure: handler.refused_in_steps(message, failure.code, ""),
                    None,
                    waits_for_others=False,
                )
            )
        try:
            message, _ = decode(kind, request.frame, header.api_version, header.body_position)
        except MalformedRequest as malformed:
            return Refusal(malformed)
        return handler.error_response(message, code, "")


class _ChargedAnswer(Chained[Any]):
    """A response to come; the memory of its request is charged until it is there, or cancelled."""

    __slots__ = ("_charged_bytes", "_memory")

    def __init__(self, answer: Deferred[Any], memory: Memory, request_bytes: int) -> None:
        super().__init__(answer)
        self._memory = memory
        self._charged_bytes = request_bytes
        memory.charge(request_bytes)

    def resolve(self, value: Any) -> None:
        """As Chained.resolve."""
        self._release()
        super().resolve(value)

    def fail(self, error: KafkaError) -> None:
        """As Chained.fail."""
        self._release()
        super().fail(error)

    def cancel(self) -> None:
        """The client has disconnected: its request is given up."""
        self._release()
        super().cancel()

    def _release(self) -> None:
        released, self._charged_bytes = self._charged_bytes, 0
        self._memory.release(released)


def _charged(answer: Deferred[Any], memory: Memory, request_bytes: int) -> Deferred[Any]:
    if answer.done:
        return answer
    charged = _ChargedAnswer(answer, memory, request_bytes)
    answer.on_done(charged.resolve, charged.fail)
    return charged


class LocalForwarder:
    """Of a broker whose node is its whole cluster. handlers: of the APIs for which the broker has
    none. listener_name: of the controller, empty if it has no listener. controller: the dispatcher
    of forwarded requests, made with the first one.
    """

    def __init__(
        self,
        handlers: Iterable[RegisteredApi[Any]],
        controller: Callable[[], RequestDispatcher],
        *,
        listener_name: str,
    ) -> None:
        served = tuple(handlers)
        self._controller = controller
        self._listener_name = listener_name
        self._api_versions = api_version_ranges(served)
        self._quotas = {int(handler.api_key): handler.policy.quota for handler in served}
        self.api_keys = frozenset(int(handler.api_key) for handler in served)
        self.small_responses = small_responses(served)

    def api_versions(self) -> Sequence[ApiVersionRange]:
        """See Forwarder."""
        return self._api_versions

    def quota_of(self, api_key: int) -> Quota:
        """See Forwarder."""
        return self._quotas.get(api_key, Quota.EXEMPT)

    def dispatch(
        self, session: Session, frame: memoryview, arrived_ms: int
    ) -> PendingResponse | None:
        """See Forwarder."""
        forwarded = replace(session, listener_name=self._listener_name)
        dispatcher = self._controller()
        if len(frame) > LARGE_REQUEST_BYTES:
            return dispatcher.dispatch_in_slices(forwarded, frame, arrived_ms)
        return dispatcher.dispatch(forwarded, frame, arrived_ms)
