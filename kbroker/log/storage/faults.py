"""Unexpected errors of work that goes through many logs: a fault belongs to the log that has it.

Retention, flushing, compaction and the like catch what one log raises, report it here, and go on
with the next log. A fault of the disk is not of this kind (`manager` takes the directory offline),
nor is a broken invariant, which stops the broker.
"""

from __future__ import annotations

import logging
from typing import Final

from kbroker.protocol.errors import KafkaError

logger = logging.getLogger(__name__)

MAX_REPORTED: Final = 10_000
"""Beyond that many the same error may be logged again."""


class FaultReports:
    """Logs each error once per owner and kind of work, however often the work is repeated."""

    __slots__ = ("_reported",)

    def __init__(self) -> None:
        self._reported: dict[tuple[str, str], str] = {}

    def report(self, owner: object, work: str, error: Exception) -> None:
        """owner: the log, or the node, that has the fault. work: what was being done."""
        key, text = (str(owner), work), repr(error)
        if self._reported.get(key) == text:
            return
        if len(self._reported) >= MAX_REPORTED:
            self._reported.clear()
        self._reported[key] = text
        is_known = isinstance(error, KafkaError)
        logger.error(
            "%s: %s failed: %s (reported once; it is tried again, other logs are not affected)",
            owner,
            work,
            error if is_known else text,
            exc_info=None if is_known else error,
        )

    def forget(self, owner: object) -> None:
        """The log is deleted."""
        name = str(owner)
        for key in [each for each in self._reported if each[0] == name]:
            del self._reported[key]
