"""Executes the core's effects one by one.

This module dispatches the effects to `log_effects`, `snapshot_effects`, `parked_requests`,
`raft_transport` and `state_machine_feed`, and passes the results of those that take time (a flush,
a request, a snapshot's file) to the core as events. Neighbour: `driver` has the core and the order
of events and effects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Protocol, assert_never

from kbroker.log.directories.directory import remove_all
from kbroker.model import InvariantError
from kbroker.ports import Deferred, Offload, Timers, broker_stopping
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.protocol.messages.quorum import FetchSnapshotResponse
from kbroker.quorum.disk.snapshots import Snapshot
from kbroker.quorum.disk.storage import QuorumStorage
from kbroker.quorum.log_effects import LogEffects
from kbroker.quorum.parked_requests import ParkedRequests
from kbroker.quorum.raft.effects import (
    AppendBatches,
    AppendControl,
    AppendRecords,
    Commit,
    Destination,
    Effect,
    FinishSnapshot,
    Flush,
    InstallSnapshot,
    LeaderChanged,
    PersistState,
    RaftResponse,
    ReadRecords,
    ReadSnapshot,
    Respond,
    Send,
    ShutdownComplete,
    Truncate,
    WriteSnapshotPart,
)
from kbroker.quorum.raft.node import RaftNode
from kbroker.quorum.raft.offsets import SnapshotId
from kbroker.quorum.raft.requests.messages import fetched_partition, fetched_snapshot_partition
from kbroker.quorum.snapshot_effects import SnapshotEffects
from kbroker.quorum.state_machine_feed import StateMachineFeed

logger = logging.getLogger(__name__)

Event = Callable[[RaftNode, int], list[Effect]]
"""(core, monotonic time in ms): an event of the core; returns its effects."""

SnapshotSteps = Generator[Callable[[], None], None, None]
"""Steps on the loop; each but the last yields work for the thread, which may raise OSError."""


class Transport(Protocol):
    """Sends requests to other nodes; implemented by `raft_transport`."""

    def send(self, effect: Send) -> Deferred[RaftResponse]:
        """Send a request; see `RaftTransport.send`."""
        ...

    def close(self) -> None:
        """Send nothing more; requests in flight may fail."""
        ...


class Shell(Protocol):
    """Receives events and failures: the driver."""

    def handle_event(self, event: Event) -> None:
        """Pass an event to the core; without effect once the node stops."""
        ...

    def fail(self, error: BaseException) -> None:
        """The node must stop."""
        ...

    def shutdown_complete(self) -> None:
        """The quorum no longer needs this node. Called within an effect."""
        ...


class EffectExecutor:
    """Executes the effects of one node. Loop thread only. parked: requests that wait for a Respond.
    open_transport: called at the first Send. strangers: addresses of nodes whose last response was
    INCONSISTENT_CLUSTER_ID, by node id.
    """

    __slots__ = (
        "_feed",
        "_is_closed",
        "_is_flushing",
        "_log",
        "_offload",
        "_open_transport",
        "_received",
        "_shell",
        "_snapshots",
        "_storage",
        "_timers",
        "_transport",
        "_waiting_writes",
        "_when_idle",
        "parked",
        "strangers",
    )

    def __init__(
        self,
        storage: QuorumStorage,
        feed: StateMachineFeed,
        shell: Shell,
        *,
        timers: Timers,
        offload: Offload,
        parked: ParkedRequests,
        open_transport: Callable[[], Transport],
    ) -> None:
        self._storage = storage
        self._feed = feed
        self._shell = shell
        self._timers = timers
        self._offload = offload
        self.parked = parked
        self.strangers: dict[int, str] = {}
        self._open_transport = open_transport
        self._log = LogEffects(storage, timers, offload)
        self._snapshots = SnapshotEffects(storage, timers, offload)
        self._transport: Transport | None = None
        self._received: Snapshot | None = None
        self._is_flushing = False
        self._is_closed = False
        self._when_idle: list[Callable[[], None]] = []
        self._waiting_writes: list[tuple[int, Callable[[], None]]] = []

    def carry_out(self, effect: Effect) -> None:
        """Execute one effect. Raises errors for which the node must stop."""
        match effect:
            case PersistState():
                self._storage.write_state(
                    effect.state,
                    kraft_version=effect.kraft_version,
                    voter_ids=effect.voter_ids,
                )
            case AppendControl():
                self._feed.appended(self._log.append_control(effect))
            case AppendRecords():
                self._feed.appended(self._log.append_records(effect))
            case AppendBatches():
                self._feed.appended(*self._log.append_batches(effect))
            case Truncate():
                self._log.truncate(effect.end_offset)
                self._feed.truncated(effect.end_offset)
            case Flush():
                self._is_flushing = True
                self._timers.call_later(0, self._flush)
            case Commit():
                self._feed.committed(effect.high_watermark)
            case LeaderChanged():
                self._feed.leader_changed(effect.epoch, effect.leader_id, effect.epoch_start_offset)
            case Send():
                self._send(effect)
            case Respond():
                self._respond(effect)
            case WriteSnapshotPart():
                self._snapshots.write_part(effect)
            case FinishSnapshot():
                self._snapshots.finish(
                    effect.snapshot_id, partial(self._snapshot_finished, effect.snapshot_id)
                )
            case InstallSnapshot():
                self._install(effect.snapshot_id)
            case ShutdownComplete():
                self._shell.shutdown_complete()
            case _:
                assert_never(effect)

    def close(self) -> None:
        """Start nothing more; operations in progress end without an event."""
        self._is_closed = True
        if self._transport is not None:
            self._transport.close()

    # Flushes.

    def once_idle(self, callback: Callable[[], None]) -> None:
        """Call back when no flush is in progress: now, or later."""
        if self._is_flushing:
            self._when_idle.append(callback)
        else:
            callback()

    def _flush(self) -> None:
        """Runs after the current callbacks, so that their proposals share the fsync."""
        if self._is_closed:
            self._flush_ended()
            return
        try:
            self._log.flush(self._flushed)
        except Exception as error:  # noqa: BLE001  # top frame: the node must stop
            self._shell.fail(error)
            self._flush_ended()

    def _flushed(self, end_offset: int, failure: OSError | None) -> None:
        self._is_flushing = False
        if failure is not None:
            self._shell.fail(failure)
        else:
            self._shell.handle_event(lambda core, now_ms: core.flushed(end_offset, now_ms))
        if self._is_flushing:  # of what was appended meanwhile
            self._begin_snapshots(end_offset)
        else:
            self._flush_ended()

    def _flush_ended(self) -> None:
        self._is_flushing = False
        self._begin_snapshots()
        waiting, self._when_idle = self._when_idle, []
        for callback in waiting:
            callback()

    def _begin_snapshots(self, synced_offset: int | None = None) -> None:
        """Write the snapshots that end at or before synced_offset (None: all of them). Followers
        may have committed later records, which are still buffered here.
        """
        waiting, self._waiting_writes = self._waiting_writes, []
        for end_offset, write in waiting:
            if synced_offset is None or end_offset <= synced_offset:
                write()
            else:
                self._waiting_writes.append((end_offset, write))

    # Other nodes.

    def _send(self, effect: Send) -> None:
        if self._transport is None:
            self._transport = self._open_transport()
        number = effect.correlation_id

        def answered(response: RaftResponse) -> None:
            self._look_at_cluster(effect.destination, response)
            self._shell.handle_event(
                lambda core, now_ms: core.response_received(number, response, now_ms)
            )

        def failed(error: KafkaError) -> None:
            # the send may fail within the call, and a back-off of 0 ms would repeat it at once
            self._timers.call_later(0, lambda: self._send_failed(number, error.code))

        self._transport.send(effect).on_done(answered, failed)

    def _look_at_cluster(self, destination: Destination, response: RaftResponse) -> None:
        """Log once that a node belongs to another cluster: the core only backs off from it."""
        node_id = destination.node_id
        if response.error_code != ErrorCode.INCONSISTENT_CLUSTER_ID:
            self.strangers.pop(node_id, None)
        elif node_id not in self.strangers:
            self.strangers[node_id] = address = f"{destination.host}:{destination.port}"
            logger.warning(
                "%s: the controller at %s answered %s: it belongs to another cluster",
                self._storage.directory,
                address,
                ErrorCode.INCONSISTENT_CLUSTER_ID.name,
            )

    def _send_failed(self, number: int, code: ErrorCode) -> None:
        self._shell.handle_event(lambda core, now_ms: core.request_failed(number, code, now_ms))

    def _respond(self, effect: Respond) -> None:
        response, read = effect.response, effect.read
        if isinstance(response, FetchResponse) and isinstance(read, ReadRecords):
            partition = fetched_partition(response)
            if partition is not None:
                partition.records = self._log.read(read)
        elif isinstance(response, FetchSnapshotResponse) and isinstance(read, ReadSnapshot):
            part = fetched_snapshot_partition(response)
            if part is not None:
                data = self._snapshots.read(read)
                part.unaligned_records = data or b""
                if not data:
                    part.error_code = ErrorCode.SNAPSHOT_NOT_FOUND
        self.parked.answer(effect.token, response)

    # Snapshots.

    def _snapshot_finished(
        self, snapshot_id: SnapshotId, content: Snapshot | None, failure: OSError | None
    ) -> None:
        if self._is_closed:
            return
        if failure is not None:
            self._shell.fail(failure)
            return
        if content is None:
            self._shell.handle_event(
                lambda core, now_ms: core.snapshot_refused(snapshot_id, now_ms)
            )
            return
        size_bytes, configuration = (
            self._storage.snapshot_size(snapshot_id),
            content.configuration,
        )
        self._received = content
        self._shell.handle_event(
            lambda core, now_ms: core.snapshot_received(
                snapshot_id, size_bytes, configuration, now_ms
            )
        )
        self._received = None

    def _install(self, snapshot_id: SnapshotId) -> None:
        if self._received is None:
            raise InvariantError(f"{snapshot_id} is installed, but no snapshot was received")
        self._log.install(snapshot_id)
        self._feed.load(self._received.records, snapshot_id.end_offset, snapshot_id.epoch)

    def write_snapshot(
        self,
        snapshot_id: SnapshotId,
        chunks: Iterable[Sequence[bytes]],
    ) -> Deferred[None]:
        """Write a snapshot of the node's own state, then apply retention. Fails with
        KAFKA_STORAGE_ERROR, and with BROKER_NOT_AVAILABLE if this node stops.
        """
        written: Deferred[None] = Deferred()
        write = partial(self._write_snapshot, snapshot_id, chunks, written)
        if self._is_flushing:
            self._waiting_writes.append((snapshot_id.end_offset, write))
        else:
            write()
        return written

    def _write_snapshot(
        self, snapshot_id: SnapshotId, chunks: Iterable[Sequence[bytes]], written: Deferred[None]
    ) -> None:
        """Called when all records before the snapshot's end are synced in the log's file: its
        header has the timestamp of the last one.
        """
        if self._is_closed:
            written.fail(broker_stopping())
            return
        then = partial(self._advance, self._snapshot_steps(snapshot_id), written)
        try:
            self._snapshots.write(snapshot_id, chunks, then)
        except OSError as error:
            then(error)

    def _advance(
        self, steps: SnapshotSteps, written: Deferred[None], failure: OSError | None
    ) -> None:
        """Take the next step on the loop, then have the thread do the work that it yields."""
        if self._is_closed:
            written.fail(broker_stopping())
            return
        try:
            work = next(steps, None) if failure is None else steps.throw(failure)
        except OSError as error:
            written.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
            return
        if work is None:
            written.resolve(None)
        else:
            self._offload(work, partial(self._advance, steps, written))

    def _snapshot_steps(self, snapshot_id: SnapshotId) -> SnapshotSteps:
        """What follows when a snapshot is written: the core is told, then retention is applied. A
        crash between two steps leaves snapshots or segments that the newest snapshot covers.
        """
        storage, log = self._storage, self._storage.log
        if snapshot_id.end_offset < log.log_start_offset:
            # a newer one was fetched meanwhile, and the log starts after this one
            yield partial(storage.discard_snapshot, snapshot_id)
            return
        storage.snapshot_written(snapshot_id)
        size_bytes = storage.snapshot_size(snapshot_id)
        self._shell.handle_event(
            lambda core, now_ms: core.snapshot_written(snapshot_id, size_bytes, now_ms)
        )
        retention = storage.begin_retention(self._timers.now_ms())
        try:
            yield retention.run
        except OSError:
            self._retire(retention.deleted)  # before the fault
            raise
        self._retire(retention.deleted)
        try:
            yield log.jobs.work
        except OSError:
            log.failure = log.failure or log.jobs.failure  # nothing is written after a failed job
            raise
        log.jobs.collect()
        due = log.segments.take_due_files(self._timers.now_ms())
        if due:
            yield partial(remove_all, due)

    def _retire(self, deleted: Sequence[SnapshotId]) -> None:
        storage = self._storage
        storage.retire(deleted, self._timers.now_ms())
        start_offset, snapshots = storage.log.log_start_offset, storage.snapshots
        self._shell.handle_event(
            lambda core, now_ms: core.log_cleaned(start_offset, snapshots, now_ms)
        )
