"""Producer ids for this broker: handed out one by one from blocks of 1000 that the metadata log has
promised to it.

A block is never handed out twice, also after a crash: the ids that are left of a block when the
broker stops are not used (KIP-730).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from kbroker.controller.producer_ids import ProducerIdBlock
from kbroker.ports import Deferred, TimerHandle, Timers
from kbroker.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

PREFETCH_LEFT: Final = 100
"""With so many ids left the next block is requested, so that producers rarely wait."""

WAIT_MS: Final = 3_000
"""How long a producer waits for a block: an election of a controller is over by then, and no client
has given its request up. The request for the block goes on.
"""


class ProducerIdManager:
    """Hands out producer ids. allocate: asks the controller for a block
    (`BrokerChannel.allocate_producer_ids`).
    """

    __slots__ = (
        "_allocate",
        "_asked",
        "_end",
        "_next",
        "_prefetched",
        "_timer",
        "_timers",
        "_waiting",
    )

    def __init__(self, allocate: Callable[[], Deferred[ProducerIdBlock]], timers: Timers) -> None:
        self._allocate = allocate
        self._timers = timers
        self._timer: TimerHandle | None = None
        self._next = self._end = 0
        self._prefetched: ProducerIdBlock | None = None
        self._asked = False
        self._waiting: deque[tuple[int, Deferred[int]]] = deque()
        """Until when each waits, the first one the shortest."""

    def next_id(self) -> Deferred[int]:
        """A fresh producer id; pending while a block is requested. Fails with
        COORDINATOR_LOAD_IN_PROGRESS, as in Kafka, if no block comes in time.
        """
        if self._next == self._end and self._prefetched is not None:
            self._take(self._prefetched)
            self._prefetched = None
        if self._next < self._end:
            producer_id = self._next
            self._next += 1
            if self._end - self._next == PREFETCH_LEFT:
                self._ask()
            return Deferred.of(producer_id)
        deferred: Deferred[int] = Deferred()
        self._waiting.append((self._timers.monotonic_ms() + WAIT_MS, deferred))
        self._plan()
        self._ask()
        return deferred

    def _ask(self) -> None:
        if self._asked:
            return
        self._asked = True
        try:
            allocated = self._allocate()
        except KafkaError as error:
            self._failed(error)
        else:
            allocated.on_done(self._arrived, self._failed)

    def _failed(self, error: KafkaError) -> None:
        """The controller refused or lost leadership. The next request for an id asks again."""
        logger.warning("no block of producer ids: %s", error)
        self._asked = False
        self._give_up(len(self._waiting))

    def _arrived(self, block: ProducerIdBlock) -> None:
        self._asked = False
        if self._next < self._end:
            self._prefetched = block
            return
        self._take(block)
        while self._waiting and self._next < self._end:
            producer_id = self._next
            self._next += 1
            self._waiting.popleft()[1].resolve(producer_id)
        if self._waiting:
            self._ask()

    def _plan(self) -> None:
        if self._timer is None and self._waiting:
            wait_ms = self._waiting[0][0] - self._timers.monotonic_ms()
            self._timer = self._timers.call_later(max(wait_ms, 0), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_ms = self._timers.monotonic_ms()
        self._give_up(sum(until_ms <= now_ms for until_ms, _ in self._waiting))
        self._plan()

    def _give_up(self, count: int) -> None:
        """Fail the first of those that wait."""
        for _, deferred in [self._waiting.popleft() for _ in range(count)]:
            message = "no producer id is left, and the controller has not given a block yet"
            deferred.fail(KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message))

    def _take(self, block: ProducerIdBlock) -> None:
        self._next, self._end = block.first_id, block.first_id + block.count
