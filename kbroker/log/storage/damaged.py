"""Logs that were closed cleanly and cannot be opened.

Recovery would truncate such a log before the damage, and acknowledged records would be lost. So the
log is offline and its folder is left unchanged, while all other logs are served. These logs are
listed in `kbroker-damaged-logs` of their directory (a checkpoint of recovery points): neither a
crash of the broker nor any number of restarts may turn them into logs that are recovered. A log is
in that file or in the recovery points, never in both; a log that a clean stop left in neither is
recovered, so an operator who accepts the loss removes the file (docs/adr/0013).

A follower's log that is found damaged while it is truncated is in neither: its leader has the
records, so the next start recovers it.
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
"""The system refuses to open a file because of its type or owner (a folder, a file of another
user); the disk works.
"""


class DamagedLogError(Exception):
    """A log's files are inconsistent although it was closed cleanly. The message has the file and
    the fault.
    """


class DamagedLog(NamedTuple):
    """A log that cannot be opened or truncated. was_clean: the log was closed cleanly; otherwise
    the next start recovers it.
    """

    folder: Path
    recovery_point: int
    log_start_offset: int
    was_clean: bool

    @property
    def is_future(self) -> bool:
        """Whether the log was a future one, to replace a log in another directory."""
        return self.folder.name.endswith(names.FUTURE_SUFFIX)


def damage_told_by(error: Exception, log_directory: Path) -> str | None:
    """One line for the user, with the damage of one log and the remedy, from the error of opening
    it. None if the disk failed, and with it the whole directory.
    """
    if isinstance(error, DamagedLogError):
        return (
            f"{error}: damaged after a clean stop; put the file back, or stop the broker and "
            f"remove {log_directory / names.DAMAGED_LOGS} to continue without the lost records"
        )
    if isinstance(error, CheckpointError):
        return f"{error}; mend the file, or remove it to do without it"
    if isinstance(error, LogDirectoryError) and error.errno in _OF_ONE_FILE:
        return f"{error}; put right what is in its place"
    return None
