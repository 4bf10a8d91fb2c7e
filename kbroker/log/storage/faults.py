"""Which faults of one log concern others.

`FaultReports` reports unexpected errors of work on many logs: an error of one log does not stop the
others. Retention, flushing, compaction and the like catch the error of one log, report it here, and
continue with the next log. Two kinds of errors are not handled so: a disk fault (`manager` takes
the directory offline), and a broken invariant, which stops the broker. `make_lasting` makes a disk
fault of a lack of descriptors that came too late to try again.
"""

from __future__ import annotations

import errno
import logging
from typing import Final

from kbroker.log.storage.files import LogDirectoryError
from kbroker.protocol.errors import KafkaError

logger = logging.getLogger(__name__)

MAX_REPORTED: Final = 10_000
"""The maximum number of errors that are remembered; beyond it the same error may be logged
again.
"""


class FaultReports:
    """Logs each error once per owner and kind of work, however often the work is repeated."""

    __slots__ = ("_reported",)

    def __init__(self) -> None:
        self._reported: dict[tuple[str, str], str] = {}

    def report(self, owner: object, work: str, error: Exception) -> None:
        """owner: the log or node with the error. work: what was being done."""
        key, text = (str(owner), work), repr(error)
        if self._reported.get(key) == text:
            return
        if len(self._reported) >= MAX_REPORTED:
            self._reported.clear()
        self._reported[key] = text
        is_known = isinstance(error, KafkaError)
        logger.error(
            "%s: %s failed: %s (will be retried and not logged again; other logs are not affected)",
            owner,
            work,
            error if is_known else text,
            exc_info=None if is_known else error,
        )

    def forget(self, owner: object) -> None:
        """The log was deleted: forget its errors."""
        name = str(owner)
        for key in [each for each in self._reported if each[0] == name]:
            del self._reported[key]


def make_lasting(error: LogDirectoryError) -> None:
    """The fault came in the middle of a change, so that a retry would find the change half done:
    also for a shortage of descriptors the directory goes offline, and a start repairs the log.
    """
    if error.is_shortage:
        error.errno = errno.EIO
