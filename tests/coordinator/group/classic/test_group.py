"""Rebalances with members that behave, and with members that do not."""

from __future__ import annotations

import pytest

from kbroker.coordinator.group.classic.state import TRANSITIONS, GroupState
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
)
from tests.coordinator.group.classic.rebalances import QUICK, all_partitions, state
from tests.coordinator.group.members import PARTITION_COUNT, ClientMember, settle
from tests.coordinator.simulation import Context, World


def test_every_state_has_its_transitions() -> None:
    assert set(TRANSITIONS) == set(GroupState)
    assert all(GroupState.DEAD in to for at, to in TRANSITIONS.items() if at is not GroupState.DEAD)


def test_first_member_waits_for_the_initial_delay() -> None:
    world = World()
    member = ClientMember(world, "a")
    member.join()
    assert member.errors == [ErrorCode.MEMBER_ID_REQUIRED]
    assert member.member_id.startswith("a-")
    world.timers.advance(2_999)
    assert member.joining
    world.timers.advance(1)
    assert not member.joining
    assert member.partitions == list(range(PARTITION_COUNT))
    assert state(world) is GroupState.STABLE
    assert member.generation == 1


def test_initial_delay_is_extended_while_members_come() -> None:
    world = World()
    first, second = ClientMember(world, "a"), ClientMember(world, "b")
    first.join()
    world.timers.advance(2_000)
    second.join()
    world.timers.advance(1_000)
    assert first.joining
    world.timers.advance(3_000)
    assert all_partitions([first, second]) == list(range(PARTITION_COUNT))
    assert first.generations == second.generations == [1]


def test_initial_delay_ends_with_the_rebalance_timeout() -> None:
    world = World()
    members = [ClientMember(world, f"m{i}", rebalance_timeout_ms=7_000) for i in range(9)]
    for member in members:
        member.join()
        world.timers.advance(1_000)
    assert members[0].generations == [1]


@pytest.mark.parametrize("version", range(10))
def test_join_without_member_id_in_every_version(version: int) -> None:
    world = World(config=QUICK)
    member = ClientMember(world, "a", version=version)
    member.join()
    expected = [ErrorCode.MEMBER_ID_REQUIRED] if version >= 4 else []
    assert member.errors == [*expected, ErrorCode.NONE, ErrorCode.NONE]


def test_ten_members_join_at_once_a_hundred_times() -> None:
    for seed in range(100):
        world = World(seed=seed)
        members = [ClientMember(world, f"m{i}") for i in range(10)]
        for member in members:
            member.join()
        settle(world, members)
        assert all_partitions(members) == list(range(PARTITION_COUNT))
        for member in members:
            assert ErrorCode.UNKNOWN_MEMBER_ID not in member.errors


def test_late_member_starts_a_rebalance_and_everybody_moves_on() -> None:
    world = World()
    members = [ClientMember(world, "a")]
    members[0].join()
    settle(world, members)
    members.append(ClientMember(world, "b"))
    members[1].join()
    assert state(world) is GroupState.PREPARING_REBALANCE
    assert members[0].heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    settle(world, members)
    assert members[0].generation == members[1].generation == 2
    assert all_partitions(members) == list(range(PARTITION_COUNT))


def test_member_that_does_not_rejoin_is_dropped_at_the_rebalance_timeout() -> None:
    world = World()
    members = [ClientMember(world, "a"), ClientMember(world, "b", session_timeout_ms=60_000)]
    for member in members:
        member.join()
    settle(world, members)
    members[1].crash()
    late = ClientMember(world, "c")
    late.join()
    members[0].poll()
    world.timers.advance(29_999)
    assert late.joining
    world.timers.advance(1)
    assert not late.joining
    assert all_partitions([members[0], late]) == list(range(PARTITION_COUNT))


def test_session_timeout_removes_a_silent_member() -> None:
    world = World()
    members = [ClientMember(world, "a"), ClientMember(world, "b")]
    for member in members:
        member.join()
    settle(world, members)
    members[1].crash()
    settle(world, members)
    world.timers.advance(9_000)
    members[0].poll()
    world.timers.advance(2_000)
    members[0].poll()
    settle(world, [members[0]])
    assert members[0].partitions == list(range(PARTITION_COUNT))


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000], ids=["forward", "back"])
def test_wall_clock_jump_expires_no_member(jump_ms: int) -> None:
    world = World()
    members = [ClientMember(world, "a"), ClientMember(world, "b")]
    settle(world, members)
    world.timers.wall_jump_ms = jump_ms
    for _ in range(3):
        world.timers.advance(9_000)
        assert [member.heartbeat() for member in members] == [ErrorCode.NONE] * 2
    world.timers.advance(11_000)
    assert state(world) is GroupState.EMPTY, "silence still counts"
    written = world.shard().classic.metadata["g"].current_state_timestamp
    assert abs(written - world.timers.now_ms()) < 60_000, "what is stored has the wall clock's time"


def test_member_that_joined_but_never_syncs_is_dropped() -> None:
    world = World()
    members = [ClientMember(world, "a"), ClientMember(world, "b", session_timeout_ms=100_000)]
    members[1].auto_sync = False
    for member in members:
        member.join()
    world.timers.advance(6_000)
    assert state(world) is GroupState.STABLE
    for _ in range(35):
        world.timers.advance(1_000)
        members[0].poll()
    settle(world, [members[0]])
    assert list(world.shard().classic.groups["g"].members) == [members[0].member_id]


def test_leader_that_never_syncs_is_replaced() -> None:
    world = World()
    members = [ClientMember(world, "a"), ClientMember(world, "b")]
    members[0].auto_sync = False
    for member in members:
        member.join()
    world.timers.advance(6_000)
    assert members[0].leader == members[0].member_id
    assert members[1].partitions is None
    members[0].crash()
    settle(world, [members[1]])
    assert members[1].leader == members[1].member_id
    assert members[1].partitions == list(range(PARTITION_COUNT))


def test_member_that_vanishes_with_its_promised_id_does_not_hold_up_the_group() -> None:
    world = World()
    first = ClientMember(world, "a")
    first.join()
    settle(world, [first])
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=6_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    answer = world.coordinator.join_group(Context(9), request).value
    assert getattr(answer, "error_code", None) == ErrorCode.MEMBER_ID_REQUIRED
    late = ClientMember(world, "c")
    late.join()
    first.poll()
    world.timers.advance(5_999)
    assert late.joining
    world.timers.advance(1)
    settle(world, [first, late])


def test_new_member_that_waits_too_long_is_dropped() -> None:
    world = World()
    first = ClientMember(world, "a", session_timeout_ms=1_000_000, rebalance_timeout_ms=1_000_000)
    first.join()
    settle(world, [first])
    late = ClientMember(world, "b")
    late.join()
    world.timers.advance(300_000)
    assert late.errors[-1] is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("told", [ErrorCode.NONE, ErrorCode.NOT_COORDINATOR])
def test_the_last_member_has_left_when_that_is_committed(told: ErrorCode) -> None:
    """The record of the empty group may be lost with the leadership."""
    world = World()
    member = ClientMember(world, "a")
    member.join()
    settle(world, [member])
    world.log.delayed = True
    identity = LeaveGroupRequest.MemberIdentity(member_id=member.member_id)
    request = LeaveGroupRequest(group_id="g", members=[identity])
    left = world.coordinator.leave_group(Context(5), request)
    assert not left.done
    if told is ErrorCode.NONE:
        world.log.commit()
    else:
        world.resign()
    assert isinstance(left.value, LeaveGroupResponse)
    assert left.value.error_code == told


def test_leave_hands_over_at_once() -> None:
    world = World()
    members = [ClientMember(world, "a"), ClientMember(world, "b")]
    for member in members:
        member.join()
    settle(world, members)
    assert members[1].leave() is ErrorCode.NONE
    members[0].poll()
    assert members[0].partitions == list(range(PARTITION_COUNT))
    assert members[0].leave() is ErrorCode.NONE
    assert state(world) is GroupState.EMPTY
    assert world.shard().classic.metadata["g"].generation == 3


def test_second_join_in_flight_answers_the_first() -> None:
    world = World()
    member = ClientMember(world, "a")
    member.join()
    member.join()
    assert member.errors == [ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.REBALANCE_IN_PROGRESS]
    settle(world, [member])


def test_lost_join_answer_is_given_again() -> None:
    world = World()
    members = [ClientMember(world, "a"), ClientMember(world, "b")]
    members[1].auto_sync = False
    for member in members:
        member.join()
    world.timers.advance(6_000)
    generation = members[1].generation
    members[1].auto_sync = True
    members[1].join()
    assert members[1].generation == generation
    assert members[1].partitions
    assert state(world) is GroupState.STABLE


def test_follower_that_rejoins_unchanged_keeps_the_generation_the_leader_does_not() -> None:
    world = World()
    members = [ClientMember(world, "a"), ClientMember(world, "b")]
    for member in members:
        member.join()
    settle(world, members)
    members[1].join()
    assert (members[1].generation, state(world)) == (1, GroupState.STABLE)
    members[0].join()
    assert state(world) is GroupState.PREPARING_REBALANCE
    settle(world, members)
    members[1].topics = ["events", "other"]
    members[1].join()
    assert state(world) is GroupState.PREPARING_REBALANCE


def test_protocol_is_chosen_by_votes_among_the_common_ones() -> None:
    world = World()
    members = [
        ClientMember(world, "a", protocols=("only-a", "range", "sticky")),
        ClientMember(world, "b", protocols=("sticky", "range")),
        ClientMember(world, "c", protocols=("sticky", "range")),
    ]
    for member in members:
        member.join()
    settle(world, members)
    assert world.shard().classic.groups["g"].protocol_name == "sticky"
    stranger = ClientMember(world, "d", protocols=("only-a",))
    stranger.join()
    assert stranger.errors == [ErrorCode.INCONSISTENT_GROUP_PROTOCOL]
    assert state(world) is GroupState.STABLE


def test_cooperative_rebalance_of_two_rounds() -> None:
    """A cooperative member revokes partitions, then rejoins without being told to."""
    world = World()
    members = [ClientMember(world, name, protocols=("cooperative-sticky",)) for name in "ab"]
    members[0].join()
    settle(world, [members[0]])
    members[1].join()
    settle(world, members)
    members[1].topics = ["events", "other"]  # as a changed owned-partitions list would
    members[1].join()
    settle(world, members)
    assert members[0].generation == members[1].generation == 3


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        pytest.param(
            JoinGroupRequest(session_timeout_ms=10_000), "INVALID_GROUP_ID", id="no group"
        ),
        pytest.param(
            JoinGroupRequest(group_id="n", session_timeout_ms=5_999),
            "INVALID_SESSION_TIMEOUT",
            id="session too short",
        ),
        pytest.param(
            JoinGroupRequest(group_id="n", session_timeout_ms=1_800_001),
            "INVALID_SESSION_TIMEOUT",
            id="session too long",
        ),
        pytest.param(
            JoinGroupRequest(group_id="n", session_timeout_ms=10_000, member_id="x"),
            "UNKNOWN_MEMBER_ID",
            id="member of an unknown group",
        ),
        pytest.param(
            JoinGroupRequest(group_id="n", session_timeout_ms=10_000, protocol_type="consumer"),
            "INCONSISTENT_GROUP_PROTOCOL",
            id="no protocols",
        ),
        pytest.param(
            JoinGroupRequest(
                group_id="n",
                session_timeout_ms=10_000,
                protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range")],
            ),
            "INCONSISTENT_GROUP_PROTOCOL",
            id="no protocol type",
        ),
    ],
)
def test_refused_joins(request_: JoinGroupRequest, error: str) -> None:
    world = World()
    answer = world.coordinator.join_group(Context(9), request_)
    response = answer.value
    assert isinstance(response, JoinGroupResponse)
    assert ErrorCode(response.error_code).name == error
    assert response.member_id == request_.member_id
    assert "n" not in world.shard().classic.groups


def test_stable_group_answers_strangers() -> None:
    world = World()
    member = ClientMember(world, "a")
    member.join()
    settle(world, [member])
    ours, generation = member.member_id, member.generation
    table = [
        ("nobody", generation, None, ErrorCode.UNKNOWN_MEMBER_ID),
        (ours, generation + 1, None, ErrorCode.ILLEGAL_GENERATION),
        (ours, generation - 1, None, ErrorCode.ILLEGAL_GENERATION),
        (ours, generation, "i", ErrorCode.UNKNOWN_MEMBER_ID),
        (ours, generation, None, ErrorCode.NONE),
    ]
    for member_id, asked, instance_id, error in table:
        heartbeat = HeartbeatRequest(
            group_id="g", generation_id=asked, member_id=member_id, group_instance_id=instance_id
        )
        assert world.coordinator.heartbeat(Context(4), heartbeat).error_code == error
        sync = SyncGroupRequest(
            group_id="g", generation_id=asked, member_id=member_id, group_instance_id=instance_id
        )
        answer = world.coordinator.sync_group(Context(4), sync)
        assert getattr(getattr(answer, "value", answer), "error_code", None) == error


@pytest.mark.parametrize(
    ("version", "protocol_type", "protocol_name", "error"),
    [
        (4, None, None, ErrorCode.NONE),
        (5, None, None, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (5, "consumer", None, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (5, "consumer", "range", ErrorCode.NONE),
        (5, "connect", "range", ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (5, "consumer", "sticky", ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_sync_checks_the_protocol(
    version: int, protocol_type: str | None, protocol_name: str | None, error: ErrorCode
) -> None:
    world = World()
    member = ClientMember(world, "a")
    member.join()
    settle(world, [member])
    request = SyncGroupRequest(
        group_id="g",
        generation_id=member.generation,
        member_id=member.member_id,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
    )
    answer = world.coordinator.sync_group(Context(version), request)
    assert getattr(getattr(answer, "value", answer), "error_code", None) == error
