"""Producer ids for this broker: handed out one by one from blocks of 1000 that the metadata log has
promised to it.

A block is never handed out twice, also after a crash: the ids that are left of a block when the
broker stops are not used (KIP-730).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from kbroker.controller.producer_ids import ProducerIdBlock
from kbroker.ports import Deferred
from kbroker.protocol.errors import KafkaError

PREFETCH_LEFT: Final = 100
"""With so many ids left the next block is requested, so that producers rarely wait."""


class ProducerIdManager:
    """Hands out producer ids. allocate: asks the controller for a block
    (`BrokerChannel.allocate_producer_ids`).
    """

    __slots__ = ("_allocate", "_asked", "_end", "_next", "_prefetched", "_waiting")

    def __init__(self, allocate: Callable[[], Deferred[ProducerIdBlock]]) -> None:
        self._allocate = allocate
        self._next = self._end = 0
        self._prefetched: ProducerIdBlock | None = None
        self._asked = False
        self._waiting: deque[Deferred[int]] = deque()

    def next_id(self) -> Deferred[int]:
        """A fresh producer id; pending while a block is requested. Fails as the controller does."""
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
        self._waiting.append(deferred)
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
        self._asked = False
        waiting, self._waiting = self._waiting, deque()
        for deferred in waiting:
            deferred.fail(error)

    def _arrived(self, block: ProducerIdBlock) -> None:
        self._asked = False
        if self._next < self._end:
            self._prefetched = block
            return
        self._take(block)
        while self._waiting and self._next < self._end:
            producer_id = self._next
            self._next += 1
            self._waiting.popleft().resolve(producer_id)
        if self._waiting:
            self._ask()

    def _take(self, block: ProducerIdBlock) -> None:
        self._next, self._end = block.first_id, block.first_id + block.count
