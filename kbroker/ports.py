"""Ports: what cores and loops need from their surroundings, and `Deferred`, a later result.

`Timers`, `Offload`, `Memory` and `Random` are implemented in `node/` (asyncio, threads) and in
`server/network/memory_pool`. Simulated ones are in `tests/sim`, for parts of a node, and in
`kbroker/simulation/resources`, for whole nodes. This module is above
`protocol` in the import order because a `Deferred` fails with `protocol.errors.KafkaError`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Final, Generic, Protocol, TypeVar, overload

from kbroker.model import InvariantError
from kbroker.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

T = TypeVar("T")
U = TypeVar("U")
K = TypeVar("K")

_new_object: Final = object.__new__

Random = random.Random
"""Random numbers as a port: node/ passes one in, a simulation passes a seeded one."""


class Surprise(KafkaError):
    """UNKNOWN_SERVER_ERROR in place of an exception that is not a KafkaError and that was logged
    with its traceback. `server/dispatch` counts it and logs which request it was.
    """

    def __init__(self) -> None:
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR)


def as_kafka_error(error: Exception) -> KafkaError:
    """The error that answers a request in which error was raised: error itself, or `Surprise`."""
    if isinstance(error, KafkaError):
        return error
    logger.error("unexpected exception in a step of a request", exc_info=error)
    return Surprise()


def broker_stopping() -> KafkaError:
    """The failure of what still waits when the broker stops."""
    return KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "The broker is stopping.")


class Deferred(Generic[T]):
    """A result that comes later, on the loop thread: a value, or a KafkaError.

    pending -> resolved (`resolve`) or failed (`fail`), once; done is true for both. Callbacks run
    inside `resolve` and `fail`, in the order of registration. Unlike asyncio.Future it needs no
    loop, so cores may return one, and a callback costs no extra turn of the loop.

    The creator resolves or fails every Deferred it returned, in particular when it loses what the
    Deferred waits for: the leader, the controller, the coordinator or the disk. The one exception
    is `cancel`.
    """

    __slots__ = ("_callbacks", "_on_failed", "_value", "done", "error")

    _value: T

    def __init__(self) -> None:
        self.done = False
        self._callbacks: list[Callable[[T], object]] | None = None
        self._on_failed: list[Callable[[KafkaError], object]] | None = None
        self.error: KafkaError | None = None
        """The error of a failed Deferred; None while it is pending, and of a resolved one."""

    @classmethod
    def of(cls, value: T) -> Deferred[T]:
        """A resolved Deferred. Made without `__init__`, which would take twice as long."""
        deferred: Deferred[T] = _new_object(Deferred)
        deferred.done = True
        deferred._callbacks = deferred._on_failed = deferred.error = None
        deferred._value = value
        return deferred

    @classmethod
    def failed(cls, error: KafkaError) -> Deferred[T]:
        """A failed Deferred."""
        deferred: Deferred[T] = cls()
        deferred.fail(error)
        return deferred

    @property
    def value(self) -> T:
        """The value. Raises the KafkaError of a failed one and InvariantError while pending."""
        try:
            return self._value
        except AttributeError:  # only `resolve` sets it
            if self.error is None:
                raise InvariantError("Deferred read before it was resolved") from None
        raise _copy_of(self.error)

    def resolve(self, value: T) -> None:
        """Set the value and run the callbacks. Raises InvariantError if it is done already."""
        if self.done:
            raise InvariantError("Deferred resolved twice")
        self.done = True
        self._value = value
        self._on_failed = None
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback(value)

    def fail(self, error: KafkaError) -> None:
        """Set the error and run the failure callbacks. Raises InvariantError if it is done already.

        A failure that reaches callers without on_failed only is logged.
        """
        if self.done:
            raise InvariantError("Deferred failed after it was resolved or failed")
        self.done = True
        error.__traceback__ = error.__context__ = None  # their frames may hold this Deferred
        self.error = error
        callbacks, self._callbacks = self._callbacks, None
        on_failed, self._on_failed = self._on_failed, None
        if callbacks is not None and on_failed is None:
            _log_unobserved(error)
        for callback in on_failed or ():
            callback(error)

    def on_done(
        self,
        callback: Callable[[T], object],
        on_failed: Callable[[KafkaError], object] | None = None,
    ) -> None:
        """Call callback with the value or on_failed with the error: now if this is done, otherwise
        when it is.

        A caller that passes no on_failed is not told of a failure: see `fail`.
        """
        if not self.done:
            if self._callbacks is None:
                self._callbacks = [callback]
            else:
                self._callbacks.append(callback)
            if on_failed is not None:
                if self._on_failed is None:
                    self._on_failed = [on_failed]
                else:
                    self._on_failed.append(on_failed)
        elif self.error is None:
            callback(self._value)
        elif on_failed is not None:
            on_failed(self.error)
        else:
            _log_unobserved(self.error)

    @overload
    def then(
        self, function: Callable[[T], Deferred[U]], *, cancels_source: bool = False
    ) -> Deferred[U]: ...
    @overload
    def then(
        self, function: Callable[[T], U | Deferred[U]], *, cancels_source: bool = False
    ) -> Deferred[U]: ...
    def then(
        self, function: Callable[[T], U | Deferred[U]], *, cancels_source: bool = False
    ) -> Deferred[U]:
        """The result of function, called with the value; a Deferred that function returns is
        followed.

        A failure of this Deferred is passed on, and so is a KafkaError that function raises. Any
        other exception fails the result with `Surprise`; InvariantError is raised to the caller of
        `resolve`. cancels_source: whether `cancel` of the result also cancels this Deferred and
        skips function, which is right for reads. By default work that has begun is completed when
        its client has disconnected.
        """
        if self.done and self.error is None and not cancels_source:
            outcome = _apply(function, self._value)
            if outcome.done:
                return outcome
            following: Deferred[U] = Deferred()  # a caller's `cancel` does not reach the outcome
            follow(following, outcome)
            return following
        result: Deferred[U] = Chained(self) if cancels_source else Deferred()
        self.on_done(partial(_continue, result, function), result.fail)
        return result

    def recover(
        self, function: Callable[[KafkaError], T | Deferred[T]], *, cancels_source: bool = False
    ) -> Deferred[T]:
        """This result, or in place of a failure the result of function; see `then`."""
        if self.done and self.error is None:
            return self
        result: Deferred[T] = Chained(self) if cancels_source else Deferred()
        self.on_done(result.resolve, partial(_continue, result, function))
        return result

    def cancel(self) -> None:
        """The connection that waits for the result is closed. Does nothing here: a Deferred may
        have several callers, and work that writes is completed.

        A `Chained` ends here: it stops its work and calls no callback. Callers that hold resources
        for the response release them in their own `cancel`.
        """


class Cancellable(Protocol):
    """Work in progress that can be given up; cancelling it when it is over is harmless."""

    def cancel(self) -> object: ...


class Chained(Deferred[T], Generic[T]):
    """A Deferred whose `cancel` ends it and what it waits for at present: a third final state.

    waits_for: the step in progress. is_cancelled: the next step need not begin. A class of its own
    because it has exactly one caller: a second one would lose its response when the first one
    cancels. Most Deferreds are shared, or write, and are to ignore `cancel`.
    """

    __slots__ = ("is_cancelled", "waits_for")

    def __init__(self, waits_for: Cancellable | None = None) -> None:
        super().__init__()
        self.is_cancelled = False
        self.waits_for = waits_for

    def resolve(self, value: T) -> None:
        """As Deferred.resolve; does nothing after `cancel`."""
        self.waits_for = None  # no reference cycle is left
        if not self.is_cancelled:
            super().resolve(value)

    def fail(self, error: KafkaError) -> None:
        """As Deferred.fail; does nothing after `cancel`."""
        self.waits_for = None
        if not self.is_cancelled:
            super().fail(error)

    def cancel(self) -> None:
        """Cancel the step in progress. Harmless once this is done."""
        if self.done:
            return
        self.is_cancelled = True
        self._callbacks = self._on_failed = None
        waits_for, self.waits_for = self.waits_for, None
        if waits_for is not None:
            waits_for.cancel()


def _copy_of(error: KafkaError) -> KafkaError:
    """An error to raise. The traceback it gets may hold the Deferred: if the Deferred held the same
    error, that would be a reference cycle.
    """
    kind = type(error)
    copy = kind.__new__(kind, *error.args)
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__
    return copy


def _log_unobserved(error: KafkaError) -> None:
    logger.error("a Deferred failed and its caller does not observe failures: %s", error)


def _continue(result: Deferred[U], function: Callable[[T], U | Deferred[U]], argument: T) -> None:
    """The next step of a chain: give result what function makes of argument."""
    if not (isinstance(result, Chained) and result.is_cancelled):
        follow(result, _apply(function, argument))


def _apply(function: Callable[[T], U | Deferred[U]], argument: T) -> Deferred[U]:
    """What function returns, as a Deferred, which has failed if it raised an error."""
    try:
        outcome = function(argument)
    except InvariantError:
        raise
    except Exception as error:  # noqa: BLE001  # one request's surprise must not fail the others
        return Deferred.failed(as_kafka_error(error))
    return to_deferred(outcome)


def to_deferred(outcome: T | Deferred[T]) -> Deferred[T]:
    """The outcome itself, or a Deferred that is resolved with it."""
    return outcome if isinstance(outcome, Deferred) else Deferred.of(outcome)


def follow(result: Deferred[T], outcome: T | Deferred[T]) -> None:
    """Give result the outcome: now, or when it is done."""
    if not isinstance(outcome, Deferred):
        result.resolve(outcome)
        return
    if isinstance(result, Chained):
        result.waits_for = outcome
    outcome.on_done(result.resolve, result.fail)


class _Gathering(Generic[T]):
    """The results of several Deferreds on their way into one; `cancel` cancels the Deferreds."""

    __slots__ = ("_pending_count", "_result", "_results", "_sources")

    def __init__(self, sources: list[Deferred[T]], result: Deferred[list[T]]) -> None:
        self._result = result
        self._results: list[T | None] = [None] * len(sources)
        self._pending_count = len(sources)
        self._sources = sources
        if isinstance(result, Chained):
            result.waits_for = self

    def start(self) -> None:
        """Follow each of the Deferreds."""
        for index, source in enumerate(self._sources):
            source.on_done(partial(self._put, index), self._fail)

    def cancel(self) -> None:
        """Cancel each of the Deferreds."""
        sources, self._sources = self._sources, []
        for source in sources:
            source.cancel()

    def _put(self, index: int, value: T) -> None:
        self._results[index] = value
        self._pending_count -= 1
        if not self._pending_count:
            self._sources = []
            self._result.resolve(self._results)  # type: ignore[arg-type]  # all are there

    def _fail(self, error: KafkaError) -> None:
        self._sources = []
        if not self._result.done:  # an earlier failure counts
            self._result.fail(error)


def gather(deferreds: Iterable[Deferred[T]], *, cancels_sources: bool = False) -> Deferred[list[T]]:
    """The values of all deferreds, in their order, or the first failure, without waiting for the
    others. cancels_sources: as for `Deferred.then`.
    """
    sources = list(deferreds)
    if not sources:
        return Deferred.of([])
    result: Deferred[list[T]] = Chained() if cancels_sources else Deferred()
    _Gathering(sources, result).start()
    return result


def gather_by_key(deferreds: Mapping[K, Deferred[T]]) -> Deferred[Mapping[K, T]]:
    """As `gather`: the value of each of deferreds, by its key."""
    keys = list(deferreds)
    return gather(deferreds.values()).then(lambda values: dict(zip(keys, values, strict=True)))


def at_once(steps: Generator[None, None, T]) -> T:
    """Take all steps now. Returns what the generator returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


class TimerHandle(Protocol):
    """What `Timers.call_later` returns; cancelling twice or after it fired is harmless."""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """Time as a port: the event loop's in a broker, virtual time in a test."""

    def now_ms(self) -> int:
        """Wall clock, ms since the epoch: for record timestamps and for expiry times on disk."""
        ...

    def monotonic_ms(self) -> int:
        """Monotonic clock with an unknown origin: for every deadline that is not stored."""
        ...

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> TimerHandle:
        """Run callback on the loop thread after delay_ms of monotonic time."""
        ...


class Offload(Protocol):
    """Runs blocking work outside the loop thread (docs/adr/0007).

    work gets bytes and file handles, never live objects. then is called on the loop thread with the
    OSError that work raised, or None; any other exception of work is logged and becomes an OSError.
    A test may run both within the call.
    """

    def __call__(
        self, work: Callable[[], None], then: Callable[[OSError | None], None]
    ) -> None: ...


class ClosableOffload(Offload, Protocol):
    """An Offload with threads of its own."""

    def close(self) -> None:
        """Wait for the work under way. Work that is given later fails with OSError. Blocks."""
        ...


OffloadFactory = Callable[[str, int], ClosableOffload]
"""Called with what the threads are for, which names them, and their number: one thread does its
work in order.
"""


ThreadPools = Callable[[str, int], Executor]
"""Called with what the threads are for, which names them, and their number. The caller shuts the
pool down. For work that another thread waits for; work of the loop goes to an `Offload`.
"""


SetLogLevel = Callable[[logging.Logger, int], None]
"""Called with a logger and one of `logging`'s levels. Loggers belong to the process, so only
`node/run`, which has a process of its own, passes one in.
"""


class Memory(Protocol):
    """The account of the memory that clients make the broker hold, in bytes; `MemoryPool` in
    `server/network/memory_pool` implements it.

    `charge` accounts for bytes that exist already, whether they fit or not. `keep` and `lend` are
    for bytes that outlive their request (sessions): they have a share of their own and are refused
    beyond it.
    """

    @property
    def is_short(self) -> bool:
        """Whether callers wait for memory, or would have to."""
        ...

    def has_room(self, count: int) -> bool:
        """Whether count more bytes are within the limit."""
        ...

    def charge(self, count: int) -> None: ...
    def release(self, count: int) -> None: ...
    def keep(self, count: int) -> bool:
        """Charge bytes that outlive their request, if their share has room."""
        ...

    def lend(self, count: int) -> bool:
        """As `keep`, with a larger share while no caller waits for memory; see `overdrawn`."""
        ...

    @property
    def overdrawn(self) -> int:
        """The lent bytes that have to be dropped when a caller begins to wait for memory."""
        ...

    def drop(self, count: int) -> None:
        """Release bytes that were kept or lent."""
        ...


class UnlimitedMemory:
    """`Memory` without an account: everything fits."""

    is_short = False
    overdrawn = 0

    def has_room(self, count: int) -> bool:
        """Always true."""
        return True

    def charge(self, count: int) -> None:
        """Accounts for nothing."""

    def release(self, count: int) -> None:
        """Accounts for nothing."""

    def keep(self, count: int) -> bool:
        """Always true."""
        return True

    def lend(self, count: int) -> bool:
        """Always true."""
        return True

    def drop(self, count: int) -> None:
        """Accounts for nothing."""
