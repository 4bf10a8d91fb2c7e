"""The values of a cleaning round, and its jobs. Apart from `round`, so that a broker without
compacted logs does not import that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from kbroker.log.storage.disk_jobs import DiskJob
from kbroker.log.storage.files import LogFile
from kbroker.log.storage.index_entries import AbortedTransaction

T = TypeVar("T")


class CleaningStopped(Exception):
    """The round was told to stop: what it wrote is discarded."""


class Source(msgspec.Struct, frozen=True):
    """One segment to read. next_base_offset: the base offset of the segment after it."""

    file: LogFile
    base_offset: int
    next_base_offset: int
    size: int
    start_position: int = 0
    aborted: tuple[AbortedTransaction, ...] = ()


class CleanedSegment(msgspec.Struct, frozen=True):
    """The `.cleaned` files of a group, synced."""

    base_offset: int
    size: int
    has_transaction_index: bool


class CleaningStep(DiskJob, Generic[T]):
    """A part of a round that a worker runs. value: its result, set once it has run."""

    __slots__ = ("_work", "value")

    value: T

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work

    def run(self) -> None:
        self.value = self._work()
