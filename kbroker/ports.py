"""What a core may use without knowing asyncio: deadlines, and answers that come later.

`Deferred` carries an answer from stage two of a request back to its connection; `Timers` is the
port through which loops get their deadlines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from kbroker.model import InvariantError

T = TypeVar("T")


class Deferred(Generic[T]):
    """A value that comes later, on the loop thread. Resolved once; callbacks run at once, in order
    of registration.

    Unlike asyncio.Future it needs no loop, so cores may hand it out, and a callback costs no extra
    turn of the loop.
    """

    __slots__ = ("_callbacks", "_value", "done")

    _value: T

    def __init__(self) -> None:
        self.done = False
        self._callbacks: list[Callable[[T], None]] | None = None

    @classmethod
    def of(cls, value: T) -> Deferred[T]:
        """An already resolved Deferred."""
        deferred: Deferred[T] = cls()
        deferred.done = True
        deferred._value = value
        return deferred

    @property
    def value(self) -> T:
        """The value. Raises InvariantError before it is there."""
        if not self.done:
            raise InvariantError("Deferred read before it was resolved")
        return self._value

    def resolve(self, value: T) -> None:
        """Give the value and run the callbacks. Raises InvariantError the second time."""
        if self.done:
            raise InvariantError("Deferred resolved twice")
        self.done = True
        self._value = value
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback(value)

    def on_done(self, callback: Callable[[T], None]) -> None:
        """Call back with the value: now if it is there, else when it comes."""
        if self.done:
            callback(self._value)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def cancel(self) -> None:
        """Nobody reads the value any more. What waits may stop waiting, and then never resolves;
        here nothing happens.
        """


class Cancellable(Protocol):
    """What can be waited for, and given up; harmless when it is over."""

    def cancel(self) -> None: ...


class Chained(Deferred[T], Generic[T]):
    """A Deferred whose value is made of what others give: a request that waits in several steps.

    waits_for: what it waits for now; `cancel` is passed on to it. is_cancelled: nobody reads the
    value any more, so the next step need not begin. A cancelled one never resolves.
    """

    __slots__ = ("is_cancelled", "waits_for")

    def __init__(self) -> None:
        super().__init__()
        self.is_cancelled = False
        self.waits_for: Cancellable | None = None

    def resolve(self, value: T) -> None:
        """As Deferred.resolve; does nothing once it was cancelled."""
        self.waits_for = None  # no reference cycle is left
        if not self.is_cancelled:
            super().resolve(value)

    def cancel(self) -> None:
        """Give up what is waited for. Harmless once resolved."""
        if self.done:
            return
        self.is_cancelled = True
        self._callbacks = None
        waits_for, self.waits_for = self.waits_for, None
        if waits_for is not None:
            waits_for.cancel()


class TimerHandle(Protocol):
    """What `Timers.call_later` gives; cancelling twice or after it fired is harmless."""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """Time as a port: the loop in a broker, virtual time in a test."""

    def now_ms(self) -> int:
        """Wall clock, ms since the epoch: for record timestamps and expiry of what is on disk."""
        ...

    def monotonic_ms(self) -> int:
        """Time that nobody sets, from an unknown origin: for every deadline that is not stored."""
        ...

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> TimerHandle:
        """Run callback on the loop thread after delay_ms of monotonic time."""
        ...
