"""When the machine stood still: a process for each CPU, of real-time priority, that sleeps a
millisecond at a time and notes when it woke late.

It records stalls that no computation explains: a virtual machine whose host gave the processor to
others, or the kernel. So it tells a stall of the broker from one of the machine. Linux, and only
where real-time priority is allowed.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from functools import reduce
from multiprocessing.connection import Connection

SLEEP_S = 0.001
HALT_S = 0.002
"""A sleep that took longer than this is noted."""

Span = tuple[float, float]
"""Begin and end on the monotonic clock, in seconds."""


def _watch(cpu: int, pipe: Connection) -> None:
    os.sched_setaffinity(0, {cpu})
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    except PermissionError:
        pipe.send(None)
        return
    halts: list[Span] = []
    last = time.monotonic()
    while not pipe.poll():
        time.sleep(SLEEP_S)
        now = time.monotonic()
        if now - last > HALT_S:
            halts.append((last + SLEEP_S, now))
        last = now
    pipe.send(halts)


class HaltWatch:
    """Watches from `start` to `stop`."""

    def __init__(self) -> None:
        self._pipes: list[Connection] = []
        self._processes: list[multiprocessing.Process] = []

    def start(self) -> None:
        for cpu in sorted(os.sched_getaffinity(0)):
            own, other = multiprocessing.Pipe()
            process = multiprocessing.Process(target=_watch, args=(cpu, other), daemon=True)
            process.start()
            self._pipes.append(own)
            self._processes.append(process)

    def stop(self) -> tuple[list[Span], list[Span]] | None:
        """When all CPUs stood still at once, and when one of them did or all; None if that could
        not be watched.
        """
        found: list[list[Span] | None] = []
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            try:
                pipe.send(True)
                found.append(pipe.recv())
            except (OSError, EOFError):
                found.append(None)
            process.join()
        if not found or None in found:
            return None
        each = [halts for halts in found if halts is not None]
        return reduce(overlaps, each), merged([halt for halts in each for halt in halts])


def merged(spans: list[Span]) -> list[Span]:
    """Their union, in order."""
    union: list[Span] = []
    for begin, end in sorted(spans):
        if union and begin <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((begin, end))
    return union


def overlaps(first: list[Span], second: list[Span]) -> list[Span]:
    """Where spans of both lists, each in order, lie over each other."""
    both = []
    i = j = 0
    while i < len(first) and j < len(second):
        begin, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if begin < end:
            both.append((begin, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return both


def overlap_s(begin: float, end: float, spans: list[Span]) -> float:
    """Seconds of begin to end that lie in spans."""
    return sum(stop - start for start, stop in overlaps([(begin, end)], spans))
