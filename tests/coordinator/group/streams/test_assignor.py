"""Who gets which tasks: shares, stickiness, standbys. Where Kafka has no choice, the answers are
those of its StickyTaskAssignor.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.coordinator.group.streams import assignor as streams_assignor
from kbroker.coordinator.group.streams.assignor import StreamsWorker, Workload, assign_tasks
from kbroker.coordinator.group.streams.tasks import Task, TaskSet

NOTHING = TaskSet()


def worker(process_id: str, target: TaskSet = NOTHING) -> StreamsWorker:
    return StreamsWorker(process_id, target)


def load(standbys: int = 0, *, stateful: str = "", **task_counts: int) -> Workload:
    counts = {name.removeprefix("_"): count for name, count in task_counts.items()}
    return Workload(counts, frozenset(stateful), standbys)


def tasks(assigned: TaskSet, kind: str = "active") -> list[Task]:
    return sorted((name, one) for name, ones in getattr(assigned, kind).items() for one in ones)


def test_one_member_gets_all() -> None:
    assigned = assign_tasks({"a": worker("p")}, load(_0=3, _1=2))
    assert tasks(assigned["a"]) == [("0", 0), ("0", 1), ("0", 2), ("1", 0), ("1", 1)]


def test_no_members_get_no_tasks() -> None:
    assert assign_tasks({}, load(_0=3)) == {}


def test_a_second_member_gets_its_share_and_the_rest_stays() -> None:
    everything = TaskSet(active={"0": frozenset({0, 1}), "1": frozenset({0, 1})})
    assigned = assign_tasks({"a": worker("p", everything), "b": worker("q")}, load(_0=2, _1=2))
    assert tasks(assigned["a"]) == [("0", 0), ("1", 0)]
    assert tasks(assigned["b"]) == [("0", 1), ("1", 1)]


def test_work_goes_to_where_the_state_is_kept() -> None:
    keeper = TaskSet(standby={"0": frozenset({0, 1})})
    assigned = assign_tasks(
        {"a": worker("p"), "b": worker("q", keeper)}, load(1, stateful="0", _0=2)
    )
    assert tasks(assigned["b"])[0] == ("0", 0)
    assert tasks(assigned["a"], "standby") == tasks(assigned["b"])
    assert tasks(assigned["b"], "standby") == tasks(assigned["a"])


def test_a_standby_is_not_in_the_process_that_works() -> None:
    """Two threads of one process are no place for a copy."""
    assigned = assign_tasks({"a": worker("p"), "b": worker("p")}, load(1, stateful="0", _0=4))
    assert not any(assigned[name].standby for name in "ab")
    assert [len(tasks(assigned[name])) for name in "ab"] == [2, 2]


def test_only_state_has_standbys() -> None:
    members = {name: worker(name) for name in "abc"}
    assigned = assign_tasks(members, load(2, stateful="1", _0=3, _1=3))
    standbys = Counter(task for one in assigned.values() for task in tasks(one, "standby"))
    assert standbys == {("1", number): 2 for number in range(3)}


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, StreamsWorker], Workload]:
    """Members in processes, with targets of some former assignment."""
    members = draw(st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from("pqr"), min_size=1))
    counts = draw(st.dictionaries(st.sampled_from("012"), st.integers(1, 9), min_size=1))
    stateful = frozenset(draw(st.sets(st.sampled_from("012")))) & counts.keys()
    workload = Workload(counts, frozenset(stateful), draw(st.integers(0, 2)))
    before = assign_tasks({f"{name}0": worker(name) for name in "pq"}, workload)
    former = draw(st.permutations([*before.values(), *[NOTHING] * len(members)]))
    return {
        name: StreamsWorker(process, target)
        for (name, process), target in zip(members.items(), former, strict=False)
    }, workload


@given(groups())
def test_every_assignment(group: tuple[dict[str, StreamsWorker], Workload]) -> None:
    workers, workload = group
    assigned = assign_tasks(workers, workload)
    assert assigned.keys() == workers.keys()
    active = [task for one in assigned.values() for task in tasks(one)]
    assert sorted(active) == sorted(workload.tasks())
    places: set[tuple[str, Task]] = set()
    for name, one in assigned.items():
        for task in [*tasks(one), *tasks(one, "standby")]:
            place = (workers[name].process_id, task)
            assert place not in places
            places.add(place)
    processes = {one.process_id for one in workers.values()}
    copies = Counter(task for one in assigned.values() for task in tasks(one, "standby"))
    expected = min(workload.standbys, len(processes) - 1)
    assert all(copies[task] == expected for task in workload.tasks(only_stateful=True))
    assert assign_tasks(dict(reversed(workers.items())), workload) == assigned


@pytest.mark.parametrize("seed", range(20))
def test_what_was_assigned_stays(seed: int) -> None:
    """With the same members nothing moves. After one leaves, the others keep their tasks."""
    random = Random(seed)
    workload = Workload({"0": random.randrange(1, 20), "1": 5}, frozenset("1"), random.randrange(2))
    workers = {f"m{number}": worker(f"p{number}") for number in range(random.randrange(2, 7))}
    first = assign_tasks(workers, workload)
    again = {name: StreamsWorker(one.process_id, first[name]) for name, one in workers.items()}
    second = assign_tasks(again, workload)
    assert {name: one.active for name, one in second.items()} == {
        name: one.active for name, one in first.items()
    }
    del again[random.choice(sorted(again))]
    third = assign_tasks(again, workload)
    for name in again:
        assert set(tasks(first[name])) <= set(tasks(third[name]))


def test_the_work_is_no_product_of_tasks_and_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 tasks with a standby each, for 100 processes."""
    looks = 0
    load_of = streams_assignor._Process.load.fget
    assert load_of is not None

    def counted(process: streams_assignor._Process) -> float:
        nonlocal looks
        looks += 1
        assert load_of is not None
        return float(load_of(process))

    monkeypatch.setattr(streams_assignor._Process, "load", property(counted))
    workers = {f"m{number}": worker(f"p{number}") for number in range(100)}
    assigned = assign_tasks(workers, load(1, stateful="01", _0=500, _1=500))
    assert sum(len(tasks(one)) + len(tasks(one, "standby")) for one in assigned.values()) == 2_000
    assert looks <= 5 * 2_000
