"""`kbroker.memory.limit.bytes`: accounts for the memory that the broker holds on behalf of clients.
No I/O, no clock.

Accounted for: receive buffers beyond a connection's first few KiB, batches that wait for a worker,
responses that the peer does not read, converted records, large fetches that wait, sessions. Not
accounted for: the memory of an idle broker, small buffers, and state that is as durable as the logs
(topics, groups, offsets, producers).

    take     reserve memory before a large request is received; a request that does not fit waits
             in the order of arrival (`wait`)
    charge   account for memory that is allocated already, whether it fits or not; while too much is
             charged, requests with large responses wait (`wait_turn`)
    keep     reserve memory that outlives its request (sessions); refused beyond its share, and the
             client is then served without a session

Receive buffers have a share of their own, so that requests being received do not delay responses;
kept memory has one too, so that it delays neither.

A waiting connection holds no memory, except for the first part of a request that arrived in one
read with earlier requests; the pool limits these parts (`may_park`). All other holders release
their memory without taking more, so that the connection at the front of the queue is served in the
end and no deadlock is possible. A request larger than `largest_request` would wait for ever; the
caller must refuse it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

DEFAULT_LIMIT: Final = 256 * 1024 * 1024

REQUEST_SHARE: Final = 3 / 4
"""Share of the limit for receive buffers."""

PARKED_SHARE: Final = 1 / 8
"""Share of the limit that all waiting connections together may hold."""

ANSWER_SHARE: Final = 1 / 8
"""Above this charged share, no further large response is started. The rest of the limit is for the
response that was started last.
"""

KEPT_SHARE: Final = 1 / 8
"""Share for kept memory. With the largest request and the waiting connections it makes 7/8."""

LENT_SHARE: Final = 3 / 8
"""Share for kept and lent memory together; lent memory is dropped when memory pressure begins."""


class Ticket:
    """An entry in a queue. count: bytes requested; then: called once they are taken; held: bytes
    that the waiting connection already holds.
    """

    __slots__ = ("count", "held", "queue", "then")

    def __init__(
        self, queue: deque[Ticket], then: Callable[[], None], count: int = 0, held: int = 0
    ) -> None:
        self.queue = queue
        self.then = then
        self.count = count
        self.held = held


class MemoryPool:
    """See the module. request_limit: bytes for receive buffers (`queued.max.request.bytes`), or
    None for their share. on_pressure: called when memory pressure begins, so that memory kept only
    for speed is released.
    """

    __slots__ = (
        "_answers",
        "_granting",
        "_light",
        "_requests",
        "answer_limit",
        "contended",
        "kept",
        "kept_limit",
        "lent_limit",
        "limit",
        "on_pressure",
        "park_limit",
        "parked",
        "parked_answers",
        "peak",
        "request_limit",
        "requests",
        "used",
        "waits",
    )

    def __init__(
        self,
        limit: int = DEFAULT_LIMIT,
        request_limit: int | None = None,
        *,
        on_pressure: Callable[[], None] = lambda: None,
    ) -> None:
        share = int(limit * REQUEST_SHARE)
        self.limit = limit
        self.request_limit = share if request_limit is None else min(share, request_limit)
        self.park_limit = int(limit * PARKED_SHARE)
        self.answer_limit = int(limit * ANSWER_SHARE)
        self.kept_limit = int(limit * KEPT_SHARE)
        self.lent_limit = int(limit * LENT_SHARE)
        self.used = 0
        self.kept = 0
        """Bytes of `used` that outlive their requests."""
        self.requests = 0
        """Bytes of `used` in receive buffers."""
        self.parked = 0
        """Bytes of `requests` held by waiting connections."""
        self.parked_answers = 0
        """Bytes charged for requests that wait in `wait_turn`."""
        self.peak = 0
        self.contended = False
        """Whether any ticket waits."""
        self.waits = 0
        """Number of tickets that had to wait since the start."""
        self.on_pressure = on_pressure
        self._requests: deque[Ticket] = deque()
        self._answers: deque[Ticket] = deque()
        self._light: deque[Ticket] = deque()
        self._granting = False

    @property
    def waiting(self) -> int:
        """Number of tickets that wait."""
        return len(self._requests) + len(self._answers) + len(self._light)

    @property
    def largest_request(self) -> int:
        """The largest receive buffer, in bytes, that is guaranteed to be granted eventually."""
        return int(self.limit * REQUEST_SHARE) - self.park_limit

    @property
    def is_pressed(self) -> bool:
        """Whether large responses must wait. Memory of waiting requests does not count."""
        answers = self.used - self.requests - self.kept - self.parked_answers
        return answers > self.answer_limit or self.used > self.limit

    @property
    def is_short(self) -> bool:
        """Whether a ticket waits, or a request with a large response would."""
        return self.contended or self.is_pressed

    @property
    def wants_buffers(self) -> bool:
        """Whether a ticket waits for memory that receive buffers hold."""
        return bool(self._requests) or (self.contended and self.used > self.limit)

    def has_room(self, count: int) -> bool:
        """Whether count more bytes are within the limit."""
        return self.used + count <= self.limit

    def charge(self, count: int) -> None:
        """Account for count bytes that are allocated already."""
        self.used += count
        if self.used > self.peak:
            self.peak = self.used

    def release(self, count: int) -> None:
        """Account for count bytes that were freed, and serve the tickets that fit now."""
        self.used -= count
        if self.contended:
            self._grant()

    def keep(self, count: int) -> bool:
        """Charge count bytes that outlive their request. Returns False, with nothing charged, if
        that would exceed the share or the limit.
        """
        if self.kept + count > self.kept_limit or self.used + count > self.limit:
            return False
        self.kept += count
        self.charge(count)
        return True

    def lend(self, count: int) -> bool:
        """Like `keep`, but up to `lent_limit` while there is no memory pressure; the caller drops
        the `overdrawn` bytes when pressure begins.
        """
        share = self.kept_limit if self.is_short else self.lent_limit
        if self.kept + count > share or self.used + count > self.limit:
            return False
        self.kept += count
        self.charge(count)
        return True

    @property
    def overdrawn(self) -> int:
        """Bytes lent beyond the share for kept memory."""
        return max(0, self.kept - self.kept_limit)

    def drop(self, count: int) -> None:
        """Release count bytes of kept or lent memory."""
        self.kept -= count
        self.release(count)

    def take(self, count: int) -> bool:
        """Take count bytes for a receive buffer, if they fit and no ticket for another buffer
        waits.
        """
        if self._requests or not self._fits(count):
            return False
        self._take(count)
        return True

    def give_back(self, count: int) -> None:
        """A receive buffer became smaller by count bytes."""
        self.requests -= count
        self.release(count)

    def may_park(self, held: int) -> bool:
        """Whether a connection that already holds that many bytes may wait."""
        return not held or self.parked + held <= self.park_limit

    def wait(self, count: int, then: Callable[[], None], *, held: int = 0) -> Ticket:
        """Queue for `take`; then is called when the bytes are taken, possibly before this returns.
        held: bytes that the caller already has, see `may_park`.
        """
        self.parked += held
        return self._queue_up(Ticket(self._requests, then, count, held))

    def may_park_answer(self, held: int) -> bool:
        """Whether a response for which that many bytes are already charged may wait."""
        return self.parked_answers + held <= self.park_limit

    def wait_turn(self, then: Callable[[], None], *, light: bool = False, held: int = 0) -> Ticket:
        """Wait until a large response may be started; light: until the limit is not exceeded.

        held: bytes already charged for the response, see `may_park_answer`.
        """
        self.parked_answers += held
        return self._queue_up(Ticket(self._light if light else self._answers, then, held=held))

    def withdraw(self, ticket: Ticket) -> None:
        """Stop waiting, because the connection is closed. No effect on a ticket already served."""
        if ticket in ticket.queue:
            ticket.queue.remove(ticket)
            if ticket.queue is self._requests:
                self.parked -= ticket.held
            else:
                self.parked_answers -= ticket.held
            self._grant()

    def _queue_up(self, ticket: Ticket) -> Ticket:
        self.waits += 1
        ticket.queue.append(ticket)
        if not self.contended:
            self.contended = True
            self.on_pressure()
        self._grant()
        return ticket

    def _fits(self, count: int) -> bool:
        return self.used + count <= self.limit and (
            self.requests + count <= self.request_limit or self.requests == self.parked
        )

    def _take(self, count: int) -> None:
        self.requests += count
        self.charge(count)

    def _grant(self) -> None:
        """Serve the queues from their fronts. `then` may release or wait again."""
        if self._granting:
            return
        self._granting = True
        try:
            while self._light and self.used <= self.limit:
                ticket = self._light.popleft()
                self.parked_answers -= ticket.held
                ticket.then()
            while self._answers and not self.is_pressed:
                ticket = self._answers.popleft()
                self.parked_answers -= ticket.held
                ticket.then()
            while self._requests and self._fits(self._requests[0].count):
                ticket = self._requests.popleft()
                self.parked -= ticket.held
                self._take(ticket.count)
                ticket.then()
        finally:
            self._granting = False
            self.contended = bool(self._requests or self._answers or self._light)
