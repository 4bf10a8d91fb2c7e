"""A simulated process: all callbacks that belong to one operating system process."""

from __future__ import annotations

from contextvars import Context, ContextVar, copy_context
from typing import Final

THREAD_S: Final = 0.0005
"""How long the work of a thread takes, unless the disk is slow."""


class SimulatedProcess:
    """node_id: the id in the network. thread_s: how long the work of one of its threads takes."""

    __slots__ = ("is_alive", "is_paused", "node_id", "thread_s")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.is_alive = True
        self.is_paused = False
        self.thread_s = THREAD_S


PROCESS: Final[ContextVar[SimulatedProcess | None]] = ContextVar("process", default=None)
"""The process of the running callback; None outside of all processes."""


def context_of(process: SimulatedProcess) -> Context:
    """A new context, whose callbacks belong to the process."""
    context = copy_context()
    context.run(PROCESS.set, process)
    return context
