"""Tasks of a streams group (KIP-1071): a subtopology and a partition; the target and the current
tasks of a member.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

Task = tuple[str, int]
"""(subtopology id, partition)."""

Tasks = Mapping[str, frozenset[int]]
"""Partitions by subtopology id; subtopologies without partitions are left out."""

DatedTasks = Mapping[str, Mapping[int, int]]
"""As `Tasks`, with the member epoch in which each was assigned."""


class TaskSet(msgspec.Struct, frozen=True):
    """The target tasks of a member, or the tasks that it reports."""

    active: Tasks = msgspec.field(default_factory=dict)
    standby: Tasks = msgspec.field(default_factory=dict)
    warmup: Tasks = msgspec.field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.active or self.standby or self.warmup)


class HeldTasks(msgspec.Struct, frozen=True):
    """The current tasks of a member. The epochs of active tasks decide which commits are accepted
    (KIP-1251).
    """

    active: DatedTasks = msgspec.field(default_factory=dict)
    standby: Tasks = msgspec.field(default_factory=dict)
    warmup: Tasks = msgspec.field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.active or self.standby or self.warmup)

    def active_tasks(self) -> Iterator[Task]:
        """The tasks that the member runs."""
        return (
            (subtopology, partition)
            for subtopology, dated in self.active.items()
            for partition in dated
        )

    def passive_tasks(self) -> Iterator[Task]:
        """The tasks whose state the member only keeps."""
        for tasks in (self.standby, self.warmup):
            for subtopology, partitions in tasks.items():
                for partition in partitions:
                    yield subtopology, partition

    def has_any(self, said: TaskSet) -> bool:
        """Whether one of these tasks is among those that a member reported."""
        return any(
            not said_tasks.get(subtopology, frozenset()).isdisjoint(partitions)
            for tasks, said_tasks in self._pairs(said)
            for subtopology, partitions in tasks.items()
        )

    def has_all(self, said: TaskSet) -> bool:
        """Whether all tasks that a member reported are among these."""
        return all(
            subtopology in tasks and all(one in tasks[subtopology] for one in partitions)
            for tasks, said_tasks in self._pairs(said)
            for subtopology, partitions in said_tasks.items()
        )

    def _pairs(
        self, said: TaskSet
    ) -> tuple[tuple[Mapping[str, Mapping[int, int] | frozenset[int]], Tasks], ...]:
        return (
            (self.active, said.active),
            (self.standby, said.standby),
            (self.warmup, said.warmup),
        )
