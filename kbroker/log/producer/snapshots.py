"""The `.snapshot` files of one partition: the producer state up to the offset in their name, so
that a start need not read the whole log.

`producer_state` has the content; this module keeps the list of files and deletes old ones.
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
        """Write a snapshot without syncing it: the next flush does. A torn file fails its CRC and
        is ignored.
        """
        atomic_write(self.path(offset), data, sync=False)
        self.written(offset)

    def written(self, offset: int) -> None:
        """A snapshot for that offset was written, not synced."""
        self._is_unsynced = True
        if offset not in self.offsets:
            insort(self.offsets, offset)

    def take_unsynced(self) -> list[str]:
        """For a clean stop: the path of the newest snapshot, if any was written, to be synced with
        the folder. The next start trusts it: without it the producers would be unknown.
        """
        is_unsynced, self._is_unsynced = self._is_unsynced, False
        return [self.path(self.offsets[-1])] if is_unsynced and self.offsets else []

    def delete(self, offset: int) -> None:
        """Delete a snapshot; no error if it does not exist."""
        slot = bisect_left(self.offsets, offset)
        if slot < len(self.offsets) and self.offsets[slot] == offset:
            del self.offsets[slot]
            unlink(self.path(offset))

    def forget(self, offset: int) -> str | None:
        """Remove a snapshot from the list; the caller deletes its file. Returns its path, None if
        there is none.
        """
        slot = bisect_left(self.offsets, offset)
        if slot == len(self.offsets) or self.offsets[slot] != offset:
            return None
        del self.offsets[slot]
        return self.path(offset)

    def delete_outside(self, log_start_offset: int, log_end_offset: int) -> None:
        """Delete the snapshots at or before the log start and those after the log end."""
        for offset in list(self.offsets):
            if offset > log_end_offset or offset <= log_start_offset:
                self.delete(offset)

    def delete_strays(self, segment_base_offsets: Iterable[int]) -> None:
        """Delete the snapshots that belong to no segment, except the last one if it is after the
        base of the last segment.
        """
        bases = set(segment_base_offsets)
        strays = [offset for offset in self.offsets if offset not in bases]
        if strays and strays[-1] > max(bases, default=-1):
            strays.pop()
        for offset in strays:
            self.delete(offset)
