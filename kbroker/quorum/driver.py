"""Runs the quorum's core (`raft`) on a real log: passes events to the core and executes its
effects.

Events are requests, responses of other nodes, one timer, completed flushes and calls of the node
itself. The core returns the effects of an event, which are executed in order; an event that an
effect causes (a commit lets the controller append) is passed to the core at once, and its effects
are queued after those that are not executed yet. A state is persisted before a request or response
that depends on it is sent (docs/adr/0003).

`effect_executor` executes the effects, `state_machine_feed` notifies the state machines. Time,
threads and the network are ports, so the driver runs in the simulation (`tests/sim`). A fault of
the disk or a broken invariant is final: the node must stop (`on_fatal`), as Kafka's does.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from kbroker.metrics import Histogram
from kbroker.model import InvariantError
from kbroker.ports import ClosableOffload, Deferred, Random, TimerHandle, Timers, broker_stopping
from kbroker.quorum.core_start import start_core
from kbroker.quorum.disk.storage import QuorumStorage, storage_from_config
from kbroker.quorum.effect_executor import EffectExecutor, Event, Transport
from kbroker.quorum.formatting.format import MetaProperties, static_voters
from kbroker.quorum.parked_requests import ParkedRequests
from kbroker.quorum.raft.effects import MAX_BATCH_BYTES, Effect, RaftRequest, RaftResponse
from kbroker.quorum.raft.node import RaftNode
from kbroker.quorum.raft.offsets import SnapshotId
from kbroker.quorum.raft.raft_config import RaftConfig
from kbroker.quorum.raft.voters.voter_set import EndpointFields, VoterEndpoint
from kbroker.quorum.raft_settings import raft_config
from kbroker.quorum.state_machine_feed import StateMachineFeed, not_controller
from kbroker.quorum.status import QuorumStatus, quorum_status
from kbroker.settings.broker import BrokerConfig

logger = logging.getLogger(__name__)

SHUTDOWN_TIMEOUT_MS: Final = 5_000
"""How long a leader that stops waits for its successor, as in Kafka."""


class QuorumDriver:
    """One node's part in the metadata quorum. Loop thread only.

    feed: notifies the state machines, which register there before `start`. open_transport: called
    when the first request to another node is due. offload: one thread, for fsync and snapshots;
    `stop` closes it.
    """

    def __init__(
        self,
        storage: QuorumStorage,
        config: RaftConfig,
        *,
        timers: Timers,
        offload: ClosableOffload,
        random: Random,
        open_transport: Callable[[], Transport],
    ) -> None:
        self._storage = storage
        self._config = config
        self._timers = timers
        self._offload = offload
        self._random = random
        self.feed = StateMachineFeed()
        self.feed.on_leader(self._log_leader)
        self.failure: BaseException | None = None
        """The reason why this node must stop; None otherwise."""
        self.commit_seconds = Histogram()
        """The time from an append of this leader to its commit."""
        self._fatal_listeners: list[Callable[[BaseException], None]] = []
        self._parked = ParkedRequests(self._abandoned)
        self._executor = EffectExecutor(
            storage,
            self.feed,
            self,
            timers=timers,
            offload=offload,
            parked=self._parked,
            open_transport=open_transport,
        )
        self._raft: RaftNode | None = None
        self._effects: deque[Effect] = deque()
        self._is_working = False
        self._timer: TimerHandle | None = None
        self._timer_due_ms = 0
        self._stopped: Deferred[None] | None = None
        self._has_ended = False
        self._is_closed = False

    @classmethod
    def from_config(
        cls,
        config: BrokerConfig,
        *,
        properties: MetaProperties,
        timers: Timers,
        offload: ClosableOffload,
        random: Random,
        open_transport: Callable[[], Transport],
        endpoints: Iterable[EndpointFields] = (),
    ) -> QuorumDriver:
        """A driver over the metadata log directory of that configuration. endpoints: see
        `raft_config`.
        """
        storage = storage_from_config(
            config,
            directory_id=properties.directory_ids[config.metadata_log_dir],
            static_voters=static_voters(config),
        )
        return cls(
            storage,
            raft_config(config, properties, endpoints),
            timers=timers,
            offload=offload,
            random=random,
            open_transport=open_transport,
        )

    # State.

    @property
    def _core(self) -> RaftNode:
        if self._raft is None:
            raise InvariantError("the quorum driver was not started")
        return self._raft

    @property
    def epoch(self) -> int:
        """The current epoch."""
        return self._core.quorum.epoch

    @property
    def status(self) -> QuorumStatus | None:
        """The quorum as this node sees it; None before `start`."""
        return None if self._raft is None else quorum_status(self._raft.quorum)

    @property
    def is_leader(self) -> bool:
        """Whether this node leads the epoch and may append."""
        return self._raft is not None and self._raft.is_leader and self.failure is None

    @property
    def is_only_voter(self) -> bool:
        """Whether this node is the whole quorum."""
        return self._core.quorum.is_only_voter

    @property
    def voter_ids(self) -> tuple[int, ...]:
        """The voters of the newest set in the log, committed or not."""
        return self._core.quorum.voters.ids

    @property
    def leader_endpoints(self) -> tuple[VoterEndpoint, ...]:
        """The controller listeners of the current leader; empty if they are unknown."""
        quorum = self._core.quorum
        return quorum.leader_endpoints or quorum.endpoints_of(quorum.leader_id)

    @property
    def strangers(self) -> tuple[str, ...]:
        """Addresses of controllers whose last response was INCONSISTENT_CLUSTER_ID."""
        return tuple(self._executor.strangers.values())

    @property
    def next_offset(self) -> int:
        """The offset the next record will get."""
        return self._core.quorum.log.end_offset

    @property
    def high_watermark(self) -> int:
        """The first offset that is not known to be committed."""
        return self._core.quorum.high_watermark

    @property
    def kraft_version(self) -> int:
        """The newest kraft.version in the log, committed or not: 1 with voters in the log, 0 with
        static ones.
        """
        return self._storage.control.kraft_version

    def on_fatal(self, callback: Callable[[BaseException], None]) -> None:
        """Call back once if this node must stop, after `on_leadership_lost` of the feed."""
        self._fatal_listeners.append(callback)

    # Start and stop.

    def start(self) -> Deferred[None]:
        """Open the log, pass the newest snapshot to the state machines, join the quorum.

        Resolves once this node's own log is on disk; the only voter then leads, and all committed
        records have been passed on. `failure` is set if the start failed. Raises StartupError for a
        directory that cannot be used.
        """
        storage = self._storage
        snapshot = storage.open(self._timers.now_ms())
        start_offset = storage.log.log_start_offset
        if storage.snapshots:
            newest = storage.snapshots[-1]
            start_offset = max(start_offset, newest.end_offset)
            records = None if snapshot is None else snapshot.records
            self.feed.load(records, start_offset, newest.epoch)
        self.feed.appended(*storage.read(start_offset, storage.log.log_end_offset))
        storage.check_own_vote()
        self._raft = RaftNode(
            self._config,
            log=storage.raft_log(),
            control=storage.control,
            election=storage.state,
            random=self._random,
            high_watermark=start_offset,
        )
        effects = start_core(self._raft, self._timers.monotonic_ms())
        self.handle_event(lambda core, now_ms: effects)
        started: Deferred[None] = Deferred()
        self._executor.once_idle(partial(started.resolve, None))
        return started

    def stop(self) -> Deferred[None]:
        """Resign, then close the log. The only voter first commits what was proposed; any other
        leader waits for its successor for a limited time. Resolves when everything is closed.
        """
        if self._stopped is None:
            self._stopped = Deferred()
            if self._raft is None or self.failure is not None or self._has_ended:
                self._executor.once_idle(self._close)
            elif self._raft.quorum.is_only_voter:
                self._executor.once_idle(self._shut_down)
            else:
                self._shut_down()
        return self._stopped

    def kill(self) -> None:
        """Stop as a crash would: write nothing more, send no responses. `stop` may still close the
        log.
        """
        self._has_ended = True
        if self._timer is not None:
            self._timer.cancel()
        self._executor.close()
        self._parked.fail_all(broker_stopping())

    def _shut_down(self) -> None:
        self.handle_event(lambda core, now_ms: core.shutdown(SHUTDOWN_TIMEOUT_MS, now_ms))

    def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self.kill()
        self._offload.close()
        if self.failure is None and self._raft is not None:
            try:
                self._storage.close()
            except OSError as error:
                self.fail(error)
        if self._stopped is not None:
            self._stopped.resolve(None)

    def shutdown_complete(self) -> None:
        """See `effect_executor.Shell`."""
        self._timers.call_later(0, partial(self._executor.once_idle, self._close))

    def fail(self, error: BaseException) -> None:
        """This node must stop because of a disk fault, a broken invariant or a failed state
        machine. See `effect_executor.Shell`.
        """
        if self.failure is not None:
            return
        self.failure = error
        self._effects.clear()
        is_fault_of_disk = isinstance(error, OSError)
        logger.critical(
            "%s: the metadata log has failed: %s",
            self._storage.directory,
            error,
            exc_info=None if is_fault_of_disk else error,
        )
        self._executor.close()
        self.feed.leadership_lost()
        self._parked.fail_all(broker_stopping())
        for listener in self._fatal_listeners:
            listener(error)
        if self._stopped is not None:
            self._executor.once_idle(self._close)

    # Events.

    def append(self, records: Sequence[bytes], *, atomic: bool = True) -> Deferred[int]:
        """Append records; resolves with the last one's offset once they are committed.

        They are one batch unless `atomic` is False and they are too many for one. Fails with
        NOT_CONTROLLER if this node does not lead, or loses leadership before they are committed: it
        is then unknown whether the next leader commits them.
        """
        if not self.is_leader or self._has_ended:
            return Deferred.failed(not_controller())
        committed = self.feed.when_committed(self.next_offset + len(records) - 1)
        self._measure(committed)
        for group in [records] if atomic else _groups(records):
            self._propose(group)
        return committed

    def _measure(self, committed: Deferred[int]) -> None:
        """Measure the time of an append until its commit."""
        begin_ms = self._timers.monotonic_ms()

        def count(_: int) -> None:
            self.commit_seconds.observe((self._timers.monotonic_ms() - begin_ms) / 1000)

        committed.on_done(count, lambda _: None)

    def _propose(self, records: Sequence[bytes]) -> None:
        self.handle_event(lambda core, now_ms: core.propose(records, now_ms))

    def check_kraft_upgrade(self, level: int) -> None:
        """Check whether this leader may upgrade kraft.version to that level now. Raises
        KafkaError(INVALID_UPDATE_VERSION) if it may not.
        """
        self._core.check_kraft_upgrade(level)

    def upgrade_kraft_version(self, level: int) -> None:
        """Append the control records of an upgrade that `check_kraft_upgrade` has accepted; they
        are committed before any later append.
        """
        self.handle_event(lambda core, now_ms: core.upgrade_kraft_version(level, now_ms))

    def handle(
        self, request: RaftRequest, *, listener_name: str, version: int
    ) -> Deferred[RaftResponse]:
        """Handle a request of another node or a client, received on that listener. The response has
        the request's version. Fails with BROKER_NOT_AVAILABLE if this node stops. Cancel the result
        when the connection is closed.
        """
        if self._raft is None or self._has_ended or self.failure is not None:
            return Deferred.failed(broker_stopping())
        token, answer = self._parked.park()
        self.handle_event(
            lambda core, now_ms: core.handle_request(
                token,
                request,
                listener_name=listener_name,
                version=version,
                now_ms=now_ms,
                wall_ms=self._timers.now_ms(),
            )
        )
        return answer

    def resign(self, epoch: int) -> None:
        """The controller resigns from that epoch. An older epoch has no effects."""
        self.handle_event(lambda core, now_ms: core.resign(epoch, now_ms))

    def _abandoned(self, token: int) -> None:
        if not self._has_ended:
            self._core.request_abandoned(token)

    def handle_event(self, event: Event) -> None:
        """Pass an event to the core and execute its effects; see `effect_executor.Shell`."""
        if self._has_ended or self.failure is not None:
            return
        try:
            self._effects += event(self._core, self._timers.monotonic_ms())
            if not self._is_working:
                self._work()
        except Exception as error:  # noqa: BLE001  # top frame: the node must stop
            self.fail(error)

    def _work(self) -> None:
        effects = self._effects
        self._is_working = True
        try:
            while effects:
                self._carry_out(effects.popleft())
        finally:
            self._is_working = False
        self._set_timer()

    def _carry_out(self, effect: Effect) -> None:
        """Execute one effect. The simulation intercepts every effect here."""
        self._executor.carry_out(effect)

    def _set_timer(self) -> None:
        """Set one timer for the core's next deadline. If it fires early it is set again."""
        due_ms = self._core.next_deadline_ms()
        if due_ms is None or self._has_ended:
            return
        if self._timer is not None:
            if self._timer_due_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_due_ms = due_ms
        delay_ms = max(due_ms - self._timers.monotonic_ms(), 0)
        self._timer = self._timers.call_later(delay_ms, self._deadline_passed)

    def _deadline_passed(self) -> None:
        self._timer = None
        self.handle_event(RaftNode.poll)

    def _log_leader(self, epoch: int, leader_id: int) -> None:
        if not self._core.quorum.is_only_voter:
            logger.info(
                "Node %d: the leader of the metadata quorum in epoch %d is %s",
                self._config.local.id,
                epoch,
                "unknown" if leader_id < 0 else f"node {leader_id}",
            )

    # Snapshots.

    def write_snapshot(
        self, *, end_offset: int, epoch: int, chunks: Iterable[Sequence[bytes]]
    ) -> Deferred[None]:
        """Write a snapshot of everything before end_offset, then apply retention. Fails with
        KAFKA_STORAGE_ERROR, and with BROKER_NOT_AVAILABLE if this node stops.
        """
        if end_offset > self.high_watermark:
            raise InvariantError(
                f"a snapshot up to {end_offset}, committed is {self.high_watermark}"
            )
        return self._executor.write_snapshot(SnapshotId(end_offset, epoch), chunks)


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
