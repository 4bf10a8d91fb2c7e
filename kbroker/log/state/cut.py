"""A truncation in a worker, which changes a copy of the log's state; the log takes the copy over.

`truncation` syncs files and reads a segment again for the producer state, which may take seconds.
So the log is frozen from the construction of a `Cut` to its `settle`: only the worker uses the
files, the loop neither reads nor writes them, and an operation that cannot wait completes the
truncation itself (`LogState.thaw`). Recovery point and log start offset are lowered at once, and
their checkpoints are written before the truncation: otherwise a start after a crash of the machine
would trust records that are appended later.

A damaged segment ends the log alone, not its directory: `LogDirectories.take_damaged_offline`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from kbroker.log.state.flushing import limit_flushes
from kbroker.log.state.log_state import NOT_ON_DISK, LogState
from kbroker.log.state.truncation import truncate_fully, truncate_to
from kbroker.log.storage.checkpoint import Checkpoint
from kbroker.log.storage.disk_jobs import WorkerJob
from kbroker.log.storage.faults import make_lasting
from kbroker.log.storage.files import LogDirectoryError
from kbroker.model import InvariantError
from kbroker.protocol.errors import ErrorCode, KafkaError


class Cut(WorkerJob):
    """offset: the new log end offset. is_full: all records are removed, and offset is the log start
    offset too. checkpoints: returns the checkpoints to write first, after the state was lowered.
    then: called once on the loop after the log has taken over the result; not if the truncation
    failed, or the log was released before, even while a worker ran it. on_damage: called instead if
    a segment is damaged, with KafkaError(KAFKA_STORAGE_ERROR).

    Created while the log's queue is idle, and added to it. failure: why the truncation failed (a
    disk fault, or what on_damage is called with); nothing more is written to the log.
    """

    __slots__ = (
        "_checkpoints",
        "_is_full",
        "_now_ms",
        "_offset",
        "_on_damage",
        "_state",
        "_then",
        "_worker",
        "failure",
    )

    verb: ClassVar[str] = "truncate"

    def __init__(
        self,
        state: LogState,
        offset: int,
        *,
        is_full: bool,
        now_ms: int,
        checkpoints: Callable[[], Iterable[Checkpoint]],
        then: Callable[[], None],
        on_damage: Callable[[KafkaError], None],
    ) -> None:
        super().__init__(state.jobs)
        if not state.jobs.is_idle or offset < 0:
            raise InvariantError(f"{state} cannot be cut at {offset} now")
        if state.jobs.undo is not None:
            state.jobs.undo()
        self._state = state
        self._offset = offset
        self._is_full = is_full
        self._now_ms = now_ms
        self._then = then
        self._on_damage = on_damage
        self.failure: LogDirectoryError | KafkaError | None = None
        first = state.segments.first.base_offset
        start = offset
        if not is_full and offset >= first:
            start = max(min(state.log_start_offset, offset), first)
        state.frozen = True
        state.truncation_count += 1
        state.on_disk_end_offset = NOT_ON_DISK
        kept = max(offset - 1, 0)  # below the log end: see `LogDirectory.recovery_points`
        limit_flushes(state, kept)
        state.recovery_point = min(state.recovery_point, kept)
        state.log_start_offset = min(state.log_start_offset, start)
        self._checkpoints = list(checkpoints())
        self._worker = state.copy_for_worker()

    def run(self) -> None:
        """Truncate the files, and update the copy's epochs and producers to the new log end."""
        worker = self._worker
        try:
            for checkpoint in self._checkpoints:
                checkpoint.write()
            if self._is_full:
                truncate_fully(worker, self._offset, now_ms=self._now_ms)
            else:
                truncate_to(worker, self._offset, now_ms=self._now_ms)
        except KafkaError as error:  # a damaged segment is no fault of the directory
            self.failure = KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"cannot truncate the log to offset {self._offset}: {error.message}",
            )
        except LogDirectoryError as error:
            make_lasting(error)  # the log's state is lowered already
            raise
        worker.segments.release()

    def settle(self) -> None:
        """Take over the result of the worker, or set `failure`."""
        failure = self.failure
        if failure is None:
            self._state.take_over_worker(self._worker)
            self._then()
            return
        self._end_log(failure)
        if isinstance(failure, KafkaError):
            self._on_damage(failure)

    def fail(self, error: LogDirectoryError) -> None:
        self.failure = error
        self._end_log(error)

    def _end_log(self, error: LogDirectoryError | KafkaError) -> None:
        """The files may be truncated in part: nothing is appended to this log any more."""
        self._state.failure = self._state.failure or error
        self._state.frozen = False
