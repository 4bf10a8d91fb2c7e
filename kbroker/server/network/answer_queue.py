"""The responses of one connection that were not sent yet, in the order of their requests.

A response that is ready but has to wait, for an unresolved response before it or for a peer that
reads slowly, is kept in encoded form: its size is then known, and charged to the memory account
(docs/adr/0016). Neighbours: `connection` fills and empties the queue, `memory_pool` is the account.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from kbroker.protocol.codecs.codec import Part
from kbroker.protocol.messages.api_versions import ApiVersionsResponse
from kbroker.server.network.limits import PipelineBudget
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.network.response_writer import held_bytes_of
from kbroker.server.requests import PendingResponse, Refusal

PART_BYTES: Final = 64
"""Charged for each part of a response in addition to its bytes: a file range is an object too."""


Render = Callable[[PendingResponse], list[Part]]

_ENCODED: Final = ApiVersionsResponse()


class EncodedResponse(PendingResponse):
    """A response in encoded form, which replaces its PendingResponse in the queue. Its message is a
    placeholder that only shows that the response is ready.
    """

    __slots__ = ("held_bytes", "parts")

    def __init__(self, pending: PendingResponse, parts: list[Part]) -> None:
        super().__init__(pending.api_key, pending.api_version, pending.correlation_id)
        self.message = _ENCODED
        self.parts = parts
        self.held_bytes = held_bytes_of(parts) + PART_BYTES * len(parts)


def ends_connection(pending: PendingResponse) -> bool:
    """Whether rendering it ends the connection."""
    message: object = pending.message
    return type(message) is Refusal and message.ends_connection


class AnswerQueue(deque[PendingResponse]):
    """See the module docstring. held_bytes: those of the encoded responses in the queue.
    unresolved: how many responses have no message yet. encoded: how many are in encoded form.
    charged_bytes: the accounted part of held_bytes. accounted: zero if neither the budget nor the
    memory account has an entry for this queue.
    """

    __slots__ = (
        "_budget",
        "_budget_places",
        "_memory",
        "accounted",
        "charged_bytes",
        "encoded",
        "held_bytes",
        "unresolved",
    )

    def __init__(self, budget: PipelineBudget, memory: MemoryPool) -> None:
        super().__init__()
        self._budget = budget
        self._budget_places = 0
        self._memory = memory
        self.accounted = 0
        self.charged_bytes = 0
        self.held_bytes = 0
        self.unresolved = 0
        self.encoded = 0

    @property
    def is_front_unresolved(self) -> bool:
        """Whether the next response to send is not resolved yet."""
        return bool(self) and self[0].message is None

    def encode_ready(self, render: Render) -> None:
        """Encode every response that is ready, and charge it. One that ends the connection is left
        for its turn. Raises what render raises.
        """
        try:
            for place, pending in enumerate(self):
                is_ready = pending.message is not None and not isinstance(pending, EncodedResponse)
                if is_ready and not ends_connection(pending):
                    self[place] = encoded = EncodedResponse(pending, render(pending))
                    self.encoded += 1
                    self.held_bytes += encoded.held_bytes
        finally:
            self.account()

    def render_with(self, render: Render) -> Render:
        """As render, also for encoded responses that were taken from the queue."""

        def parts_of(pending: PendingResponse) -> list[Part]:
            if not isinstance(pending, EncodedResponse):
                return render(pending)
            self.encoded -= 1
            self.held_bytes -= pending.held_bytes
            return pending.parts

        return parts_of

    def account(self) -> None:
        """Update the pipeline budget and the memory account."""
        places = max(0, len(self) - 1)
        if places != self._budget_places:
            self._budget.used += places - self._budget_places
            self._budget_places = places
        if self.held_bytes != self.charged_bytes:
            change = self.held_bytes - self.charged_bytes
            self.charged_bytes = self.held_bytes
            if change > 0:
                self._memory.charge(change)
            else:
                self._memory.release(-change)
        self.accounted = self._budget_places + self.charged_bytes

    def abandon_unresolved_end(self) -> None:
        """Abandon the responses after the last one that is ready."""
        while self and self[-1].message is None:
            self._abandon(self.pop())
        self.account()

    def abandon(self) -> None:
        """The connection is closed: drop all responses, and cancel the waiting requests."""
        while self:
            pending = self.popleft()
            self._abandon(pending)
            pending.message = (
                None  # a `Refusal` may have a traceback that refers back to this object
            )
        self.encoded = self.held_bytes = 0
        self.account()

    def _abandon(self, pending: PendingResponse) -> None:
        deferred = pending.deferred
        if deferred is not None:
            pending.deferred = None
            self.unresolved -= 1
            deferred.cancel()
