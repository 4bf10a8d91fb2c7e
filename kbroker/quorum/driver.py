"""The loop around the quorum's core: carries out its effects, one write and one fsync for all that
waits.

What is proposed while an fsync is under way shares the next one. Only fsync and the writing of
snapshots leave the loop thread; they get files, never the log. A fault of the disk is final: the
node must stop (`on_fatal`), as Kafka's does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import assert_never

from kbroker.log.state.flush import Syncable
from kbroker.model import InvariantError
from kbroker.ports import ClosableOffload, Deferred, Random, Timers
from kbroker.protocol.batch_builder import build_batch
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.quorum.format import MetaProperties, static_voters
from kbroker.quorum.raft.control import control_batch
from kbroker.quorum.raft.effects import (
    MAX_BATCH_BYTES,
    AppendBatches,
    AppendControl,
    AppendRecords,
    Commit,
    Effect,
    FinishSnapshot,
    Flush,
    InstallSnapshot,
    LeaderChanged,
    PersistState,
    Respond,
    Send,
    ShutdownComplete,
    Truncate,
    WriteSnapshotPart,
)
from kbroker.quorum.raft.node import RaftNode
from kbroker.quorum.raft.offsets import SnapshotId
from kbroker.quorum.raft.raft_config import RaftConfig
from kbroker.quorum.raft.voter_set import ReplicaKey
from kbroker.quorum.storage import QuorumStorage, StoredBatch, storage_from_config
from kbroker.settings.broker import BrokerConfig

logger = logging.getLogger(__name__)

CommitListener = Callable[[int, int, Sequence[bytes]], None]
"""(base offset, epoch, records) of a committed batch; no records for a control batch."""

SnapshotListener = Callable[[Iterable[bytes], int, int], None]
"""(records, end offset (exclusive), epoch) of the snapshot read at start."""


class QuorumDriver:
    """One node's part in the metadata quorum. Loop thread only."""

    def __init__(
        self,
        storage: QuorumStorage,
        *,
        cluster_id: str,
        timers: Timers,
        offload: ClosableOffload,
        random: Random,
    ) -> None:
        self._storage = storage
        self._cluster_id = cluster_id
        self._random = random
        self._timers = timers
        self._raft: RaftNode | None = None
        self._commit_listeners: list[CommitListener] = []
        self._snapshot_listeners: list[SnapshotListener] = []
        self._fatal_listeners: list[Callable[[BaseException], None]] = []
        self._leadership_listeners: list[Callable[[], None]] = []
        self._uncommitted: deque[StoredBatch] = deque()
        self._waiting: deque[tuple[int, Deferred[int]]] = deque()
        self._unwritten = bytearray()
        self._offload = offload
        self._flush_task: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    @classmethod
    def from_config(
        cls,
        config: BrokerConfig,
        *,
        properties: MetaProperties,
        timers: Timers,
        offload: ClosableOffload,
        random: Random,
    ) -> QuorumDriver:
        """A driver over the metadata log directory of that configuration. offload: one thread, for
        fsync and snapshots; `stop` closes it.
        """
        storage = storage_from_config(
            config,
            directory_id=properties.directory_ids[config.metadata_log_dir],
            static_voters=static_voters(config),
        )
        return cls(
            storage,
            cluster_id=properties.cluster_id,
            timers=timers,
            offload=offload,
            random=random,
        )

    # What is known.

    @property
    def _core(self) -> RaftNode:
        if self._raft is None:
            raise InvariantError("the quorum driver was not started")
        return self._raft

    @property
    def epoch(self) -> int:
        """The epoch this node leads."""
        return self._core.quorum.epoch

    @property
    def next_offset(self) -> int:
        """The offset the next record will get."""
        return self._core.quorum.log.end_offset

    @property
    def high_watermark(self) -> int:
        """The first offset that is not committed."""
        return self._core.quorum.high_watermark

    @property
    def kraft_version(self) -> int:
        """The finalized kraft.version: 0 with static voters, 1 with voters in the log."""
        return self._storage.control.kraft_version

    def on_commit(self, callback: CommitListener) -> None:
        """Call back for each committed batch, in order, also for those found at start."""
        self._commit_listeners.append(callback)

    def on_snapshot(self, callback: SnapshotListener) -> None:
        """Call back with the newest snapshot at start, before any commit."""
        self._snapshot_listeners.append(callback)

    def on_fatal(self, callback: Callable[[BaseException], None]) -> None:
        """Call back once if the log can no longer be written."""
        self._fatal_listeners.append(callback)

    def on_leadership_lost(self, callback: Callable[[], None]) -> None:
        """Call back when this node can no longer commit what it appended: the outcome of every
        uncommitted append is unknown then. Called before `on_fatal`.
        """
        self._leadership_listeners.append(callback)

    # Life.

    async def start(self) -> None:
        """Open, hand out the newest snapshot, win the election, hand out everything after it.

        Raises StartupError for a directory that cannot be used.
        """
        storage = self._storage
        snapshot = storage.open(self._timers.now_ms())
        start_offset = storage.log.log_start_offset
        if storage.snapshots:
            newest = storage.snapshots[-1]
            start_offset = max(start_offset, newest.end_offset)
            if snapshot is not None:
                for listener in self._snapshot_listeners:
                    listener(snapshot.records, newest.end_offset, newest.epoch)
        self._uncommitted.extend(storage.read(start_offset, storage.log.log_end_offset))
        storage.check_own_vote()
        self._raft = RaftNode(
            RaftConfig(ReplicaKey(storage.node_id, storage.directory_id), self._cluster_id),
            log=storage.raft_log(),
            control=storage.control,
            election=storage.state,
            random=self._random,
            high_watermark=start_offset,
        )
        self._carry_out(self._raft.start(self._timers.monotonic_ms()))
        await self._idle()
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        """Commit what was proposed, then close the log."""
        if self._raft is not None:
            await self._idle()
        self._offload.close()
        if self._failure is None and self._raft is not None:
            self._storage.close()

    async def _idle(self) -> None:
        """Wait until no flush is under way. Cancelling the caller leaves the flush alone."""
        while self._flush_task is not None:
            await asyncio.wait({self._flush_task})

    # Appending.

    def append(self, records: Sequence[bytes], *, atomic: bool = True) -> Deferred[int]:
        """Append records; resolves with the last one's offset once they are committed.

        They are one batch unless `atomic` is False and they are too many for one. Fails with
        NOT_CONTROLLER if the log cannot be written: whether the records will be committed after a
        restart is unknown.
        """
        if self._failure is not None:
            return Deferred.failed(_not_controller())
        deferred: Deferred[int] = Deferred()
        for group in [records] if atomic else _groups(records):
            self._carry_out(self._core.propose(group, self._timers.monotonic_ms()))
        self._waiting.append((self.next_offset - 1, deferred))
        return deferred

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case PersistState():
                    self._storage.write_state(
                        effect.state,
                        kraft_version=effect.kraft_version,
                        voter_ids=effect.voter_ids,
                    )
                case AppendControl():
                    self._append_control(effect)
                case AppendRecords():
                    self._append_records(effect)
                case Flush():
                    loop = asyncio.get_running_loop()
                    self._flush_task = loop.create_task(self._flush())
                case Commit():
                    self._commit(effect.high_watermark)
                case LeaderChanged():
                    pass  # `start` returns once this node leads, and it leads until `stop`
                case (
                    AppendBatches()
                    | Truncate()
                    | Send()
                    | Respond()
                    | WriteSnapshotPart()
                    | FinishSnapshot()
                    | InstallSnapshot()
                    | ShutdownComplete()
                ):
                    raise InvariantError(f"a quorum of one voter came to {effect}")
                case _:
                    assert_never(effect)

    def _append_control(self, effect: AppendControl) -> None:
        batch = control_batch(
            effect.records,
            base_offset=effect.base_offset,
            epoch=effect.epoch,
            timestamp_ms=self._timers.now_ms(),
        )
        self._buffer(batch, effect.base_offset, len(effect.records), effect.epoch, ())

    def _append_records(self, effect: AppendRecords) -> None:
        now_ms = self._timers.now_ms()
        batch = build_batch(
            [(now_ms, None, record, ()) for record in effect.records],
            base_offset=effect.base_offset,
            partition_leader_epoch=effect.epoch,
        )
        count = len(effect.records)
        self._buffer(batch, effect.base_offset, count, effect.epoch, effect.records)

    def _buffer(
        self, batch: bytearray, base_offset: int, count: int, epoch: int, records: Sequence[bytes]
    ) -> None:
        self._unwritten += batch
        self._uncommitted.append(StoredBatch(base_offset, base_offset + count, epoch, records))

    async def _flush(self) -> None:
        """One write and one fsync for everything proposed by now; runs after the present
        callbacks.
        """
        try:
            batches, self._unwritten = self._unwritten, bytearray()
            if batches:
                self._storage.write(batches, now_ms=self._timers.now_ms())
            end_offset = self._storage.log.log_end_offset
            flush = self._storage.begin_flush()
            await self._in_thread(partial(_sync_all, flush.files))
            flush.finish()
            self._flush_task = None
            self._carry_out(self._core.flushed(end_offset, self._timers.monotonic_ms()))
        except asyncio.CancelledError:  # the loop itself is being closed
            self._flush_task = None
            raise
        except Exception as error:  # noqa: BLE001  # top frame: whatever it is, the node must stop
            self._flush_task = None
            self._fail(error)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        """Raises the OSError that work raised."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def then(failure: OSError | None) -> None:
            if done.cancelled():
                return
            if failure is None:
                done.set_result(None)
            else:
                done.set_exception(failure)

        self._offload(work, then)
        await done

    def _commit(self, high_watermark: int) -> None:
        while self._uncommitted and self._uncommitted[0].next_offset <= high_watermark:
            batch = self._uncommitted.popleft()
            for listener in self._commit_listeners:
                listener(batch.base_offset, batch.epoch, batch.records)
        while self._waiting and self._waiting[0][0] < high_watermark:
            last_offset, deferred = self._waiting.popleft()
            deferred.resolve(last_offset)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        logger.critical(
            "%s: the metadata log cannot be written: %s", self._storage.directory, error
        )
        for lost in self._leadership_listeners:
            lost()
        waiting, self._waiting = self._waiting, deque()
        for _, deferred in waiting:
            deferred.fail(_not_controller())
        for listener in self._fatal_listeners:
            listener(error)

    # Snapshots.

    async def write_snapshot(
        self, *, end_offset: int, epoch: int, chunks: Iterable[Sequence[bytes]]
    ) -> None:
        """Write a snapshot of everything before end_offset, then apply retention.

        Raises LogDirectoryError.
        """
        storage = self._storage
        if end_offset > self.high_watermark:
            raise InvariantError(
                f"a snapshot up to {end_offset}, committed is {self.high_watermark}"
            )
        snapshot_id = SnapshotId(end_offset, epoch)
        configuration = storage.control.configuration_at(end_offset - 1)
        timestamp_ms = storage.last_timestamp_ms(end_offset)
        now_ms = self._timers.now_ms()

        def write() -> None:
            storage.write_snapshot(
                snapshot_id,
                chunks,
                configuration=configuration,
                timestamp_ms=timestamp_ms,
                now_ms=now_ms,
            )

        await self._in_thread(write)
        storage.snapshot_written(snapshot_id)
        size_bytes = storage.snapshot_size(snapshot_id)
        self._carry_out(
            self._core.snapshot_written(snapshot_id, size_bytes, self._timers.monotonic_ms())
        )
        storage.clean(now_ms)
        self._carry_out(
            self._core.log_cleaned(
                storage.log.log_start_offset, storage.snapshots, self._timers.monotonic_ms()
            )
        )


def _not_controller() -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, "The metadata log cannot be written.")


def _sync_all(files: Sequence[Syncable]) -> None:
    for file in files:
        file.sync()


def _groups(records: Sequence[bytes]) -> list[list[bytes]]:
    """Records in groups that each fit into one batch."""
    groups: list[list[bytes]] = [[]]
    size_bytes = 0
    for record in records:
        size_bytes += len(record) + 32
        if size_bytes > MAX_BATCH_BYTES // 2 and groups[-1]:
            groups.append([])
            size_bytes = len(record) + 32
        groups[-1].append(record)
    return groups
