"""One member's way from the tasks it has to those it shall have."""

from __future__ import annotations

from kbroker.coordinator.group.streams.group import StreamsGroup
from kbroker.coordinator.group.streams.reconciliation import (
    CurrentTasks,
    StreamsMemberState,
    reconcile,
)
from kbroker.coordinator.group.streams.records import (
    StreamsMember,
    streams_current_record,
    streams_member_record,
)
from kbroker.coordinator.group.streams.tasks import HeldTasks, TaskSet

STABLE = StreamsMemberState.STABLE
UNREVOKED = StreamsMemberState.UNREVOKED_TASKS
UNRELEASED = StreamsMemberState.UNRELEASED_TASKS
NOTHING = TaskSet()
T = frozenset


def group_of(**members: tuple[str, CurrentTasks]) -> StreamsGroup:
    """Member -> (process, what it has)."""
    group = StreamsGroup("s")
    for member_id, (process_id, current) in members.items():
        for record in (
            streams_current_record("s", member_id, current),  # compaction may put it first
            streams_member_record("s", member_id, StreamsMember(process_id=process_id)),
        ):
            group.replay(record.key, record.value)  # type: ignore[arg-type]  # records of this type only
    return group


def step(
    group: StreamsGroup,
    member_id: str,
    target: TaskSet,
    said: TaskSet | None = NOTHING,
    *,
    epoch: int = 5,
) -> CurrentTasks:
    return reconcile(
        group.current(member_id),
        target_epoch=epoch,
        target=target,
        process_id=group.members[member_id].process_id,
        holders=group,
        said=said,
    )


def active(**partitions: int) -> HeldTasks:
    """_0=1: task 0_1, since epoch 3."""
    return HeldTasks({name.removeprefix("_"): {one: 3} for name, one in partitions.items()})


NEW = CurrentTasks(4, 4)


def test_what_is_free_is_taken_in_the_epoch_of_the_target() -> None:
    group = group_of(a=("p", CurrentTasks(4, 3, STABLE, active(_0=1))))
    after = step(group, "a", TaskSet({"0": T({1, 2})}, {"1": T({0})}))
    assert after == CurrentTasks(5, 4, STABLE, HeldTasks({"0": {1: 3, 2: 5}}, {"1": T({0})}))
    assert step(group, "a", NOTHING, epoch=4) is group.current("a")


def test_nothing_is_taken_before_it_was_given_back() -> None:
    group = group_of(a=("p", CurrentTasks(4, 3, STABLE, active(_0=1, _1=1))), b=("q", NEW))
    target = TaskSet({"0": T({1, 2})})
    first = step(group, "a", target, said=None)
    assert first == CurrentTasks(4, 4, UNREVOKED, active(_0=1), active(_1=1))
    group = group_of(a=("p", first), b=("q", NEW))
    both = TaskSet({"0": T({1}), "1": T({1})})
    assert step(group, "a", target, both) is group.current("a")
    assert step(group, "a", target, None) is group.current("a")
    waiting = step(group, "b", TaskSet({"1": T({1})}))
    assert waiting == CurrentTasks(5, 4, UNRELEASED)
    done = step(group, "a", target, TaskSet({"0": T({1})}))
    assert done == CurrentTasks(5, 4, STABLE, HeldTasks({"0": {1: 3, 2: 5}}))


def test_another_target_while_giving_back() -> None:
    former = CurrentTasks(4, 3, UNREVOKED, active(_0=1), active(_1=1))
    group = group_of(a=("p", former))
    after = step(group, "a", NOTHING, TaskSet({"0": T({1})}), epoch=6)
    assert after == CurrentTasks(5, 4, UNREVOKED, HeldTasks(), active(_0=1))


def test_what_others_have_is_waited_for() -> None:
    group = group_of(a=("p", NEW), b=("q", CurrentTasks(4, 3, STABLE, active(_0=1))))
    after = step(group, "a", TaskSet({"0": T({1, 2})}))
    assert after == CurrentTasks(5, 4, UNRELEASED, HeldTasks({"0": {2: 5}}))
    held = group_of(a=("p", after), b=("q", NEW))
    assert step(held, "a", TaskSet({"0": T({1, 2})})) == CurrentTasks(
        5, 5, STABLE, HeldTasks({"0": {1: 5, 2: 5}})
    )


def test_a_process_has_a_task_once() -> None:
    runs = CurrentTasks(4, 3, STABLE, active(_0=1))
    keeps = CurrentTasks(4, 3, STABLE, HeldTasks(standby={"0": T({1})}))
    run, keep = TaskSet({"0": T({1})}), TaskSet(standby={"0": T({1})})
    for other, target, process, expected in (
        (runs, keep, "p", UNRELEASED),
        (runs, keep, "q", STABLE),
        (keeps, keep, "p", UNRELEASED),
        (keeps, keep, "q", STABLE),
        (keeps, run, "p", UNRELEASED),
        (keeps, run, "q", STABLE),
        (runs, run, "q", UNRELEASED),
    ):
        group = group_of(a=("p", NEW), b=(process, other))
        assert step(group, "a", target).state is expected


def test_a_state_of_a_later_kafka_goes_on() -> None:
    group = group_of(a=("p", CurrentTasks(4, 3, StreamsMemberState.UNKNOWN, active(_0=1))))
    after = step(group, "a", TaskSet({"0": T({1})}))
    assert after == CurrentTasks(5, 4, STABLE, active(_0=1))
