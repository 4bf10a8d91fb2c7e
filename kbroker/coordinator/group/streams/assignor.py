"""The target assignment of tasks in a streams group: Kafka's `sticky` assignor (KIP-1071).

Active tasks stay with their member as far as each member's quota allows, otherwise go to a member
that keeps their state, and last to the process with the lowest load. Standby tasks go to other
processes than the active task, again first to one that keeps the state. Members of one process are
its threads.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

import msgspec

from kbroker.coordinator.group.streams.tasks import Task, TaskSet


class StreamsWorker(msgspec.Struct, frozen=True):
    """A member as the assignor sees it. target: its current target."""

    process_id: str
    target: TaskSet


class Workload(msgspec.Struct, frozen=True):
    """task_counts: by subtopology id. stateful: the subtopologies with state. standbys: the number
    of standby tasks per stateful task.
    """

    task_counts: Mapping[str, int]
    stateful: frozenset[str]
    standbys: int

    def tasks(self, *, only_stateful: bool = False) -> list[Task]:
        """All tasks."""
        return [
            (name, partition)
            for name, count in self.task_counts.items()
            if not only_stateful or name in self.stateful
            for partition in range(count)
        ]


def assign_tasks(workers: Mapping[str, StreamsWorker], load: Workload) -> dict[str, TaskSet]:
    """The tasks of each member, by member id. Deterministic."""
    if not workers:
        return {}
    assignment = _Assignment(workers, load)
    assignment.assign_active()
    if load.standbys > 0:
        assignment.assign_standby()
    return assignment.result()


class _Share:
    """How many tasks a member may have; a member that has reached its quota gets no more."""

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks = tasks
        self._members = members
        self.limit = -(-tasks // members)

    def note(self, count: int) -> None:
        """A member now has that many tasks."""
        if count == self.limit:
            self._members -= 1
            self._tasks -= count
            self.limit = -(-self._tasks // self._members) if self._members else 0


class _Process:
    """The members of one process. counts: tasks by member."""

    def __init__(self, process_id: str) -> None:
        self.process_id = process_id
        self.counts: dict[str, int] = {}
        self.tasks: set[Task] = set()
        self._total = 0
        self._idlest: list[tuple[int, str]] = []
        """A heap of (count, member), some entries with an outdated count."""

    @property
    def load(self) -> float:
        return self._total / len(self.counts)

    def add(self, member: str) -> None:
        """Add a member without tasks."""
        self.counts[member] = 0
        heapq.heappush(self._idlest, (0, member))

    def give(self, member: str, task: Task) -> int:
        """Assign another task to a member. Returns how many it has."""
        self.tasks.add(task)
        self._total += 1
        count = self.counts[member] = self.counts[member] + 1
        heapq.heappush(self._idlest, (count, member))
        return count

    def idlest(self) -> str:
        heap = self._idlest
        while heap[0][0] != self.counts[heap[0][1]]:
            heapq.heappop(heap)
        return heap[0][1]


class _Assignment:
    def __init__(self, workers: Mapping[str, StreamsWorker], load: Workload) -> None:
        self._load = load
        self._active: dict[str, dict[str, set[int]]] = {member: {} for member in workers}
        self._standby: dict[str, dict[str, set[int]]] = {member: {} for member in workers}
        self._processes: dict[str, _Process] = {}
        self._process_of: dict[str, _Process] = {}
        self._was_active: dict[Task, str] = {}
        self._was_standby: dict[Task, list[str]] = {}
        for member, worker in sorted(workers.items()):
            process = self._processes.setdefault(worker.process_id, _Process(worker.process_id))
            process.add(member)
            self._process_of[member] = process
            for task in _tasks_of(worker.target.active):
                self._was_active[task] = member
            for task in _tasks_of(worker.target.standby):
                self._was_standby.setdefault(task, []).append(member)
        active = len(load.tasks())
        total = active + load.standbys * len(load.tasks(only_stateful=True))
        self._active_share = _Share(active, len(workers))
        self._total_share = _Share(total, len(workers))

    def assign_active(self) -> None:
        left = sorted(self._load.tasks(), key=lambda task: (task[1], task[0]))
        left = [task for task in left if not self._keep_active(task)]
        left = [task for task in left if not self._promote(task)]
        heap = [(process.load, process.process_id) for process in self._processes.values()]
        heapq.heapify(heap)
        for task in sorted(left):
            _, process_id = heapq.heappop(heap)
            process = self._processes[process_id]
            self._give_active(process.idlest(), task)
            heapq.heappush(heap, (process.load, process_id))

    def assign_standby(self) -> None:
        tasks = sorted(self._load.tasks(only_stateful=True), key=lambda task: (task[1], task[0]))
        left: list[tuple[Task, int]] = []
        for task in reversed(tasks):
            for number in range(self._load.standbys):
                if not (self._demote(task) or self._keep_standby(task)):
                    left.append((task, self._load.standbys - number))
                    break
        heap = [(process.load, process.process_id) for process in self._processes.values()]
        heapq.heapify(heap)
        for task, count in sorted(left, reverse=True):
            for _ in range(count):
                if not self._give_to_another_process(task, heap):
                    break

    def _give_to_another_process(self, task: Task, heap: list[tuple[float, str]]) -> bool:
        """Assign a standby task to the process with the lowest load that does not have the task.
        Returns whether there is one.
        """
        passed = []
        process = None
        while heap and process is None:
            entry = heapq.heappop(heap)
            process = self._processes[entry[1]]
            if task in process.tasks:
                passed.append(entry)
                process = None
        if process is not None:
            self._give_standby(process.idlest(), task)
            passed.append((process.load, process.process_id))
        for entry in passed:
            heapq.heappush(heap, entry)
        return process is not None

    def result(self) -> dict[str, TaskSet]:
        return {
            member: TaskSet(
                {name: frozenset(partitions) for name, partitions in active.items()},
                {name: frozenset(partitions) for name, partitions in self._standby[member].items()},
            )
            for member, active in self._active.items()
        }

    def _count(self, member: str) -> int:
        return self._process_of[member].counts[member]

    def _keep_active(self, task: Task) -> bool:
        member = self._was_active.get(task)
        if member is None or self._count(member) >= self._active_share.limit:
            return False
        self._give_active(member, task)
        return True

    def _promote(self, task: Task) -> bool:
        """Make the standby task the active one: the active task runs where the state is."""
        member = self._least_loaded(self._was_standby.get(task, ()))
        if member is None or self._count(member) >= self._active_share.limit:
            return False
        self._give_active(member, task)
        return True

    def _demote(self, task: Task) -> bool:
        """Make the active task a standby: the state is kept where it was active."""
        member = self._was_active.get(task)
        if member is None or not self._may_keep(member, task):
            return False
        self._give_standby(member, task)
        return True

    def _keep_standby(self, task: Task) -> bool:
        candidates = [
            member
            for member in self._was_standby.get(task, ())
            if task not in self._process_of[member].tasks
        ]
        member = self._least_loaded(candidates)
        if member is None or not self._may_keep(member, task):
            return False
        self._give_standby(member, task)
        return True

    def _may_keep(self, member: str, task: Task) -> bool:
        is_elsewhere = task not in self._process_of[member].tasks
        return is_elsewhere and self._count(member) < self._total_share.limit

    def _least_loaded(self, members: Iterable[str]) -> str | None:
        return min(
            members,
            key=lambda member: (self._process_of[member].load, self._count(member), member),
            default=None,
        )

    def _give_active(self, member: str, task: Task) -> None:
        count = self._give(self._active, member, task)
        self._active_share.note(count)
        self._total_share.note(count)

    def _give_standby(self, member: str, task: Task) -> None:
        self._total_share.note(self._give(self._standby, member, task))

    def _give(self, side: dict[str, dict[str, set[int]]], member: str, task: Task) -> int:
        side[member].setdefault(task[0], set()).add(task[1])
        return self._process_of[member].give(member, task)


def _tasks_of(tasks: Mapping[str, frozenset[int]]) -> Iterable[Task]:
    return ((name, partition) for name, partitions in tasks.items() for partition in partitions)
