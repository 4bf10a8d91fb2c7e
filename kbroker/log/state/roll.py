"""A roll: the active segment is closed, a new one takes its place, the producers get a snapshot.

That is five files whose names and sizes change, and each may wait for the file system's journal
while others are synced: 250 ms were seen. So it has three parts: what is to be in the files is
taken on the loop, the files are made by whoever comes first, a worker or the loop where something
cannot wait (`settle`), and on the loop the new segment goes into the log. Nothing is appended in
between. A crash leaves what it leaves of a roll in one piece: an empty last segment, or none.
Neighbours: `partition_log` has at most one under way, `replication.preparation` has it done.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock

from kbroker.log.producer.producer_state import ProducerStateManager
from kbroker.log.producer.snapshots import ProducerSnapshots
from kbroker.log.storage.files import LogDirectoryError, atomic_write
from kbroker.log.storage.segment import Segment
from kbroker.log.storage.segments import Segments
from kbroker.log.validator import ValidatedBatches
from kbroker.settings.log_config import LogConfig


class RollDue(Exception):
    """Batches belong into a new segment: have `roll.work` done, call `roll.end`, append `validated`
    then. Nothing else has happened.
    """

    def __init__(self, roll: Roll, validated: ValidatedBatches) -> None:
        super().__init__(f"a new segment at offset {roll.base_offset}")
        self.roll = roll
        self.validated = validated


class Roll:
    """base_offset: of the new segment. then: called once on the loop, with the fault if there is
    no new segment, unless it was dropped. snapshots: None if no new producer snapshot is needed.
    """

    __slots__ = (
        "_active",
        "_create",
        "_is_over",
        "_lock",
        "_new",
        "_segments",
        "_snapshot",
        "_snapshots",
        "_then",
        "_trims",
        "base_offset",
    )

    def __init__(
        self,
        segments: Segments,
        producers: ProducerStateManager,
        snapshots: ProducerSnapshots | None,
        config: LogConfig,
        base_offset: int,
        *,
        now_ms: int,
        then: Callable[[Segment | LogDirectoryError], None],
    ) -> None:
        self.base_offset = base_offset
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
        self._lock = Lock()  # held while the files are made
        self._is_over = False

    @property
    def has_snapshot(self) -> bool:
        """Whether a producer snapshot is written at the new segment's base offset."""
        return self._snapshots is not None

    def work(self) -> None:
        """Make the files, unless that was done; in any thread. Blocks. Raises LogDirectoryError."""
        with self._lock:
            if self._new is not None or self._is_over:
                return
            for trim in self._trims:
                trim.work()
            new = self._create()
            if self._snapshot is not None:
                atomic_write(*self._snapshot, sync=False)
            self._new = new

    def end(self, failure: OSError | None) -> None:
        """A worker has done the work, or `failure` is why not. On the loop."""
        if self._is_over:
            return  # somebody could not wait for it
        try:
            if failure is not None:
                if isinstance(failure, LogDirectoryError):
                    raise failure
                raise LogDirectoryError(self._segments.directory, "roll in", failure)
            self._finish()
        except LogDirectoryError as error:
            self._is_over = True
            self._then(error)

    def settle(self) -> None:
        """Do here and now what is left of it, on the loop. Blocks, also while a worker is at it.
        Raises LogDirectoryError.
        """
        if not self._is_over:
            self.work()
            self._finish()

    def drop(self) -> None:
        """The log is closed. Does not wait for a worker that is at it."""
        self._is_over = True

    def _finish(self) -> None:
        new = self._new
        if new is None:
            raise RuntimeError("the files were not made")
        self._active.end_closing(self._trims)
        if self._snapshots is not None:
            self._snapshots.written(self.base_offset)
        self._segments.add(new)
        self._is_over = True
        self._then(new)
