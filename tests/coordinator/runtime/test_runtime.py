"""Leadership and failing writes: what clients see when a coordinator starts and stops."""

from __future__ import annotations

import logging

import pytest

from kbroker.coordinator.group.service import GROUP_TOPIC
from kbroker.coordinator.runtime.coordinator_log import AppendOutcome
from kbroker.coordinator.runtime.deadlines import Deadline
from kbroker.coordinator.runtime.result import Results
from kbroker.model import TopicPartition
from kbroker.ports import Deferred, at_once
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kbroker.protocol.messages.coordinators.offsets import OffsetCommitRequest, OffsetCommitResponse
from tests.coordinator.group.commits import commit, commit_later, fetch, fetch_all
from tests.coordinator.group.members import ClientMember, settle
from tests.coordinator.group.offset_transactions import end_transaction
from tests.coordinator.simulation import Context, Outcome, World

E = ErrorCode
PARTITION = TopicPartition(GROUP_TOPIC, 0)


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
    world.log.commit()  # too late: no request is answered twice
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
    """The batch was written, but is lost when the response arrives: the state must not keep it."""
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
    """The log returns a storage error although it has the batch: the replayed state is used."""
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
    assert "unexpected error in a deadline" in caplog.text
