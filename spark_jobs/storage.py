"""Folders of any file system that pyarrow knows: the output, the checkpoint and what is in them.

pyarrow's file systems work in the driver and in the executors, without a JVM. A location without a
scheme, or with `file:`, is a local folder; `s3a://` is `s3://` with pyarrow's options in the query
part (`s3://bucket/path?region=eu-west-1`).
"""

from __future__ import annotations

import os
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import JobError

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

_SCHEMES = {"s3a": "s3", "s3n": "s3"}
_HIDDEN = (".", "_")
_OBJECT_STORES = ("s3://", "s3a://", "s3n://", "gs://", "gcs://", "abfs://", "abfss://")
_NAME_BYTES = 255


def is_local(location: str) -> bool:
    """Whether a location is a folder of this machine."""
    return location.startswith("file:") or ":" not in location.partition("/")[0]


def absolute(location: str) -> str:
    """The location as a URI that Spark and pyarrow understand alike, without a slash at its end."""
    if not is_local(location):
        return location.rstrip("/")
    path = re.sub("^file:(//)?", "", location)
    return Path(os.path.abspath(path)).as_uri()


def display(uri: str) -> str:
    """A URI as the user would write it: a local path without `file://`."""
    return str(_local_path(uri)) if uri.startswith("file:") else uri


def _local_path(uri: str) -> Path:
    from urllib.parse import unquote

    return Path(unquote(re.sub("^file:(//)?", "", uri)))


def is_hidden(path: str) -> bool:
    """Whether readers of data sets skip a path: a part of it begins with `_` or `.`, and is no
    `name=value` of a partition.
    """
    return any(part.startswith(_HIDDEN) and "=" not in part for part in path.split("/"))


def _successor(name: str) -> str:
    """Where a file's new content is whole while the old file is deleted, on a file system that
    replaces no file by a rename (HDFS).
    """
    parent, slash, own = name.rpartition("/")
    return f"{parent}{slash}.{own}.new"


@dataclass(frozen=True)
class Folder:
    """A folder by its URI; names are paths relative to it. Raises OSError where the file system
    fails.
    """

    uri: str

    def __str__(self) -> str:
        return display(self.uri)

    @property
    def spark_uri(self) -> str:
        """As Spark names it: without pyarrow's options, and a local folder as it is written, since
        Spark takes `%20` at its word.
        """
        if self.uri.startswith("file:"):
            return f"file://{self}"
        return self.uri.partition("?")[0]

    @property
    def longest_name(self) -> int | None:
        """Bytes that the name of a file may have; None where files are keys of an object store."""
        return None if self.uri.startswith(_OBJECT_STORES) else _NAME_BYTES

    def child(self, name: str) -> Folder:
        """A folder in this one."""
        path, mark, query = self.uri.partition("?")
        return Folder(f"{path}/{name}{mark}{query}")

    def read(self, name: str) -> bytes | None:
        """A file's bytes; None if there is no such file."""
        system, root = self.open()
        # `write` may just have deleted the old file: then the successor has the new content, or had
        # it until the rename that has happened meanwhile.
        for place in (name, _successor(name), name):
            try:
                with system.open_input_stream(f"{root}/{place}") as stream:
                    content: bytes = stream.read()
                    return content
            except FileNotFoundError:
                continue
        return None

    def write(self, name: str, content: bytes) -> None:
        """Write a file so that `read` gives the old content or the new, never a part and never
        nothing where there was a file, also if the process is killed meanwhile.
        """
        hidden = f"{name.rpartition('/')[0]}/.{uuid.uuid4().hex}.tmp".lstrip("/")
        system, root = self.open()
        self._make_parent(system, root, hidden)
        with system.open_output_stream(f"{root}/{hidden}") as stream:
            stream.write(content)
        if not self._renamed(system, root, hidden, name):
            successor = _successor(name)
            self._delete(
                system, root, successor
            )  # of a process that was killed at one of these lines
            system.move(f"{root}/{hidden}", f"{root}/{successor}")
            self._delete(system, root, name)
            system.move(f"{root}/{successor}", f"{root}/{name}")

    def move(self, source: str, target: str) -> None:
        """Rename a file; one of the target's name is replaced. Raises FileNotFoundError."""
        system, root = self.open()
        self._make_parent(system, root, target)
        if not self._renamed(system, root, source, target):
            self._delete(system, root, target)
            system.move(f"{root}/{source}", f"{root}/{target}")

    def exists(self, name: str = "") -> bool:
        """Whether there is a file or a folder of that name."""
        from pyarrow.fs import FileType

        system, root = self.open()
        (info,) = system.get_file_info([f"{root}/{name}".rstrip("/")])
        return bool(info.type != FileType.NotFound)

    def names(self, name: str = "") -> list[str]:
        """Names of the files and folders in a folder, sorted; empty if it does not exist."""
        return sorted(info.base_name for info in self._list(name, recursive=False))

    def files(self) -> list[str]:
        """Relative paths of all visible files in the folder and below it, sorted."""
        from pyarrow.fs import FileType

        _, root = self.open()
        paths = (
            info.path[len(root) :].lstrip("/")
            for info in self._list("", recursive=True)
            if info.type == FileType.File
        )
        return sorted(path for path in paths if not is_hidden(path))

    def delete(self, name: str) -> None:
        """Delete a file; it may be missing."""
        system, root = self.open()
        # The file last: an old successor without it would be taken for it.
        self._delete(system, root, _successor(name))
        self._delete(system, root, name)

    def delete_folder(self, name: str) -> None:
        """Delete a folder and all in it; it may be missing."""
        system, root = self.open()
        try:
            system.delete_dir(f"{root}/{name}")
        except FileNotFoundError:
            return

    def check_writable(self, option: str) -> None:
        """Raises JobError unless files can be written here; a local folder is made if need be."""
        probe = f".{uuid.uuid4().hex}.probe"
        try:
            self.write(probe, b"")
            self.delete(probe)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error).splitlines()[0]
            raise JobError(f"{option} {self} cannot be written: {why}") from error

    def make_parent(self, name: str) -> None:
        """Make the folder that a file of this name is in."""
        system, root = self.open()
        self._make_parent(system, root, name)

    def open(self) -> tuple[FileSystem, str]:
        """pyarrow's file system and the folder's path in it. Raises JobError if there is none."""
        try:
            from pyarrow.fs import FileSystem, LocalFileSystem
        except ImportError as error:
            raise JobError(
                "pyarrow is not installed: install kbroker with its extra spark"
            ) from error

        if self.uri.startswith("file:"):
            return LocalFileSystem(), str(_local_path(self.uri))
        scheme, _, rest = self.uri.partition("://")
        try:
            system, path = FileSystem.from_uri(f"{_SCHEMES.get(scheme, scheme)}://{rest}")
        except (ValueError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise JobError(f"{self.uri}: pyarrow has no such file system: {reason}") from error
        return system, str(path).rstrip("/")

    def _list(self, name: str, *, recursive: bool) -> list[FileInfo]:
        from pyarrow.fs import FileSelector

        system, root = self.open()
        path = f"{root}/{name}".rstrip("/")
        selector = FileSelector(path, allow_not_found=True, recursive=recursive)
        return list(system.get_file_info(selector))

    def _renamed(self, system: FileSystem, root: str, source: str, target: str) -> bool:
        """Rename a file; False where the file system does not replace the target. Raises OSError,
        FileNotFoundError for a source that is missing.
        """
        try:
            system.move(f"{root}/{source}", f"{root}/{target}")
        except FileNotFoundError:
            raise
        except OSError:  # HDFS renames onto no existing file
            if not (self.exists(source) and self.exists(target)):
                raise
            return False
        return True

    @staticmethod
    def _delete(system: FileSystem, root: str, name: str) -> None:
        try:
            system.delete_file(f"{root}/{name}")
        except FileNotFoundError:
            return

    @staticmethod
    def _make_parent(system: FileSystem, root: str, name: str) -> None:
        parent = f"{root}/{name}".rpartition("/")[0]
        system.create_dir(parent, recursive=True)
