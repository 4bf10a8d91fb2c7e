"""A registered API: its key, its handler and its policy, and what follows from all of them; and the
same before the handler is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from importlib import import_module
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from kbroker.model import InvariantError
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.pieces import merge, pieces
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode
from kbroker.server.api_policy import ApiPolicy, MemoryClass
from kbroker.server.requests import HandlerSteps, Outcome, RequestContext
from kbroker.server.services import NodeServices
from kbroker.server.session import ApiVersionRange
from kbroker.server.slicing.divided_requests import Division

# Any: each handler names its own request class
RefusalSteps = Callable[[Any, ErrorCode, str], Generator[None, None, Message]]
"""An `error_response` as a generator, which pauses after some hundred items."""

REFUSED_ITEMS: Final = 512
"""Items of a large request that are answered with an error in one step."""

S_contra = TypeVar("S_contra", bound=NodeServices, contravariant=True)
"""What the handler may call: `Services` on listeners of brokers, `ControllerServices` on those of
controllers, `NodeServices` on both.
"""


class ApiHandler(msgspec.Struct, Generic[S_contra], frozen=True):
    """One API as a handler module registers it; `HANDLERS` at its end lists them.

    handle: stage one, synchronous. The request's bytes fields are views on the connection's receive
    buffer: valid until handle returns, so whatever outlives it must be written or copied by then.
    It may write into them (base offsets). It gives up the whole request by raising KafkaError,
    which becomes `error_response(request, code, message)`, and so does the failure of the Deferred
    it returns; the fields of that request which held such views are then empty. policy: what is
    checked before handle is called.

    For requests that go through `large_requests` - steps: called in place of handle where handle
    itself must not be sliced; it yields None for a pause or a Deferred to wait for. division: how
    such a request is cut into pieces; None: it is handled as a whole. refusal: how an error
    response with a result for each item is made in steps. A Division: error_response is called for
    each piece; RefusalSteps, where pieces cannot be joined: called in place of error_response;
    None: error_response is called once.

    For responses that are charged to a client quota - limit: called before handle while quotas are
    set, keeps the response within what a quota admits at once. withdraw: gives the empty response
    in place of one that exceeds the quota, which is as if it had not been made; None: it is sent.
    """

    api_key: ApiKey
    # Any: each handler names its own request class
    handle: Callable[[S_contra, RequestContext, Any], Outcome]
    error_response: Callable[[Any, ErrorCode, str], Message]
    policy: ApiPolicy
    steps: Callable[[S_contra, RequestContext, Any], HandlerSteps] | None = None
    division: Division | None = None
    refusal: Division | RefusalSteps | None = None
    limit: Callable[[S_contra, RequestContext, Any], None] | None = None
    withdraw: Callable[[S_contra, Any], Message] | None = None

    def load(self) -> ApiHandler[S_contra]:
        """See `RegisteredApi`: its module is imported."""
        return self

    @property
    def min_version(self) -> int:
        """The oldest request version that is served."""
        return self.policy.versions.min_version

    @property
    def max_version(self) -> int:
        """The newest request version that is served."""
        return self.policy.versions.max_version

    # Any: a request of the API
    def refused_in_steps(self, request: Any, code: ErrorCode, message: str) -> HandlerSteps:
        """The error response to a large request, `REFUSED_ITEMS` of its items at a time."""
        refusal = self.refusal
        if refusal is None:
            return self.error_response(request, code, message)
        if not isinstance(refusal, Division):
            return (yield from refusal(request, code, message))
        total: Message | None = None
        for piece, continued in pieces(request, refusal.request, REFUSED_ITEMS):
            if total is None:
                total = self.error_response(piece, code, message)
                continue
            yield None
            refused = self.error_response(piece, code, message)
            merge(total, refused, refusal.response, continued)
        return total


class LateHandler(msgspec.Struct, Generic[S_contra], frozen=True):
    """An `ApiHandler` whose module is imported when the first request for the API arrives: the
    modules of all APIs, with the messages and cores they need, are a tenth of what an idle broker
    holds in memory. module: its full name.
    """

    module: str
    api_key: ApiKey
    policy: ApiPolicy

    def load(self) -> ApiHandler[S_contra]:
        """Import the module and find the handler. Raises InvariantError if it has none."""
        handlers: Iterable[ApiHandler[S_contra]] = import_module(self.module).HANDLERS
        for handler in handlers:
            if handler.api_key is self.api_key:
                return handler
        raise InvariantError(f"{self.module} has no handler of {self.api_key.name}")


class RegisteredApi(Protocol[S_contra]):
    """What a listener knows of an API before the first request: `ApiHandler` and `LateHandler`."""

    @property
    def api_key(self) -> ApiKey: ...
    @property
    def policy(self) -> ApiPolicy: ...

    def load(self) -> ApiHandler[S_contra]:
        """The handler, whose module may be imported by that."""
        ...


def small_responses(handlers: Iterable[RegisteredApi[Any]]) -> frozenset[int]:
    """Keys of the APIs whose responses are small as a rule; see `MemoryClass`."""
    return frozenset(
        int(handler.api_key)
        for handler in handlers
        if handler.policy.memory_class is MemoryClass.SMALL_RESPONSE
    )


def api_version_ranges(handlers: Iterable[RegisteredApi[Any]]) -> list[ApiVersionRange]:
    """What ApiVersions announces for these handlers, by API key."""
    return sorted(
        ApiVersionRange(int(handler.api_key), *handler.policy.versions) for handler in handlers
    )
