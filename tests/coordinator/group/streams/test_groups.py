"""Streams groups step by step: epochs, times, and what survives a reload. What Kafka 4.3.1 answers
to the same is in tests/reference/test_streams_answers.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kbroker.coordinator.group.streams.reconciliation import StreamsMemberState
from kbroker.coordinator.group.streams.records import streams_current_record
from kbroker.coordinator.group.streams.tasks import Task
from kbroker.ports import at_once
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.groups import DeleteGroupsRequest
from kbroker.protocol.messages.coordinators.offsets import OffsetCommitRequest
from kbroker.protocol.messages.coordinators.streams_groups import StreamsGroupHeartbeatRequest
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from tests.coordinator.group.streams_members import StreamsThread, ask, settle, task_ids, topology
from tests.coordinator.simulation import Context, World

ASSIGNMENT_DELAYED, MISSING_INTERNAL, STALE, SHUTDOWN = 5, 3, 0, 4


def world_of(**settings: Any) -> World:
    """A world whose streams groups are assigned at once, but for settings."""
    values = {
        "group_streams_initial_rebalance_delay_ms": 0,
        "group_streams_assignment_interval_ms": 0,
        **settings,
    }
    return World(config=GroupCoordinatorConfig(**values))


@pytest.fixture
def world() -> World:
    return world_of()


def say(world: World, member: str, epoch: int, **fields: Any) -> tuple[str, int, object]:
    """(error, member epoch, active tasks as a list or None). tasks: what it says it has."""
    tasks: set[Task] | None = fields.pop("tasks", set() if epoch == 0 else None)
    if epoch == 0:
        fields = {
            "rebalance_timeout_ms": 5_000,
            "process_id": f"process of {member}",
            "topology": topology(),
            **fields,
        }
    if tasks is not None:
        fields.update(active_tasks=task_ids(tasks), standby_tasks=[], warmup_tasks=[])
    answer = ask(world, member_id=member, member_epoch=epoch, **fields)
    active = answer.active_tasks
    told = None
    if active is not None:
        told = [f"{one.subtopology_id}_{number}" for one in active for number in one.partitions]
    return ErrorCode(answer.error_code).name, answer.member_epoch, told


ALL = {(name, number) for name in "01" for number in range(3)}


def test_internal_topics_come_first(world: World) -> None:
    assert say(world, "a", 0) == ("NONE", 2, [])
    assert world.shard().streams.groups["s"].state() == "NotReady"
    assert len(world.topics.topics["s-rep"].partitions) == 3
    assert say(world, "a", 2, tasks=set()) == (
        "NONE",
        3,
        ["0_0", "0_1", "0_2", "1_0", "1_1", "1_2"],
    )
    assert world.shard().streams.groups["s"].state() == "Stable"


def test_the_first_assignment_waits_for_more_members() -> None:
    world = world_of(group_streams_initial_rebalance_delay_ms=3_000)
    threads = [StreamsThread(world, name) for name in "ab"]
    for thread in threads:
        thread.poll()
        world.timers.advance(1_000)
    threads[0].poll()
    assert ASSIGNMENT_DELAYED in threads[0].status
    assert world.shard().streams.groups["s"].targets == {}
    world.timers.advance(1_000)
    assert {
        len(target.active["0"]) for target in world.shard().streams.groups["s"].targets.values()
    }
    for thread in threads:
        thread.poll()
    assert [len(thread.active) for thread in threads] == [3, 3]
    assert ASSIGNMENT_DELAYED not in threads[0].status


def test_a_reload_ends_the_delay() -> None:
    world = world_of(group_streams_initial_rebalance_delay_ms=3_000)
    thread = StreamsThread(world, "a")
    thread.poll()
    world.resign()
    world.lead()
    thread.poll()
    assert len(thread.active) == 6


def test_assignments_have_an_interval() -> None:
    world = world_of(group_streams_assignment_interval_ms=1_000)
    one, two = StreamsThread(world, "a"), StreamsThread(world, "b")
    one.poll()
    world.timers.advance(1_000)
    one.poll()
    two.poll()
    assert two.status == [ASSIGNMENT_DELAYED]
    settle(world, [one, two])
    assert [len(thread.active) for thread in (one, two)] == [3, 3]


def test_a_task_is_given_on_when_it_was_given_back(world: World) -> None:
    say(world, "a", 0)
    say(world, "a", 2, tasks=set())
    assert say(world, "b", 0) == ("NONE", 4, [])
    kept = {("0", 0), ("0", 2), ("1", 0)}
    assert say(world, "a", 3, tasks=ALL) == ("NONE", 3, ["0_0", "0_1", "1_0"])
    assert say(world, "b", 4, tasks=set()) == ("NONE", 4, None)
    assert world.shard().streams.groups["s"].state() == "Reconciling"
    kept = {("0", 0), ("0", 1), ("1", 0)}
    assert say(world, "a", 3, tasks=kept) == ("NONE", 4, None)
    assert say(world, "b", 4, tasks=set()) == ("NONE", 4, ["0_2", "1_1", "1_2"])
    assert world.shard().streams.groups["s"].state() == "Stable"
    assert say(world, "a", 3, tasks=kept) == ("NONE", 4, None)  # the answer was lost
    assert say(world, "a", 3, tasks=ALL) == ("FENCED_MEMBER_EPOCH", 0, None)
    assert say(world, "a", 2, tasks=kept) == ("FENCED_MEMBER_EPOCH", 0, None)


def test_who_does_not_give_back_in_time_is_removed(world: World) -> None:
    say(world, "a", 0)
    say(world, "a", 2, tasks=set())
    say(world, "b", 0)
    say(world, "a", 3, tasks=ALL)
    for _ in range(4):
        world.timers.advance(1_200)
        say(world, "a", 3, tasks=ALL)
    world.timers.advance(200)
    assert say(world, "a", 3, tasks=ALL) == ("UNKNOWN_MEMBER_ID", 0, None)
    error, epoch, told = say(world, "b", 4, tasks=set())
    assert (error, epoch, len(told or [])) == ("NONE", 5, 6)  # type: ignore[arg-type]  # a list of assignments


def test_who_is_silent_is_removed_also_after_a_reload(world: World) -> None:
    say(world, "a", 0)
    world.timers.advance(40_000)
    world.resign()
    world.lead()
    assert say(world, "a", 2, tasks=set())[0] == "NONE"
    world.timers.advance(44_999)
    assert world.shard().streams.groups["s"].members
    world.timers.advance(1)
    assert world.shard().streams.groups["s"].state() == "Empty"
    assert world.replayed().streams.groups["s"].epoch == 4


def test_a_member_whose_end_cannot_be_written_is_ended_later(world: World) -> None:
    say(world, "a", 0)
    world.log.errors.append(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.timers.advance(45_000)
    assert world.shard().streams.groups["s"].members
    world.timers.advance(1_000)
    assert not world.shard().streams.groups["s"].members


def test_a_member_that_ended_though_its_write_timed_out_has_no_session(world: World) -> None:
    say(world, "a", 0)
    world.log.errors.append(ErrorCode.REQUEST_TIMED_OUT)
    world.timers.advance(45_000)
    assert not world.shard().streams.groups["s"].members
    assert not world.shard().streams._sessions._sessions


def test_a_group_that_lost_a_topic_is_not_ready(world: World) -> None:
    thread = StreamsThread(world, "a")
    settle(world, [thread])
    world.topics.remove("other")
    thread.poll()
    assert (thread.active, thread.status) == (set(), [1])
    assert thread.group.state() == "NotReady"
    world.topics.add("other", 3)
    settle(world, [thread])
    assert len(thread.active) == 6


def test_a_group_has_settings_of_its_own(world: World) -> None:
    threads = [StreamsThread(world, name) for name in "ab"]
    settle(world, threads)
    assert not any(thread.standby for thread in threads)
    world.overrides.values["s", "streams.num.standby.replicas"] = 1
    world.overrides.values["s", "streams.session.timeout.ms"] = 50_000
    world.overrides.values["s", "streams.heartbeat.interval.ms"] = 7_000
    settle(world, threads)
    assert sorted(task for thread in threads for task in thread.standby) == [
        ("1", number) for number in range(3)
    ]
    assert ask(world, member_id="a", member_epoch=threads[0].epoch).heartbeat_interval_ms == 7_000
    world.timers.advance(49_999)
    assert world.shard().streams.groups["s"].members


def test_limits() -> None:
    world = world_of(group_streams_max_size=1)
    assert say(world, "a", 0)[0] == "NONE"
    assert say(world, "b", 0)[0] == "GROUP_MAX_SIZE_REACHED"


def test_who_is_where(world: World) -> None:
    def endpoint(name: str) -> dict[str, object]:
        place = StreamsGroupHeartbeatRequest.Endpoint(host=name, port=1)
        return {"user_endpoint": place, "endpoint_information_epoch": -1}

    one = StreamsThread(world, "a", **endpoint("one"))
    two = StreamsThread(world, "b", **endpoint("two"))
    settle(world, [one, two])
    answer = ask(world, member_id="b", member_epoch=two.epoch, endpoint_information_epoch=0)
    places = {
        place.user_endpoint.host: {
            (topic.topic, partition)
            for topic in place.active_partitions
            for partition in topic.partitions
        }
        for place in answer.partitions_by_user_endpoint or ()
    }
    assert places == {
        thread.fields["user_endpoint"].host: {  # type: ignore[attr-defined]  # an Endpoint
            ("other" if name == "0" else "s-rep", number) for name, number in thread.active
        }
        for thread in (one, two)
    }
    known = answer.endpoint_information_epoch
    again = ask(world, member_id="b", member_epoch=two.epoch, endpoint_information_epoch=known)
    assert again.partitions_by_user_endpoint is None


def test_a_topology_without_topics_has_no_assignment(world: World) -> None:
    place = StreamsGroupHeartbeatRequest.Endpoint(host="one", port=1)
    thread = StreamsThread(
        world,
        "a",
        topology=topology(source="nosuch"),
        user_endpoint=place,
        endpoint_information_epoch=-1,
    )
    thread.poll()
    thread.poll()
    assert (thread.error, thread.status) == (ErrorCode.NONE, [1])


def test_the_end_of_the_application_is_told_to_all(world: World) -> None:
    threads = [StreamsThread(world, name) for name in "ab"]
    settle(world, threads)
    ask(world, member_id="a", member_epoch=threads[0].epoch, shutdown_application=True)
    threads[1].poll()
    assert threads[1].status == [SHUTDOWN]
    for thread in threads:
        thread.leave()
    threads[1].poll()
    assert SHUTDOWN not in threads[1].status


def commit(world: World, member: str, epoch: int, *partitions: int) -> ErrorCode:
    """Of topic other."""
    request = OffsetCommitRequest(
        group_id="s",
        member_id=member,
        generation_id_or_member_epoch=epoch,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name="other",
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=number, committed_offset=5
                    )
                    for number in partitions
                ],
            )
        ],
    )
    answer: Any = world.answer(world.coordinator.offsets.commit(Context(9), request))
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def test_who_may_commit(world: World) -> None:
    one, two = (StreamsThread(world, name) for name in "ab")
    settle(world, [one])
    settle(world, [one, two])
    kept = [number for name, number in one.active if name == "0"]
    other = [number for name, number in two.active if name == "0"]
    assert commit(world, "a", one.epoch, *kept) is ErrorCode.NONE
    since = one.group.current("a").assigned.active["0"][kept[0]]
    assert since < one.epoch
    assert commit(world, "a", since, kept[0]) is ErrorCode.NONE
    assert commit(world, "a", since - 1, kept[0]) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(world, "a", since, other[0]) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(world, "a", one.epoch + 1, kept[0]) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(world, "c", one.epoch, kept[0]) is ErrorCode.UNKNOWN_MEMBER_ID
    places = [(world.topics.topics["other"].topic_id, other[0])]
    shard = world.shard()
    check = shard.check_transactional_commit
    assert check("s", "a", None, since, places) is ErrorCode.ILLEGAL_GENERATION
    assert check("s", "a", None, one.epoch, places) is ErrorCode.NONE
    assert check("s", "", None, -1, places) is ErrorCode.NONE
    assert check("s", "c", None, 1, places) is ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_and_the_empty_group_end() -> None:
    world = world_of(offsets_retention_minutes=1, offsets_retention_check_interval_ms=10_000)
    thread = StreamsThread(world, "a")
    settle(world, [thread])
    assert commit(world, "a", thread.epoch, 0) is ErrorCode.NONE
    for _ in range(10):
        world.timers.advance(10_000)
        thread.poll()
    assert world.shard().offsets.of_group("s")  # its topic is read
    thread.leave()
    world.timers.advance(20_000)
    assert "s" not in world.shard().streams.groups
    assert "s" not in world.replayed().streams.groups
    assert not world.shard().offsets.of_group("s")


def test_an_empty_group_of_either_kind_gives_way(world: World) -> None:
    from tests.coordinator.group.members import ClientMember
    from tests.coordinator.group.members import settle as settle_classic

    say(world, "a", 0)
    classic = ClientMember(world, "old", group="s")
    classic.join()
    assert classic.errors == [ErrorCode.INCONSISTENT_GROUP_PROTOCOL]
    say(world, "a", -1)
    settle_classic(world, [classic])
    assert "s" not in world.replayed().streams.groups
    assert say(world, "a", 0) == ("GROUP_ID_NOT_FOUND", 0, None)
    classic.leave()
    world.timers.advance(1)
    assert say(world, "a", 0)[:2] == ("NONE", 2)
    assert "s" not in world.replayed().classic.groups


def test_administration(world: World) -> None:
    say(world, "a", 0)
    listed: Any = at_once(world.coordinator.list_groups({"notready"}, {"streams"}))
    assert [group.group_id for group in listed.groups] == ["s"]
    delete = DeleteGroupsRequest(groups_names=["s"])
    answer: Any = world.coordinator.delete_groups(Context(2), delete).value
    assert answer.results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    say(world, "a", -1)
    answer = world.coordinator.delete_groups(Context(2), delete).value
    assert answer.results[0].error_code == ErrorCode.NONE
    assert "s" not in world.replayed().streams.groups


def test_a_state_of_a_later_kafka_is_given_up(world: World) -> None:
    say(world, "a", 0)
    say(world, "a", 2, tasks=set())
    group = world.shard().streams.groups["s"]
    unknown = replace(group.current("a"), state=StreamsMemberState.UNKNOWN)
    record = streams_current_record("s", "a", unknown)
    world.shard().replay(record)
    assert say(world, "a", 3, tasks=ALL)[0] == "FENCED_MEMBER_EPOCH"
    assert say(world, "a", 3)[0] == "FENCED_MEMBER_EPOCH"
    error, epoch, told = say(world, "a", 0)
    assert (error, epoch, len(told or [])) == ("NONE", 3, 6)  # type: ignore[arg-type]  # a list of assignments


def test_an_answer_waits_for_its_records(world: World) -> None:
    world.log.delayed = True
    thread = StreamsThread(world, "a")
    thread.poll()
    assert thread.epoch == 0
    world.log.commit()
    assert thread.epoch == 2
    thread.poll()
    world.log.commit(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert thread.error is not ErrorCode.NONE
