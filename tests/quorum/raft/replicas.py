"""A quorum of cores without network and disk: effects are executed at once, in one thread.

Time only moves with `advance`. Requests wait in `Replicas.network` until `deliver`; each message is
encoded and decoded in its newest version. Faults and random schedules are in tests/sim.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from kbroker.model import ZERO_UUID
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.codecs import codec
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.protocol.messages.quorum import FetchSnapshotResponse
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
    ReadRecords,
    ReadSnapshot,
    Respond,
    Send,
    ShutdownComplete,
    Truncate,
    WriteSnapshotPart,
)
from kbroker.quorum.raft.election_state import ElectionState
from kbroker.quorum.raft.node import RaftNode
from kbroker.quorum.raft.offsets import BOOTSTRAP_ID, SnapshotId
from kbroker.quorum.raft.raft_config import RaftConfig
from kbroker.quorum.raft.raft_log import RaftLog
from kbroker.quorum.raft.states.control_state import ControlState
from kbroker.quorum.raft.voters.voter_set import ReplicaKey, Voter, VoterEndpoint, VoterSet

WALL_MS = 1_800_000_000_000
LISTENER = "CONTROLLER"


def directory_of(node_id: int) -> bytes:
    return bytes([node_id]) * 16


def endpoint_of(node_id: int) -> VoterEndpoint:
    return VoterEndpoint(LISTENER, "host", 9000 + node_id)


def voters_of(*node_ids: int) -> VoterSet:
    return VoterSet(Voter(each, directory_of(each), (endpoint_of(each),)) for each in node_ids)


@dataclass
class Disk:
    """The data of a replica on disk, which outlives the replica."""

    batches: list[bytes] = field(default_factory=list)
    start_offset: int = 0
    election: ElectionState = field(default_factory=ElectionState)
    snapshots: dict[SnapshotId, bytes] = field(default_factory=dict)
    parts: dict[SnapshotId, bytearray] = field(default_factory=dict)


class Replica:
    """One core and its disk."""

    def __init__(self, world: Replicas, node_id: int, disk: Disk, *, can_be_voter: bool) -> None:
        self.world = world
        self.id = node_id
        self.disk = disk
        self.effects: list[Effect] = []
        self.leaders: list[tuple[int, int]] = []
        self.is_down = False
        self.has_shut_down = False
        self.flushing_to: int | None = None
        self.holds_flushes = False
        control = ControlState(world.static_voters)
        if world.bootstrap_voters is not None:
            configuration = QuorumConfiguration(1, tuple(world.bootstrap_voters))
            control.load_snapshot(BOOTSTRAP_ID, configuration)
        log = RaftLog(start_offset=disk.start_offset, end_offset=disk.start_offset)
        for batch in disk.batches:
            ((_, header),) = iter_batches(batch)
            log.append(
                base_offset=header.base_offset,
                end_offset=header.next_offset,
                epoch=header.partition_leader_epoch,
            )
            if header.is_control:
                control.add_batch(batch)
        for snapshot_id, data in disk.snapshots.items():
            log.add_snapshot(snapshot_id, len(data))
        self.node = RaftNode(
            RaftConfig(
                ReplicaKey(node_id, directory_of(node_id)),
                "cluster",
                endpoints=(endpoint_of(node_id), *world.more_endpoints),
                bootstrap_servers=world.bootstrap_servers,
                can_be_voter=can_be_voter,
                auto_join=node_id in world.joining,
            ),
            log=log,
            control=control,
            election=disk.election,
            random=Random(node_id),
        )

    @property
    def state(self) -> str:
        return type(self.node.quorum.state).__name__

    @property
    def records(self) -> list[bytes]:
        """The data records of the log."""
        found: list[bytes] = []
        for batch in self.disk.batches:
            ((_, header),) = iter_batches(batch)
            if not header.is_control:
                found += [record.value or b"" for record in iter_records(batch)]
        return found

    def propose(self, *records: bytes) -> None:
        self.do(self.node.propose(records, self.world.now_ms))

    def do(self, effects: list[Effect]) -> None:
        """Execute the effects of one event."""
        self.effects += effects
        for effect in effects:
            self._carry_out(effect)
        if self.flushing_to is not None and not self.holds_flushes:
            self.finish_flush()

    def finish_flush(self) -> None:
        assert self.flushing_to is not None
        end_offset, self.flushing_to = self.flushing_to, None
        self.do(self.node.flushed(end_offset, self.world.now_ms))

    def _carry_out(self, effect: Effect) -> None:
        disk = self.disk
        match effect:
            case PersistState():
                disk.election = effect.state
            case AppendRecords():
                self._append(
                    bytes(
                        build_batch(
                            [(WALL_MS, None, record, ()) for record in effect.records],
                            base_offset=effect.base_offset,
                            partition_leader_epoch=effect.epoch,
                        )
                    )
                )
            case AppendControl():
                self._append(
                    bytes(
                        control_batch(
                            effect.records,
                            base_offset=effect.base_offset,
                            epoch=effect.epoch,
                            timestamp_ms=WALL_MS,
                        )
                    )
                )
            case AppendBatches():
                for position, header in iter_batches(effect.batches):
                    self._append(effect.batches[position : position + header.size_bytes])
            case Truncate():
                disk.batches = [each for each in disk.batches if ends(each) <= effect.end_offset]
            case Flush():
                self.flushing_to = effect.end_offset
            case LeaderChanged():
                self.leaders.append((effect.epoch, effect.leader_id))
            case Send():
                self.world.network.append((self.id, effect))
            case Respond():
                self.world.answer(self, effect)
            case WriteSnapshotPart():
                part = disk.parts.setdefault(effect.snapshot_id, bytearray())
                del part[effect.position :]
                part += effect.data
            case FinishSnapshot():
                data = bytes(disk.parts.pop(effect.snapshot_id))
                disk.snapshots[effect.snapshot_id] = data
                self.world.finished.append((self.id, effect.snapshot_id, len(data)))
            case InstallSnapshot():
                disk.batches, disk.start_offset = [], effect.snapshot_id.end_offset
            case ShutdownComplete():
                self.has_shut_down = True
            case Commit():
                pass

    def _append(self, batch: bytes) -> None:
        self.disk.batches.append(batch)

    def read(self, read: ReadRecords | ReadSnapshot) -> bytes:
        if isinstance(read, ReadSnapshot):
            data = self.disk.snapshots[read.snapshot_id]
            return data[read.position : read.position + read.max_bytes]
        return b"".join(each for each in self.disk.batches if ends(each) > read.from_offset)


def ends(batch: bytes) -> int:
    ((_, header),) = iter_batches(batch)
    return header.next_offset


class Replicas:
    """Replicas by id, the messages between them, and the time."""

    def __init__(
        self,
        *voter_ids: int,
        observers: tuple[int, ...] = (),
        joining: tuple[int, ...] = (),
        is_static: bool = False,
    ) -> None:
        voters = voters_of(*voter_ids)
        self.bootstrap_voters = None if is_static else voters
        self.static_voters = VoterSet()
        if is_static:
            self.static_voters = VoterSet(Voter(v.id, ZERO_UUID, v.endpoints) for v in voters)
        self.bootstrap_servers = tuple(("host", 9000 + each) for each in voter_ids)
        self.now_ms = 1000
        self.network: deque[tuple[int, Send]] = deque()
        self.finished: deque[tuple[int, SnapshotId, int]] = deque()
        self.api_versions = ApiVersionsResponse(
            supported_features=[
                ApiVersionsResponse.SupportedFeatureKey(
                    name="kraft.version", min_version=0, max_version=1
                )
            ]
        )
        self.more_endpoints: tuple[VoterEndpoint, ...] = ()
        self.intercepted: dict[type, Callable[[Replica, Send], None]] = {}
        """Replaces the delivery of requests of a type."""
        self.cut: set[tuple[int, int]] = set()
        """(from, to) of requests that are lost."""
        self.responses: dict[int, FetchResponse | object] = {}
        self._tokens: dict[int, tuple[int, Send, int]] = {}
        self._next_token = 0
        self.replicas: dict[int, Replica] = {}
        self.joining = joining
        for node_id in (*voter_ids, *observers, *joining):
            self.replicas[node_id] = Replica(
                self, node_id, Disk(), can_be_voter=node_id not in observers
            )
        for replica in self.replicas.values():
            replica.do(replica.node.start(self.now_ms))

    def __getitem__(self, node_id: int) -> Replica:
        return self.replicas[node_id]

    def restart(self, node_id: int) -> None:
        former = self.replicas[node_id]
        self.network = deque(each for each in self.network if each[0] != node_id)
        self._tokens = {t: each for t, each in self._tokens.items() if each[0] != node_id}
        replica = self.replicas[node_id] = Replica(self, node_id, former.disk, can_be_voter=True)
        replica.do(replica.node.start(self.now_ms))

    # Messages.

    def deliver(self) -> None:
        """Deliver all requests, and those sent in response, until none is left."""
        while self.network or self.finished:
            if self.finished:
                node_id, snapshot_id, size_bytes = self.finished.popleft()
                replica = self[node_id]
                configuration = QuorumConfiguration(1, tuple(replica.node.quorum.voters))
                replica.do(
                    replica.node.snapshot_received(
                        snapshot_id, size_bytes, configuration, self.now_ms
                    )
                )
                continue
            sender_id, send = self.network.popleft()
            target_id = send.destination.port - 9000
            target = self.replicas[target_id]
            if target.is_down or (sender_id, target_id) in self.cut:
                sender = self[sender_id]
                if not sender.is_down:
                    error = ErrorCode.BROKER_NOT_AVAILABLE
                    sender.do(sender.node.request_failed(send.correlation_id, error, self.now_ms))
                continue
            intercept = self.intercepted.get(type(send.request))
            if intercept is not None:
                intercept(self[sender_id], send)
                continue
            self._request(target, sender_id, send)

    def _request(self, target: Replica, sender_id: int, send: Send) -> None:
        if isinstance(send.request, ApiVersionsRequest):
            sender, response = self[sender_id], self.api_versions
            sender.do(sender.node.response_received(send.correlation_id, response, self.now_ms))
            return
        version = newest(type(send.request))
        token = self._next_token
        self._next_token += 1
        self._tokens[token] = (sender_id, send, self.now_ms + send.timeout_ms)
        data = codec.encode(send.request, version)
        request, _ = codec.decode(type(send.request), data, version)
        target.do(
            target.node.handle_request(
                token,
                request,
                listener_name=LISTENER,
                version=version,
                now_ms=self.now_ms,
                wall_ms=WALL_MS + self.now_ms,
            )
        )

    def answer(self, replica: Replica, respond: Respond) -> None:
        response = respond.response
        if respond.read is not None:
            data = replica.read(respond.read)
            if isinstance(response, FetchResponse):
                response.responses[0].partitions[0].records = data
            elif isinstance(response, FetchSnapshotResponse):
                response.topics[0].partitions[0].unaligned_records = data
        found = self._tokens.pop(respond.token, None)
        if found is None:
            self.responses[respond.token] = response
            return
        sender_id, send, _ = found
        sender = self[sender_id]
        if sender.is_down or (replica.id, sender_id) in self.cut:
            self._tokens[respond.token] = found  # it times out
            return
        version = newest(type(response))
        response, _ = codec.decode(type(response), codec.encode(response, version), version)
        sender.do(sender.node.response_received(send.correlation_id, response, self.now_ms))

    # Time.

    def advance(self, duration_ms: int) -> None:
        """Advance time from deadline to deadline."""
        end_ms = self.now_ms + duration_ms
        self.deliver()
        while True:
            due = [
                (deadline_ms, replica.id)
                for replica in self.replicas.values()
                if not replica.is_down
                and (deadline_ms := replica.node.next_deadline_ms()) is not None
            ]
            due += [(deadline_ms, 0) for _, _, deadline_ms in self._tokens.values()]
            if not due or min(due)[0] > end_ms:
                break
            deadline_ms, node_id = min(due)
            self.now_ms = max(self.now_ms, deadline_ms)
            if node_id:
                replica = self[node_id]
                replica.do(replica.node.poll(self.now_ms))
            else:
                self._time_out()
            self.deliver()
        self.now_ms = end_ms

    def _time_out(self) -> None:
        for token, (sender_id, send, deadline_ms) in list(self._tokens.items()):
            if deadline_ms <= self.now_ms:
                del self._tokens[token]
                sender, error = self[sender_id], ErrorCode.REQUEST_TIMED_OUT
                if not sender.is_down:
                    sender.do(sender.node.request_failed(send.correlation_id, error, self.now_ms))

    def leader(self) -> Replica:
        """The leader of the highest epoch."""
        leaders = [each for each in self.replicas.values() if each.node.is_leader]
        return max(leaders, key=lambda each: each.node.quorum.epoch)

    def elect(self) -> Replica:
        """Advance time until there is a leader with a high watermark that all replicas have."""
        for _ in range(200):
            self.advance(100)
            if any(each.node.is_leader and not each.is_down for each in self.replicas.values()):
                break
        self.advance(1000)
        return self.leader()


def newest(message: type[Message]) -> int:
    """The newest version of a message class."""
    return message.VERSIONS.high
