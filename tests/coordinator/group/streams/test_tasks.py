"""Tasks of streams groups: what a member has, beside what it says that it has."""

from __future__ import annotations

import pytest

from kbroker.coordinator.group.streams.tasks import HeldTasks, TaskSet

F = frozenset
HELD = HeldTasks(
    active={"a": {0: 3, 1: 4}}, standby={"a": F({2}), "b": F({0})}, warmup={"c": F({5})}
)


def test_nothing_is_false() -> None:
    assert not TaskSet() and not HeldTasks()
    assert TaskSet(warmup={"a": F({0})}) and HeldTasks(standby={"a": F({0})})
    assert HELD and TaskSet(active={"a": F({0})})


def test_active_and_passive_tasks() -> None:
    assert sorted(HELD.active_tasks()) == [("a", 0), ("a", 1)]
    assert sorted(HELD.passive_tasks()) == [("a", 2), ("b", 0), ("c", 5)]


@pytest.mark.parametrize(
    ("said", "any_of_them", "all_of_them"),
    [
        pytest.param(TaskSet(), False, True, id="nothing"),
        pytest.param(TaskSet(active={"a": F({1})}), True, True, id="one of its own"),
        pytest.param(TaskSet(active={"a": F({1, 9})}), True, False, id="one more"),
        pytest.param(TaskSet(active={"x": F({0})}), False, False, id="another subtopology"),
        pytest.param(TaskSet(standby={"a": F({0})}), False, False, id="its own as another kind"),
        pytest.param(
            TaskSet({"a": F({0, 1})}, {"a": F({2}), "b": F({0})}, {"c": F({5})}),
            True,
            True,
            id="all it has",
        ),
        pytest.param(
            TaskSet({"a": F({0})}, {"b": F({7})}), True, False, id="one kind right, another wrong"
        ),
    ],
)
def test_what_it_says(said: TaskSet, any_of_them: bool, all_of_them: bool) -> None:
    assert HELD.has_any(said) is any_of_them
    assert HELD.has_all(said) is all_of_them
