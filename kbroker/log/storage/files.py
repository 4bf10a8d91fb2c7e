"""The only module that opens, writes, syncs and renames files of a log directory, including those
of the metadata quorum (`directory_lock` has the lock). A simulated disk replaces the `os` module of
both.

A `LogFile` owns one descriptor and closes it with its last reference, so a `FileSlice` that waits
to be sent still reads its bytes after the segment was renamed or deleted. Every error of the system
is raised as `LogDirectoryError`, with the file's path; `manager` takes the directory offline.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterable
from typing import Final

from kbroker.log.storage.descriptor_reserve import OUT_OF_DESCRIPTORS, opening

_READ_FLAGS: Final = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
ZEROS_CHUNK_BYTES: Final = 1 << 20
OPEN_FLAGS: Final = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_ACCESS_TIME: Final[int] = getattr(os, "O_NOATIME", 0)
_READ_NOWAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)


class LogDirectoryError(OSError):
    """The system refused a read or write in a log directory: the directory goes offline
    (KAFKA_STORAGE_ERROR).

    `path` is the file. `directory` is set by the log: the log directory with the partition's
    folder.
    """

    def __init__(self, path: str | os.PathLike[str], action: str, cause: OSError) -> None:
        super().__init__(cause.errno, cause.strerror or str(cause))
        self.path = os.fspath(path)
        self.action = action

    def __str__(self) -> str:
        return f"cannot {self.action} {self.path}: {self.strerror}"

    @property
    def is_shortage(self) -> bool:
        """Whether the process had no free descriptor: neither disk nor file failed, and a retry may
        succeed.
        """
        return self.errno in OUT_OF_DESCRIPTORS


class LogFile:
    """One open file with positioned reads and writes; the descriptor closes with the last
    reference.
    """

    __slots__ = ("fd", "path")

    def __init__(self, path: str, *, create: bool = False, read_only: bool = False) -> None:
        self.fd = -1
        self.path = path
        flags = _READ_FLAGS if read_only else OPEN_FLAGS
        try:
            flags |= os.O_CREAT if create else 0
            self.fd = opening(lambda: _open(path, flags))
        except OSError as error:
            raise LogDirectoryError(path, "open", error) from error

    def __del__(self) -> None:
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self.fd)

    def read_at(self, position: int, count: int) -> bytes:
        """At most count bytes from position; fewer only at the end of the file."""
        try:
            data = os.pread(self.fd, count, position)
            if len(data) == count or not data:
                return data
            parts = [data]
            missing = count - len(data)
            while missing > 0 and data:
                data = os.pread(self.fd, missing, position + count - missing)
                parts.append(data)
                missing -= len(data)
            return b"".join(parts)
        except OSError as error:
            raise LogDirectoryError(self.path, "read", error) from error

    def read_cached(self, position: int, count: int) -> bytes | None:
        """The bytes if they are in the page cache, else None: the caller reads them off the loop.

        Systems without preadv(RWF_NOWAIT), or file systems that do not support it, always return
        None.
        """
        if _READ_NOWAIT is None:
            return None
        buffer = bytearray(count)
        try:
            got = os.preadv(self.fd, [buffer], position, _READ_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                return None
            raise LogDirectoryError(self.path, "read", error) from error
        return bytes(buffer) if got == count else None

    def write_at(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write all of data at position.

        After a fault part of it may be in the file: the caller truncates the file before it writes
        there again.
        """
        try:
            written = os.pwrite(self.fd, data, position)
            if written == len(data):
                return
            view = memoryview(data)
            while written < len(view):
                written += os.pwrite(self.fd, view[written:], position + written)
        except OSError as error:
            raise LogDirectoryError(self.path, "write", error) from error

    def truncate(self, size: int) -> None:
        """Truncate the file to size, or extend it with zeros (sparse, like Kafka's
        preallocation).
        """
        try:
            os.ftruncate(self.fd, size)
        except OSError as error:
            raise LogDirectoryError(self.path, "truncate", error) from error

    def sync(self) -> None:
        """fsync. Blocks; call it off the loop."""
        try:
            os.fsync(self.fd)
        except OSError as error:
            raise LogDirectoryError(self.path, "fsync", error) from error

    def size(self) -> int:
        try:
            return os.fstat(self.fd).st_size
        except OSError as error:
            raise LogDirectoryError(self.path, "stat", error) from error

    def modified_ms(self) -> int:
        """The time of the last change, ms since the epoch."""
        try:
            return os.fstat(self.fd).st_mtime_ns // 1_000_000
        except OSError as error:
            raise LogDirectoryError(self.path, "stat", error) from error


class FileSlice:
    """A range of a file by reference, which a Fetch response sends with sendfile. Stays valid after
    the file's deletion.
    """

    __slots__ = ("file", "position", "size")

    def __init__(self, file: LogFile, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size

    def __repr__(self) -> str:
        return f"FileSlice({self.file.path!r}, position={self.position}, size={self.size})"

    def __len__(self) -> int:
        return self.size

    def fileno(self) -> int:
        return self.file.fd

    def read(self, offset: int = 0, count: int | None = None) -> bytes:
        """The bytes from offset (relative to the slice), at most count of them; blocks if they are
        not cached.
        """
        left = self.size - offset
        if count is None or count > left:
            count = left
        return self.file.read_at(self.position + offset, count) if count > 0 else b""

    def read_cached(self, offset: int = 0, count: int | None = None) -> bytes | None:
        """As `read`, but None where the bytes would have to be read from disk."""
        left = self.size - offset
        if count is None or count > left:
            count = left
        return self.file.read_cached(self.position + offset, count) if count > 0 else b""


def read_file(path: str | os.PathLike[str], limit: int = -1) -> bytes | None:
    """The content of a small file, or its first `limit` bytes; None if the file does not exist."""
    try:
        with opening(lambda: open(path, "rb", buffering=0, opener=_open)) as file:
            return file.read(limit)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LogDirectoryError(path, "read", error) from error


def written_bytes(path: str | os.PathLike[str]) -> int:
    """The position after the last non-zero byte, that is, the size without the zeros of
    preallocation. 0 for a missing file.

    Holes are skipped where the file system reports them. Raises LogDirectoryError.
    """
    try:
        fd = _open(os.fspath(path), _READ_FLAGS)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise LogDirectoryError(path, "open", error) from error
    try:
        end = _end_of_data(fd)
        while end:
            start = max(end - ZEROS_CHUNK_BYTES, 0)
            content = os.pread(fd, end - start, start).rstrip(b"\0")
            if content:
                return start + len(content)
            end = start
        return 0
    except OSError as error:
        raise LogDirectoryError(path, "read", error) from error
    finally:
        os.close(fd)


def _end_of_data(fd: int) -> int:
    """The end of the last range that is no hole; the file's size where the system does not report
    it.
    """
    size = os.fstat(fd).st_size
    if sys.platform not in ("linux", "darwin"):
        return size
    end = position = 0
    while position < size:
        try:
            position = os.lseek(fd, os.lseek(fd, position, os.SEEK_DATA), os.SEEK_HOLE)
        except OSError as error:
            return end if error.errno == errno.ENXIO else size
        end = position
    return end


def atomic_write(path: str | os.PathLike[str], data: bytes, *, sync: bool = True) -> None:
    """Replace a small file through `<name>.tmp` and a rename, as Kafka writes its checkpoints.

    sync: fsync the file before, and the directory after the rename. Without it a crash of the
    process loses nothing, but a crash of the machine may.
    """
    name = os.fspath(path)
    temporary = name + ".tmp"
    try:
        _write_new(temporary, (data,), sync=sync)
        os.replace(temporary, name)
    except OSError as error:
        raise LogDirectoryError(name, "write", error) from error
    if sync:
        sync_directory(os.path.dirname(name) or ".")


def write_read_only(path: str | os.PathLike[str], parts: Iterable[bytes]) -> None:
    """Create a read-only file from parts, in order, and sync it. The directory is not synced.
    parts: an iterator, so the content need not fit into memory.
    """
    try:
        _write_new(os.fspath(path), parts)
    except OSError as error:
        raise LogDirectoryError(path, "write", error) from error
    make_read_only(path)


def make_read_only(path: str | os.PathLike[str]) -> None:
    """Make a file read-only that is not changed any more."""
    try:
        os.chmod(path, 0o400)
    except OSError as error:
        raise LogDirectoryError(path, "write", error) from error


def _write_new(path: str, parts: Iterable[bytes], *, sync: bool = True) -> None:
    fd = opening(lambda: _open_new(path))
    try:
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os.write(fd, view) :]
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def _open(path: str, flags: int) -> int:
    """Open a file with O_NOATIME: updating the access time is a write, for which the first read
    after an append would wait while the file system commits its journal.
    """
    try:
        return os.open(path, flags | _NO_ACCESS_TIME, 0o644)
    except PermissionError:
        if not _NO_ACCESS_TIME:
            raise
        return os.open(path, flags, 0o644)  # another user's file: O_NOATIME is for the owner


def _open_new(path: str) -> int:
    """Open a newly created file. A file that a crash left under that name is not reused: after
    another crash, of the machine, its old bytes could appear under the new name.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    try:
        return os.open(path, flags, 0o644)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, flags, 0o644)


def create_file(path: str, size: int = 0) -> None:
    """Create an empty file, or one of `size` zeros (sparse); an existing one is truncated to that
    size.
    """
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)
        fd = opening(lambda: os.open(path, flags, 0o644))
        try:
            if size:
                os.ftruncate(fd, size)
        finally:
            os.close(fd)
    except OSError as error:
        raise LogDirectoryError(path, "create", error) from error


def write_range(path: str, data: bytes, position: int, *, size: int | None = None) -> None:
    """Write into a file that is not kept open; created if missing. With `size` the file is
    truncated or extended with zeros to that size.
    """
    file = LogFile(path, create=True)
    if size is not None and size > position + len(data):
        # truncated first: old bytes must not reappear behind the new ones
        file.truncate(position)
    if data:
        file.write_at(data, position)
    if size is not None:
        file.truncate(size)


def resize_file(path: str, size: int) -> None:
    """Truncate a file that is not kept open to size, or extend it with zeros; created if
    missing.
    """
    LogFile(path, create=True).truncate(size)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """fsync a directory, so that its renames and new names survive a crash of the machine."""
    try:
        fd = opening(lambda: os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)))
    except PermissionError:  # pragma: no cover - Windows cannot open directories
        return
    except OSError as error:
        raise LogDirectoryError(path, "open", error) from error
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise LogDirectoryError(path, "fsync", error) from error
    finally:
        os.close(fd)


def rename(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    try:
        os.replace(source, target)
    except OSError as error:
        raise LogDirectoryError(source, "rename", error) from error


def link_file(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Create a hard link, on the same file system. Raises LogDirectoryError, also where the file
    system does not allow links.
    """
    try:
        os.link(source, target)
    except OSError as error:
        raise LogDirectoryError(target, "link", error) from error


def unlink(path: str | os.PathLike[str]) -> None:
    """Delete a file; a missing file is no error."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise LogDirectoryError(path, "delete", error) from error


def make_directory(path: str | os.PathLike[str]) -> bool:
    """Create a directory with its parents. Returns whether it was created."""
    if os.path.isdir(path):
        return False
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise LogDirectoryError(path, "create", error) from error
    return True


def remove_tree(path: str | os.PathLike[str]) -> None:
    """Delete a partition's folder: its files, and folders one level down if a tool left any."""
    try:
        entries = list(opening(lambda: os.scandir(path)))
    except FileNotFoundError:
        return
    except OSError as error:
        raise LogDirectoryError(path, "list", error) from error
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            remove_tree(entry.path)
        else:
            unlink(entry.path)
    try:
        os.rmdir(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise LogDirectoryError(path, "delete", error) from error


def list_directory(path: str | os.PathLike[str]) -> list[tuple[str, int, bool]]:
    """(name, size in bytes, whether it is a directory) of each entry of a directory, by name."""
    try:
        with opening(lambda: os.scandir(path)) as entries:
            found = []
            for entry in entries:
                is_directory = entry.is_dir()
                found.append(
                    (entry.name, 0 if is_directory else entry.stat().st_size, is_directory)
                )
    except OSError as error:
        raise LogDirectoryError(path, "list", error) from error
    found.sort()
    return found


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether a file or directory with that name exists."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise LogDirectoryError(path, "stat", error) from error
    return True


def is_directory(path: str | os.PathLike[str]) -> bool:
    """Whether the path is a directory; False if that cannot be determined."""
    return os.path.isdir(path)


def file_size(path: str) -> int:
    """Bytes in a file, 0 if there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise LogDirectoryError(path, "stat", error) from error


def disk_space(path: str | os.PathLike[str]) -> tuple[int, int]:
    """(total, usable by this user) bytes of the file system that contains a directory."""
    try:
        usage = os.statvfs(path)
    except OSError as error:
        raise LogDirectoryError(path, "stat", error) from error
    return usage.f_blocks * usage.f_frsize, usage.f_bavail * usage.f_frsize


def modified_ms(path: str) -> int:
    """When a file was last changed, ms since the epoch."""
    try:
        return os.stat(path).st_mtime_ns // 1_000_000
    except OSError as error:
        raise LogDirectoryError(path, "stat", error) from error


def set_modified_ns(path: str, modified_ns: int) -> None:
    """Set the modification time of a file: a rewritten segment is as old as the segments it
    replaces.
    """
    try:
        os.utime(path, ns=(modified_ns, modified_ns))
    except OSError as error:
        raise LogDirectoryError(path, "set the time of", error) from error
