"""Writes a topic snapshot: segments are linked or copied, batches appended; the manifest is last.

A hard link takes no space and no time, but shares its bytes with the log: only a segment that no
broker writes to any more may be linked (ADR 27). Everything is synced before the manifest is
written.
"""

from __future__ import annotations

import errno
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from kbroker.log.storage import names
from kbroker.log.storage.files import (
    LogDirectoryError,
    LogFile,
    atomic_write,
    exists,
    is_directory,
    link_file,
    list_directory,
    make_directory,
    remove_tree,
    sync_directory,
)
from kbroker.log.tools.snapshot_manifest import (
    MANIFEST,
    SnapshotError,
    SnapshotFile,
    SnapshotManifest,
)
from kbroker.protocol.batches.checksum import crc32c

SEGMENT_BYTES: Final = 1 << 30
COPY_CHUNK_BYTES: Final = 1 << 20
NOT_LINKED: Final = frozenset(
    {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS}
)
"""Errors of a link to another file system, to another user's file, or on a file system without
links: the file is copied instead.
"""


class SnapshotWriter:
    """The directory of a snapshot; a context manager that removes the written files on exit if no
    manifest was written. Methods block, and raise SnapshotError and LogDirectoryError.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._folders: list[Path] = []
        self._is_new = False
        self._is_finished = False

    def __enter__(self) -> Self:
        if exists(self.directory):
            if not is_directory(self.directory):
                raise SnapshotError(f"{self.directory} is no directory")
            found = list_directory(self.directory)
            if any(name == MANIFEST for name, _, _ in found):
                raise SnapshotError(f"{self.directory} is a topic snapshot already; name another")
            if found:
                raise SnapshotError(
                    f"{self.directory} is not empty and has no {MANIFEST}: an interrupted snapshot "
                    "or something else; remove it or name another directory"
                )
        self._is_new = make_directory(self.directory)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._is_finished:
            for folder in self._folders:
                remove_tree(folder)
            if self._is_new:
                remove_tree(self.directory)

    def partition(self, folder_name: str) -> PartitionWriter:
        """The folder of one partition."""
        folder = self.directory / folder_name
        self._folders.append(folder)
        make_directory(folder)
        return PartitionWriter(folder)

    def finish(self, manifest: SnapshotManifest) -> None:
        """Write the manifest, which makes the directory a snapshot. All partitions must be
        closed.
        """
        sync_directory(self.directory)
        atomic_write(self.directory / MANIFEST, manifest.encode())
        sync_directory(self.directory.parent)
        self._is_finished = True


class PartitionWriter:
    """The segments of one partition, in offset order.

    files: the completed ones. linked_bytes, copied_bytes: total size of segments that were linked
    or copied.
    """

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.folder = folder
        self.files: list[SnapshotFile] = []
        self.linked_bytes = 0
        self.copied_bytes = 0
        self._segment_bytes = segment_bytes
        self._open: LogFile | None = None
        self._base_offset = 0
        self._size = 0
        self._crc = 0

    def link(self, source: Path, base_offset: int, size_bytes: int, crc: int) -> None:
        """Add a whole segment as a link, or as a copy where a link is impossible. crc: CRC-32C of
        its bytes, checked by the caller.
        """
        target = self.folder / names.offset_name(base_offset, names.LOG)
        try:
            link_file(source, target)
        except LogDirectoryError as error:
            if error.errno not in NOT_LINKED:
                raise
            self.copy(source, base_offset, size_bytes)
            return
        LogFile(str(target), read_only=True).sync()
        self.files.append(SnapshotFile(base_offset, size_bytes, crc))
        self.linked_bytes += size_bytes

    def copy(self, source: Path, base_offset: int, size_bytes: int) -> None:
        """Copy the first size_bytes of a segment into a new file."""
        file = LogFile(str(source), read_only=True)
        self._begin(base_offset)
        position = 0
        while position < size_bytes:
            data = file.read_at(position, min(COPY_CHUNK_BYTES, size_bytes - position))
            if not data:
                raise SnapshotError(f"{source}: it became shorter while it was copied")
            self._write(data)
            position += len(data)
        self._end()
        self.copied_bytes += size_bytes

    def append(self, batch: bytes | memoryview, base_offset: int) -> None:
        """Append one whole batch; a new segment is started when one is full."""
        data = memoryview(batch)
        if self._open is not None and self._size + len(data) > self._segment_bytes:
            self._end()
        if self._open is None:
            self._begin(base_offset)
        self._write(data)
        self.copied_bytes += len(data)

    def close(self, log_end_offset: int) -> tuple[SnapshotFile, ...]:
        """Sync everything. A partition without batches gets an empty segment, as a log has one.
        Returns the files.
        """
        if self._open is not None:
            self._end()
        if not self.files:
            self._begin(log_end_offset)
            self._end()
        sync_directory(self.folder)
        return tuple(self.files)

    def _begin(self, base_offset: int) -> None:
        path = self.folder / names.offset_name(base_offset, names.LOG)
        self._open = LogFile(str(path), create=True)
        self._base_offset, self._size, self._crc = base_offset, 0, 0

    def _write(self, data: bytes | memoryview) -> None:
        if self._open is not None:
            self._open.write_at(data, self._size)
            self._size += len(data)
            self._crc = crc32c(data, self._crc)

    def _end(self) -> None:
        if self._open is not None:
            self._open.sync()
            self.files.append(SnapshotFile(self._base_offset, self._size, self._crc))
            self._open = None
