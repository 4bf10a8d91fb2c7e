"""Steps that `compact` takes on files that are visible: folders that are exchanged for ones with
fewer files, files that are deleted. Without Spark.

A step is written down in `_archive/compaction.json` before it is taken, with the sums behind it,
and finished by any start that finds it there. A folder is exchanged for its successor in one change
of the file system, so readers list the old files or the new ones. Files that `archive` adds to the
folder meanwhile are moved into the new one.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from ..errors import JobError, StartRefused
from ..lease import Lease, check_lease
from ..storage import Folder
from .commits import STATE_FOLDER

LEDGER: Final = f"{STATE_FOLDER}/compaction.json"
LEASE: Final = f"{STATE_FOLDER}/compactor.json"
WORKSPACES: Final = f"{STATE_FOLDER}/compaction"
FORMAT: Final = 1

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


class CannotExchange(JobError):
    """The archive's file system does not exchange folders, so no files are merged there."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A folder of the archive and its successor in the folder WORKSPACES. known: names that the
    folder had when the successor was made, which has what is in them. merged: a name that only the
    successor has.
    """

    folder: str
    workspace: str
    known: tuple[str, ...]
    merged: str


@dataclass(frozen=True, slots=True)
class Deletion:
    """Files that are deleted. paths: relative to the archive."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ledger:
    """What was done to an archive's files since it began, the step included. removed_records: of
    deleted files. size_delta: change of the files' size in bytes.
    """

    removed_records: int = 0
    size_delta: int = 0
    step: Exchange | Deletion | None = None

    def to_json(self) -> bytes:
        """The ledger as a JSON document."""
        step = None if self.step is None else asdict(self.step)
        values = {"removed_records": self.removed_records, "size_delta": self.size_delta}
        return json.dumps({"format": FORMAT, **values, "step": step}).encode()


def read_ledger(archive: Folder) -> Ledger:
    """The ledger of an archive, an empty one if it has none. Raises JobError if it is damaged."""
    content = archive.read(LEDGER)
    if content is None:
        return Ledger()
    try:
        values = json.loads(content)
        if values["format"] != FORMAT:
            raise ValueError(f"format {values['format']} of a newer version")
        step = values["step"]
        found: Exchange | Deletion | None = None
        if step is not None and "paths" in step:
            found = Deletion(tuple(step["paths"]))
        elif step is not None:
            known = tuple(step["known"])
            found = Exchange(step["folder"], step["workspace"], known, step["merged"])
        return Ledger(int(values["removed_records"]), int(values["size_delta"]), found)
    except (ValueError, KeyError, TypeError) as error:
        raise JobError(
            f"{archive}/{LEDGER} is damaged ({error!r}): bring it back from a copy"
        ) from error


def take_step(archive: Folder, ledger: Ledger, lease_id: str) -> Ledger:
    """Write a ledger down and take its step; gives the ledger without it. lease_id: of
    `without_compaction`. Raises StartRefused if another compaction has taken over the archive: two
    would write over each other's ledger.
    """
    check_lease(archive, LEASE, lease_id, "the files that it was merging or deleting stay")
    archive.write(LEDGER, ledger.to_json())
    return finish_step(archive, ledger)


def finish_step(archive: Folder, ledger: Ledger) -> Ledger:
    """Take the step of a ledger, as far as that is not done; gives the ledger without it."""
    step = ledger.step
    if step is None:
        return ledger
    if isinstance(step, Deletion):
        for path in step.paths:
            archive.delete(path)
    else:
        _finish_exchange(archive, step)
    done = Ledger(ledger.removed_records, ledger.size_delta)
    archive.write(LEDGER, done.to_json())
    return done


def _finish_exchange(archive: Folder, step: Exchange) -> None:
    folder, workspace = local_path(archive, step.folder), local_path(archive, step.workspace)
    if not workspace.is_dir():
        return
    if (workspace / step.merged).exists():
        exchange(folder, workspace)
    known = set(step.known)
    while workspace.is_dir():
        for path in list(workspace.iterdir()):
            if path.name in known:
                path.unlink()
            else:  # `archive` added it after the successor was made
                path.rename(folder / path.name)
        with suppress(OSError):  # another one was added just now
            workspace.rmdir()


def local_path(archive: Folder, name: str) -> Path:
    """A file or folder of an archive on this machine. Raises CannotExchange for one elsewhere."""
    if not archive.uri.startswith("file:"):
        raise CannotExchange(
            f"{archive}: only folders of this machine can be exchanged at once, which compaction "
            "needs; --retention works anywhere"
        )
    return Path(archive.open()[1]) / name


def exchange(one: Path, other: Path) -> None:
    """Exchange two folders of a file system, in one change. Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):
        raise OSError("this system has no renameat2")
    names = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other))
    if library.renameat2(*names, _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@contextmanager
def without_compaction(archive: Folder) -> Iterator[str]:
    """No compaction runs in this block, and none is half done. Gives the id of the lease, for
    `take_step`. Raises StartRefused while a compaction runs.
    """
    lease = Lease(archive, LEASE)
    lease.acquire()
    try:
        finish_step(archive, read_ledger(archive))
        archive.delete_folder(WORKSPACES)  # of one that was killed before its step
        yield lease.lease_id
    finally:
        lease.release()


def finish_what_was_cut_off(archive: Folder) -> None:
    """Finish the step of a compaction that was killed; one that runs is left alone."""
    if read_ledger(archive).step is None:
        return
    with suppress(StartRefused), without_compaction(archive):
        pass
