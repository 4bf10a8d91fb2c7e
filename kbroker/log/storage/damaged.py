"""Logs that were closed in order and cannot be opened as they were closed.

Recovery would cut such a log to what is sound, and acknowledged records would be gone for good. So
it is offline and its folder stays as it is, while all other logs serve. Which logs those are is
kept in `kbroker-damaged-logs` of their directory (a checkpoint of recovery points): neither a crash
of the broker nor any number of starts may turn them into logs that are recovered. A log is in that
file or in the recovery points, never in both; one that a clean stop left in neither is recovered,
so removing the file is how to go on without what is lost (docs/adr/0013).
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final, NamedTuple

from kbroker.log.storage import names
from kbroker.log.storage.checkpoint import CheckpointError
from kbroker.log.storage.files import LogDirectoryError

_OF_ONE_FILE: Final = frozenset(
    {errno.EISDIR, errno.ENOTDIR, errno.ENOENT, errno.EACCES, errno.EPERM, errno.ELOOP}
)
"""The system refuses a file for what it is (a folder, a file of another user); the disk works."""


class DamagedLogError(Exception):
    """A log's files contradict the clean stop behind it. Says which file, and what is wrong."""


class DamagedLog(NamedTuple):
    """A log that cannot be opened. was_clean: it was closed cleanly."""

    folder: Path
    recovery_point: int
    log_start_offset: int
    was_clean: bool

    @property
    def is_future(self) -> bool:
        """Whether it should have taken the place of a log in another directory."""
        return self.folder.name.endswith(names.FUTURE_SUFFIX)


def damage_told_by(error: Exception, log_directory: Path) -> str | None:
    """What happened to one log and what to do, in one line, by the error of opening it. None if its
    disk fails, and with it the whole directory.
    """
    if isinstance(error, DamagedLogError):
        return (
            f"{error}: damaged after a clean stop; put the file back, or stop the broker and "
            f"remove {log_directory / names.DAMAGED_LOGS} to go on without what is lost"
        )
    if isinstance(error, CheckpointError):
        return f"{error}; mend the file, or remove it to do without it"
    if isinstance(error, LogDirectoryError) and error.errno in _OF_ONE_FILE:
        return f"{error}; put right what is in its place"
    return None
