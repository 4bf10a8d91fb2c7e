"""A simulated node of the quorum that runs what a kbroker node runs: `QuorumDriver` on a
`QuorumStorage`, whose files are on a `SimDisk`, and the channel on the `SimNetwork`.

The driver is only looked at: which effects it carried out in a step, and what it answered. A disk
that refuses an operation stops the driver, and with it the node; any other failure is one of the
simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import cast

from kbroker.client.channel.channel import Channel
from kbroker.client.channel.streams import Stream, StreamReceiver
from kbroker.log.storage.files import make_directory, sync_directory
from kbroker.model import Uuid
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey, valid_versions
from kbroker.protocol.framing import RequestHeader
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.quorum import FetchSnapshotRequest
from kbroker.quorum.disk.snapshots import build_snapshot, write_snapshot
from kbroker.quorum.driver import QuorumDriver
from kbroker.quorum.effect_executor import Event
from kbroker.quorum.raft.control import QuorumConfiguration
from kbroker.quorum.raft.effects import (
    AppendBatches,
    AppendControl,
    AppendRecords,
    Effect,
    RaftRequest,
    RaftResponse,
    Truncate,
)
from kbroker.quorum.raft.offsets import BOOTSTRAP_ID
from kbroker.quorum.raft.raft_config import RaftConfig
from kbroker.quorum.raft.voters.voter_set import Voter, VoterSet
from kbroker.quorum.raft_transport import RaftTransport
from tests.sim.mirrored_storage import ROOT, MirroredStorage
from tests.sim.node_disks import DiskProcess, DiskThread, NodeDisks
from tests.sim.quorum_mirror import Batches, LogMirror
from tests.sim.quorum_replica import LISTENER, Origin, Proposal, SimReplica, Step, Watchers, short
from tests.sim.server import ALL_VERSIONS, ServerConnection, api_versions
from tests.sim.simulation import Simulation
from tests.sim.streams import SimStreams

SEGMENT_BYTES = (600, 5_000, 1 << 20)
WITHOUT_PRE_VOTE = {**ALL_VERSIONS, int(ApiKey.VOTE): (0, 1)}


class ObservedDriver(QuorumDriver):
    """Tells its node of each step."""

    node: DriverNode
    is_in_step = False

    def handle_event(self, event: Event) -> None:
        """See `QuorumDriver`."""
        self.in_step(partial(super().handle_event, event))

    def in_step(self, work: Callable[[], None]) -> None:
        """Do work as one step of the node; what happens within a step belongs to it."""
        if self.is_in_step or self.failure is not None or self._has_ended:
            work()
            return
        self.is_in_step = True
        self.node.begin_step()
        is_whole = False
        try:
            work()
            is_whole = self.failure is None
        finally:
            self.is_in_step = False
            self.node.end_step(is_whole=is_whole)

    def _carry_out(self, effect: Effect) -> None:
        self.node.carrying_out(effect)
        super()._carry_out(effect)
        self.node.carried_out(effect)


class DriverNode(SimReplica):
    """raft_config: creates the configuration of each new process. static_voters: in a quorum with
    kraft.version 0.
    """

    driver: ObservedDriver

    def __init__(
        self,
        node_id: int,
        directory_id: Uuid,
        simulation: Simulation,
        *,
        known: Batches,
        disks: NodeDisks,
        raft_config: Callable[[SimReplica], RaftConfig],
        static_voters: Sequence[Voter],
        can_clean: bool,
        watchers: Watchers,
        old_nodes: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(node_id, directory_id, simulation, watchers=watchers, old_nodes=old_nodes)
        self._known = known
        self._disks = disks
        self._raft_config = raft_config
        self._static_voters = static_voters
        self._can_clean = can_clean
        self._segment_bytes = simulation.random(f"segments {node_id}").choice(SEGMENT_BYTES)
        self._applied_epoch = 0
        self._is_writing_snapshot = False
        self._next_token = 0
        self._answers: dict[int, Deferred[RaftResponse]] = {}
        self._step: Step | None = None
        self._has_started = False
        self._fatal: BaseException | None = None
        self._disk_replaced()

    # -- the life of a node -----------------------------------------------------------------------

    def _disk_replaced(self) -> None:
        self.disk.make_root(ROOT)
        self.log = LogMirror(self._known)

    def format(self, voters: VoterSet, kraft_version: int) -> None:
        """See `SimReplica`."""
        if kraft_version:
            self._disks.present = self.disk
            folder = Path(ROOT) / "__cluster_metadata-0"
            make_directory(folder)
            path = folder / BOOTSTRAP_ID.file_name
            content = build_snapshot(
                QuorumConfiguration(kraft_version, tuple(voters)),
                (),
                epoch=0,
                last_contained_timestamp_ms=0,
                now_ms=0,
            )
            write_snapshot(path, path.with_suffix(".part"), content)
            sync_directory(ROOT)
            self._disks.present = None

    def start(self) -> None:
        """See `SimReplica`."""
        if self.process is not None:
            return
        self.start_count += 1
        process = DiskProcess(
            self.simulation.timers,
            self.random,
            self._disks,
            self.disk,
            partial(self._end, power_loss=True),
        )
        self.process = process
        self.high_watermark = self.applied_offset = self._applied_epoch = 0
        self.state = []
        self.leader_id = -1
        self.is_stopping = self._has_started = False
        network = self.simulation.network
        network.attach(self.node_id, process, accept=self._accept)
        process.run(partial(self._start, process))

    def _start(self, process: DiskProcess) -> None:
        config = self._raft_config(self)
        storage = MirroredStorage(
            self.key,
            self.disk,
            self.log,
            static_voters=self._static_voters,
            segment_bytes=self._segment_bytes,
            keeps_little=self._can_clean,
            may_vote=config.can_be_voter,
        )
        channel = Channel(
            SimStreams(self.simulation.network, self.node_id),
            process,
            self.random,
            client_id=f"node-{self.node_id}",
            connect_timeout_ms=1_000,
        )
        self.driver = driver = ObservedDriver(
            storage,
            config,
            timers=process,
            offload=DiskThread(process, self.disk),
            random=Random(self.random.random()),
            open_transport=lambda: RaftTransport(channel),
        )
        driver.node = self
        driver.feed.on_commit(self._committed)
        driver.feed.on_snapshot(self._loaded)
        driver.feed.on_leader(self._leader_changed)
        driver.on_fatal(self._failed)
        try:
            driver.start()
        except OSError as error:
            self.simulation.note(f"node {self.node_id} does not start: {error}")
            self._end(power_loss=False)
            return
        self.simulation.note(f"node {self.node_id} started, its log ends at {self.log.end_offset}")

    def _end(self, *, power_loss: bool) -> None:
        self.kill(power_loss=power_loss)

    def _process_ended(self) -> None:
        self._answers.clear()
        self._is_writing_snapshot = False
        self._step = None

    def _failed(self, error: BaseException) -> None:
        """The driver must stop."""
        if not isinstance(error, OSError):
            raise AssertionError(f"node {self.node_id} fails: {error!r}") from error
        self.simulation.note(f"node {self.node_id}: {error}")
        self._fatal = error
        if self._step is None:
            self._stop_after_failure()

    def _stop_after_failure(self) -> None:
        self._fatal = None
        self.kill(power_loss=False)

    # -- steps ------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """The driver is about to hand an event to the core."""
        self.core = self.driver._core
        if not self._has_started:
            self._has_started = True
            self._watchers.started(self)
        self._step = Step([], [], self.voters)

    def carrying_out(self, effect: Effect) -> None:
        """The driver is about to carry out an effect."""
        if self.simulation.is_traced:
            self.simulation.note(f"node {self.node_id}: {short(effect)}")
        if isinstance(effect, Truncate):
            self.log.cut(effect.end_offset)

    def carried_out(self, effect: Effect) -> None:
        """The driver has carried out an effect."""
        assert self._step is not None
        match effect:
            case AppendBatches():
                self.log.add(self._known.split(effect.batches))
            case AppendRecords() | AppendControl():
                batch = self.driver._executor._log.unwritten[-1]
                self.log.add(self._known.split(bytes(batch.data)))
        self._step.effects.append(effect)
        self.counts[type(effect).__name__] += 1

    def end_step(self, *, is_whole: bool) -> None:
        """The event and what it caused are over. is_whole: nothing failed."""
        step, self._step = self._step, None
        if step is None or self.process is None:
            return
        self.high_watermark = self.core.quorum.high_watermark
        self._check(self, step._replace(is_whole=is_whole))
        if self._fatal is not None:
            self._stop_after_failure()

    def step(self, event: Callable[[int], list[Effect]]) -> None:
        """See `SimReplica`."""
        if self.process is not None:
            driver = self.driver
            self.process.run(lambda: driver.handle_event(lambda core, now_ms: event(now_ms)))

    # -- the state machine ------------------------------------------------------------------------

    def _committed(self, base_offset: int, epoch: int, records: Sequence[bytes]) -> None:
        if records:
            assert base_offset == self.applied_offset, "a batch was left out"
        self.state += records
        self.applied_offset = self.driver.feed.applied_offset
        self._applied_epoch = epoch

    def _loaded(self, records: Iterable[bytes], end_offset: int, epoch: int) -> None:
        self.state = list(records)
        self.applied_offset = end_offset
        self._applied_epoch = epoch

    def _leader_changed(self, epoch: int, leader_id: int) -> None:
        self.leader_id = leader_id

    def _propose(self, values: list[bytes]) -> None:
        if self.process is not None:
            self.process.run(partial(self._append, values))

    def _append(self, values: list[bytes]) -> None:
        driver, base_offset = self.driver, self.driver.next_offset
        proposal = Proposal(base_offset, base_offset + len(values), driver.epoch, tuple(values))
        committed = driver.append(values)
        if committed.error is None:
            self.proposals.append(proposal)
        committed.on_done(lambda _: self._acknowledged(proposal), lambda _: self._lost(proposal))

    def _acknowledged(self, proposal: Proposal) -> None:
        assert self.proposals.popleft() == proposal
        self._watchers.acknowledge(self, proposal)

    def _lost(self, proposal: Proposal) -> None:
        self.lost_proposals += 1
        if proposal in self.proposals:
            self.proposals.remove(proposal)

    # -- requests ---------------------------------------------------------------------------------

    def _accept(self, stream: Stream) -> StreamReceiver:
        """Another node has connected."""

        def serve(connection: ServerConnection, header: RequestHeader, request: object) -> None:
            if header.api_key == ApiKey.API_VERSIONS:
                is_old = self.node_id in self.old_nodes
                versions = WITHOUT_PRE_VOTE if is_old else ALL_VERSIONS
                connection.answer(header, api_versions(versions))
                return
            self._request(
                Origin(
                    connection,
                    self.simulation.elapsed_ms,
                    cast(RaftRequest, request),
                    header.api_version,
                    partial(connection.answer, header),
                )
            )

        return ServerConnection(stream, serve, lost_callback=self.abandon)

    def _request(self, origin: Origin) -> None:
        request = origin.request
        match request:
            case FetchRequest():
                self.fetched_ms[request.replica_state.replica_id] = self.simulation.elapsed_ms
            case FetchSnapshotRequest():
                self.fetched_ms[request.replica_id] = self.simulation.elapsed_ms
        self._next_token += 1
        token = self._next_token
        self.unanswered[token] = origin

        def answered(response: RaftResponse) -> None:
            del self.unanswered[token]
            self._answers.pop(token, None)
            if self._step is not None:
                self._step.answered.append((request, response))
            origin.reply(response)

        def handle() -> None:
            answer = self.driver.handle(request, listener_name=LISTENER, version=origin.version)
            if not answer.done:
                self._answers[token] = answer
            answer.on_done(answered, lambda error: self.unanswered.pop(token, None))

        self.unanswered[token] = origin
        self.driver.in_step(handle)

    def client_request(self, request: RaftRequest, reply: Callable[[RaftResponse], None]) -> None:
        """See `SimReplica`."""
        if self.process is not None:
            version = valid_versions(request.API_KEY)[1]
            origin = Origin(None, self.simulation.elapsed_ms, request, version, reply)
            self.process.run(partial(self._request, origin))

    def abandon(self, source: object) -> None:
        """See `SimReplica`."""
        if self.process is None:
            return
        for token, origin in list(self.unanswered.items()):
            if origin.source is source and source is not None:
                del self.unanswered[token]
                answer = self._answers.pop(token, None)
                if answer is not None:
                    answer.cancel()

    # -- what an operator does --------------------------------------------------------------------

    def shut_down(self, timeout_ms: int) -> None:
        """See `SimReplica`. The driver has a timeout of its own."""
        if self.process is not None and not self.is_stopping:
            self.is_stopping = True
            self.process.run(self._stop)

    def _stop(self) -> None:
        self.driver.stop().on_done(lambda _: self._end(power_loss=False))

    def write_snapshot(self) -> None:
        """See `SimReplica`."""
        if self.process is not None and not self._is_writing_snapshot:
            self.process.run(self._write_snapshot)

    def _write_snapshot(self) -> None:
        driver = self.driver
        latest = driver._storage.snapshots[-1].end_offset if driver._storage.snapshots else 0
        if self.applied_offset <= latest or driver.failure is not None:
            return
        self._is_writing_snapshot = True

        def ended(_: object) -> None:
            self._is_writing_snapshot = False

        driver.write_snapshot(
            end_offset=self.applied_offset, epoch=self._applied_epoch, chunks=[list(self.state)]
        ).on_done(ended, ended)

    def clean(self) -> None:
        """Retention follows each snapshot by itself."""
