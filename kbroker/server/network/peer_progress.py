"""Whether a peer makes progress: looked at in the sweeps of its connection, without I/O or a clock.

What counts is that bytes move, not how long a request or a response takes. While other connections
wait for memory, a request that has got its memory must come in, and responses must leave. Sweeps
are about a second apart then, or more: a busy event loop reads less, for which the sender is not to
blame, so the pace of a request is counted in sweeps. Between two of them the loop has read what was
there.
"""

from __future__ import annotations

from typing import Final

SWEEP_SECONDS: Final = 0.9
"""A sweep that follows earlier than this does not count."""

GRACE_SWEEPS: Final = 3
"""A request may pause for so many sweeps."""

MIN_BYTES_PER_SWEEP: Final = 64 * 1024
"""The pace of a request after the first GRACE_SWEEPS."""

STUCK_SECONDS: Final = 30.0
"""How long the responses of a connection may hold memory without moving."""


class PeerProgress:
    """Of one connection."""

    __slots__ = (
        "_idle_sweeps",
        "_others_wait",
        "_received_bytes",
        "_request_swept",
        "_responses",
        "_responses_since",
        "request_sweeps",
    )

    def __init__(self) -> None:
        self.request_sweeps = 0
        """In which other connections waited, since the request got its memory."""
        self._idle_sweeps = 0  # of these, the last ones in which nothing was received
        self._received_bytes = -1  # of the request, at the last sweep
        self._request_swept = 0.0
        self._others_wait = False  # for memory, at the last sweep
        self._responses: object = None  # where the responses were at the last sweep
        self._responses_since = 0.0  # since when they are there

    def request_begins(self) -> None:
        """Its memory was just taken, or no other connection wants it."""
        self.request_sweeps = self._idle_sweeps = 0
        self._received_bytes = -1

    def request_is_stalled(self, now: float, received_bytes: int) -> bool:
        """Whether a request that is waited for comes in too slowly. received_bytes: of it."""
        if now - self._request_swept < SWEEP_SECONDS:
            return False
        self._request_swept = now
        self.request_sweeps += 1
        has_paused = received_bytes == self._received_bytes
        self._idle_sweeps = self._idle_sweeps + 1 if has_paused else 0
        self._received_bytes = received_bytes
        due = (self.request_sweeps - GRACE_SWEEPS) * MIN_BYTES_PER_SWEEP
        return self._idle_sweeps >= GRACE_SWEEPS or received_bytes < due

    def responses_moved(self, now: float, position: object) -> bool:
        """Whether responses have moved since the last sweep. position: where they are, in values
        that never come back. It is kept until the next sweep that finds responses, so it must not
        hold one: a weak reference does.
        """
        if position == self._responses:
            return False
        self._responses = position
        self._responses_since = now
        return True

    def no_contention(self) -> None:
        """No other connection waits for memory, so this one has all the time."""
        self.request_begins()
        self._others_wait = False

    def responses_are_stuck(self, now: float) -> bool:
        """While other connections wait: whether the responses have not moved for long."""
        if not self._others_wait:
            self._others_wait = True
            self._responses_since = now
        return now - self._responses_since > STUCK_SECONDS

    def responses_may_wait(self, now: float) -> None:
        """They hold little, or wait for the broker itself: their time is counted from here."""
        self._responses_since = now
