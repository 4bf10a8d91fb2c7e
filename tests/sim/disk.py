"""A disk in memory below `kbroker.log.storage.files` and `directory_lock`: it crashes at any
operation, tears and reorders unsynced writes, fills up, fails, and turns read-only.

What the kernel holds (the page cache and the directories as they look) is kept apart from what is
on disk. A kill of the process loses nothing that was written. A loss of power keeps, of each file,
what was synced and an arbitrary part of what was written since (each write whole, torn, missing, or
as zeros), and of each directory an arbitrary first part of its changes since its last sync (names
are journalled in order, as ext4 and XFS do).
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from kbroker.log.storage import directory_lock, files
from tests.sim.system import SimLocks, SimOs

SECTOR_BYTES = 64
"""What a write tears at; smaller than a real one, as the files of the tests are."""


_descriptors = itertools.count(1 << 24)
"""No two disks have the same: a file that Python forgets late must not close another's."""


class Crashed(BaseException):
    """The simulated process has ended; only the test catches this."""


@dataclass
class Inode:
    """A file. pending: what was done to it since its last sync. synced_count: how many changes were
    pending once and are on disk.
    """

    number: int
    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[str, int, bytes]] = field(default_factory=list)
    synced_count: int = 0
    is_doubtful: bool = False  # an fsync failed: the data may be lost at any time
    modified_ns: int = 0


@dataclass
class Directory:
    """Names. pending: the states it went through since its last sync."""

    number: int
    entries: dict[str, Inode | Directory] = field(default_factory=dict)
    durable: dict[str, Inode | Directory] = field(default_factory=dict)
    pending: list[dict[str, Inode | Directory]] = field(default_factory=list)


@dataclass
class Fault:
    """What goes wrong from the `after`-th operation of one of `kinds` on, until `mend`."""

    error: int
    kinds: frozenset[str]
    after: int
    hits: int = 0


READS = frozenset({"read", "list", "stat"})
WRITES = frozenset({"write", "truncate", "create", "mkdir"})
CHANGES = WRITES | {"rename", "unlink", "rmdir", "fsync"}
FAULTS = {
    "full": (errno.ENOSPC, WRITES),
    "broken for writes": (errno.EIO, CHANGES),
    "broken for reads": (errno.EIO, frozenset({"read"})),
    "broken at fsync": (errno.EIO, frozenset({"fsync"})),
    "read-only": (errno.EROFS, CHANGES - {"fsync"}),
    "dead": (errno.EIO, READS | CHANGES | {"open", "lock", "chmod"}),
}


class SimDisk:
    """See the module. `installed()` puts it under kbroker; `crash_after` counts operations down."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.root = Directory(0)
        self.crash_after: int | None = None
        self.fault: Fault | None = None
        self.operations = 0
        self.has_crashed = False
        self.slow_ms = 0.0
        """How much longer than usual an fsync may take."""
        self._divided: list[Callable[[], None]] | None = None
        self._numbers = 0
        self._descriptors: dict[int, Inode | Directory] = {}
        self._locked: dict[int, int] = {}
        """The descriptor that has the lock of a file, by the file's number."""

    # -- what a test does -------------------------------------------------------------------------

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Everything that kbroker does with files meets this disk."""
        simulated_os = SimOs(self)
        with (
            mock.patch.multiple(files, os=simulated_os, open=self.open_reader, create=True),
            mock.patch.multiple(directory_lock, os=simulated_os, fcntl=SimLocks(self)),
        ):
            yield

    def inject(self, name: str, after: int) -> None:
        """A fault of FAULTS, from the after-th operation it concerns on."""
        error, kinds = FAULTS[name]
        self.fault = Fault(error, kinds, after)

    def mend(self) -> None:
        """No more faults."""
        self.fault = None

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Nothing goes wrong within, and nothing counts."""
        planned = self.crash_after, self.fault
        self.crash_after = self.fault = None
        yield
        self.crash_after, self.fault = planned

    def latency_ms(self) -> float:
        """How long an fsync takes that begins now."""
        return self.random.uniform(0.1, 2.0 + self.slow_ms)

    @property
    def is_doubtful(self) -> bool:
        """Whether an fsync failed since the last restart."""
        return any(inode.is_doubtful for inode in self._inodes(self.root))

    def restart(self, *, power_loss: bool) -> None:
        """The process starts again after a power loss, with the data that reached the disk."""
        self._descriptors.clear()
        self._locked.clear()
        self.has_crashed = False
        self.crash_after = None
        if power_loss:
            self._lose(self.root)
        for inode in self._inodes(self.root):
            if power_loss or inode.is_doubtful:
                self._tear(inode)

    def read(self, path: str) -> bytes:
        """A file's bytes."""
        node = self._find(path)
        assert isinstance(node, Inode)
        return bytes(node.data)

    def write(self, path: str, data: bytes) -> None:
        """Replace a file's bytes, durably."""
        node = self._find(path)
        assert isinstance(node, Inode)
        node.data[:] = data
        node.durable, node.pending = bytes(data), []

    def put(self, path: str, data: bytes) -> None:
        """Make a file that is on disk, with its name."""
        directory, name = self._walk(path)
        directory.entries[name] = directory.durable[name] = Inode(self._number())
        self.write(path, data)

    def make_root(self, path: str) -> None:
        """A directory that is on disk, with its parents."""
        at = self.root
        for name in path.strip("/").split("/"):
            node = at.entries.setdefault(name, Directory(self._number()))
            at.durable[name] = node
            assert isinstance(node, Directory)
            at = node

    # -- crashes ----------------------------------------------------------------------------------

    def _inodes(self, directory: Directory) -> Iterator[Inode]:
        for name in sorted(directory.entries):
            node = directory.entries[name]
            if isinstance(node, Inode):
                yield node
            else:
                yield from self._inodes(node)

    def _lose(self, directory: Directory) -> None:
        states = [directory.durable, *directory.pending]
        kept = self.random.choice(states) if len(states) > 1 else directory.durable
        directory.entries = dict(kept)
        directory.durable = dict(kept)
        directory.pending = []
        for node in list(kept.values()):
            if isinstance(node, Directory):
                self._lose(node)

    def _tear(self, inode: Inode) -> None:
        if not inode.pending:
            inode.data[:] = inode.durable
            inode.is_doubtful = False
            return
        random = self.random
        content = bytearray(inode.durable)
        mood = random.choice(("first", "any", "all", "none"))
        left = random.randrange(len(inode.pending) + 1)
        for number, (kind, position, data) in enumerate(inode.pending):
            if mood == "none" or (mood == "first" and number > left):
                continue
            if kind == "truncate":
                if mood != "any" or random.random() < 0.7:
                    _resize(content, position)
                continue
            fate = random.random() if mood == "any" or (mood == "first" and number == left) else 0
            if fate < 0.5:
                _write(content, position, data)
            elif fate < 0.75:
                torn = random.randrange(len(data) + 1)
                _write(content, position, data[: torn - torn % SECTOR_BYTES])
            elif fate < 0.85 and position + len(data) > len(content):
                _resize(content, position + len(data))
        inode.data[:] = content
        inode.durable, inode.pending = bytes(content), []
        inode.is_doubtful = False

    # -- operations -------------------------------------------------------------------------------

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def step(self, kind: str) -> None:
        """One operation: it may be the one to crash at or to fail."""
        if self.has_crashed:
            raise Crashed
        self.operations += 1
        if self.crash_after is not None:
            self.crash_after -= 1
            if self.crash_after < 0:
                self.has_crashed = True
                raise Crashed
        fault = self.fault
        if fault is not None and kind in fault.kinds:
            fault.hits += 1
            if fault.hits > fault.after:
                raise OSError(fault.error, os.strerror(fault.error))

    def _walk(self, path: Any) -> tuple[Directory, str]:
        *parents, name = os.fspath(path).strip("/").split("/")
        at = self.root
        for parent in parents:
            node = at.entries.get(parent)
            if not isinstance(node, Directory):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            at = node
        return at, name

    def _find(self, path: Any) -> Inode | Directory:
        directory, name = self._walk(path)
        node = directory.entries.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node

    @staticmethod
    def _changed(directory: Directory) -> None:
        directory.pending.append(dict(directory.entries))

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        """os.open."""
        del mode
        directory, name = self._walk(path)
        node = directory.entries.get(name)
        if node is None:
            if not flags & os.O_CREAT:
                self.step("open")
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self.step("create")
            node = directory.entries[name] = Inode(self._number())
            self._changed(directory)
        elif flags & os.O_EXCL:
            self.step("open")
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        elif flags & os.O_TRUNC and isinstance(node, Inode):
            self.step("truncate")
            self._truncate(node, 0)
        else:
            self.step("open")
        fd = next(_descriptors)
        self._descriptors[fd] = node
        return fd

    def _file(self, fd: int) -> Inode:
        if self.has_crashed:
            raise Crashed
        node = self._descriptors[fd]
        assert isinstance(node, Inode)
        return node

    def close(self, fd: int) -> None:
        """os.close; no effect on descriptors of a process that has ended."""
        node = self._descriptors.pop(fd, None)
        if node is not None and self._locked.get(node.number) == fd:
            del self._locked[node.number]

    def lock(self, fd: int, operation: int) -> None:
        """fcntl.flock, fcntl.lockf: exclusive, not waited for."""
        del operation
        node = self._file(fd)
        self.step("lock")
        if self._locked.setdefault(node.number, fd) != fd:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def pread(self, fd: int, count: int, position: int) -> bytes:
        """os.pread."""
        node = self._file(fd)
        self.step("read")
        return bytes(node.data[position : position + count])

    def preadv(self, fd: int, buffers: list[bytearray], position: int, flags: int = 0) -> int:
        """os.preadv into one buffer."""
        del flags
        data = self.pread(fd, len(buffers[0]), position)
        buffers[0][: len(data)] = data
        return len(data)

    def pwrite(self, fd: int, data: Any, position: int) -> int:
        """os.pwrite: short, then an error, where the disk is full; torn where it crashes."""
        node = self._file(fd)
        content = bytes(data)
        short = self.random.randrange(len(content)) if content else 0
        try:
            self.step("write")
        except Crashed:
            self._put(node, position, content[:short])
            raise
        except OSError as error:
            fault = self.fault
            is_first = fault is not None and fault.hits == fault.after + 1
            if error.errno == errno.ENOSPC and is_first and short:
                self._put(node, position, content[:short])
                return short
            raise
        self._put(node, position, content)
        return len(content)

    def write_next(self, fd: int, data: Any) -> int:
        """os.write of a file that is written from its begin."""
        return self.pwrite(fd, data, len(self._file(fd).data))

    @staticmethod
    def _put(node: Inode, position: int, content: bytes) -> None:
        if content:
            _write(node.data, position, content)
            node.pending.append(("write", position, content))

    @staticmethod
    def _truncate(node: Inode, size: int) -> None:
        if len(node.data) != size:
            _resize(node.data, size)
            node.pending.append(("truncate", size, b""))

    def ftruncate(self, fd: int, size: int) -> None:
        """os.ftruncate."""
        node = self._file(fd)
        self.step("truncate")
        self._truncate(node, size)

    def fsync(self, fd: int) -> None:
        """os.fsync of a file or a directory."""
        if self.has_crashed:
            raise Crashed
        node = self._descriptors[fd]
        if self._divided is not None and isinstance(node, Inode):
            self._divided.append(self.begin_fsync(fd))
            return
        try:
            self.step("fsync")
        except OSError:
            if isinstance(node, Inode):
                node.is_doubtful = True
            raise
        if isinstance(node, Inode):
            if not node.is_doubtful:
                node.synced_count += len(node.pending)
                node.durable, node.pending = bytes(node.data), []
        else:
            node.durable, node.pending = dict(node.entries), []

    @contextmanager
    def divided_fsync(self) -> Iterator[list[Callable[[], None]]]:
        """Each fsync of a file within is only begun; the list has the calls that end them."""
        self._divided = ends = []
        try:
            yield ends
        finally:
            self._divided = None

    def begin_fsync(self, fd: int) -> Callable[[], None]:
        """os.fsync of a file, divided: the result ends it, and what was written before it began is
        on disk then, but nothing of what was written meanwhile.
        """
        node = self._file(fd)
        count = node.synced_count + len(node.pending)

        def end() -> None:
            try:
                self.step("fsync")
            except OSError:
                node.is_doubtful = True
                raise
            number = count - node.synced_count
            if node.is_doubtful or number <= 0:
                return
            if number >= len(node.pending):
                node.durable = bytes(node.data)
            else:
                content = bytearray(node.durable)
                for kind, position, data in node.pending[:number]:
                    if kind == "truncate":
                        _resize(content, position)
                    else:
                        _write(content, position, data)
                node.durable = bytes(content)
            node.synced_count += number
            del node.pending[:number]

        return end

    def replace(self, source: Any, target: Any) -> None:
        """os.replace within one directory, or of a directory within its parent."""
        self.step("rename")
        directory, name = self._walk(source)
        other, new_name = self._walk(target)
        assert directory is other, "kbroker renames within a directory"
        node = directory.entries.pop(name, None)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        directory.entries[new_name] = node
        self._changed(directory)

    def unlink(self, path: Any) -> None:
        """os.unlink, os.rmdir."""
        directory, name = self._walk(path)
        self.step("unlink")
        if directory.entries.pop(name, None) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._changed(directory)

    def makedirs(self, path: Any, exist_ok: bool = False) -> None:
        """os.makedirs of one level."""
        del exist_ok
        self.step("mkdir")
        directory, name = self._walk(path)
        if name not in directory.entries:
            directory.entries[name] = Directory(self._number())
            self._changed(directory)

    def isdir(self, path: Any) -> bool:
        """os.path.isdir, for which what can't be looked at is no directory."""
        try:
            self.step("stat")
            return isinstance(self._find(path), Directory)
        except OSError:
            return False

    def _stat(self, node: Inode | Directory) -> SimpleNamespace:
        size = len(node.data) if isinstance(node, Inode) else 0
        modified_ns = node.modified_ns if isinstance(node, Inode) else 0
        return SimpleNamespace(st_size=size, st_mtime_ns=modified_ns, st_ino=node.number)

    def stat(self, path: Any) -> SimpleNamespace:
        """os.stat."""
        self.step("stat")
        return self._stat(self._find(path))

    def fstat(self, fd: int) -> SimpleNamespace:
        """os.fstat."""
        self.step("stat")
        return self._stat(self._descriptors[fd])

    def lseek(self, fd: int, position: int, whence: int) -> int:
        """os.lseek, of a file system that knows no holes."""
        assert whence in (os.SEEK_DATA, os.SEEK_HOLE)
        self._file(fd)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def chmod(self, path: Any, mode: int) -> None:
        """os.chmod; modes are not kept."""
        del mode
        self.step("chmod")
        self._find(path)

    def utime(self, path: Any, *, ns: tuple[int, int]) -> None:
        """os.utime."""
        self.step("write")
        node = self._find(path)
        assert isinstance(node, Inode)
        node.modified_ns = ns[1]

    def scandir(self, path: Any) -> Listing:
        """os.scandir."""
        self.step("list")
        node = self._find(path)
        assert isinstance(node, Directory)
        base = os.fspath(path)
        return Listing(self._entry(base, name, child) for name, child in node.entries.items())

    def _entry(self, base: str, name: str, node: Inode | Directory) -> SimpleNamespace:
        is_directory = isinstance(node, Directory)
        return SimpleNamespace(
            name=name,
            path=f"{base}/{name}",
            is_dir=lambda follow_symlinks=True: is_directory,
            is_file=lambda follow_symlinks=True: not is_directory,
            stat=lambda: self._stat(node),
        )

    @contextmanager
    def open_reader(
        self, path: Any, mode: str = "rb", buffering: int = 0, opener: object = None
    ) -> Iterator[Any]:
        """The built-in open, for reading bytes."""
        assert mode == "rb", mode
        del buffering, opener
        self.step("read")
        node = self._find(path)
        assert isinstance(node, Inode)

        def read(limit: int = -1) -> bytes:
            return bytes(node.data if limit < 0 else node.data[:limit])

        yield SimpleNamespace(read=read)


class Listing(list[SimpleNamespace]):
    """What os.scandir gives: to be walked over, or closed by `with`."""

    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *error: object) -> None:
        return None


def _resize(content: bytearray, size: int) -> None:
    if size <= len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _write(content: bytearray, position: int, data: bytes) -> None:
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data
