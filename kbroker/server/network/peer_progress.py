"""Decides whether a peer makes progress, from the sweeps of its connection; without I/O or a clock.

Progress means that bytes are transferred, independent of how long a request or response takes.
While other connections wait for memory, a request that has its memory must be received, and
responses must be sent. Sweeps are then about a second apart, or more: a busy event loop reads less,
which is not the sender's fault, so the pace of a request is measured in sweeps. Between two of them
the loop has read everything that had arrived.
"""

from __future__ import annotations

from typing import Final

SWEEP_SECONDS: Final = 0.9
"""A sweep that follows sooner is ignored."""

GRACE_SWEEPS: Final = 3
"""A request may pause for this many sweeps."""

MIN_BYTES_PER_SWEEP: Final = 64 * 1024
"""The minimum pace of a request after the first GRACE_SWEEPS."""

STUCK_SECONDS: Final = 30.0
"""How long the responses of a connection may hold memory without progress."""


class PeerProgress:
    """The progress of one connection."""

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
        """The sweeps, since the request got its memory, in which other connections waited."""
        self._idle_sweeps = 0  # the last of these, in which nothing was received
        self._received_bytes = -1  # those of the request, at the last sweep
        self._request_swept = 0.0
        self._others_wait = False  # whether others waited for memory at the last sweep
        self._responses: object = None  # the position of the responses at the last sweep
        self._responses_since = 0.0  # since when they have that position

    def request_begins(self) -> None:
        """The memory of the request was just taken, or no other connection waits for memory."""
        self.request_sweeps = self._idle_sweeps = 0
        self._received_bytes = -1

    def request_is_stalled(self, now: float, received_bytes: int) -> bool:
        """Whether an incomplete request arrives too slowly. received_bytes: those of the
        request.
        """
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
        """Whether responses were sent since the last sweep. position: a value that changes with
        each progress and never recurs. It is kept until the next sweep that finds responses, so it
        must not reference one, except weakly.
        """
        if position == self._responses:
            return False
        self._responses = position
        self._responses_since = now
        return True

    def no_contention(self) -> None:
        """No other connection waits for memory, so this one is not limited."""
        self.request_begins()
        self._others_wait = False

    def responses_are_stuck(self, now: float) -> bool:
        """While other connections wait: whether no response was sent for a long time."""
        if not self._others_wait:
            self._others_wait = True
            self._responses_since = now
        return now - self._responses_since > STUCK_SECONDS

    def responses_may_wait(self, now: float) -> None:
        """The responses hold little memory, or wait for the broker itself: their time starts
        now.
        """
        self._responses_since = now
