"""Simulated disks of several nodes under kbroker, in one thread: while a process runs, its own disk
is the one that `kbroker.log.storage.files` meets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any
from unittest import mock

from kbroker.log.storage import files
from kbroker.quorum.log_effects import _sync_all
from tests.sim.disk import Crashed, SimDisk
from tests.sim.offload import Then, Work
from tests.sim.process import SimProcess
from tests.sim.system import SimOs
from tests.sim.timers import SimTimer, SimTimers


class NodeDisks:
    """present: the disk of the process that runs now."""

    def __init__(self) -> None:
        self.present: SimDisk | None = None
        self._systems: dict[SimDisk, SimOs] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Everything that kbroker does with files meets the present disk."""
        with mock.patch.multiple(files, os=self, open=self._open_reader, create=True):
            yield

    def _open_reader(self, path: Any, mode: str = "rb", **options: Any) -> Any:
        assert self.present is not None
        return self.present.open_reader(path, mode, **options)

    def __getattr__(self, name: str) -> Any:
        disk = self.present
        system = None if disk is None else self._systems.get(disk)
        if system is None:
            if name.startswith("_"):
                raise AttributeError(name)
            if disk is None and name == "close":
                return lambda fd: None  # a file of a process that has ended, forgotten late
            assert disk is not None, f"os.{name} outside of a process"
            system = self._systems[disk] = SimOs(disk)
        return getattr(system, name)


class DiskProcess(SimProcess):
    """A process that has a disk. crashed: called when the disk loses its power within a step."""

    def __init__(
        self,
        heap: SimTimers,
        random: Random,
        disks: NodeDisks,
        disk: SimDisk,
        crashed: Callable[[], None],
    ) -> None:
        super().__init__(heap, random, lambda: None)
        self._disks = disks
        self._disk = disk
        self._crashed = crashed

    def _run(self, timer: SimTimer | None, step: Callable[[], None]) -> None:
        before, self._disks.present = self._disks.present, self._disk
        try:
            super()._run(timer, step)
        except Crashed:
            self._crashed()
        finally:
            self._disks.present = before


class DiskThread:
    """`ports.ClosableOffload`: one thread beside the loop of a process. Work takes as long as an
    fsync and ends with its process. An fsync of a log covers what was written when it began, and is
    complete when the loop is told so; other work is done in one go, before the loop is told.
    """

    def __init__(self, process: SimProcess, disk: SimDisk) -> None:
        self._process = process
        self._disk = disk
        self._waiting: deque[tuple[Work, Then]] = deque()

    def __call__(self, work: Work, then: Then) -> None:
        self._waiting.append((work, then))
        if len(self._waiting) == 1:
            self._begin()

    def close(self) -> None:
        """Work under way ends at once."""
        while self._waiting:
            work, _ = self._waiting.popleft()
            work()

    def _begin(self) -> None:
        work, then = self._waiting[0]
        end: Work = work
        if isinstance(work, partial) and work.func is _sync_all:
            try:
                with self._disk.divided_fsync() as ends:
                    work()
            except OSError as error:
                end = partial(_raise, error)
            else:
                end = partial(_run_all, ends)
        delay_ms = self._disk.latency_ms()
        self._process.call_later(delay_ms, partial(self._end, end, then))

    def _end(self, work: Work, then: Then) -> None:
        if not self._waiting:
            return  # closed meanwhile
        failure: OSError | None = None
        try:
            work()
        except OSError as error:
            failure = error
        self._waiting.popleft()
        if self._waiting:
            self._begin()
        then(failure)


def _raise(error: OSError) -> None:
    raise error


def _run_all(ends: list[Work]) -> None:
    for end in ends:
        end()
