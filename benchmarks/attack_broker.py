"""`kbroker` with an account of its event loop in a file that the attacking process maps too.

    python -m benchmarks.attack_broker ACCOUNT serve ...

A timer looks every 2 ms how much CPU the loop's thread has used since the last look and how late
the look is. A turn of the loop that computes for 80 ms appears as a look with 80 ms of CPU, however
busy the machine is, so computation can be told from waiting for a processor. A second thread
records the loop's stack while a look is overdue; `LoopAccount.stacks` gives the most frequent ones.
The neighbour is `node/loop/stall_probe`, the broker's own probe, which looks less often.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from kbroker.__main__ import main
from kbroker.node.node import Broker
from kbroker.server.dispatch import Dispatcher

LOOK_S: Final = 0.002
OVERDUE_S: Final = 0.02
"""A look that is later than this has its stack recorded."""

SAMPLE_S: Final = 0.005
STACK_DEPTH: Final = 9
STACKS_BYTES: Final = 8192

_ORDER: Final = struct.Struct("=Q")
_RESULT: Final = struct.Struct("=QdddQQ")
_ORDER_AT: Final = 0
_RESULT_AT: Final = 8
_STACKS_AT: Final = 128
ACCOUNT_BYTES: Final = _STACKS_AT + STACKS_BYTES


class LoopFigures(NamedTuple):
    """Since the last reset, in seconds. longest_cpu_s: the most CPU the loop's thread used between
    two looks. longest_stall_s: the longest delay of a look, without the time in which the thread
    was ready and had no processor. cpu_s: all CPU of the thread. surprises: since the start, on
    listeners of either type.
    """

    order: int
    longest_cpu_s: float
    longest_stall_s: float
    cpu_s: float
    looks: int
    surprises: int


class LoopAccount:
    """The attacking process's end of the file."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(ACCOUNT_BYTES))
        self._file = path.open("r+b")
        self._shared = mmap.mmap(self._file.fileno(), ACCOUNT_BYTES)
        self._order = 0

    def close(self) -> None:
        self._shared.close()
        self._file.close()

    def reset(self, timeout_s: float = 10.0) -> None:
        """Begin anew; returns when the broker has noticed."""
        self._order += 1
        _ORDER.pack_into(self._shared, _ORDER_AT, self._order)
        deadline = time.monotonic() + timeout_s
        while self.read().order != self._order:
            if time.monotonic() > deadline:
                raise TimeoutError("the broker's loop does not look at its account")
            time.sleep(0.001)

    def read(self) -> LoopFigures:
        return LoopFigures(*_RESULT.unpack_from(self._shared, _RESULT_AT))

    def stacks(self) -> str:
        """What the loop did while looks were overdue since the last reset, most frequent first."""
        data = self._shared[_STACKS_AT:]
        return data[: data.find(b"\0")].decode(errors="replace")


class _Probe:
    def __init__(self, dispatchers: Sequence[Dispatcher[Any]], path: Path) -> None:
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), ACCOUNT_BYTES)
        self._dispatchers = dispatchers
        self._loop = asyncio.get_running_loop()
        own = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self._schedstat = own.open("rb")
        self._thread_id = threading.get_ident()
        self._stacks: Counter[str] = Counter()
        self._order = 0
        self._begin()
        threading.Thread(target=self._sample, daemon=True).start()
        self._plan()

    def _begin(self) -> None:
        self._longest_cpu = self._longest_stall = 0.0
        self._looks = 0
        self._stacks.clear()
        self._shared[_STACKS_AT] = 0
        self._first_cpu, _ = self._last = self._times()
        self._looked = time.monotonic()

    def _times(self) -> tuple[float, float]:
        """CPU of the loop's thread, and its time ready without a processor, in seconds."""
        self._schedstat.seek(0)
        cpu, ready, _ = self._schedstat.read().split()
        return int(cpu) / 1e9, int(ready) / 1e9

    def _plan(self) -> None:
        self._due = time.monotonic() + LOOK_S
        self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        late = now - self._due
        cpu, ready = self._times()
        last_cpu, last_ready = self._last
        self._last = cpu, ready
        # The account of a virtual machine's CPU may jump by 40 ms within a microsecond.
        self._longest_cpu = max(self._longest_cpu, min(cpu - last_cpu, now - self._looked))
        self._looked = now
        self._longest_stall = max(self._longest_stall, late - (ready - last_ready))
        self._looks += 1
        (order,) = _ORDER.unpack_from(self._shared, _ORDER_AT)
        if order != self._order:
            self._order = order
            self._begin()
        _RESULT.pack_into(
            self._shared, _RESULT_AT, self._order, self._longest_cpu, self._longest_stall,
            cpu - self._first_cpu, self._looks,
            sum(dispatcher.surprises for dispatcher in self._dispatchers),
        )  # fmt: skip
        self._plan()

    def _sample(self) -> None:
        while True:
            time.sleep(SAMPLE_S)
            if time.monotonic() < self._due + OVERDUE_S:
                continue
            frame = sys._current_frames().get(self._thread_id)
            self._stacks[_stack_of(frame)] += 1
            lines = [f"{count} x {stack}" for stack, count in self._stacks.most_common(4)]
            data = "\n".join(lines).encode()[: STACKS_BYTES - 1] + b"\0"
            self._shared[_STACKS_AT : _STACKS_AT + len(data)] = data


def _stack_of(frame: FrameType | None) -> str:
    """Innermost first."""
    stack = []
    while frame is not None and len(stack) < STACK_DEPTH:
        code = frame.f_code
        stack.append(f"{Path(code.co_filename).name} {code.co_name}")
        frame = frame.f_back
    return " < ".join(stack)


def watch(path: Path) -> None:
    """Keep the account of every broker that this process starts from now on."""
    start, make = Broker.start, Dispatcher.__init__
    dispatchers: list[Dispatcher[Any]] = []

    def made(self: Dispatcher[Any], *values: Any, **named: Any) -> None:
        make(self, *values, **named)
        dispatchers.append(self)

    async def started(self: Broker) -> None:
        await start(self)
        _Probe(dispatchers, path)

    Dispatcher.__init__ = made  # type: ignore[method-assign]
    Broker.start = started  # type: ignore[method-assign]


if __name__ == "__main__":
    watch(Path(sys.argv.pop(1)))
    sys.exit(main())
