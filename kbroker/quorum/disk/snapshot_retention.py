"""One run of metadata.max.retention.* over the snapshots of the metadata log: deletes the files of
the oldest ones, in a thread. Neighbour: `storage` then removes the log before the oldest snapshot
that is left.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from kbroker.log.storage.files import file_size, unlink
from kbroker.model import StartupError
from kbroker.quorum.disk.snapshots import read_last_contained_timestamp_ms
from kbroker.quorum.raft.offsets import SnapshotId

logger = logging.getLogger(__name__)


class SnapshotRetention:
    """snapshots: those in the directory, oldest first; the last one is kept. log_bytes: the size of
    the log. A negative retention_bytes or retention_ms is no limit. deleted: what `run` deleted,
    oldest first.
    """

    __slots__ = (
        "_directory",
        "_log_bytes",
        "_now_ms",
        "_retention_bytes",
        "_retention_ms",
        "_snapshots",
        "deleted",
    )

    def __init__(
        self,
        directory: Path,
        snapshots: Sequence[SnapshotId],
        *,
        log_bytes: int,
        retention_bytes: int,
        retention_ms: int,
        now_ms: int,
    ) -> None:
        self._directory = directory
        self._snapshots = list(snapshots)
        self._log_bytes = log_bytes
        self._retention_bytes = retention_bytes
        self._retention_ms = retention_ms
        self._now_ms = now_ms
        self.deleted: list[SnapshotId] = []

    def run(self) -> None:
        """Delete the files of the snapshots that are due. Blocks; only uses the snapshots' files,
        so it may run in a thread. Raises LogDirectoryError.
        """
        left = self._snapshots
        sizes = [file_size(str(self._directory / each.file_name)) for each in left]
        while len(left) > 1 and self._is_due(left[0], self._log_bytes + sum(sizes)):
            unlink(self._directory / left[0].file_name)
            logger.info(
                "%s: deleted the snapshot %s by retention", self._directory, left[0].file_name
            )
            self.deleted.append(left.pop(0))
            del sizes[0]

    def _is_due(self, oldest: SnapshotId, size_bytes: int) -> bool:
        """size_bytes: of the log and all snapshots."""
        if 0 <= self._retention_bytes < size_bytes:
            return True
        if self._retention_ms < 0:
            return False
        return self._now_ms - self._last_timestamp_ms(oldest) > self._retention_ms

    def _last_timestamp_ms(self, snapshot_id: SnapshotId) -> int:
        """The last timestamp of an old snapshot; 0 for a damaged or missing one, which is useless
        for a start and must not block the deletion of later ones.
        """
        try:
            return read_last_contained_timestamp_ms(self._directory / snapshot_id.file_name)
        except StartupError as error:
            logger.warning("%s; treating it as older than the retention time", error)
            return 0
