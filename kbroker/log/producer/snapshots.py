"""The `.snapshot` files of one partition: producer state up to the offset in their name, to start
without a scan.

What is inside is producer_state's; here is which exist and which may go.
"""

from __future__ import annotations

import os
from bisect import bisect_left, insort
from collections.abc import Iterable
from pathlib import Path

from kbroker.log.storage import names
from kbroker.log.storage.files import atomic_write, read_file, unlink


class ProducerSnapshots:
    """Offsets of the snapshots in a folder, ascending."""

    __slots__ = ("_is_unsynced", "directory", "offsets")

    def __init__(self, directory: Path, offsets: Iterable[int] = ()) -> None:
        self.directory = os.fspath(directory)
        self.offsets = sorted(offsets)
        self._is_unsynced = False

    def path(self, offset: int) -> str:
        return os.path.join(self.directory, names.offset_name(offset, names.SNAPSHOT))

    def find(self, offset: int) -> str | None:
        """The path of the snapshot at that offset, None if there is none."""
        return self.path(offset) if offset in self.offsets else None

    @property
    def latest(self) -> int | None:
        return self.offsets[-1] if self.offsets else None

    def read(self, offset: int) -> bytes:
        return read_file(self.path(offset)) or b""

    def write(self, offset: int, data: bytes) -> None:
        """Write a snapshot, not synced: it goes with the next flush, and a torn one fails its CRC
        and is left out.
        """
        atomic_write(self.path(offset), data, sync=False)
        self.written(offset)

    def written(self, offset: int) -> None:
        """There is one now, not synced."""
        self._is_unsynced = True
        if offset not in self.offsets:
            insort(self.offsets, offset)

    def take_unsynced(self) -> list[str]:
        """At a clean stop: the newest one's path if any was written, so that it and the names are
        synced. The next start trusts it: without one it would take the producers for unknown.
        """
        is_unsynced, self._is_unsynced = self._is_unsynced, False
        return [self.path(self.offsets[-1])] if is_unsynced and self.offsets else []

    def delete(self, offset: int) -> None:
        """Delete one; harmless if there is none."""
        slot = bisect_left(self.offsets, offset)
        if slot < len(self.offsets) and self.offsets[slot] == offset:
            del self.offsets[slot]
            unlink(self.path(offset))

    def forget(self, offset: int) -> str | None:
        """Leave one to the caller to delete. Returns its path, None if there is none."""
        slot = bisect_left(self.offsets, offset)
        if slot == len(self.offsets) or self.offsets[slot] != offset:
            return None
        del self.offsets[slot]
        return self.path(offset)

    def delete_outside(self, log_start_offset: int, log_end_offset: int) -> None:
        """Delete those at or before the start and those after the end of the log."""
        for offset in list(self.offsets):
            if offset > log_end_offset or offset <= log_start_offset:
                self.delete(offset)

    def delete_strays(self, segment_base_offsets: Iterable[int]) -> None:
        """Delete those that belong to no segment, but the last one if it lies beyond the last
        segment's base.
        """
        bases = set(segment_base_offsets)
        strays = [offset for offset in self.offsets if offset not in bases]
        if strays and strays[-1] > max(bases, default=-1):
            strays.pop()
        for offset in strays:
            self.delete(offset)
