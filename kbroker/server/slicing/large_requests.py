"""Requests of perhaps very many small items: decoded, handled and encoded in slices of the loop.

One MB may hold 350,000 list items, which take half a second to decode alone. A request larger than
`LARGE_REQUEST_BYTES` is copied out of the receive buffer and goes through `FairSlices`, which gives
the loop its turn every few milliseconds; a Produce request only beyond `LARGE_PRODUCE_BYTES` and
`PRODUCE_PARTITIONS`, since its bulk should be records. Items that do not concern one another are
handled a piece at a time (`divided_requests`); other handlers run in one turn or are `sliced`
themselves. Decoded items take up to 60 times the memory of their bytes, so `MAX_BYTES_AT_ONCE` of
requests are under way at once and the others wait for their turn, with their bytes charged to the
memory account. The connection starts no other request meanwhile. What a request and its response
consist of is freed in steps, however the request ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import cache
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final, cast

from kbroker.ports import Deferred
from kbroker.protocol.codecs.codec import Part, decode_in_steps, encode_in_steps
from kbroker.protocol.codecs.pieces import merge, pieces
from kbroker.protocol.codecs.schema import Binary, Message, Request, Struct
from kbroker.protocol.errors import ErrorCode, KafkaError, MalformedRequest
from kbroker.replication.time_slices import SlicedAnswer
from kbroker.server.requests import (
    HandlerSteps,
    NoResponseError,
    Outcome,
    Refusal,
    RefusedRequest,
    RequestContext,
    WrittenResponse,
)
from kbroker.server.services import NodeServices
from kbroker.server.slicing.divided_requests import Division, count_items
from kbroker.settings.views.network import RESPONSE_LIMIT

if TYPE_CHECKING:
    from kbroker.replication.time_slices import FairSlices, SlicedSteps, SlicedWork

MAX_BYTES_AT_ONCE: Final = 1 << 20
"""Requests under way together, or one larger one."""

FREED_ITEMS: Final = 1024
"""Items of a message that are freed in one step."""

ITEM_BYTES: Final = 256
"""About what an item of a response takes in memory: `kbroker.response.max.bytes` over this is how
many items a response to a divided request may have.
"""


class LargeAnswer(SlicedAnswer[Any]):
    """The response to come, a `WrittenResponse` or a `Refusal`. Cancelled with its connection: no
    further step is taken, and what the handler waits for is cancelled, too.
    """

    __slots__ = ("on_cancel",)

    def __init__(self) -> None:
        super().__init__()
        self.on_cancel: Callable[[], None] | None = None

    def cancel(self) -> None:
        on_cancel, self.on_cancel = self.on_cancel, None  # which holds the request, and so this
        if on_cancel is not None:
            on_cancel()


class LargeRequest:
    """A request in slices. handle: steps of stage one, which return what the handler does. failed:
    steps of the response to a request whose Deferred failed. division: how it is divided; None:
    handled as a whole. waits_for_others: see `ApiPolicy`. made: its messages, which are freed in
    steps.
    """

    __slots__ = (
        "answer",
        "context",
        "division",
        "failed",
        "frame",
        "handle",
        "is_counted",
        "made",
        "parts",
        "position",
        "request_type",
        "size",
        "waits_for",
        "waits_for_others",
        "work",
    )

    def __init__(
        self,
        context: RequestContext,
        request_type: type[Request],
        frame: Binary,
        position: int,
        handle: Callable[[Any], HandlerSteps],
        failed: Callable[[Any, KafkaError], HandlerSteps],
        division: Division | None,
        *,
        waits_for_others: bool,
    ) -> None:
        self.context = context
        self.request_type = request_type
        self.frame = frame
        self.size = len(frame)
        self.position = position
        self.handle = handle
        self.failed = failed
        self.division = division
        self.waits_for_others = waits_for_others
        self.answer = LargeAnswer()
        self.parts: list[Part] = []
        self.made: list[object] = []
        self.is_counted = False
        self.work: SlicedWork | None = None
        self.waits_for: Deferred[Any] | None = None


def free_in_steps(unused: list[object]) -> Iterator[None]:
    """Free what messages consist of, some items in each step: 300,000 of them take 0.1 s.

    unused: has the last reference to the messages, and is emptied. Their lists are only read: one
    that is used elsewhere stays as it is. A message may lack fields, if it was not read to its end.
    """
    left = FREED_ITEMS
    for item in unused:  # which grows meanwhile
        left -= 1
        if isinstance(item, list):
            for start in range(0, len(item), FREED_ITEMS):
                unused += item[start : start + FREED_ITEMS]
                left -= FREED_ITEMS if len(item) > FREED_ITEMS else len(item)
                if left <= 0:
                    left = FREED_ITEMS
                    yield
        elif isinstance(item, Struct):
            for name in _lists_of(type(item)):
                part = getattr(item, name, None)
                if part:
                    unused.append(part)
        if left <= 0:
            left = FREED_ITEMS
            yield
    item = part = None
    unused.reverse()  # a struct is freed before what its lists have, which is held here
    while unused:
        del unused[-FREED_ITEMS:]
        if unused:
            yield


def abandon(slices: FairSlices, work: SlicedWork, unused: list[object]) -> None:
    """Cancel work of a connection that is closed. What its generators hold in local variables, and
    `unused`, is freed in steps: a handler may have half a response and the outcomes it waits for.
    """
    steps = work.cancel()
    if isinstance(steps, GeneratorType) and not steps.gi_running:
        unused += [each for each in _made_by(steps) if each is not unused]
        steps.close()
        del steps
    if unused:
        slices.begin(free_in_steps(unused), lambda failure: None)


def _made_by(steps: GeneratorType[Any, Any, Any]) -> list[object]:
    """The lists and structs in local variables of a generator and of those it waits for."""
    found: dict[int, object] = {}  # several frames may hold the same one
    inner: object = steps
    while isinstance(inner, GeneratorType):
        if inner.gi_frame is not None:
            found |= {
                id(each): each
                for each in inner.gi_frame.f_locals.values()
                if isinstance(each, list | Struct)
            }
        inner = inner.gi_yieldfrom
    return list(found.values())


@cache
def _lists_of(kind: type[Struct]) -> tuple[str, ...]:
    """Fields with lists or with structs, which may have lists."""
    return tuple(field.name for field in kind.FIELDS if field.type_name in ("array", "struct"))


class LargeRequests:
    """The large requests of a broker. See the module docstring."""

    __slots__ = ("_bytes", "_is_beginning", "_services", "_waiting")

    def __init__(self, services: NodeServices) -> None:
        self._services = services
        self._waiting: deque[LargeRequest] = deque()
        self._bytes = 0  # of the requests under way
        self._is_beginning = False

    @property
    def waiting(self) -> int:
        """Requests that have not begun."""
        return len(self._waiting)

    def begin(self, request: LargeRequest) -> LargeAnswer:
        """Handle it when it is its turn; perhaps the response is there on return."""
        self._services.memory.charge(request.size)
        answer = request.answer
        answer.on_cancel = lambda: self._cancel(request)
        self._waiting.append(request)
        self._begin_next()
        return answer

    def _begin_next(self) -> None:
        if self._is_beginning:
            return
        self._is_beginning = True
        try:
            while self._waiting and self._has_room(self._waiting[0].size):
                self._begin_one(self._waiting.popleft())
        finally:
            self._is_beginning = False

    def _has_room(self, size: int) -> bool:
        return not self._bytes or self._bytes + size <= MAX_BYTES_AT_ONCE

    def _begin_one(self, request: LargeRequest) -> None:
        self._bytes += request.size
        request.is_counted = True

        answer = request.answer

        def done(failure: Exception | None) -> None:
            self._let_others_begin(request)
            answer.on_cancel = None
            # The failure's traceback holds the request, which must not hold the failure.
            del request.answer
            answer.resolve(WrittenResponse(request.parts) if failure is None else Refusal(failure))

        slices, steps = self._services.slices, self._steps(request)
        request.work = answer.work = slices.begin(steps, done, answer.meter)

    def _let_others_begin(self, request: LargeRequest) -> None:
        if request.is_counted:
            request.is_counted = False
            self._bytes -= request.size
            self._services.memory.release(request.size)
            self._begin_next()

    def _cancel(self, request: LargeRequest) -> None:
        """Abandon the request, because its connection is closed."""
        if request.work is None:
            if request in self._waiting:
                self._waiting.remove(request)
                self._services.memory.release(request.size)
            return
        abandon(self._services.slices, request.work, request.made)
        waits_for, request.waits_for = request.waits_for, None
        if waits_for is not None:
            waits_for.cancel()
        self._let_others_begin(request)

    def _steps(self, request: LargeRequest) -> SlicedSteps:
        """From bytes to bytes."""
        refused: list[Exception] = []
        try:
            response = yield from self.respond(request)
        except (KafkaError, MalformedRequest) as error:
            refused.append(RefusedRequest(str(error)))  # error's frames hold the messages
        except NoResponseError:
            refused.append(NoResponseError())
        else:
            yield from free_in_steps(request.made)  # before the response is written
            request.made.append(response)
            request.parts = yield from encode_in_steps(response, request.context.api_version)
            del response
            yield from free_in_steps(request.made)
            return
        yield from free_in_steps(request.made)
        raise refused.pop()  # not kept: its traceback holds this frame

    def respond(self, request: LargeRequest) -> Generator[Deferred[Any] | None, None, Message]:
        """Steps from a request's bytes to its response, for a request of which `begin` is not told:
        it is inside another one. Raises what ends the request.
        """
        message, _ = yield from decode_in_steps(
            request.request_type,
            memoryview(request.frame),
            request.context.api_version,
            request.position,
            request.made,
        )
        if request.division is None:
            return (yield from self._handle(request, message))
        return (yield from self._handle_divided(request, message, request.division))

    def _handle(
        self, request: LargeRequest, message: Any
    ) -> Generator[Deferred[Any] | None, None, Message]:
        outcome = yield from self._follow(request, request.handle(message))
        yield None
        if isinstance(outcome, Deferred):
            if request.waits_for_others:
                self._let_others_begin(request)
            if not outcome.done:
                request.waits_for = outcome
                yield outcome
                request.waits_for = None
            error = outcome.error
            if error is None:
                outcome = outcome.value
            else:
                outcome = yield from request.failed(message, error)
        if outcome is None:
            raise NoResponseError
        return cast(Message, outcome)

    def _follow(
        self, request: LargeRequest, steps: HandlerSteps
    ) -> Generator[Deferred[Any] | None, None, Outcome]:
        """Steps of a handler. Others begin when they wait, not at their first pause."""
        while True:
            try:
                waits_for = next(steps)
            except StopIteration as end:
                return cast(Outcome, end.value)
            if waits_for is not None and not waits_for.done:
                if request.waits_for_others:
                    self._let_others_begin(request)
                request.waits_for = waits_for
            yield waits_for
            request.waits_for = None

    def _handle_divided(
        self, request: LargeRequest, message: Any, division: Division
    ) -> Generator[Deferred[Any] | None, None, Message]:
        limit = self._services.config.get_int(RESPONSE_LIMIT) // ITEM_BYTES
        total: Message | None = None
        count = 0
        for piece, continued in pieces(message, division.request):
            try:
                response = yield from self._handle(request, piece)
            except NoResponseError:
                continue  # Produce with acks=0: so are all pieces
            count += count_items(response, division.response)
            if count > limit:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION, f"its response would exceed {RESPONSE_LIMIT}"
                )
            if total is None:
                total = response
                request.made.append(total)
            else:
                merge(total, response, division.response, continued)
        if total is None:
            raise NoResponseError
        request.made.pop()
        return total
