"""Handlers whose work grows with what a request names: generators, run in slices of the loop.

A handler marked `sliced` yields where the loop may have its turn: every few dozen items it has
looked at, and at least once a millisecond. A request that is done within the first slice is
answered like any other; for a larger one the rest follows in later turns, which `FairSlices` hands
out in turn to all such requests. When the connection is closed no further step is taken.

Between two steps other requests run: a handler holds no image, partition or group across a `yield`
unless it may be the one of a moment ago. What it reads of its request are numbers, strings and ids,
never views on the receive buffer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from heapq import merge
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from kbroker.ports import Deferred, as_kafka_error
from kbroker.protocol.codecs.schema import Message, Struct
from kbroker.replication.time_slices import SlicedAnswer, Steps
from kbroker.server.requests import LARGE_REQUEST_BYTES
from kbroker.server.slicing.large_requests import abandon
from kbroker.settings.views.network import RESPONSE_LIMIT

if TYPE_CHECKING:
    from kbroker.replication.time_slices import SlicedSteps
    from kbroker.server.requests import Outcome, RequestContext
    from kbroker.server.services import NodeServices

TOO_LARGE: Final = f"The response would exceed {RESPONSE_LIMIT} of the broker; ask for less."

R = TypeVar("R", bound=Message)
T = TypeVar("T")
D = TypeVar("D", bound=Struct)
K = TypeVar("K", bound=Hashable)
S = TypeVar("S", bound="NodeServices")

SORTED_ITEMS: Final = 2048
STRUCT_BYTES: Final = 64
STEP_BYTES: Final = 16 * 1024
UNFINISHED_BYTES: Final = 128 * 1024
"""What a request that was not done within its first slice is charged with until it is: so many
under way hold up others with large responses. All of them take turns, so without a bound a thousand
clients that ask for all topics have a thousand halves of a response made.
"""

CHEAP_ITEMS: Final = 512
"""Items between two yields where an item takes a microsecond or so; `STEP_ITEMS` otherwise."""

MIN_TOPIC_BYTES: Final = 3
MIN_PARTITION_BYTES: Final = 14
"""On the wire, at least, in a commit of offsets of any version."""


class NamesPartitions(Protocol):
    """A topic of a request, with its partitions."""

    @property
    def partitions(self) -> Sequence[object]: ...


def step_items_of(topics: Iterable[NamesPartitions]) -> int:
    """For a handler that writes: how many topics and partitions to look at between two pauses.

    Up to `LARGE_REQUEST_BYTES` the connection starts its next request when this one pauses, which
    must not write first: a request that may be so small has no pause.
    """
    size = 0
    for topic in topics:
        size += MIN_TOPIC_BYTES + MIN_PARTITION_BYTES * len(topic.partitions)
        if size > LARGE_REQUEST_BYTES:
            return CHEAP_ITEMS
    return sys.maxsize


def once_each(items: Iterable[K]) -> Generator[None, None, dict[K, None]]:
    """What a request names, each once, in its order; a step of a sliced handler."""
    named: dict[K, None] = {}
    for count, item in enumerate(items, 1):
        if count % CHEAP_ITEMS == 0:
            yield
        named[item] = None
    return named


def sorted_in_steps(items: Iterable[str]) -> Generator[None, None, Iterator[str]]:
    """An iterator over items in ascending order; sorting is a step of a sliced handler."""
    runs: list[list[str]] = [[]]
    for item in items:
        if len(runs[-1]) >= SORTED_ITEMS:
            runs[-1].sort()
            runs.append([])
            yield None
        runs[-1].append(item)
    runs[-1].sort()
    return merge(*runs)


class _Response(SlicedAnswer[Message]):
    """The response to come; cancelled with its connection."""

    __slots__ = ("services",)

    services: NodeServices

    def cancel(self) -> None:
        if self.work is not None and not self.work.is_over:
            abandon(self.services.slices, self.work, [])
            self.services.memory.release(UNFINISHED_BYTES)


# Any: what a Deferred resolves with is the handler's
def _in_slices(
    services: NodeServices, first: Deferred[Any] | None, steps: Steps[Message]
) -> Outcome:
    """The response of steps whose first one has been taken and yielded `first`."""
    answer = _Response()
    response: list[Message] = []
    raised: list[Exception] = []
    is_first = True

    def rest() -> SlicedSteps:
        yield first
        response.append((yield from steps))

    def done(failure: Exception | None) -> None:
        services.memory.release(UNFINISHED_BYTES)
        if failure is None:
            answer.resolve(response[0])
        elif is_first:
            raised.append(failure)
        else:
            answer.fail(as_kafka_error(failure))

    services.memory.charge(UNFINISHED_BYTES)
    answer.services = services
    answer.work = services.slices.begin(rest(), done)
    is_first = False
    if raised:
        raise raised.pop()  # not kept: its traceback holds this frame
    return answer.value if answer.done else answer


# Any: each handler names its own request class
def sliced(
    handler: Callable[[S, RequestContext, Any], Steps[R]],
) -> Callable[[S, RequestContext, Any], Outcome]:
    """Make a handler of a generator function. What the first slice raises is raised to `dispatch`;
    what a later one raises fails the Deferred that was returned.
    """

    def handle(services: S, context: RequestContext, request: Any) -> Outcome:
        steps = handler(services, context, request)
        try:
            first = next(steps)
        except StopIteration as end:  # as of nearly every request
            response: Message = end.value
            return response
        return _in_slices(services, first, steps)

    handle.__name__, handle.__doc__ = handler.__name__, handler.__doc__
    return handle


def describe_each(
    services: NodeServices,
    names: Iterable[str],
    describe: Callable[[str], D],
    refuse: Callable[[str], D],
) -> Generator[None, None, list[D]]:
    """Describe each of names once, in its order; steps of a sliced handler. refuse: gives the
    response for what would go beyond `kbroker.response.max.bytes`.
    """
    asked = yield from once_each(names)
    described: list[D] = []
    unseen = 0
    with AnswerSize(services) as size:
        for name in asked:
            one = refuse(name) if size.is_full else describe(name)
            taken = estimated_bytes(one)
            if not size.is_full and not size.add(taken):
                one = refuse(name)
            described.append(one)
            unseen += taken
            if unseen >= STEP_BYTES:
                unseen = 0
                yield None
    return described


def estimated_bytes(value: object) -> int:
    """The approximate size of a struct of a response: in memory, and its variable parts once more
    on the wire.
    """
    if isinstance(value, Struct):
        fields = type(value).FIELDS
        return STRUCT_BYTES + sum(estimated_bytes(getattr(value, each.name)) for each in fields)
    if isinstance(value, list):
        return STRUCT_BYTES + sum(map(estimated_bytes, value))
    if isinstance(value, str | bytes | bytearray | memoryview):
        return 2 * len(value)
    return 0


class AnswerSize:
    """The estimated size of a list of answers while it is built: charged to the memory, and refused
    beyond `kbroker.response.max.bytes`. A context manager.
    """

    __slots__ = ("_charged", "_limit", "_memory")

    def __init__(self, services: NodeServices) -> None:
        self._memory = services.memory
        self._limit = services.config.get_int(RESPONSE_LIMIT)
        self._charged = 0

    def __enter__(self) -> AnswerSize:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.release(self._charged)

    def add(self, count: int) -> bool:
        """Whether so many bytes more may be answered; they are charged then. One that is refused
        leaves no room for smaller ones after it.
        """
        if self._charged + count > self._limit:
            self._limit = 0
            return False
        self._charged += count
        self._memory.charge(count)
        return True

    @property
    def is_full(self) -> bool:
        """Whether something was refused, so that nothing more need be made."""
        return self._limit == 0
