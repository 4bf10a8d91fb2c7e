"""Each effect in order, and the events of those that take time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from kbroker.log.storage import disk_jobs, names
from kbroker.log.storage.files import LogDirectoryError
from kbroker.model import InvariantError
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.protocol.messages.quorum import FetchSnapshotResponse, VoteRequest, VoteResponse
from kbroker.quorum.disk import snapshot_retention
from kbroker.quorum.disk.storage import QuorumStorage, metadata_log_config
from kbroker.quorum.effect_executor import EffectExecutor, Event
from kbroker.quorum.parked_requests import ParkedRequests
from kbroker.quorum.raft.effects import (
    AppendRecords,
    Commit,
    Destination,
    Effect,
    FinishSnapshot,
    Flush,
    InstallSnapshot,
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
from kbroker.quorum.raft.election_state import ElectionState
from kbroker.quorum.raft.node import RaftNode
from kbroker.quorum.raft.offsets import SnapshotId
from kbroker.quorum.raft.raft_config import RaftConfig
from kbroker.quorum.raft.raft_log import RaftLog
from kbroker.quorum.raft.requests.messages import METADATA_PARTITION, METADATA_TOPIC_ID
from kbroker.quorum.raft.states.control_state import ControlState
from kbroker.quorum.raft.voters.voter_set import ReplicaKey, VoterSet
from kbroker.quorum.state_machine_feed import StateMachineFeed
from kbroker.settings.broker import BrokerConfig
from tests.quorum.test_snapshot_effects import CONTENT, ID
from tests.sim.offload import HeldOffload
from tests.sim.timers import SimTimers

EVENTS = (
    "flushed",
    "response_received",
    "request_failed",
    "snapshot_received",
    "snapshot_refused",
    "snapshot_written",
    "log_cleaned",
)


class Core(RaftNode):
    """A core whose events a test replaces."""

    def __init__(self) -> None:
        super().__init__(
            RaftConfig(ReplicaKey(1, b"d" * 16), "cluster"),
            log=RaftLog(),
            control=ControlState(VoterSet()),
            election=ElectionState(),
            random=Random(1),
        )


class World:
    """An executor, and its calls to the shell. sent: requests that wait for their answer."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.timers = SimTimers()
        self.open_again()
        self.offload = HeldOffload()
        self.feed = StateMachineFeed()
        self.parked = ParkedRequests(lambda token: None)
        self.events: list[Event] = []
        self.failures: list[BaseException] = []
        self.shutdowns = 0
        self.sent: list[tuple[Send, Deferred[RaftResponse]]] = []
        self.is_closed = False
        self.executor = EffectExecutor(
            self.storage,
            self.feed,
            self,
            timers=self.timers,
            offload=self.offload,
            parked=self.parked,
            open_transport=lambda: self,
        )

    # effect_executor.Shell

    def handle_event(self, event: Event) -> None:
        self.events.append(event)

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)

    def shutdown_complete(self) -> None:
        self.shutdowns += 1

    # effect_executor.Transport

    def send(self, effect: Send) -> Deferred[RaftResponse]:
        answer: Deferred[RaftResponse] = Deferred()
        self.sent.append((effect, answer))
        return answer

    def close(self) -> None:
        self.is_closed = True

    # what a test does

    def open_again(self) -> None:
        """The storage of a new process."""
        config = metadata_log_config(BrokerConfig.from_properties({"node.id": "1"}))
        self.storage = QuorumStorage(
            self.root, node_id=1, directory_id=b"d" * 16, log_config=config
        )
        self.storage.open(self.timers.now_ms())

    def run_all(self) -> None:
        """The work of the thread until there is none."""
        while self.offload.run_one():
            pass

    def carry_out(self, *effects: Effect) -> None:
        for effect in effects:
            self.executor.carry_out(effect)

    def told(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[object, ...]]]:
        """The events so far, by the core's method and its arguments without the time."""
        found: list[tuple[str, tuple[object, ...]]] = []
        events, self.events = self.events, []
        for name in EVENTS:

            def note(core: RaftNode, *arguments: object, method: str = name) -> list[Effect]:
                found.append((method, arguments[:-1]))
                return []

            monkeypatch.setattr(RaftNode, name, note)
        core = Core()
        for event in events:
            event(core, 7)
        return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.storage.close()


def records(base_offset: int, *values: bytes) -> AppendRecords:
    return AppendRecords(1, base_offset, values)


def test_a_flush_begins_after_the_present_callbacks(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle: list[int] = []
    world.carry_out(records(0, b"a"), Flush(1))
    world.executor.once_idle(lambda: idle.append(1))
    world.carry_out(records(1, b"b"))
    assert not world.offload.held
    world.timers.advance(0)
    assert len(world.offload.held) == 1 and not idle
    world.offload.run()
    assert world.told(monkeypatch) == [("flushed", (2,))] and idle == [1]
    world.executor.once_idle(lambda: idle.append(2))
    assert idle == [1, 2]


def test_a_failed_flush_stops_the_node(world: World) -> None:
    world.carry_out(records(0, b"a"), Flush(1))
    world.timers.advance(0)
    failure = LogDirectoryError("x", "fsync", OSError(5, "input/output error"))
    world.offload.run_one(failure)
    assert world.failures == [failure] and not world.events


def test_state_appends_truncation_and_commits(world: World) -> None:
    committed: list[bytes] = []
    world.feed.on_commit(lambda base_offset, epoch, values: committed.extend(values))
    state = ElectionState(epoch=4, leader_id=2)
    world.carry_out(PersistState(state, 1), records(0, b"a"), records(1, b"b"), Truncate(1))
    world.carry_out(records(1, b"c"), Commit(2), ShutdownComplete())
    assert world.storage.state == state and committed == [b"a", b"c"] and world.shutdowns == 1


def test_answers_of_other_nodes_become_events(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = VoteRequest(cluster_id="c", voter_id=1, topics=[])
    for number in (1, 2):
        world.carry_out(Send(number, Destination(2, "h", 1), request, 100))
    response = VoteResponse()
    world.sent[0][1].resolve(response)
    world.sent[1][1].fail(KafkaError(ErrorCode.REQUEST_TIMED_OUT))
    assert len(world.events) == 1  # a failure may be known within the call
    world.timers.advance(0)
    assert world.told(monkeypatch) == [
        ("response_received", (1, response)),
        ("request_failed", (2, ErrorCode.REQUEST_TIMED_OUT)),
    ]
    world.executor.close()
    assert world.is_closed


def test_a_node_of_another_cluster_is_named_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    strange = VoteResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
    for number, response in enumerate((strange, strange, VoteResponse(), strange), 1):
        world.carry_out(Send(number, Destination(-2, "h", 9093), VoteRequest(), 100))
        world.sent[-1][1].resolve(response)
        is_strange = response is strange
        assert list(world.executor.strangers.values()) == (["h:9093"] if is_strange else [])
    assert caplog.text.count("the controller at h:9093 answered INCONSISTENT_CLUSTER_ID") == 2


def fetch_response() -> FetchResponse:
    partition = FetchResponse.PartitionData(partition_index=0, records=b"")
    topic = FetchResponse.FetchableTopicResponse(
        topic=METADATA_PARTITION.topic, topic_id=METADATA_TOPIC_ID, partitions=[partition]
    )
    return FetchResponse(responses=[topic])


def snapshot_response() -> FetchSnapshotResponse:
    partition = FetchSnapshotResponse.PartitionSnapshot(index=0, unaligned_records=b"")
    topic = FetchSnapshotResponse.TopicSnapshot(
        name=METADATA_PARTITION.topic, partitions=[partition]
    )
    return FetchSnapshotResponse(topics=[topic])


def test_responses_get_what_is_read_for_them(world: World) -> None:
    (first, fetch), (second, part), (third, missing) = (world.parked.park() for _ in range(3))
    world.carry_out(records(0, b"a"))
    world.storage.write_snapshot(
        SnapshotId(1, 1),
        [[b"s"]],
        configuration=world.storage.control.configuration_at(0),
        timestamp_ms=0,
        now_ms=0,
    )
    world.carry_out(
        Respond(first, fetch_response(), ReadRecords(0, 1000)),
        Respond(second, snapshot_response(), ReadSnapshot(SnapshotId(1, 1), 3, 10)),
        Respond(third, snapshot_response(), ReadSnapshot(ID, 0, 10)),
    )
    assert isinstance(fetch.value, FetchResponse)
    data = fetch.value.responses[0].partitions[0].records
    assert isinstance(data, bytes)
    assert [each.records for each in world.storage.batches_of(data)] == [[b"a"]]
    assert isinstance(part.value, FetchSnapshotResponse)
    path = world.storage.directory / SnapshotId(1, 1).file_name
    assert part.value.topics[0].partitions[0].unaligned_records == path.read_bytes()[3:13]
    assert isinstance(missing.value, FetchSnapshotResponse)
    error = missing.value.topics[0].partitions[0].error_code
    assert error == ErrorCode.SNAPSHOT_NOT_FOUND


def test_a_fetched_snapshot_is_installed_and_loaded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[tuple[list[bytes], int, int]] = []
    world.feed.on_snapshot(
        lambda values, end_offset, epoch: loaded.append((list(values), end_offset, epoch))
    )
    monkeypatch.setattr(world, "handle_event", lambda event: world.carry_out(InstallSnapshot(ID)))
    world.carry_out(records(0, b"a"), WriteSnapshotPart(ID, 0, CONTENT), FinishSnapshot(ID))
    world.offload.run()
    assert loaded == [([b"a" * 50, b"b"], *ID)]
    assert world.storage.raft_log().end == ID
    with pytest.raises(InvariantError):
        world.carry_out(InstallSnapshot(ID))


def test_a_damaged_snapshot_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.carry_out(WriteSnapshotPart(ID, 0, CONTENT[:-1]), FinishSnapshot(ID))
    world.offload.run()
    assert world.told(monkeypatch) == [("snapshot_refused", (ID,))]


def test_an_own_snapshot_is_told_to_the_core(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.carry_out(records(0, b"a"), records(1, b"b"), Truncate(1))
    written = world.executor.write_snapshot(SnapshotId(1, 1), [[b"s"]])
    world.run_all()
    assert written.value is None
    size_bytes = world.storage.snapshot_size(SnapshotId(1, 1))
    assert world.told(monkeypatch) == [
        ("snapshot_written", (SnapshotId(1, 1), size_bytes)),
        ("log_cleaned", (0, [SnapshotId(1, 1)])),
    ]


def test_a_snapshot_is_written_between_two_flushes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is never idle if something is appended during every flush. Followers may have
    committed records that are not synced here: their snapshot waits for a later flush.
    """
    idle: list[int] = []
    world.carry_out(records(0, b"a"), Flush(1))
    world.timers.advance(0)
    world.carry_out(records(1, b"b"))
    world.executor.once_idle(lambda: idle.append(1))
    late = world.executor.write_snapshot(NEW, [[b"s"]])
    early = world.executor.write_snapshot(OLD, [[b"s"]])
    for written, snapshots in ((early, [OLD]), (late, [OLD, NEW])):
        with monkeypatch.context() as patch:
            patch.setattr(world, "handle_event", lambda event: world.carry_out(Flush(2)))
            world.offload.run_one()
        world.run_all()
        assert written.value is None and world.storage.snapshots == snapshots and not idle
        world.timers.advance(0)
    world.run_all()
    assert idle == [1]


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_snapshot_that_is_not_written(world: World, *, is_closed: bool) -> None:
    world.carry_out(records(0, b"a"), Truncate(1))
    written = world.executor.write_snapshot(SnapshotId(0, 1), [[b"s"]])
    if is_closed:
        world.executor.close()
    world.offload.run_one(OSError(28, "no space left"))
    expected = ErrorCode.BROKER_NOT_AVAILABLE if is_closed else ErrorCode.KAFKA_STORAGE_ERROR
    assert written.error is not None and written.error.code is expected and not world.failures


def test_a_snapshot_before_the_logs_begin_is_deleted(world: World) -> None:
    world.carry_out(records(0, b"a"), Truncate(1))
    written = world.executor.write_snapshot(SnapshotId(1, 1), [[b"s"]])
    world.storage.install(ID, now_ms=0)
    world.run_all()
    assert written.value is None and not world.events
    assert not (world.storage.directory / SnapshotId(1, 1).file_name).exists()


OLD, NEW = SnapshotId(1, 1), SnapshotId(2, 1)


class Retention(NamedTuple):
    """Old files of a world, and the write of a snapshot that makes them superfluous."""

    snapshot: Path
    segment: Path
    written: Deferred[None]

    @property
    def left(self) -> tuple[bool, bool]:
        return self.snapshot.exists(), self.segment.exists()

    @property
    def renamed(self) -> Path:
        return self.segment.with_name(self.segment.name + names.DELETED)


@pytest.fixture
def retention(world: World) -> Retention:
    """The thread has a second snapshot to write. The first and a segment before it are old."""
    storage = world.storage
    storage.retention_bytes = 0
    world.carry_out(records(0, b"x"), Truncate(1))
    world.executor.write_snapshot(OLD, [[b"s"]])
    world.run_all()
    world.carry_out(records(1, b"x"), Flush(2))
    world.timers.advance(0)
    world.run_all()
    storage.log.roll(world.timers.now_ms())
    assert storage.log.segments.base_offsets == [0, 2] and storage.snapshots == [OLD]
    written = world.executor.write_snapshot(NEW, [[b"s"]])
    world.events.clear()
    folder = storage.directory
    return Retention(folder / OLD.file_name, folder / names.offset_name(0, names.LOG), written)


def test_the_thread_deletes_and_renames_what_retention_removes(
    world: World, retention: Retention, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = world.storage.log
    world.offload.run()
    assert retention.left == (True, True), "only the new snapshot is written"
    assert world.storage.snapshots == [OLD, NEW]
    world.offload.run()
    assert retention.left == (False, True)
    assert log.segments.base_offsets == [2] and log.jobs.is_pending
    assert world.told(monkeypatch) == [
        ("snapshot_written", (NEW, world.storage.snapshot_size(NEW))),
        ("log_cleaned", (2, [NEW])),
    ]
    assert not retention.written.done
    world.offload.run()
    assert retention.left == (False, False) and retention.renamed.exists()
    assert log.jobs.is_idle and log.segments.deleted_files and not world.offload.held
    assert retention.written.value is None


def test_the_thread_deletes_files_that_are_due(world: World, retention: Retention) -> None:
    log = world.storage.log
    log.config = replace(log.config, file_delete_delay_ms=0)
    for _ in range(3):
        world.offload.run()
    assert retention.renamed.exists() and not retention.written.done
    world.offload.run()
    assert not retention.renamed.exists() and retention.written.value is None


@pytest.mark.parametrize("steps", range(4))
def test_a_stop_ends_retention_and_a_start_finds_the_log(
    world: World, retention: Retention, steps: int
) -> None:
    for _ in range(steps):
        world.offload.run()
    world.executor.close()
    held, done = len(world.offload.held), world.offload.done
    assert held == (steps < 3)
    world.run_all()
    assert world.offload.done == done + held, "nothing was added"
    if held:
        assert retention.written.error is not None
        assert retention.written.error.code is ErrorCode.BROKER_NOT_AVAILABLE
    world.storage.log.release()  # as a kill does
    world.open_again()
    assert world.storage.snapshots[-1] == NEW
    assert world.storage.raft_log().end == NEW


def test_a_flush_meanwhile_renames_first(world: World, retention: Retention) -> None:
    """A segment that was never synced must not come back when the folder is synced."""
    world.offload.run()
    world.offload.run()
    renames = world.offload.held.pop()
    world.carry_out(records(2, b"y"), Flush(3))
    world.timers.advance(0)
    world.offload.run()
    assert retention.left == (False, False)
    world.offload.held.append(renames)
    world.run_all()
    assert retention.written.value is None and world.storage.log.jobs.is_idle


@pytest.mark.parametrize("steps", [1, 2])
def test_a_snapshot_that_is_installed_meanwhile_stays(
    world: World, retention: Retention, steps: int
) -> None:
    for _ in range(steps):
        world.offload.run()
    world.storage.install(ID, now_ms=0)
    world.run_all()
    assert world.storage.snapshots == [ID] and world.storage.log.log_start_offset == ID.end_offset
    assert retention.written.value is None


@pytest.mark.parametrize("is_rename", [False, True])
def test_a_fault_during_retention(
    world: World, retention: Retention, is_rename: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = LogDirectoryError("x", "rename", OSError(5, "Input/output error"))

    def fail(*paths: object) -> None:
        raise failure

    module = disk_jobs if is_rename else snapshot_retention
    monkeypatch.setattr(module, "rename" if is_rename else "unlink", fail)
    world.run_all()
    error = retention.written.error
    assert error is not None and error.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert world.storage.log.failure is (failure if is_rename else None)
    assert world.storage.snapshots == ([NEW] if is_rename else [OLD, NEW])
