"""A simulated node of the quorum: the core of `kbroker.quorum.raft`, its effects carried out on a
`SimDisk` and a `SimNetwork`.

Each event runs in a step of the node's process: the core first, then its effects in order, each of
which may be the last one that a crash lets happen. A disk that refuses an operation ends the node.
What a node was told and did is handed to the checks after each step (`quorum_checks`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple, assert_never

from kbroker.model import Uuid
from kbroker.protocol.apis import valid_versions
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.quorum import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    VoteRequest,
)
from kbroker.quorum.core_start import start_core
from kbroker.quorum.disk.snapshots import build_snapshot
from kbroker.quorum.raft.control import QuorumConfiguration, control_batch
from kbroker.quorum.raft.effects import (
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
    RaftRequest,
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
from kbroker.quorum.raft.offsets import BOOTSTRAP_ID, SnapshotId
from kbroker.quorum.raft.voters.voter_set import VoterSet
from tests.sim.disk import Crashed
from tests.sim.process import SimProcess
from tests.sim.quorum_log import QuorumLog
from tests.sim.quorum_mirror import Batches, LogBatch
from tests.sim.quorum_replica import LISTENER, Origin, Proposal, SimReplica, Step, Watchers, short
from tests.sim.server import ALL_VERSIONS, api_versions
from tests.sim.simulation import Simulation
from tests.sim.timers import SimTimer


class SentRequest(NamedTuple):
    """A message: a request. sender: of which process, so that a restart gets no old answers."""

    sender: SimProcess
    correlation_id: int
    request: RaftRequest


class Answer(NamedTuple):
    """A message: the answer to a request; an ErrorCode if there is none."""

    sender: SimProcess
    correlation_id: int
    response: RaftResponse | ErrorCode


@cache
def latest_version(api_key: int) -> int:
    """The version in which nodes speak."""
    return valid_versions(api_key)[1]


CoreFactory = Callable[["QuorumNode"], RaftNode]
"""Makes the core of a node that starts, from what its disk kept."""


class QuorumNode(SimReplica):
    """Requests and answers are values, each on its own way: the harshest network."""

    log: QuorumLog

    def __init__(
        self,
        node_id: int,
        directory_id: Uuid,
        simulation: Simulation,
        *,
        known: Batches,
        make_core: CoreFactory,
        watchers: Watchers,
        old_nodes: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(node_id, directory_id, simulation, watchers=watchers, old_nodes=old_nodes)
        self.log = QuorumLog(self.disk, known)
        self._make_core = make_core
        self._answers: list[tuple[RaftRequest, RaftResponse]] = []
        self._known = known
        self._sent: dict[int, SimTimer | None] = {}
        self._next_token = 0
        self._abandoned: set[int] = set()
        self._deadline: tuple[int, SimTimer] | None = None

    # -- the life of a node -----------------------------------------------------------------------

    def format(self, voters: VoterSet, kraft_version: int) -> None:
        """See `SimReplica`."""
        self.log.open()
        if kraft_version:
            configuration = QuorumConfiguration(kraft_version, tuple(voters))
            self.log.write_snapshot(BOOTSTRAP_ID, self._snapshot_data(configuration, [], 0))

    def _disk_replaced(self) -> None:
        self.log = QuorumLog(self.disk, self._known)
        self.log.open()

    def start(self) -> None:
        """See `SimReplica`."""
        if self.process is not None:
            return
        process = SimProcess(self.simulation.timers, self.random, lambda: None)
        self.start_count += 1
        try:
            self.log.open()
        except (OSError, Crashed):
            self.disk.restart(power_loss=False)
            return
        self.simulation.note(f"node {self.node_id} starts with a log to {self.log.end_offset}")
        self.process = process
        self.high_watermark = self.applied_offset = 0
        self.state = []
        snapshot = max(self.log.snapshots, default=None)
        if snapshot is not None:
            self._load(snapshot)
        self.leader_id = -1
        self.is_stopping = False
        self.core = self._make_core(self)
        self._watchers.started(self)
        network = self.simulation.network
        network.attach(self.node_id, process, receive=self._receive)
        process.run(partial(self.step, partial(start_core, self.core)))

    def _process_ended(self) -> None:
        self._sent.clear()
        self._abandoned.clear()
        self._deadline = None

    # -- steps ------------------------------------------------------------------------------------

    def step(self, event: Callable[[int], list[Effect]]) -> None:
        """See `SimReplica`."""
        process = self.process
        if process is None:
            return
        done: list[Effect] = []
        self._answers = []
        step = Step(done, self._answers, self.voters)
        try:
            for effect in event(process.monotonic_ms()):
                if self.simulation.is_traced:
                    self.simulation.note(f"node {self.node_id}: {short(effect)}")
                self._carry_out(effect)
                self.counts[type(effect).__name__] += 1
                done.append(effect)
        except OSError as error:
            self.simulation.note(f"node {self.node_id}: {error}")
            self._check(self, step._replace(is_whole=False))
            self.kill(power_loss=False)
            return
        except Crashed:
            self._check(self, step._replace(is_whole=False))
            self.kill(power_loss=True)
            return
        self._set_deadline(process)
        self._check(self, step)

    def _set_deadline(self, process: SimProcess) -> None:
        due_ms = self.core.next_deadline_ms()
        if due_ms is None:
            return
        now_ms = process.monotonic_ms()
        if self._deadline is not None:
            set_ms, timer = self._deadline
            if set_ms <= due_ms:
                return  # it fires early, and sets itself again
            timer.cancel()
        self._deadline = due_ms, process.call_later(due_ms - now_ms, self._deadline_passed)

    def _deadline_passed(self) -> None:
        self._deadline = None
        self.step(self.core.poll)

    # -- effects ----------------------------------------------------------------------------------

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(effect)
            case Respond():
                self._respond(effect)
            case PersistState():
                self.log.write_state(effect.state)
            case AppendRecords():
                self._append_records(effect)
            case AppendControl():
                data = control_batch(
                    effect.records,
                    base_offset=effect.base_offset,
                    epoch=effect.epoch,
                    timestamp_ms=self._now_ms(),
                )
                self.log.append(bytes(data), effect.base_offset)
            case AppendBatches():
                self.log.append(effect.batches, effect.base_offset)
                assert self.log.end_offset == effect.end_offset
            case Truncate():
                self.log.truncate(effect.end_offset)
            case Flush():
                self._flush(effect)
            case Commit():
                self._commit(effect.high_watermark)
            case LeaderChanged():
                self.leader_id = effect.leader_id
                if effect.leader_id != self.node_id:  # their outcome is unknown
                    self.lost_proposals += len(self.proposals)
                    self.proposals.clear()
            case WriteSnapshotPart():
                self.log.write_part(effect.snapshot_id, effect.position, effect.data)
            case FinishSnapshot():
                self._later(partial(self._finish_snapshot, effect.snapshot_id))
            case InstallSnapshot():
                self.log.install(effect.snapshot_id)
                self._load(effect.snapshot_id)
            case ShutdownComplete():
                self._later(self._stop)
            case _:
                assert_never(effect)

    def _now_ms(self) -> int:
        assert self.process is not None
        return self.process.now_ms()

    def _later(self, work: Callable[[], None]) -> None:
        """Something takes as long as an fsync."""
        assert self.process is not None
        self.process.call_later(self.disk.latency_ms(), work)

    def _append_records(self, effect: AppendRecords) -> None:
        now_ms = self._now_ms()
        data = build_batch(
            [(now_ms, None, record, ()) for record in effect.records],
            base_offset=effect.base_offset,
            partition_leader_epoch=effect.epoch,
        )
        self.log.append(bytes(data), effect.base_offset)
        end_offset = effect.base_offset + len(effect.records)
        self.proposals.append(
            Proposal(effect.base_offset, end_offset, effect.epoch, tuple(effect.records))
        )

    def _flush(self, effect: Flush) -> None:
        end = self.log.begin_flush()
        assert effect.end_offset == self.log.end_offset

        def flushed(now_ms: int) -> list[Effect]:
            end()
            return self.core.flushed(effect.end_offset, now_ms)

        self._later(lambda: self.step(flushed))

    def _commit(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark
        for batch in self.log.batches_between(self.applied_offset, high_watermark):
            self.state += batch.values
            self.applied_offset = batch.end_offset
        while self.proposals and self.proposals[0].end_offset <= high_watermark:
            self._watchers.acknowledge(self, self.proposals.popleft())

    def _stop(self) -> None:
        self.kill(power_loss=False)

    # -- messages ---------------------------------------------------------------------------------

    def _send(self, effect: Send) -> None:
        process = self.process
        assert process is not None
        correlation_id = effect.correlation_id
        assert correlation_id not in self._sent, "a correlation id is used twice"
        if self._refuses_pre_votes(effect):
            self._sent[correlation_id] = None
            refusal = partial(self._answered, correlation_id, ErrorCode.UNSUPPORTED_VERSION)
            process.call_later(1, refusal)
            return
        self._sent[correlation_id] = process.call_later(
            effect.timeout_ms,
            partial(self._answered, correlation_id, ErrorCode.REQUEST_TIMED_OUT),
        )
        self.simulation.network.send(
            self.node_id,
            effect.destination.port,
            SentRequest(process, correlation_id, effect.request),
        )

    def _refuses_pre_votes(self, effect: Send) -> bool:
        """Whether the destination serves only versions of Vote that know no pre-vote (KIP-996)."""
        request = effect.request
        return (
            isinstance(request, VoteRequest)
            and request.topics[0].partitions[0].pre_vote
            and effect.destination.port in self.old_nodes
        )

    def _receive(self, source: int, message: object) -> None:
        """A message, not of a connection, has arrived."""
        process = self.process
        if process is None:
            return
        if isinstance(message, Answer):
            if message.sender is process:
                self._answered(message.correlation_id, message.response)
            return
        assert isinstance(message, SentRequest)

        def reply(response: RaftResponse) -> None:
            answer = Answer(message.sender, message.correlation_id, response)
            self.simulation.network.send(self.node_id, source, answer)

        version = latest_version(message.request.API_KEY)
        self.request(Origin(source, self.simulation.elapsed_ms, message.request, version, reply))

    def _answered(self, correlation_id: int, response: RaftResponse | ErrorCode) -> None:
        if correlation_id not in self._sent:
            return  # late, or twice
        timer = self._sent.pop(correlation_id)
        if timer is not None:
            timer.cancel()
        if isinstance(response, ErrorCode):
            self.step(partial(self._failed, correlation_id, response))
        else:
            self.step(partial(self._response, correlation_id, response))

    def _failed(self, correlation_id: int, error: ErrorCode, now_ms: int) -> list[Effect]:
        return self.core.request_failed(correlation_id, error, now_ms)

    def _response(self, correlation_id: int, response: RaftResponse, now_ms: int) -> list[Effect]:
        return self.core.response_received(correlation_id, response, now_ms)

    def request(self, origin: Origin) -> None:
        """A request has arrived, of a node or of a client."""
        request = origin.request
        self._next_token += 1
        token = self._next_token
        if isinstance(request, ApiVersionsRequest):
            origin.reply(api_versions(ALL_VERSIONS))
            return
        self.unanswered[token] = origin
        match request:
            case FetchRequest():
                self.fetched_ms[request.replica_state.replica_id] = self.simulation.elapsed_ms
            case FetchSnapshotRequest():
                self.fetched_ms[request.replica_id] = self.simulation.elapsed_ms

        def handle(now_ms: int) -> list[Effect]:
            return self.core.handle_request(
                token,
                request,
                listener_name=LISTENER,
                version=origin.version,
                now_ms=now_ms,
                wall_ms=self._now_ms(),
            )

        self.step(handle)

    def _respond(self, effect: Respond) -> None:
        if effect.token in self._abandoned:
            self._abandoned.discard(effect.token)
            return
        origin = self.unanswered.pop(effect.token, None)
        assert origin is not None, f"request {effect.token} is answered twice"
        response, read = effect.response, effect.read
        if isinstance(read, ReadRecords):
            assert isinstance(response, FetchResponse)
            data = self.log.read(read.from_offset, read.max_bytes)
            response.responses[0].partitions[0].records = data
        elif isinstance(read, ReadSnapshot):
            assert isinstance(response, FetchSnapshotResponse)
            stored = self.log.snapshots[read.snapshot_id].data
            part = stored[read.position : read.position + read.max_bytes]
            response.topics[0].partitions[0].unaligned_records = part
        self._answers.append((origin.request, response))
        origin.reply(response)

    def abandon(self, source: object) -> None:
        """See `SimReplica`."""
        if self.process is None:
            return
        for token, origin in list(self.unanswered.items()):
            if origin.source == source:
                del self.unanswered[token]
                self._abandoned.add(token)
                self.core.request_abandoned(token)

    # -- snapshots --------------------------------------------------------------------------------

    def _snapshot_data(
        self, configuration: QuorumConfiguration, values: list[bytes], epoch: int
    ) -> bytes:
        batches = build_snapshot(
            configuration, [values], epoch=epoch, last_contained_timestamp_ms=0, now_ms=0
        )
        return b"".join(batches)

    def _load(self, snapshot_id: SnapshotId) -> None:
        self.state = list(self.log.snapshots[snapshot_id].content.records)
        self.applied_offset = snapshot_id.end_offset

    def write_snapshot(self) -> None:
        """See `SimReplica`."""
        last: LogBatch | None = None
        for batch in self.log.batches:
            if batch.end_offset > self.applied_offset:
                break
            last = batch
        if last is None or last.end_offset != self.applied_offset:
            return
        snapshot_id = SnapshotId(last.end_offset, last.epoch)
        if snapshot_id in self.log.snapshots:
            return
        configuration = self.log.configuration_at(last.end_offset)
        data = self._snapshot_data(configuration, self.state, last.epoch)

        def write(now_ms: int) -> list[Effect]:
            self.log.write_snapshot(snapshot_id, data)
            return self.core.snapshot_written(snapshot_id, len(data), now_ms)

        self.step(write)

    def clean(self) -> None:
        """See `SimReplica`."""
        newest = max(self.log.snapshots, default=BOOTSTRAP_ID)
        if newest.end_offset <= self.log.start_offset:
            return

        def clean(now_ms: int) -> list[Effect]:
            self.log.clean(newest)
            snapshots = sorted(self.log.snapshots)
            return self.core.log_cleaned(newest.end_offset, snapshots, now_ms)

        self.step(clean)

    def _finish_snapshot(self, snapshot_id: SnapshotId) -> None:
        def finish(now_ms: int) -> list[Effect]:
            stored = self.log.finish_part(snapshot_id)
            return self.core.snapshot_received(
                snapshot_id, len(stored.data), stored.content.configuration, now_ms
            )

        self.step(finish)

    # -- what clients and the world do ------------------------------------------------------------

    def _propose(self, values: list[bytes]) -> None:
        self.step(lambda now_ms: self.core.propose(values, now_ms))

    def client_request(self, request: RaftRequest, reply: Callable[[RaftResponse], None]) -> None:
        """See `SimReplica`."""
        if self.process is not None:
            version = latest_version(request.API_KEY)
            self.request(Origin(None, self.simulation.elapsed_ms, request, version, reply))

    def shut_down(self, timeout_ms: int) -> None:
        """See `SimReplica`; the process ends by ShutdownComplete."""
        if not self.is_stopping:
            self.is_stopping = True
            self.step(lambda now_ms: self.core.shutdown(timeout_ms, now_ms))
