"""What a coordinator core asks its shell to do, as values. `runtime` carries them out, in list
order.

A core decides and returns effects; it never appends, answers or waits by itself. So a test reads
the list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kbroker.coordinator.records import CoordinatorRecord
from kbroker.model import Deferred
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.schema import Message

Waiter = Deferred[Message]
"""The answer a client waits for. A core keeps it and hands it back in a Reply; it never resolves
it.
"""


class Reply:
    """Give waiter its response."""

    __slots__ = ("response", "waiter")

    def __init__(self, waiter: Waiter, response: Message) -> None:
        self.waiter = waiter
        self.response = response

    def __repr__(self) -> str:
        return f"Reply({self.response!r})"


class Append:
    """Write records as one batch; then: what follows once they are committed, or were refused.

    then takes (NONE or the error for the client, now_ms). It is not called if the shard is unloaded
    meanwhile.
    """

    __slots__ = ("records", "then")

    def __init__(
        self,
        records: Sequence[CoordinatorRecord],
        then: Callable[[ErrorCode, int], list[Effect]] | None = None,
    ) -> None:
        self.records = records
        self.then = then

    def __repr__(self) -> str:
        return f"Append({list(self.records)!r})"


Effect = Append | Reply
