"""A cleaning round that is in progress, and why it has to end. `cleaner` advances it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from kbroker.log.state.log_state import LogState
from kbroker.log.storage.disk_jobs import DiskJob
from kbroker.model import TopicPartition

if TYPE_CHECKING:
    from kbroker.log.cleaner.round import CleaningRound

CleaningSteps = Generator[DiskJob, None, None]
"""Yields the jobs of a round, which workers run."""


class Cleaning:
    """kept_bytes: granted by the account for the offset map. is_moving: as in `CleanedLogs`. error:
    raised by the last job.
    """

    __slots__ = (
        "_is_moving",
        "directory",
        "error",
        "kept_bytes",
        "log",
        "round",
        "steps",
        "truncation_count",
    )

    def __init__(
        self,
        log: LogState,
        round_: CleaningRound,
        kept_bytes: int,
        *,
        is_moving: Callable[[TopicPartition], bool],
    ) -> None:
        self.kept_bytes = kept_bytes
        self.log = log
        self.directory = log.directory
        self.truncation_count = log.truncation_count
        self.round = round_
        self.steps: CleaningSteps | None = None
        self.error: Exception | None = None
        self._is_moving = is_moving

    @property
    def is_outdated(self) -> bool:
        """Whether the log has changed, so that what the round read of it may no longer be valid."""
        log = self.log
        return (
            log.closed
            or log.failure is not None
            or log.directory != self.directory
            or log.truncation_count != self.truncation_count
            or not log.config.compact
        )

    @property
    def must_end(self) -> bool:
        """Whether the round must not change the log any more: it is outdated, or a move to another
        directory has begun.
        """
        return self.is_outdated or self._is_moving(self.log.topic_partition)
