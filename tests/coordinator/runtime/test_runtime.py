"""Loading, unloading, failing writes: what clients see when a coordinator comes and goes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from kbroker.coordinator.group.classic.state import GroupState
from kbroker.coordinator.group.service import GROUP_TOPIC
from kbroker.coordinator.group.shard import GroupShard
from kbroker.coordinator.runtime.coordinator_log import AppendOutcome
from kbroker.coordinator.runtime.deadlines import Deadline
from kbroker.coordinator.runtime.host import HostStatus
from kbroker.coordinator.runtime.result import Results
from kbroker.coordinator.runtime.runtime import CoordinatorRuntime
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.batch_builder import build_batch
from kbroker.protocol.batch_header import iter_batches
from kbroker.protocol.compression import Compression
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kbroker.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
)
from kbroker.server.slicing.sliced import at_once
from kbroker.settings.group_coordinator import GroupCoordinatorConfig
from tests.coordinator.group.members import ClientMember, settle
from tests.coordinator.group.offset_transactions import end_transaction
from tests.coordinator.group.offsets.test_offsets import commit, fetch, fetch_all
from tests.coordinator.simulation import Context, FakeTopics, MemoryLog, Outcome, World
from tests.sim.timers import SimTimer, SimTimers

E = ErrorCode
PARTITION = TopicPartition(GROUP_TOPIC, 0)
LOG = Path(__file__).parents[2] / "data" / "coordinator" / "consumer_offsets.log"


def kafka_log() -> MemoryLog:
    log = MemoryLog()
    data = LOG.read_bytes()
    log.batches[PARTITION] = [
        data[position : position + header.size_bytes] for position, header in iter_batches(data)
    ]
    return log


def test_kafkas_log_is_loaded_as_kafka_understands_it() -> None:
    timers = SimTimers()
    runtime = CoordinatorRuntime(
        GROUP_TOPIC,
        log=kafka_log(),
        timers=timers,
        make_shard=lambda: GroupShard(
            GroupCoordinatorConfig(), Random(1), timers.now_ms, FakeTopics
        ),
        load_step_bytes=200,
    )
    runtime.on_leadership(0, 4)
    with pytest.raises(KafkaError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        runtime.host(0)
    timers.advance(0)
    shard = runtime.host(0).shard
    offsets = {
        (group, topic, partition): (value.offset, value.metadata)
        for group in shard.offsets.groups()
        for topic, partitions in shard.offsets.of_group(group).items()
        for partition, value in partitions.items()
    }
    assert offsets == {
        ("group-txn", "codec-none", 0): (7, "in txn"),  # 9 was aborted
        ("group-classic", "codec-none", 0): (62, ""),
        ("group-classic", "parts", 0): (2, "some metadata"),
        ("group-classic", "parts", 1): (0, ""),
        ("group-classic", "parts", 2): (5, ""),
        ("group-classic-dynamic", "codec-gzip", 0): (31, ""),
        ("group-consumer", "codec-lz4", 0): (31, ""),
        ("group-consumer", "codec-zstd", 0): (31, ""),
        ("group-simple", "segments", 0): (150, ""),
        ("group-rdk", "codec-snappy", 0): (17, ""),
    }
    states = {
        group.group_id: (group.state, group.generation_id)
        for group in shard.classic.groups.values()
    }
    assert states["group-classic"] == (GroupState.STABLE, 1)
    assert states["group-classic-dynamic"] == (GroupState.EMPTY, 2)
    assert states["group-rdk"] == (GroupState.EMPTY, 2)
    assert "group-deleted" not in states
    consumer_group = shard.consumer.groups["group-consumer"]
    assert (consumer_group.state(), consumer_group.epoch) == ("Empty", 3)
    assert (consumer_group.target_epoch, consumer_group.regexes) == (2, {})
    assert "group-consumer" not in states  # its offsets are the consumer group's
    (member,) = shard.classic.groups["group-classic"].members.values()
    assert (member.instance_id, member.client_host) == ("static-1", "/127.0.0.1")


def test_a_turn_of_the_load_replays_a_bounded_number_of_unpacked_bytes() -> None:
    """Batches of a few hundred bytes may unpack to far more than a turn reads."""
    size, count, step = 100_000, 8, 1 << 18
    log = MemoryLog()
    log.batches[PARTITION] = [
        bytes(
            build_batch(
                [(0, b"unknown key", bytes(size), [])],
                base_offset=offset,
                compression=Compression.ZSTD,
            )
        )
        for offset in range(count)
    ]
    assert sum(map(len, log.batches[PARTITION])) < step, "all are read at once"
    timers = SimTimers()
    decoded: list[int] = []

    class Shard(GroupShard):
        def decode(self, key: bytes | None, value: bytes | None) -> None:
            decoded.append(len(value or b""))

    runtime = CoordinatorRuntime(
        GROUP_TOPIC,
        log=log,
        timers=timers,
        make_shard=lambda: Shard(GroupCoordinatorConfig(), Random(1), timers.now_ms, FakeTopics),
        load_step_bytes=step,
    )
    turns: list[int] = []
    later = timers.call_later

    def call_later(delay_ms: float, callback: Callable[[], None]) -> SimTimer:
        def turn() -> None:
            before = len(decoded)
            callback()
            turns.append(sum(decoded[before:]))

        return later(delay_ms, turn)

    timers.call_later = call_later  # type: ignore[method-assign]  # counted
    runtime.on_leadership(0, 4)
    timers.advance(0)
    assert runtime.host(0).status is HostStatus.ACTIVE
    assert sum(turns) == size * count
    assert max(turns) < step + size


def answers_without_a_shard(world: World) -> set[ErrorCode]:
    coordinator = world.coordinator
    member = ClientMember(world, "a")
    member.join()
    sync = coordinator.sync_group(
        Context(5), SyncGroupRequest(group_id="g", protocol_type="consumer", protocol_name="range")
    )
    assert isinstance(sync.value, SyncGroupResponse)
    leave = coordinator.leave_group(Context(5), LeaveGroupRequest(group_id="g"))
    describe, _ = coordinator.describe_group("g", 6)
    assert isinstance(leave.value, LeaveGroupResponse)
    assert sync.value.error_code != ErrorCode.NONE
    return {
        member.errors[0],
        ErrorCode(leave.value.error_code),
        ErrorCode(describe.error_code),
        *commit(world, {0: 1}).values(),
    }


def test_not_coordinator_without_leadership() -> None:
    world = World()
    world.resign()
    assert answers_without_a_shard(world) == {ErrorCode.NOT_COORDINATOR}
    heartbeat = world.coordinator.heartbeat(Context(4), HeartbeatRequest(group_id="g"))
    assert heartbeat.error_code == ErrorCode.NOT_COORDINATOR
    assert at_once(world.coordinator.list_groups()).error_code == 0


def test_load_in_progress() -> None:
    world = World()
    commit(world, {0: 1})
    world.resign()
    world.coordinator.on_leadership(0, 9)
    assert answers_without_a_shard(world) == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    heartbeat = world.coordinator.heartbeat(Context(4), HeartbeatRequest(group_id="g"))
    assert heartbeat.error_code == ErrorCode.NONE
    listed = at_once(world.coordinator.list_groups())
    assert listed.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.timers.advance(0)
    assert fetch(world, 0) == {0: (1, "")}


def test_a_small_load_buffer_loads_in_smaller_turns() -> None:
    sizes = []
    world = World(config=GroupCoordinatorConfig(offsets_load_buffer_size=1_000))
    member = ClientMember(world, "a")
    member.join()
    settle(world, [member])
    world.resign()
    read = world.log.read

    def watched(topic_partition: TopicPartition, offset: int, max_bytes: int) -> bytes:
        sizes.append(max_bytes)
        return read(topic_partition, offset, max_bytes)

    world.log.read = watched  # type: ignore[method-assign]  # counted
    world.lead()
    assert set(sizes) == {1_000}
    assert member.heartbeat() is ErrorCode.NONE


def test_reasons_are_logged_in_the_members_words(caplog: pytest.LogCaptureFixture) -> None:
    """One line each, whatever they are made of (KIP-800)."""
    caplog.set_level(logging.INFO, "kbroker.coordinator.group.service")
    world = World()
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    join = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[protocol],
        reason="rolled\n" + "x" * 500,
    )
    world.coordinator.join_group(Context(9, client_id="a"), join)
    identity = LeaveGroupRequest.MemberIdentity(member_id="a-1", reason="closed")
    leave = LeaveGroupRequest(group_id="g", members=[identity])
    world.coordinator.leave_group(Context(5), leave)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"group g: a: 'rolled\\n{'x' * 248}'", "group g: a-1: 'closed'"]


def test_the_reasons_of_many_members_are_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    """One LeaveGroup names as many members as fit, none of which need exist."""
    caplog.set_level(logging.INFO, "kbroker.coordinator.group.service")
    world = World()
    leave = LeaveGroupRequest(
        group_id="g\n" + "x" * 1000,
        members=[
            LeaveGroupRequest.MemberIdentity(member_id=f"{number}\n" + "y" * 1000, reason="closed")
            for number in range(1000)
        ],
    )
    world.coordinator.leave_group(Context(5), leave)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 10
    assert all("\n" not in line and len(line) < 700 for line in lines)


def commit_later(world: World, offset: int, group: str = "g") -> Deferred[OffsetCommitResponse]:
    """A commit that the log delays."""
    world.log.delayed = True
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(committed_offset=offset)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="events", partitions=[partition])
    request = OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=[topic])
    pending = world.answer(world.coordinator.offsets.commit(Context(9), request))
    assert isinstance(pending, Deferred)
    return pending


def test_a_list_of_groups_shows_what_is_committed() -> None:
    world = World()
    commit_later(world, 1)
    listed = world.answer(world.coordinator.list_groups())
    assert isinstance(listed, Deferred)
    assert not listed.done
    world.log.commit()
    assert [group.group_id for group in listed.value.groups] == ["g"]


@pytest.mark.parametrize("how", ["lost", "late"])
def test_a_list_of_groups_whose_records_may_be_lost(how: str) -> None:
    """What another leader lists is left out; what nobody can be sure of is an error."""
    world = World(partition_count=2)
    commit(world, {0: 1}, group="h")
    assert world.coordinator.partition_for("g") != world.coordinator.partition_for("h")
    commit_later(world, 1)
    listed = world.answer(world.coordinator.list_groups())
    assert isinstance(listed, Deferred)
    if how == "lost":
        world.coordinator.on_leadership(world.coordinator.partition_for("g"), None)
        assert [group.group_id for group in listed.value.groups] == ["h"]
    else:
        world.timers.advance(5_000)
        assert listed.value == ListGroupsResponse(error_code=E.COORDINATOR_NOT_AVAILABLE)


def test_a_fetch_of_many_groups_waits_once_for_those_that_changed() -> None:
    world = World(partition_count=2)
    commit(world, {0: 1}, group="h")
    commit_later(world, 2)
    groups = [
        OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name, topics=None)
        for name in ("g", "h", "none", "g2")
    ]
    steps = world.coordinator.offsets.fetch(
        OffsetFetchRequest(groups=groups), 8, lambda count: True
    )
    fetched = world.answer(steps)
    assert isinstance(fetched, Deferred)
    world.timers.advance(5_000)
    errors = {group.group_id: E(group.error_code) for group in fetched.value.groups}
    assert list(errors) == ["g", "h", "none", "g2"]
    assert (errors["g"], errors["h"]) == (E.COORDINATOR_NOT_AVAILABLE, E.NONE)
    assert fetched.value.groups[0].topics == []
    world.log.commit()
    assert fetch(world, 0) == {0: (2, "")}


def test_a_load_that_is_overtaken_by_newer_epochs() -> None:
    """Its steps come to nothing, and older epochs no longer count."""
    world = World()
    commit(world, {0: 1})
    runtime = world.coordinator.runtime
    world.resign()
    runtime.on_leadership(0, 5)
    runtime.on_leadership(0, 7)  # the same leader, while it loads
    (host,) = runtime.hosts()
    assert (host.epoch, host.status) == (7, HostStatus.LOADING)
    runtime.on_leadership(0, None)
    runtime.on_leadership(0, 9)
    (successor,) = runtime.hosts()
    world.timers.advance(0)
    assert (host.status, host.record_count) == (HostStatus.CLOSED, 0)
    assert (successor.epoch, successor.status) == (9, HostStatus.ACTIVE)
    runtime.on_leadership(0, 8)
    assert (successor.epoch, successor.status) == (9, HostStatus.ACTIVE)
    assert fetch(world, 0) == {0: (1, "")}


def test_every_write_names_the_epoch_of_its_shard() -> None:
    world = World()
    epochs: list[object] = []
    append = world.log.append

    def watched(
        topic_partition: TopicPartition, batch: bytearray, **options: int
    ) -> Deferred[AppendOutcome]:
        epochs.append(options["leader_epoch"])
        return append(topic_partition, batch)

    world.log.append = watched  # type: ignore[method-assign]  # notes their epochs
    commit(world, {0: 1})
    world.coordinator.on_leadership(0, 6)
    commit(world, {0: 2})
    end_transaction(world, commit=True, producer_id=9)
    assert epochs == [1, 6, 6]


def test_the_tail_of_a_load_is_shown_when_it_is_committed() -> None:
    world = World()
    commit(world, {0: 1})
    lost = commit_later(world, 2)
    world.resign()
    assert lost.value.topics[0].partitions[0].error_code == E.NOT_COORDINATOR
    world.lead()
    wanted = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)
    steps = world.coordinator.offsets.fetch(
        OffsetFetchRequest(groups=[wanted]), 8, lambda count: True
    )
    reading = world.answer(steps)
    assert isinstance(reading, Deferred)
    assert not reading.done
    world.log.commit()
    assert reading.value.groups[0].topics[0].partitions[0].committed_offset == 2


def test_what_an_unloaded_shard_held_is_given_back() -> None:
    """Memory of members, timers, and the requests that wait."""
    world = World()
    members = [ClientMember(world, "a"), ClientMember(world, "b")]
    for member in members:
        member.join()
    settle(world, members)
    commit_later(world, 1, "simple")
    memory = world.coordinator._member_memory
    assert memory.used_bytes > 0
    world.resign()
    assert memory.used_bytes == 0
    assert [timer for _, _, timer, _ in world.timers._heap if not timer.cancelled] == []


def test_unload_answers_everybody_who_waits() -> None:
    world = World()
    waiting = ClientMember(world, "a")
    waiting.join()
    world.log.delayed = True
    request = OffsetCommitRequest(
        group_id="simple",
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name="events",
                partitions=[OffsetCommitRequest.OffsetCommitRequestPartition()],
            )
        ],
    )
    pending = world.answer(world.coordinator.offsets.commit(Context(9), request))
    assert isinstance(pending, Deferred)
    world.resign()
    assert waiting.errors[-1] is ErrorCode.NOT_COORDINATOR
    assert isinstance(pending.value, OffsetCommitResponse)
    partition = pending.value.topics[0].partitions[0]
    assert partition.error_code == ErrorCode.NOT_COORDINATOR
    world.log.commit()  # too late: nobody is answered twice
    world.timers.advance(60_000)


def test_close_answers_and_stops_timers() -> None:
    world = World()
    member = ClientMember(world, "a")
    member.join()
    world.coordinator.close()
    assert member.errors[-1] is ErrorCode.NOT_COORDINATOR
    world.timers.advance(600_000)


def test_reload_keeps_members_and_generation() -> None:
    world = World()
    members = [ClientMember(world, "a"), ClientMember(world, "b")]
    for member in members:
        member.join()
    settle(world, members)
    commit(world, {0: 4}, generation=members[0].generation, member_id=members[0].member_id)
    world.resign()
    world.timers.advance(5_000)
    world.lead()
    assert [member.heartbeat() for member in members] == [ErrorCode.NONE] * 2
    assert fetch_all(world) == {("events", 0): 4}
    world.timers.advance(11_000)
    assert members[0].heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID  # silent for a session


def test_newer_epoch_of_the_same_leader_changes_nothing() -> None:
    world = World()
    member = ClientMember(world, "a")
    member.join()
    world.lead()
    world.coordinator.on_leadership(0, 1)
    assert member.joining
    settle(world, [member])


@pytest.mark.parametrize(
    ("log_error", "commit_says", "sync_says"),
    [
        ("NOT_ENOUGH_REPLICAS", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_NOT_AVAILABLE"),
        ("REQUEST_TIMED_OUT", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_NOT_AVAILABLE"),
        ("NOT_LEADER_OR_FOLLOWER", "NOT_COORDINATOR", "NOT_COORDINATOR"),
        ("KAFKA_STORAGE_ERROR", "NOT_COORDINATOR", "NOT_COORDINATOR"),
        ("MESSAGE_TOO_LARGE", "INVALID_COMMIT_OFFSET_SIZE", "UNKNOWN_SERVER_ERROR"),
    ],
)
def test_refused_writes(log_error: str, commit_says: str, sync_says: str) -> None:
    world = World()
    world.log.errors = [ErrorCode[log_error]]
    assert commit(world, {0: 1}) == {0: ErrorCode[commit_says]}
    world.timers.advance(0)
    member = ClientMember(world, "a")
    member.join()
    world.log.errors = [ErrorCode[log_error]]
    world.timers.advance(3_000)
    assert member.errors[-1] in (ErrorCode[sync_says], ErrorCode.NONE)
    assert ErrorCode[sync_says] in member.errors
    member.errors.append(ErrorCode.NONE)
    settle(world, [member])
    assert commit(world, {0: 1}, group="h") == {0: ErrorCode.NONE}


def test_refused_creation_of_a_group_answers_its_first_member() -> None:
    world = World()
    member = ClientMember(world, "a", version=3)
    world.log.errors = [ErrorCode.NOT_ENOUGH_REPLICAS]
    member.join()
    assert member.errors == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    member.join()
    settle(world, [member])


def test_too_long_group_id_is_an_error_not_a_crash() -> None:
    world = World()
    assert commit(world, {0: 1}, group="g" * 40_000) == {0: ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert commit(world, {0: 1}) == {0: ErrorCode.NONE}


def test_lost_append_makes_the_shard_replay_its_log() -> None:
    """The batch was written, but is gone when the answer comes: the state must not keep it."""
    world = World()
    commit(world, {0: 1})
    world.log.delayed = True
    request = OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name="events",
                partitions=[OffsetCommitRequest.OffsetCommitRequestPartition(committed_offset=2)],
            )
        ],
    )
    pending = world.answer(world.coordinator.offsets.commit(Context(9), request))
    assert isinstance(pending, Deferred)
    world.log.batches[PARTITION].pop()
    world.log.commit(ErrorCode.KAFKA_STORAGE_ERROR)
    assert isinstance(pending.value, OffsetCommitResponse)
    world.timers.advance(0)
    world.timers.advance(0)
    assert fetch(world, 0) == {0: (1, "")}


def test_log_that_cannot_be_read() -> None:
    world = World()
    world.resign()

    def broken(topic_partition: TopicPartition, offset: int, max_bytes: int) -> bytes:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)

    reading, world.log.read = world.log.read, broken  # type: ignore[method-assign]  # a fault
    world.lead()
    assert [host.status for host in world.coordinator.runtime.hosts()] == [HostStatus.FAILED]
    assert commit(world, {0: 1}) == {0: ErrorCode.NOT_COORDINATOR}
    world.log.read = reading  # type: ignore[method-assign]  # the fault is over
    world.lead()
    assert commit(world, {0: 1}) == {0: ErrorCode.NONE}


def test_corrupt_record_is_skipped_with_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    from kbroker.protocol.batch_builder import build_batch

    world = World()
    commit(world, {0: 1})
    bad = build_batch([(1, b"\0\2", b"x", ())], base_offset=1)
    world.log.batches[PARTITION].append(bytes(bad))
    world.resign()
    world.lead()
    assert fetch(world, 0) == {0: (1, "")}
    assert "offset 1 skipped" in caplog.text


def test_answer_that_sends_the_next_request_at_once() -> None:
    """A connection may hand in its next request from within the answer to the last."""
    world = World()
    members = [ClientMember(world, f"m{index}") for index in range(3)]
    seen: list[ErrorCode] = []

    class Eager(ClientMember):
        def _synced(self, response: SyncGroupResponse) -> None:
            super()._synced(response)
            seen.append(self.leave())

    eager = Eager(world, "eager")
    for member in (*members, eager):
        member.join()
    world.timers.advance(6_000)
    assert seen == [ErrorCode.NONE]
    settle(world, members)


def test_list_and_describe() -> None:
    world = World()
    member = ClientMember(world, "a", instance_id="i")
    member.join()
    settle(world, [member])
    commit(world, {0: 1}, group="simple")
    table: list[tuple[list[str], list[str], list[str]]] = [
        ([], [], ["g", "simple"]),
        (["stable"], [], ["g"]),
        (["Empty", "Dead"], ["classic"], ["simple"]),
        ([], ["consumer"], []),
    ]
    for states, types, expected in table:
        filters = [{name.lower() for name in names} for names in (states, types)]
        groups = at_once(world.coordinator.list_groups(*filters)).groups
        assert sorted(group.group_id for group in groups) == expected
    (listed,) = [
        group for group in at_once(world.coordinator.list_groups()).groups if group.group_id == "g"
    ]
    assert (listed.protocol_type, listed.group_state, listed.group_type) == (
        "consumer",
        "Stable",
        "classic",
    )
    described, members = world.coordinator.describe_group("g", 6)
    assert (described.group_state, described.protocol_data) == ("Stable", "range")
    (shown,) = members
    assert (shown.group_instance_id, shown.client_id, shown.client_host) == (
        "i",
        "a",
        "/10.0.0.1",
    )
    assert shown.member_assignment
    assert shown.member_metadata
    missing, _ = world.coordinator.describe_group("nothing", 6)
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    old, _ = world.coordinator.describe_group("nothing", 5)
    assert (old.error_code, old.group_state) == (0, "Dead")


def test_news_are_generations_and_groups_that_come_and_go(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="kbroker.coordinator.runtime")
    world = World()
    member = ClientMember(world, "a")
    member.join()
    settle(world, [member])
    commit(world, {0: 1}, group="simple")
    member_id = member.member_id
    member.leave()
    world.timers.advance(600_000)
    assert [record.getMessage() for record in caplog.records] == [
        "__consumer_offsets-0: group g created",
        "__consumer_offsets-0: group g generation 1: 1 members, protocol range, "
        f"leader {member_id}",
        "__consumer_offsets-0: group g generation 2: empty",
        "__consumer_offsets-0: group g deleted",
    ]


def test_write_that_failed_half_way_is_looked_up_in_the_log() -> None:
    """The log says storage error, yet the batch is there: what is replayed counts."""
    world = World()
    append = world.log.append

    def torn(
        topic_partition: TopicPartition, batch: bytearray, **_: int
    ) -> Deferred[AppendOutcome]:
        append(topic_partition, batch)
        return Deferred.of(Outcome(ErrorCode.KAFKA_STORAGE_ERROR))

    world.log.append = torn  # type: ignore[method-assign]  # a fault
    assert commit(world, {0: 5}) == {0: ErrorCode.NOT_COORDINATOR}
    assert world.shard().offsets.groups() == []
    world.log.append = append  # type: ignore[method-assign]  # the fault is over
    world.timers.advance(0)
    assert fetch(world, 0) == {0: (5, "")}


def test_a_deadline_that_fails_keeps_no_later_one_from_being_met(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They belong to several groups of the shard."""
    world = World()
    shard = world.coordinator.runtime.host(0).shard
    met: list[int] = []

    def fail(now_ms: int) -> Results:
        raise IndexError("list index out of range")

    def meet(now_ms: int) -> Results:
        met.append(now_ms)
        return []

    now_ms = world.timers.monotonic_ms()
    for delay_ms, action in ((1000, fail), (1000, meet), (2000, meet)):
        shard._deadlines.set(Deadline(action), now_ms + delay_ms)
    host = world.coordinator.runtime.host(0)
    world.coordinator.runtime.carry_out(host, [])
    world.timers.advance(3000)
    assert met == [now_ms + 1000, now_ms + 2000]
    assert "a deadline failed" in caplog.text
