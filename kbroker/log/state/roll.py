"""A roll: closes the active segment, creates a new one, and writes a producer snapshot. Five files
are created or change size.

Nothing is appended while a roll is in progress. After a crash there is an empty last segment, or
none. A roll that fails for lack of descriptors leaves none, so that the log can go on without it.
Neighbours: `rolling` begins rolls, at most one per log; `replication.appends.preparation` and
`replication.followers.follower_log` let a worker run them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import ClassVar

from kbroker.log.producer.producer_state import ProducerStateManager
from kbroker.log.producer.snapshots import ProducerSnapshots
from kbroker.log.storage import names
from kbroker.log.storage.disk_jobs import DiskJobs, WorkerJob
from kbroker.log.storage.faults import make_lasting
from kbroker.log.storage.files import LogDirectoryError, atomic_write, unlink
from kbroker.log.storage.segment import Segment
from kbroker.log.storage.segments import Segments
from kbroker.log.validator import ValidatedBatches
from kbroker.settings.views.log_config import LogConfig


class Roll(WorkerJob):
    """base_offset: that of the new segment. then: called once on the loop, with the fault if no
    segment was created; not after the queue was dropped. snapshots: None if no new producer
    snapshot is needed. failure: why no segment was created.
    """

    __slots__ = (
        "_active",
        "_create",
        "_new",
        "_segments",
        "_snapshot",
        "_snapshots",
        "_then",
        "_trims",
        "base_offset",
        "failure",
    )

    verb: ClassVar[str] = "roll in"

    def __init__(
        self,
        jobs: DiskJobs,
        segments: Segments,
        producers: ProducerStateManager,
        snapshots: ProducerSnapshots | None,
        config: LogConfig,
        base_offset: int,
        *,
        now_ms: int,
        then: Callable[[Segment | LogDirectoryError], None],
    ) -> None:
        super().__init__(jobs)
        self.base_offset = base_offset
        self.failure: LogDirectoryError | None = None
        self._segments = segments
        self._snapshots = snapshots
        self._then = then
        self._active = segments.active
        self._trims = self._active.begin_closing()
        producers.map_end_offset = base_offset
        self._snapshot: tuple[str, bytes] | None = None
        if snapshots is not None:
            self._snapshot = (snapshots.path(base_offset), producers.to_snapshot())
        self._create = partial(
            Segment.create,
            segments.directory,
            base_offset,
            config=config,
            open_files=segments.open_files,
            now_ms=now_ms,
            roll_jitter_ms=segments.roll_jitter_ms(config),
        )
        self._new: Segment | None = None

    def run(self) -> None:
        """Trim the indexes of the old segment, create the files of the new one."""
        for trim in self._trims:
            trim.run()
        try:
            new = self._create()
            if self._snapshot is not None:
                atomic_write(*self._snapshot, sync=False)
        except LogDirectoryError as error:
            if error.is_shortage:
                self._remove_files()
            raise
        self._new = new

    def _remove_files(self) -> None:
        """Remove what was created: batches that the old segment takes after all would be after the
        base offset of an empty one.
        """
        for suffix in (names.TIME_INDEX, names.INDEX, names.LOG):
            name = names.offset_name(self.base_offset, suffix)
            unlink(os.path.join(self._segments.directory, name))

    def settle(self) -> None:
        """Add the new segment to the log, or set `failure`."""
        new = self._new
        if new is None:
            raise RuntimeError("the files were not made")
        try:
            self._active.end_closing(self._trims)
        except LogDirectoryError as error:
            make_lasting(error)  # the files of the new segment exist
            self.fail(error)
            return
        if self._snapshots is not None:
            self._snapshots.written(self.base_offset)
        self._segments.add(new)
        self._then(new)

    def fail(self, error: LogDirectoryError) -> None:
        self.failure = error
        if error.is_shortage:
            self._active.cancel_closing()
        self._then(error)


class RollDue:
    """Checked batches that need a new segment; nothing has been appended. A worker calls
    `roll.work`; then, on the loop, call `roll.end`, and `append_checked` with `checked`.
    """

    __slots__ = ("checked", "roll")

    def __init__(self, roll: Roll, checked: ValidatedBatches) -> None:
        self.roll = roll
        self.checked = checked
