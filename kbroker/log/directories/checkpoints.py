"""The checkpoints of all log directories: recovery points, log start offsets, high watermarks.

One small file per directory and kind; `storage.checkpoint` has the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kbroker.log.directories.directory import LogDirectory
from kbroker.log.directories.log_directories import LogDirectories
from kbroker.log.storage import names
from kbroker.log.storage.checkpoint import (
    Checkpoint,
)
from kbroker.log.storage.files import (
    LogDirectoryError,
)
from kbroker.model import (
    TopicPartition,
)


class OffsetCheckpoints:
    """Reads and writes the checkpoints of the online directories."""

    __slots__ = ("_directories",)

    def __init__(self, directories: LogDirectories) -> None:
        self._directories = directories

    def write_recovery_points(self) -> None:
        """Write how far each log is flushed. Syncs a small file per directory."""
        self._write(self.of_recovery_points())

    def write_start_offsets(self) -> None:
        """Write the start of each log that begins behind its first segment's base."""
        self._write(self.of_start_offsets())

    def read_high_watermarks(self) -> dict[TopicPartition, int]:
        """The high watermarks at the last checkpoint."""
        watermarks: dict[TopicPartition, int] = {}
        for directory in self._directories.online():
            try:
                watermarks |= directory.read_or_forget(names.HIGH_WATERMARKS) or {}
            except LogDirectoryError as error:
                self._directories.fail(directory, error)
        return watermarks

    def write_high_watermarks(self, watermarks: Mapping[TopicPartition, int]) -> None:
        """Write the high watermarks, each into the directory that has its partition. Blocks."""
        self._write(self.of_high_watermarks(watermarks))

    def of_recovery_points(self) -> list[Checkpoint]:
        """How far each log is flushed, for a thread to write."""
        return self._checkpoints(names.RECOVERY_POINTS, LogDirectory.recovery_points)

    def of_start_offsets(self) -> list[Checkpoint]:
        """The start of each log that begins behind its first segment's base, to be written."""
        return self._checkpoints(names.LOG_START_OFFSETS, LogDirectory.start_offsets)

    def of_high_watermarks(self, watermarks: Mapping[TopicPartition, int]) -> list[Checkpoint]:
        """The high watermarks, each for the directory that has its partition, to be written."""

        def of(directory: LogDirectory) -> dict[TopicPartition, int]:
            return {
                key: min(watermarks[key], log.log_end_offset)
                for key, log in directory.all_logs()
                if key in watermarks
            }

        return self._checkpoints(names.HIGH_WATERMARKS, of)

    def _checkpoints(
        self, name: str, of: Callable[[LogDirectory], dict[TopicPartition, int]]
    ) -> list[Checkpoint]:
        return [each.checkpoint(name, of(each)) for each in self._directories.online()]

    def _write(self, checkpoints: Iterable[Checkpoint]) -> None:
        for checkpoint in checkpoints:
            try:
                checkpoint.write()
            except LogDirectoryError as error:
                self._directories.directory_failed(error)
