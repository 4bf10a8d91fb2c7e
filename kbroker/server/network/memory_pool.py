"""`kbroker.memory.limit.bytes`: an account of what clients make the broker hold. No I/O, no clock.

In it: receive buffers beyond a connection's first few KiB, batches that wait for a worker,
responses that the peer does not take, converted records, large fetches that wait, sessions. Not in
it: what an idle broker needs, small buffers, and what is as durable as the logs (topics, groups,
offsets, producers).

    take     before something large is received; what does not fit waits in its order (`wait`)
    charge   for what is there already, whether it fits or not; whoever would make more of it waits
             meanwhile (`wait_turn`)
    keep     for what stays beyond its request (sessions); beyond its share it is refused, and the
             client does without

Receive buffers have a share of their own, so that promised requests do not hold up answers; so has
what is kept, so that it holds up neither.

Whoever waits holds nothing, but for the first part of a request that came in one read with others;
of those the pool lets only so many wait (`may_park`). All other holders give back without taking
more, so that the one at the front of the queue gets its turn: nothing waits in a circle. A request
larger than `largest_request` would wait for ever and is to be refused before it gets here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

DEFAULT_LIMIT: Final = 256 * 1024 * 1024

REQUEST_SHARE: Final = 3 / 4
"""Of the limit, for receive buffers."""

PARKED_SHARE: Final = 1 / 8
"""What those who wait may hold, all together."""

ANSWER_SHARE: Final = 1 / 8
"""With more than this charged, no further large answer is begun. The rest of the limit is for the
last one that was.
"""


KEPT_SHARE: Final = 1 / 8
"""What may be kept beyond requests. With the largest request and those who wait it makes 7/8."""

LENT_SHARE: Final = 3 / 8
"""The same with what is lent, which goes when somebody begins to wait."""


class Ticket:
    """A place in a queue: count bytes wanted, `then` called once they are taken. held: what it has
    already.
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
    """See the module. request_limit: what receive buffers may have (`queued.max.request.bytes`), or
    None for their share. on_pressure: called when somebody begins to wait, so that what is kept
    only for speed is given back.
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

    def __init__(self, limit: int = DEFAULT_LIMIT, request_limit: int | None = None) -> None:
        share = int(limit * REQUEST_SHARE)
        self.limit = limit
        self.request_limit = share if request_limit is None else min(share, request_limit)
        self.park_limit = int(limit * PARKED_SHARE)
        self.answer_limit = int(limit * ANSWER_SHARE)
        self.kept_limit = int(limit * KEPT_SHARE)
        self.lent_limit = int(limit * LENT_SHARE)
        self.used = 0
        self.kept = 0
        """Of `used`, what outlives requests."""
        self.requests = 0
        """Of `used`, what receive buffers have."""
        self.parked = 0
        """Of `requests`, what those who wait hold."""
        self.parked_answers = 0
        """What those hold that wait in `wait_turn`."""
        self.peak = 0
        self.contended = False
        """Whether anybody waits."""
        self.waits = 0
        """How often somebody had to wait."""
        self.on_pressure: Callable[[], None] = lambda: None
        self._requests: deque[Ticket] = deque()
        self._answers: deque[Ticket] = deque()
        self._light: deque[Ticket] = deque()
        self._granting = False

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._requests) + len(self._answers) + len(self._light)

    @property
    def largest_request(self) -> int:
        """The largest receive buffer that surely gets its turn."""
        return int(self.limit * REQUEST_SHARE) - self.park_limit

    @property
    def is_pressed(self) -> bool:
        """Whether large answers must wait. What waits itself is no reason to."""
        answers = self.used - self.requests - self.kept - self.parked_answers
        return answers > self.answer_limit or self.used > self.limit

    @property
    def is_short(self) -> bool:
        """Whether somebody waits, or would."""
        return self.contended or self.is_pressed

    def has_room(self, count: int) -> bool:
        """Whether so much more is within the limit."""
        return self.used + count <= self.limit

    def charge(self, count: int) -> None:
        """Account for what is there."""
        self.used += count
        if self.used > self.peak:
            self.peak = self.used

    def release(self, count: int) -> None:
        """It is gone; whoever waits and fits now goes on."""
        self.used -= count
        if self.contended:
            self._grant()

    def keep(self, count: int) -> bool:
        """Charge what outlives its request, if there is room for such."""
        if self.kept + count > self.kept_limit or self.used + count > self.limit:
            return False
        self.kept += count
        self.charge(count)
        return True

    def lend(self, count: int) -> bool:
        """As `keep`, and while nobody waits up to `lent_limit`: what is `overdrawn` then has to be
        dropped when somebody begins to.
        """
        share = self.kept_limit if self.is_short else self.lent_limit
        if self.kept + count > share or self.used + count > self.limit:
            return False
        self.kept += count
        self.charge(count)
        return True

    @property
    def overdrawn(self) -> int:
        """What is lent beyond the share for what is kept."""
        return max(0, self.kept - self.kept_limit)

    def drop(self, count: int) -> None:
        """Of what was kept, so much is gone."""
        self.kept -= count
        self.release(count)

    def take(self, count: int) -> bool:
        """Take count bytes for a receive buffer, if they fit and nobody waits for such."""
        if self._requests or not self._fits(count):
            return False
        self._take(count)
        return True

    def give_back(self, count: int) -> None:
        """A receive buffer became smaller by count bytes."""
        self.requests -= count
        self.release(count)

    def may_park(self, held: int) -> bool:
        """Whether somebody who holds so much already may wait."""
        return not held or self.parked + held <= self.park_limit

    def wait(self, count: int, then: Callable[[], None], *, held: int = 0) -> Ticket:
        """Queue up for `take`; then is called when it is done, perhaps before this returns. held:
        what the caller has already, see `may_park`.
        """
        self.parked += held
        return self._queue_up(Ticket(self._requests, then, count, held))

    def may_park_answer(self, held: int) -> bool:
        """Whether an answer for which so much is charged already may wait."""
        return self.parked_answers + held <= self.park_limit

    def wait_turn(self, then: Callable[[], None], *, light: bool = False, held: int = 0) -> Ticket:
        """Wait until a large answer may be begun; light: until the limit is not exceeded.

        held: what is charged for the answer already, see `may_park_answer`.
        """
        self.parked_answers += held
        return self._queue_up(Ticket(self._light if light else self._answers, then, held=held))

    def withdraw(self, ticket: Ticket) -> None:
        """Wait no more: the connection is gone. Harmless for a ticket that is served."""
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
