"""A simulated process: everything that runs in one thread of one operating system process."""

from __future__ import annotations

from contextvars import Context, ContextVar, copy_context
from typing import Final


class SimulatedProcess:
    """node_id: as the network knows it."""

    __slots__ = ("is_alive", "is_paused", "node_id")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.is_alive = True
        self.is_paused = False


PROCESS: Final[ContextVar[SimulatedProcess | None]] = ContextVar("process", default=None)
"""The process that the running callback belongs to; None outside of all."""


def context_of(process: SimulatedProcess) -> Context:
    """A new context, whose callbacks belong to the process."""
    context = copy_context()
    context.run(PROCESS.set, process)
    return context
