"""What remains of the effects that groups return, until they return CoordinatorResults: an Append
is one, a Reply in a list stands for one with that reply alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.runtime.result import CoordinatorResult, Reply, Results
from kbroker.protocol.errors import ErrorCode


class Append(CoordinatorResult[None]):
    """A CoordinatorResult. lost: the Reply in place of on_completion if the shard is unloaded."""

    __slots__ = ("lost",)

    lost: Callable[[ErrorCode], Reply] | None

    def __init__(
        self,
        records: Sequence[CoordinatorRecord],
        then: Callable[[ErrorCode, int], Results] | None = None,
        *,
        written: Callable[[int], Results] | None = None,
        lost: Callable[[ErrorCode], Reply] | None = None,
    ) -> None:
        super().__init__(records, None, written, then)
        object.__setattr__(self, "lost", lost)


Effect = CoordinatorResult[None] | Reply
