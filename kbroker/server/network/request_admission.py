"""Takes the memory for the requests of one connection, now or after waiting in a queue.

The memory of a receive buffer beyond its first KiB is in the memory account, and while the account
is nearly exhausted a request whose response may be large waits before it is started
(docs/adr/0016). Neighbours: `memory_pool` is the account, `receive_buffer`, and `connection`, which
stops reading while there is a ticket.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

from kbroker.server.network.memory_pool import MemoryPool, Ticket
from kbroker.server.network.muting import Muting
from kbroker.server.network.peer_progress import PeerProgress
from kbroker.server.network.receive_buffer import MIN_FREE_BYTES, SMALL_BYTES, ReceiveBuffer
from kbroker.server.requests import CloseConnection

STARTED_PER_SWEEP: Final = 16
"""How many requests of a muted connection are started at a sweep."""


class RequestAdmission:
    """See the module docstring.

    go_on: called when the requested memory or turn is granted. small_responses: API keys, see
    `MemoryClass`. held_bytes: those of the buffer that were taken from the account. ticket: set
    while waiting for memory. may_pass: the next request has waited its turn.
    """

    __slots__ = (
        "_buffer",
        "_go_on",
        "_memory",
        "_progress",
        "_small_responses",
        "_was_started",
        "held_bytes",
        "may_pass",
        "ticket",
    )

    def __init__(
        self,
        buffer: ReceiveBuffer,
        memory: MemoryPool,
        progress: PeerProgress,
        go_on: Callable[[], None],
        small_responses: Container[int],
    ) -> None:
        self._buffer = buffer
        self._memory = memory
        self._progress = progress
        self._go_on = go_on
        self._small_responses = small_responses
        self._was_started = False  # by the last sweep, although it was muted
        self.may_pass = False
        self.held_bytes = 0
        self.ticket: Ticket | None = None

    def give_back_unused(self) -> None:
        """Return the memory by which the buffer has shrunk."""
        capacity = self._buffer.capacity_bytes
        needed = capacity if capacity > SMALL_BYTES else 0
        if needed < self.held_bytes:
            given, self.held_bytes = self.held_bytes - needed, needed
            self._memory.give_back(given)

    def trim(self) -> None:
        """Called at each sweep: release memory that recent requests did not need."""
        if self.ticket is None:
            self._buffer.trim()
            self.give_back_unused()

    def requests_handled(self) -> None:
        """The held bytes are for the next request; its pace is measured from now on."""
        if (
            self._memory.contended
            or self._progress.request_sweeps
            or self.held_bytes != self._buffer.capacity_bytes
        ):
            self._progress.request_begins()
            self.give_back_unused()

    def shrink(self) -> None:
        """Between two requests, while others wait: keep no buffer, and queue for the next one."""
        self._buffer.shrink()
        self.give_back_unused()

    def give_back(self) -> None:
        """Memory pressure begins: release memory that is kept only for speed."""
        if self.held_bytes and self.ticket is None and not self._buffer.pending_bytes:
            self.shrink()

    def is_stalled(self, now: float, *, is_read: bool) -> bool:
        """At a sweep, while other connections wait: whether an incomplete request that has its
        memory arrives too slowly. now: the loop's clock. is_read: whether the connection is read; a
        sweep without counts if the last one has ended a mute, which may have begun again.
        """
        buffer, was_read, self._was_started = self._buffer, self._was_started, False
        if not (self.held_bytes and buffer.front_bytes and (is_read or was_read)):
            return False
        return self._progress.request_is_stalled(now, buffer.pending_bytes)

    def start_muted(self, muting: Muting, pump: Callable[[], None]) -> None:
        """End the mute of a connection whose requests hold memory that others wait for, so that it
        makes progress as they do. Each started request is charged to its quota, which mutes the
        connection again, for longer. pump: starts the request at the front.
        """
        for _ in range(STARTED_PER_SWEEP):
            if not (self._memory.wants_buffers and muting.is_muted and self._holds_unstarted()):
                break
            muting.end()
            self._was_started = True
            pump()

    def _holds_unstarted(self) -> bool:
        """Whether requests that have arrived hold memory, after releasing what they do not need."""
        if self.ticket is not None:
            return False
        if self.held_bytes and self._buffer.pending_bytes + MIN_FREE_BYTES <= SMALL_BYTES:
            self.shrink()
        return self.held_bytes > 0

    def may_grow(self) -> bool:
        """Let the request at the front have the buffer that it needs, now or after waiting; a
        request that fits never waits. Raises CloseConnection if it must not even wait.
        """
        buffer, memory = self._buffer, self._memory
        self.give_back_unused()
        if not memory.take(buffer.needed_bytes - self.held_bytes):
            if not buffer.must_grow:
                buffer.needed_bytes = 0
                return True
            needed = buffer.needed_bytes
            self.shrink()
            buffer.needed_bytes = needed
            held = self.held_bytes
            if not memory.may_park(held):
                raise CloseConnection(
                    "its half of a request, and those of others, fill too much memory"
                )
            self._queue_up(lambda then: memory.wait(needed - held, then, held=held), self._grow)
            return self.ticket is None
        self._grow()
        return True

    def must_queue_up(self) -> bool:
        """Whether the request at the front must wait because memory is nearly exhausted. A request
        that already has its memory never waits: it returns the memory when it is handled.
        """
        memory = self._memory
        if self.may_pass or self.held_bytes or not memory.is_pressed:
            self.may_pass = False
            return False
        key = self._buffer.next_api_key()
        is_light = key in self._small_responses
        if key is None or (is_light and memory.used <= memory.limit):
            return False
        self._queue_up(lambda then: memory.wait_turn(then, light=is_light), self._pass)
        return True

    def leave(self) -> None:
        """The connection is closed: stop waiting, and release all memory."""
        if self.ticket is not None:
            ticket, self.ticket = self.ticket, None
            self._memory.withdraw(ticket)
        held, self.held_bytes = self.held_bytes, 0
        self._memory.give_back(held)
        self._go_on = _nothing  # leaves no reference cycle with the connection

    def _grow(self) -> None:
        """Grow the buffer: its memory was taken."""
        self.held_bytes = self._buffer.needed_bytes
        self._progress.request_begins()
        self._buffer.grow()

    def _pass(self) -> None:
        self.may_pass = True

    def _queue_up(
        self, wait: Callable[[Callable[[], None]], Ticket], then: Callable[[], None]
    ) -> None:
        """Wait, then continue; `ticket` is None afterwards if the wait has already ended."""
        is_served = False

        def served() -> None:
            nonlocal is_served
            is_served = True
            self.ticket = None
            then()
            self._go_on()

        ticket = wait(served)
        if not is_served:
            self.ticket = ticket


def _nothing() -> None:
    """Replaces `go_on` after the connection is closed."""
