"""Runs: adjacent records of a share partition in the same delivery state (KIP-932), and the
`Change` that a run waits for. This is a core.
"""

from __future__ import annotations

from typing import Final

from kbroker.protocol.share_partition_state import StateBatch

AVAILABLE: Final = 0
ACQUIRED: Final = 1
ACKNOWLEDGED: Final = 2
ARCHIVED: Final = 4
TERMINAL: Final = frozenset({ACKNOWLEDGED, ARCHIVED})


class Run:
    """Offsets first to last in the same state. change: must be written before the state takes
    effect; former: (state, member id, deadline) before the change.
    """

    __slots__ = (
        "change",
        "deadline_ms",
        "deliveries",
        "first",
        "former",
        "last",
        "member",
        "state",
    )

    def __init__(self, first: int, last: int, state: int, deliveries: int) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.deliveries = deliveries
        self.member = ""
        self.deadline_ms = 0
        self.change: Change | None = None
        self.former = (state, "", 0)

    def tail(self, first: int) -> Run:
        """The part of the run from first on, as a separate run."""
        run = Run(first, self.last, self.state, self.deliveries)
        run.member, run.deadline_ms = self.member, self.deadline_ms
        run.change, run.former = self.change, self.former
        return run

    def is_like(self, other: Run) -> bool:
        return (
            self.state == other.state
            and self.deliveries == other.deliveries
            and self.member == other.member
            and self.deadline_ms == other.deadline_ms
            and self.change is None
            and other.change is None
        )


class Change:
    """Transitions that are to be written, then committed or rolled back."""

    __slots__ = ("batches",)

    def __init__(self) -> None:
        self.batches: list[StateBatch] = []
