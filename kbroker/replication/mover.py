"""Moves logs between log directories while they are in use (KIP-113, AlterReplicaLogDirs).

The future log, in the other directory, gets the same batches, a chunk at a time: a worker thread
reads them and the loop appends them, as a follower does. The states of a move:

    copying -> flushed -> assigned -> swapped

flushed: the future log is synced. assigned: the metadata says that the replica is in the new
directory (so that a start after a crash knows which of two logs counts). swapped: in one call on
the loop thread the rest is copied, the future log replaces the current log, and the folder of the
old log is renamed to `-delete`. Waiting requests are not affected. The files are handled by
`log.manager`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from kbroker.log.manager import LogManager
from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage.damaged import DamagedLogError
from kbroker.log.storage.files import FileSlice, LogDirectoryError
from kbroker.model import InvariantError, TopicPartition, Uuid
from kbroker.ports import ClosableOffload, Deferred, TimerHandle, Timers
from kbroker.protocol.batches.batch_header import read_batch_header
from kbroker.protocol.errors import KafkaError
from kbroker.replication.divergence import truncation_to_source
from kbroker.replication.partition import Partition

logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 1 << 20
"""Copied at a time: about 1 ms of the loop."""

SYNC_BYTES: Final = 32 << 20
"""Synced at a time, in the thread. With much more unsynced data the kernel would block the loop's
own writes.
"""

UNLIMITED: Final = (1 << 63) - 1

RETRY_MS: Final = 1_000
"""The pause before a move is tried again whose partition cannot be read or whose directory was not
assigned.
"""

AssignDirectory = Callable[[TopicPartition, Uuid, Uuid], Deferred[None]]
"""Tells the controller where a replica (partition, topic id) is; resolves when that is committed,
fails if the controller refuses it or loses leadership.
"""


class _Move:
    """One move. future: the log that is written; is_assigned: None before the report to the
    controller; throttled: the timer of a pause that is due to the rate limit alone.
    """

    __slots__ = ("copied_bytes", "future", "is_assigned", "key", "throttled", "unsynced_bytes")

    def __init__(self, key: TopicPartition, future: PartitionLog) -> None:
        self.key = key
        self.future = future
        self.is_assigned: bool | None = None
        self.throttled: TimerHandle | None = None
        self.copied_bytes = 0
        self.unsynced_bytes = 1  # the folder's name


class LogMover:
    """All moves of a broker. Each copies its own chunks, one after the other.

    bytes_per_second: replica.alter.log.dirs.io.max.bytes.per.second, of each move; a change counts
    at once. find: the replica of a partition. assign: without it a move does not wait for the
    metadata. on_replaced: called with the old log and the log that replaced it.
    """

    def __init__(
        self,
        logs: LogManager,
        timers: Timers,
        *,
        offload: ClosableOffload,
        find: Callable[[TopicPartition], Partition | None],
        assign: AssignDirectory | None = None,
        on_replaced: Callable[[PartitionLog, PartitionLog], None] = lambda old, new: None,
    ) -> None:
        self._logs = logs
        self._timers = timers
        self._offload = offload
        self._find = find
        self._on_replaced = on_replaced
        self._bytes_per_second = UNLIMITED
        self._moves: dict[TopicPartition, _Move] = {}
        self.assign = assign
        self.running = False

    @property
    def bytes_per_second(self) -> int:
        """See the class."""
        return self._bytes_per_second

    @bytes_per_second.setter
    def bytes_per_second(self, limit: int) -> None:
        if limit == self._bytes_per_second:
            return
        self._bytes_per_second = limit
        for move in self._moves.values():
            # a chunk at a low limit may have earned a rest of minutes
            throttled, move.throttled = move.throttled, None
            if throttled is not None:
                throttled.cancel()
                self._later(move, 0)

    def start(self) -> None:
        """Resume the moves that the last stop or crash interrupted."""
        self.running = True
        for key in self._logs.moves.future_partitions():
            self.begin(key)

    def stop(self) -> None:
        """Start no more chunks, and wait for the one in progress. The future logs are kept for the
        next start.
        """
        self.running = False
        self._moves.clear()
        self._offload.close()

    def begin(self, key: TopicPartition) -> None:
        """Start or resume the move of a partition's future log. No effect if it is being copied
        already.
        """
        future = self._logs.moves.future(key)
        known = self._moves.get(key)
        if future is None or not self.running or (known is not None and known.future is future):
            return
        future.on_rolled = self._logs.on_rolled
        move = self._moves[key] = _Move(key, future)
        logger.info("%s: copying to %s", key, future.directory)
        self._later(move, 0)

    def _later(self, move: _Move, delay_ms: float) -> TimerHandle:
        return self._timers.call_later(delay_ms, lambda: self._step(move))

    def _step(self, move: _Move) -> None:
        """Carry out the next step. A move that was cancelled, or whose disk failed, ends here."""
        move.throttled = None
        if self._moves.get(move.key) is not move:
            return
        source, future = self._logs.get(move.key), self._logs.moves.future(move.key)
        if source is None or future is not move.future:
            del self._moves[move.key]
            return
        if source.frozen:
            self._later(move, RETRY_MS)
            return
        try:
            self._advance(move, source)
        except LogDirectoryError as error:
            self._disk_failed(move, error)
        except (KafkaError, DamagedLogError) as error:
            logger.error("%s: cannot be copied to %s: %s", move.key, future.directory, error)
            self._give_up(move)
        except InvariantError:
            raise
        except Exception as error:  # noqa: BLE001 - of this move: the others go on
            self._logs.faults.report(move.key, f"the move to {future.directory}", error)
            self._give_up(move)

    def _disk_failed(self, move: _Move, error: LogDirectoryError) -> None:
        """The move ends with its directory. A shortage of file descriptors is no fault of it: the
        move goes on later.
        """
        self._logs.directory_failed(error)
        if self._moves.get(move.key) is not move:
            return
        if error.is_shortage:
            self._later(move, RETRY_MS)
        else:
            del self._moves[move.key]

    def _give_up(self, move: _Move) -> None:
        """End a move and delete its future log."""
        if self._moves.get(move.key) is move:
            del self._moves[move.key]
            self._logs.moves.drop_future(move.key)

    def _advance(self, move: _Move, source: PartitionLog) -> None:
        future = move.future
        self._reconcile(source, future)
        if move.is_assigned:
            self._copy_cached(source, future)
        behind = self._next_chunk(source, future)
        if move.unsynced_bytes >= SYNC_BYTES or (
            behind is None and move.unsynced_bytes and move.is_assigned is None
        ):
            self._flush(move)
        elif behind is not None:
            self._copy(move, source, behind)
        elif move.is_assigned is None:
            self._assign(move, source)
        elif move.is_assigned:
            self._swap(move, source)

    def _reconcile(self, source: PartitionLog, future: PartitionLog) -> None:
        """Truncate what the source no longer has (a follower may have been truncated, more than
        once), or restart the copy at the source's log start offset if that is beyond the copy's
        end.
        """
        if future.log_end_offset > source.log_end_offset:
            self._logs.truncate(future, source.log_end_offset)
        # A cut that is not complete takes the latest epoch of the copy away, so this ends.
        while (cut := truncation_to_source(future, source)) is not None:
            if not cut.is_complete or cut.offset < future.log_end_offset:
                self._logs.truncate(future, cut.offset)
            if cut.is_complete:
                break
        if future.log_end_offset < source.log_start_offset:
            future.truncate_fully(source.log_start_offset, now_ms=self._timers.now_ms())

    def _next_chunk(self, source: PartitionLog, future: PartitionLog) -> FileSlice | None:
        """The next records that the future log lacks, None if it has all."""
        if future.log_end_offset >= source.log_end_offset:
            return None
        chunk_bytes = min(CHUNK_BYTES, source.config.segment_bytes)
        records = source.read(future.log_end_offset, max_bytes=chunk_bytes).records
        return records if isinstance(records, FileSlice) else None

    def _copy(self, move: _Move, source: PartitionLog, chunk: FileSlice) -> None:
        """Read a chunk in the thread, append it on the loop, and plan the next step."""
        read: list[bytes] = []
        truncation_count = source.truncation_count

        def done(failure: OSError | None) -> None:
            if self._moves.get(move.key) is not move or not self.running:
                return
            if isinstance(failure, LogDirectoryError):
                self._disk_failed(move, failure)
            elif failure is not None or move.future.closed:
                self._later(move, RETRY_MS)
            elif source.truncation_count != truncation_count:
                self._later(move, 0)  # other batches may have been read in that place of the file
            else:
                self._append_then_step(move, read[0])

        self._offload(lambda: read.append(chunk.read()), done)

    def _append_then_step(self, move: _Move, data: bytes) -> None:
        try:
            self._append(move.future, data)
        except LogDirectoryError as error:
            self._disk_failed(move, error)
            return
        except KafkaError as error:
            logger.error("%s: a batch cannot be copied: %s", move.key, error)
            self._give_up(move)
            return
        except InvariantError:
            raise
        except Exception as error:  # noqa: BLE001 - of this move: the others go on
            self._logs.faults.report(move.key, f"the move to {move.future.directory}", error)
            self._give_up(move)
            return
        move.copied_bytes += len(data)
        move.unsynced_bytes += len(data)
        rest_ms = 1000 * len(data) / max(1, self._bytes_per_second)
        move.throttled = self._later(move, rest_ms)

    def _append(self, future: PartitionLog, data: bytes) -> None:
        now_ms = self._timers.now_ms()
        base_offset = read_batch_header(data).base_offset
        if base_offset < future.log_end_offset == future.log_start_offset:
            future.truncate_fully(base_offset, now_ms=now_ms)  # the start lies within a batch
        future.append_as_follower(data, now_ms=now_ms)

    def _copy_cached(self, source: PartitionLog, future: PartitionLog) -> None:
        """Copy the last bytes on the loop, unless there are too many or they are not in the page
        cache. Under load the copy would never catch up through the thread alone.
        """
        left_bytes = CHUNK_BYTES
        while (chunk := self._next_chunk(source, future)) is not None:
            left_bytes -= chunk.size
            data = chunk.read_cached() if left_bytes >= 0 else None
            if data is None:
                return
            self._append(future, data)

    def _flush(self, move: _Move) -> None:
        future = move.future
        flush = future.begin_flush()
        files = flush.files

        def sync() -> None:
            for file in files:
                file.sync()

        def done(failure: OSError | None) -> None:
            flush.finish(is_synced=failure is None and not future.closed)
            if isinstance(failure, LogDirectoryError) and not future.closed:
                self._disk_failed(move, failure)
            elif failure is None and not future.closed and self.running:
                move.unsynced_bytes = 0
                self._step(move)

        self._offload(sync, done)

    def _assign(self, move: _Move, source: PartitionLog) -> None:
        directory_id = self._logs.moves.future_directory_id(move.key)
        if self.assign is None or directory_id is None or source.topic_id is None:
            move.is_assigned = True
            self._later(move, 0)
            return
        move.is_assigned = False

        def assigned(_: None) -> None:
            move.is_assigned = True
            self._later(move, 0)

        def refused(error: KafkaError) -> None:
            logger.info("the controller did not assign the directory of %s: %s", move.key, error)
            move.is_assigned = None
            self._later(move, RETRY_MS)

        self.assign(move.key, source.topic_id, directory_id).on_done(assigned, refused)

    def _swap(self, move: _Move, source: PartitionLog) -> None:
        partition = self._find(move.key)
        if partition is None:
            self._later(move, RETRY_MS)
            return
        log = self._logs.moves.promote_future(move.key)
        partition.replace_log(log)
        self._on_replaced(source, log)
        self._moves.pop(move.key, None)
        logger.info("%s: moved to %s, %d bytes", move.key, log.directory, move.copied_bytes)
