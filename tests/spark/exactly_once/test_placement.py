"""Numbers that Spark's shuffle sends to given tasks. The hashes are those of Spark's `hash`, which
`test_sink` compares.
"""

from __future__ import annotations

from spark_jobs.exactly_once.placement import numbers_for_tasks, task_of


def test_a_number_for_each_task() -> None:
    for tasks in (1, 2, 3, 12, 200):
        numbers = numbers_for_tasks(tasks)
        assert [task_of(number, tasks) for number in numbers] == list(range(tasks))


def test_hashes_of_spark() -> None:
    """`SELECT hash(0), hash(1), hash(2)`."""
    wanted = [933211791, -559580957, 1765031574]
    assert [task_of(number, 1 << 40) for number in range(3)] == [
        value % (1 << 40) for value in wanted
    ]
